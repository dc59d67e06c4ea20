// SPDX-License-Identifier: Apache-2.0
#include "nccl/measure.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <list>
#include <stdexcept>
#include <string>
#include <vector>

#include "tarn/nccl.hpp"
#include "tarn/tarn.hpp"

namespace tarn::bench {

namespace {

void require(cudaError_t code, char const* call) {
  if (code != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(code));
}
void require(ncclResult_t code, char const* call) {
  if (code != ncclSuccess) throw nccl_error(code, call, nullptr);
}

/// A communicator for each GPU, and a stream on it with events that time its work.
class group {
 public:
  struct member {
    explicit member(int device) : stream(cuda_driver{device_id{device}}) {
      require(cudaEventCreate(&begin), "cudaEventCreate");
      require(cudaEventCreate(&end), "cudaEventCreate");
    }
    member(member const&) = delete;
    member& operator=(member const&) = delete;
    ~member() {
      (void)cudaEventDestroy(begin);
      (void)cudaEventDestroy(end);
    }
    basic_stream<cuda_driver> stream;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    ncclComm_t communicator = nullptr;
  };

  explicit group(int devices) {
    std::vector<ncclComm_t> communicators(static_cast<std::size_t>(devices));
    require(ncclCommInitAll(communicators.data(), devices, nullptr), "ncclCommInitAll");
    for (int d = 0; d < devices; ++d) {
      device_guard const here(device_id{d});
      members.emplace_back(d).communicator = communicators[static_cast<std::size_t>(d)];
    }
  }
  group(group const&) = delete;
  group& operator=(group const&) = delete;
  ~group() {
    for (member const& m : members) (void)ncclCommDestroy(m.communicator);
  }

  std::list<member> members;
};

/// The buffers of one GPU: what it sends and what it receives.
struct buffers {
  char* send = nullptr;
  char* receive = nullptr;
};

/// Buffers of one kind on all GPUs.
class memory {
 public:
  memory() = default;
  memory(memory const&) = delete;
  memory& operator=(memory const&) = delete;
  virtual ~memory() = default;
  /// The buffers of a GPU, before collectives of so many bytes.
  virtual buffers at(std::size_t gpu, std::size_t bytes) = 0;
  /// Calls that registered memory, so far.
  [[nodiscard]] virtual std::size_t registrations() const { return 0; }
};

/// Memory of NCCL's own allocator, registered once.
class nccl_memory final : public memory {
 public:
  nccl_memory(group const& all, std::size_t bytes) {
    int device = 0;
    for (group::member const& m : all.members) {
      device_guard const here(device_id{device++});
      part& p = parts_.emplace_back(m.communicator);
      for (std::size_t i = 0; i < 2; ++i) {
        require(ncclMemAlloc(&p.memory[i], bytes), "ncclMemAlloc");
        require(ncclCommRegister(m.communicator, p.memory[i], bytes, &p.registered[i]), "ncclCommRegister");
      }
    }
  }
  ~nccl_memory() override {
    int device = 0;
    for (part const& p : parts_) {
      device_guard const here(device_id{device++});
      for (std::size_t i = 0; i < 2; ++i) {
        (void)ncclCommDeregister(p.communicator, p.registered[i]);
        (void)ncclMemFree(p.memory[i]);
      }
    }
  }
  buffers at(std::size_t gpu, std::size_t) override {
    part const& p = parts_[gpu];
    return {static_cast<char*>(p.memory[0]), static_cast<char*>(p.memory[1])};
  }

 private:
  struct part {
    explicit part(ncclComm_t c) : communicator(c) {}
    ncclComm_t communicator;
    void* memory[2] = {};
    void* registered[2] = {};
  };
  std::vector<part> parts_;
};

/// A pool's memory. `Registers`: registered where it was not.
template <class Pool, bool Registers>
class pool_memory final : public memory {
 public:
  template <class Make>
  pool_memory(group& all, std::size_t bytes, Make const& make) {
    int device = 0;
    for (group::member& m : all.members) {
      device_guard const here(device_id{device});
      parts_.emplace_back(make(device_id{device}), m, bytes);
      ++device;
    }
  }
  buffers at(std::size_t gpu, std::size_t bytes) override {
    part& p = *std::next(parts_.begin(), static_cast<std::ptrdiff_t>(gpu));
    if constexpr (Registers) {
      (void)p.registered.front().ensure(p.send.data(), bytes);
      (void)p.registered.front().ensure(p.receive.data(), bytes);
    }
    return {p.send.data(), p.receive.data()};
  }
  [[nodiscard]] std::size_t registrations() const override {
    std::size_t sum = 0;
    for (part const& p : parts_) {
      for (auto const& r : p.registered) sum += r.added();
    }
    return sum;
  }

