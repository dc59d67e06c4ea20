// SPDX-License-Identifier: Apache-2.0
#pragma once
// The order checker of the simulated GPU: happens-before by vector clocks over streams and host threads. It reports any two
// conflicting accesses to the same bytes by different owners that are not ordered.
//
// Every stream and every host timeline is an agent with a clock: entry i is the number of agent i's operations that are known
// to be complete. Knowledge propagates as follows:
//
//   host enqueues on S      S learns what the host knows
//   record(E, S)            E learns what S knows          wait(S, E)            S learns what E knows
//   synchronize(S or E)     the host learns                query(E) = done       the host learns
//
//   publish(token)          the token learns               observe(token)        the host learns
//
// Host threads are one timeline, in the order of their driver calls, unless sim_checks::each_thread requests one timeline per
// thread; then knowledge passes between threads only by publish and observe.
//
// Two accesses are ordered if the later one's clock covers the earlier one's tick. Accesses by the same owner are not checked;
// when bytes change owners (freed, then allocated), the next owner's accesses must cover all accesses of previous owners.
// Bytes are physical: a page that is remapped keeps its history.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "tarn/core/concat.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/sim/sim_memory.hpp"

namespace tarn {

/// Whether simulated work reads or writes.
enum class sim_use : std::uint8_t { reads, writes };

/// Bytes that simulated work accesses.
struct sim_access {
  void const* p = nullptr;
  std::size_t bytes = 0;
  sim_use use = sim_use::reads;
};
[[nodiscard]] constexpr sim_access sim_reads(void const* p, std::size_t bytes) noexcept {
  return {p, bytes, sim_use::reads};
}
[[nodiscard]] constexpr sim_access sim_writes(void const* p, std::size_t bytes) noexcept {
  return {p, bytes, sim_use::writes};
}

namespace detail {

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

/// The checker. Callers hold the machine's lock.
class sim_order {
 public:
  /// Adds an agent that knows nothing. `kind` and `number` name it in findings.
  sim_agent add_agent(char const* kind, std::uint64_t number) {
    agents_.push_back({{}, 0, std::string(kind) + ' ' + std::to_string(number), 0, false});
    return agents_.size() - 1;
  }

  /// Returns the latest agent of that name, for the last uses of a destroyed stream; `none` if there was none.
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

  /// Gives bytes a new owner, whose accesses must cover all earlier ones.
  void allocated(sim_memory const& memory, void const* p, std::size_t bytes, sim_agent on) {
    ++owners_;
    bool free = true;
    segment before;
    each(memory, p, bytes, [&](segment& s) {
      if (s.held && free) {
        free = false;
        before = s;
      }
      s.earlier_reads.join(s.reads);
      s.earlier_writes.join(s.writes);
      s.reads.clear();
      s.writes.clear();
      for (std::size_t i = most_previous; i-- > 1;) s.previous[i] = s.previous[i - 1];
      s.previous[0] = s.current;
      s.current = {owners_, p, bytes, on, none, ticks_of(on), 0};
      s.held = true;
      s.noted = true;
    });
    if (!free) add_finding("bytes allocated twice", {p, bytes, sim_use::writes}, before, on, none);
  }

  /// Takes bytes from their owner: nothing may access them until they have the next one.
  void freed(sim_memory const& memory, void const* p, std::size_t bytes, sim_agent on) {
    bool held = true;
    segment before;
    each(memory, p, bytes, [&](segment& s) {
      if (!s.held && held) {
        held = false;
        before = s;
      }
      s.held = false;
      s.noted = true;
      s.current.freed_on = on;
      s.current.freed_at = ticks_of(on);
    });
    if (!held) add_finding("freed bytes that no block owns", {p, bytes, sim_use::writes}, before, on, none);
  }

