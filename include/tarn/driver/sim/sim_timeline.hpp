// SPDX-License-Identifier: Apache-2.0
#pragma once
// The clock of a simulated machine, the operations that have not ended, and the fault of each device. The end
// of an operation is known when it is enqueued; the operation takes effect when the clock reaches that end.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tarn/core/stream.hpp"
#include "tarn/driver/sim/sim_cost.hpp"
#include "tarn/driver/sim/sim_memory.hpp"
#include "tarn/driver/sim/sim_tsan.hpp"
#include "tarn/driver/sim/sim_work.hpp"

namespace TARN_NAMESPACE::detail {

/// Callers hold the machine's lock, except for now().
class sim_timeline {
 public:
  sim_timeline(int devices, sim_memory& memory)
      : memory_(memory), faults_(static_cast<std::size_t>(devices), sim_code::ok) {}

  [[nodiscard]] sim_nanoseconds now() const noexcept { return now_.load(std::memory_order_relaxed); }

  /// Advances the host's clock and runs operations that have become due.
  void advance_to(sim_nanoseconds time) {
    if (time > now()) now_.store(time, std::memory_order_relaxed);
    while (!pending_.empty() && pending_.begin()->first.first <= now()) {
      auto node = pending_.extract(pending_.begin());
      sim_code const outcome = run(node.mapped());
      sim_code& broken = fault(node.mapped().device);
      if (broken == sim_code::ok) broken = outcome;
    }
  }

  /// The error state of a device; once set, every call on the device returns it.
  [[nodiscard]] sim_code& fault(int device) noexcept { return faults_[static_cast<std::size_t>(device)]; }

  /// Adds an operation that ends at a known time, after what is in `past`; adds it to `past`.
  /// @param owner  what keeps the work alive, if `work` does not
  void add(sim_nanoseconds end, int device, std::shared_ptr<sim_work> work, sim_context& context,
           sim_past& past, stream_id stream, std::shared_ptr<void const> owner = nullptr) {
    std::uint64_t const number = ++next_;
    pending_.emplace(std::pair(end, number),
                     operation{device, std::move(owner), {std::move(work), context, past, stream, number}});
  }
  /// Number of operations that have not ended.
  [[nodiscard]] std::size_t pending() const noexcept { return pending_.size(); }

 private:
  struct operation {
    int device;
    std::shared_ptr<void const> owner;
    sim_ordered_work<sim_work> work;
  };

  /// The host looks up what the work accesses; the stream performs the work.
  sim_code run(operation& o) {
    sim_code const allowed = o.work.look([&](sim_work& work) { return work.check_access(memory_); });
    if (allowed != sim_code::ok) return allowed;
    sim_inside_work.store(true, std::memory_order_relaxed);
    o.work.run();
    sim_inside_work.store(false, std::memory_order_relaxed);
    return sim_code::ok;
  }

  sim_memory& memory_;
  std::vector<sim_code> faults_;
  std::map<std::pair<sim_nanoseconds, std::uint64_t>, operation> pending_;
  std::uint64_t next_ = 0;
  std::atomic<sim_nanoseconds> now_{1};  // never 0, which marks an event as unrecorded
};

}  // namespace TARN_NAMESPACE::detail
