// SPDX-License-Identifier: Apache-2.0
#pragma once
// tarn/nccl.hpp over the single tarn.hpp, made by .ci/amalgamate.py. Do not edit.
#include "tarn.hpp"
// ---- tarn/nccl.hpp
// NCCL interoperability: buffers of a pool registered with a communicator. Opt-in; needs nccl.h and, to link,
// libnccl (Debian and Ubuntu: libnccl-dev of NVIDIA's repository; PyPI: nvidia-nccl-cu13).

#if TARN_HAS_CUDA && __has_include(<nccl.h>)
#include <nccl.h>
#define TARN_HAS_NCCL 1
#else
#define TARN_HAS_NCCL 0
#endif

#include <cstddef>
#include <stdexcept>
#include <utility>

// ---- tarn/sharing/page_registrations.hpp
#ifndef TARN_SINGLE_SHARING_PAGE_REGISTRATIONS_HPP
#define TARN_SINGLE_SHARING_PAGE_REGISTRATIONS_HPP
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

// ---- tarn/sharing/page_pin.hpp
#ifndef TARN_SINGLE_SHARING_PAGE_PIN_HPP
#define TARN_SINGLE_SHARING_PAGE_PIN_HPP
// page_pin: keeps the physical segments behind a block in place, for libraries that registered or exported
// them; segments_of() lists them.

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

namespace TARN_NAMESPACE {

namespace detail {

/// Whether a pool over pages, below layers that keep addresses, has the blocks.
template <class Memory>
inline constexpr bool has_segments = reachable<Memory, pool_call::pin>;

template <class Memory>
constexpr bool require_segments() noexcept {
  static_assert(has_segments<Memory>,
                "tarn: only blocks of a pool over a page source, such as cuda_pages, have segments: use "
                "`cuda_pages{} | pooled{}`");
  return has_segments<Memory>;
}

}  // namespace detail

/// Returns the physical segments behind a block or a part of one, in order: the blocks of a pool over pages
/// may lie across several handles that are mapped side by side. A library that looks at the first handle only
/// (cuMemRetainAllocationHandle of the first address) sees the first of these. The list is valid as long as
/// the block is not freed and the pool does not sleep and is not compacted; take a page_pin before.
///
/// @param p      into a block of the pool
/// @param bytes  up to the end of the block
/// @throws misuse (foreign_pointer)  not all of these bytes are in blocks of the pool. A small freed block
/// may not be noticed
/// @throws pool_asleep               the pool sleeps
/// @throws cuda_error (unsupported)  the device has no virtual memory management, or a memory tool is
/// attached: the pool then has
///                                   cudaMalloc blocks and no handles
/// @throws std::bad_alloc, cuda_error  nothing has changed
/// Thread-safe. Stops all threads' caches for a moment, as trim() does. O(views + segments), no driver call.
template <class Memory>
[[nodiscard]] std::vector<memory_segment> segments_of(Memory const& memory, void const* p, std::size_t bytes,
                                                      source_location where = source_location::current()) {
  std::vector<memory_segment> all;
  if constexpr (detail::require_segments<Memory>()) {
    auto const add = [&](memory_segment const& s) { all.push_back(s); };
    detail::called_from(where, [&] { nearest(memory, pool_call::each_segment{p, bytes, add}); });
  }
  return all;
}

/// Keeps the physical pages behind a block mapped at their addresses while it lives: they are not given back,
/// moved, replaced by compact() or put to sleep. For memory that is exported or registered with a
/// communication library. sleep() gives back the rest of the pool, and pinned contents stay on the device.
///
/// The block should outlive the pin: after it was freed, its pages stay, but the pool gives the bytes to
/// others. Pins of one block, or of blocks that share a handle, are counted. Keeps a copy of the handle on
/// the memory. Thread-safe.
template <class Memory>
class [[nodiscard]] page_pin {
 public:
  /// @throws as segments_of(); misuse: by a handler of the pool's own growth, which may be moving the pages.
  /// Stops all threads' caches for a moment; O(views + segments)
  page_pin(Memory memory, void const* p, std::size_t bytes,
           source_location where = source_location::current())
      : memory_(std::move(memory)), p_(p), bytes_(bytes) {
    if constexpr (detail::require_segments<Memory>()) {
      detail::called_from(where, [&] { nearest(memory_, pool_call::pin{p, bytes}); });
    }
  }
  page_pin(page_pin&& other) noexcept
      : memory_(other.memory_), p_(detail::exchange(other.p_, nullptr)), bytes_(other.bytes_) {}
  /// Ends this pin, and takes over the other.
  page_pin& operator=(page_pin&& other) noexcept {
    if (this == &other) return *this;
    end();
    memory_ = other.memory_;
    p_ = detail::exchange(other.p_, nullptr);
    bytes_ = other.bytes_;
    return *this;
  }
  /// Waits for the pool's growth lock: another thread may be growing the pool.
  ~page_pin() { end(); }

