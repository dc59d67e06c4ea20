// SPDX-License-Identifier: Apache-2.0
#pragma once
// tarn/testing.hpp over the single tarn.hpp, made by .ci/amalgamate.py. Do not edit.
#include "tarn.hpp"
// ---- tarn/testing.hpp
// For tests of programs that use tarn: allocations that fail, and what is still allocated at the end. Opt-in.
// The simulated device is tarn/sim.hpp.

// ---- tarn/policy/failing.hpp
// failing: refuses the allocation with a given number, for tests of what a program does without memory.

#include <atomic>
#include <cstdint>
#include <utility>

namespace TARN_NAMESPACE {

template <class Upstream>
class failing_layer;

/// Refuses allocation number `call` with out_of_memory and passes on the others. A test lets each allocation
/// of a program fail in turn, until the program makes fewer than `call` of them:
///
///   for (std::uint64_t call = 1;; ++call) {
///     auto memory = pool | tarn::failing{.call = call};
///     try {
///       program(memory);
///     } catch (tarn::out_of_memory const&) {
///     }
///     CHECK(tarn::memory_allocated(pool) == 0);
///     if (!memory->has_failed()) break;
///   }
///
/// A class that is no template takes the memory as any_resource. What asks again when it is refused, as
/// growing_buffer does with fewer bytes, survives one refusal: `failing{.call = call, .times = 2}`.
struct failing {
  std::uint64_t call = 1;   ///< counted from 1 since the layer was made; 0: none is refused
  std::uint64_t times = 1;  ///< how many calls in a row are refused, from 1 on

  template <class Upstream>
  using layer = failing_layer<Upstream>;
};

/// Counts allocations of any thread, with and without a stream, and the growth of a growing_buffer; those of
/// zero bytes are not counted, nor is extend(). Only allocations fail, not copies, streams or events.
/// Thread-safe. One relaxed atomic operation per allocation.
template <class Upstream>
class failing_layer : public resource_adaptor<failing_layer<Upstream>, Upstream> {
  using base = resource_adaptor<failing_layer<Upstream>, Upstream>;

 public:
  failing_layer(Upstream upstream, failing const& options) : base(std::move(upstream)), options_(options) {}

  /// @throws out_of_memory  the number of this call is refused, or the upstream refused
  [[nodiscard]] void* around_allocate(request const& r, auto const& next) {
    if (r.bytes != 0) {
      std::uint64_t const call = calls_.fetch_add(1, std::memory_order_relaxed) + 1;
      if (is_from_first(call) && call - options_.call < options_.times) refuse(r);
    }
    return next.allocate(r);
  }
  [[nodiscard]] bool around_extend(request const& r, void* p, std::size_t more, auto const& next) {
    return next.extend(r, p, more);
  }
  /// Whether an allocation was refused here.
  [[nodiscard]] bool has_failed() const noexcept {
    return options_.times != 0 && is_from_first(calls_.load(std::memory_order_relaxed));
  }

 private:
  [[nodiscard]] bool is_from_first(std::uint64_t call) const noexcept {
    return options_.call != 0 && call >= options_.call;
  }
  [[noreturn]] TARN_NOINLINE void refuse(request const& r) const {
    memory_report report = this->report_of(r);
    report.refused_by = "failing";
    throw out_of_memory(report, " A test refuses this allocation.");
  }

  failing const options_;
  std::atomic<std::uint64_t> calls_{0};
};

}  // namespace TARN_NAMESPACE
// ---- tarn/report/live_blocks_summary.hpp
// live_blocks_summary: what is still allocated, as text, for the end of a test.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

// ---- tarn/debug/memory_history.hpp
#ifndef TARN_SINGLE_DEBUG_MEMORY_HISTORY_HPP
#define TARN_SINGLE_DEBUG_MEMORY_HISTORY_HPP
// A copy of what a `with_history` layer recorded, at one moment: plain data for reports. Call stacks come
// from a hook: the program chooses how to walk the stack and how to name a frame. debug/backtrace.hpp
// provides glibc's.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace TARN_NAMESPACE {

/// One frame of a location: file, line and function, outermost last.
struct history_frame {
  std::string file;
  int line = 0;
  std::string function;
};

/// A block that is handed out. Address and bytes are those of the pool's block, with the fences of layers
/// below.
struct history_block {
  std::uintptr_t address = 0;
  std::size_t requested = 0;   ///< bytes requested by the caller
  std::size_t bytes = 0;       ///< bytes that it occupies
  stream_id stream = 0;        ///< of the allocation
  std::uint32_t tag = 0;       ///< index into memory_history::tags; 0 is "untagged"
  std::uint32_t location = 0;  ///< index into memory_history::locations; 0 if unknown
  std::uint64_t time_ns = 0;   ///< since memory_history::started_ns
};

/// A block that its user has freed, and that a layer below keeps from reuse, as the quarantine of `checked`
/// does.
struct quarantined_block {
  std::uintptr_t address = 0;
  std::size_t requested = 0;
};

enum class history_event_kind : std::uint8_t { allocate, free, refused };

/// One call, in the order in which the calls took effect.
struct history_event {
  history_event_kind kind = history_event_kind::allocate;
  std::uintptr_t address = 0;  ///< 0 for a refusal
  std::size_t requested = 0;   ///< bytes; for a refusal, those requested
  std::size_t bytes = 0;       ///< bytes that it occupies; 0 for a refusal
  stream_id stream = 0;        ///< of this call
  std::uint32_t tag = 0;
  std::uint32_t location = 0;
  std::uint64_t time_ns = 0;
};

