// SPDX-License-Identifier: Apache-2.0
// Data-parallel training: the network of train.cpp on several GPUs, each with a part of every batch. NCCL
// sums the gradients in the pools' own buffers, which are registered with it once; so each block lies in one
// physical handle.
//
//   data_parallel                      one process with all its GPUs; simulated ones with TARN_SIM_DEVICES=4 in the environment
//   mpirun -n 4 data_parallel_mpi      one process for each GPU; NCCL's id travels by MPI. Other machines: mpirun --hostfile FILE
//
// On simulated devices the host adds the gradients, and MPI between processes.

#include <tarn/nccl.hpp>
#include <tarn/tarn.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <list>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "train_network.hpp"

#if TARN_EXAMPLE_MPI
#include <mpi.h>
#endif

namespace {

using namespace training;

constexpr int epochs = 18;
std::vector<sample> const examples = draw_digits(1024, 1);
std::vector<sample> const unseen = draw_digits(512, 2);

#if TARN_EXAMPLE_MPI
/// Initialises MPI, for the whole program.
class mpi_session {
 public:
  mpi_session() { (void)MPI_Init(nullptr, nullptr); }
  mpi_session(mpi_session const&) = delete;
  mpi_session& operator=(mpi_session const&) = delete;
  ~mpi_session() { (void)MPI_Finalize(); }
};
#endif

/// The processes that train together. Each has as many ranks as it has devices.
class processes {
 public:
  /// This one alone.
  processes() = default;
#if TARN_EXAMPLE_MPI
  /// All that mpirun has started.
  explicit processes(mpi_session const&) {
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &index_);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &count_);
    MPI_Comm here = MPI_COMM_NULL;
    (void)MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    (void)MPI_Comm_rank(here, &index_on_machine_);
    (void)MPI_Comm_free(&here);
  }
#endif
  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] int index_on_machine() const { return index_on_machine_; }

#if !TARN_HAS_CUDA
  /// Adds up the values of all processes, in each.
  void sum([[maybe_unused]] std::span<float> values) const {
#if TARN_EXAMPLE_MPI
    if (count_ == 1) return;
    (void)MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM,
                        MPI_COMM_WORLD);
#endif
  }
#endif
  /// Copies the first process's value to all.
  template <class T>
  void from_first([[maybe_unused]] T& value) const {
#if TARN_EXAMPLE_MPI
    if (count_ != 1) (void)MPI_Bcast(&value, sizeof value, MPI_BYTE, 0, MPI_COMM_WORLD);
#endif
  }
  /// Returns the values of all processes on the first. Each passes as many.
  [[nodiscard]] std::vector<double> gather(std::vector<double> const& values) const {
    std::vector<double> all = values;
#if TARN_EXAMPLE_MPI
    if (count_ == 1) return all;
    all.resize(values.size() * static_cast<std::size_t>(count_));
    auto const each = static_cast<int>(values.size());
    (void)MPI_Gather(values.data(), each, MPI_DOUBLE, all.data(), each, MPI_DOUBLE, 0, MPI_COMM_WORLD);
#endif
    return all;
  }
  /// Ends all processes after an error in this one: the others may wait for it.
  void give_up() const {
#if TARN_EXAMPLE_MPI
    (void)MPI_Abort(MPI_COMM_WORLD, 1);
#endif
  }

 private:
  int index_ = 0;
  int count_ = 1;
  int index_on_machine_ = 0;
};

using pool_type = tarn::stack<tarn::cuda_pages, tarn::pooled, tarn::tracked>;

/// One GPU, with its share of the data and a network that is the same on all.
struct rank {
  rank(tarn::device_id where, std::span<sample const> share)
      : device(where),
        pool(tarn::cuda_pages{where} | tarn::pooled{.handles = tarn::handles_per_block::one} |
             tarn::tracked{}),
        stream(pool.driver()),
        net(pool, {pool.driver(), stream}, {}),
        data(tarn::make_device_buffer<sample>(pool, share, stream)) {}
  tarn::device_id device;
  pool_type pool;
  tarn::stream stream;
  network<float, pool_type> net;
  tarn::device_buffer<sample, pool_type> data;
};

#if TARN_HAS_NCCL && !TARN_WITHOUT_NCCL
void require(ncclResult_t code, char const* call) {
  if (code != ncclSuccess) throw tarn::nccl_error(code, call, nullptr);
}

