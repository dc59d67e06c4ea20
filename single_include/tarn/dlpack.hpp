// SPDX-License-Identifier: Apache-2.0
#pragma once
// tarn/dlpack.hpp over the single tarn.hpp, made by .ci/amalgamate.py. Do not edit.
#include "tarn.hpp"
// ---- tarn/dlpack.hpp
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

// ---- tarn/core/small_float.hpp
#ifndef TARN_SINGLE_CORE_SMALL_FLOAT_HPP
#define TARN_SINGLE_CORE_SMALL_FLOAT_HPP
// float16, bfloat16, float8_e4m3, float8_e5m2: storage types for numbers, without arithmetic. The conversions
// work on bit patterns: rounding to nearest even to a narrower format, and exact widening.

#include <cstdint>
#include <type_traits>

namespace TARN_NAMESPACE {

/// The meaning of a format's largest exponent.
enum class top_exponent : std::uint8_t {
  infinity_and_nan,  ///< as in IEEE 754
  numbers_and_nan    ///< numbers, except the last pattern, which is NaN: the OCP formats marked FN
};

/// The result of converting a value that is too large, infinities included.
enum class overflow : std::uint8_t {
  to_infinity,
  to_largest  ///< the largest number of the same sign, as cuda_fp8's types do (__NV_SATFINITE)
};

/// What a format consists of: a sign, an exponent, and a mantissa without its leading bit.
template <class Bits, int ExponentBits, int MantissaBits, overflow OnOverflow = overflow::to_infinity,
          top_exponent Top = top_exponent::infinity_and_nan>
struct float_format {
  using bits_type = Bits;
  static constexpr int exponent_bits = ExponentBits;
  static constexpr int mantissa_bits = MantissaBits;
  static constexpr overflow on_overflow = OnOverflow;
  static constexpr top_exponent top = Top;
};

/// IEEE 754 binary32, the format of float.
struct binary32 : float_format<std::uint32_t, 8, 23> {};
/// IEEE 754 binary64, the format of double.
struct binary64 : float_format<std::uint64_t, 11, 52> {};
/// IEEE 754 binary16: 11 significant bits, up to 65,504.
struct binary16 : float_format<std::uint16_t, 5, 10> {};
/// The upper half of a binary32: 8 significant bits, the range of float.
struct brain16 : float_format<std::uint16_t, 8, 7> {};
/// OCP E4M3 (FN): 4 significant bits, up to 448, no infinities.
struct ocp_e4m3 : float_format<std::uint8_t, 4, 3, overflow::to_largest, top_exponent::numbers_and_nan> {};
/// OCP E5M2: 3 significant bits, up to 57,344. It has infinities, but no conversion produces one.
struct ocp_e5m2 : float_format<std::uint8_t, 5, 2, overflow::to_largest> {};

namespace detail {

/// Constants derived from a format.
template <class Format>
struct format_of {
  using bits_type = typename Format::bits_type;
  static constexpr int sign_at = Format::exponent_bits + Format::mantissa_bits;
  static constexpr int bias = (1 << (Format::exponent_bits - 1)) - 1;
  static constexpr int top_field = (1 << Format::exponent_bits) - 1;
  static constexpr bool has_infinity = Format::top == top_exponent::infinity_and_nan;
  static constexpr std::uint64_t mantissa_mask = (std::uint64_t{1} << Format::mantissa_bits) - 1;
  static constexpr std::uint64_t infinity = std::uint64_t{top_field} << Format::mantissa_bits;
  static constexpr std::uint64_t largest = has_infinity ? infinity - 1 : (infinity | mantissa_mask) - 1;
  /// The NaN that conversions produce, all bits set except the sign, as in CUDA.
  static constexpr std::uint64_t nan = (std::uint64_t{1} << sign_at) - 1;
};

/// Returns the pattern of To nearest to a pattern of From, ties to even. Every NaN becomes To's single NaN.
template <class To, class From>
[[nodiscard]] TARN_HOST_DEVICE constexpr typename To::bits_type narrowed(
    typename From::bits_type bits) noexcept {
  using to = format_of<To>;
  using from = format_of<From>;
  using word = typename From::bits_type;
  static_assert(To::mantissa_bits < From::mantissa_bits && To::exponent_bits <= From::exponent_bits);
  constexpr int m = From::mantissa_bits;
  constexpr int dropped = m - To::mantissa_bits;
  auto const sign = static_cast<word>(bits >> from::sign_at);
  auto const field = static_cast<int>((bits >> m) & static_cast<word>(from::top_field));
  auto mantissa = static_cast<word>(bits & static_cast<word>(from::mantissa_mask));
  auto const signed_as = [sign](word magnitude) {
    return static_cast<typename To::bits_type>(magnitude | static_cast<word>(sign << to::sign_at));
  };
  if (field == from::top_field) {
    if (mantissa != 0) return static_cast<typename To::bits_type>(to::nan);
    return signed_as(
        static_cast<word>(To::on_overflow == overflow::to_infinity ? to::infinity : to::largest));
  }
  // The value is mantissa * 2^(exponent - m); `steps` is the distance of the exponent from To's smallest one.
  if (field != 0) mantissa = static_cast<word>(mantissa | word{1} << m);
  int const exponent = (field != 0 ? field : 1) - from::bias;
  int const steps = exponent - (1 - to::bias);
  int shift = dropped;
  if (steps < 0)
    shift = -steps < m + 2 - dropped ? dropped - steps : m + 2;  // larger shifts also round to zero
  auto const half = static_cast<word>(word{1} << (shift - 1));
  auto const kept = static_cast<word>(mantissa >> shift);
  auto rounded = static_cast<word>((mantissa + (half - 1) + (kept & 1U)) >> shift);
  // A carry into the exponent is correct, and so is adding the leading one of a normal number.
  if (steps > 0) rounded = static_cast<word>(rounded + (static_cast<word>(steps) << To::mantissa_bits));
  if (rounded > static_cast<word>(to::largest)) {
    rounded = static_cast<word>(To::on_overflow == overflow::to_infinity ? to::infinity : to::largest);
  }
  return signed_as(rounded);
}

/// Returns the binary32 pattern with exactly this value. A NaN keeps its sign and payload and becomes quiet.
template <class From>
[[nodiscard]] TARN_HOST_DEVICE constexpr std::uint32_t widened(typename From::bits_type bits) noexcept {
  using from = format_of<From>;
  constexpr int m = From::mantissa_bits;
  constexpr int up = binary32::mantissa_bits - m;
  auto const word = static_cast<std::uint32_t>(bits);
  std::uint32_t const sign = word >> from::sign_at << 31;
  std::uint32_t mantissa = word & static_cast<std::uint32_t>(from::mantissa_mask);
  int const field = static_cast<int>(word >> m) & from::top_field;
  constexpr std::uint32_t top = 0x7f80'0000;
  constexpr std::uint32_t quiet = 0x0040'0000;
  bool const is_nan = from::has_infinity ? field == from::top_field && mantissa != 0
                                         : (word & static_cast<std::uint32_t>(from::nan)) == from::nan;
  if (is_nan) return sign | top | quiet | mantissa << up;
  if (from::has_infinity && field == from::top_field) return sign | top;
  constexpr int rebias = format_of<binary32>::bias - from::bias;
  if (field != 0 || rebias == 0)
    return sign | static_cast<std::uint32_t>(field + rebias) << 23 | mantissa << up;
  if (mantissa == 0) return sign;
  int exponent = rebias + 1;
  while ((mantissa >> m) == 0) {  // at most m steps: subnormal in From, normal in binary32
    mantissa <<= 1;
    --exponent;
  }
  return sign | static_cast<std::uint32_t>(exponent) << 23 |
         (mantissa & static_cast<std::uint32_t>(from::mantissa_mask)) << up;
}

}  // namespace detail

/// A number stored in 1 or 2 bytes, on host and device; bit-compatible with CUDA's type of the same format
/// (__half,
/// __nv_bfloat16, __nv_fp8_e4m3, __nv_fp8_e5m2). Convert to float, calculate, convert back: both conversions
/// are explicit. Rounds to nearest even, from double in one step; keeps -0.0, subnormals and NaN (one NaN per
/// format; its sign and payload are lost). Values that are too large, including infinities, become infinity
/// in the 16-bit formats and the largest number in the 8-bit ones. Trivially copyable; uninitialised by
/// default, zero when value-initialised.
template <class Format>
class basic_float {
 public:
  using format = Format;
  using bits_type = typename Format::bits_type;

