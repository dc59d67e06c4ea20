// SPDX-License-Identifier: Apache-2.0
#pragma once
// tarn/cuda_mr.hpp over the single tarn.hpp, made by .ci/amalgamate.py. Do not edit.
#include "tarn.hpp"
// ---- tarn/cuda_mr.hpp
// CCCL memory resource interoperability, in both directions: every tarn resource is a cuda::mr resource of
// the toolkit's generation, and from_cuda_resource() turns any CCCL resource into a tarn resource that can be
// pooled, limited and tracked. Opt-in: it includes <cuda/memory_resource> (0.4 to 1.2 s to compile).
//
// | CCCL            | synchronous concept  | stream-ordered concept | references               |
// |-----------------|----------------------|------------------------|--------------------------|
// | 2.3 (CUDA 12.4) | resource             | async_resource         | experimental             |
// | 3.0 (CUDA 13.0) | resource             | async_resource         | experimental             |
// | 3.1             | synchronous_resource | resource               | experimental             |
// | 3.2 and later   | synchronous_resource | resource               | and any_resource, buffer |

#if __has_include(<cuda/version>)
#include <cuda/version>
#endif
#if !defined(CCCL_VERSION) || CCCL_VERSION < 2003000
#error "tarn/cuda_mr.hpp: needs CCCL 2.3, which CUDA 12.4 has, or later"
#include <tarn-needs-CCCL-2.3>  // ends the compilation: what follows would only be errors that mislead
#endif

// Up to 3.1, parts of <cuda/memory_resource> exist only if this is defined before the first inclusion.
// Nothing else reads it, so it is undefined again below.
#if CCCL_VERSION < 3002000 && !defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#if CCCL_VERSION < 3001000 && defined(_CUDA_MEMORY_RESOURCE)
#error "tarn: include tarn/cuda_mr.hpp first, or define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE"
#endif
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#define TARN_ENABLED_MEMORY_RESOURCE
#endif
#include <cuda/memory_resource>
#if defined(TARN_ENABLED_MEMORY_RESOURCE)
#undef LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#undef TARN_ENABLED_MEMORY_RESOURCE
#endif
#if __has_include(<cuda/stream>)
#include <cuda/stream>
#else
#include <cuda/stream_ref>
#endif
#if __has_include(<cuda/__memory_resource/memory_resource_base.h>)
#include <cuda/__memory_resource/memory_resource_base.h>
#define TARN_HAS_MEMORY_RESOURCE_BASE 1
#else
#define TARN_HAS_MEMORY_RESOURCE_BASE 0
#endif

#include <concepts>
#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

// ---- tarn/core/errors_as.hpp
// Translation of tarn's exceptions into those of another library, for the interop headers: errors_as<> names
// two exception types, and a class with a function of its own does anything else.

#include <concepts>
#include <exception>
#include <new>

namespace TARN_NAMESPACE {

/// How exceptions leave tarn for the code of another library.
///
/// | expression           | effect                                                                                    |
/// |----------------------|-------------------------------------------------------------------------------------------|
/// | `Errors::rethrow()`  | called in a catch block; throws the exception being handled, or another one in its place  |
///
/// rethrow() must not return. Calls come from any number of threads.
template <class Errors>
concept error_translation = requires {
  { Errors::rethrow() };
};

/// Passes every exception on as it is.
struct own_errors {
  [[noreturn]] static void rethrow() { throw; }
};

/// Throws OutOfMemory in place of tarn::out_of_memory, and Other in place of tarn's other exceptions and of a
/// std::bad_alloc of the host. Both are constructed from what(). Exceptions of other types, such as those of
/// a handler of the user's, pass unchanged, as do exceptions that are an OutOfMemory or an Other already.
///
/// tarn's exception stays reachable: catch the new one and call std::rethrow_if_nested on it, for the numbers
/// of its report.
template <class OutOfMemory, class Other = OutOfMemory>
  requires std::constructible_from<OutOfMemory, char const*> && std::constructible_from<Other, char const*>
struct errors_as {
  [[noreturn]] static void rethrow() {
    try {
      throw;
    } catch (out_of_memory const& error) {
      std::throw_with_nested(OutOfMemory(error.what()));
    } catch (std::bad_alloc const& error) {
      throw_other(error);
    } catch (any_error const& error) {
      throw_other(error);
    }
  }

