// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface of the checks to a stack of policies and its device. The calls are virtual, so that the
// checks are compiled once for all stacks.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tarn/core/bytes.hpp"
#include "tarn/core/graph_owner.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/pool/pool_state.hpp"
#include "tarn/report/snapshot.hpp"

namespace policy_matrix {

/// Collects findings, each with the check and the stack.
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

/// A device, its streams, and work that writes bytes. One thread uses all streams unless a check states
/// otherwise.
struct test_device {
  virtual ~test_device() = default;
  /// A stream with its id, as owners keep it.
  [[nodiscard]] virtual tarn::stream_ref new_stream() = 0;
  virtual void end_stream(tarn::stream_ref stream) = 0;
  /// Makes later work of `second` wait for `first`.
  virtual void order(tarn::stream_ref first, tarn::stream_ref second) = 0;
  /// Enqueues work of so many microseconds that writes all bytes at its end.
  virtual void write(tarn::stream_ref stream, void* p, std::size_t bytes, unsigned char byte,
                     unsigned microseconds) = 0;
  /// Whether the first and the last bytes have the value. Does not wait.
  [[nodiscard]] virtual bool holds(void const* p, std::size_t bytes, unsigned char byte) = 0;
  virtual void wait(tarn::stream_ref stream) = 0;
  virtual void wait() = 0;
  /// Returns false if the stream cannot be captured.
  [[nodiscard]] virtual bool begin_capture(tarn::stream_ref stream) = 0;
  /// Whether the capture is valid and contains no work of the library.
  [[nodiscard]] virtual bool end_capture(tarn::stream_ref stream, bool may_have_nodes) = 0;
  /// Calls `f` from another thread in the next wait for the whole device; returns false if that is not
  /// supported. An empty function cancels the previous one.
  [[nodiscard]] virtual bool in_next_device_wait(std::function<void()> f) = 0;
  /// Errors that the device found since the last call.
  [[nodiscard]] virtual std::vector<std::string> findings() = 0;
  /// Number of blocks and handles allocated from the driver.
  [[nodiscard]] virtual std::size_t held() = 0;
  /// Number of blocks, handles, streams and events not released.
  [[nodiscard]] virtual std::size_t left_over() = 0;
  /// Whether the device has virtual memory management.
  [[nodiscard]] virtual bool has_pages() const { return true; }
  /// Whether a memory tool is attached. Pools then have plain blocks, which they keep while they sleep.
  [[nodiscard]] virtual bool has_memory_tool() const { return false; }
  /// Whether a process can import the events that it exported itself.
  [[nodiscard]] virtual bool opens_own_events() const { return true; }
  /// Whether a check can exhaust the memory, so that fallbacks and handlers are used.
  [[nodiscard]] virtual bool runs_out() const = 0;
  // Called by the layer above the pool at each allocation and deallocation.
  virtual void allocated(void*, std::size_t, tarn::stream_ref) {}
  virtual void freed(void*, std::size_t, tarn::stream_ref) {}
};

/// The optional calls that a stack supports.
struct offers {
  bool record_stream = false;
  bool trim = false;
  bool owns = false;
  bool state = false;
  bool statistics = false;
  bool limit = false;
  bool check_all = false;
  bool record = false;  ///< a `with_history` layer is reachable
  bool inspect = false;
  bool graph_memory = false;
  bool sleep = false;
  bool compact = false;
  bool backend = false;
  bool segments = false;
  bool exports = false;  ///< `segments`, and the adapter has the calls that export and register
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
  std::size_t bytes = 0;
  int line = 0;
};

/// A block that was exported and imported again.
struct second_mapping {
  std::shared_ptr<void> owner;
  void* data = nullptr;  ///< valid while the owner lives
};

struct test_memory {
  virtual ~test_memory() = default;
  [[nodiscard]] virtual void* allocate(tarn::stream_ref stream, std::size_t bytes, std::size_t alignment,
                                       tarn::source_location where) = 0;
  virtual void deallocate(tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) = 0;
  [[nodiscard]] virtual void* allocate_sync(std::size_t bytes, std::size_t alignment) = 0;
  virtual void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) = 0;
  // The calls below are valid only if the stack offers them.
  virtual void record_stream(void* p, std::size_t bytes, tarn::stream_ref stream) = 0;
  virtual std::size_t trim(std::size_t keep) = 0;
  [[nodiscard]] virtual bool owns(void const* p) = 0;
  [[nodiscard]] virtual tarn::pool_state state() = 0;
  virtual void reset_peaks() = 0;
  [[nodiscard]] virtual exact_numbers statistics() = 0;
  [[nodiscard]] virtual std::size_t used() = 0;
  virtual std::size_t set_limit(std::size_t bytes) = 0;
  [[nodiscard]] virtual std::size_t check_all() = 0;
  [[nodiscard]] virtual std::vector<seen_block> record() = 0;
  /// What take_snapshot() returns.
  [[nodiscard]] virtual tarn::snapshot snapshot() = 0;
  /// Sum of the bytes of all stretches in the inspection.
  [[nodiscard]] virtual std::size_t inspected_bytes() = 0;
  /// Bytes that a request occupies, from the nearest layer that defines block_bytes().
  [[nodiscard]] virtual std::size_t block_bytes(std::size_t bytes, std::size_t alignment) = 0;
  /// The owner that a graph_memory holds.
  [[nodiscard]] virtual tarn::detail::owned<tarn::detail::graph_owner> new_graph_memory() = 0;
  virtual std::size_t sleep(tarn::contents where) = 0;
  virtual std::size_t wake() = 0;
  [[nodiscard]] virtual bool is_asleep() = 0;
  virtual tarn::compaction compact() = 0;
  [[nodiscard]] virtual std::string backend() = 0;
  /// The physical handles behind a block.
  [[nodiscard]] virtual std::vector<tarn::memory_segment> segments(void const* p, std::size_t bytes) = 0;
  /// Pins the pages of a block while the result lives.
  [[nodiscard]] virtual std::shared_ptr<void> pin(void const* p, std::size_t bytes) = 0;
  [[nodiscard]] virtual second_mapping export_and_import(void const* p, std::size_t bytes,
                                                         std::optional<tarn::stream_ref> stream) = 0;
  /// Registers the pages of a block several times; returns how often the library was called, and whether each
  /// registration was ended.
  [[nodiscard]] virtual std::pair<std::size_t, bool> register_pages(void const* p, std::size_t bytes) = 0;
  /// Sets what a handler of retry_on_oom in the stack calls before it retries.
  virtual void on_out_of_memory(std::function<void()> f) = 0;
};