/// Sums the gradients of all ranks by NCCL, on the ranks' streams.
class reduction {
 public:
  reduction(processes const& all, std::list<rank>& mine) : mine_(mine) {
    auto const ranks = static_cast<int>(mine.size()) * all.count();
    auto const first = static_cast<int>(mine.size()) * all.index();
    ncclUniqueId id{};
    if (all.index() == 0) require(ncclGetUniqueId(&id), "ncclGetUniqueId");
    all.from_first(id);
    communicators_.resize(mine.size());
    require(ncclGroupStart(), "ncclGroupStart");
    int i = 0;
    for (rank const& r : mine) {
      tarn::device_guard const here(r.device);
      require(ncclCommInitRank(&communicators_[static_cast<std::size_t>(i)], ranks, id, first + i),
              "ncclCommInitRank");
      ++i;
    }
    require(ncclGroupEnd(), "ncclGroupEnd");
    auto c = communicators_.begin();
    for (rank const& r : mine) registered_.push_back(tarn::register_with_nccl(r.pool, *c++));
  }
  reduction(reduction const&) = delete;
  reduction& operator=(reduction const&) = delete;
  ~reduction() {
    for (rank& r : mine_) (void)cudaStreamSynchronize(r.stream);
    registered_.clear();
    for (ncclComm_t const c : communicators_) (void)ncclCommDestroy(c);
  }
  void operator()() {
    std::size_t const layers = mine_.front().net.gradients().size();
    auto registered = registered_.begin();
    for (rank& r : mine_) {
      for (auto const part : r.net.gradients()) (void)registered->ensure(part.data(), part.size_bytes());
      ++registered;
    }
    require(ncclGroupStart(), "ncclGroupStart");
    for (std::size_t l = 0; l < layers; ++l) {
      std::size_t i = 0;
      for (rank& r : mine_) {
        auto const part = r.net.gradients()[l];
        require(ncclAllReduce(part.data(), part.data(), part.size(), ncclFloat, ncclSum, communicators_[i],
                              r.stream.get()),
                "ncclAllReduce");
        ++i;
      }
    }
    require(ncclGroupEnd(), "ncclGroupEnd");
  }
  [[nodiscard]] std::size_t registrations() const {
    std::size_t sum = 0;
    for (auto const& r : registered_) sum += r.added();
    return sum;
  }

 private:
  std::list<rank>& mine_;
  std::vector<ncclComm_t> communicators_{};
  std::vector<tarn::nccl_registrations<pool_type>> registered_{};
};
#elif TARN_HAS_CUDA
/// One GPU of one process has nothing to add.
class reduction {
 public:
  reduction(processes const& all, std::list<rank> const& mine) {
    if (mine.size() * static_cast<std::size_t>(all.count()) != 1)
      throw std::runtime_error("several GPUs need NCCL: install libnccl-dev and build again");
  }
  void operator()() const {}
  [[nodiscard]] std::size_t registrations() const { return 0; }
};
#else
/// Sums the gradients of all ranks, on simulated devices: their memory is the host's.
class reduction {
 public:
  reduction(processes const& all, std::list<rank>& mine) : all_(all), mine_(mine) {}
  void operator()() {
    for (rank& r : mine_) r.stream.synchronize();
    auto const sums = mine_.front().net.gradients();
    for (std::size_t l = 0; l < sums.size(); ++l) {
      for (rank& r : mine_) {
        if (&r == &mine_.front()) continue;
        auto const part = r.net.gradients()[l];
        for (std::size_t i = 0; i < part.size(); ++i) sums[l][i] += part[i];
      }
      all_.sum(sums[l]);
      for (rank& r : mine_) {
        if (&r != &mine_.front()) std::copy(sums[l].begin(), sums[l].end(), r.net.gradients()[l].begin());
      }
    }
  }
  /// Calls of the library that registered memory.
  [[nodiscard]] std::size_t registrations() const { return 0; }

 private:
  processes const& all_;
  std::list<rank>& mine_;
};
#endif

struct outcome {
  score on_unseen;
  std::size_t ranks;
  std::vector<double> peaks;        ///< of each rank, bytes
  std::size_t later_registrations;  ///< with NCCL, after the first batch
};

/// A rank's part of each batch.
std::vector<sample> share_of(std::size_t rank, std::size_t part) {
  std::vector<sample> share;
  for (std::size_t first = 0; first < examples.size(); first += batch_size) {
    auto const begin = examples.begin() + static_cast<std::ptrdiff_t>(first + rank * part);
    share.insert(share.end(), begin, begin + static_cast<std::ptrdiff_t>(part));
  }
  return share;
}

