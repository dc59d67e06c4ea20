// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a captured stream records: a graph of work, where a node starts after the nodes that it depends on.
//
//   work on S       a node that depends on the leaves of S, and is the only leaf of S from now on
//   record(E, S)    E keeps the leaves of S           wait(S, E)    the leaves of E become leaves of S, too
//
// Every node belongs to a branch: a chain of nodes, each an ancestor of the next. Branch 0 begins with the
// first node.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tarn/core/stream.hpp"
#include "tarn/driver/sim/sim_cost.hpp"
#include "tarn/driver/sim/sim_tsan.hpp"
#include "tarn/driver/sim/sim_work.hpp"

namespace TARN_NAMESPACE::detail {

/// The last nodes of a captured stream, by index.
using sim_leaves = std::vector<std::size_t>;

/// Adds the leaves that are missing.
inline void join(sim_leaves& leaves, sim_leaves const& more) {
  for (std::size_t const n : more) {
    if (std::find(leaves.begin(), leaves.end(), n) == leaves.end()) leaves.push_back(n);
  }
}

/// Work, or a change of owner of some bytes, at one place of a capture.
struct sim_node {
  enum class kind : std::uint8_t { work, allocated, freed };
  kind what = kind::work;
  int device = 0;
  std::size_t branch = 0;
  sim_leaves after;  ///< what it depends on
  // Work.
  std::shared_ptr<sim_work> work;
  sim_nanoseconds duration = 0;
  std::uint64_t owners = 0;  ///< sim_order::owners() when it was captured
  // A change of owner. No node depends on it.
  void const* p = nullptr;
  std::size_t bytes = 0;
};

/// A capture, and then the graph that it recorded.
class sim_capture {
 public:
  explicit sim_capture(stream_id from) noexcept : origin(from) {}
  sim_capture& operator=(sim_capture&&) = delete;
  ~sim_capture() { drop_unordered(nodes_); }

  stream_id const origin;  ///< the stream where it began and must end
  bool invalid = false;
  bool open = true;
  std::uint64_t holds = 0;  ///< sim_order::holds() when it ended

  /// Bytes that the capture allocated or freed.
  struct range {
    void const* p = nullptr;
    std::size_t bytes = 0;
  };

  [[nodiscard]] std::vector<sim_node> const& nodes() const noexcept { return nodes_; }
  /// Number of nodes that are work.
  [[nodiscard]] std::size_t works() const noexcept { return works_; }
  [[nodiscard]] std::size_t branches() const noexcept { return ends_.empty() ? 1 : ends_.size(); }

  /// Adds work after the leaves of a stream, and makes it the stream's only leaf.
  void add_work(sim_node node, sim_leaves& leaves) {
    std::size_t const number = nodes_.size();
    std::vector<std::size_t> known = known_after(leaves);
    node.branch = branch_after(leaves, known);
    if (node.branch == ends_.size()) ends_.push_back(0);
    known.resize(ends_.size());
    known[node.branch] = ends_[node.branch] = number + 1;
    node.after = std::move(leaves);
    nodes_.push_back(std::move(node));
    known_.push_back(std::move(known));
    leaves.assign(1, number);
    ++works_;
  }
  /// Records that bytes change owners after the leaves of a stream.
  void add_mark(sim_node node, sim_leaves const& leaves) {
    node.branch = leaves.empty() ? 0 : nodes_[leaves.front()].branch;
    nodes_.push_back(std::move(node));
    known_.emplace_back();
  }
  /// Adds a whole graph after the leaves of a stream.
  void add_graph(sim_capture const& graph, sim_leaves& leaves) {
    std::vector<std::size_t> at(graph.nodes_.size());
    sim_leaves all = leaves;
    for (std::size_t i = 0; i < graph.nodes_.size(); ++i) {
      sim_node node = graph.nodes_[i];
      sim_leaves after;
      for (std::size_t const n : node.after) after.push_back(at[n]);
      if (after.empty()) after = leaves;
      at[i] = nodes_.size();
      if (node.what != sim_node::kind::work) {
        add_mark(std::move(node), after);
        continue;
      }
      for (std::size_t const n : after) all.erase(std::remove(all.begin(), all.end(), n), all.end());
      add_work(std::move(node), after);
      all.push_back(at[i]);
    }
    leaves = std::move(all);
  }

  /// Returns true if these leaves are ordered after all work.
  [[nodiscard]] bool is_joined(sim_leaves const& leaves) const {
    std::vector<std::size_t> known = known_after(leaves);
    known.resize(ends_.size());
    return known == ends_;
  }

  /// Blocks that it frees but did not allocate: each replay begins with them allocated.
  [[nodiscard]] std::vector<range> const& inputs() const noexcept { return inputs_; }
  /// Blocks that it allocates and does not free.
  [[nodiscard]] std::vector<range> const& outputs() const noexcept { return outputs_; }

  void end(std::uint64_t holds_now) {
    open = false;
    holds = holds_now;
    for (sim_node const& n : nodes_) {
      if (n.what == sim_node::kind::allocated) outputs_.push_back({n.p, n.bytes});
      if (n.what != sim_node::kind::freed) continue;
      auto const it = std::find_if(outputs_.begin(), outputs_.end(), [&](range r) { return r.p == n.p; });
      if (it != outputs_.end()) {
        outputs_.erase(it);
      } else {
        inputs_.push_back({n.p, n.bytes});
      }
    }
  }

 private:
  /// For each branch, the number of its latest node among the leaves and their ancestors, plus one.
  [[nodiscard]] std::vector<std::size_t> known_after(sim_leaves const& leaves) const {
    std::vector<std::size_t> known(ends_.size());
    for (std::size_t const n : leaves) {
      for (std::size_t b = 0; b < known_[n].size(); ++b) known[b] = (std::max)(known[b], known_[n][b]);
    }
    return known;
  }
  /// Returns a branch whose latest node is an ancestor, if possible a dependency; else a new one.
  [[nodiscard]] std::size_t branch_after(sim_leaves const& leaves,
                                         std::vector<std::size_t> const& known) const {
    for (std::size_t const n : leaves) {
      if (ends_[nodes_[n].branch] == n + 1) return nodes_[n].branch;
    }
    std::size_t b = 0;
    while (b < ends_.size() && known[b] != ends_[b]) ++b;
    return b;
  }

  std::vector<sim_node> nodes_;
  std::vector<std::vector<std::size_t>> known_;  ///< of each node, what known_after() would return for it
  std::vector<std::size_t> ends_;                ///< of each branch, the number of its latest node, plus one
  std::vector<range> inputs_, outputs_;
  std::size_t works_ = 0;
};

}  // namespace TARN_NAMESPACE::detail
