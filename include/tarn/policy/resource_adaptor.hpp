// SPDX-License-Identifier: Apache-2.0
#pragma once
// resource_adaptor: the base of layers that are written once around "a request and the next layer", for both
// pairs of calls; and around<Policy>, which makes a layer of a class that defines only that.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "tarn/core/config.hpp"
#include "tarn/core/shared_resource.hpp"

namespace TARN_NAMESPACE {

/// Which pair of calls a request was made by.
enum class call_kind : std::uint8_t {
  stream_ordered,  ///< allocate and deallocate
  synchronous,     ///< allocate_sync and deallocate_sync
  at_address       ///< allocate_at and deallocate_at, of growing_buffer
};

/// The arguments of one call.
struct request {
  stream_ref stream;          ///< the default stream if the call is synchronous
  std::size_t bytes = 0;      ///< as requested
  std::size_t alignment = 0;  ///< a power of two in a correct program
  call_kind kind = call_kind::stream_ordered;
  void* at = nullptr;  ///< where the block shall begin, if the call says so

  [[nodiscard]] constexpr bool is_synchronous() const noexcept { return kind == call_kind::synchronous; }
  /// Returns the same request as a stream-ordered one: for a block that work on its stream still uses.
  [[nodiscard]] constexpr request in_stream_order() const noexcept {
    request same = *this;
    if (is_synchronous()) same.kind = call_kind::stream_ordered;
    return same;
  }
  /// Returns the same request on another stream.
  [[nodiscard]] constexpr request on(stream_ref other) const noexcept {
    request same = *this;
    same.stream = other;
    return same;
  }
};

/// The layer below, as a policy calls it. A request that is passed on unchanged makes the same call there.
template <class Upstream>
class next_layer {
 public:
  explicit constexpr next_layer(Upstream& upstream) noexcept : upstream_(upstream) {}

  /// Allocates. Returns null for zero bytes. @throws out_of_memory, bad_alignment; nothing has changed
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate(request const& r) const {
    if constexpr (has_allocate_at<Upstream>) {
      if (r.kind == call_kind::at_address) return upstream_.allocate_at(r.stream, r.at, r.bytes, r.alignment);
    }
    return r.is_synchronous() ? upstream_.allocate_sync(r.bytes, r.alignment)
                              : upstream_.allocate(r.stream, r.bytes, r.alignment);
  }
  /// Frees a block, also one that the same policy has just allocated. Does nothing for null.
  /// @param r  with the bytes and the alignment that the layer below was asked for
  TARN_ALWAYS_INLINE void deallocate(request const& r, void* p) const noexcept {
    if constexpr (has_allocate_at<Upstream>) {
      if (r.kind == call_kind::at_address) return upstream_.deallocate_at(r.stream, p, r.bytes, r.alignment);
    }
    if (r.is_synchronous()) {
      upstream_.deallocate_sync(p, r.bytes, r.alignment);
    } else {
      upstream_.deallocate(r.stream, p, r.bytes, r.alignment);
    }
  }
  /// Makes a block `more` bytes longer where it is, see pool::extend(). @param r  of the block as it is
  [[nodiscard]] bool extend(request const& r, void* p, std::size_t more) const {
    if constexpr (has_extend<Upstream>) return upstream_.extend(r.stream, p, r.bytes, more, r.alignment);
    return false;
  }
  [[nodiscard]] constexpr Upstream& upstream() const noexcept { return upstream_; }
  [[nodiscard]] decltype(auto) driver() const noexcept { return upstream_.driver(); }

