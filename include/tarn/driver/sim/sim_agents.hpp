// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who acts on the simulated GPU, and what each knows: the agents of the order checker and their vector
// clocks.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

/// An agent: an index into every clock.
using sim_agent = std::size_t;

/// A vector clock: how much of each agent's past is known.
class sim_clock {
 public:
  [[nodiscard]] std::uint64_t at(sim_agent agent) const noexcept {
    return agent < ticks_.size() ? ticks_[agent] : 0;
  }
  void raise(sim_agent agent, std::uint64_t tick) {
    if (agent >= ticks_.size()) ticks_.resize(agent + 1);
    if (ticks_[agent] < tick) ticks_[agent] = tick;
  }
  void join(sim_clock const& other) {
    if (ticks_.size() < other.ticks_.size()) ticks_.resize(other.ticks_.size());
    for (std::size_t i = 0; i < other.ticks_.size(); ++i) {
      if (ticks_[i] < other.ticks_[i]) ticks_[i] = other.ticks_[i];
    }
  }
  [[nodiscard]] bool is_empty() const noexcept { return ticks_.empty(); }
  void clear() noexcept { ticks_.clear(); }
  /// Finds the first agent whose tick here exceeds that in `known`; returns false if all ticks are known.
  [[nodiscard]] bool exceeds(sim_clock const& known, sim_agent& who) const noexcept {
    for (std::size_t i = 0; i < ticks_.size(); ++i) {
      if (ticks_[i] > known.at(i)) {
        who = i;
        return true;
      }
    }
    return false;
  }

 private:
  std::vector<std::uint64_t> ticks_;
};

/// The agents of a machine. Callers hold the machine's lock.
class sim_agents {
 public:
  /// Adds an agent that knows nothing. `kind` and `number` name it in findings.
  sim_agent add_agent(char const* kind, std::uint64_t number) {
    agents_.push_back({{}, 0, std::string(kind) + ' ' + std::to_string(number), 0, false});
    return agents_.size() - 1;
  }

  /// Returns the latest agent of that name, for the last uses of a destroyed stream; `none` if there was
  /// none.
  [[nodiscard]] sim_agent agent_of(char const* kind, std::uint64_t number) const {
    std::string const name = std::string(kind) + ' ' + std::to_string(number);
    for (sim_agent a = agents_.size(); a-- > 0;) {
      if (agents_[a].name == name) return a;
    }
    return none;
  }

  [[nodiscard]] sim_clock const& clock(sim_agent agent) const noexcept { return agents_[agent].clock; }
  void learn(sim_agent agent, sim_clock const& what) { agents_[agent].clock.join(what); }

  /// Records that an event covers what the agent did so far.
  void marked(sim_agent agent) {
    agents_[agent].marked = agents_[agent].ticks;
    agents_[agent].has_mark = true;
  }

  /// Counts one more operation of an agent; its own clock covers it from now on.
  void tick(sim_agent agent) { agents_[agent].clock.raise(agent, ++agents_[agent].ticks); }

  /// Returns true if everything that `first` has done is known to `second`.
  [[nodiscard]] bool is_ordered(sim_agent first, sim_agent second) const noexcept {
    return agents_[second].clock.at(first) >= agents_[first].ticks;
  }

 protected:
  static constexpr sim_agent none = static_cast<sim_agent>(-1);

  struct acting {
    sim_clock clock;
    std::uint64_t ticks;
    std::string name;
    std::uint64_t marked = 0;  ///< operations that its last event covers
    bool has_mark = false;
  };

  [[nodiscard]] std::uint64_t ticks_of(sim_agent who) const { return who == none ? 0 : agents_[who].ticks; }
  [[nodiscard]] std::string name_of_agent(sim_agent who) const {
    return who == none ? std::string("an unknown thread") : agents_[who].name;
  }

  std::vector<acting> agents_;
};

}  // namespace TARN_NAMESPACE::detail
