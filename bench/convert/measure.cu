// SPDX-License-Identifier: Apache-2.0
#include "convert/measure.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <exception>
#include <stdexcept>

#include "tarn/policy/accessible_from.hpp"
#include "tarn/tarn.hpp"
#include "tarn/transfer/convert.hpp"
#include "tarn/transfer/peer_copy.hpp"

namespace tarn::bench {

namespace {

void require(cudaError_t code, char const* what) {
  if (code != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(code));
}

/// Two events on a stream and the time between them.
class stop_watch {
 public:
  explicit stop_watch(stream_ref stream) : stream_(stream) {
    require(cudaEventCreate(&begin_), "cudaEventCreate");
    require(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~stop_watch() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  stop_watch(stop_watch const&) = delete;
  stop_watch& operator=(stop_watch const&) = delete;

  /// Returns the seconds that `rounds` of the work take on the device.
  template <class Work>
  double time(unsigned rounds, Work const& work) {
    require(cudaEventRecord(begin_, stream_.get()), "cudaEventRecord");
    for (unsigned i = 0; i < rounds; ++i) work();
    require(cudaEventRecord(end_, stream_.get()), "cudaEventRecord");
    require(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) / 1000;
  }

 private:
  stream_ref stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

rate rate_of(std::vector<double> seconds, double bytes) {
  std::sort(seconds.begin(), seconds.end());
  auto const gigabytes = [&](double s) { return bytes / s / 1e9; };
  return {gigabytes(seconds[seconds.size() / 2]), gigabytes(seconds.front()), gigabytes(seconds.back())};
}

/// Times own and other alternately, so that both run at the same clocks; the first round of each is
/// discarded.
template <class Own, class Other>
void compare(measured& row, effort const& e, stream_ref stream, Own const& own, Other const& other) {
  stop_watch watch(stream);
  (void)watch.time(2, own);
  (void)watch.time(2, other);
  std::vector<double> a;
  std::vector<double> b;
  for (unsigned i = 0; i < e.repetitions; ++i) {
    a.push_back(watch.time(e.rounds, own));
    b.push_back(watch.time(e.rounds, other));
  }
  double const bytes = static_cast<double>(row.bytes) * e.rounds;
  row.own = rate_of(a, bytes);
  row.other = rate_of(b, bytes);
}

template <class To, class From>
measured conversion(effort const& e, device_pool pool, stream_ref stream) {
  measured row;
  row.work = std::string("convert/") + name_of(element_type_of<From>) + '/' + name_of(element_type_of<To>);
  row.reference = "cudaMemcpyAsync on the device, as many bytes read and written";
  std::size_t const n = e.bytes / (sizeof(From) + sizeof(To));
  row.bytes = n * (sizeof(From) + sizeof(To));
  try {
    auto from = make_device_buffer<From>(pool, n, stream);
    auto to = make_device_buffer<To>(pool, n, stream);
    auto a = make_device_buffer<char>(pool, row.bytes / 2, stream);
    auto b = make_device_buffer<char>(pool, row.bytes / 2, stream);
    from.zero();
    a.zero();
    compare(
        row, e, stream, [&] { tarn::convert(from, to); },
        [&] {
          require(cudaMemcpyAsync(b.data(), a.data(), a.bytes(), cudaMemcpyDeviceToDevice, stream.get()),
                  "cudaMemcpyAsync");
        });
  } catch (std::exception const& error) {
    row.problem = error.what();
  }
  return row;
}

/// Copies from device 0 to device 1: tarn's copy between two pools, compared with CUDA's between two
/// cudaMalloc blocks.
template <class Near, class Far>
measured peer(char const* work, char const* reference, effort const& e, Near near, Far far) {
  measured row;
  row.work = work;
  row.reference = reference;
  row.bytes = e.sent;
  try {
    basic_stream<cuda_driver> const a{cuda_driver{device_id{0}}};
    basic_stream<cuda_driver> const b{cuda_driver{device_id{1}}};
    auto from = make_device_buffer<char>(near, e.sent, a);
    auto to = make_device_buffer<char>(far, e.sent, b);
    auto plain_from = make_device_buffer<char>(cuda_malloc{device_id{0}}, e.sent, a);
    auto plain_to = make_device_buffer<char>(cuda_malloc{device_id{1}}, e.sent, b);
    from.zero();
    plain_from.zero();
    a.synchronize();
    device_guard const guard{device_id{1}};
    compare(
        row, e, b, [&] { peer_copy(from, to); },
        [&] {
          require(cudaMemcpyPeerAsync(plain_to.data(), 1, plain_from.data(), 0, e.sent, b.ref().get()),
                  "cudaMemcpyPeerAsync");
        });
  } catch (std::exception const& error) {
    row.problem = error.what();
  }
  return row;
}

bool enable_both_ways() {
  device_guard const outer{device_id{0}};
  bool const there = cudaDeviceEnablePeerAccess(1, 0) == cudaSuccess;
  device_guard const inner{device_id{1}};
  return cudaDeviceEnablePeerAccess(0, 0) == cudaSuccess && there;
}

}  // namespace

std::vector<measured> measure_conversions(effort const& e) {
  tarn::stream const stream;
  device_pool pool;
  return {
      conversion<float16, float>(e, pool, stream),       conversion<float, float16>(e, pool, stream),
      conversion<bfloat16, float>(e, pool, stream),      conversion<float, bfloat16>(e, pool, stream),
      conversion<float8_e4m3, float>(e, pool, stream),   conversion<float, float8_e4m3>(e, pool, stream),
      conversion<float8_e5m2, float16>(e, pool, stream), conversion<bfloat16, float8_e5m2>(e, pool, stream),
      conversion<bfloat16, float16>(e, pool, stream),    conversion<float, double>(e, pool, stream)};
}

std::vector<measured> measure_peer_copies(effort const& e) {
  int devices = 0;
  require(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  measured skipped;
  skipped.work = "peer_copy";
  skipped.problem = "two devices needed, " + std::to_string(devices) + " found";
  if (devices < 2) return {skipped};
  auto const pages = [](int device) { return cuda_pages{device_id{device}}; };
  std::vector<measured> rows;
  char const* const plain = "cudaMemcpyPeerAsync of cudaMalloc's blocks, peer access not enabled";
  rows.push_back(peer("peer_copy/pages", plain, e, pages(0) | pooled{}, pages(1) | pooled{}));
  try {
    rows.push_back(peer("peer_copy/accessible_from", plain, e, pages(0) | accessible_from{1} | pooled{},
                        pages(1) | accessible_from{0} | pooled{}));
  } catch (std::exception const& error) {
    skipped.work = "peer_copy/accessible_from";
    skipped.problem = error.what();
    rows.push_back(skipped);
    return rows;
  }
  // Affects the whole process from here on, so it is done last.
  bool const enabled = enable_both_ways();
  (void)cudaGetLastError();
  if (!enabled) return rows;
  char const* const direct = "cudaMemcpyPeerAsync of cudaMalloc's blocks, peer access enabled";
  rows.push_back(
      peer("peer_copy/pages, process enabled", direct, e, pages(0) | pooled{}, pages(1) | pooled{}));
  rows.push_back(peer("peer_copy/accessible_from, process enabled", direct, e,
                      pages(0) | accessible_from{1} | pooled{}, pages(1) | accessible_from{0} | pooled{}));
  return rows;
}

}  // namespace tarn::bench
