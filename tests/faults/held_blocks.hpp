// SPDX-License-Identifier: Apache-2.0
#pragma once
// Blocks of one pool in one trial: allocated, used by simulated kernels, freed, and counted independently of
// the pool's own counters.

#include <string>
#include <utility>
#include <vector>

#include "faults/trial.hpp"
#include "tarn/raii/sleep.hpp"

namespace tarn_test {

template <class Memory>
class held_blocks {
 public:
  struct block {
    void* p;
    std::size_t bytes;
    stream_ref stream;
  };

  held_blocks(trial& t, Memory memory)
      : trial_(t), memory_(std::move(memory)), watched_(t.watch([this] { return text(); })) {
    host_faults::not_counted const own;
    blocks_.reserve(256);
  }
  ~held_blocks() { give_all(); }
  held_blocks(held_blocks const&) = delete;
  held_blocks& operator=(held_blocks const&) = delete;

  [[nodiscard]] Memory& memory() noexcept { return memory_; }
  [[nodiscard]] pool_state state() {
    return nearest(memory_, [](auto& layer) -> decltype(layer.state()) { return layer.state(); });
  }

  /// Allocates a block, which a kernel of the stream writes. Returns null if that was refused.
  void* get(stream_ref s, std::size_t bytes, step_outcome expected = step_outcome::served) {
    void* p = nullptr;
    trial_.attempt(
        "allocate", [&] { p = memory_.allocate(s, bytes); }, expected);
    if (p == nullptr) return p;
    host_faults::not_counted const own;
    blocks_.push_back({p, bytes, s});
    use(s, p, bytes);
    check();
    return p;
  }
  void* get_sync(std::size_t bytes) {
    void* p = nullptr;
    trial_.attempt("allocate_sync", [&] { p = memory_.allocate_sync(bytes); });
    if (p == nullptr) return p;
    host_faults::not_counted const own;
    blocks_.push_back({p, bytes, {}});
    check();
    return p;
  }
  void use(stream_ref s, void* p, std::size_t bytes, sim_nanoseconds duration = 10'000) {
    host_faults::not_counted const own;
    if (p != nullptr) (void)trial_.machine().launch(s, duration, {sim_writes(p, bytes)});
  }
  /// Frees on a stream; ignores null, the result of a refusal.
  void give(stream_ref s, void* p) {
    host_faults::not_counted const own;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].p != p) continue;
      block const gone = blocks_[i];
      blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
      {
        host_faults::counted const library;
        memory_.deallocate(s, p, gone.bytes);
      }
      check();
      return;
    }
  }
  void give(void* p) {
    for (block const& b : blocks_) {
      if (b.p == p) return give(b.stream, p);
    }
  }
  void give_sync(void* p) {
    host_faults::not_counted const own;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].p != p) continue;
      block const gone = blocks_[i];
      blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
      {
        host_faults::counted const library;
        memory_.deallocate_sync(p, gone.bytes);
      }
      return;
    }
  }
  void give_all() {
    while (!blocks_.empty()) give(blocks_.back().stream, blocks_.back().p);
  }
  /// The pool's counters match the blocks held here: live bytes, block count, and device memory as reported.
  void check() {
    pool_state const s = state();
    std::size_t live = 0;
    for (block const& b : blocks_) live += tarn::detail::block_bytes_of(memory_, b.bytes, default_alignment);
    // A block deferred for recorded uses is freed, but not yet returned to the pool.
    if (may_have_lost_one())
      return trial_.check(s.live >= live + s.deferred, "fewer bytes are live than the program holds");
    trial_.check_equal(s.live, live + s.deferred, "live bytes as counted by the pool and by the program");
    if (s.deferred == 0)
      trial_.check_equal(s.live_blocks, blocks_.size(),
                         "live blocks as counted by the pool and by the program");
    trial_.check(s.live <= s.reserved || sleeps(), "more bytes are live than reserved");
  }

  /// Frees all blocks, trims, and checks that nothing is kept. For use once nothing fails any more.
  void empty_out(char const* what) {
    give_all();
    if (trial_.struck() && !trial_.healed()) {  // a free asks whether its stream is captured
      trial_.heal();
      if (!trial_.healed()) return;
    }
    trim();
    if (trial_.struck() && !trial_.healed()) {  // the trim failed
      trial_.heal();
      if (!trial_.healed()) return;
      trim();
    }
    if (may_have_lost_one()) return;
    pool_state const s = state();
    trial_.check_equal(s.live, 0, what);
    trial_.check_equal(s.live_blocks, 0, what);
    trial_.check_equal(s.deferred, 0, what);
    trial_.check_equal(s.reserved, 0, "reserved after all was freed and trimmed: a lost block");
    trial_.check_equal(s.handles, 0, "handles after all was freed and trimmed");
  }

 private:
  /// If the host has no memory to record a free, and waiting for it fails in the driver, the block stays
  /// live.
  [[nodiscard]] bool may_have_lost_one() {
    return host_faults::refused() != 0 && trial_.log().plan.failed(driver_call::synchronize_device) != 0;
  }
  [[nodiscard]] bool sleeps() {
    if constexpr (tarn::detail::can_sleep<Memory>) {
      return is_asleep(memory_);
    } else {
      return false;
    }
  }
  void trim() {
    trial_.attempt("trim", [&] {
      (void)nearest(memory_, [](auto& layer) -> decltype(layer.trim(0)) { return layer.trim(0); });
    });
  }
  [[nodiscard]] std::string text() {
    pool_state const s = state();
    return std::to_string(s.live - s.deferred) + " B live";
  }

  trial& trial_;
  Memory memory_;
  std::vector<block> blocks_;
  trial::watched_state watched_;
};

}  // namespace tarn_test