 private:
  Upstream& upstream_;
};

namespace detail {

template <class Layer, class Upstream>
concept allocates_around = requires(Layer& layer, request const& r, next_layer<Upstream> const& next) {
  { layer.around_allocate(r, next) } -> std::same_as<void*>;
};
template <class Layer, class Upstream>
concept deallocates_around =
    requires(Layer& layer, request const& r, void* p, next_layer<Upstream> const& next) {
      { layer.around_deallocate(r, p, next) } noexcept;
    };
template <class Layer, class Upstream>
concept extends_around = requires(Layer& layer, request const& r, void* p, next_layer<Upstream> const& next) {
  { layer.around_extend(r, p, r.bytes, next) } -> std::same_as<bool>;
};

/// A member of either name in T makes that name ambiguous in `named_twice<T>`, whatever its parameters and
/// access are.
struct names_of_adaptors {
  int around_allocate;
  int around_deallocate;
  int around_extend;
};
template <class T>
struct named_twice : T, names_of_adaptors {};
template <class T>
concept names_around_allocate = !requires { &named_twice<T>::around_allocate; };
template <class T>
concept names_around_deallocate = !requires { &named_twice<T>::around_deallocate; };
template <class T>
concept names_around_extend = !requires { &named_twice<T>::around_extend; };

/// Asserts at the composition that what a layer declares is what will be called: otherwise its calls would
/// pass it by.
template <class Layer, class Upstream>
constexpr bool check_adaptor() {
  static_assert(
      !(names_around_allocate<Layer> || names_around_deallocate<Layer>) || resource<Upstream>,
      "tarn: this policy changes the calls of blocks; put it over the pool: pages | pooled{} | policy{}");
  if constexpr (resource<Upstream>) {
    static_assert(!names_around_allocate<Layer> || allocates_around<Layer, Upstream>,
                  "tarn: around_allocate of this policy cannot be called; declare it: public: void* "
                  "around_allocate(tarn::request const& r, auto const& next)");
    static_assert(!names_around_deallocate<Layer> || deallocates_around<Layer, Upstream>,
                  "tarn: around_deallocate of this policy cannot be called; declare it: public: void "
                  "around_deallocate(tarn::request const& r, void* p, auto const& next) noexcept");
    static_assert(!names_around_extend<Layer> || extends_around<Layer, Upstream>,
                  "tarn: around_extend of this policy cannot be called; declare it: public: bool "
                  "around_extend(tarn::request const& r, void* p, std::size_t more, auto const& next)");
  }
  return true;
}

}  // namespace detail

/// Holds the layer below, and makes the four calls of a resource out of two functions that a layer may
/// define:
///
/// | in the layer                                | called for                  | if not defined  |
/// |---------------------------------------------|-----------------------------|-----------------|
/// | void* around_allocate(r, next)              | allocate, allocate_sync     | next.allocate   |
/// | void around_deallocate(r, p, next) noexcept | deallocate, deallocate_sync | next.deallocate |
/// | bool around_extend(r, p, more, next)        | extend                      | false           |
///
/// A layer that defines none of them passes extend on.
/// `r` is a request const&, `next` a next_layer const&; `p` is never null. The request that is passed on may
/// have other bytes, another alignment or another stream. All other calls are forwarded as for any layer, see
/// shared_resource. Costs nothing besides what the layer does. A layer derives from it by its own name:
/// `template <class Upstream> class my_layer : public resource_adaptor<my_layer<Upstream>, Upstream>`.
template <class Layer, class Upstream>
class resource_adaptor {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;

  explicit resource_adaptor(Upstream upstream) : upstream_(std::move(upstream)) {}
  resource_adaptor& operator=(resource_adaptor&&) = delete;

  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment)
    requires resource<Upstream>
  {
    return allocate_around({stream, bytes, alignment, call_kind::stream_ordered});
  }
  TARN_ALWAYS_INLINE void deallocate(stream_ref stream, void* p, std::size_t bytes,
                                     std::size_t alignment) noexcept
    requires resource<Upstream>
  {
    deallocate_around({stream, bytes, alignment, call_kind::stream_ordered}, p);
  }
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate_sync(std::size_t bytes, std::size_t alignment)
    requires resource<Upstream>
  {
    return allocate_around({stream_ref{}, bytes, alignment, call_kind::synchronous});
  }
  TARN_ALWAYS_INLINE void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept
    requires resource<Upstream>
  {
    deallocate_around({stream_ref{}, bytes, alignment, call_kind::synchronous}, p);
  }