  /// Checks and records one access by work on `agent`.
  void access(sim_memory const& memory, sim_access const& a, sim_agent agent) {
    sim_clock const& known = agents_[agent].clock;
    std::uint64_t const now = agents_[agent].ticks;
    bool reported = false;
    each(memory, a.p, a.bytes, [&](segment& s) {
      sim_agent other = none;
      bool const writes = a.use == sim_use::writes;
      if (s.noted && !s.held && !reported) {
        reported = true;
        add_finding(writes ? "write to freed bytes" : "read of freed bytes", a, s, agent, none);
      } else if (!reported && s.earlier_writes.exceeds(known, other)) {
        reported = true;
        add_finding(writes ? "write not ordered after an earlier owner's write"
                           : "read not ordered after an earlier owner's write",
                    a, s, agent, other);
      } else if (!reported && writes && s.earlier_reads.exceeds(known, other)) {
        reported = true;
        add_finding("write not ordered after an earlier owner's read", a, s, agent, other);
      }
      (writes ? s.writes : s.reads).raise(agent, now);
    });
    (void)memory.each_piece(a.p, a.bytes, [&](sim_memory::piece const& piece) {
      if (piece.mapping != 0) through_[piece.mapping].raise(agent, now);
    });
  }

  /// Checks that the host may unmap a range: all work that accessed memory through this mapping must be known to be complete.
  /// Work through other mappings of the same memory does not matter.
  void taken_away(sim_memory const& memory, void const* p, std::size_t bytes, sim_agent host,
                  char const* how) {
    auto const it = through_.find(reinterpret_cast<std::uintptr_t>(p));
    if (it == through_.end()) return;
    sim_agent other = none;
    if (it->second.exceeds(agents_[host].clock, other)) {
      segment used;  // a segment that this agent used: its history is the most useful
      each(memory, p, bytes, [&](segment& s) {
        if (last_of(s, other) >= it->second.at(other)) used = s;
      });
      add_finding(how, {p, bytes, sim_use::writes}, used, host, other);
    }
    through_.erase(it);
  }

  /// Reports the use of a stream under a handle that belonged to another stream when the caller obtained it.
  void stale_handle(char const* call, std::uint64_t meant, sim_agent is_now) {
    if (findings_.size() >= most_findings) return;
    findings_.push_back(
        detail::concat({call, " with the handle of destroyed stream ", std::to_string(meant), ": it is ",
                        name_of_agent(is_now), " now. Call identify() before using a remembered handle."}));
  }
  /// Reports the use of a destroyed stream: CUDA may crash.
  void dead_handle(char const* call, std::uint64_t meant) {
    if (findings_.size() >= most_findings) return;
    findings_.push_back(
        detail::concat({call, " with the handle of stream ", std::to_string(meant),
                        ", which is destroyed: CUDA may crash. Mark the stream's work while it lives."}));
  }

  /// Removes the history of freed physical bytes.
  void forget(std::uint64_t key, std::size_t bytes) {
    split(key);
    split(key + bytes);
    segments_.erase(segments_.lower_bound(key), segments_.lower_bound(key + bytes));
  }

  [[nodiscard]] std::vector<std::string> const& findings() const noexcept { return findings_; }
  [[nodiscard]] std::size_t segments() const noexcept { return segments_.size(); }

 private:
  static constexpr sim_agent none = static_cast<sim_agent>(-1);
  /// Maximum number of findings kept; the first ones matter.
  static constexpr std::size_t most_findings = 1'000;
  /// Number of previous owners that a finding lists.
  static constexpr std::size_t most_previous = 3;

  struct acting {
    sim_clock clock;
    std::uint64_t ticks;
    std::string name;
    std::uint64_t marked = 0;  ///< operations that its last event covers
    bool has_mark = false;
  };
  /// One allocation of a block.
  struct owner {
    std::uint64_t number = 0;
    void const* p = nullptr;
    std::size_t bytes = 0;
    sim_agent allocated_on = none;
    sim_agent freed_on = none;
    std::uint64_t allocated_at = 0;  ///< number of that agent's operations at the time
    std::uint64_t freed_at = 0;
  };
  /// Bytes with the same history.
  struct segment {
    std::size_t bytes = 0;
    bool held = false;   ///< has an owner now
    bool noted = false;  ///< allocated() or freed() was called; other bytes are never reported as freed
    owner current;
    owner previous[most_previous];            ///< latest first
    sim_clock reads, writes;                  ///< by the current owner
    sim_clock earlier_reads, earlier_writes;  ///< by all previous owners
  };

  /// Makes `key` a boundary between segments.
  void split(std::uint64_t key) {
    auto it = segments_.lower_bound(key);
    if (it == segments_.begin() || (it != segments_.end() && it->first == key)) return;
    --it;
    std::size_t const before = key - it->first;
    if (before >= it->second.bytes) return;
    segment rest = it->second;
    rest.bytes -= before;
    it->second.bytes = before;
    segments_.emplace(key, std::move(rest));
  }