 private:
  [[noreturn]] static void throw_other(auto const& error) {
    if (is_theirs<OutOfMemory>() || is_theirs<Other>()) throw;
    std::throw_with_nested(Other(error.what()));
  }
  /// Whether the exception being handled is a Theirs. Not a handler beside those above: the two types may be
  /// one.
  template <class Theirs>
  [[nodiscard]] static bool is_theirs() noexcept {
    try {
      throw;
    } catch (Theirs const&) {
      return true;
    } catch (...) {
      return false;
    }
  }
};

namespace detail {

/// Runs `call`; its exceptions leave as Errors has it. Costs nothing unless it throws.
template <error_translation Errors, class Call>
TARN_ALWAYS_INLINE decltype(auto) translated(Call const& call) {
  if constexpr (std::same_as<Errors, own_errors>) {
    return call();
  } else {
    try {
      return call();
    } catch (...) {
      Errors::rethrow();
      std::terminate();  // rethrow() has returned
    }
  }
}

}  // namespace detail

static_assert(error_translation<own_errors>);

}  // namespace TARN_NAMESPACE

namespace TARN_NAMESPACE {

// Properties: CCCL finds these by argument-dependent lookup. Types outside this namespace need
// as_cuda_resource().

namespace detail {
/// CCCL evaluates this for arbitrary types, so it must be well-formed for types without properties.
template <class Resource, class Tag>
concept lists_property = requires { requires Resource::properties::template has<Tag>; };
}  // namespace detail

/// Declares that kernels can access the memory.
template <class Resource>
  requires detail::lists_property<Resource, device_accessible>
constexpr void get_property(Resource const&, ::cuda::mr::device_accessible) noexcept {}
/// Declares that the host can access the memory.
template <class Resource>
  requires detail::lists_property<Resource, host_accessible>
constexpr void get_property(Resource const&, ::cuda::mr::host_accessible) noexcept {}

namespace detail {

#if CCCL_VERSION >= 3001000
template <class R>
concept cuda_blocks = ::cuda::mr::synchronous_resource<R>;
template <class R>
concept cuda_ordered = ::cuda::mr::resource<R>;
#else
template <class R>
concept cuda_blocks = ::cuda::mr::resource<R>;
template <class R>
concept cuda_ordered = ::cuda::mr::async_resource<R>;
#endif

/// The properties that an adaptor declares, where CCCL has a type for that (cuda::buffer uses it).
#if CCCL_VERSION >= 3002000
template <class Properties>
struct cuda_queries {};
template <>
struct cuda_queries<property_set<device_accessible>> {
  using default_queries = ::cuda::mr::properties_list<::cuda::mr::device_accessible>;
};
template <>
struct cuda_queries<property_set<host_accessible>> {
  using default_queries = ::cuda::mr::properties_list<::cuda::mr::host_accessible>;
};
template <>
struct cuda_queries<property_set<device_accessible, host_accessible>> {
  using default_queries =
      ::cuda::mr::properties_list<::cuda::mr::device_accessible, ::cuda::mr::host_accessible>;
};
#else
template <class Properties>
struct cuda_queries {};
#endif

#if TARN_HAS_MEMORY_RESOURCE_BASE
template <class Resource>
using cuda_resource_base = ::cuda::mr::memory_resource_base<Resource>;
#else
template <class Resource>
struct cuda_resource_base {};
#endif

/// Maps the properties of a CCCL resource to tarn's tags. A resource without properties is taken to be device
/// memory.
template <class R>
using properties_of = std::conditional_t<
    ::cuda::has_property<R, ::cuda::mr::host_accessible>,
    std::conditional_t<::cuda::has_property<R, ::cuda::mr::device_accessible>,
                       property_set<device_accessible, host_accessible>, property_set<host_accessible>>,
    property_set<device_accessible>>;

/// Whether CCCL's error means that memory ran out; before 3.2 the error does not contain the code.
template <class Error>
[[nodiscard]] bool means_out_of_memory(Error const& error) noexcept {
  if constexpr (requires { error.status(); }) {
    return static_cast<int>(error.status()) == static_cast<int>(cudaErrorMemoryAllocation);
  } else {
    return false;
  }
}

}  // namespace detail

/// A tarn resource with all of CCCL's interface: the members of its generation, the list of properties (which
/// cuda::buffer needs), and get_memory_resource, so that it can be used as an environment. tarn's own
/// resources need it for cuda::buffer only; a user-defined resource outside namespace tarn needs it to expose
/// its properties.
///
/// @tparam Errors  what is thrown in place of tarn's exceptions, where the code above catches its own: see
/// core/errors_as.hpp.
///                 `cuda_resource<device_pool, errors_as<rmm::out_of_memory, rmm::bad_alloc>>` can be RMM's device resource
template <resource Resource, error_translation Errors = own_errors>
class cuda_resource : public detail::cuda_resource_base<cuda_resource<Resource, Errors>>,
                      public detail::cuda_queries<typename Resource::properties> {
 public:
  using properties = typename Resource::properties;
  using errors = Errors;

  explicit cuda_resource(Resource memory) noexcept(std::is_nothrow_move_constructible_v<Resource>)
      : memory_(std::move(memory)) {}

#if CCCL_VERSION >= 3001000
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    return called([&] { return memory_.allocate_sync(bytes, alignment); });
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    detail::free_block_sync(memory_, p, bytes, alignment);
  }
  [[nodiscard]] void* allocate(::cuda::stream_ref stream, std::size_t bytes,
                               std::size_t alignment = default_alignment) {
    return called([&] { return memory_.allocate(stream_ref(stream.get()), bytes, alignment); });
  }
  void deallocate(::cuda::stream_ref stream, void* p, std::size_t bytes,
                  std::size_t alignment = default_alignment) noexcept {
    detail::free_block(memory_, stream_ref(stream.get()), p, bytes, alignment);
  }
#else
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment = default_alignment) {
    return called([&] { return memory_.allocate_sync(bytes, alignment); });
  }
  void deallocate(void* p, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    detail::free_block_sync(memory_, p, bytes, alignment);
  }
  [[nodiscard]] void* allocate_async(std::size_t bytes, std::size_t alignment, ::cuda::stream_ref stream) {
    return called([&] { return memory_.allocate(stream_ref(stream.get()), bytes, alignment); });
  }
  void deallocate_async(void* p, std::size_t bytes, std::size_t alignment,
                        ::cuda::stream_ref stream) noexcept {
    detail::free_block(memory_, stream_ref(stream.get()), p, bytes, alignment);
  }
