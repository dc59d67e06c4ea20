// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a pool reports to a tool that watches memory (compute-sanitizer, the simulated one): which bytes are
// handed out.
//
// Without a tool this costs one byte, read when a call reaches the arena. With a tool the pool behaves
// differently: it uses whole blocks of the driver, also in place of pages and of cudaMallocAsync's memory,
// which tools refuse; it has no magazines; an unowned guard of `guard_bytes` follows every block; a freed
// block is waited for on its stream, stops being a region, and is quarantined for a while. So an access past
// the requested size, before it, or after the free is outside every region:
//
//   heap     |--------------------------- one segment -------------------------|
//   regions   [ asked ]          [ asked ]                    [ asked ]
//   unowned            guard,slack        guard,slack, freed           guard,...

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tarn/core/address_map.hpp"
#include "tarn/core/at_fork.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/pool/block_request.hpp"

namespace TARN_NAMESPACE::detail {

/// Unowned bytes after each block; those before a block are the guard of the previous block. NVIDIA's guide
/// requires no distance; with this one, an overrun by one thread block of words does not reach the next
/// block.
inline constexpr std::size_t guard_bytes = 256;

/// Bounds of the quarantine, in blocks and in bytes. If the driver has no more memory, all quarantined blocks
/// return to the heap.
inline constexpr std::size_t quarantine_blocks = 1024;
inline constexpr std::size_t quarantine_bytes = 256_MiB;

/// Whether the blocks of the lowest source may each be a heap. False above another pool, which reports its
/// own blocks, and over memory that a tool refuses.
template <class Layer>
constexpr bool gives_heaps() noexcept {
  return !any_layer<Layer>([]<class L>(std::type_identity<L>) {
    return gives_pieces<L> || (!stands_on_another<L> && (!resource<L> || has_plain_blocks<L>));
  });
}

/// Memory that a tool can watch: device-only memory, of a driver that supports tools, in blocks that may be
/// heaps.
template <class Source>
inline constexpr bool tool_can_watch =
    memory_tool_driver<typename Source::driver_type> && has_property<Source, device_accessible> &&
    !has_property<Source, host_accessible> &&
    (has_plain_blocks<Source> || gives_heaps<layer_behind<Source>>());

/// Safe from any thread; no other lock is taken under its lock. If host memory runs out, only reports are
/// lost.
template <memory_tool_driver Driver>
class tool_regions {
 public:
  explicit tool_regions(Driver const& driver) : driver_(driver) {}
  tool_regions(tool_regions const&) = delete;
  tool_regions& operator=(tool_regions const&) = delete;

  [[nodiscard]] bool active() const noexcept {
    return state_.load(std::memory_order_acquire) == state::active;
  }

  /// Looks for a tool, once, before the first heap. Not in the constructor, since that must not start CUDA.
  bool decide() noexcept {
    if (state_.load(std::memory_order_acquire) == state::undecided) [[unlikely]]
      look();
    return active();
  }

  void heap_begins(void* p, std::size_t bytes) noexcept {
    if (!active()) return;
    scoped_lock const guard(mutex_);
    void* const handle = tool_.register_heap(p, bytes);
    if (handle == nullptr) return;
    try {
      heaps_.push_back(heap{address(p), bytes, handle});
    } catch (...) {
      tool_.unregister_heap(handle);
    }
  }
  /// Called before the memory is given back.
  void heap_ends(void* p) noexcept {
    if (!active()) return;
    scoped_lock const guard(mutex_);
    for (std::size_t i = 0; i < heaps_.size(); ++i) {
      if (heaps_[i].begin != address(p)) continue;
      forget_left(heaps_[i].begin, heaps_[i].bytes);
      tool_.unregister_heap(heaps_[i].handle);
      heaps_.erase_unordered(i);
      return;
    }
  }
  /// Stops all reports: the driver has unloaded, and a tool with it.
  void abandon() noexcept {
    scoped_lock const guard(mutex_);
    heaps_.clear();
    left_.clear();
  }