  /// For growing_buffer, as the pool has them. A layer whose blocks do not begin where those below begin, or
  /// that routes to several resources, hides them: `void allocate_at() = delete;`.
  [[nodiscard]] void* allocate_at(stream_ref stream, void* at, std::size_t bytes, std::size_t alignment)
    requires has_allocate_at<Upstream>
  {
    return allocate_around({stream, bytes, alignment, call_kind::at_address, at});
  }
  void deallocate_at(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept
    requires has_allocate_at<Upstream>
  {
    deallocate_around({stream, bytes, alignment, call_kind::at_address, p}, p);
  }

  [[nodiscard]] bool extend(stream_ref stream, void* p, std::size_t bytes, std::size_t more,
                            std::size_t alignment)
    requires resource<Upstream>
  {
    next_layer<Upstream> const next(upstream_);
    request const r{stream, bytes, alignment};
    if constexpr (detail::extends_around<Layer, Upstream>) {
      return static_cast<Layer&>(*this).around_extend(r, p, more, next);
    } else if constexpr (detail::names_around_allocate<Layer> || detail::names_around_deallocate<Layer>) {
      return false;
    } else {
      return next.extend(r, p, more);
    }
  }

  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] Upstream const& upstream() const noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }

 protected:
  ~resource_adaptor() = default;

  /// Of a refused request, for the policy that refuses it to complete.
  [[nodiscard]] memory_report report_of(request const& r) const {
    return {.asked = r.bytes,
            .alignment = r.alignment,
            .device = driver().device().value,
            .stream = r.stream.id()};
  }

  Upstream upstream_;

 private:
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate_around(request const& r) {
    next_layer<Upstream> const next(upstream_);
    if constexpr (detail::allocates_around<Layer, Upstream>) {
      return static_cast<Layer&>(*this).around_allocate(r, next);
    } else {
      return next.allocate(r);
    }
  }
  TARN_ALWAYS_INLINE void deallocate_around(request const& r, void* p) noexcept {
    next_layer<Upstream> const next(upstream_);
    if constexpr (detail::deallocates_around<Layer, Upstream>) {
      if (p != nullptr) static_cast<Layer&>(*this).around_deallocate(r, p, next);
    } else {
      next.deallocate(r, p);
    }
  }
};

template <class Policy, class Upstream>
class around_layer;

/// Puts a class that defines around_allocate, around_deallocate or both on a stack: `pool |
/// around<my_policy>{}`. The layer has a my_policy{} of its own, whose public members are reached through the
/// handle: `memory->member`. A policy with options that can be moved may be its own layer instead, and is
/// then put on a stack as those of tarn are: `template <class Upstream> using layer =
/// tarn::around_layer<my_policy, Upstream>;`.
template <class Policy>
struct around {
  static_assert(
      std::default_initializable<Policy>,
      "tarn: around<Policy> makes its policy without arguments; a policy with options adds: template <class "
      "Upstream> using layer = tarn::around_layer<Policy, Upstream>, and is put on a stack by itself");
  template <class Upstream>
  using layer = around_layer<Policy, Upstream>;
};

/// The layer of such a class.
template <class Policy, class Upstream>
class around_layer : public resource_adaptor<around_layer<Policy, Upstream>, Upstream>, public Policy {
  static_assert(
      detail::names_around_allocate<Policy> || detail::names_around_deallocate<Policy>,
      "tarn: this policy changes no call; add: void* around_allocate(tarn::request const& r, auto const& "
      "next), or void around_deallocate(tarn::request const& r, void* p, auto const& next) noexcept");
  using base = resource_adaptor<around_layer<Policy, Upstream>, Upstream>;

 public:
  around_layer()
    requires std::default_initializable<Upstream> && std::default_initializable<Policy>
      : around_layer(Upstream{}, around<Policy>{}) {}
  around_layer(Upstream upstream, around<Policy> const&)
    requires std::default_initializable<Policy>
      : base(std::move(upstream)), Policy() {}
  around_layer(Upstream upstream, Policy policy) : base(std::move(upstream)), Policy(std::move(policy)) {}
};

}  // namespace TARN_NAMESPACE
