// SPDX-License-Identifier: Apache-2.0
#pragma once
// The order checker of the simulated GPU: happens-before by vector clocks over streams and host threads. It
// reports any two conflicting accesses to the same bytes by different owners that are not ordered.
//
// Every stream and every host timeline is an agent with a clock: entry i is the number of agent i's
// operations that are known to be complete. Knowledge propagates as follows:
//
//   host enqueues on S      S learns what the host knows
//   record(E, S)            E learns what S knows          wait(S, E)            S learns what E knows
//   synchronize(S or E)     the host learns                query(E) = done       the host learns
//
//   publish(token)          the token learns               observe(token)        the host learns
//
// Host threads are one timeline, in the order of their driver calls, unless sim_checks::each_thread requests
// one timeline per thread; then knowledge passes between threads only by publish and observe.
//
// Two accesses are ordered if the later one's clock covers the earlier one's tick. Accesses by the same owner
// are not checked; when bytes change owners (freed, then allocated), the next owner's accesses must cover all
// accesses of previous owners. Bytes are physical: a page that is remapped keeps its history.
//
// Replays of a graph access the addresses of its capture. Bytes that were allocated or freed on a captured
// stream are held by the graph until eager work gets them, or, after graph_holds(), until graph_released():
// each replay repeats the changes of owner in the order of the capture. Other bytes must have the owner that
// they had when the access was captured.
//
// Over 400 lines: a stretch, the changes of its owner and the text of a finding about it are read together.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "tarn/core/message.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/text.hpp"
#include "tarn/driver/sim/sim_agents.hpp"
#include "tarn/driver/sim/sim_memory.hpp"
#include "tarn/driver/sim/sim_work.hpp"

namespace TARN_NAMESPACE {

namespace detail {

/// Whether a block was allocated or freed by eager work, or inside a capture.
enum class sim_place : std::uint8_t { eager, captured };

/// The checker. Callers hold the machine's lock.
class sim_order : public sim_agents {
 public:
  /// Gives bytes a new owner, whose accesses must cover all earlier ones.
  void allocated(sim_memory const& memory, void const* p, std::size_t bytes, sim_agent on,
                 sim_place where = sim_place::eager) {
    ++owners_;
    if (where == sim_place::captured) ++holds_;
    char const* wrong = nullptr;
    stretch before;
    std::size_t behind = 0;
    each(memory, p, bytes, [&](stretch& s) {
      behind += s.bytes;
      char const* const found = s.held ? "bytes allocated twice"
                                : s.promised && where == sim_place::eager
                                    ? "bytes that a graph holds are allocated outside its captures"
                                    : nullptr;
      if (found != nullptr && wrong == nullptr) {
        wrong = found;
        before = s;
      }
      give(s, p, bytes, on);
      if (where == sim_place::eager && !s.promised) s.kept = 0;  // a later replay is a finding
      if (where == sim_place::captured && s.kept == 0) s.kept = holds_;
    });
    if (behind < bytes) without_pages_.insert(p);  // its pool falls asleep meanwhile
    if (wrong != nullptr) add_finding(wrong, {p, bytes, sim_use::writes}, before, on, none);
  }

  /// Takes bytes from their owner: nothing may access them until they have the next one.
  void freed(sim_memory const& memory, void const* p, std::size_t bytes, sim_agent on,
             sim_place where = sim_place::eager) {
    if (where == sim_place::captured) ++holds_;
    bool held = true;
    stretch before;
    each(memory, p, bytes, [&](stretch& s) {
      if (!s.held && held) {
        held = false;
        before = s;
      }
      take(s, on);
      if (where == sim_place::captured && s.kept == 0) s.kept = holds_;
    });
    if (!held && without_pages_.erase(p) == 0)
      add_finding("freed bytes that no block owns", {p, bytes, sim_use::writes}, before, on, none);
  }

  /// Lets the memory of graphs hold bytes until graph_released(). `holder` names that memory: bytes cannot
  /// have two.
  void graph_holds(sim_memory const& memory, void const* p, std::size_t bytes, void const* holder) {
    ++holds_;
    bool reported = false;
    each(memory, p, bytes, [&](stretch& s) {
      if (s.kept == 0) s.kept = holds_;
      s.noted = s.promised = true;
      if (holder == nullptr) return;
      if (s.kept_by != nullptr && s.kept_by != holder && !reported) {
        reported = true;
        add_finding("bytes that the memory of two graphs holds", {p, bytes, sim_use::writes}, s, none, none);
      }
      s.kept_by = holder;
    });
  }
  /// The same for physical memory that is new behind addresses that graphs held before: all of these graphs
  /// may use it.
  void graph_holds_again(sim_memory const& memory, void const* p, std::size_t bytes) {
    each(memory, p, bytes, [](stretch& s) {
      if (!s.noted) s.kept = 1;
      s.promised = s.promised || !s.noted;
    });
  }
  /// Until called again with false, graph_released() of another address of the same physical memory changes
  /// nothing.
  void graph_stays(sim_memory const& memory, void const* p, std::size_t bytes, bool stays) {
    each(memory, p, bytes, [=](stretch& s) { s.stays = stays; });
  }
  void graph_released(sim_memory const& memory, void const* p, std::size_t bytes) {
    each(memory, p, bytes, [](stretch& s) {
      if (s.stays) return;
      s.kept = 0;
      s.promised = false;
      s.kept_by = nullptr;
    });
  }

