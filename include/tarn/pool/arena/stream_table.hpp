// SPDX-License-Identifier: Apache-2.0
#pragma once
// The domains of a pool: which streams have free memory of their own, in which part of the heap
// (stream_order.hpp).

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "tarn/core/address_map.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/pool/arena/stream_order.hpp"
#include "tarn/pool/pages/growth_lock.hpp"

namespace TARN_NAMESPACE::detail {

/// The domains of a pool by stream identity and part. Protected by the arena's lock; a domain is forgotten
/// only under the growth lock, too, so that a climbing thread may keep its index while the arena's lock is
/// released.
///
/// The end of a thread, and of its default stream, is not reported. Therefore the pool sweeps the domains
/// when there are many (sweep() in reclaim.hpp): it forgets a domain that no thread has looked up since the
/// last sweep and whose work is complete. If its stream still exists, it gets a new domain on its next use.
/// The next sweep comes after as many new streams as the last one queried the driver about without success,
/// or an eighth of those left if that is more. Its cost per new stream is thus constant, and the number of
/// domains is bounded by the streams that are used between two sweeps or that hold something.
class stream_table {
 public:
  /// No sweep before this many new streams.
  static constexpr std::size_t sweep_from = 16;

  stream_table() {
    domains_.push_back(owned(new stream_domain));
    domains_[neutral]->id = neutral_id;
    parts_.resize(1);
  }

  // ---- parts

  [[nodiscard]] heap_part& part(part_ref p) noexcept { return parts_[p]; }
  [[nodiscard]] heap_part const& part(part_ref p) const noexcept { return parts_[p]; }
  [[nodiscard]] heap_part& part_of(domain_ref d) noexcept { return parts_[domains_[d]->part]; }
  [[nodiscard]] heap_part const& part_of(domain_ref d) const noexcept { return parts_[domains_[d]->part]; }
  /// Calls f(part_ref) for each part whose free handles another one may take: the common part, and the other
  /// one of its owner.
  template <class F>
  void for_each_source(part_ref taker, F const& f) const {
    f(common);
    if (part_ref const beside = parts_[taker].beside; beside != common) f(beside);
  }
  /// One more than the largest number; some may not be used.
  [[nodiscard]] part_ref parts() const noexcept { return static_cast<part_ref>(parts_.size()); }
  /// Whether there are others than the common one. Needs no lock.
  [[nodiscard]] bool has_parts() const noexcept { return parts_in_use_.load(std::memory_order_relaxed) != 0; }

  /// Makes a part without memory. @throws std::bad_alloc, nothing has changed: also if there are 65,534
  /// already
  [[nodiscard]] part_ref make_part(std::uint64_t owner, bool keeps_addresses) {
    part_ref made = 1;
    if (parts_in_use_ + 1 == parts_.size()) {
      made = parts();
    } else {
      while (parts_[made].is_used) ++made;
    }
    if (made == parts_.size()) {
      if (parts_.size() == most_parts) throw std::bad_alloc();
      parts_.push_back({});
    }
    domain_ref const place = free_place();
    first_free_ = domains_[place]->next_free;
    stream_domain& domain = *domains_[place];
    domain.id = neutral_id;
    domain.part = made;
    domain.neutral_domain = place;
    heap_part& part = parts_[made] = heap_part{};
    part.neutral_domain = place;
    part.is_used = true;
    part.keeps_addresses = keeps_addresses;
    part.owner = owner;
    ++parts_in_use_;
    ++in_use_;
    return made;
  }
  /// Ends a part that has neither memory nor streams.
  void end_part(growth_lock const&, part_ref p) noexcept {
    vacate(parts_[p].neutral_domain);
    parts_[p] = {};
    --parts_in_use_;
  }

  // ---- domains

  /// The domain of a stream in a part, made on first use. A handle that returns with a higher identity (they
  /// are counted up) means that its former stream was destroyed; a thread may still return blocks that it
  /// cached for that stream. O(1); in another part than the common one O(streams that use it), unless the
  /// stream was looked up of late. @throws std::bad_alloc, nothing has changed
  [[nodiscard]] TARN_ALWAYS_INLINE domain_ref get(stream_id id, stream_ref stream, part_ref part = common) {
    domain_ref& recent = recent_[id % recent_count];
    if (domains_[recent]->id != id || domains_[recent]->part != part) [[unlikely]]
      recent = get_other(id, stream, part);
    domains_[recent]->used = true;
    return recent;
  }

