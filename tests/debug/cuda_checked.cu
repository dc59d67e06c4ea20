// SPDX-License-Identifier: Apache-2.0
// debug/checked on CUDA: errors of kernels are reported, correct work is not.

#include <string>
#include <vector>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/tarn.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;
using tarn_test::keep_busy;

namespace cuda_checked_test {

template <class Byte>
__global__ void write_at(Byte* p, long offset) {
  p[offset] = Byte{1};
}
static void write_byte(void* p, long offset, stream_ref stream) {
  write_at<<<1, 1, 0, stream.get()>>>(static_cast<unsigned char*>(p), offset);
}

struct reported {
  static std::vector<misuse_kind>& kinds() {
    static std::vector<misuse_kind> all;
    return all;
  }
  reported() : before(set_misuse_handler([](misuse const& m) { kinds().push_back(m.kind()); })) {
    kinds().clear();
  }
  ~reported() { (void)set_misuse_handler(before); }
  misuse_handler before;
};

}  // namespace cuda_checked_test
using namespace cuda_checked_test;

TEST_CASE("checked on CUDA meets the resource contract and reports nothing in it", "[policy][cuda]") {
  if (!has_cuda_devices()) return;
  reported const t;
  tarn_test::resource_contract([] { return cuda_pages{} | pooled{} | checked{}; });
  CHECK(reported::kinds().empty());
}

TEST_CASE("checked on CUDA reports kernels that write past an end or after the free", "[policy][cuda]") {
  if (!has_cuda_devices()) return;
  reported const t;
  // The intended writes pass a sanitizer: fences and quarantine are live blocks of the pool below.
  basic_stream<cuda_driver> const a{cuda_driver{}};
  basic_stream<cuda_driver> const b{cuda_driver{}};
  {
    auto memory = cuda_pages{} | pooled{} | checked{};
    void* const p = memory.allocate(a, 1000);
    REQUIRE(keep_busy(a, 20));
    write_byte(p, 1000, a);
    memory.deallocate(a, p, 1000);  // waits for the kernel
    CHECK(reported::kinds() == std::vector{misuse_kind::overrun});
    void* const q = memory.allocate(a, 3_MiB);
    write_byte(q, -1, b);
    b.synchronize();
    CHECK(memory->check_all() == 1);
    memory.deallocate(a, q, 3_MiB);
    CHECK(reported::kinds().size() == 3);
    write_byte(q, 2'000'000, b);
    b.synchronize();
    CHECK(memory->check_all() == 1);
    CHECK(reported::kinds().back() == misuse_kind::use_after_free);
    reported::kinds().clear();
    memory.deallocate(a, q, 3_MiB);
    CHECK(reported::kinds() == std::vector{misuse_kind::double_free});
    (void)memory.allocate(a, 10);
    reported::kinds().clear();
  }
  REQUIRE(reported::kinds().size() == 2);  // q left the quarantine and its late write was found
  CHECK(reported::kinds()[0] == misuse_kind::use_after_free);
  CHECK(reported::kinds()[1] == misuse_kind::leak);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("checked on CUDA adds no node to a captured graph", "[policy][cuda]") {
  if (!has_cuda_devices()) return;
  reported const t;
  basic_stream<cuda_driver> const a{cuda_driver{}};
  auto memory = cuda_pages{} | pooled{} | checked{};
  void* const before = memory.allocate(a, 1000);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(a.ref().get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  void* const p = memory.allocate(a, 1000);
  write_byte(p, 999, a);
  memory.deallocate(a, p, 1000);
  memory.deallocate(a, before, 1000);
  REQUIRE(cudaStreamEndCapture(a.ref().get(), &graph) == cudaSuccess);
  std::size_t nodes = 0;
  REQUIRE(cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
  CHECK(nodes == 1);
  cudaGraphDestroy(graph);
  CHECK(reported::kinds().empty());
  CHECK(cudaGetLastError() == cudaSuccess);
}
