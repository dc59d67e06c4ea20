// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stream order: which stream may reuse what without asking. Each stream has a domain: the free memory that
// its own later work may take at once, with no driver call. Frees carry the domain's epoch; one event,
// recorded only when another stream is short of memory, covers every epoch up to now.
//
//   stream A              pool                          stream B
//   kernel uses p
//   deallocate(A, p) ---> p is free in A's domain, epoch 7
//                         A asks: p at once, no driver call
//                         B asks and has nothing left:
//                           record event on A   (epoch 7 is covered, frees from now on are epoch 8)
//                           done already?  -> p is neutral: anybody's
//                           else B waits for the event (on the device) -> p joins B's domain
//
// Above it: arena, ladder. Below it: range_index, run.

#include <cstdint>
#include <new>

#include "tarn/core/config.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/pool/block_table.hpp"
#include "tarn/pool/range_index.hpp"
#include "tarn/pool/run.hpp"

namespace tarn::detail {

/// The identity that stands for "no stream": memory that nothing on the device uses (allocate_sync).
inline constexpr stream_id neutral_id = ~stream_id{0};

/// The null, the legacy and the per-thread default stream (CUDA's handles 0, 1 and 2). They are never
/// destroyed, and one handle means another stream in each thread.
[[nodiscard]] inline bool is_default_stream(stream_ref stream) noexcept {
  return reinterpret_cast<std::uintptr_t>(stream.handle()) <= 2;
}

struct stream_domain {
  stream_id id = 0;
  stream_ref stream;
  bool climbing = false;        ///< its stream asks for memory at this moment, see ladder
  bool gone = false;            ///< its stream was destroyed; nothing may be recorded on it
  std::uint64_t epoch = 1;      ///< what memory freed now is marked with
  std::uint64_t freed = 0;      ///< newest mark on memory that is free or stale here
  std::uint64_t recorded = 0;   ///< marks up to here are covered by `event`
  std::uint64_t completed = 0;  ///< marks up to here are done on the device
  event_handle event = nullptr;
  range_index index[zone_count];
  run_list runs[run_class_count];
  /// Blocks freed on this stream that were cut from another domain's run: this stream reuses them, and they
  /// go home when the device is past `foreign_epoch`.
  sequence<void*> foreign[run_class_count];
  std::size_t foreign_count = 0;
  std::uint64_t foreign_epoch = 0;

  [[nodiscard]] range_index& ranges(zone where) noexcept { return index[static_cast<std::size_t>(where)]; }
  [[nodiscard]] range_index const& ranges(zone where) const noexcept {
    return index[static_cast<std::size_t>(where)];
  }
  [[nodiscard]] std::size_t free_bytes() const noexcept { return index[0].bytes() + index[1].bytes(); }
  /// True where there is something that another stream could have once it is ordered.
  [[nodiscard]] bool has_free() const noexcept { return free_bytes() != 0 || foreign_count != 0; }
  [[nodiscard]] bool holds_no_run() const noexcept {
    for (run_list const& list : runs) {
      if (list.head != 0) return false;
    }
    return true;
  }
  /// True where its stream was destroyed and nothing is left of it. Work that is not known to be done counts: views may be
  /// marked with it, and the next stream in its place would vouch for it.
  [[nodiscard]] bool is_over() const noexcept {
    return gone && !climbing && id != 0 && freed <= completed && !has_free() && holds_no_run();
  }
  /// Notes a free and returns its mark.
  std::uint64_t mark() noexcept { return freed = epoch; }
};

/// The domains of a pool by stream identity. Under the arena's lock.
class stream_table {
 public:
  stream_table() {
    domains_.push_back(owned(new stream_domain));
    domains_[neutral]->id = neutral_id;
  }

  /// The domain of a stream, made on first use. A handle that comes back under a higher identity (they are counted up)
  /// tells that its former stream was destroyed; a thread may still bring home what it cached of that one.
  /// @throws std::bad_alloc, nothing has changed
  [[nodiscard]] TARN_ALWAYS_INLINE domain_ref get(stream_id id, stream_ref stream) {
    domain_ref& recent = recent_[id % recent_count];
    if (domains_[recent]->id != id) [[unlikely]]
      recent = get_other(id, stream);
    return recent;
  }

  /// The domain of a stream, or `neutral` where it has none; never allocates.
  [[nodiscard]] domain_ref find(stream_id id) const noexcept {
    return static_cast<domain_ref>(by_id_.find(id));
  }

  /// Lets go of a destroyed stream's empty domain; its place is used again. Epochs go on counting, so that no
  /// old mark is mistaken for a new one.
  void forget(domain_ref d) noexcept {
    (void)by_id_.erase(domains_[d]->id);
    domains_[d]->id = 0;
    domains_[d]->stream = {};
    domains_[d]->gone = false;
  }

  [[nodiscard]] stream_domain& operator[](domain_ref d) noexcept { return *domains_[d]; }
  [[nodiscard]] stream_domain const& operator[](domain_ref d) const noexcept { return *domains_[d]; }
  [[nodiscard]] domain_ref size() const noexcept { return static_cast<domain_ref>(domains_.size()); }

 private:
  static constexpr std::size_t max_domains = 65535;
  static constexpr std::size_t recent_count = 64;

  TARN_NOINLINE domain_ref get_other(stream_id id, stream_ref stream) {
    if (domain_ref const known = find(id); known != neutral || id == neutral_id) return known;
    domain_ref place = 0;
    bool over = false;
    for (domain_ref d = 1; d < size(); ++d) {
      stream_domain& other = *domains_[d];
      bool const same_handle = other.id != 0 && other.stream.handle() == stream.handle();
      if (same_handle && !is_default_stream(stream)) (other.id < id ? other.gone : over) = true;
      if (other.id == 0 || other.is_over()) place = d;
    }
    by_id_.make_room(1);
    if (place != 0 && domains_[place]->id != 0) forget(place);
    if (place == 0) {
      if (domains_.size() == max_domains) throw std::bad_alloc();
      domains_.reserve(domains_.size() + 1);
      domains_.push_back(owned(new stream_domain));
      place = static_cast<domain_ref>(domains_.size() - 1);
    }
    by_id_.insert(id, place);
    domains_[place]->id = id;
    domains_[place]->stream = stream_ref::from(stream.handle(), id);
    domains_[place]->gone = over;
    return place;
  }

  sequence<owned<stream_domain>> domains_;
  block_table by_id_;  ///< the neutral domain is not in it
  /// Where the domain of an identity was last: identities are handed out one after the other. Wrong ones are seen.
  domain_ref recent_[recent_count] = {};
};

}  // namespace tarn::detail
