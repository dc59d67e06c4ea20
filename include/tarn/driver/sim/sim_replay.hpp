// SPDX-License-Identifier: Apache-2.0
#pragma once
// Replay of a captured graph on the simulated GPU. A node starts when its dependencies have ended and the
// launching stream has reached the launch; independent branches run at the same time.
//
// To the order checker, branch 0 is the launching stream, and each other branch of a graph is an agent, the
// same one in all launches: they are ordered after each other, so it knows nothing that a later launch must
// not know.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "tarn/core/text.hpp"
#include "tarn/driver/sim/sim_capture.hpp"
#include "tarn/driver/sim/sim_memory.hpp"
#include "tarn/driver/sim/sim_order.hpp"
#include "tarn/driver/sim/sim_stream_table.hpp"
#include "tarn/driver/sim/sim_timeline.hpp"

namespace TARN_NAMESPACE::detail {

/// A graph that can be launched, like a cudaGraphExec_t. Its launches are ordered after each other.
struct sim_exec {
  struct branch {
    stream_id id = 0;
    sim_agent agent = 0;
    [[no_unique_address]] sim_context context;
  };
  std::shared_ptr<sim_capture const> graph;
  void const* machine = nullptr;  ///< its streams
  std::vector<branch> branches;   ///< all but branch 0
  sim_nanoseconds end = 0;        ///< of the last launch
  sim_clock clock;                ///< what is known after the last launch
  [[no_unique_address]] sim_past past;
};

/// One launch.
class sim_replay {
 public:
  sim_replay(sim_memory const& memory, sim_timeline& timeline, sim_order* order, sim_schedule& schedule,
             std::vector<sim_device>& devices, sim_stream& stream, sim_exec& exec)
      : memory_(memory),
        timeline_(timeline),
        order_(order),
        schedule_(schedule),
        devices_(devices),
        stream_(stream),
        exec_(exec),
        graph_(*exec.graph),
        done_(graph_.nodes().size()) {}

  /// Enqueues all nodes. Work enqueued on the stream afterwards is ordered after them.
  /// @param start  when the stream has reached the launch
  void run(sim_nanoseconds start) {
    begin_.end = start < exec_.end ? exec_.end : start;
    stream_.past.join(exec_.past);
    begin_.past = stream_.past;
    std::vector<sim_capture::range> const freed_since = take_inputs();
    sim_nanoseconds end = begin_.end;
    for (std::size_t i = 0; i < done_.size(); ++i) {
      sim_node const& n = graph_.nodes()[i];
      if (n.what == sim_node::kind::work) {
        add(n, done_[i]);
        end = (std::max)(end, done_[i].end);
      } else if (order_ != nullptr) {
        if (!is_others(n.p, n.bytes)) change_owner(n.what, n.p, n.bytes, agent_of(n.branch));
      }
    }
    for (moment const& m : done_) stream_.past.join(m.past);
    if (order_ != nullptr) {
      for (auto const& b : exec_.branches) order_->learn(stream_.agent, order_->clock(b.agent));
      // One operation after all branches: whoever knows it knows them.
      if (!exec_.branches.empty()) order_->tick(stream_.agent);
      for (auto const& r : freed_since) change_owner(sim_node::kind::freed, r.p, r.bytes, stream_.agent);
      exec_.clock = order_->clock(stream_.agent);
    }
    exec_.past = stream_.past;
    exec_.end = end;
    device(stream_.device).finish_on(stream_, end, order_);
  }

 private:
  /// When a node ends, and what is known then.
  struct moment {
    sim_nanoseconds end = 0;
    sim_clock clock;
    [[no_unique_address]] sim_past past;
  };

  [[nodiscard]] sim_device& device(int number) noexcept { return devices_[static_cast<std::size_t>(number)]; }
  [[nodiscard]] sim_agent agent_of(std::size_t branch) const noexcept {
    return branch == 0 ? stream_.agent : exec_.branches[branch - 1].agent;
  }
  void change_owner(sim_node::kind what, void const* p, std::size_t bytes, sim_agent on) {
    if (what == sim_node::kind::allocated) {
      order_->allocated_again(memory_, p, bytes, on, graph_.holds);
    } else {
      order_->freed_again(memory_, p, bytes, on, graph_.holds);
    }
  }
  /// Passes to the stream what the last launch knew, and makes the bytes that the graph holds what they were
  /// when its capture began. Returns the blocks of the capture that were freed since: they are free again
  /// afterwards.
  std::vector<sim_capture::range> take_inputs() {
    std::vector<sim_capture::range> freed_since;
    if (order_ == nullptr) return freed_since;
    order_->learn(stream_.agent, exec_.clock);
    begin_.clock = order_->clock(stream_.agent);
    for (auto const& r : graph_.outputs()) {
      if (!order_->is_held(memory_, r.p, r.bytes)) freed_since.push_back(r);
    }
    note_others();
    for (auto const& r : graph_.inputs()) {
      if (is_others(r.p, r.bytes)) continue;
      change_owner(sim_node::kind::allocated, r.p, r.bytes, stream_.agent);
    }
    return freed_since;
  }
  /// Notes the blocks that a later capture of the same memory got in place of one that this graph frees, and
  /// that are live now: they stay live. Their contents are lost.
  void note_others() {
    for (sim_node const& n : graph_.nodes()) {
      if (n.what == sim_node::kind::freed && !is_others(n.p, n.bytes) &&
          order_->is_owned(memory_, n.p, n.bytes))
        others_.push_back({n.p, n.bytes});
    }
  }
  [[nodiscard]] bool is_others(void const* p, std::size_t bytes) const {
    return std::any_of(others_.begin(), others_.end(),
                       [&](auto const& r) { return r.p == p && r.bytes == bytes; });
  }
  void add(sim_node const& n, moment& m) {
    sim_agent const agent = agent_of(n.branch);
    wait_for(begin_, m, agent);
    for (std::size_t const before : n.after) wait_for(done_[before], m, agent);
    m.end += n.duration + delay_on(stream_, schedule_);
    if (order_ != nullptr) {
      order_->tick(agent);
      sim_order::recorded const captured{n.owners, graph_.holds};
      for (sim_access const& a : n.work->touched) order_->access(memory_, a, agent, &captured);
      m.clock = order_->clock(agent);
    }
    // Streams destroy the work that they ran; this work belongs to the graph.
    std::shared_ptr<sim_work> work(std::shared_ptr<void>(), n.work.get());
    if (n.branch == 0) {
      timeline_.add(m.end, n.device, std::move(work), stream_.context, m.past, stream_.id, exec_.graph);
    } else {
      auto& b = exec_.branches[n.branch - 1];
      timeline_.add(m.end, n.device, std::move(work), b.context, m.past, b.id, exec_.graph);
    }
    if (n.device == stream_.device) return;  // the stream's end covers it
    auto& d = device(n.device);
    d.tail = (std::max)(d.tail, m.end);
    d.past.join(m.past);
    d.clock.join(m.clock);
  }
  void wait_for(moment const& before, moment& m, sim_agent agent) {
    m.end = (std::max)(m.end, before.end);
    m.past.join(before.past);
    if (order_ != nullptr) order_->learn(agent, before.clock);
  }

  sim_memory const& memory_;
  sim_timeline& timeline_;
  sim_order* order_;
  sim_schedule& schedule_;
  std::vector<sim_device>& devices_;
  sim_stream& stream_;
  sim_exec& exec_;
  sim_capture const& graph_;
  moment begin_;
  std::vector<sim_capture::range> others_;
  std::vector<moment> done_;
};

}  // namespace TARN_NAMESPACE::detail
