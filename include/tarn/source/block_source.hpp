// SPDX-License-Identifier: Apache-2.0
#pragma once
// block_source<Driver, Calls>: the common part of all sources of whole blocks: checks, alignment, errors, and
// each call under every name that CCCL versions use. `Calls` is the kind of memory: a struct with
//   using properties = property_set<...>;
//   static status take(D const&, size_t bytes, size_t alignment, void*& p) noexcept;   usable at once
//   static status give(D const&, void* p, size_t bytes, size_t alignment) noexcept;    no longer used
// and, if the driver itself orders the memory by streams, the same two with a stream:
//   static status take(D const&, stream_ref, size_t bytes, size_t alignment, void*& p) noexcept;
//   static status give(D const&, stream_ref, void* p, size_t bytes, size_t alignment) noexcept;
//   static status give_lost(D const&, void* p, size_t bytes, size_t alignment) noexcept;   the stream may be destroyed
// Kinds with a member `options` have const members instead. A take() that is not noexcept throws what is
// passed on. Optional members:
//   static constexpr char const* backend = "...";   what allocator_backend() returns
//   static constexpr std::size_t block_alignment = ...;   what each block has, or honours; without it, default_alignment
//   static constexpr bool gives_at_once = true;   give() does not wait for work that uses the block, as cudaFree does
//   static status refusal(D const&) noexcept;  a failure if the device has no such memory: asked in the constructor

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/source/plain_block.hpp"
#include "tarn/source/refusal.hpp"

namespace TARN_NAMESPACE {

namespace detail {
/// The driver orders this kind of memory by streams itself.
template <class Calls, class D>
concept stream_ordered_calls = requires(Calls const& calls, D const& driver, stream_ref stream,
                                        std::size_t bytes, void* p, void*& new_p) {
  calls.take(driver, stream, bytes, bytes, new_p);
  calls.give(driver, stream, p, bytes, bytes);
};
}  // namespace detail

/// A source of whole blocks, one driver call each. A small value: copies are the same source.
///
/// Memory that the driver does not order by streams is usable on every stream once allocate returns, and
/// deallocate first waits on the host for the work on its stream. Put a pool on top so that this happens
/// rarely. The stream of a deallocation may be destroyed if its identity is known, as it is to owners. On
/// CUDA, a stream with a known identity that tarn did not create then counts as lost: the device's work is
/// marked instead, which may invalidate a capture in progress. Pass such a stream as a bare handle while it
/// exists. Safe from any thread; keeps no state.
template <stream_driver D, class Calls>
class block_source {
  /// Whether a device may lack this kind of memory.
  static constexpr bool may_be_missing = requires(D const& driver) {
    { Calls::refusal(driver) } noexcept -> std::same_as<status>;
  };
  static constexpr detail::default_streams named_as = detail::default_streams_of<Calls>();
  /// A kind with options may take its blocks elsewhere than from the driver.
  static constexpr bool has_plain_blocks =
      detail::stream_ordered_calls<Calls, D> && detail::plain_block_driver<D> &&
      !has_property<Calls, host_accessible> && !requires(Calls const& calls) { calls.options; };
  static constexpr bool gives_at_once = requires { requires Calls::gives_at_once; };

 public:
  using driver_type = D;
  using properties = typename Calls::properties;

  /// On the driver's default device; for CUDA the calling thread's current one.
  /// @throws cuda_error  of kind `unsupported`: the device does not have this kind of memory; or the driver
  /// failed
  block_source() noexcept(!may_be_missing && std::is_nothrow_default_constructible_v<D>)
    requires(std::default_initializable<D> && std::default_initializable<Calls>)
      : driver_() {
    require_memory();
  }
  /// On one device. @throws as above
  explicit block_source(device_id device)
    requires(std::constructible_from<D, device_id> && std::default_initializable<Calls>)
      : driver_(device) {
    require_memory();
  }
  /// On a given driver. @throws as above
  explicit block_source(D driver) noexcept(!may_be_missing)
    requires std::default_initializable<Calls>
      : driver_(std::move(driver)) {
    require_memory();
  }
  /// With options, for kinds that have some. @throws as above
  block_source(D driver, Calls calls) noexcept(!may_be_missing)
      : driver_(std::move(driver)), calls_(std::move(calls)) {
    require_memory();
  }

