// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the checks see of a stack of policies and of the device below it: virtual calls, so that the checks are compiled
// once, whatever the number of stacks.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tarn/core/bytes.hpp"
#include "tarn/core/place.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/pool/pool_state.hpp"

namespace policy_matrix {

/// Collects what is wrong, each with the check and the stack.
class report {
 public:
  void begin(std::string where) { where_ = std::move(where); }
  void check(bool good, std::string const& what) {
    if (!good) found_.push_back(where_ + ": " + what);
  }
  void add(std::string const& what) { check(false, what); }
  [[nodiscard]] std::vector<std::string> const& found() const noexcept { return found_; }
  [[nodiscard]] std::string const& where() const noexcept { return where_; }

 private:
  std::string where_;
  std::vector<std::string> found_;
};

/// A device, its streams, and work that writes bytes. All streams are used by one thread unless a check says otherwise.
struct test_device {
  virtual ~test_device() = default;
  /// A stream with its identity, as owners keep it.
  [[nodiscard]] virtual tarn::stream_ref new_stream() = 0;
  virtual void end_stream(tarn::stream_ref stream) = 0;
  /// Later work of `second` waits for `first`.
  virtual void order(tarn::stream_ref first, tarn::stream_ref second) = 0;
  /// Work of so many microseconds, at whose end all bytes are written.
  virtual void write(tarn::stream_ref stream, void* p, std::size_t bytes, unsigned char byte,
                     unsigned microseconds) = 0;
  /// True where the first and the last bytes have the value. Waits for nothing.
  [[nodiscard]] virtual bool holds(void const* p, std::size_t bytes, unsigned char byte) = 0;
  virtual void wait(tarn::stream_ref stream) = 0;
  virtual void wait() = 0;
  /// False where there is no capture.
  [[nodiscard]] virtual bool begin_capture(tarn::stream_ref stream) = 0;
  /// True where the capture was not spoiled and has no work of the library's.
  [[nodiscard]] virtual bool end_capture(tarn::stream_ref stream, bool may_have_nodes) = 0;
  /// Calls `f` in the next wait for the whole device, from another thread; false where that cannot be done.
  /// An empty one takes back the one before.
  [[nodiscard]] virtual bool in_next_device_wait(std::function<void()> f) = 0;
  /// What the device found wrong since the last call.
  [[nodiscard]] virtual std::vector<std::string> findings() = 0;
  /// Blocks and handles held from the driver.
  [[nodiscard]] virtual std::size_t held() = 0;
  /// Blocks, handles, streams and events not given back.
  [[nodiscard]] virtual std::size_t left_over() = 0;
  /// True where a check can use up the memory, so that fallbacks and handlers have their turn.
  [[nodiscard]] virtual bool runs_out() const = 0;
  // What the layer above the pool notes: bytes change hands.
  virtual void allocated(void*, std::size_t, tarn::stream_ref) {}
  virtual void freed(void*, std::size_t, tarn::stream_ref) {}
};

/// What a stack offers, at compile time.
struct offers {
  bool record_use = false;
  bool trim = false;
  bool owns = false;
  bool state = false;
  bool statistics = false;
  bool limit = false;
  bool check_all = false;
  bool record = false;  ///< a watched layer is reached
  bool inspect = false;
};

/// Current values of `tracked`.
struct exact_numbers {
  std::int64_t blocks = 0;
  std::int64_t allocated = 0;
  std::int64_t requested = 0;
  friend bool operator==(exact_numbers const&, exact_numbers const&) = default;
};

struct seen_block {
  std::uintptr_t address = 0;
  std::size_t requested = 0;
  int line = 0;
};

struct test_memory {
  virtual ~test_memory() = default;
  [[nodiscard]] virtual void* allocate(tarn::stream_ref stream, std::size_t bytes, std::size_t alignment,
                                       tarn::place where) = 0;
  virtual void deallocate(tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) = 0;
  [[nodiscard]] virtual void* allocate_sync(std::size_t bytes, std::size_t alignment) = 0;
  virtual void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) = 0;
  // Only what the stack offers may be called.
  virtual void record_use(void* p, std::size_t bytes, tarn::stream_ref stream) = 0;
  virtual std::size_t trim(std::size_t keep) = 0;
  [[nodiscard]] virtual bool owns(void const* p) = 0;
  [[nodiscard]] virtual tarn::pool_state state() = 0;
  virtual void reset_peaks() = 0;
  [[nodiscard]] virtual exact_numbers statistics() = 0;
  [[nodiscard]] virtual std::size_t used() = 0;
  virtual std::size_t set_limit(std::size_t bytes) = 0;
  [[nodiscard]] virtual std::size_t check_all() = 0;
  [[nodiscard]] virtual std::vector<seen_block> record() = 0;
  /// Bytes of all stretches that inspection shows.
  [[nodiscard]] virtual std::size_t inspected_bytes() = 0;
  /// What a request occupies, by the layer that a layer on top would ask.
  [[nodiscard]] virtual std::size_t block_bytes(std::size_t bytes, std::size_t alignment) = 0;
  /// What a handler of retry_on_oom in the stack does before it declines.
  virtual void on_out_of_memory(std::function<void()> f) = 0;
};

/// One stack, by name.
struct stack_under_test {
  std::string name;  ///< as it is composed: "sim_malloc | fenced | pooled"
  offers can;
  unsigned policies = 0;  ///< besides `pooled`
  bool has_pool = false;
  bool pool_over_pool = false;     ///< what the upper one gives back the lower one keeps
  bool writes_below_pool = false;  ///< to segments whose bytes are nobody's at the seam above
  bool keeps_freed = false;        ///< a quarantine holds back what was freed
  bool has_retry = false;
  bool driver_orders = false;  ///< bare memory of cudaMallocAsync, which a capture may record
  std::unique_ptr<test_device> (*make_device)(unsigned mode) = nullptr;
  /// The memory. `out` is told, when it ends, what its own records say.
  std::unique_ptr<test_memory> (*make)(test_device& device, report& out) = nullptr;
};

/// What make_device() knows: a driver that can mark the whole device's work; an older one that cannot; the first one, with
/// streams of which it does not know whether they exist, as CUDA of those that a program makes itself.
inline constexpr unsigned device_modes = 3;
inline constexpr char const* mode_names[device_modes] = {", ", ", older driver, ", ", foreign streams, "};

}  // namespace policy_matrix
