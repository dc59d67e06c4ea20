// SPDX-License-Identifier: Apache-2.0
#pragma once
// shared_resource<Layer>: the reference-counted handle for every pool and policy. It provides the call names
// of each generation of CUDA libraries, and forwards calls that a layer does not define to the layer below.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/location_scope.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/stream.hpp"

namespace TARN_NAMESPACE {

// The calls of a handle as other versions of CCCL name them.

/// The base of a handle that has allocate, deallocate, allocate_sync and deallocate_sync: the same four calls
/// under their other names. A handle writes `using call_names<Handle>::allocate` and `deallocate`, which its
/// own would hide.
template <class Handle>
class call_names {
 public:
  // As CCCL 3.0 (CUDA 13.0) names them. A braced {} never converts to bytes.

  template <has_allocate_sync H = Handle>
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate(detail::byte_count bytes,
                                                  std::size_t alignment = default_alignment,
                                                  attribution call = attribution::current()) {
    return static_cast<H&>(*this).allocate_sync(bytes.value, alignment, call);
  }
  template <std::integral Bytes, has_deallocate_sync H = Handle>
  TARN_ALWAYS_INLINE void deallocate(void* p, Bytes bytes, std::size_t alignment = default_alignment,
                                     attribution call = attribution::current()) noexcept {
    static_cast<H&>(*this).deallocate_sync(p, static_cast<std::size_t>(bytes), alignment, call);
  }

  // As earlier versions name them.

  template <has_allocate H = Handle>
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate_async(std::size_t bytes, std::size_t alignment,
                                                        stream_ref stream,
                                                        attribution call = attribution::current()) {
    return static_cast<H&>(*this).allocate(stream, bytes, alignment, call);
  }
  template <has_allocate H = Handle>
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate_async(std::size_t bytes, stream_ref stream,
                                                        attribution call = attribution::current()) {
    return static_cast<H&>(*this).allocate(stream, bytes, default_alignment, call);
  }
  template <has_deallocate H = Handle>
  TARN_ALWAYS_INLINE void deallocate_async(void* p, std::size_t bytes, std::size_t alignment,
                                           stream_ref stream,
                                           attribution call = attribution::current()) noexcept {
    static_cast<H&>(*this).deallocate(stream, p, bytes, alignment, call);
  }
  template <has_deallocate H = Handle>
  TARN_ALWAYS_INLINE void deallocate_async(void* p, std::size_t bytes, stream_ref stream,
                                           attribution call = attribution::current()) noexcept {
    static_cast<H&>(*this).deallocate(stream, p, bytes, default_alignment, call);
  }
};

namespace detail {

template <class Layer>
concept passes_pages = requires(Layer& l, std::size_t bytes, void* p, page_handle handle) {
  l.granularity();
  l.reserve(bytes);
  l.unreserve(p, bytes);
  l.create(bytes);
  l.destroy(handle, bytes);
  l.map(p, bytes, handle);
  l.unmap(p, bytes);
};

/// The page calls, passed on: from a handle to its layer, if that is a policy over a page source, and from
/// such a policy to its upstream.
template <class From, class To>
class page_calls {};
template <class From, passes_pages To>
class page_calls<From, To> {
 public:
  [[nodiscard]] std::size_t granularity() const noexcept {
    return to(static_cast<From const&>(*this)).granularity();
  }
  [[nodiscard]] void* reserve(std::size_t bytes) { return to().reserve(bytes); }
  void unreserve(void* p, std::size_t bytes) noexcept { to().unreserve(p, bytes); }
  [[nodiscard]] page_handle create(std::size_t bytes) { return to().create(bytes); }
  void destroy(page_handle handle, std::size_t bytes) noexcept { to().destroy(handle, bytes); }
  void map(void* p, std::size_t bytes, page_handle handle) { to().map(p, bytes, handle); }
  void unmap(void* p, std::size_t bytes) noexcept { to().unmap(p, bytes); }

