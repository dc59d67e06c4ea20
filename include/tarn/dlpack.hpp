// SPDX-License-Identifier: Apache-2.0
#pragma once
// DLPack interoperability, in both directions: a device_buffer as a tensor for PyTorch, CuPy, JAX and others,
// and their tensors as elements. Opt-in. The types are those of the dlpack.h that the program includes; tarn
// has none of its own.

#include <algorithm>
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/small_float.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/raii/device_buffer.hpp"

namespace TARN_NAMESPACE {

/// A tensor of another library cannot be used as it was asked for.
class dlpack_error : public detail::error_of<std::invalid_argument, 320> {
 public:
  explicit dlpack_error(std::string_view why) { text_.add("tarn: from_dlpack: ").add(why); }
};

/// DLDataType::code of an element type; `bits` is 8 * sizeof(T), `lanes` is 1. Specialize it for types of
/// your own: `template <> inline constexpr int tarn::dlpack_code<__half> = 2;`. -1: not a DLPack type.
template <class T>
inline constexpr int dlpack_code = std::same_as<T, bool>       ? 6
                                   : std::signed_integral<T>   ? 0
                                   : std::unsigned_integral<T> ? 1
                                   : std::floating_point<T>    ? 2
                                                               : -1;
template <>
inline constexpr int dlpack_code<float16> = 2;
template <>
inline constexpr int dlpack_code<bfloat16> = 4;
template <class T>
inline constexpr int dlpack_code<std::complex<T>> = 5;

/// DLManagedTensorVersioned of DLPack 1, or DLManagedTensor of earlier versions.
template <class Tensor>
concept dlpack_tensor = requires(Tensor& t) {
  t.dl_tensor.device.device_type;
  t.dl_tensor.byte_offset;
  t.manager_ctx;
  t.deleter(&t);
};

namespace detail {

// DLDeviceType
inline constexpr int dlpack_cpu = 1;
inline constexpr int dlpack_cuda = 2;
inline constexpr int dlpack_cuda_host = 3;
inline constexpr int dlpack_cuda_managed = 13;

inline constexpr std::uint32_t dlpack_major = 1;
inline constexpr std::uint64_t dlpack_read_only = 1;

/// The product of the sizes of a tensor; nothing if one is negative, or the product of those that are not 0
/// overflows.
inline std::optional<std::size_t> dlpack_product(std::span<std::int64_t const> shape) noexcept {
  constexpr auto most = static_cast<std::uint64_t>((std::numeric_limits<std::int64_t>::max)());
  std::uint64_t product = 1;
  bool is_empty = false;
  for (std::int64_t const n : shape) {
    if (n < 0) return {};
    is_empty = is_empty || n == 0;
    if (n == 0) continue;
    if (product > most / static_cast<std::uint64_t>(n)) return {};
    product *= static_cast<std::uint64_t>(n);
  }
  return is_empty ? 0 : static_cast<std::size_t>(product);
}

/// A tensor and what it shows.
template <class Tensor, class Buffer>
struct dlpack_export {
  Tensor tensor{};
  std::vector<std::int64_t> sizes;  ///< shape, then strides
  std::optional<Buffer> buffer;
};

}  // namespace detail

/// Gives the elements of a buffer away as a tensor whose last index varies fastest:
/// `to_dlpack<DLManagedTensorVersioned>(std::move(buffer), {rows, columns}, stream)`. Its deleter frees the
/// memory in the order of `stream`, on any thread: give the stream of the library that uses the tensor.
/// DLPack does not report which streams used a tensor: work on others must be ordered before the deleter is
/// called.
/// @param shape   its product is buffer.size(); empty: one element without dimensions
/// @param stream  waits, on the device, for the buffer's stream if that is another one. Of Python's
///                __dlpack__(stream=n): stream_ref::from(reinterpret_cast<void*>(n)), and buffer.stream() for -1
/// @throws length_error  the shape has another number of elements; cuda_error, std::bad_alloc: the buffer is
///                       unchanged
/// Never waits on the host. Three small host allocations.
template <dlpack_tensor Tensor, class T, class Resource>
[[nodiscard]] Tensor* to_dlpack(device_buffer<T, Resource>&& buffer, std::vector<std::int64_t> shape,
                                stream_ref stream, source_location where = source_location::current()) {
  static_assert(dlpack_code<T> >= 0 && sizeof(T) <= 16,
                "tarn: DLPack has no such type; specialize tarn::dlpack_code<T>");
  static_assert(!has_property<Resource, device_accessible> || !has_property<Resource, host_accessible>,
                "tarn: to_dlpack needs memory of the device alone or of the host alone: DLPack names pinned "
                "and managed memory apart, and the type of this resource does not");
  if (detail::dlpack_product(shape) != buffer.size())
    throw detail::at(where,
                     length_error("tarn: to_dlpack: the product of the shape is not the buffer's size"));
  auto const& driver = detail::required(buffer.resource(), where).driver();
  using made_type = detail::dlpack_export<Tensor, device_buffer<T, Resource>>;
  auto made = std::make_unique<made_type>();
  std::size_t const rank = shape.size();
  made->sizes = std::move(shape);
  made->sizes.resize(2 * rank);
  std::int64_t stride = 1;
  for (std::size_t i = rank; i-- > 0;) {
    made->sizes[rank + i] = stride;
    stride *= made->sizes[i];
  }
  buffer.set_stream(stream, where);

  Tensor& out = made->tensor;
  if constexpr (requires { out.version.major; }) out.version.major = detail::dlpack_major;
  out.manager_ctx = made.get();
  out.deleter = [](Tensor* self) { delete static_cast<made_type*>(self->manager_ctx); };
  auto& tensor = out.dl_tensor;
  constexpr bool on_device = has_property<Resource, device_accessible>;
  tensor.device.device_type = static_cast<std::remove_cvref_t<decltype(tensor.device.device_type)>>(
      on_device ? detail::dlpack_cuda : detail::dlpack_cpu);
  tensor.device.device_id = on_device ? driver.device().value : 0;
  tensor.ndim = static_cast<std::int32_t>(rank);
  tensor.dtype.code = static_cast<std::uint8_t>(dlpack_code<T>);
  tensor.dtype.bits = static_cast<std::uint8_t>(8 * sizeof(T));
  tensor.dtype.lanes = 1;
  tensor.shape = made->sizes.data();
  tensor.strides = made->sizes.data() + rank;
  tensor.data = buffer.empty() ? nullptr : buffer.data();
  made->buffer.emplace(std::move(buffer));
  return &made.release()->tensor;
}

/// The elements of another library's tensor, in its memory. Its destructor calls the tensor's deleter, which
/// may free the memory at once: by then, work that uses the elements is complete, or ordered before later
/// work of the producer's stream. A moved-from object has no elements. One thread at a time.
template <class T, dlpack_tensor Tensor>
class dlpack_elements {
 public:
  /// As from_dlpack(). @param types  the DLDeviceType that are accepted
  dlpack_elements(Tensor* tensor, std::initializer_list<int> types, std::optional<device_id> device,
                  source_location where)
      : tensor_(tensor) {
    if (tensor == nullptr) refuse("there is no tensor", where);
    if constexpr (requires { tensor->version.major; }) {
      // Of another major version only the fields before this line have their places.
      if (tensor->version.major != detail::dlpack_major) refuse("the tensor is not of DLPack 1", where);
    }
    if constexpr (requires { tensor->flags; }) {
      if (!std::is_const_v<T> && (tensor->flags & detail::dlpack_read_only) != 0)
        refuse("the tensor is read-only; ask for const elements", where);
    }
    auto const& t = tensor->dl_tensor;
    auto const type = static_cast<int>(t.device.device_type);
    if (std::find(types.begin(), types.end(), type) == types.end())
      refuse("the tensor is not in memory of this kind", where);
    if (device && type == detail::dlpack_cuda && t.device.device_id != device->value)
      refuse("the tensor is on another device", where);
    if (t.dtype.code != dlpack_code<std::remove_const_t<T>> || t.dtype.bits != 8 * sizeof(T) ||
        t.dtype.lanes != 1)
      refuse("the tensor has elements of another type", where);
    if (t.ndim < 0 || (t.ndim > 0 && t.shape == nullptr)) refuse("the tensor has no shape", where);
    auto const rank = static_cast<std::size_t>(t.ndim);
    auto const size = detail::dlpack_product(std::span<std::int64_t const>(t.shape, rank));
    if (!size || *size > max_request_bytes / sizeof(T)) refuse("the tensor's shape is not a size", where);
    std::int64_t stride = 1;
    for (std::size_t i = rank; *size > 1 && t.strides != nullptr && i-- > 0;) {
      if (t.shape[i] != 1 && t.strides[i] != stride)
        refuse("the tensor's rows are not contiguous; make a contiguous copy of it", where);
      stride *= t.shape[i];
    }
    if (*size == 0) return;
    if (t.data == nullptr) refuse("the tensor has no memory", where);
    auto const begin = reinterpret_cast<std::uintptr_t>(t.data) + static_cast<std::uintptr_t>(t.byte_offset);
    if (begin % alignof(T) != 0) refuse("the tensor's elements are not aligned", where);
    elements_ = std::span<T>(reinterpret_cast<T*>(begin), *size);
  }
  dlpack_elements(dlpack_elements&& other) noexcept
      : tensor_(std::move(other.tensor_)), elements_(detail::exchange(other.elements_, std::span<T>())) {}
  dlpack_elements& operator=(dlpack_elements&& other) noexcept {
    tensor_ = std::move(other.tensor_);
    elements_ = detail::exchange(other.elements_, std::span<T>());
    return *this;
  }