#endif

  /// Returns the wrapped tarn resource.
  [[nodiscard]] Resource const& get_tarn_resource() const noexcept { return memory_; }

  friend bool operator==(cuda_resource const& a, cuda_resource const& b) noexcept {
    return a.memory_ == b.memory_;
  }

 private:
  /// No caller's line is known here: CCCL has no parameter for it.
  template <class Call>
  static void* called(Call const& call) {
    return detail::translated<Errors>(
        [&] { return detail::called_from<Resource>(detail::unknown_place(), call); });
  }

  Resource memory_;
};

/// Wraps a tarn resource for CCCL; see cuda_resource. Costs one copy of the handle.
/// `as_cuda_resource<Errors>(memory)` also translates its exceptions.
template <error_translation Errors = own_errors, resource Resource>
[[nodiscard]] cuda_resource<Resource, Errors> as_cuda_resource(Resource memory) {
  return cuda_resource<Resource, Errors>(std::move(memory));
}

namespace detail {

/// Makes the device of a driver current for a call: a CCCL resource takes a null handle for the default
/// stream of the device that is current. @throws cuda_error  that device does not exist, on a simulated
/// machine
template <stream_driver D, class Call>
status call_on_device(D const& driver, Call const& call) {
  if constexpr (std::same_as<D, cuda_driver>) {
    on_device const here(driver.device().value);
    return here.entered().ok() ? call() : here.entered();
  } else if constexpr (requires(device_id device) { D::set_current_device(device); }) {
    basic_device_guard<D> const here(driver.device());
    return call();
  } else {
    return call();
  }
}

/// The enclosing class of the calls of a block_source. They are a nested class so that any_resource, as a
/// template argument, is not an associated class: its friends accept anything that converts to it, and
/// checking whether a class around it is swappable would then depend on itself.
template <class CudaResource>
struct cuda_resource_calls {
  struct calls;
};
template <class CudaResource>
struct cuda_resource_calls<CudaResource>::calls {
  using properties = properties_of<CudaResource>;
  static constexpr char const* backend = "a cuda::mr resource";
  static constexpr std::size_t block_alignment = max_alignment;  // it honours each, or the block is refused
  static constexpr bool gives_at_once = true;
  mutable CudaResource options;  ///< CCCL's calls are not const

