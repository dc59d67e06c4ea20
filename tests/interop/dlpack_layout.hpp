// SPDX-License-Identifier: Apache-2.0
#pragma once
// The layout that DLPack 1 publishes, since its header may not be here.

#include <cstddef>
#include <cstdint>

namespace dlpack_layout {

enum type_of_device : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, rocm = 10, cuda_managed = 13 };
struct dl_device {
  type_of_device device_type;
  std::int32_t device_id;
};
struct dl_type {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct dl_tensor {
  void* data;
  dl_device device;
  std::int32_t ndim;
  dl_type dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct versioned {
  struct {
    std::uint32_t major;
    std::uint32_t minor;
  } version;
  void* manager_ctx;
  void (*deleter)(versioned* self);
  std::uint64_t flags;
  dlpack_layout::dl_tensor dl_tensor;
};
struct unversioned {
  dlpack_layout::dl_tensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(unversioned* self);
};
static_assert(offsetof(versioned, deleter) == 16 && offsetof(versioned, flags) == 24 &&
              offsetof(versioned, dl_tensor) == 32 && sizeof(dl_tensor) == 48);

}  // namespace dlpack_layout