  basic_float() = default;
  TARN_HOST_DEVICE explicit constexpr basic_float(float value) noexcept
      : bits_(detail::narrowed<Format, binary32>(__builtin_bit_cast(std::uint32_t, value))) {}
  /// A template, so that integers convert through float without ambiguity.
  template <class Double>
    requires std::is_same_v<Double, double>
  TARN_HOST_DEVICE explicit constexpr basic_float(Double value) noexcept
      : bits_(detail::narrowed<Format, binary64>(__builtin_bit_cast(std::uint64_t, value))) {}
  /// Converts from another of these formats, with one rounding.
  template <class Other>
  TARN_HOST_DEVICE explicit constexpr basic_float(basic_float<Other> other) noexcept
      : basic_float(static_cast<float>(other)) {}

  /// Returns the number with this bit pattern.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr basic_float from_bits(bits_type bits) noexcept {
    basic_float made{};
    made.bits_ = bits;
    return made;
  }
  [[nodiscard]] TARN_HOST_DEVICE constexpr bits_type bits() const noexcept { return bits_; }

  /// Exact conversion.
  [[nodiscard]] TARN_HOST_DEVICE explicit constexpr operator float() const noexcept {
    return __builtin_bit_cast(float, detail::widened<Format>(bits_));
  }
  [[nodiscard]] TARN_HOST_DEVICE explicit constexpr operator double() const noexcept {
    return static_cast<double>(static_cast<float>(*this));
  }