  /// Makes room for one block. @throws std::bad_alloc, nothing has changed
  void make_room() {
    scoped_lock const guard(mutex_);
    live_.make_room(1 + promised_);
    ++promised_;
  }
  void give_up_room() noexcept {
    scoped_lock const guard(mutex_);
    --promised_;
  }
  /// Reports a block that is handed out. Requires make_room().
  void block_begins(void* p, std::size_t bytes) noexcept {
    scoped_lock const guard(mutex_);
    --promised_;
    live_.insert(address(p), bytes);
    forget_left(address(p), bytes);
    if (heap const* const h = heap_of(address(p)); h != nullptr) tool_.register_region(h->handle, p, bytes);
  }
  /// Takes a block back: returns its requested bytes, 0 if there is none. If they equal `bytes`, the block is
  /// no longer live, but still a region.
  std::size_t take_back(void* p, std::size_t bytes) noexcept {
    scoped_lock const guard(mutex_);
    std::size_t const asked = live_.find(address(p));
    if (asked == bytes) (void)live_.erase(address(p));
    return asked;
  }

  /// Ends the region of a block once earlier work on the stream is complete.
  void region_ends(void* p, std::size_t bytes, stream_ref stream) noexcept {
    wait_for(p, bytes, stream);
    region_ends(p);
  }
  /// As above, if the stream was already waited for; it may be destroyed by now.
  void region_ends(void* p) noexcept {
    scoped_lock const guard(mutex_);
    if (!is_left(address(p))) end_region(address(p));
  }
  /// Waits for the stream of a block that is deferred; does nothing if the block is not live or has another
  /// size, which is reported later.
  void wait_if_live(void* p, std::size_t bytes, stream_ref stream) noexcept {
    {
      scoped_lock const guard(mutex_);
      if (live_.find(address(p)) != bytes) return;
    }
    wait_for(p, bytes, stream);
  }

  /// Quarantines a freed block. Returns false if there is no room: take some out, oldest first, and retry. If
  /// `fits()` is false, there never will be room.
  [[nodiscard]] bool keep(freed_block const& b) noexcept {
    scoped_lock const guard(mutex_);
    if (kept_ == ring_.size() || kept_bytes_ + b.bytes > quarantine_bytes) return false;
    ring_[(first_ + kept_++) % ring_.size()] = b;
    kept_bytes_ += b.bytes;
    return true;
  }
  [[nodiscard]] bool fits(freed_block const& b) const noexcept {
    return !ring_.empty() && b.bytes <= quarantine_bytes;
  }
  bool take_quarantined(freed_block& out) noexcept {
    scoped_lock const guard(mutex_);
    if (kept_ == 0) return false;
    out = ring_[first_];
    kept_bytes_ -= out.bytes;
    first_ = (first_ + 1) % ring_.size();
    --kept_;
    return true;
  }

  /// Calls f(freed_block) for each block in quarantine.
  template <class F>
  void for_each_quarantined(F const& f) {
    scoped_lock const guard(mutex_);
    for (std::size_t i = 0; i < kept_; ++i) f(ring_[(first_ + i) % ring_.size()]);
  }

 private:
  enum class state : std::uint8_t { undecided, inactive, active };
  struct stretch {
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
  };
  struct heap {
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
    void* handle = nullptr;
  };

  static std::uintptr_t address(void const* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }

  /// Waits for the stream's work on a live block. During a capture of the stream that is impossible, and the
  /// graph may still run: the region then stays until its bytes are handed out again. If the stream may be
  /// destroyed, its handle is not queried: waits for the whole device's work.
  void wait_for(void* p, std::size_t bytes, stream_ref stream) noexcept {
    if (life_of(driver_, stream) != stream_life::alive) {
      if (may_run(wait_for_all_work(driver_))) leave(p, bytes);
      return;
    }
    bool capturing = false;
    bool const known = driver_.is_capturing(stream, capturing).ok();
    if (known && capturing) {
      leave(p, bytes);
    } else if (!known || !driver_.synchronize_stream(stream).ok()) {
      (void)wait_past_captures(driver_);
    }
  }
  void leave(void* p, std::size_t bytes) noexcept {
    scoped_lock const guard(mutex_);
    if (is_left(address(p))) return;
    try {
      left_.push_back(stretch{address(p), bytes});
    } catch (...) {  // reported at the graph's next launch, rightly or not
    }
  }
  void look() noexcept {
    scoped_lock const guard(mutex_);
    if (state_.load(std::memory_order_relaxed) != state::undecided) return;
    tool_ = driver_.memory_tool();
    if (static_cast<bool>(tool_)) {
      try {
        ring_.resize(quarantine_blocks);
      } catch (...) {  // freed blocks are reused at once
      }
    }
    state_.store(static_cast<bool>(tool_) ? state::active : state::inactive, std::memory_order_release);
  }