/// The amounts of one tag. Bytes as the blocks occupy them.
struct history_tag {
  std::string name;
  std::size_t bytes = 0;
  std::size_t peak_bytes = 0;
  std::size_t requested = 0;
  std::size_t blocks = 0;
  std::uint64_t allocations = 0;
};

struct memory_history {
  std::uint64_t started_ns = 0;  ///< when the layer was made, since 1970
  std::uint64_t now_ns = 0;      ///< when this was copied, since started_ns
  std::uint64_t steady_ns = 0;   ///< the steady clock at started_ns; 0 with a user's clock
  std::vector<history_block> live;
  std::vector<quarantined_block> quarantined;
  std::vector<history_event> events;                  ///< the latest ones, oldest first
  std::uint64_t forgotten_events = 0;                 ///< older ones that the ring no longer holds
  std::vector<history_tag> tags;                      ///< tags[0] is "untagged"
  std::vector<std::vector<history_frame>> locations;  ///< innermost frame first; locations[0] is empty
};

namespace detail {

/// The nearest record of blocks above the pool: one below it records the pool's segments. No lambda: nvcc
/// drops the constraint of one.
struct ask_record {
  static constexpr bool ends_at_pools = true;
  template <class L>
  auto operator()(L& l) const
      -> std::enable_if_t<std::same_as<std::remove_cvref_t<decltype(l.record())>, memory_history>,
                          memory_history> {
    return l.record();
  }
};

}  // namespace detail

/// How call stacks are captured and, much later, named. Both functions are called from any thread and must
/// not allocate from the memory that is watched. An exception from `capture` ends the program; one from
/// `name` propagates from record().
struct stack_hooks {
  /// Writes the return addresses of the calling thread, innermost first; returns their number, at most
  /// `most`. Null: no stacks.
  std::size_t (*capture)(void** frames, std::size_t most) = nullptr;
  /// Fills in what is known of one address. Called only when a record is made. Null: the address as a number.
  void (*name)(void* frame, history_frame& out) = nullptr;
};

/// Number of innermost frames that are kept of a stack.
inline constexpr std::size_t stack_depth = 32;

}  // namespace TARN_NAMESPACE
#endif  // TARN_SINGLE_DEBUG_MEMORY_HISTORY_HPP

namespace TARN_NAMESPACE {

/// Returns what is allocated from `memory` now, as text; an empty text if nothing is. Every test framework
/// prints both sides of a comparison that fails:
///
///   CHECK(tarn::live_blocks_summary(pool) == "");      // Catch2 2 and 3
///   EXPECT_EQ(tarn::live_blocks_summary(pool), "");    // GoogleTest
///
/// Of memory with `tracked` the text is "2 blocks with 5 KiB are live"; `with_history` adds a line for each
/// block, the largest first, with its bytes, its tag and the line that allocated it.
/// @param most  blocks that are listed
/// Freed blocks that wait for other streams are not live. Those that `checked` has in quarantine are verified
/// and given back first. Costs as memory_allocated(), with `with_history` as
/// a copy of its records. @throws std::bad_alloc
template <class Resource>
[[nodiscard]] std::string live_blocks_summary(Resource memory, std::size_t most = 10) {
  constexpr bool has_record = reachable<Resource, detail::ask_record>;
  static_assert(
      detail::is_tracked<Resource> || has_record,
      "tarn: live_blocks_summary needs counts or records; add: | tarn::tracked{} or | tarn::with_history{}");
  detail::release_quarantine(memory);
  memory_history history;
  if constexpr (has_record) history = nearest(memory, detail::ask_record{});
  auto blocks = static_cast<std::int64_t>(history.live.size());
  std::int64_t bytes = 0;
  for (history_block const& b : history.live) bytes += static_cast<std::int64_t>(b.requested);
  if constexpr (detail::is_tracked<Resource>) {
    tracked_statistics const counts = nearest(memory, detail::ask_statistics);
    if (counts.allocations[0].current != 0) {
      blocks = counts.allocations[0].current;
      bytes = counts.requested_bytes[0].current;
    }
  }
  if (blocks == 0) return {};
  if (blocks < 0 || bytes < 0)
    return "more was freed than allocated; add | tarn::checked{} to find the double free or the wrong size";
  message<64> first;
  first.add_number(static_cast<std::uint64_t>(blocks)).add(blocks == 1 ? " block with " : " blocks with ");
  first.add_bytes(static_cast<std::uint64_t>(bytes)).add(blocks == 1 ? " is live" : " are live");
  std::string out(first.view());
  std::sort(history.live.begin(), history.live.end(), [](history_block const& a, history_block const& b) {
    return a.requested != b.requested ? a.requested > b.requested : a.address < b.address;
  });
  std::size_t const listed = detail::min_of(most, history.live.size());
  for (std::size_t i = 0; i < listed; ++i) {
    history_block const& b = history.live[i];
    message<512> line;
    line.add("\n  ").add_bytes(b.requested);
    if (b.tag != 0) line.add(" \"").add_printable(history.tags[b.tag].name).add("\"");
    if (auto const& stack = history.locations[b.location]; !stack.empty())
      line.add(" at ").add_printable(stack[0].file).add(":").add_number(stack[0].line);
    out += line.view();
  }
  if (std::size_t const rest = history.live.size() - listed; rest != 0)
    out += message<64>("\n  and ", rest, " more").view();
  return out;
}

}  // namespace TARN_NAMESPACE
