// SPDX-License-Identifier: Apache-2.0
#pragma once
// tarn/thrust.hpp over the single tarn.hpp, made by .ci/amalgamate.py. Do not edit.
#include "tarn.hpp"
// ---- tarn/thrust.hpp
// Thrust interoperability: an allocator for thrust::device_vector, and execution policies whose temporaries
// come from a pool. Works with each of Thrust's device systems (CUDA, C++, OpenMP, TBB), with CCCL 3.0 and
// newer and with Thrust 1.17; the host systems need host-accessible memory.

#include <thrust/detail/config.h>
#include <thrust/device_ptr.h>
#include <thrust/execution_policy.h>
#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
#include <thrust/system/cuda/execution_policy.h>
#endif

#include <cstddef>
#include <type_traits>
#include <utility>

// Placed before a function template that calls host functions: suppresses nvcc's check in every
// instantiation.
#if defined(__NVCC__)
#define TARN_CALLS_HOST _Pragma("nv_exec_check_disable")
#else
#define TARN_CALLS_HOST
#endif

// The same for functions that the compiler generates.
#if defined(__NVCC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 20011
#endif

namespace TARN_NAMESPACE {

/// An allocator for thrust::device_vector<T, thrust_allocator<T, Resource>>. Propagates on copy, move and
/// swap of vectors. device_vector's own work (filling, copying) runs on the default stream, so blocks are
/// allocated and freed there unless a stream is given; give one only if you order the vector's work on it
/// yourself. Holds its resource. As thread-safe as the resource.
template <class T, class Resource>
class thrust_allocator {
 public:
  using value_type = T;
  using pointer = thrust::device_ptr<T>;
  using const_pointer = thrust::device_ptr<T const>;
  using reference = thrust::device_reference<T>;
  using const_reference = thrust::device_reference<T const>;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  using is_always_equal = std::false_type;
  template <class U>
  struct rebind {
    using other = thrust_allocator<U, Resource>;
  };

  thrust_allocator() = delete;  // pass it to the vector: v(n, tarn::thrust_allocator<T, Pool>(pool))
  // Thrust calls these from host/device functions, though only on the host; hence the annotation.
  TARN_CALLS_HOST
  TARN_HOST_DEVICE thrust_allocator(Resource memory,
                                    stream_ref stream = {})  // NOLINT: a resource is an allocator
      : memory_(std::move(memory)), stream_(stream) {}
  TARN_CALLS_HOST
  TARN_HOST_DEVICE thrust_allocator(thrust_allocator const& other)
      : memory_(other.memory_), stream_(other.stream_) {}
  TARN_CALLS_HOST
  template <class U>
  TARN_HOST_DEVICE thrust_allocator(thrust_allocator<U, Resource> const& other)  // NOLINT: rebinding
      : memory_(other.resource()), stream_(other.stream()) {}
  TARN_CALLS_HOST
  TARN_HOST_DEVICE ~thrust_allocator() {}
  thrust_allocator& operator=(thrust_allocator const&) = default;

  /// Returns the elements of the largest request. Thrust's vectors do not ask for it.
  [[nodiscard]] TARN_HOST_DEVICE constexpr size_type max_size() const noexcept {
    return max_request_bytes / sizeof(T);
  }
  /// @throws length_error   count is above max_size()
  /// @throws out_of_memory
  [[nodiscard]] pointer allocate(size_type count) {
    return pointer(static_cast<T*>(detail::called_from<Resource>(detail::unknown_place(), [&] {
      return memory_.allocate(stream_, checked_bytes(count, sizeof(T)), detail::alignment_of<T>);
    })));
  }
  void deallocate(pointer p, size_type count) noexcept {
    detail::free_block(memory_, stream_, thrust::raw_pointer_cast(p), count * sizeof(T),
                       detail::alignment_of<T>);
  }

  [[nodiscard]] TARN_HOST_DEVICE Resource const& resource() const noexcept { return memory_; }
  [[nodiscard]] TARN_HOST_DEVICE stream_ref stream() const noexcept { return stream_; }

  /// Not a template for equal types: one in the namespace of T would be as good.
  friend bool operator==(thrust_allocator const& a, thrust_allocator const& b) noexcept {
    return a.resource() == b.resource();
  }
  template <class U>
  friend bool operator==(thrust_allocator const& a, thrust_allocator<U, Resource> const& b) noexcept {
    return a.resource() == b.resource();
  }