  /// Returns the number of owners that bytes have had so far, for the accesses of a capture.
  [[nodiscard]] std::uint64_t owners() const noexcept { return owners_; }
  /// Returns the number of times that graphs took hold of bytes so far, for a capture that ends.
  [[nodiscard]] std::uint64_t holds() const noexcept { return holds_; }
  /// Returns true if no byte was freed.
  [[nodiscard]] bool is_held(sim_memory const& memory, void const* p, std::size_t bytes) {
    bool held = true;
    each(memory, p, bytes, [&](stretch& s) { held = held && (s.held || !s.noted); });
    return held;
  }

  /// Returns true if a block of exactly these bytes owns some of them.
  [[nodiscard]] bool is_owned(sim_memory const& memory, void const* p, std::size_t bytes) {
    bool owned = false;
    each(memory, p, bytes, [&](stretch const& s) {
      owned = owned || (s.held && s.current.p == p && s.current.bytes == bytes);
    });
    return owned;
  }

  /// Repeats in a replay what allocated() did in its capture, when `holds` was what holds() returned.
  void allocated_again(sim_memory const& memory, void const* p, std::size_t bytes, sim_agent on,
                       std::uint64_t holds) {
    ++owners_;
    each(memory, p, bytes, [&](stretch& s) {
      bool const is_others = s.held && (s.current.p != p || s.current.bytes != bytes);
      // Lost: accesses by the replay are findings. In new physical memory at the same address the owner is
      // not known.
      if (!s.noted || !is_kept(s, holds) || is_others) return;
      std::uint64_t const number = s.current.number;
      bool const is_same = s.held;  // the capture did not free it, and nothing else did: for other graphs it
                                    // stays the same block
      give(s, p, bytes, on);
      if (is_same) s.current.number = number;
    });
  }
  void freed_again(sim_memory const& memory, void const* p, std::size_t bytes, sim_agent on,
                   std::uint64_t holds) {
    each(memory, p, bytes, [&](stretch& s) {
      if (is_kept(s, holds) && s.current.p == p && s.current.bytes == bytes) take(s, on);
    });
  }

  /// What the checker knew when an access was captured.
  struct recorded {
    std::uint64_t owners = 0;  ///< owners() when the access was captured
    std::uint64_t holds = 0;   ///< holds() when the capture ended
  };

