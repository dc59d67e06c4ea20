// SPDX-License-Identifier: Apache-2.0
#pragma once
// Concepts for resources, page sources and memory sources, and the tags of their memory.
//
// | expression                                | returns   | throws                       | meaning                                           |
// |-------------------------------------------|-----------|------------------------------|---------------------------------------------------|
// | r.allocate(stream, bytes, alignment)      | void*     | out_of_memory, bad_alignment | usable by work on `stream` from now on            |
// | r.deallocate(stream, p, bytes, alignment) | void      | never                        | reusable after earlier work on `stream` is done   |
// | r.allocate_sync(bytes, alignment)         | void*     | as allocate                  | usable at once on every stream and the host       |
// | r.deallocate_sync(p, bytes, alignment)    | void      | never                        | no stream may still use it                        |
// | a == b                                    | bool      | never                        | memory of one may be freed through the other      |
// | R::properties                             | type      |                              | a property_set: what may access the memory        |
// | r.device()                                | device_id | never                        | where the memory is                               |
// | r.driver()                                | driver    | never                        | the driver that orders its streams                |
//
// Zero bytes: allocate returns null; deallocate of null does nothing. Resources are cheap handles: a copy
// refers to the same resource, and the last copy releases it.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tarn/core/stream.hpp"

namespace TARN_NAMESPACE {

// Memory accessibility: empty tags that a resource lists in its type.

/// Kernels may read and write the memory.
struct device_accessible {};
/// The host may read and write the memory.
struct host_accessible {};

/// A list of tags; a resource declares `using properties = property_set<device_accessible>;`.
template <class... Tags>
struct property_set {
  template <class Tag>
  static constexpr bool has = (std::is_same_v<Tag, Tags> || ...);
};

/// True if the resource's memory has the tag.
template <class Resource, class Tag>
inline constexpr bool has_property = Resource::properties::template has<Tag>;

/// A value that can be copied, moved and compared: what tarn needs of std::copyable and
/// std::equality_comparable, which instantiate 80 templates for each type.
template <class T>
concept comparable_value = requires(T& to, T const& from) {
  T(from);
  T(static_cast<T&&>(to));
  to = from;
  to = static_cast<T&&>(to);
  { from == from } -> std::convertible_to<bool>;
};

template <class R>
concept has_allocate = requires(R& r, stream_ref stream, std::size_t bytes, std::size_t alignment) {
  { r.allocate(stream, bytes, alignment) } -> std::same_as<void*>;
};
template <class R>
concept has_deallocate =
    requires(R& r, stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) {
      { r.deallocate(stream, p, bytes, alignment) } noexcept;
    };
template <class R>
concept has_allocate_sync = requires(R& r, std::size_t bytes, std::size_t alignment) {
  { r.allocate_sync(bytes, alignment) } -> std::same_as<void*>;
};
template <class R>
concept has_deallocate_sync = requires(R& r, void* p, std::size_t bytes, std::size_t alignment) {
  { r.deallocate_sync(p, bytes, alignment) } noexcept;
};
/// Makes blocks at addresses that the caller has reserved, for growing_buffer.
template <class R>
concept has_allocate_at =
    requires(R& r, stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) {
      { r.allocate_at(stream, p, bytes, alignment) } -> std::same_as<void*>;
      { r.deallocate_at(stream, p, bytes, alignment) } noexcept;
    };
/// Makes blocks longer where they are.
template <class R>
concept has_extend = requires(R& r, stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) {
  { r.extend(stream, p, bytes, bytes, alignment) } -> std::same_as<bool>;
};
template <class R>
concept has_properties = requires { typename R::properties; };
template <class R>
concept has_driver = requires(R const& r) {
  typename R::driver_type;
  { r.driver() } -> std::convertible_to<typename R::driver_type const&>;
  { r.device() } -> std::convertible_to<device_id>;
};

/// A stream-ordered memory resource; see the table above.
template <class R>
concept resource = comparable_value<R> && has_allocate<R> && has_deallocate<R> && has_allocate_sync<R> &&
                   has_deallocate_sync<R> && has_properties<R> && has_driver<R>;

/// One allocation of physical memory, by the driver's handle (CUmemGenericAllocationHandle).
using page_handle = std::uint64_t;

/// A physical segment: contiguous bytes of a block that lie in one handle.
struct memory_segment {
  void* address = nullptr;  ///< of the bytes in the block
  std::size_t bytes = 0;
  page_handle handle = 0;
  std::size_t offset = 0;        ///< of the bytes in the handle
  std::size_t handle_bytes = 0;  ///< size of the whole handle
  friend bool operator==(memory_segment const&, memory_segment const&) noexcept = default;
};

/// A source of pages: address ranges, physical handles, and mappings of handles into ranges.
///
/// | expression            | throws                    | meaning                                                   |
/// |-----------------------|---------------------------|-----------------------------------------------------------|
/// | s.granularity()       | never                     | bytes; every size and offset below is a multiple of it    |
/// | s.reserve(bytes)      | out_of_memory, cuda_error | an address range with no memory mapped                    |
/// | s.unreserve(p, bytes) | never                     | releases the whole range of one reserve()                 |
/// | s.create(bytes)       | out_of_memory, cuda_error | one handle of physical memory                             |
/// | s.destroy(h, bytes)   | never                     | releases the handle; it must not be mapped anywhere       |
/// | s.map(p, bytes, h)    | out_of_memory, cuda_error | maps the whole handle at p, readable and writable         |
/// | s.unmap(p, bytes)     | never                     | undoes exactly one map(); no work may still use the range |
/// | s.has_pages()         | never                     | optional: false if the device has none (no virtual memory management); a pool then uses plain blocks, see has_plain_blocks |
template <class S>
concept page_source = comparable_value<S> && has_properties<S> && has_driver<S> &&
                      requires(S& s, std::size_t bytes, void* p, page_handle h) {
                        { s.granularity() } noexcept -> std::same_as<std::size_t>;
                        { s.reserve(bytes) } -> std::same_as<void*>;
                        { s.unreserve(p, bytes) } noexcept;
                        { s.create(bytes) } -> std::same_as<page_handle>;
                        { s.destroy(h, bytes) } noexcept;
                        { s.map(p, bytes, h) };
                        { s.unmap(p, bytes) } noexcept;
                      };

/// A source whose own memory tools cannot track block by block (pages, memory that the driver orders by
/// streams), but which also offers plain blocks that tools can track, and that a pool uses where the device
/// has no pages. A layer over such a source forwards them and counts them like any other memory; over a layer
/// that does not, a tool cannot see inside a pool, and a pool cannot be made on a device without pages.
///
/// | expression                   | throws                    | meaning                                            |
/// |------------------------------|---------------------------|----------------------------------------------------|
/// | s.allocate_plain(bytes)      | out_of_memory, cuda_error | a cudaMalloc block, usable at once everywhere      |
/// | s.deallocate_plain(p, bytes) | never                     | releases it; no work may still use it              |
template <class S>
concept has_plain_blocks = requires(S& s, std::size_t bytes, void* p) {
  { s.allocate_plain(bytes) } -> std::same_as<void*>;
  { s.deallocate_plain(p, bytes) } noexcept;
};

/// A valid upstream of a pool: a resource of whole blocks, or a page source.
template <class S>
concept memory_source = resource<S> || page_source<S>;

/// Reports which clauses a type lacks, one static_assert per clause.
template <class R>
constexpr bool check_memory_source() {
  if constexpr (!memory_source<R>) {
    static_assert(std::copyable<R>, "tarn: not a resource; a resource is a cheap handle: make it copyable");
    static_assert(std::equality_comparable<R>,
                  "tarn: not a resource; add: bool operator==(R const&) const noexcept");
    static_assert(
        has_properties<R>,
        "tarn: not a resource; add: using properties = tarn::property_set<tarn::device_accessible>");
    static_assert(has_driver<R>,
                  "tarn: not a resource; add: using driver_type, driver_type const& driver() const, "
                  "device_id device() const");
    static_assert(has_allocate<R>,
                  "tarn: not a resource; add: void* allocate(stream_ref, size_t bytes, size_t alignment)");
    static_assert(has_deallocate<R>,
                  "tarn: not a resource; add: void deallocate(stream_ref, void*, size_t bytes, size_t "
                  "alignment) noexcept");
    static_assert(has_allocate_sync<R>,
                  "tarn: not a resource; add: void* allocate_sync(size_t bytes, size_t alignment)");
    static_assert(
        has_deallocate_sync<R>,
        "tarn: not a resource; add: void deallocate_sync(void*, size_t bytes, size_t alignment) noexcept");
  }
  return memory_source<R>;
}

}  // namespace TARN_NAMESPACE
