// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stream order: which stream may reuse which memory without synchronisation. Each stream has a domain: the free memory that its
// own later work may take at once, with no driver call. Frees carry the domain's epoch; one event, recorded only when another
// stream is short of memory, covers every epoch up to now.
//
//   stream A              pool                             stream B
//   kernel uses p
//   deallocate(A, p) ---> p is free in A's domain, epoch 7
//                         A allocates: p at once, no driver call
//                         B allocates and has no free memory left:
//                           record event on A   (epoch 7 is covered, frees from now on are epoch 8)
//                           already complete?  -> p is neutral: every stream may take it
//                           else B waits for the event (on the device) -> p joins B's domain
//
// From CUDA 12.5 on, one event marks the work of all streams of the device (order/mark_work.hpp). Blocks of a run that is partly in
// use stay with their stream until it is swept (order/reclaim.hpp).

#include <atomic>
#include <cstdint>
#include <new>

#include "tarn/core/address_map.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/device.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/pool/arena/range_index.hpp"
#include "tarn/pool/arena/run.hpp"
#include "tarn/pool/growth/growth_lock.hpp"

namespace tarn::detail {

/// The identity of "no stream": memory that nothing on the device uses (allocate_sync).
inline constexpr stream_id neutral_id = ~stream_id{0};

/// The identity that memory of a graph capture is kept under (pool/graph/): no stream has one with these two bits, see
/// cuda_driver. Nothing is recorded on it and no other stream takes its memory. When the capture ends, its memory becomes neutral.
[[nodiscard]] constexpr stream_id capture_stream_id(std::uint64_t number) noexcept {
  return stream_id{1} << 62 | number;
}
[[nodiscard]] constexpr bool is_capture_stream(stream_id id) noexcept {
  return id >> 62 == 1;
}

struct stream_domain {
  stream_id id = 0;
  stream_ref stream;
  bool climbing = false;       ///< its stream is climbing the ladder, see ladder
  bool gone = false;           ///< its stream was destroyed; nothing may be recorded on it
  bool used = false;           ///< looked up by a thread since the last sweep, see stream_table
  bool runs_marked = false;    ///< `freed` covers what is free in its runs, which carry no marks of their own
  std::uint64_t epoch = 1;     ///< the mark of memory freed now
  std::uint64_t freed = 0;     ///< newest mark on memory that is free or stale here
  std::uint64_t recorded = 0;  ///< marks up to here are covered by `event`
  std::uint64_t completed = 0;  ///< marks up to here are complete on the device
  event_handle event = nullptr;
  device_id event_device;          ///< where `event` was created
  domain_ref next_free = neutral;  ///< of a free place
  std::uint16_t generation = 0;    ///< number of streams that had this place before
  range_index index[zone_count];
  run_list runs[run_class_count];
  /// Blocks freed on this stream that were cut from another domain's run. This stream reuses them; they return to their runs
  /// when the device has completed `foreign_epoch`.
  sequence<void*> foreign[run_class_count];
  std::size_t foreign_count = 0;
  std::uint64_t foreign_epoch = 0;

  [[nodiscard]] range_index& ranges(zone where) noexcept { return index[static_cast<std::size_t>(where)]; }
  [[nodiscard]] range_index const& ranges(zone where) const noexcept {
    return index[static_cast<std::size_t>(where)];
  }
  [[nodiscard]] std::size_t free_bytes() const noexcept { return index[0].bytes() + index[1].bytes(); }
  [[nodiscard]] std::size_t range_count() const noexcept { return index[0].count() + index[1].count(); }
  /// Whether it holds memory that another stream could take once it is ordered.
  [[nodiscard]] bool has_free() const noexcept { return free_bytes() != 0 || foreign_count != 0; }
  [[nodiscard]] bool holds_no_run() const noexcept {
    for (run_list const& list : runs) {
      if (list.head != 0) return false;
    }
    return true;
  }
  /// Whether the device has completed the uses of all that was freed here.
  [[nodiscard]] bool is_completed() const noexcept { return freed <= completed; }
  /// Whether nothing is left of it; its stream gets a new domain if it is used again. Work not known to be complete counts as
  /// left: views may be marked with it, and completed marks of the next stream in its place would be mistaken for its own.
  [[nodiscard]] bool is_empty() const noexcept {
    return !climbing && id != 0 && id != neutral_id && is_completed() && !has_free() && holds_no_run();
  }
  /// Whether its stream was destroyed and nothing is left of it.
  [[nodiscard]] bool is_over() const noexcept { return gone && is_empty(); }
  /// Marks a free and returns the mark.
  std::uint64_t mark() noexcept { return freed = epoch; }
};

/// The domains of a pool by stream identity. Protected by the arena's lock; a domain is forgotten only under the growth lock,
/// too, so that a climbing thread may keep its index while the arena's lock is released.
///
/// The end of a thread, and of its default stream, is not reported. Therefore the pool sweeps the domains when there are many
/// (sweep() in reclaim.hpp): it forgets a domain that no thread has looked up since the last sweep and whose work is complete.
/// If its stream still exists, it gets a new domain on its next use. The next sweep comes after as many new streams as the last
/// one queried the driver about without success, or an eighth of those left if that is more. Its cost per new stream is thus
/// constant, and the number of domains is bounded by the streams that are used between two sweeps or that hold something.
class stream_table {
 public:
  /// No sweep before this many new streams.
  static constexpr std::size_t sweep_from = 16;

