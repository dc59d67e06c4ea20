// SPDX-License-Identifier: Apache-2.0
// Blocks registered with a communicator of NCCL, on one GPU and, where there are two, on both.

#include "tarn/nccl.hpp"

#include "contract/cuda_pages.hpp"
#include "tarn/tarn.hpp"

#if TARN_HAS_NCCL && !TARN_WITHOUT_NCCL

#include <cstddef>
#include <iterator>
#include <list>
#include <string>
#include <vector>

using namespace tarn;
using tarn_test::has_cuda_devices;
using tarn_test::has_cuda_pages;

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
        pool(cuda_pages{device_id{device}} | pooled{.handles = handles_per_block::one} | tracked{}),
        gradients(make_device_buffer<float>(pool, count, stream)),
        wrong(make_device_buffer<unsigned long long>(pool, 1, stream)) {}
  static constexpr std::size_t count = 128_MiB / sizeof(float);
  basic_stream<cuda_driver> stream;
  pool_type pool;
  device_buffer<float, pool_type> gradients;
  device_buffer<unsigned long long, pool_type> wrong;
};

/// An all-reduce over so many devices, in place.
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

/// All-gathers into several blocks, each in a handle of its own. They are large enough for NCCL to write into
/// the registered memory of the other device.
inline void gather_into_each_handle(int devices) {
  constexpr std::size_t blocks = 4;
  constexpr std::size_t gathered = 32_MiB / sizeof(float);  // of all devices together
  std::size_t const part = gathered / static_cast<std::size_t>(devices);
  communicators const comms(devices);
  struct member {
    explicit member(int device)
        : stream(cuda_driver{device_id{device}}),
          pool(cuda_pages{device_id{device}} | pooled{.handles = handles_per_block::one} | tracked{}),
          own(make_device_buffer<float>(pool, gathered, stream)),
          wrong(make_device_buffer<unsigned long long>(pool, 1, stream)) {
      for (std::size_t b = 0; b < blocks; ++b)
        all.push_back(make_device_buffer<float>(pool, gathered, stream));
    }
    basic_stream<cuda_driver> stream;
    pool_type pool;
    std::vector<device_buffer<float, pool_type>> all;
    device_buffer<float, pool_type> own;
    device_buffer<unsigned long long, pool_type> wrong;
  };
  std::list<member> members;
  std::vector<nccl_registrations<pool_type>> registered;
  for (int d = 0; d < devices; ++d) {
    device_guard const on(device_id{d});
    member& m = members.emplace_back(d);
    auto& r = registered.emplace_back(register_with_nccl(m.pool, comms[d]));
    for (auto const& buffer : m.all) {
      (void)r.ensure(buffer.data(), gathered * sizeof(float));
      fill<<<256, 256, 0, m.stream.get()>>>(const_cast<float*>(buffer.data()), gathered, -1);
    }
    (void)r.ensure(m.own.data(), gathered * sizeof(float));
    CHECK(r.size() >= 2);
    REQUIRE(cudaMemsetAsync(m.wrong.data(), 0, sizeof(unsigned long long), m.stream.get()) == cudaSuccess);
  }
  for (std::size_t b = 0; b < blocks; ++b) {
    for (int d = 0; d < devices; ++d) {
      device_guard const on(device_id{d});
      member& m = *std::next(members.begin(), d);
      fill<<<256, 256, 0, m.stream.get()>>>(m.own.data(), part, static_cast<float>(100 * b + d));
    }
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (int d = 0; d < devices; ++d) {
      member& m = *std::next(members.begin(), d);
      REQUIRE(ncclAllGather(m.own.data(), m.all[b].data(), part, ncclFloat, comms[d], m.stream.get()) ==
              ncclSuccess);
    }
    REQUIRE(ncclGroupEnd() == ncclSuccess);
  }
  for (int d = 0; d < devices; ++d) {
    device_guard const on(device_id{d});
    member& m = *std::next(members.begin(), d);
    for (std::size_t b = 0; b < blocks; ++b) {
      for (int from = 0; from < devices; ++from) {
        compare<<<256, 256, 0, m.stream.get()>>>(m.all[b].data() + static_cast<std::size_t>(from) * part,
                                                 part, static_cast<float>(100 * b + from), 1, m.wrong.data());
      }
    }
    unsigned long long found = 0;
    REQUIRE(cudaMemcpyAsync(&found, m.wrong.data(), sizeof found, cudaMemcpyDeviceToHost, m.stream.get()) ==
            cudaSuccess);
    REQUIRE(cudaStreamSynchronize(m.stream.get()) == cudaSuccess);
    CHECK(found == 0);
  }
  registered.clear();
}

}  // namespace nccl_test

TEST_CASE("an all-reduce of NCCL runs on a registered block", "[interop][nccl][cuda]") {
  if (!has_cuda_pages()) return;
  nccl_test::all_reduce(1);
}
TEST_CASE("an all-reduce of NCCL on two devices runs on registered blocks", "[interop][nccl][cuda]") {
  if (!has_cuda_pages(2)) return;
  nccl_test::all_reduce(2);
}

TEST_CASE("what NCCL gathers into several registered blocks arrives in each", "[interop][nccl][cuda]") {
  if (!has_cuda_devices(2)) return;
  if (static_cast<bool>(cuda_driver{}.memory_tool())) {
    WARN("skipped, nothing was tested: with a memory tool the pool uses no pages, so there are no handles");
    return;
  }
  nccl_test::gather_into_each_handle(2);
}

TEST_CASE("register_with_nccl refuses a pool whose blocks may lie in several handles",
          "[interop][nccl][cuda]") {
  if (!has_cuda_devices()) return;
  nccl_test::communicators const comms(1);
  device_pool const pool;
  try {
    (void)register_with_nccl(pool, comms[0]);
    FAIL("it was taken");
  } catch (cuda_error const& error) {
    CHECK(error.kind() == failure::unsupported);
  }
}

TEST_CASE("nccl_error names the call, the error and what to do", "[interop][nccl][cuda]") {
  nccl_error const error(ncclInvalidUsage, "ncclCommRegister", nullptr);
  CHECK(error.code() == ncclInvalidUsage);
  std::string const text = error.what();
  CHECK(text.starts_with("tarn: ncclCommRegister failed: "));
  CHECK(text.find("; ") != text.npos);
}

#endif