  // @throws what CCCL's resource throws, if it does not mean that memory ran out
  template <stream_driver D>
  status take(D const& driver, std::size_t bytes, std::size_t alignment, void*& p) const {
    return taken(driver, p, [&] {
#if CCCL_VERSION >= 3001000
      return options.allocate_sync(bytes, alignment);
#else
      return options.allocate(bytes, alignment);
#endif
    });
  }
  template <stream_driver D>
  status give(D const& driver, void* p, std::size_t bytes, std::size_t alignment) const noexcept {
    return call_on_device(driver, [&] {
#if CCCL_VERSION >= 3001000
      options.deallocate_sync(p, bytes, alignment);
#else
      options.deallocate(p, bytes, alignment);
#endif
      return status{};
    });
  }

  template <stream_driver D>
    requires cuda_ordered<CudaResource>
  status take(D const& driver, stream_ref stream, std::size_t bytes, std::size_t alignment, void*& p) const {
    ::cuda::stream_ref const on{static_cast<cudaStream_t>(stream.handle())};
    return taken(driver, p, [&] {
#if CCCL_VERSION >= 3001000
      return options.allocate(on, bytes, alignment);
#else
      return options.allocate_async(bytes, alignment, on);
#endif
    });
  }
  template <stream_driver D>
    requires cuda_ordered<CudaResource>
  status give(D const& driver, stream_ref stream, void* p, std::size_t bytes,
              std::size_t alignment) const noexcept {
    ::cuda::stream_ref const on{static_cast<cudaStream_t>(stream.handle())};
    return call_on_device(driver, [&] {
#if CCCL_VERSION >= 3001000
      options.deallocate(on, p, bytes, alignment);
#else
      options.deallocate_async(p, bytes, alignment, on);
#endif
      return status{};
    });
  }
  template <stream_driver D>
  status give_lost(D const& driver, void* p, std::size_t bytes, std::size_t alignment) const noexcept {
    return free_behind_lost(driver, [&](stream_ref own) { return give(driver, own, p, bytes, alignment); });
  }

 private:
  template <class D, class Take>
  static status taken(D const& driver, void*& p, Take const& take) {
    try {
      return call_on_device(driver, [&] {
        p = take();
        return status{};
      });
    } catch (out_of_memory const&) {
      throw;  // a tarn resource inside: its error has more information
    } catch (std::bad_alloc const&) {
#if CCCL_VERSION >= 2005000  // earlier ones have no such error
    } catch (::cuda::cuda_error const& error) {
      if (!means_out_of_memory(error)) throw;
#endif
    }
    return {failure::out_of_memory, static_cast<int>(cudaErrorMemoryAllocation), "std::bad_alloc", backend};
  }
};

}  // namespace detail

/// A CCCL resource as a tarn source. Holds it by value: pass cuda::mr::any_resource, a reference type, or a
/// handle type. Its CCCL properties describe the memory; the caller supplies the driver of its device, which
/// is current while the resource is called.
///
/// A resource that is not stream-ordered is used like cudaMalloc: deallocate waits on the host for the
/// stream. While a capture forbids that, the block is never given back. Of one that is stream-ordered,
/// streams of other devices are refused. The stream may be destroyed if its identity is known, see
/// block_source.
/// @throws out_of_memory  CCCL's resource throws std::bad_alloc or an out-of-memory cuda_error; others pass
/// through
template <class CudaResource, stream_driver D = cuda_driver>
  requires detail::cuda_blocks<CudaResource> && std::copyable<CudaResource>
using cuda_resource_source = block_source<D, typename detail::cuda_resource_calls<CudaResource>::calls>;

/// Converts a CCCL resource to a tarn resource, so that `from_cuda_resource(r) | pooled{} | tracked{}` works.
/// @param memory  copied: an any_resource, a resource_ref, or another handle
/// @param driver  the driver of the memory's device; used for stream order and messages
template <class CudaResource, stream_driver D>
[[nodiscard]] auto from_cuda_resource(CudaResource memory, D driver) {
  return cuda_resource_source<CudaResource, D>(std::move(driver), {std::move(memory)});
}
/// As above, with a device.
template <class CudaResource>
[[nodiscard]] auto from_cuda_resource(CudaResource memory, device_id device) {
  return from_cuda_resource(std::move(memory), cuda_driver(device));
}
/// As above, with the current device.
template <class CudaResource>
[[nodiscard]] auto from_cuda_resource(CudaResource memory) {
  return from_cuda_resource(std::move(memory), cuda_driver());
}

}  // namespace TARN_NAMESPACE

#undef TARN_HAS_MEMORY_RESOURCE_BASE