  /// The domain of a stream in a part, or `neutral` if it has none; never allocates.
  [[nodiscard]] domain_ref find(stream_id id, part_ref part = common) const noexcept {
    if (part == common) {
      auto const first = static_cast<domain_ref>(by_id_.find(id));
      return domains_[first]->part == common ? first : neutral;
    }
    domain_ref d = parts_[part].first;
    while (d != neutral && domains_[d]->id != id) d = domains_[d]->next_in_part;
    return d;
  }

  /// Calls f(domain_ref) for each domain whose memory a stream may take: its own, and the neutral one of its
  /// part.
  template <class F>
  void for_each_usable(domain_ref taker, F const& f) const {
    f(taker);
    if (!domains_[taker]->is_neutral()) f(domains_[taker]->neutral_domain);
  }
  /// Calls f(domain_ref) for each stream of a part. Under the growth lock, f may release the arena's lock,
  /// and forget the domain.
  template <class F>
  void for_each_in(part_ref part, F const& f) const {
    for (domain_ref d = parts_[part].first; d != neutral;) {
      domain_ref const next = domains_[d]->next_in_part;
      f(d);
      d = next;
    }
  }
  /// The same for each stream of all parts.
  template <class F>
  void for_each(F const& f) const {
    for (domain_ref d = 1; d < size(); ++d) {
      if (domains_[d]->id != 0 && !domains_[d]->is_neutral()) f(d);
    }
  }

  /// Forgets an empty domain; its place is reused. Epochs continue counting, so that an old mark is never
  /// mistaken for a new one. Runs that are wholly handed out keep its index and generation: they are neutral
  /// from now on.
  void forget(growth_lock const&, domain_ref d) noexcept {
    stream_domain& domain = *domains_[d];
    domain_ref& first = parts_[domain.part].first;
    (domain.previous_in_part != neutral ? domains_[domain.previous_in_part]->next_in_part : first) =
        domain.next_in_part;
    if (domain.next_in_part != neutral)
      domains_[domain.next_in_part]->previous_in_part = domain.previous_in_part;
    leave_stream(d);
    vacate(d);
  }

  /// Whether the domains should be swept. Needs no lock.
  [[nodiscard]] bool is_crowded() const noexcept { return crowded_.load(std::memory_order_relaxed); }
  /// Ends a sweep over all domains, which queried the driver about `in_vain` of them without success.
  void swept(std::size_t in_vain) noexcept {
    sweep_at_ = in_use_ + max_of(sweep_from, max_of(in_vain, in_use_ / 8));
    crowded_.store(false, std::memory_order_relaxed);
  }

  [[nodiscard]] stream_domain& operator[](domain_ref d) noexcept { return TARN_VISIT(), *domains_[d]; }
  [[nodiscard]] stream_domain const& operator[](domain_ref d) const noexcept {
    return TARN_VISIT(), *domains_[d];
  }
  /// One more than the largest index; places may be free (identity 0).
  [[nodiscard]] domain_ref size() const noexcept { return static_cast<domain_ref>(domains_.size()); }
  /// Number of domains now, of streams and of parts.
  [[nodiscard]] std::size_t in_use() const noexcept { return in_use_; }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return domains_.size() * sizeof(stream_domain) + domains_.capacity() * sizeof(owned<stream_domain>) +
           parts_.capacity() * sizeof(heap_part) + by_id_.host_bytes() + by_handle_.host_bytes();
  }

 private:
  static constexpr std::size_t max_domains = ~domain_ref{0} - 1;
  static constexpr std::size_t most_parts = 0xFFFF;  ///< so that part_ref can count them
  static constexpr std::size_t recent_count = 64;

  static std::uintptr_t key_of(stream_ref stream) noexcept {
    return reinterpret_cast<std::uintptr_t>(stream.handle());
  }
  /// The first domain of the newest stream seen under a handle; `neutral` if there is none.
  [[nodiscard]] domain_ref newest_of_handle(stream_ref stream) const noexcept {
    return is_default_stream(stream) ? neutral : static_cast<domain_ref>(by_handle_.find(key_of(stream)));
  }
  /// A place for a domain. @throws std::bad_alloc, nothing has changed
  [[nodiscard]] domain_ref free_place() {
    if (first_free_ == neutral) {
      if (domains_.size() == max_domains) throw std::bad_alloc();
      domains_.reserve(domains_.size() + 1);
      domains_.push_back(owned(new stream_domain));
      first_free_ = static_cast<domain_ref>(domains_.size() - 1);
    }
    return first_free_;
  }
  void vacate(domain_ref d) noexcept {
    stream_domain& domain = *domains_[d];
    domain.id = 0;
    domain.stream = {};
    domain.part = common;
    domain.neutral_domain = domain.next_in_part = domain.previous_in_part = neutral;
    domain.next_of_stream = domain.previous_of_stream = neutral;
    domain.gone = false;
    domain.used = domain.runs_marked = false;
    ++domain.generation;
    domain.next_free = first_free_;
    first_free_ = d;
    --in_use_;
  }