 private:
  template <class Self>
  [[nodiscard]] static auto& to(Self& self) noexcept {
    if constexpr (requires { self.layer(); }) {
      return self.layer();
    } else {
      return self.upstream();
    }
  }
  [[nodiscard]] To& to() noexcept { return to(static_cast<From&>(*this)); }
};

}  // namespace detail

/// A shared handle to one layer and all layers below it. Copies refer to the same resource; the last copy
/// destroys the layer, so a resource lives as long as any owner holds a copy. Copying is one atomic
/// increment; a call is one indirection. A moved-from handle is empty.
template <class Layer>
class shared_resource : public call_names<shared_resource<Layer>>,
                        public detail::page_calls<shared_resource<Layer>, Layer> {
 public:
  using layer_type = Layer;
  using driver_type = typename Layer::driver_type;
  using properties = typename Layer::properties;
  static_assert(detail::check_routes<Layer>());

  /// Default-constructs the layer and those below it.
  shared_resource()
    requires std::default_initializable<Layer>
      : block_(new block()) {}

  /// Constructs an empty handle, which refers to no resource. It may only be assigned, copied, compared or
  /// destroyed.
  explicit shared_resource(std::nullptr_t) noexcept : block_(nullptr) {}

  /// Constructs the layer from its own constructor arguments.
  template <class... Arguments>
    requires(sizeof...(Arguments) > 0 && std::constructible_from<Layer, Arguments...>)
  explicit shared_resource(std::in_place_t, Arguments&&... arguments)
      : block_(new block(std::forward<Arguments>(arguments)...)) {}

  /// Constructs a stack from its parts, source first: stack<cuda_pages, pooled, limited>{cuda_pages{0},
  /// pooled{}, limited{1_GiB}}.
  template <class First, class... Rest>
    requires(detail::stands_on_another<Layer> && !detail::is_shared<std::remove_cvref_t<First>> &&
             !std::same_as<std::remove_cvref_t<First>, std::in_place_t>)
  explicit shared_resource(First&& first, Rest&&... rest) : block_(nullptr) {
    using upstream_type = typename Layer::upstream_type;
    if constexpr (sizeof...(Rest) == 0) {
      static_assert(std::constructible_from<Layer, upstream_type>,
                    "tarn: this layer cannot be made from its upstream alone; pass its policy's options too");
      block_ = new block(upstream_type(std::forward<First>(first)));
    } else {
      block_ = make_block<sizeof...(Rest)>(std::forward<First>(first), std::forward<Rest>(rest)...);
    }
  }

  shared_resource(shared_resource const& other) noexcept : block_(other.block_) {
    if (block_ != nullptr) block_->references.fetch_add(1, std::memory_order_relaxed);
  }
  shared_resource(shared_resource&& other) noexcept : block_(detail::exchange(other.block_, nullptr)) {}
  shared_resource& operator=(shared_resource other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~shared_resource() {
    if (block_ != nullptr && block_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete block_;
  }

  // The stream-ordered calls, as tarn and CCCL 3.1 and later name them. Inline, so that the caller's place
  // costs nothing if no layer records it.

  /// Allocates for work on `stream`. Returns null for zero bytes.
  /// @param bytes      any size; the block may be larger
  /// @param alignment  a power of two up to max_alignment
  /// @throws out_of_memory, bad_alignment; nothing has changed
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate(stream_ref stream, std::size_t bytes,
                                                  std::size_t alignment = default_alignment,
                                                  attribution call = attribution::current())
    requires(detail::allocates<Layer>())
  {
    [[maybe_unused]] detail::location_of_call<shared_resource> const here(call);
    return detail::called_from(call.where, [&]() TARN_ALWAYS_INLINE_LAMBDA {
      if constexpr (has_allocate<Layer>) {
        return block_->layer.allocate(stream, bytes, alignment);
      } else {
        return block_->layer.upstream().allocate(stream, bytes, alignment);
      }
    });
  }
  /// Frees a block; work on `stream` may reuse it at once, other streams once they are ordered after it. Does
  /// nothing for null.
  TARN_ALWAYS_INLINE void deallocate(stream_ref stream, void* p, std::size_t bytes,
                                     std::size_t alignment = default_alignment,
                                     attribution call = attribution::current()) noexcept
    requires(detail::allocates<Layer>())
  {
    [[maybe_unused]] detail::location_of_call<shared_resource> const here(call);
    if constexpr (has_deallocate<Layer>) {
      block_->layer.deallocate(stream, p, bytes, alignment);
    } else {
      static_assert(!has_allocate<Layer>,
                    "tarn: this policy changes allocate but not its counterpart; add: void "
                    "deallocate(stream_ref, void*, size_t bytes, size_t alignment) noexcept");
      block_->layer.upstream().deallocate(stream, p, bytes, alignment);
    }
  }
  /// Allocates memory that every stream may use at once.
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate_sync(std::size_t bytes,
                                                       std::size_t alignment = default_alignment,
                                                       attribution call = attribution::current())
    requires(detail::allocates<Layer>())
  {
    [[maybe_unused]] detail::location_of_call<shared_resource> const here(call);
    return detail::called_from(call.where, [&]() TARN_ALWAYS_INLINE_LAMBDA {
      if constexpr (has_allocate_sync<Layer>) {
        return block_->layer.allocate_sync(bytes, alignment);
      } else {
        static_assert(!has_allocate<Layer>,
                      "tarn: this policy changes allocate but not allocate_sync; add: void* "
                      "allocate_sync(size_t bytes, size_t alignment)");
        return block_->layer.upstream().allocate_sync(bytes, alignment);
      }
    });
  }
  /// Frees memory that no stream uses any more.
  TARN_ALWAYS_INLINE void deallocate_sync(void* p, std::size_t bytes,
                                          std::size_t alignment = default_alignment,
                                          attribution call = attribution::current()) noexcept
    requires(detail::allocates<Layer>())
  {
    [[maybe_unused]] detail::location_of_call<shared_resource> const here(call);
    if constexpr (has_deallocate_sync<Layer>) {
      block_->layer.deallocate_sync(p, bytes, alignment);
    } else {
      static_assert(!has_allocate<Layer>,
                    "tarn: this policy changes allocate but not deallocate_sync; add: void "
                    "deallocate_sync(void*, size_t bytes, size_t alignment) noexcept");
      block_->layer.upstream().deallocate_sync(p, bytes, alignment);
    }
  }

  /// Makes a block `more` bytes longer where it is, if the memory behind it is free for `stream`, and returns
  /// whether it did. Then it is a block of `bytes + more` bytes, freed as one. False if a layer does not know
  /// this call. See pool::extend().
  /// @throws misuse  no block starts at `p`; std::bad_alloc, cuda_error. Nothing has changed
  [[nodiscard]] bool extend(stream_ref stream, void* p, std::size_t bytes, std::size_t more,
                            std::size_t alignment = default_alignment,
                            attribution call = attribution::current())
    requires(detail::allocates<Layer>())
  {
    [[maybe_unused]] detail::location_of_call<shared_resource> const here(call);
    return detail::called_from(call.where, [&] {
      if constexpr (has_extend<Layer>) {
        return block_->layer.extend(stream, p, bytes, more, alignment);
      } else if constexpr (!has_allocate<Layer>) {
        if constexpr (has_extend<typename Layer::upstream_type>)
          return block_->layer.upstream().extend(stream, p, bytes, more, alignment);
      }
      return false;
    });
  }

  // For growing_buffer; documented at the pool.

  [[nodiscard]] void* allocate_at(stream_ref stream, void* at, std::size_t bytes, std::size_t alignment)
    requires has_allocate_at<Layer>
  {
    return block_->layer.allocate_at(stream, at, bytes, alignment);
  }
  void deallocate_at(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept
    requires has_allocate_at<Layer>
  {
    block_->layer.deallocate_at(stream, p, bytes, alignment);
  }

  // The same four calls under their other names.
  using call_names<shared_resource>::allocate;
  using call_names<shared_resource>::deallocate;

  /// Whether the handle refers to a resource; false if it is empty.
  [[nodiscard]] explicit operator bool() const noexcept { return block_ != nullptr; }
  /// Equal handles: memory of one may be freed through the other.
  friend bool operator==(shared_resource const& a, shared_resource const& b) noexcept {
    return a.block_ == b.block_;
  }

  /// Returns the driver that orders the streams of this memory.
  [[nodiscard]] driver_type const& driver() const noexcept {
    return nearest(*this, [](auto& l) -> decltype((l.driver())) { return l.driver(); });
  }
  /// Returns the device that the memory belongs to.
  [[nodiscard]] device_id device() const noexcept { return driver().device(); }

  // Calls that only a pool offers, reachable through any policy above it; without a pool they do not compile.
  // Documented at the pool. A handle is const as a pointer is: the resource behind it is not.

  /// Returns cached memory to the driver until at most `keep_bytes` are reserved; returns the bytes released.
  std::size_t trim(  // NOLINT(modernize-use-nodiscard): may be ignored
      std::size_t keep_bytes = 0, source_location where = source_location::current()) const
    requires reachable<shared_resource, pool_call::trim>
  {
    return detail::called_from(where, [&] { return nearest(*this, pool_call::trim{keep_bytes}); });
  }
  /// Returns all cached memory to the driver, as torch.cuda.empty_cache does.
  void empty_cache(source_location where = source_location::current()) const
    requires reachable<shared_resource, pool_call::trim>
  {
    (void)trim(0, where);
  }
  /// Returns true if `p` points into memory that the pool reserved.
  [[nodiscard]] bool owns(void const* p) const noexcept
    requires reachable<shared_resource, pool_call::owns>
  {
    return nearest(*this, pool_call::owns{p});
  }
  /// Returns the size of the largest request that can be served without calling the driver, bytes.
  [[nodiscard]] std::size_t largest_free_range() const
    requires reachable<shared_resource, pool_call::largest_free_range>
  {
    return nearest(*this, pool_call::largest_free_range{});
  }
  /// Records that work on `stream`, enqueued before the block is deallocated, uses the block, although it is
  /// freed on another stream. The freed block is deferred until that work is done.
  void record_stream(void* p, std::size_t bytes, stream_ref stream,
                     source_location where = source_location::current()) const
    requires reachable<shared_resource, pool_call::record_stream>
  {
    detail::called_from(where, [&] { nearest(*this, pool_call::record_stream{p, bytes, stream}); });
  }

  /// Whether the device has pages: the answer of the source below.
  [[nodiscard]] bool has_pages() const noexcept
    requires(detail::passes_pages<Layer> && reachable<shared_resource, detail::has_pages_call>)
  {
    return nearest(*this, detail::has_pages_call{});
  }

  // Plain blocks, if this layer forwards them.

  [[nodiscard]] void* allocate_plain(std::size_t bytes)
    requires has_plain_blocks<Layer>
  {
    return block_->layer.allocate_plain(bytes);
  }
  void deallocate_plain(void* p, std::size_t bytes) noexcept
    requires has_plain_blocks<Layer>
  {
    block_->layer.deallocate_plain(p, bytes);
  }

  /// Returns the layer itself, for calls that only it offers.
  [[nodiscard]] Layer& layer() const noexcept { return block_->layer; }
  Layer* operator->() const noexcept { return &block_->layer; }

 private:
  struct block {
    template <class... Arguments>
    explicit block(Arguments&&... arguments) : layer(std::forward<Arguments>(arguments)...) {}
    std::atomic<std::size_t> references{1};
    Layer layer;
  };
  /// Makes the layer from the last argument, over an upstream from all others: moves as many of the first
  /// arguments to the end. Without std::tuple, which costs a compiler more than this header.
  template <std::size_t ToMove, class First, class... Rest>
  static block* make_block(First&& first, Rest&&... rest) {
    if constexpr (ToMove != 0) {
      return make_block<ToMove - 1>(std::forward<Rest>(rest)..., std::forward<First>(first));
    } else {
      return new block(typename Layer::upstream_type(std::forward<Rest>(rest)...),
                       std::forward<First>(first));
    }
  }
  block* block_;
};

}  // namespace TARN_NAMESPACE