  /// The driver of the memory's device.
  [[nodiscard]] decltype(auto) driver() const noexcept { return memory_.driver(); }
  [[nodiscard]] void const* data() const noexcept { return p_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return p_ != nullptr ? bytes_ : 0; }
  /// The physical segments, which do not change while the pin lives. @throws as segments_of()
  [[nodiscard]] std::vector<memory_segment> segments(
      source_location where = source_location::current()) const {
    return segments_of(memory_, p_, bytes_, where);
  }

 private:
  void end() noexcept {
    if constexpr (detail::has_segments<Memory>) {
      if (p_ != nullptr) nearest(memory_, pool_call::unpin{p_, bytes_});
    }
  }

  Memory memory_;
  void const* p_;
  std::size_t bytes_;
};

}  // namespace TARN_NAMESPACE
#endif  // TARN_SINGLE_SHARING_PAGE_PIN_HPP

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
#endif  // TARN_SINGLE_SHARING_PAGE_REGISTRATIONS_HPP

namespace TARN_NAMESPACE {

#if TARN_HAS_NCCL
static_assert(NCCL_VERSION_CODE >= 21903,
              "tarn: ncclCommRegister needs NCCL 2.19.3 or newer; this nccl.h is older");

/// A call of NCCL failed.
class nccl_error : public detail::error_of<std::runtime_error, 512> {
 public:
  nccl_error(ncclResult_t code, char const* call, ncclComm_t communicator) : code_(code) {
    text_.add("tarn: ").add(call).add(" failed: ").add(ncclGetErrorString(code)).add(" (");
    text_.add_number(static_cast<int>(code)).add("); ");
    char const* const more = ncclGetLastError(communicator);
    text_.add(more != nullptr && *more != '\0' ? more : "set NCCL_DEBUG=INFO for more");
  }
  [[nodiscard]] ncclResult_t code() const noexcept { return code_; }

 private:
  ncclResult_t code_;
};

/// Registers pages with a communicator (ncclCommRegister), which then sends from them and receives into them
/// without a copy where the transport can. Without registration NCCL works, too, and copies through buffers
/// of its own.
class nccl_pages {
 public:
  using handle = void*;
  static constexpr bool takes_one_handle = true;
  explicit nccl_pages(ncclComm_t communicator) noexcept : communicator_(communicator) {}

  /// @throws nccl_error
  [[nodiscard]] void* add(void* p, std::size_t bytes) const {
    void* registered = nullptr;
    ncclResult_t const code = ncclCommRegister(communicator_, p, bytes, &registered);
    if (code != ncclSuccess) throw nccl_error(code, "ncclCommRegister", communicator_);
    return registered;
  }
  void remove(void* registered) const noexcept { (void)ncclCommDeregister(communicator_, registered); }

 private:
  ncclComm_t communicator_;
};

/// The registrations of a pool's pages with one communicator, see page_registrations: `registered.ensure(p,
/// bytes)` before a collective. They must end before the communicator: declare them after it, or clear() them
/// before ncclCommDestroy. No collective that uses a buffer may still run when its registration ends.
///
/// The pool must have been made with `pooled{.handles = handles_per_block::one}`, on all ranks. NCCL uses
/// only buffers that lie in one handle in place. If one registration covered several handles, NCCL up to 2.30
/// would use the address of one for the others (NVIDIA/nccl#2362); and NCCL does not allow that some ranks of
/// a collective use registered buffers and others do not, which would depend on where each rank's pool found
/// memory. Buffers of other pools work without registration: NCCL copies them.
///
/// NCCL's windows (ncclCommWindowRegister) are not used: all ranks must register the same offsets at the same
/// time, and each rank's pool decides for itself where a block lies.
template <class Memory>
using nccl_registrations = page_registrations<Memory, nccl_pages>;

/// @throws cuda_error (unsupported)  blocks of the pool may lie in several handles
/// @throws std::bad_alloc
template <class Memory>
[[nodiscard]] nccl_registrations<Memory> register_with_nccl(
    Memory memory, ncclComm_t communicator, source_location where = source_location::current()) {
  return {std::move(memory), nccl_pages(communicator), where};
}
#else
namespace detail {
template <class>
inline constexpr bool has_nccl = false;
}

/// Without NCCL's header it compiles nowhere, and says what is missing.
template <class Memory, class Communicator>
void register_with_nccl(Memory const&, Communicator const&) {
  static_assert(
      detail::has_nccl<Memory>,
      "tarn: nccl.h or CUDA was not found: install libnccl-dev, or add the folder of nccl.h to the include "
      "path, and compile with CUDA");
}
#endif

}  // namespace TARN_NAMESPACE
