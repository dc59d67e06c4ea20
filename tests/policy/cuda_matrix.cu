// SPDX-License-Identifier: Apache-2.0
// The checks of the policy matrix on a GPU: each policy over a pool of pages, and some sources.
#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "policy_matrix/adapter.hpp"
#include "policy_matrix/checks.hpp"
#include "tarn/driver/cuda_driver.hpp"

namespace {

using namespace policy_matrix;

class cuda_device final : public test_device {
 public:
  using driver_type = tarn::cuda_driver;
  explicit cuda_device(unsigned mode) : foreign_streams_(mode == 2) {
    note(cudaStreamCreateWithFlags(&reading_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  cuda_device(cuda_device const&) = delete;
  cuda_device& operator=(cuda_device const&) = delete;
  ~cuda_device() override { (void)cudaStreamDestroy(reading_); }
  [[nodiscard]] tarn::cuda_driver driver() const { return driver_; }

  tarn::stream_ref new_stream() override {
    tarn::stream_ref stream;
    if (!foreign_streams_) {
      (void)driver_.create_stream(stream);
      return stream;
    }
    cudaStream_t made = nullptr;
    note(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    tarn::stream_id id = 0;
    (void)driver_.identify(tarn::stream_ref(made), id);
    return tarn::stream_ref::from(made, id);
  }
  void end_stream(tarn::stream_ref stream) override {
    if (foreign_streams_) {
      note(cudaStreamDestroy(stream.get()), "cudaStreamDestroy");
    } else {
      (void)driver_.destroy_stream(stream);
    }
  }
  void order(tarn::stream_ref first, tarn::stream_ref second) override {
    cudaEvent_t event = nullptr;
    note(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    note(cudaEventRecord(event, first.get()), "cudaEventRecord");
    note(cudaStreamWaitEvent(second.get(), event, 0), "cudaStreamWaitEvent");
    note(cudaEventDestroy(event), "cudaEventDestroy");
  }
  void write(tarn::stream_ref stream, void* p, std::size_t bytes, unsigned char byte,
             unsigned microseconds) override {
    if (microseconds > 100) (void)tarn_test::keep_busy(stream, 1 + microseconds / 10'000);
    std::size_t const part = bytes < 512 ? bytes : 256;
    note(cudaMemsetAsync(p, byte, part, stream.get()), "cudaMemsetAsync");
    note(cudaMemsetAsync(static_cast<char*>(p) + (bytes - part), byte, part, stream.get()),
         "cudaMemsetAsync");
  }
  bool holds(void const* p, std::size_t bytes, unsigned char byte) override {
    std::size_t const part = bytes < 512 ? bytes : 256;
    unsigned char seen[512];
    note(cudaMemcpyAsync(seen, p, part, cudaMemcpyDefault, reading_), "cudaMemcpyAsync");
    note(cudaMemcpyAsync(seen + part, static_cast<char const*>(p) + (bytes - part), part, cudaMemcpyDefault,
                         reading_),
         "cudaMemcpyAsync");
    note(cudaStreamSynchronize(reading_), "cudaStreamSynchronize");
    for (std::size_t i = 0; i < 2 * part; ++i) {
      if (seen[i] != byte) return false;
    }
    return true;
  }
  void wait(tarn::stream_ref stream) override {
    note(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  }
  void wait() override { note(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }
  /// The driver cannot query the capture state of a stream that it did not create and that is not a default
  /// stream.
  bool begin_capture(tarn::stream_ref stream) override {
    return !foreign_streams_ &&
           cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal) == cudaSuccess;
  }
  bool end_capture(tarn::stream_ref stream, bool may_have_nodes) override {
    cudaGraph_t graph = nullptr;
    bool const good = cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess && graph != nullptr;
    (void)cudaGetLastError();
    std::size_t nodes = 0;
    if (good) {
      note(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes");
      note(cudaGraphDestroy(graph), "cudaGraphDestroy");
    }
    return good && (may_have_nodes || nodes == 0);
  }
  bool in_next_device_wait(std::function<void()>) override { return false; }
  std::vector<std::string> findings() override {
    note(cudaGetLastError(), "a call of the library");
    return std::exchange(failed_, {});
  }
  std::size_t held() override { return 0; }
  std::size_t left_over() override { return 0; }
  bool has_memory_tool() const override { return static_cast<bool>(driver_.memory_tool()); }
  bool opens_own_events() const override { return false; }  // CUDA refuses with error 201
  bool has_pages() const override { return tarn::basic_pages<tarn::cuda_driver>(driver_).has_pages(); }
  bool runs_out() const override { return false; }

 private:
  void note(cudaError_t code, char const* call) {
    if (code != cudaSuccess) failed_.push_back(std::string(call) + ": " + cudaGetErrorName(code));
  }
  tarn::cuda_driver driver_;
  cudaStream_t reading_ = nullptr;
  bool foreign_streams_;
  std::vector<std::string> failed_;
};

std::vector<stack_under_test> cuda_stacks() {
  std::vector<stack_under_test> all;
  add_stack<cuda_device, of::blocks_of_malloc, noted>(all);
  add_stack<cuda_device, of::async, noted>(all);
  for_each_policy<cuda_device, of::pages>::over_pool(all, block_policies{});
  return all;
}

}  // namespace

TEST_CASE("policy_matrix promises hold on CUDA", "[policy][matrix][cuda]") {
  if (!tarn_test::has_cuda_devices()) return;
  for (stack_under_test const& stack : cuda_stacks()) {
    for (unsigned const mode : {0U, 2U}) {
      report out;
      for (promise const& p : promises()) run(p, stack, mode, out);
      run_random(stack, mode, 1, 60, out);
      std::string all;
      for (std::string const& found : out.found()) all += found + '\n';
      INFO(all);
      CHECK(all.empty());
    }
  }
}