  [[nodiscard]] std::span<T> span() const noexcept { return elements_; }
  [[nodiscard]] T* data() const noexcept { return elements_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  [[nodiscard]] std::span<std::int64_t const> shape() const noexcept {
    if (tensor_ == nullptr) return {};
    auto const& t = tensor_->dl_tensor;
    return std::span<std::int64_t const>(t.shape, static_cast<std::size_t>(t.ndim));
  }

 private:
  struct call_deleter {
    void operator()(Tensor* tensor) const noexcept {
      if (tensor->deleter != nullptr) tensor->deleter(tensor);
    }
  };

  [[noreturn]] static void refuse(char const* why, source_location where) {
    throw detail::at(where, dlpack_error(why));
  }

  std::unique_ptr<Tensor, call_deleter> tensor_;
  std::span<T> elements_;
};

/// Takes over a tensor in the memory of a device: `from_dlpack<float>(tensor, pool.device())`. T is const for
/// a tensor that may be read-only. The producer must have ordered its work before that of your stream, as
/// Python's __dlpack__(stream=...) asks it to. @throws dlpack_error  the tensor is of another version, device
/// or type, has gaps between its elements, or is not aligned; its deleter was called, as always
template <class T, dlpack_tensor Tensor>
[[nodiscard]] dlpack_elements<T, Tensor> from_dlpack(Tensor* tensor, device_id device,
                                                     source_location where = source_location::current()) {
  return {tensor, {detail::dlpack_cuda, detail::dlpack_cuda_managed}, device, where};
}
/// Takes over a tensor in memory that the host can read, likewise.
template <class T, dlpack_tensor Tensor>
[[nodiscard]] dlpack_elements<T, Tensor> from_dlpack(Tensor* tensor,
                                                     source_location where = source_location::current()) {
  return {tensor, {detail::dlpack_cpu, detail::dlpack_cuda_host, detail::dlpack_cuda_managed}, {}, where};
}

}  // namespace TARN_NAMESPACE