  /// The largest number.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr basic_float largest() noexcept {
    return from_bits(static_cast<bits_type>(detail::format_of<Format>::largest));
  }
  /// The smallest positive number, which is subnormal.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr basic_float smallest() noexcept { return from_bits(1); }
  /// The smallest positive number with full precision.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr basic_float smallest_normal() noexcept {
    return from_bits(static_cast<bits_type>(1U << Format::mantissa_bits));
  }
  /// Distance from 1 to the next larger number; the relative rounding error is at most half of it.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr float epsilon() noexcept {
    return 1.0F / static_cast<float>(1U << Format::mantissa_bits);
  }

  /// Compares as numbers: NaN is unequal to everything, and both zeros are equal.
  [[nodiscard]] friend TARN_HOST_DEVICE constexpr bool operator==(basic_float a, basic_float b) noexcept {
    return static_cast<float>(a) == static_cast<float>(b);
  }

 private:
  bits_type bits_;
};

using float16 = basic_float<binary16>;
using bfloat16 = basic_float<brain16>;
using float8_e4m3 = basic_float<ocp_e4m3>;
using float8_e5m2 = basic_float<ocp_e5m2>;

static_assert(std::is_trivially_copyable_v<float16> && std::is_trivially_default_constructible_v<float16>);
static_assert(sizeof(float16) == 2 && sizeof(bfloat16) == 2 && sizeof(float8_e4m3) == 1 &&
              sizeof(float8_e5m2) == 1);

}  // namespace TARN_NAMESPACE
#endif  // TARN_SINGLE_CORE_SMALL_FLOAT_HPP

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