  /// Checks and records one access by work on `agent`.
  /// @param replayed  null for eager work
  void access(sim_memory const& memory, sim_access const& a, sim_agent agent,
              recorded const* replayed = nullptr) {
    sim_clock const& known = agents_[agent].clock;
    std::uint64_t const now = agents_[agent].ticks;
    bool reported = false;
    each(memory, a.p, a.bytes, [&](stretch& s) {
      sim_agent other = none;
      bool const writes = a.use == sim_use::writes;
      if (s.noted && !s.held && !reported) {
        reported = true;
        add_finding(writes ? "write to freed bytes" : "read of freed bytes", a, s, agent, none);
      } else if (!reported && replayed != nullptr && s.current.number > replayed->owners &&
                 !is_kept(s, replayed->holds)) {
        reported = true;
        add_finding(writes ? "write by a replay to bytes that got another owner after the capture"
                           : "read by a replay of bytes that got another owner after the capture",
                    a, s, agent, none);
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

  /// Checks that the host may unmap a range: all work that accessed memory through this mapping must be known
  /// to be complete. Work through other mappings of the same memory does not matter.
  void taken_away(sim_memory const& memory, void const* p, std::size_t bytes, sim_agent host,
                  char const* how) {
    auto const it = through_.find(reinterpret_cast<std::uintptr_t>(p));
    if (it == through_.end()) return;
    sim_agent other = none;
    if (it->second.exceeds(agents_[host].clock, other)) {
      stretch used;  // a stretch that this agent used: its history is the most useful
      each(memory, p, bytes, [&](stretch& s) {
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

  /// Removes the history of freed physical bytes. A block in them keeps its addresses (its pool sleeps) and
  /// may be freed later.
  void forget(std::uint64_t key, std::size_t bytes) {
    split(key);
    split(key + bytes);
    auto const end = stretches_.lower_bound(key + bytes);
    for (auto it = stretches_.lower_bound(key); it != end; it = stretches_.erase(it)) {
      if (it->second.held) without_pages_.insert(it->second.current.p);
    }
  }

  [[nodiscard]] std::vector<std::string> const& findings() const noexcept { return findings_; }
  [[nodiscard]] std::size_t stretches() const noexcept { return stretches_.size(); }

 private:
  /// Maximum number of findings kept; the first ones matter.
  static constexpr std::size_t most_findings = 1'000;
  /// Number of previous owners that a finding lists.
  static constexpr std::size_t most_previous = 3;

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
  struct stretch {
    std::size_t bytes = 0;
    bool held = false;       ///< has an owner now
    bool noted = false;      ///< allocated() or freed() was called; other bytes are never reported as freed
    std::uint64_t kept = 0;  ///< when a graph took hold of it; 0: no graph holds it
    bool promised = false;   ///< graph_holds() was called: eager work must not get it
    bool stays = false;      ///< graph_stays() was called
    void const* kept_by = nullptr;  ///< the graph's memory, if named
    owner current;
    owner previous[most_previous];            ///< latest first
    sim_clock reads, writes;                  ///< by the current owner
    sim_clock earlier_reads, earlier_writes;  ///< by all previous owners
  };

  [[nodiscard]] static bool is_kept(stretch const& s, std::uint64_t holds) noexcept {
    return s.kept != 0 && s.kept <= holds;
  }
  /// Gives a stretch the latest owner.
  void give(stretch& s, void const* p, std::size_t bytes, sim_agent on) {
    s.earlier_reads.join(s.reads);
    s.earlier_writes.join(s.writes);
    s.reads.clear();
    s.writes.clear();
    for (std::size_t i = most_previous; i-- > 1;) s.previous[i] = s.previous[i - 1];
    s.previous[0] = s.current;
    s.current = {owners_, p, bytes, on, none, ticks_of(on), 0};
    s.held = true;
    s.noted = true;
  }
  void take(stretch& s, sim_agent on) {
    s.held = false;
    s.noted = true;
    s.current.freed_on = on;
    s.current.freed_at = ticks_of(on);
  }

  /// Makes `key` a boundary between stretches.
  void split(std::uint64_t key) {
    auto it = stretches_.lower_bound(key);
    if (it == stretches_.begin() || (it != stretches_.end() && it->first == key)) return;
    --it;
    std::size_t const before = key - it->first;
    if (before >= it->second.bytes) return;
    stretch rest = it->second;
    rest.bytes -= before;
    it->second.bytes = before;
    stretches_.emplace(key, std::move(rest));
  }

  /// Visits the stretches behind a range, split to fit it; creates missing ones.
  template <class Visit>
  void each(sim_memory const& memory, void const* p, std::size_t bytes, Visit const& visit) {
    if (bytes == 0) return;
    (void)memory.each_piece(p, bytes, [&](sim_memory::piece piece) {
      std::uint64_t const end = piece.key + piece.bytes;
      split(piece.key);
      split(end);
      std::uint64_t at = piece.key;
      auto it = stretches_.lower_bound(at);
      while (at < end) {
        if (it == stretches_.end() || it->first > at) {
          std::uint64_t const until = it == stretches_.end() || it->first > end ? end : it->first;
          stretch fresh;
          fresh.bytes = until - at;
          it = stretches_.emplace_hint(it, at, std::move(fresh));
        }
        visit(it->second);
        at += it->second.bytes;
        ++it;
      }
    });
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
  /// Returns the last operation of an agent that accessed a stretch.
  [[nodiscard]] static std::uint64_t last_of(stretch const& s, sim_agent who) {
    std::uint64_t last = 0;
    for (sim_clock const* c : {&s.reads, &s.writes, &s.earlier_reads, &s.earlier_writes})
      last = detail::max_of(last, c->at(who));
    return last;
  }
  /// Describes the missing event: after which operation, what is known instead, and whether an event was
  /// recorded at all.
  void add_missing(std::string& text, stretch const& s, sim_agent by, sim_agent other) const {
    std::uint64_t const last = last_of(s, other);
    sim_agents::acting const& them = agents_[other];
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
  void add_finding(char const* what, sim_access const& a, stretch const& s, sim_agent by, sim_agent other) {
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

  std::map<std::uint64_t, stretch> stretches_;
  std::unordered_map<std::uintptr_t, sim_clock> through_;  ///< what used each mapping, by its start
  std::set<void const*> without_pages_;  ///< blocks that had no physical memory at some time
  std::uint64_t owners_ = 0;
  std::uint64_t holds_ = 0;
  std::vector<std::string> findings_;
};

}  // namespace detail

}  // namespace TARN_NAMESPACE
