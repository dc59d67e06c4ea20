// SPDX-License-Identifier: Apache-2.0
#pragma once
// NanoVDB on tarn: a resource for its temporaries and a buffer for its grids, both over one pool. Written for
// the resources of nanovdb::cuda (NanoVDB 32.9).

#include <nanovdb/HostBuffer.h>
#include <nanovdb/cuda/DeviceResource.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <tarn/tarn.hpp>
#include <utility>

namespace tarn_nanovdb {

/// A stream-ordered resource of NanoVDB (its AsyncResource) over a pool or a stack of tarn. Copies share the
/// pool, so it may be held by value or through nanovdb::cuda::ResourceRef. Thread-safe, as the pool is.
template <class Memory = tarn::device_pool>
class resource {
 public:
  static constexpr std::size_t DEFAULT_ALIGNMENT = 256;

  /// Makes a pool of the current device. nanovdb::cuda::default_resource does so, once for all that name no
  /// resource.
  resource() = default;
  explicit resource(Memory memory) : memory_(std::move(memory)) {}

  [[nodiscard]] void* allocate_async(std::size_t bytes, std::size_t alignment, cudaStream_t stream) {
    return memory_.allocate(stream, bytes, alignment);
  }
  void deallocate_async(void* p, std::size_t bytes, std::size_t alignment, cudaStream_t stream) noexcept {
    memory_.deallocate(stream, p, bytes, alignment);
  }
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) {
    return memory_.allocate_sync(bytes, alignment);
  }
  void deallocate(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    memory_.deallocate_sync(p, bytes, alignment);
  }
  [[nodiscard]] Memory const& memory() const noexcept { return memory_; }

 private:
  Memory memory_;
};
static_assert(nanovdb::cuda::is_async_resource<resource<>>::value);

/// The memory of a nanovdb::GridHandle: a block of the pool on its device, and pinned host memory once it is
/// downloaded or created on the host. Does what nanovdb::cuda::DeviceBuffer does, for one device. Move-only;
/// a moved-from buffer is empty, and names no memory. One thread at a time.
template <class Memory = tarn::device_pool>
class buffer {
  using pinned_pool = decltype(tarn::pinned_host{} | tarn::pooled{});
  using on_device = tarn::device_buffer<std::byte, Memory>;
  using on_host = tarn::pinned_buffer<std::byte, pinned_pool>;

 public:
  /// Constructs an empty buffer. Grids that are created from it lie in the pool of
  /// default_resource<resource<Memory>>().
  buffer() = default;
  /// Constructs an empty buffer. Grids that are created from it lie in this memory: getHandle(points, count,
  /// buffer{pool}).
  explicit buffer(Memory memory) : memory_(std::move(memory)) {}
  explicit buffer(resource<Memory> const& from) : memory_(from.memory()) {}
  buffer(buffer&& other) noexcept { swap(other); }
  buffer& operator=(buffer&& other) noexcept {
    buffer taken(std::move(other));
    swap(taken);
    return *this;
  }
  void swap(buffer& other) noexcept {
    memory_.swap(other.memory_);
    device_.swap(other.device_);
    host_.swap(other.host_);
    std::swap(size_, other.size_);
  }

  /// Allocates for a grid, on the host or on the device of the pool.
  /// @param from  whose memory is used; null, or empty, for that of the default resource
  /// @throws out_of_memory, std::invalid_argument  the pool is of another device
  [[nodiscard]] static buffer create(std::uint64_t bytes, buffer const* from = nullptr,
                                     int device = cudaCpuDeviceId, cudaStream_t stream = nullptr) {
    buffer made(from != nullptr && from->memory_
                    ? *from->memory_
                    : nanovdb::cuda::default_resource<resource<Memory>>().memory());
    made.size_ = bytes;
    if (bytes == 0) return made;
    if (device == cudaCpuDeviceId) {
      made.take_host(stream);
    } else {
      made.take_device(device, stream);
    }
    return made;
  }
  [[nodiscard]] static buffer create(std::uint64_t bytes, buffer const* from, bool host, void* stream) {
    int device = cudaCpuDeviceId;
    if (!host) cudaCheck(cudaGetDevice(&device));
    return create(bytes, from, device, static_cast<cudaStream_t>(stream));
  }