 private:
  Resource memory_;
  stream_ref stream_;
};

/// Like thrust_allocator, but elements are not initialised: those added by `vector(n)` and `resize(n)` keep
/// the contents of the memory. (Thrust still launches an empty kernel for them; device_buffer does not.)
template <class T, class Resource>
class uninitialised_thrust_allocator : public thrust_allocator<T, Resource> {
 public:
  using thrust_allocator<T, Resource>::thrust_allocator;
  template <class U>
  struct rebind {
    using other = uninitialised_thrust_allocator<U, Resource>;
  };
  template <class U>
  TARN_HOST_DEVICE void construct(U*) {}
};

namespace detail {

/// The allocator that Thrust uses for temporary storage: bytes, in stream order.
template <class Resource>
class thrust_temporaries {
 public:
  using value_type = char;

  thrust_temporaries(Resource memory, stream_ref stream) : memory_(std::move(memory)), stream_(stream) {}
  // Thrust copies its policies, and with them these objects, in host/device functions.
  TARN_CALLS_HOST
  TARN_HOST_DEVICE thrust_temporaries(thrust_temporaries const& other)
      : memory_(other.memory_), stream_(other.stream_) {}
  TARN_CALLS_HOST
  TARN_HOST_DEVICE thrust_temporaries(thrust_temporaries&& other) noexcept
      : memory_(std::move(other.memory_)), stream_(other.stream_) {}
  TARN_CALLS_HOST
  TARN_HOST_DEVICE ~thrust_temporaries() {}
  thrust_temporaries& operator=(thrust_temporaries const&) = delete;
  char* allocate(std::ptrdiff_t bytes) {
    return static_cast<char*>(detail::called_from<Resource>(detail::unknown_place(), [&] {
      return memory_.allocate(stream_, static_cast<std::size_t>(bytes), default_alignment);
    }));
  }
  void deallocate(char* p, std::size_t bytes) noexcept {
    detail::free_block(memory_, stream_, p, bytes, default_alignment);
  }

 private:
  Resource memory_;
  stream_ref stream_;
};

enum class waits { yes, no };

/// Thrust's own policy with an allocator; Thrust copies an allocator that is passed as an rvalue.
template <waits Waits, class Resource>
auto thrust_policy(Resource const& memory, stream_ref stream) {
  using temporaries = thrust_temporaries<Resource>;
#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
  if constexpr (Waits == waits::yes) {
    return thrust::cuda::par(temporaries(memory, stream)).on(stream.get());
  } else {
    return thrust::cuda::par_nosync(temporaries(memory, stream)).on(stream.get());
  }
#else
  return thrust::device(temporaries(memory, stream));
#endif
}

template <waits Waits, class Resource>
using thrust_policy_of = decltype(thrust_policy<Waits>(std::declval<Resource const&>(), stream_ref{}));

}  // namespace detail

/// An execution policy of Thrust's device system whose temporaries come from a resource.
template <detail::waits Waits, class Resource>
class pool_policy : public detail::thrust_policy_of<Waits, Resource> {
  using base = detail::thrust_policy_of<Waits, Resource>;

 public:
  // Not named `stream`, since Thrust's CUDA policy has a member of that name.
  explicit pool_policy(Resource memory, stream_ref s = {})
      : base(detail::thrust_policy<Waits>(memory, s)), memory_(std::move(memory)) {}

  /// Returns the policy on a stream: kernels and temporaries are ordered on it. Host systems run
  /// synchronously.
  [[nodiscard]] pool_policy on(stream_ref s) const { return pool_policy(memory_, s); }

 private:
  Resource memory_;
};

/// `thrust::sort(tarn::par(pool).on(stream), first, last)`: temporaries come from the pool, in stream order.
/// The policy holds the pool. Algorithms synchronise as with Thrust's `par`. O(1).
template <class Resource>
  requires resource<Resource>
[[nodiscard]] auto par(Resource memory) {
  return pool_policy<detail::waits::yes, Resource>(std::move(memory));
}
/// As par(), without the synchronisation that the algorithm's semantics do not need (Thrust's `par_nosync`).
/// No difference for host systems.
template <class Resource>
  requires resource<Resource>
[[nodiscard]] auto par_nosync(Resource memory) {
  return pool_policy<detail::waits::no, Resource>(std::move(memory));
}

}  // namespace TARN_NAMESPACE

#if defined(__NVCC__)
#pragma nv_diagnostic pop
#endif
#undef TARN_CALLS_HOST
