// SPDX-License-Identifier: Apache-2.0
// tarn_batch_copies: many copies by one cudaMemcpyAsync each, compared with one cudaMemcpyBatchAsync
// (CUDA 12.8 and later) for all of them: host time of the calls, and time until the copies are done. Exits
// with 77 if there is no device or the call is missing.

#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "context_json.hpp"
#include "peers/find_cuda.hpp"

namespace {

using namespace tarn::bench;

void require(cudaError_t code, char const* what) {
  if (code != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(code));
}

/// The copies of one measurement: `count` of `bytes` each, from and to places that are twice as far apart, so
/// that neighbours cannot be joined to one copy.
struct copies {
  std::vector<void*> to;
  std::vector<void*> from;
  std::vector<std::size_t> sizes;

  copies(void* target, void* source, std::size_t count, std::size_t bytes) : sizes(count, bytes) {
    for (std::size_t i = 0; i < count; ++i) {
      to.push_back(static_cast<char*>(target) + 2 * i * bytes);
      from.push_back(static_cast<char*>(source) + 2 * i * bytes);
    }
  }
};

void one_by_one(copies& c, cudaStream_t stream) {
  for (std::size_t i = 0; i < c.sizes.size(); ++i)
    require(cudaMemcpyAsync(c.to[i], c.from[i], c.sizes[i], cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

#if CUDART_VERSION >= 12080
#define TARN_BENCH_HAS_BATCHES 1
void in_a_batch(copies& c, cudaStream_t stream) {
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  std::size_t first = 0;  // of the copies that have these attributes
#if CUDART_VERSION >= 13000
  std::vector<void const*> const from(c.from.begin(), c.from.end());
  cudaError_t const code = cudaMemcpyBatchAsync(c.to.data(), from.data(), c.sizes.data(), c.sizes.size(),
                                                &attributes, &first, 1, stream);
#else
  std::size_t failed = 0;
  cudaError_t const code = cudaMemcpyBatchAsync(c.to.data(), c.from.data(), c.sizes.data(), c.sizes.size(),
                                                &attributes, &first, 1, &failed, stream);
#endif
  require(code, "cudaMemcpyBatchAsync");
}
#else
#define TARN_BENCH_HAS_BATCHES 0
void in_a_batch(copies&, cudaStream_t) {}
#endif

struct times {
  double call_us = 0;  ///< until the calls have returned
  double done_us = 0;  ///< until the copies are done
};

times measure_once(copies& c, cudaStream_t stream, void (*enqueue)(copies&, cudaStream_t)) {
  require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  auto const start = std::chrono::steady_clock::now();
  auto const since = [&] {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  };
  enqueue(c, stream);
  double const called = since();
  require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return {called, since()};
}
double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

struct figure {
  std::string work;
  std::size_t count;
  std::size_t bytes;
  times single;
  times batch;
};

/// Both ways in turn, so that a change of the clock meets both.
figure measure(std::string work, copies c, cudaStream_t stream, unsigned repetitions) {
  std::vector<double> v[4];
  for (unsigned i = 0; i <= repetitions; ++i) {
    times const single = measure_once(c, stream, one_by_one);
    times const batch = measure_once(c, stream, in_a_batch);
    if (i == 0) continue;  // the first round warms up
    v[0].push_back(single.call_us);
    v[1].push_back(single.done_us);
    v[2].push_back(batch.call_us);
    v[3].push_back(batch.done_us);
  }
  return {std::move(work),
          c.sizes.size(),
          c.sizes[0],
          {median(v[0]), median(v[1])},
          {median(v[2]), median(v[3])}};
}

nlohmann::ordered_json json_of(figure const& f, context const& where) {
  nlohmann::ordered_json row;
  row["work"] = f.work;
  row["copies"] = f.count;
  row["bytes_each"] = f.bytes;
  row["single_call_us"] = f.single.call_us;
  row["single_done_us"] = f.single.done_us;
  row["batch_call_us"] = f.batch.call_us;
  row["batch_done_us"] = f.batch.done_us;
  write_context(row, where);
  return row;
}

constexpr std::size_t most_copied = std::size_t{64} << 20;  ///< by one measurement, bytes

/// Frees what measure_all() has taken, also if it throws.
struct memory {
  void* pinned = nullptr;
  void* source = nullptr;
  void* target = nullptr;
  cudaStream_t stream = nullptr;

  memory() {
    require(cudaHostAlloc(&pinned, 2 * most_copied, cudaHostAllocPortable), "cudaHostAlloc");
    require(cudaMalloc(&source, 2 * most_copied), "cudaMalloc");
    require(cudaMalloc(&target, 2 * most_copied), "cudaMalloc");
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~memory() {
    (void)cudaStreamDestroy(stream);
    (void)cudaFree(target);
    (void)cudaFree(source);
    (void)cudaFreeHost(pinned);
  }
  memory(memory const&) = delete;
  memory& operator=(memory const&) = delete;
};

int measure_all(std::string const& json, unsigned repetitions) {
  found_cuda const device = find_cuda();
  if (!device.found || !TARN_BENCH_HAS_BATCHES) {
    std::cout << "skipped, nothing was measured: "
              << (device.found ? "cudaMemcpyBatchAsync needs CUDA 12.8" : device.text) << '\n';
    return 77;
  }
  std::ofstream file;
  if (!json.empty()) file.open(json, std::ios::app);
  if (!json.empty() && !file) {
    std::cerr << "tarn_batch_copies: cannot write " << json << '\n';
    return 2;
  }
  context const where = find_context(device);
  memory const m;
  struct direction {
    char const* name;
    void* from;
  };
  std::printf("device %s\n%-44s %12s %12s %12s %12s\n", device.text.c_str(), "microseconds", "calls", "done",
              "batch call", "batch done");
  for (direction const d : {direction{"pinned_to_device", m.pinned}, {"device_to_device", m.source}}) {
    for (std::size_t const bytes : {1U << 10, 4U << 10, 16U << 10, 64U << 10, 256U << 10, 1U << 20}) {
      for (std::size_t const count : {4U, 16U, 64U, 256U, 1024U}) {
        if (count * bytes > most_copied) continue;
        figure const f = measure(std::string("batch_copies/") + d.name,
                                 copies(m.target, d.from, count, bytes), m.stream, repetitions);
        std::printf("%-24s %6zu of %7zu KiB %12.1f %12.1f %12.1f %12.1f\n", d.name, f.count, f.bytes >> 10,
                    f.single.call_us, f.single.done_us, f.batch.call_us, f.batch.done_us);
        std::fflush(stdout);
        if (!json.empty()) file << json_of(f, where).dump() << '\n' << std::flush;
      }
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string json;
  unsigned repetitions = 31;
  CLI::App app("Many copies, one call for each compared with one call for all.", "tarn_batch_copies");
  app.add_option("--json", json, "also appends one JSON object per line to this file");
  app.add_option("--repetitions", repetitions, "timed repetitions of each work; the median is shown")
      ->check(CLI::Range(1U, 10000U))
      ->default_str("31");
  CLI11_PARSE(app, argc, argv);
  try {
    return measure_all(json, repetitions);
  } catch (std::exception const& error) {
    std::cerr << "tarn_batch_copies: " << error.what() << '\n';
    return 1;
  }
}