  stream_table() {
    domains_.push_back(owned(new stream_domain));
    domains_[neutral]->id = neutral_id;
  }

  /// The domain of a stream, made on first use. A handle that returns with a higher identity (they are counted up) means that
  /// its former stream was destroyed; a thread may still return blocks that it cached for that stream. O(1).
  /// @throws std::bad_alloc, nothing has changed
  [[nodiscard]] TARN_ALWAYS_INLINE domain_ref get(stream_id id, stream_ref stream) {
    domain_ref& recent = recent_[id % recent_count];
    if (domains_[recent]->id != id) [[unlikely]]
      recent = get_other(id, stream);
    domains_[recent]->used = true;
    return recent;
  }

  /// The domain of a stream, or `neutral` if it has none; never allocates.
  [[nodiscard]] domain_ref find(stream_id id) const noexcept {
    return static_cast<domain_ref>(by_id_.find(id));
  }

  /// Forgets an empty domain; its place is reused. Epochs continue counting, so that an old mark is never mistaken for a new
  /// one. Runs that are wholly handed out keep its index and generation: they are neutral from now on.
  void forget(growth_lock const&, domain_ref d) noexcept {
    stream_domain& domain = *domains_[d];
    (void)by_id_.erase(domain.id);
    if (newest_of_handle(domain.stream) == d) (void)by_handle_.erase(key_of(domain.stream));
    domain.id = 0;
    domain.stream = {};
    domain.gone = false;
    domain.used = domain.runs_marked = false;
    ++domain.generation;
    domain.next_free = first_free_;
    first_free_ = d;
    --in_use_;
  }

  /// Whether the domains should be swept. Needs no lock.
  [[nodiscard]] bool is_crowded() const noexcept { return crowded_.load(std::memory_order_relaxed); }
  /// Ends a sweep over all domains, which queried the driver about `in_vain` of them without success.
  void swept(std::size_t in_vain) noexcept {
    sweep_at_ = in_use_ + max_of(sweep_from, max_of(in_vain, in_use_ / 8));
    crowded_.store(false, std::memory_order_relaxed);
  }

  [[nodiscard]] stream_domain& operator[](domain_ref d) noexcept { return *domains_[d]; }
  [[nodiscard]] stream_domain const& operator[](domain_ref d) const noexcept { return *domains_[d]; }
  /// One more than the largest index; places may be free (identity 0).
  [[nodiscard]] domain_ref size() const noexcept { return static_cast<domain_ref>(domains_.size()); }
  /// Number of streams that have a domain now.
  [[nodiscard]] std::size_t in_use() const noexcept { return in_use_; }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return domains_.size() * sizeof(stream_domain) + domains_.capacity() * sizeof(owned<stream_domain>) +
           by_id_.host_bytes() + by_handle_.host_bytes();
  }

 private:
  static constexpr std::size_t max_domains = ~domain_ref{0} - 1;
  static constexpr std::size_t recent_count = 64;

  static std::uintptr_t key_of(stream_ref stream) noexcept {
    return reinterpret_cast<std::uintptr_t>(stream.handle());
  }
  /// The domain of the newest stream seen under a handle; `neutral` if there is none.
  [[nodiscard]] domain_ref newest_of_handle(stream_ref stream) const noexcept {
    return is_default_stream(stream) ? neutral : static_cast<domain_ref>(by_handle_.find(key_of(stream)));
  }

  TARN_NOINLINE domain_ref get_other(stream_id id, stream_ref stream) {
    if (domain_ref const known = find(id); known != neutral || id == neutral_id) return known;
    by_id_.make_room(1);
    by_handle_.make_room(1);
    if (first_free_ == neutral) {
      if (domains_.size() == max_domains) throw std::bad_alloc();
      domains_.reserve(domains_.size() + 1);
      domains_.push_back(owned(new stream_domain));
      first_free_ = static_cast<domain_ref>(domains_.size() - 1);
    }
    domain_ref const place = first_free_;
    stream_domain& made = *domains_[place];
    first_free_ = made.next_free;
    by_id_.insert(id, place);
    made.id = id;
    made.stream = stream_ref::from(stream.handle(), id);
    if (!is_default_stream(stream)) {
      domain_ref const newest = newest_of_handle(stream);
      made.gone = newest != neutral && domains_[newest]->id > id;
      if (newest != neutral && !made.gone) {
        domains_[newest]->gone = true;
        (void)by_handle_.erase(key_of(stream));
      }
      if (!made.gone) by_handle_.insert(key_of(stream), place);
    }
    if (++in_use_ >= sweep_at_) crowded_.store(true, std::memory_order_relaxed);
    return place;
  }

  sequence<owned<stream_domain>> domains_;
  address_map<std::uint32_t> by_id_;  ///< does not contain the neutral domain
  address_map<std::uint32_t>
      by_handle_;  ///< of streams that are created and destroyed: the newest of each handle
  domain_ref first_free_ = neutral;
  std::size_t in_use_ = 0;
  std::size_t sweep_at_ = sweep_from;
  std::atomic<bool> crowded_{false};
  /// The last place of an identity's domain; identities are consecutive. A wrong entry is detected by its identity.
  domain_ref recent_[recent_count] = {};
};

}  // namespace tarn::detail