/// Trains with the ranks of this process. Returns the registrations with NCCL after the first batch.
std::size_t train_epochs(std::list<rank>& mine, reduction& sum, std::size_t part) {
  std::optional<std::size_t> registrations;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (std::size_t batch = 0; batch < examples.size() / batch_size; ++batch) {
      for (rank& r : mine) {
        tarn::device_guard const here(r.device);
        r.net.add_gradients(r.data.span().subspan(batch * part, part), batch_size);
      }
      sum();
      for (rank& r : mine) {
        tarn::device_guard const here(r.device);
        r.net.update_weights();
      }
      if (!registrations) registrations = sum.registrations();
    }
  }
  return *registrations;
}

/// Trains with these devices of this process and those of the others.
outcome train(std::vector<tarn::device_id> const& devices, processes const& all) {
  std::size_t const ranks = devices.size() * static_cast<std::size_t>(all.count());
  std::size_t const first_rank = devices.size() * static_cast<std::size_t>(all.index());
  if (batch_size % ranks != 0) throw std::runtime_error("the batch cannot be divided among so many ranks");
  std::size_t const part = batch_size / ranks;
  std::list<rank> mine;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    tarn::device_guard const here(devices[i]);
    mine.emplace_back(devices[i], share_of(first_rank + i, part));
  }
  reduction sum(all, mine);

  for (rank& r : mine) tarn::reset_peak_memory_stats(r.pool);
  std::size_t registrations = 0;
  try {
    registrations = train_epochs(mine, sum, part);
  } catch (std::exception const& error) {
    if (all.count() == 1) throw;
    std::cerr << error.what() << std::endl;
    all.give_up();  // here: the end of NCCL's communicators would wait for the other processes
    throw;
  }
  std::vector<double> peaks;
  for (rank& r : mine) peaks.push_back(static_cast<double>(tarn::max_memory_allocated(r.pool)));
  outcome out{{}, ranks, all.gather(peaks), sum.registrations() - registrations};
  tarn::device_guard const here(mine.front().device);
  out.on_unseen = mine.front().net.outputs_for(unseen);
  return out;
}

/// The devices that a process trains on: all, or one where there are several processes. Each process
/// simulates devices of its own.
std::vector<tarn::device_id> devices_for(processes const& all) {
  std::vector<tarn::device_id> devices;  // a program for CUDA alone asks cudaGetDeviceCount
  try {
    for (int d = 0;; ++d) devices.push_back(tarn::device_pool{tarn::cuda_pages{tarn::device_id{d}}}.device());
  } catch (tarn::cuda_error const&) {  // there is no such device
    if (devices.empty()) throw;
  }
  if (all.count() == 1) return devices;
  auto const mine = static_cast<std::size_t>(TARN_HAS_CUDA != 0 ? all.index_on_machine() : 0);
  if (mine >= devices.size())
    throw std::runtime_error("there are more processes than GPUs on this machine: start fewer (mpirun -n)");
  return {devices[mine]};
}

void compare(processes const& all) {
  auto const devices = devices_for(all);
  outcome const alone = train({devices.front()}, processes());
  outcome const together = train(devices, all);
  if (all.index() != 0) return;
  std::printf("1 rank:  loss %.3f, accuracy %.1f%%, peak %.0f bytes\n", alone.on_unseen.loss,
              alone.on_unseen.accuracy, alone.peaks.front());
  std::printf("%zu %s loss %.3f, accuracy %.1f%%, peak of each rank", together.ranks,
              together.ranks == 1 ? "rank: " : "ranks:", together.on_unseen.loss,
              together.on_unseen.accuracy);
  for (double const peak : together.peaks) std::printf(" %.0f", peak);
  std::printf(" bytes\nthe losses agree: %s\n",
              std::abs(alone.on_unseen.loss - together.on_unseen.loss) < 0.01 ? "yes" : "no");
  std::printf("registrations with NCCL after the first batch: %zu\n", together.later_registrations);
}

}  // namespace

int main() {
#if TARN_EXAMPLE_MPI
  mpi_session const mpi;
  processes const all(mpi);
#else
  processes const all;
#endif
  try {
    compare(all);
  } catch (std::exception const& error) {
    std::cerr << error.what() << std::endl;
    all.give_up();
    return 1;
  }
}