 private:
  struct part {
    part(Pool const& memory, group::member& m, std::size_t bytes)
        : pool(memory),
          send(make_device_buffer<char>(pool, bytes, m.stream)),
          receive(make_device_buffer<char>(pool, bytes, m.stream)) {
      if constexpr (Registers) registered.push_back(register_with_nccl(pool, m.communicator));
    }
    Pool pool;
    device_buffer<char, Pool> send;
    device_buffer<char, Pool> receive;
    std::vector<nccl_registrations<Pool>> registered;  ///< one, or none
  };
  std::list<part> parts_;
};

/// A collective of so many bytes, on one GPU.
struct collective {
  char const* name;
  /// What NCCL's tests multiply size / time by, for so many GPUs: bus bandwidth.
  double (*factor)(double gpus);
  ncclResult_t (*start)(buffers, std::size_t bytes, std::size_t gpus, ncclComm_t, cudaStream_t);
};
constexpr collective collectives[] = {
    {"all-reduce", [](double n) { return 2 * (n - 1) / n; },
     [](buffers b, std::size_t bytes, std::size_t, ncclComm_t c, cudaStream_t s) {
       return ncclAllReduce(b.send, b.receive, bytes / sizeof(float), ncclFloat, ncclSum, c, s);
     }},
    {"all-gather", [](double n) { return (n - 1) / n; },
     [](buffers b, std::size_t bytes, std::size_t n, ncclComm_t c, cudaStream_t s) {
       return ncclAllGather(b.send, b.receive, bytes / n / sizeof(float), ncclFloat, c, s);
     }},
    {"reduce-scatter", [](double n) { return (n - 1) / n; },
     [](buffers b, std::size_t bytes, std::size_t n, ncclComm_t c, cudaStream_t s) {
       return ncclReduceScatter(b.send, b.receive, bytes / n / sizeof(float), ncclFloat, ncclSum, c, s);
     }},
};

/// The seconds of one collective, of `rounds` in a row: of the GPU that took longest.
double seconds_of(group& all, memory& m, collective const& c, std::size_t bytes, unsigned rounds) {
  std::size_t const gpus = all.members.size();
  std::vector<buffers> used;
  for (std::size_t gpu = 0; gpu < gpus; ++gpu) used.push_back(m.at(gpu, bytes));
  int device = 0;
  for (group::member const& g : all.members) {
    device_guard const here(device_id{device++});
    require(cudaEventRecord(g.begin, g.stream.get()), "cudaEventRecord");
  }
  for (unsigned r = 0; r < rounds; ++r) {
    require(ncclGroupStart(), "ncclGroupStart");
    std::size_t gpu = 0;
    for (group::member const& g : all.members) {
      require(c.start(used[gpu++], bytes, gpus, g.communicator, g.stream.get()), c.name);
    }
    require(ncclGroupEnd(), "ncclGroupEnd");
  }
  device = 0;
  for (group::member const& g : all.members) {
    device_guard const here(device_id{device++});
    require(cudaEventRecord(g.end, g.stream.get()), "cudaEventRecord");
  }
  float longest = 0;
  for (group::member const& g : all.members) {
    require(cudaEventSynchronize(g.end), "cudaEventSynchronize");
    float ms = 0;
    require(cudaEventElapsedTime(&ms, g.begin, g.end), "cudaEventElapsedTime");
    longest = std::max(longest, ms);
  }
  return longest / 1e3 / rounds;
}

/// The nanoseconds of at() for one GPU whose buffers were used before.
double nanoseconds_of_warm_calls(memory& m, std::size_t bytes) {
  constexpr unsigned calls = 100'000;
  auto const begin = std::chrono::steady_clock::now();
  for (unsigned i = 0; i < calls; ++i) (void)m.at(0, bytes);
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / calls;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

void measure_nccl(nccl_effort const& e, figure_handler const& on_figure) {
  int devices = 0;
  require(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  if (devices < 2) throw std::runtime_error("a collective needs two GPUs, there is one");
  group all(devices);
  nccl_memory reference(all, e.largest);
  auto const one = [](device_id d) {
    return cuda_pages{d} | pooled{.handles = handles_per_block::one} | tracked{};
  };
  pool_memory<decltype(one(device_id{0})), true> registered(all, e.largest, one);
  pool_memory<device_pool, false> usual(all, e.largest, [](device_id d) { return device_pool(d); });
  struct candidate {
    char const* way;
    memory& used;
  };
  candidate const candidates[] = {{"pool with one handle per block, registered", registered},
                                  {"device_pool, not registered", usual}};
  constexpr std::size_t count = std::size(candidates);
  int version = 0;
  require(ncclGetVersion(&version), "ncclGetVersion");
  std::string const compared_with = "ncclMemAlloc, NCCL " + std::to_string(version / 10000) + '.' +
                                    std::to_string(version / 100 % 100) + '.' + std::to_string(version % 100);
  std::size_t first_registrations[count] = {};
  for (std::size_t k = 0; k < count; ++k) {
    (void)seconds_of(all, candidates[k].used, collectives[0], e.largest, 1);
    first_registrations[k] = candidates[k].used.registrations();
  }

  for (collective const& c : collectives) {
    for (std::size_t bytes = e.smallest; bytes <= e.largest; bytes *= 4) {
      auto const rounds = static_cast<unsigned>(std::clamp<std::size_t>((2_GiB) / bytes, 4, 200));
      std::vector<double> own[count], other;
      for (candidate const& k : candidates) (void)seconds_of(all, k.used, c, bytes, rounds);
      (void)seconds_of(all, reference, c, bytes, rounds);
      for (unsigned i = 0; i < e.repetitions; ++i) {
        for (std::size_t k = 0; k < count; ++k) {
          own[k].push_back(seconds_of(all, candidates[k].used, c, bytes, rounds));
        }
        other.push_back(seconds_of(all, reference, c, bytes, rounds));
      }
      double const moved = static_cast<double>(bytes) * c.factor(devices) / 1e9;
      for (std::size_t k = 0; k < count; ++k) {
        on_figure({std::string(c.name) + " of " + std::to_string(bytes >> 20) + " MiB on " +
                       std::to_string(devices) + " GPUs",
                   candidates[k].way, "GB/s", moved / median(own[k]), moved / median(other), compared_with});
      }
    }
  }
  on_figure({"ensure() of two buffers that are registered", candidates[0].way, "ns",
             nanoseconds_of_warm_calls(registered, e.largest), 0, ""});
  for (std::size_t k = 0; k < count; ++k) {
    on_figure({"calls that registered memory after the first collective", candidates[k].way, "calls",
               static_cast<double>(candidates[k].used.registrations() - first_registrations[k]), 0, ""});
  }
}

}  // namespace tarn::bench