  TARN_NOINLINE domain_ref get_other(stream_id id, stream_ref stream, part_ref part) {
    if (id == neutral_id) return parts_[part].neutral_domain;
    if (domain_ref const known = find(id, part); known != neutral) return known;
    by_id_.make_room(1);
    by_handle_.make_room(1);
    domain_ref const place = free_place();
    stream_domain& made = *domains_[place];
    first_free_ = made.next_free;
    made.id = id;
    made.stream = stream_ref::from(stream.handle(), id);
    made.part = part;
    made.neutral_domain = parts_[part].neutral_domain;
    made.next_in_part = parts_[part].first;
    if (made.next_in_part != neutral) domains_[made.next_in_part]->previous_in_part = place;
    parts_[part].first = place;
    join_stream(place);
    if (++in_use_ >= sweep_at_) crowded_.store(true, std::memory_order_relaxed);
    return place;
  }
  /// Adds a domain to those of its stream. Has room.
  void join_stream(domain_ref place) noexcept {
    stream_domain& made = *domains_[place];
    auto const first = static_cast<domain_ref>(by_id_.find(made.id));
    if (first == neutral) {
      by_id_.insert(made.id, place);
      if (!is_default_stream(made.stream)) replace_older(place);
      return;
    }
    made.gone = domains_[first]->gone;
    if (made.part == common) {
      made.next_of_stream = first;
      domains_[first]->previous_of_stream = place;
      by_id_.insert(made.id, place);
      if (newest_of_handle(made.stream) == first) by_handle_.insert(key_of(made.stream), place);
      return;
    }
    made.previous_of_stream = first;
    made.next_of_stream = detail::exchange(domains_[first]->next_of_stream, place);
    if (made.next_of_stream != neutral) domains_[made.next_of_stream]->previous_of_stream = place;
  }
  /// The first domain of a stream: an older stream under its handle was destroyed, or this one.
  void replace_older(domain_ref place) noexcept {
    stream_domain& made = *domains_[place];
    domain_ref const newest = newest_of_handle(made.stream);
    made.gone = newest != neutral && domains_[newest]->id > made.id;
    if (made.gone) return;
    for (domain_ref d = newest; d != neutral; d = domains_[d]->next_of_stream) domains_[d]->gone = true;
    by_handle_.insert(key_of(made.stream), place);
  }
  void leave_stream(domain_ref d) noexcept {
    stream_domain const& domain = *domains_[d];
    domain_ref const next = domain.next_of_stream;
    domain_ref const previous = domain.previous_of_stream;
    if (next != neutral) domains_[next]->previous_of_stream = previous;
    if (previous != neutral) {
      domains_[previous]->next_of_stream = next;
      return;
    }
    bool const is_newest = newest_of_handle(domain.stream) == d;
    if (next != neutral) {
      by_id_.insert(domain.id, next);
      if (is_newest) by_handle_.insert(key_of(domain.stream), next);
    } else {
      (void)by_id_.erase(domain.id);
      if (is_newest) (void)by_handle_.erase(key_of(domain.stream));
    }
  }

  sequence<owned<stream_domain>> domains_;
  sequence<heap_part> parts_;
  std::atomic<std::size_t> parts_in_use_{0};  ///< without the common one
  address_map<std::uint32_t> by_id_;  ///< the first domain of each stream; does not contain the neutral ones
  address_map<std::uint32_t>
      by_handle_;  ///< of streams that are created and destroyed: the newest of each handle
  domain_ref first_free_ = neutral;
  std::size_t in_use_ = 0;
  std::size_t sweep_at_ = sweep_from;
  std::atomic<bool> crowded_{false};
  /// The last place of an identity's domain; identities are consecutive. A wrong entry is detected by its
  /// identity.
  domain_ref recent_[recent_count] = {};
};

}  // namespace TARN_NAMESPACE::detail