  // The names of tarn, and of CCCL 3.1 and later.

  /// Allocates for work on `stream`. Zero bytes return null.
  /// @param alignment  up to that of each block always; above that at least a whole page of 2 MiB is taken,
  /// and the request is refused
  ///                   if even that is not aligned, since a device block has no room to hide an offset
  /// @throws out_of_memory, bad_alignment, cuda_error; nothing has changed
  /// @throws misuse  the driver orders the memory, and the stream is of another device, whose memory it would
  /// be
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes,
                               std::size_t alignment = default_alignment,
                               source_location where = source_location::current()) {
    if constexpr (detail::stream_ordered_calls<Calls, D>) {
      stream = detail::named_stream<named_as>(driver_, stream);
      if (is_elsewhere(stream)) throw detail::at(where, detail::unusable_from(stream, driver_));
      return take_aligned(
          {stream, bytes, alignment}, where,
          [&](std::size_t size, void*& p) { return calls_.take(driver_, stream, size, alignment, p); },
          [&](void* p, std::size_t size) noexcept {
            return calls_.give(driver_, stream, p, size, alignment);
          });
    } else {
      return take_now({stream, bytes, alignment}, where);
    }
  }
  /// Frees a block once the earlier work on `stream` is done. Does nothing for null, nor at process exit
  /// after the driver has unloaded. While `stream` is being captured into a graph it does not wait, since
  /// that would end the capture: the graph must not use the block. Where the wait fails, as
  /// while a capture forbids it, and the driver's own call does not wait either, as to unregister memory, the
  /// block is never given back.
  void deallocate(stream_ref stream, void* p, std::size_t bytes,
                  std::size_t alignment = default_alignment) noexcept {
    if (p == nullptr) return;
    std::size_t const taken = taken_bytes(bytes, alignment);
    if constexpr (detail::stream_ordered_calls<Calls, D>) {
      stream = detail::named_stream<named_as>(driver_, stream);
      bool const may_be_any = detail::is_of_any_device(driver_, stream, named_as) &&
                              !detail::is_freed_in_capture(driver_, stream, stream.id());
      if (detail::life_of(driver_, stream) == detail::stream_life::alive && !is_elsewhere(stream) &&
          !may_be_any) {
        (void)calls_.give(driver_, stream, p, taken, alignment);
      } else {
        (void)calls_.give_lost(driver_, p, taken, alignment);
      }
    } else {
      status const waited = detail::wait_for_last_use(driver_, stream, named_as);
      if (waited.kind == failure::unloading) return;
      if (gives_at_once && detail::may_run(waited)) return;
      (void)calls_.give(driver_, p, taken, alignment);
    }
  }
  /// Allocates memory usable at once by every stream.
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment,
                                    source_location where = source_location::current()) {
    return take_now({stream_ref{}, bytes, alignment}, where);
  }
  /// Frees memory that no stream uses any more.
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    if (p != nullptr) (void)calls_.give(driver_, p, taken_bytes(bytes, alignment), alignment);
  }

  /// Allocates a block that the driver does not order: for a pool that a tool watches, in place of
  /// allocate_sync().
  /// @throws out_of_memory, cuda_error; nothing has changed
  [[nodiscard]] void* allocate_plain(std::size_t bytes)
    requires has_plain_blocks
  {
    return detail::take_plain_block(driver_, bytes);
  }
  /// Frees such a block; no work uses it any more.
  void deallocate_plain(void* p, std::size_t) noexcept
    requires has_plain_blocks
  {
    detail::give_plain_block(driver_, p);
  }

  // The names of CCCL 3.0 (CUDA 13.0).

  [[nodiscard]] void* allocate(detail::byte_count bytes, std::size_t alignment = default_alignment) {
    return allocate_sync(bytes.value, alignment);
  }
  template <std::integral Bytes>
  void deallocate(void* p, Bytes bytes, std::size_t alignment = default_alignment) noexcept {
    deallocate_sync(p, static_cast<std::size_t>(bytes), alignment);
  }
  [[nodiscard]] void* allocate_async(std::size_t bytes, std::size_t alignment, stream_ref stream) {
    return allocate(stream, bytes, alignment);
  }
  [[nodiscard]] void* allocate_async(std::size_t bytes, stream_ref stream) { return allocate(stream, bytes); }
  void deallocate_async(void* p, std::size_t bytes, std::size_t alignment, stream_ref stream) noexcept {
    deallocate(stream, p, bytes, alignment);
  }
  void deallocate_async(void* p, std::size_t bytes, stream_ref stream) noexcept {
    deallocate(stream, p, bytes);
  }

  /// Where a pool's memory comes from, see allocator_backend().
  [[nodiscard]] static constexpr char const* backend() noexcept {
    if constexpr (requires { Calls::backend; }) {
      return Calls::backend;
    } else {
      return "blocks";
    }
  }
  [[nodiscard]] D const& driver() const noexcept { return driver_; }
  [[nodiscard]] device_id device() const noexcept { return driver_.device(); }

  /// Equal if the kind of memory, the options and the driver are equal, so either frees what the other
  /// allocated.
  friend bool operator==(block_source const& a, block_source const& b) noexcept {
    if constexpr (requires { a.calls_.options; }) {  // not std::equality_comparable, which is slow to compile
      if (!(a.calls_.options == b.calls_.options)) return false;
    }
    return a.driver_ == b.driver_;
  }

 private:
  void require_memory() const noexcept(!may_be_missing) {
    if constexpr (may_be_missing) {
      detail::must_succeed(driver_, Calls::refusal(driver_));
    }
  }

  /// The bytes that the driver is asked for and gets back. Blocks smaller than its page share one with
  /// others; larger ones start on a page boundary. It follows from the request alone, since a source keeps no
  /// state.
  [[nodiscard]] static constexpr std::size_t taken_bytes(std::size_t bytes, std::size_t alignment) noexcept {
    std::size_t of_each_block = default_alignment;
    if constexpr (requires { Calls::block_alignment; }) of_each_block = Calls::block_alignment;
    return alignment <= of_each_block ? bytes : detail::max_of(bytes, max_alignment);
  }
  struct block_wanted {
    stream_ref stream;
    std::size_t bytes;
    std::size_t alignment;
  };
  [[nodiscard]] void* take_now(block_wanted const& r, source_location where) {
    return take_aligned(
        r, where, [&](std::size_t size, void*& p) { return calls_.take(driver_, size, r.alignment, p); },
        [&](void* p, std::size_t size) noexcept { return calls_.give(driver_, p, size, r.alignment); });
  }

  template <class Take, class Give>
  [[nodiscard]] void* take_aligned(block_wanted const& r, source_location where, Take const& take,
                                   Give const& give) {
    auto const [stream, bytes, alignment] = r;
    require_alignment(alignment, max_alignment, where);
    if (bytes == 0) return nullptr;
    void* p = nullptr;
    std::size_t const whole = taken_bytes(bytes, alignment);
    status const taken = bytes <= max_request_bytes ? take(whole, p) : detail::too_large();
    if (!taken.ok())
      detail::refuse(driver_, taken, stream, bytes, alignment, where, detail::is_host_memory<block_source>);
    if (is_aligned(p, alignment)) return p;
    auto const address = reinterpret_cast<std::uintptr_t>(p);
    (void)give(p, whole);
    throw detail::at(where, bad_alignment(alignment, address & (~address + 1)));  // what the driver gave
  }

  /// Whether an existing stream is known to be of another device.
  [[nodiscard]] bool is_elsewhere(stream_ref stream) const noexcept {
    return detail::driver_of(driver_, stream).device() != driver_.device();
  }
  D driver_;
  [[no_unique_address]] Calls calls_{};
};

}  // namespace TARN_NAMESPACE
