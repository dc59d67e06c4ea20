// SPDX-License-Identifier: Apache-2.0
#pragma once
// page_registrations: a pool's pages registered with a library that must know them, such as NCCL, UCX or
// libfabric.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/sharing/page_pin.hpp"

namespace TARN_NAMESPACE {

/// A library that registers ranges of device memory.
///
/// | expression  | throws      | meaning                                                                                        |
/// |-------------|-------------|------------------------------------------------------------------------------------------------|
/// | l.add(p, n) | as it likes | registers n bytes, which stay mapped to the same memory until remove(); ranges may overlap        |
/// | l.remove(h) | never       | ends a registration, named by what add() returned                                               |
///
/// A library that uses only the first handle of a registration says so by `static constexpr bool
/// takes_one_handle = true`.
template <class L>
concept page_library = std::movable<L> && std::copyable<typename L::handle> &&
                       std::is_nothrow_copy_constructible_v<typename L::handle> &&
                       std::is_nothrow_move_constructible_v<typename L::handle> &&
                       requires(L& l, typename L::handle const& h, void* p, std::size_t bytes) {
                         { l.add(p, bytes) } -> std::same_as<typename L::handle>;
                         requires noexcept(l.remove(h));
                       };

namespace detail {

template <class Library>
inline constexpr bool takes_one_handle = requires { requires Library::takes_one_handle; };

inline constexpr char const* several_handles_to_register =
    "page_registrations or register_with_nccl (this library uses only the first handle of a registration, "
    "and a block of this pool "
    "may lie in several: allocate what it uses from a pool with pooled{.handles = handles_per_block::one})";

}  // namespace detail

/// The registrations of a pool's pages with one library. ensure() registers all handles behind a block, once:
/// later blocks in the same handles cost a lookup. Registered pages are pinned, see page_pin: the pool
/// neither unmaps nor moves them, also after the block was freed, until forget(), clear() or the end. So a
/// registration always ends before its pages go.
///
/// Nothing is deregistered before, because work may be using it: a block that lies partly in registered
/// handles gets one registration over all of these handles, and the earlier ones stay beside it.
///
/// In a forked child the library is not called: forget(), clear() and the end drop the registrations, which
/// stay the parent's.
///
/// Move-only. For one thread at a time.
template <class Memory, page_library Library>
class [[nodiscard]] page_registrations {
 public:
  using handle = typename Library::handle;

  /// @throws cuda_error (unsupported)  the library uses only the first handle of a registration, and blocks
  /// of the pool may lie in
  ///                                   several
  page_registrations(Memory memory, Library library, source_location where = source_location::current())
      : memory_(std::move(memory)), library_(std::move(library)) {
    if constexpr (detail::takes_one_handle<Library>) {
      if (!nearest(memory_, pool_call::has_one_handle{}))
        throw cuda_error(detail::unsupported_call(detail::several_handles_to_register),
                         memory_.driver().device().value, where);
    }
  }
  page_registrations(page_registrations&& other) noexcept
      : memory_(std::move(other.memory_)),
        library_(std::move(other.library_)),
        process_(other.process_),
        entries_(detail::exchange(other.entries_, {})),
        added_(detail::exchange(other.added_, 0)) {}
  /// Ends all registrations, and takes over the others.
  page_registrations& operator=(page_registrations&& other) noexcept {
    if (this == &other) return *this;
    clear();
    memory_ = std::move(other.memory_);
    library_ = std::move(other.library_);
    process_ = other.process_;
    entries_ = detail::exchange(other.entries_, {});
    added_ = detail::exchange(other.added_, 0);
    return *this;
  }
  ~page_registrations() { clear(); }