/// One stack, by name.
struct stack_under_test {
  std::string name;  ///< as it is composed: "sim_malloc | fenced | pooled"
  offers can;
  unsigned policies = 0;  ///< besides `pooled`
  bool has_pool = false;
  bool keeps_graphs =
      false;            ///< has a pool, or a fallback with one: graph_memory must compile, else it must not
  bool sleeps = false;  ///< its only pool is over pages: sleep() and compact() must compile, else not
  bool hides_pool = false;      ///< a handle of any pool is above the pool, whose own calls must not compile
  bool over_pages = false;      ///< its source has pages, or plain blocks in their place
  bool needs_pages = false;     ///< a layer passes no plain blocks on: refused on a device without pages
  bool has_fallback = false;    ///< with a pool of its own, which may serve while the first one sleeps
  bool pool_over_pool = false;  ///< the lower pool keeps what the upper one releases
  bool writes_below_pool = false;  ///< writes to segments whose bytes are not allocated above the pool
  bool keeps_freed = false;        ///< a quarantine holds freed blocks back
  bool has_retry = false;
  bool keeps_what_captures_free =
      false;  ///< bare memory that is given back at once: never where it cannot be waited for
  bool driver_orders = false;  ///< bare memory of cudaMallocAsync, which a capture may record
  std::unique_ptr<test_device> (*make_device)(unsigned mode) = nullptr;
  /// Creates the memory. At its destruction it adds the findings of its own records to `out`.
  std::unique_ptr<test_memory> (*make)(test_device& device, report& out) = nullptr;
};

/// Modes of make_device(): 0: the driver can record the work of the whole device; 1: an older driver that
/// cannot; 2: as 0, with streams whose existence the driver does not know, as CUDA streams that a program
/// creates itself; 3 to 5: as 0, on a device that lacks virtual memory management, memory pools, or both.
/// Only stacks over pages have these: the others need the one that is missing, or neither. 6 and 7: two
/// devices, whose streams are made in turn, as 0 and as 1.
inline constexpr unsigned device_modes = 8;
inline constexpr unsigned first_lacking_mode = 3;
[[nodiscard]] constexpr bool mode_has_pages(unsigned mode) {
  return mode != 3 && mode < 5;
}
[[nodiscard]] constexpr bool mode_has_memory_pools(unsigned mode) {
  return mode != 4 && mode != 5;
}
inline constexpr char const* mode_names[device_modes] = {", ",
                                                         ", older driver, ",
                                                         ", foreign streams, ",
                                                         ", no pages, ",
                                                         ", no memory pools, ",
                                                         ", no pages and no memory pools, ",
                                                         ", streams of two devices, ",
                                                         ", streams of two devices and older driver, "};
/// Every second stream is of another device. There are no pages: plain blocks may be used from both.
[[nodiscard]] constexpr bool mode_has_two_devices(unsigned mode) {
  return mode >= 6;
}
[[nodiscard]] inline bool has_mode(stack_under_test const& stack, unsigned mode) {
  return mode < first_lacking_mode || (mode_has_two_devices(mode) ? !stack.driver_orders : stack.over_pages);
}

}  // namespace policy_matrix
