// SPDX-License-Identifier: Apache-2.0
// How the attached tool responds to NVTX's memory extension: the return of each call, for each kind of
// memory, and a kernel that touches a byte in no region. Run it alone and under compute-sanitizer.
//   diagnose KIND    none, malloc, page, pages_apart (a heap each), pages_as_one (one heap over both), async, part
// Of these 2025.3.1 accepts only malloc and part: a watched pool allocates from cudaMalloc
// (pool/pages/pool_growth.hpp).
// With `none` no kernel touches anything. Prints one line.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tarn/driver/cuda_memory_tool.hpp"
#include "tarn/tarn.hpp"

namespace {

template <class Byte>
__global__ void write_byte(Byte* p, Byte value) {
  *p = value;
}

void touch(char const* what, unsigned char* p) {
  write_byte<<<1, 1>>>(p, static_cast<unsigned char>(1));
  cudaError_t const code = cudaDeviceSynchronize();
  std::printf(" %s=%s", what, cudaGetErrorName(code));
}

}  // namespace

int main(int count, char** arguments) {
  char const* const kind = count > 1 ? arguments[1] : "none";
  auto const is = [&](char const* other) { return std::strcmp(kind, other) == 0; };
  std::printf("kind=%s env_before=%s", kind,
              std::getenv("NVTX_INJECTION64_PATH") != nullptr ? "set" : "unset");
  std::printf(" cuda=%s", cudaGetErrorName(cudaFree(nullptr)));
  std::printf(" env=%s", std::getenv("NVTX_INJECTION64_PATH") != nullptr ? "set" : "unset");
#if TARN_HAS_NVTX_MEMORY
  nvtxDomainHandle_t const domain = nvtxDomainCreateA("tarn diagnosis");
  std::printf(" domain=%p", static_cast<void*>(domain));
  std::printf(" permissions=%p", static_cast<void*>(nvtxMemPermissionsCreate(domain, 0)));
#else
  std::printf(" no NVTX memory header");
#endif
  auto const tool = tarn::nvtx_memory::attached();
  std::printf(" attached=%d", static_cast<bool>(tool) ? 1 : 0);

  std::size_t const page = std::size_t{2} << 20;
  unsigned char* p = nullptr;
  std::size_t bytes = 2 * page;
  void* first = nullptr;
  void* second = nullptr;
  if (is("malloc")) {
    cudaMalloc(&p, bytes);
    first = tool.register_heap(p, bytes);
  } else if (is("part")) {
    cudaMalloc(&p, bytes);
    first = tool.register_heap(p, bytes / 2);
  } else if (is("async")) {
    cudaMallocAsync(&p, bytes, nullptr);
    cudaDeviceSynchronize();
    first = tool.register_heap(p, bytes);
  } else if (is("page") || is("pages_apart") || is("pages_as_one")) {
    tarn::cuda_pages pages;
    p = static_cast<unsigned char*>(pages.reserve(bytes));
    pages.map(p, page, pages.create(page));
    pages.map(p + page, page, pages.create(page));
    if (is("page")) bytes = page;
    first = tool.register_heap(p, is("pages_as_one") ? bytes : page);
    if (is("pages_apart")) second = tool.register_heap(p + page, page);
  }
  if (p != nullptr) {
    std::printf(" p=%p heap=%p second=%p", static_cast<void*>(p), first, second);
    std::fflush(stdout);
    tool.register_region(first, p, 1000);
    touch("inside", p);
    touch("outside", p + 1000);
    tool.unregister_region(p);
    touch("after_unregister", p);
    tool.register_region(first, p + 4096, 1000);
    touch("inside_second", p + 4096 + 999);
    tool.reset_heap(first);
    touch("after_reset", p + 4096);
    tool.unregister_heap(first);
  }
  std::printf("\n");
  return 0;
}