  /// Returns a registration that covers a block or a part of one; registers its handles if there is none.
  ///
  /// @throws misuse (foreign_pointer), pool_asleep, cuda_error (unsupported) as segments_of(); what the
  /// library throws; std::bad_alloc:
  ///         nothing has changed
  /// O(log n) if it is covered; otherwise O(views + segments) and a call of the library.
  handle ensure(void const* p, std::size_t bytes, source_location where = source_location::current()) {
    auto const at = reinterpret_cast<std::uintptr_t>(p);
    if (entry const* const known = covering(at, bytes)) return known->held.back().registered;
    page_pin<Memory> pin(memory_, p, bytes, where);
    extent const all = joined(mapped_around(pin, where));
    entries fresh;
    entry& e = fresh[all.begin];
    e.bytes = all.bytes;
    e.held.reserve(held_in(all) + 1);
    registration made{std::move(pin), library_.add(reinterpret_cast<void*>(all.begin), all.bytes)};
    ++added_;
    for (auto i = first_in(all); is_in(i, all); i = entries_.erase(i)) {
      for (registration& old : i->second.held) e.held.push_back(std::move(old));
    }
    e.held.push_back(std::move(made));
    entries_.merge(fresh);
    return e.held.back().registered;
  }
  /// Whether ensure() would find the bytes registered. O(log n).
  [[nodiscard]] bool covers(void const* p, std::size_t bytes) const noexcept {
    return covering(reinterpret_cast<std::uintptr_t>(p), bytes) != nullptr;
  }
  /// Ends the registration that covers any of these bytes, with the earlier ones of its parts, and their
  /// pins. No work may use them any more.
  void forget(void const* p, std::size_t bytes) noexcept {
    if (bytes == 0) return;
    extent const range{reinterpret_cast<std::uintptr_t>(p), bytes};
    for (auto i = first_in(range); is_in(i, range);) i = end(i);
  }
  /// Ends all. No work may use them any more.
  void clear() noexcept {
    while (!entries_.empty()) end(entries_.begin());
  }

  /// Ranges that are registered.
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  /// Calls of the library's add() so far that succeeded. Constant while a program is warm.
  [[nodiscard]] std::size_t added() const noexcept { return added_; }

 private:
  struct registration {
    page_pin<Memory> pin;
    handle registered;
  };
  /// A range of addresses; its key is the first. Ranges do not overlap.
  struct entry {
    std::size_t bytes = 0;
    std::vector<registration>
        held{};  ///< the last covers the range, the others are earlier ones of parts of it
  };
  using entries = std::map<std::uintptr_t, entry>;
  struct extent {
    std::uintptr_t begin;
    std::size_t bytes;
  };

  /// All that the handles of the block are mapped to: a driver maps only whole handles.
  [[nodiscard]] static extent mapped_around(page_pin<Memory> const& pin, source_location where) {
    auto const segments = pin.segments(where);
    memory_segment const& first = segments.front();
    memory_segment const& last = segments.back();
    auto const begin = reinterpret_cast<std::uintptr_t>(first.address) - first.offset;
    auto const end = reinterpret_cast<std::uintptr_t>(last.address) - last.offset + last.handle_bytes;
    return {begin, end - begin};
  }
  /// The range and those that overlap it.
  [[nodiscard]] extent joined(extent range) noexcept {
    std::uintptr_t begin = range.begin;
    std::uintptr_t end = range.begin + range.bytes;
    for (auto i = first_in(range); is_in(i, range); ++i) {
      begin = detail::min_of(begin, i->first);
      end = detail::max_of(end, i->first + i->second.bytes);
    }
    return {begin, end - begin};
  }
  [[nodiscard]] std::size_t held_in(extent range) noexcept {
    std::size_t sum = 0;
    for (auto i = first_in(range); is_in(i, range); ++i) sum += i->second.held.size();
    return sum;
  }
  [[nodiscard]] entry const* covering(std::uintptr_t at, std::size_t bytes) const noexcept {
    auto const next = entries_.upper_bound(at);
    if (next == entries_.begin()) return nullptr;
    auto const& [begin, e] = *std::prev(next);
    return at - begin < e.bytes && bytes <= e.bytes - (at - begin) ? &e : nullptr;
  }
  /// The first entry that overlaps the range, or lies behind it.
  [[nodiscard]] auto first_in(extent range) noexcept {
    auto i = entries_.upper_bound(range.begin);
    if (i != entries_.begin() && range.begin - std::prev(i)->first < std::prev(i)->second.bytes) --i;
    return i;
  }
  [[nodiscard]] bool is_in(typename entries::iterator i, extent range) const noexcept {
    return i != entries_.end() && (i->first <= range.begin || i->first - range.begin < range.bytes);
  }
  auto end(typename entries::iterator i) noexcept {
    if (process_.is_this()) {
      for (registration const& r : i->second.held) library_.remove(r.registered);
    }
    return entries_.erase(i);
  }

  Memory memory_;
  Library library_;
  detail::creating_process process_{};
  entries entries_{};
  std::size_t added_ = 0;
};

}  // namespace TARN_NAMESPACE