  /// The segment that contains a block; null if the tool refused it. O(segments).
  [[nodiscard]] heap const* heap_of(std::uintptr_t at) const noexcept {
    for (heap const& h : heaps_) {
      if (at >= h.begin && at - h.begin < h.bytes) return &h;
    }
    return nullptr;
  }
  [[nodiscard]] bool is_left(std::uintptr_t at) const noexcept {
    for (stretch const& s : left_) {
      if (s.begin == at) return true;
    }
    return false;
  }
  void end_region(std::uintptr_t at) noexcept {
    if (heap_of(at) != nullptr) tool_.unregister_region(reinterpret_cast<void*>(at));
  }
  /// Ends the regions that a capture left among these bytes.
  void forget_left(std::uintptr_t begin, std::size_t bytes) noexcept {
    for (std::size_t i = left_.size(); i-- > 0;) {
      stretch const s = left_[i];
      if (s.begin >= begin + bytes || begin >= s.begin + s.bytes) continue;
      end_region(s.begin);
      left_.erase_unordered(i);
    }
  }

  Driver driver_;
  std::atomic<state> state_{state::undecided};
  fork_mutex mutex_;
  decltype(driver_.memory_tool()) tool_;
  sequence<heap> heaps_;
  address_map<std::size_t> live_;  ///< requested bytes of each block handed out
  std::size_t promised_ = 0;       ///< blocks that room was made for and that are not handed out yet
  sequence<stretch> left_;
  sequence<freed_block> ring_;  ///< the quarantine, oldest at first_; `bytes` include the guard
  std::size_t first_ = 0;
  std::size_t kept_ = 0;
  std::size_t kept_bytes_ = 0;
};

/// For memory that no tool can watch: does nothing, at no cost.
struct no_tool_regions {
  template <class Driver>
  explicit constexpr no_tool_regions(Driver const&) noexcept {}
  [[nodiscard]] static constexpr bool active() noexcept { return false; }
  [[nodiscard]] static constexpr bool decide() noexcept { return false; }
  static constexpr void heap_begins(void*, std::size_t) noexcept {}
  static constexpr void heap_ends(void*) noexcept {}
};

/// The regions of a pool over `Source`.
template <class Source, bool = tool_can_watch<Source>>
struct tool_regions_of {
  using type = no_tool_regions;
};
template <class Source>
struct tool_regions_of<Source, true> {
  using type = tool_regions<typename Source::driver_type>;
};

/// Room for the record of one region: used, or given up in the destructor.
template <class Regions>
class room_for_region {
 public:
  /// @param wanted  false: no tool sees the block
  room_for_region(Regions& tool, [[maybe_unused]] bool wanted) : tool_(tool) {
    if constexpr (has_tool) {
      made_ = tool_.decide() && wanted;
      if (made_) tool_.make_room();
    }
  }
  room_for_region(room_for_region const&) = delete;
  room_for_region& operator=(room_for_region const&) = delete;
  ~room_for_region() {
    if constexpr (has_tool) {
      if (made_) tool_.give_up_room();
    }
  }
  void use([[maybe_unused]] void* p, [[maybe_unused]] std::size_t bytes) noexcept {
    if constexpr (has_tool) {
      if (detail::exchange(made_, false)) tool_.block_begins(p, bytes);
    }
  }

 private:
  static constexpr bool has_tool = !std::is_same_v<Regions, no_tool_regions>;
  Regions& tool_;
  bool made_ = false;
};

}  // namespace TARN_NAMESPACE::detail
