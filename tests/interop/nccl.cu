// SPDX-License-Identifier: Apache-2.0
// Blocks of several handles registered with a communicator of NCCL, on one GPU and, where there are two, on both.

#include "tarn/nccl.hpp"

#include "contract/cuda_device.hpp"
#include "tarn/tarn.hpp"

#if TARN_HAS_NCCL && !TARN_WITHOUT_NCCL

#include <cstddef>
#include <iterator>
#include <list>
#include <string>
#include <vector>

using namespace tarn;
using tarn_test::has_cuda_devices;

namespace nccl_test {

/// A communicator of each of the first devices, in this process.
class communicators {
 public:
  explicit communicators(int devices) : all_(static_cast<std::size_t>(devices)) {
    REQUIRE(ncclCommInitAll(all_.data(), devices, nullptr) == ncclSuccess);
  }
  communicators(communicators const&) = delete;
  communicators& operator=(communicators const&) = delete;
  ~communicators() {
    for (ncclComm_t const c : all_) (void)ncclCommDestroy(c);
  }
  ncclComm_t operator[](int i) const { return all_[static_cast<std::size_t>(i)]; }

 private:
  std::vector<ncclComm_t> all_;
};

__global__ void fill(float* p, std::size_t count, float value) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += gridDim.x * std::size_t{blockDim.x})
    p[i] = value + static_cast<float>(i % 1024);
}
__global__ void compare(float const* p, std::size_t count, float value, float times,
                        unsigned long long* wrong) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += gridDim.x * std::size_t{blockDim.x})
    if (p[i] != value + times * static_cast<float>(i % 1024)) atomicAdd(wrong, 1ull);
}

using pool_type = decltype(cuda_pages{} | pooled{} | tracked{});

struct rank {
  explicit rank(int device)
      : stream(cuda_driver{device_id{device}}),
        pool(cuda_pages{device_id{device}} | pooled{.largest_handle = 4_MiB} | tracked{}),
        gradients(make_device_buffer<float>(pool, count, stream)),
        wrong(make_device_buffer<unsigned long long>(pool, 1, stream)) {}
  static constexpr std::size_t count = 128_MiB / sizeof(float);
  basic_stream<cuda_driver> stream;
  pool_type pool;
  device_buffer<float, pool_type> gradients;
  device_buffer<unsigned long long, pool_type> wrong;
};

/// An all-reduce over so many devices, in place, in blocks of 32 handles.
inline void all_reduce(int devices) {
  communicators const comms(devices);
  std::list<rank> ranks;
  std::vector<nccl_registrations<pool_type>> registered;
  float sum = 0;
  for (int d = 0; d < devices; ++d) {
    device_guard const on(device_id{d});
    rank& r = ranks.emplace_back(d);
    registered.push_back(register_with_nccl(r.pool, comms[d]));
    sum += static_cast<float>(d + 1);
  }
  for (int round = 0; round < 3; ++round) {
    for (int d = 0; d < devices; ++d) {
      device_guard const on(device_id{d});
      rank& r = *std::next(ranks.begin(), d);
      (void)registered[static_cast<std::size_t>(d)].ensure(r.gradients.data(), rank::count * sizeof(float));
      fill<<<256, 256, 0, r.stream.get()>>>(r.gradients.data(), rank::count, static_cast<float>(d + 1));
    }
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (int d = 0; d < devices; ++d) {
      rank& r = *std::next(ranks.begin(), d);
      REQUIRE(ncclAllReduce(r.gradients.data(), r.gradients.data(), rank::count, ncclFloat, ncclSum, comms[d],
                            r.stream.get()) == ncclSuccess);
    }
    REQUIRE(ncclGroupEnd() == ncclSuccess);
    for (int d = 0; d < devices; ++d) {
      device_guard const on(device_id{d});
      rank& r = *std::next(ranks.begin(), d);
      unsigned long long found = 0;
      REQUIRE(cudaMemsetAsync(r.wrong.data(), 0, sizeof found, r.stream.get()) == cudaSuccess);
      compare<<<256, 256, 0, r.stream.get()>>>(r.gradients.data(), rank::count, sum,
                                               static_cast<float>(devices), r.wrong.data());
      REQUIRE(cudaMemcpyAsync(&found, r.wrong.data(), sizeof found, cudaMemcpyDeviceToHost, r.stream.get()) ==
              cudaSuccess);
      REQUIRE(cudaStreamSynchronize(r.stream.get()) == cudaSuccess);
      CHECK(found == 0);
      // Warm from the second round on, and nothing that the pool gives back is registered.
      CHECK(registered[static_cast<std::size_t>(d)].added() == 1);
      empty_cache(r.pool);
    }
  }
  registered.clear();
}

}  // namespace nccl_test

TEST_CASE("an all-reduce of NCCL runs on a registered block of many handles", "[interop][nccl][cuda]") {
  if (!has_cuda_devices() || !cuda_pages{}.has_pages() || cuda_driver{}.memory_tool()) return;
  nccl_test::all_reduce(1);
}
TEST_CASE("an all-reduce of NCCL on two devices runs on registered blocks of many handles",
          "[interop][nccl][cuda]") {
  if (!has_cuda_devices(2) || !cuda_pages{}.has_pages() || cuda_driver{}.memory_tool()) return;
  nccl_test::all_reduce(2);
}

TEST_CASE("nccl_error names the call, the error and what to do", "[interop][nccl][cuda]") {
  nccl_error const error(ncclInvalidUsage, "ncclCommRegister", nullptr);
  CHECK(error.code() == ncclInvalidUsage);
  std::string const text = error.what();
  CHECK(text.starts_with("tarn: ncclCommRegister failed: "));
  CHECK(text.find("; ") != text.npos);
}

#endif