  [[nodiscard]] void* data() const noexcept {
    return host_ ? const_cast<std::byte*>(host_->data()) : nullptr;
  }
  [[nodiscard]] void* deviceData() const noexcept {
    return device_ ? const_cast<std::byte*>(device_->data()) : nullptr;
  }
  [[nodiscard]] void* deviceData(int device) const noexcept {
    return device_ && is_on(device) ? deviceData() : nullptr;
  }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint64_t capacity() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] bool isEmpty() const noexcept { return empty(); }

  /// Holds the grid's memory back, after it is freed, until the work that `stream` has now is done. Needed
  /// for work on other streams than that of create(), as with nanovdb::cuda::DeviceBuffer.
  void recordUse(int, cudaStream_t stream) {
    if (device_) device_->record_stream(stream);
    if (host_) host_->record_stream(stream);
  }

  void deviceUpload(int device, cudaStream_t stream, bool sync = true) {
    if (!host_) throw std::logic_error("tarn_nanovdb: deviceUpload without data on the host");
    require_own(device);
    if (!device_) take_device(device, stream);
    copy(deviceData(), data(), cudaMemcpyHostToDevice, stream, sync);
  }
  void deviceUpload(int device, void* stream, bool sync) {
    deviceUpload(device, static_cast<cudaStream_t>(stream), sync);
  }
  void deviceUpload(void* stream, bool sync) {
    int device = 0;
    cudaCheck(cudaGetDevice(&device));
    deviceUpload(device, static_cast<cudaStream_t>(stream), sync);
  }
  void deviceDownload(void* stream, bool sync) {
    if (!device_) throw std::logic_error("tarn_nanovdb: deviceDownload without data on the device");
    auto const on = static_cast<cudaStream_t>(stream);
    if (!host_) take_host(on);
    copy(data(), deviceData(), cudaMemcpyDeviceToHost, on, sync);
  }
  void deviceDownload(int device, void* stream, bool sync) {
    if (device_) require_own(device);
    deviceDownload(stream, sync);
  }

  /// Frees both blocks, each in the order of its stream; the memory that grids are created from stays the
  /// same.
  void clear() noexcept {
    device_.reset();
    host_.reset();
    size_ = 0;
  }
  void clear(void*) noexcept { clear(); }

 private:
  [[nodiscard]] bool is_on(int device) const noexcept {
    return memory_ && memory_->driver().device() == tarn::device_id{device};
  }
  void require_own(int device) const {
    if (!is_on(device)) throw std::invalid_argument("tarn_nanovdb: the pool is of another device");
  }
  void take_device(int device, cudaStream_t stream) {
    require_own(device);
    device_.emplace(*memory_, size_, stream);
  }
  void take_host(cudaStream_t stream) {
    static pinned_pool pool = tarn::pinned_host{} | tarn::pooled{};
    host_.emplace(pool, size_, tarn::elements::uninitialised, stream);
  }
  void copy(void* to, void const* from, cudaMemcpyKind kind, cudaStream_t stream, bool sync) {
    device_->set_stream(stream);  // waits, on the device, for the work of the stream before
    host_->set_stream(stream);
    cudaCheck(cudaMemcpyAsync(to, from, size_, kind, stream));
    if (sync) cudaCheck(cudaStreamSynchronize(stream));
  }

  std::optional<Memory> memory_;
  std::optional<on_device> device_;
  std::optional<on_host> host_;
  std::uint64_t size_ = 0;
};

}  // namespace tarn_nanovdb

template <class Memory>
struct nanovdb::BufferTraits<tarn_nanovdb::buffer<Memory>> {
  static constexpr bool hasDeviceDual = true;
};