  /// Visits the segments behind a range, split to fit it; creates missing ones.
  template <class Visit>
  void each(sim_memory const& memory, void const* p, std::size_t bytes, Visit const& visit) {
    if (bytes == 0) return;
    (void)memory.each_piece(p, bytes, [&](sim_memory::piece piece) {
      std::uint64_t const end = piece.key + piece.bytes;
      split(piece.key);
      split(end);
      std::uint64_t at = piece.key;
      auto it = segments_.lower_bound(at);
      while (at < end) {
        if (it == segments_.end() || it->first > at) {
          std::uint64_t const until = it == segments_.end() || it->first > end ? end : it->first;
          segment fresh;
          fresh.bytes = until - at;
          it = segments_.emplace_hint(it, at, std::move(fresh));
        }
        visit(it->second);
        at += it->second.bytes;
        ++it;
      }
    });
  }

  [[nodiscard]] std::uint64_t ticks_of(sim_agent who) const { return who == none ? 0 : agents_[who].ticks; }
  [[nodiscard]] std::string name_of_agent(sim_agent who) const {
    return who == none ? std::string("an unknown thread") : agents_[who].name;
  }
  void add_owner(std::string& text, owner const& o) const {
    text += detail::concat({"block ", std::to_string(o.number), " ("});
    message<64> size;
    size.add_bytes(o.bytes).add(" at ").add_hex(reinterpret_cast<std::uintptr_t>(o.p));
    text += size.c_str();
    text += detail::concat({", allocated on ", name_of_agent(o.allocated_on), " after its operation ",
                            std::to_string(o.allocated_at)});
    text += o.freed_on == none ? std::string(", not freed)")
                               : detail::concat({", freed on ", name_of_agent(o.freed_on),
                                                 " after its operation ", std::to_string(o.freed_at), ")"});
  }
  /// Returns the last operation of an agent that accessed a segment.
  [[nodiscard]] static std::uint64_t last_of(segment const& s, sim_agent who) {
    std::uint64_t last = 0;
    for (sim_clock const* c : {&s.reads, &s.writes, &s.earlier_reads, &s.earlier_writes}) {
      if (c->at(who) > last) last = c->at(who);
    }
    return last;
  }
  /// Describes the missing event: after which operation, what is known instead, and whether an event was recorded at all.
  void add_missing(std::string& text, segment const& s, sim_agent by, sim_agent other) const {
    std::uint64_t const last = last_of(s, other);
    acting const& them = agents_[other];
    std::uint64_t const known = agents_[by].clock.at(other);
    text += detail::concat({" Missing: an event recorded on ", them.name, " after its last use, operation ",
                            std::to_string(last), ", that ", name_of_agent(by), " waits for. "});
    text += known == 0 ? std::string("None of its work is known there")
                       : detail::concat({"Known there: up to operation ", std::to_string(known)});
    if (!them.has_mark) {
      text += "; no event was ever recorded on it.";
    } else if (them.marked < last) {
      text += detail::concat({"; its last event covers up to operation ", std::to_string(them.marked), "."});
    } else {
      text += "; an event covers it, but was not waited for.";
    }
  }
  void add_finding(char const* what, sim_access const& a, segment const& s, sim_agent by, sim_agent other) {
    if (findings_.size() >= most_findings) return;
    std::string text = what;
    message<64> where;
    where.add(": ").add_bytes(a.bytes).add(" at ").add_hex(reinterpret_cast<std::uintptr_t>(a.p));
    text += where.c_str();
    text += detail::concat({" by ", name_of_agent(by), " (operation ", std::to_string(ticks_of(by)), ")."});
    if (s.current.number != 0) {
      text += " Now: ";
      add_owner(text, s.current);
      text += '.';
    }
    char const* when = " Before: ";
    for (owner const& o : s.previous) {
      if (o.number == 0) break;
      text += when;
      add_owner(text, o);
      text += '.';
      when = " Before that: ";
    }
    if (other != none) add_missing(text, s, by, other);
    findings_.push_back(std::move(text));
  }

  std::vector<acting> agents_;
  std::map<std::uint64_t, segment> segments_;
  std::unordered_map<std::uintptr_t, sim_clock> through_;  ///< what used each mapping, by its start
  std::uint64_t owners_ = 0;
  std::vector<std::string> findings_;
};

}  // namespace detail

}  // namespace tarn
