// SPDX-License-Identifier: Apache-2.0
#include "peers/torch.hpp"

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace tarn::bench {

namespace {

namespace pytorch = c10::cuda::CUDACachingAllocator;

constexpr char const* variable = "PYTORCH_CUDA_ALLOC_CONF";
constexpr std::string_view expandable_on = "expandable_segments:True";

}  // namespace

void* torch_allocator::allocate_on(cudaStream_t stream, std::size_t bytes) noexcept {
  try {
    return pytorch::raw_alloc_with_stream(bytes, stream);
  } catch (c10::Error const&) {
    return nullptr;  // c10::OutOfMemoryError
  }
}

void torch_allocator::release(void* block) noexcept {
  pytorch::raw_delete(block);
}

usage torch_allocator::used() const {
  auto const stats = pytorch::getDeviceStats(0);
  return {static_cast<std::uint64_t>(stats.reserved_bytes[0].peak),
          static_cast<std::uint64_t>(stats.num_device_alloc + stats.num_device_free), 0};
}

void torch_allocator::reset_peak() {
  pytorch::resetPeakStats(0);
}

bool torch_allocator::expandable_asked() noexcept {
  char const* const settings = std::getenv(variable);
  return settings != nullptr && std::string_view(settings).find(expandable_on) != std::string_view::npos;
}

torch_allocator::torch_allocator(setup const& s, segments kind) : streams_(s.streams) {
  if (expandable_asked() != (kind == segments::expandable)) {
    throw std::runtime_error(
        kind == segments::expandable
            ? std::string("this pool needs the environment ") + variable + "=" + std::string(expandable_on)
            : std::string("this pool needs ") + variable + " without " + std::string(expandable_on));
  }
  pytorch::init(1);
  pytorch::emptyCache();
  pytorch::resetPeakStats(0);
}

torch_allocator::~torch_allocator() {
  pytorch::emptyCache();
}

}  // namespace tarn::bench
