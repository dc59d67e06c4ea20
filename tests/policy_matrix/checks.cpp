// SPDX-License-Identifier: Apache-2.0
// The checks. Each is a correct program, so every finding is a bug of the library.
#include "checks.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "report/undo.hpp"
#include "report/unpickle.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/misuse.hpp"
#include "tarn/report/perfetto.hpp"
#include "tarn/report/pickle.hpp"

namespace policy_matrix {

namespace {

using namespace tarn::literals;
using tarn::stream_ref;

/// Reported misuses. They are added to the report as findings, since every program here is correct.
std::vector<std::string>& misuses() {
  static std::vector<std::string> all;
  return all;
}
class misuse_watch {
 public:
  misuse_watch()
      : before_(tarn::set_misuse_handler([](tarn::misuse const& m) { misuses().push_back(m.what()); })) {}
  misuse_watch(misuse_watch const&) = delete;
  misuse_watch& operator=(misuse_watch const&) = delete;
  ~misuse_watch() { (void)tarn::set_misuse_handler(before_); }

 private:
  tarn::misuse_handler before_;
};
void collect(test_device& device, report& out, bool const writes_below_pool = false) {
  for (std::string const& f : device.findings()) {
    bool const of_segment = f.find("freed bytes") != f.npos;
    if (!writes_below_pool || !of_segment) out.add(f);
  }
  for (std::string const& m : misuses()) out.add("misuse reported for a correct program: " + m);
  misuses().clear();
}

struct block {
  void* p = nullptr;
  std::size_t bytes = 0;
  std::size_t alignment = tarn::default_alignment;
};

/// Returns null if memory ran out.
void* try_allocate(test_memory& memory, stream_ref stream, std::size_t bytes,
                   std::size_t alignment = tarn::default_alignment,
                   tarn::source_location where = tarn::source_location::current()) {
  try {
    return memory.allocate(stream, bytes, alignment, where);
  } catch (tarn::out_of_memory const&) {
    return nullptr;
  }
}
/// Allocates blocks until memory runs out, so that a fallback serves too.
std::vector<block> fill_up(test_memory& memory, stream_ref stream, std::size_t bytes, std::size_t most = 64) {
  std::vector<block> all;
  while (all.size() < most) {
    void* const p = try_allocate(memory, stream, bytes);
    if (p == nullptr) break;
    all.push_back({p, bytes, tarn::default_alignment});
  }
  return all;
}
void free_all(test_memory& memory, stream_ref stream, std::vector<block>& all) {
  for (block const& b : all) memory.deallocate(stream, b.p, b.bytes, b.alignment);
  all.clear();
}

/// The current counts of a stack, as far as it has any.
struct counts {
  exact_numbers exact;
  std::size_t used = 0;
  std::size_t live = 0;
  std::size_t watched = 0;
  friend bool operator==(counts const&, counts const&) = default;
};
counts counts_of(stack_under_test const& stack, test_memory& memory) {
  counts c;
  if (stack.can.statistics) c.exact = memory.statistics();
  if (stack.can.limit) c.used = memory.used();
  if (stack.can.state && !stack.keeps_freed) {
    auto const s = memory.state();
    c.live = s.live - s.deferred;
  }
  if (stack.can.record) c.watched = memory.record().size();
  return c;
}

// ---- the promises

void zero_bytes(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  stream_ref const s = device.new_stream();
  counts const before = counts_of(stack, memory);
  out.check(memory.allocate(s, 0, 256, tarn::source_location::current()) == nullptr,
            "allocate of zero bytes does not return null");
  out.check(memory.allocate_sync(0, 256) == nullptr, "allocate_sync of zero bytes does not return null");
  memory.deallocate(s, nullptr, 0, 256);
  memory.deallocate(s, nullptr, 1000, 256);
  memory.deallocate_sync(nullptr, 0, 256);
  memory.deallocate_sync(nullptr, 1000, 256);
  out.check(counts_of(stack, memory) == before, "zero bytes or null were counted");
  device.end_stream(s);
}

void alignment(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  stream_ref const s = device.new_stream();
  counts const before = counts_of(stack, memory);
  for (std::size_t const alignment : {std::size_t{1}, std::size_t{8}, std::size_t{256}, std::size_t{512},
                                      std::size_t{4096}, std::size_t{2_MiB}}) {
    for (std::size_t const bytes : {std::size_t{1}, std::size_t{5000}, std::size_t{1_MiB + 1}}) {
      for (bool const sync : {false, true}) {
        try {
          void* const p = sync ? memory.allocate_sync(bytes, alignment)
                               : memory.allocate(s, bytes, alignment, tarn::source_location::current());
          out.check(tarn::is_aligned(p, alignment),
                    "an alignment of " + std::to_string(alignment) + " is ignored");
          if (sync) {
            memory.deallocate_sync(p, bytes, alignment);
          } else {
            memory.deallocate(s, p, bytes, alignment);
          }
        } catch (tarn::bad_alignment const&) {
          out.check(alignment > tarn::default_alignment && !stack.has_pool,
                    "an alignment of " + std::to_string(alignment) + " is refused");
        }
      }
    }
  }
  for (std::size_t const alignment :
       {std::size_t{0}, std::size_t{3}, std::size_t{384}, 2 * tarn::max_alignment}) {
    for (bool const sync : {false, true}) {
      try {
        (void)(sync ? memory.allocate_sync(64, alignment)
                    : memory.allocate(s, 64, alignment, tarn::source_location::current()));
        out.add("an alignment of " + std::to_string(alignment) + " is not refused");
      } catch (tarn::bad_alignment const&) {
      }
    }
  }
  device.wait();
  if (stack.can.trim) (void)memory.trim(0);
  out.check(counts_of(stack, memory) == before, "the counts differ after refused alignments");
  device.end_stream(s);
}

void exceptions(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  stream_ref const s = device.new_stream();
  void* const kept = memory.allocate(s, 3000, 256, tarn::source_location::current());
  counts const before = counts_of(stack, memory);
  for (std::size_t const bytes : {1_TiB * 1024, std::numeric_limits<std::size_t>::max(),
                                  std::numeric_limits<std::size_t>::max() / 2, tarn::max_request_bytes + 1}) {
    for (bool const sync : {false, true}) {
      try {
        (void)(sync ? memory.allocate_sync(bytes, 256)
                    : memory.allocate(s, bytes, 256, tarn::source_location::current()));
        out.add("a request of " + std::to_string(bytes) + " bytes is not refused");
      } catch (tarn::out_of_memory const& refused) {
        out.check(refused.asked() == bytes, "an error names " + std::to_string(refused.asked()) +
                                                " bytes, not the " + std::to_string(bytes) +
                                                " that were requested");
      }
    }
  }
  out.check(counts_of(stack, memory) == before, "a refused request changed the counts");
  if (stack.can.limit) {
    std::size_t const limit = memory.set_limit(0);
    out.check(try_allocate(memory, s, 1000) == nullptr, "a limit of zero does not refuse");
    out.check(counts_of(stack, memory) == before, "a request refused by a limit changed the counts");
    (void)memory.set_limit(limit);
  }
  auto all = fill_up(memory, s, 3_MiB);
  out.check(!all.empty(), "no allocation succeeds after refusals");
  free_all(memory, s, all);
  if (stack.can.trim) (void)memory.trim(0);
  out.check(counts_of(stack, memory) == before, "the counts differ after out_of_memory and a free");
  memory.deallocate(s, kept, 3000, 256);
  device.end_stream(s);
}

/// A block with a recorded use on another stream is not reused while that use may run.
void recorded_streams(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  if (!stack.can.record_stream) return;
  for (std::size_t const bytes : {std::size_t{1000}, std::size_t{3_MiB}}) {
    stream_ref const a = device.new_stream();
    stream_ref const b = device.new_stream();
    auto all = fill_up(memory, a, bytes == 1000 ? 3_MiB : bytes);
    for (bool const last : {false, true}) {  // if memory ran out, the last one is from a fallback
      if (all.empty()) break;
      if (bytes == 1000) {  // allocated beside large ones, so that it has the same source
        if (!last) free_all(memory, a, all);
        void* const p = try_allocate(memory, a, bytes);
        if (p == nullptr) continue;
        all.push_back({p, bytes, 256});
      }
      block const x = last ? all.back() : all.front();
      all.erase(last ? all.end() - 1 : all.begin());
      device.order(a, b);
      device.write(b, x.p, x.bytes, 0xB1, 50'000);
      memory.record_stream(x.p, x.bytes, b);
      memory.deallocate(a, x.p, x.bytes, x.alignment);
      std::vector<void*> again;
      for (int i = 0; i < 3; ++i) {
        void* const q = try_allocate(memory, a, x.bytes);
        if (q == nullptr) break;
        device.write(a, q, x.bytes, 0xA1, 1);
        device.wait(a);
        out.check(device.holds(q, x.bytes, 0xA1), "a block does not contain what its stream wrote");
        again.push_back(q);
      }
      device.wait();
      for (void* const q : again) {
        out.check(device.holds(q, x.bytes, 0xA1),
                  "a block was allocated while another stream's recorded use ran");
        memory.deallocate(a, q, x.bytes, 256);
      }
    }
    // The stream of the use may be destroyed before the block is freed.
    if (void* const p = try_allocate(memory, a, bytes)) {
      device.order(a, b);
      device.write(b, p, bytes, 0xB2, 50'000);
      memory.record_stream(p, bytes, b);
      device.end_stream(b);
      memory.deallocate(a, p, bytes, 256);
      if (void* const q = try_allocate(memory, a, bytes)) {
        device.write(a, q, bytes, 0xA2, 1);
        device.wait();
        out.check(device.holds(q, bytes, 0xA2), "a use recorded on a destroyed stream was lost");
        memory.deallocate(a, q, bytes, 256);
      }
    } else {
      device.end_stream(b);
    }
    free_all(memory, a, all);
    device.wait();
    device.end_stream(a);
  }
  if (stack.can.trim) (void)memory.trim(0);
  if (stack.can.state)
    out.check(memory.state().deferred == 0, "a block is deferred after all work is complete");
}

/// A block whose stream is destroyed is freed as any other, also if another stream has the same handle.
void destroyed_streams(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  for (bool const handle_is_reused : {false, true}) {
    for (std::size_t const bytes : {std::size_t{1000}, std::size_t{100'000}, std::size_t{3_MiB}}) {
      stream_ref const gone = device.new_stream();
      void* const p = memory.allocate(gone, bytes, 256, tarn::source_location::current());
      void* const small = memory.allocate(gone, 500, 256, tarn::source_location::current());
      device.write(gone, p, bytes, 0x11, 20'000);
      device.end_stream(gone);
      stream_ref reused;
      if (handle_is_reused) reused = device.new_stream();
      memory.deallocate(gone, p, bytes, 256);
      memory.deallocate(gone, small, 500, 256);
      stream_ref const other = device.new_stream();
      if (void* const q = try_allocate(memory, other, bytes)) {
        device.write(other, q, bytes, 0x22, 1);
        device.wait();
        out.check(device.holds(q, bytes, 0x22), "a destroyed stream wrote to memory that had another owner");
        memory.deallocate(other, q, bytes, 256);
      }
      if (handle_is_reused) device.end_stream(reused);
      device.end_stream(other);
      collect(device, out, stack.writes_below_pool);
    }
  }
  if (stack.can.trim) (void)memory.trim(0);
}

void trim(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  if (!stack.can.trim) return;
  stream_ref const s = device.new_stream();
  std::size_t const before = device.held();
  auto all = fill_up(memory, s, 3_MiB);
  for (std::size_t const bytes : {std::size_t{100}, std::size_t{70'000}}) {
    if (void* const p = try_allocate(memory, s, bytes)) all.push_back({p, bytes, 256});
  }
  free_all(memory, s, all);
  if (stack.can.state && !stack.keeps_freed) {
    std::size_t const reserved = memory.state().reserved;
    std::size_t const given = memory.trim(8_MiB);
    out.check(memory.state().reserved <= 24_MiB,
              "trim(8 MiB) leaves " + std::to_string(memory.state().reserved));
    out.check(given == reserved - memory.state().reserved,
              "trim() returns a different number of bytes than it freed");
    out.check(!stack.can.inspect || memory.inspected_bytes() == memory.state().reserved,
              "inspection shows a different number of bytes than reserved");
  }
  (void)memory.trim(0);
  if (!stack.keeps_freed && !stack.pool_over_pool) {
    out.check(device.held() == before, "after trim() " + std::to_string(device.held() - before) +
                                           " blocks or handles are still held from the driver");
    if (stack.can.state) {
      out.check(memory.state().reserved == 0, "after trim() bytes are reserved");
      memory.reset_peaks();
      out.check(memory.state().reserved_peak == 0, "reset_peaks() leaves a peak");
    }
  }
  device.end_stream(s);
}

void ownership(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  if (!stack.can.owns) return;
  stream_ref const s = device.new_stream();
  auto all = fill_up(memory, s, 3_MiB);
  int local = 0;
  out.check(!memory.owns(&local), "owns() is true of a foreign address");
  for (std::size_t i = 0; i < all.size(); ++i) {
    bool const good = memory.owns(all[i].p) && memory.owns(static_cast<char*>(all[i].p) + all[i].bytes - 1);
    out.check(good,
              "owns() is false of block " + std::to_string(i + 1) + " of " + std::to_string(all.size()));
  }
  free_all(memory, s, all);
  device.end_stream(s);
}

/// A capture that the memory is not notified of stays valid and contains no work of the library.
void capture(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  for (std::size_t const bytes : {std::size_t{1000}, std::size_t{3_MiB}}) {
    stream_ref const s = device.new_stream();
    void* const before = memory.allocate(s, bytes, 256, tarn::source_location::current());
    void* const kept = memory.allocate(s, 400, 256, tarn::source_location::current());
    device.wait();
    if (!device.begin_capture(s)) {
      memory.deallocate(s, before, bytes, 256);
      memory.deallocate(s, kept, 400, 256);
      device.end_stream(s);
      return;
    }
    void* const inside = memory.allocate(s, bytes, 256, tarn::source_location::current());
    bool const frees_inside = !stack.keeps_what_captures_free;
    if (frees_inside && !stack.driver_orders) memory.deallocate(s, before, bytes, 256);
    if (frees_inside) memory.deallocate(s, inside, bytes, 256);
    void* const across =
        stack.driver_orders ? nullptr : memory.allocate(s, bytes, 256, tarn::source_location::current());
    out.check(device.end_capture(s, stack.driver_orders),
              "a capture was invalidated or contains calls of the library");
    if (across != nullptr) memory.deallocate(s, across, bytes, 256);
    if (!frees_inside || stack.driver_orders) memory.deallocate(s, before, bytes, 256);
    if (!frees_inside) memory.deallocate(s, inside, bytes, 256);
    memory.deallocate(s, kept, 400, 256);
    device.wait();
    device.end_stream(s);
  }
  if (stack.can.check_all) out.check(memory.check_all() == 0, "check_all() reports after a capture");
}

/// What a capture allocates through a stack belongs to the owner; nothing else receives it, or what the
/// capture freed, before that ends.
void graph_memory(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  out.check(stack.can.graph_memory == stack.keeps_graphs,
            "graph_memory must compile exactly where there is a pool");
  if (!stack.can.graph_memory) return;
  stream_ref const s = device.new_stream();
  stream_ref const other = device.new_stream();
  for (std::size_t const bytes : {std::size_t{1000}, std::size_t{1_MiB}}) {
    void* const before = memory.allocate(s, bytes, 256, tarn::source_location::current());
    device.wait();
    auto owner = memory.new_graph_memory();
    auto const scope = owner->begin_capture(s);
    if (!device.begin_capture(s)) {
      owner->end_capture(scope);
      memory.deallocate(s, before, bytes, 256);
      continue;
    }
    void* const live = memory.allocate(s, bytes, 256, tarn::source_location::current());
    void* const freed = memory.allocate(s, bytes, 256, tarn::source_location::current());
    if (stack.has_pool)
      out.check(owner->state().allocated >= 2 * bytes, "the owner does not have what its capture allocated");
    memory.deallocate(s, freed, bytes, 256);
    if (!stack.driver_orders) memory.deallocate(s, before, bytes, 256);
    // Bare memory of a fallback's first resource may be the driver's, which adds its calls to the capture.
    out.check(device.end_capture(s, stack.driver_orders),
              "a capture in a scope was invalidated or contains calls of the library");
    owner->end_capture(scope);
    if (stack.driver_orders) memory.deallocate(s, before, bytes, 256);
    auto const is_apart = [&](void* p) {
      for (void* const kept : {live, freed, before}) {
        if (p<static_cast<char*>(kept) + bytes&& static_cast<char*>(p) + bytes> kept) return false;
      }
      return true;
    };
    auto all = fill_up(memory, other, bytes, 8);
    if (void* const p = memory.allocate_sync(bytes, 256); p != nullptr) all.push_back({p, bytes, 256});
    for (block const& b : all) {
      // Bare memory of a fallback's first resource is given to anyone.
      out.check(!stack.has_pool || is_apart(b.p), "memory of a graph was allocated outside its captures");
      device.write(other, b.p, bytes, 1, 5);
    }
    free_all(memory, other, all);
    memory.deallocate(other, live, bytes, 256);
    if (stack.can.trim) (void)memory.trim(0);
    if (stack.has_pool && !stack.keeps_freed)
      out.check(owner->state().reserved >= bytes, "the owner's memory was trimmed");
    owner = {};
    device.wait();
    if (stack.can.trim) (void)memory.trim(0);
    if (stack.can.state && !stack.keeps_freed && !stack.pool_over_pool)
      out.check(memory.state().reserved == 0, "memory of an ended owner is not given back");
  }
  if (stack.can.check_all) out.check(memory.check_all() == 0, "check_all() reports after a capture");
  device.end_stream(s);
  device.end_stream(other);
}

/// The addresses could not be kept: sleep() is refused below every policy, and changes nothing.
void sleep_without_pages(stack_under_test const& stack, test_device& device, test_memory& memory,
                         report& out) {
  stream_ref const s = device.new_stream();
  constexpr std::size_t bytes = 3_MiB;
  void* const p = memory.allocate(s, bytes, 256, tarn::source_location::current());
  device.write(s, p, bytes, 0x5C, 5);
  device.wait();
  counts const before = counts_of(stack, memory);
  bool is_refused = false;
  try {
    (void)memory.sleep(tarn::contents::in_pinned_memory);
  } catch (tarn::cuda_error const& error) {
    is_refused = error.kind() == tarn::failure::unsupported;
  }
  out.check(is_refused, "sleep() did not refuse on a device without pages");
  out.check(!memory.is_asleep(), "a pool without pages is asleep");
  out.check(memory.wake() == 0, "wake() of a pool that is awake took memory");
  out.check(counts_of(stack, memory) == before, "the refused sleep() changed the statistics");
  out.check(device.holds(p, bytes, 0x5C), "the refused sleep() changed the contents");
  memory.deallocate(s, p, bytes, 256);
  void* const q = memory.allocate(s, 1000, 256, tarn::source_location::current());
  memory.deallocate(s, q, 1000, 256);
  device.end_stream(s);
}

/// The kind of memory is reported through every policy.
void backend(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  out.check(stack.can.backend == (stack.keeps_graphs || stack.hides_pool),
            "allocator_backend() must compile exactly where there is a pool");
  if (!stack.over_pages || !stack.has_pool) return;
  std::string const expected = device.has_pages() ? "pages" : "cudaMalloc";
  out.check(memory.backend() == expected, "allocator_backend() returns " + memory.backend());
}

/// A pool sleeps below every policy: it holds no memory, refuses, takes blocks back, and has the same blocks
/// and contents afterwards.
void sleep(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  out.check(stack.can.sleep == stack.sleeps,
            "sleep() must compile exactly where the only pool is over pages");
  if (!stack.can.sleep) return;
  if (!device.has_pages()) return sleep_without_pages(stack, device, memory, out);
  stream_ref const s = device.new_stream();
  for (auto const where : {tarn::contents::in_pinned_memory, tarn::contents::discarded}) {
    constexpr std::size_t large = 3_MiB;
    constexpr std::size_t small = 700;
    void* const kept = memory.allocate(s, large, 256, tarn::source_location::current());
    void* const kept_too = memory.allocate(s, small, 256, tarn::source_location::current());
    void* const freed = memory.allocate(s, large, 256, tarn::source_location::current());
    for (void* const p : {kept, freed}) device.write(s, p, large, 0x5C, 5);
    device.write(s, kept_too, small, 0x5D, 5);
    device.wait();
    counts const before = counts_of(stack, memory);
    std::size_t const expected = device.has_memory_tool() ? 0 : 2 * large;
    out.check(memory.sleep(where) >= expected, "sleep() gave back less than the live blocks");
    out.check(memory.is_asleep() && (stack.has_fallback || device.held() <= 1),
              "a sleeping pool holds memory");  // the host's copy
    out.check(counts_of(stack, memory) == before, "sleep() changed the statistics");
    bool is_refused = false;
    try {
      void* const p = memory.allocate(s, small, 256, tarn::source_location::current());
      memory.deallocate(s, p, small, 256);
    } catch (tarn::pool_asleep const&) {
      is_refused = true;
    }
    out.check(is_refused, "an allocation did not throw pool_asleep while the pool slept");
    memory.deallocate(s, freed, large, 256);
    counts const then = counts_of(stack, memory);
    if (stack.can.check_all) out.check(memory.check_all() == 0, "check_all() reports while the pool sleeps");
    (void)memory.wake();
    out.check(!memory.is_asleep(), "wake() left the pool asleep");
    out.check(counts_of(stack, memory) == then, "wake() changed the statistics");
    if (where != tarn::contents::discarded) {
      out.check(device.holds(kept, large, 0x5C) && device.holds(kept_too, small, 0x5D),
                "sleep() lost the contents");
      if (stack.can.check_all) out.check(memory.check_all() == 0, "check_all() reports after wake()");
    }
    memory.deallocate(s, kept, large, 256);
    memory.deallocate(s, kept_too, small, 256);
    device.wait();
  }
  device.end_stream(s);
}

/// A pool is compacted below every policy: it gives back what lies between live blocks, which keep addresses
/// and contents.
void compact(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  out.check(stack.can.compact == stack.sleeps,
            "compact() must compile exactly where the only pool is over pages");
  if (!stack.can.compact) return;
  bool const has_pages = device.has_pages() && !device.has_memory_tool();
  stream_ref const s = device.new_stream();
  constexpr std::size_t hole = 10_MiB;
  constexpr std::size_t large = 3_MiB;
  constexpr std::size_t small = 700;
  // What is freed is reused in part, so that its handle is partly live.
  void* const freed = memory.allocate(s, hole, 256, tarn::source_location::current());
  memory.deallocate(s, freed, hole, 256);
  void* const kept = memory.allocate(s, large, 256, tarn::source_location::current());
  void* const kept_too = memory.allocate(s, small, 256, tarn::source_location::current());
  device.write(s, kept, large, 0x6C, 5);
  device.write(s, kept_too, small, 0x6D, 5);
  device.wait();
  counts const before = counts_of(stack, memory);
  tarn::compaction const result = memory.compact();
  out.check(counts_of(stack, memory) == before, "compact() changed the statistics");
  if (has_pages) {
    out.check(result.stretches != 0, "compact() reports no stretch of live bytes");
    out.check(result.reserved <= result.live + 2 * result.stretches * 2_MiB,
              "compact() left more than a granule at each end of a stretch");
    // A fallback may have served the blocks, and a quarantine holds back what was freed.
    if (!stack.has_fallback && !stack.keeps_freed)
      out.check(result.released >= 2_MiB, "compact() did not give the hole back");
  } else {
    out.check(result.stretches == 0, "compact() reports stretches of a pool over blocks");
  }
  out.check(device.holds(kept, large, 0x6C) && device.holds(kept_too, small, 0x6D),
            "compact() lost the contents");
  if (stack.can.check_all) out.check(memory.check_all() == 0, "check_all() reports after compact()");
  if (has_pages) {  // segments are not joined: there may be no room
    void* const next = memory.allocate(s, hole, 256, tarn::source_location::current());
    device.write(s, next, hole, 0x6E, 5);
    device.wait();
    out.check(device.holds(kept, large, 0x6C), "memory that compact() gave back is shared with a live block");
    memory.deallocate(s, next, hole, 256);
  }
  memory.deallocate(s, kept, large, 256);
  memory.deallocate(s, kept_too, small, 256);
  device.wait();
  device.end_stream(s);
}

[[nodiscard]] bool is_unsupported(std::function<void()> const& call) {
  try {
    call();
  } catch (tarn::cuda_error const& error) {
    return error.kind() == tarn::failure::unsupported;
  }
  return false;
}

/// Through every policy a block's pages are listed, pinned, exported and registered. Nothing of that changes
/// a count or the contents.
void sharing(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  out.check(stack.can.segments == (stack.over_pages && stack.has_pool && !stack.hides_pool),
            "segments_of() must compile exactly where there is a pool over pages");
  if (!stack.can.segments) return;
  stream_ref const s = device.new_stream();
  constexpr std::size_t bytes = 3_MiB;
  void* const p = memory.allocate(s, bytes, 256, tarn::source_location::current());
  void* const freed = memory.allocate(s, bytes, 256, tarn::source_location::current());
  device.write(s, p, bytes, 0x5E, 5);
  device.wait();
  if (!device.has_pages() || device.has_memory_tool()) {
    out.check(is_unsupported([&] { (void)memory.segments(p, bytes); }), "a block without pages has segments");
    out.check(is_unsupported([&] { (void)memory.pin(p, bytes); }), "a block without pages was pinned");
    memory.deallocate(s, freed, bytes, 256);
    memory.deallocate(s, p, bytes, 256);
    device.end_stream(s);
    return;
  }
  auto const list = memory.segments(p, bytes);
  std::size_t sum = 0;
  for (tarn::memory_segment const& segment : list) {
    out.check(segment.address == static_cast<char*>(p) + sum, "the segments of a block are not in order");
    sum += segment.bytes;
  }
  out.check(sum == bytes, "the segments of a block have " + std::to_string(sum) + " bytes");
  {
    auto const pin = memory.pin(p, bytes);
    memory.deallocate(s, freed, bytes, 256);
    device.wait();
    counts const before = counts_of(stack, memory);
    if (stack.can.trim) (void)memory.trim(0);
    if (stack.can.sleep) {
      (void)memory.sleep(tarn::contents::discarded);
      out.check(device.holds(p, bytes, 0x5E), "the pages of a pinned block were put to sleep");
      (void)memory.wake();
    }
    auto const then = memory.segments(p, bytes);
    out.check(std::equal(then.begin(), then.end(), list.begin(), list.end(),
                         [](auto const& a, auto const& b) {
                           return a.handle == b.handle && a.offset == b.offset && a.bytes == b.bytes;
                         }),
              "a pinned block has other handles");
    out.check(device.holds(p, bytes, 0x5E), "a pinned block lost its contents");
    out.check(counts_of(stack, memory) == before, "a pin changed the statistics");
  }
  if (stack.can.exports) {
    counts const before = counts_of(stack, memory);
    {
      // Nothing is left to wait for.
      auto const events = device.opens_own_events() ? std::optional(s) : std::nullopt;
      second_mapping const there = memory.export_and_import(p, bytes, events);
      out.check(there.data != p && device.holds(there.data, bytes, 0x5E),
                "an imported block has other contents");
    }
    auto const [added, is_ended] = memory.register_pages(p, bytes);
    out.check(added == 1, "a block's pages were registered " + std::to_string(added) + " times");
    out.check(is_ended, "a registration was not ended");
    out.check(counts_of(stack, memory) == before, "an export or a registration changed the statistics");
    out.check(device.holds(p, bytes, 0x5E), "an exported block lost its contents");
  }
  memory.deallocate(s, p, bytes, 256);
  device.end_stream(s);
}

void statistics(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  stream_ref const s = device.new_stream();
  counts const before = counts_of(stack, memory);
  auto all = fill_up(memory, s, 3_MiB);
  for (std::size_t const bytes : {std::size_t{1}, std::size_t{300}, std::size_t{70'000}}) {
    if (void* const p = try_allocate(memory, s, bytes)) all.push_back({p, bytes, 256});
  }
  std::size_t requested = 0;
  std::size_t occupied = 0;
  for (block const& b : all) {
    requested += b.bytes;
    occupied += memory.block_bytes(b.bytes, b.alignment);
  }
  out.check(occupied >= requested, "blocks occupy fewer bytes than requested");
  auto const n = static_cast<std::int64_t>(all.size());
  if (stack.can.statistics) {
    exact_numbers const now = memory.statistics();
    out.check(now.blocks == n,
              "tracked counts " + std::to_string(now.blocks) + " blocks of " + std::to_string(n));
    out.check(now.requested >= static_cast<std::int64_t>(requested),
              "tracked counts fewer bytes than requested");
    out.check(now.allocated >= now.requested, "tracked counts fewer allocated bytes than requested ones");
  }
  if (stack.can.limit) out.check(memory.used() >= requested, "a limit counts fewer bytes than requested");
  if (stack.can.state) {
    auto const now = memory.state();
    out.check(now.live >= requested, "state() has " + std::to_string(now.live) + " live bytes, and " +
                                         std::to_string(requested) + " were asked");
    if (!stack.keeps_freed)
      out.check(now.live_blocks == all.size(), "state() has a different number of live blocks");
    out.check(now.reserved >= now.live, "state() has fewer bytes reserved than live");
    out.check(!stack.can.inspect || memory.inspected_bytes() == now.reserved,
              "inspection shows a different number of bytes than reserved");
  }
  if (stack.can.record) {
    out.check(memory.record().size() == all.size(),
              "a `with_history` layer has a different number of blocks");
  }
  free_all(memory, s, all);
  device.wait();
  if (stack.can.trim) (void)memory.trim(0);
  out.check(counts_of(stack, memory) == before, "the counts do not return to their earlier values");
  device.end_stream(s);
}

/// check_all() reports no correct block: with fences still queued, or allocated while it waits.
void check_all(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  if (!stack.can.check_all) return;
  stream_ref const busy = device.new_stream();
  stream_ref const other = device.new_stream();
  void* const ground = memory.allocate(busy, 5000, 256, tarn::source_location::current());
  device.wait();
  device.write(busy, ground, 5000, 1, 100'000);
  void* const queued = memory.allocate(busy, 1000, 256, tarn::source_location::current());
  out.check(memory.check_all() == 0, "check_all() reports fences that are still queued");
  device.write(busy, ground, 5000, 2, 100'000);
  // While it waits, another thread allocates, frees, and writes to the freed memory as a new block.
  void* late = nullptr;
  void* victim = memory.allocate(other, 700, 256, tarn::source_location::current());
  std::vector<block> next;
  bool const hooked = device.in_next_device_wait([&] {
    memory.deallocate(other, victim, 700, 256);
    for (int i = 0; i < 8; ++i) {
      if (void* const p = try_allocate(memory, other, 1200)) next.push_back({p, 1200, 256});
      if (!next.empty()) device.write(other, next.back().p, 1200, 9, 1);
    }
    device.wait(other);
    device.write(busy, ground, 5000, 3, 100'000);
    late = memory.allocate(busy, 2000, 256, tarn::source_location::current());
  });
  out.check(memory.check_all() == 0, "check_all() reports a block that was allocated while it waited");
  if (hooked && late == nullptr) {
    (void)device.in_next_device_wait({});
    memory.deallocate(other, victim, 700, 256);
    out.add("check_all() does not wait for the device");
  }
  if (!hooked) memory.deallocate(other, victim, 700, 256);
  free_all(memory, other, next);
  void* const freed = memory.allocate(other, 4000, 256, tarn::source_location::current());
  memory.deallocate(other, freed, 4000, 256);
  out.check(memory.check_all() == 0, "check_all() reports after a free");
  memory.deallocate(busy, queued, 1000, 256);
  if (late != nullptr) memory.deallocate(busy, late, 2000, 256);
  memory.deallocate(busy, ground, 5000, 256);
  device.wait();
  device.end_stream(busy);
  device.end_stream(other);
}

/// A watched layer records the caller's line, however many layers are between.
void places(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  if (!stack.can.record) return;
  stream_ref const s = device.new_stream();
  auto const here = tarn::source_location::current();
  std::vector<block> all;
  while (all.size() < 40) {
    void* const p = try_allocate(memory, s, 3_MiB, 256, here);
    if (p == nullptr) break;
    all.push_back({p, 3_MiB, 256});
  }
  auto const seen = memory.record();
  bool good = seen.size() == all.size();
  for (seen_block const& b : seen) good = good && b.line == here.line;
  out.check(good, "a `with_history` layer does not record the line of the call");
  free_all(memory, s, all);
  device.end_stream(s);
}

/// The values of a counter of the Perfetto file, in order.
std::vector<std::int64_t> counter_in(std::string const& perfetto, std::string const& name) {
  std::string const begin = "\"name\":\"" + name, number = "\"bytes\":";
  std::vector<std::int64_t> values;
  for (std::size_t at = 0; (at = perfetto.find(begin, at)) != perfetto.npos; ++at)
    values.push_back(std::stoll(perfetto.substr(perfetto.find(number, at) + number.size(), 20)));
  return values;
}

/// The same bytes are in a snapshot's blocks, in its pool, its tags and its history, in the curves of the
/// Perfetto file, in the pickle, and in the counts of `tracked`. Each call is made through the uppermost
/// layer.
void figures(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  if (device.has_memory_tool()) return;  // blocks have guards then, which nothing but the pool counts
  if (!stack.can.record && !stack.can.inspect) return;
  stream_ref const s = device.new_stream();
  stream_ref const other = device.new_stream();
  std::vector<block> all;
  auto const free_first = [&] {
    memory.deallocate(s, all.front().p, all.front().bytes, all.front().alignment);
    all.erase(all.begin());
  };
  for (std::size_t i = 0; i < 12; ++i) {
    std::size_t const bytes = i % 4 == 0 ? 2_MiB : 100 + 900 * i;
    void* const p = try_allocate(memory, s, bytes);
    if (p == nullptr) continue;
    all.push_back({p, bytes, 256});
    if (i % 3 == 2) free_first();
  }
  if (stack.can.record_stream && !all.empty()) {
    device.order(s, other);
    device.write(other, all.front().p, all.front().bytes, 0x11, 1000);
    memory.record_stream(all.front().p, all.front().bytes, other);
    free_first();
  }
  tarn::snapshot const snapshot = memory.snapshot();
  auto const same = [&](std::string const& what, std::size_t is, std::size_t expected) {
    out.check(is == expected, what + ": " + std::to_string(is) + ", but " + std::to_string(expected));
  };

  std::size_t bytes[3]{};
  std::size_t blocks[3]{};
  std::size_t reserved = 0;
  std::size_t seen = 0;
  for (tarn::snapshot_segment const& segment : snapshot.segments) {
    std::uintptr_t at = segment.address;
    for (tarn::snapshot_block const& b : segment.blocks) {
      out.check(b.address == at, "the blocks of a segment leave a gap, or overlap");
      at += b.bytes;
      auto const use = static_cast<std::size_t>(b.use);
      bytes[use] += b.bytes;
      ++blocks[use];
      seen += b.use == tarn::block_use::live && b.requested != 0 ? 1 : 0;
    }
    out.check(at == segment.address + segment.bytes, "the blocks of a segment do not fill it");
    reserved += segment.bytes;
  }
  auto const [live, deferred, cached] = bytes;
  same("segments have other bytes than the pool reserved", reserved, snapshot.pool.reserved);
  same("other blocks are live than the program has", blocks[0], all.size());
  same("live and deferred blocks have other bytes than the pool", live + deferred, snapshot.pool.live);
  same("live and deferred blocks are another number than the pool's", blocks[0] + blocks[1],
       snapshot.pool.live_blocks);
  same("deferred blocks have other bytes than the pool", deferred, snapshot.pool.deferred);
  for (block const& b : all) {
    auto const p = reinterpret_cast<std::uintptr_t>(b.p);
    int holders = 0;
    for (tarn::snapshot_segment const& segment : snapshot.segments) {
      for (tarn::snapshot_block const& held : segment.blocks)
        holders += held.use == tarn::block_use::live && held.address <= p &&
                   p + b.bytes <= held.address + held.bytes;
    }
    out.check(holders == 1,
              "a block of the program is in " + std::to_string(holders) + " live blocks of a snapshot");
  }
  if (stack.can.statistics) {
    auto const counted = static_cast<std::size_t>(memory.statistics().allocated);
    // The quarantine of `checked` is live to a `tracked` below it.
    if (counted != live + deferred || !stack.keeps_freed)
      same("tracked counts other bytes than are live", counted, live);
  }

  bool has_calls = false;
  std::size_t came = 0;
  std::size_t went = 0;
  for (tarn::snapshot_event const& e : snapshot.events) {
    has_calls = has_calls || e.kind <= tarn::snapshot_event_kind::refused;
    came += e.kind == tarn::snapshot_event_kind::allocate ? e.bytes : 0;
    went += e.kind == tarn::snapshot_event_kind::free ? e.bytes : 0;
  }
  if (has_calls) {
    std::size_t of_tags = 0;
    for (tarn::history_tag const& tag : snapshot.tags) of_tags += tag.bytes;
    same("the history has other live blocks", seen, blocks[0]);
    same("the history has other live bytes", came - went, live);
    same("the tags have other bytes than are live", of_tags, live);
  }
  std::ostringstream perfetto;
  tarn::write_perfetto(perfetto, snapshot);
  std::vector<std::int64_t> const curve = counter_in(perfetto.str(), "live bytes\"");
  out.check(!curve.empty() && curve.back() == static_cast<std::int64_t>(live),
            "the curve of live bytes ends elsewhere");
  out.check(has_calls ? curve.front() == 0 : curve.size() == 1, "the curve of live bytes begins above zero");
  for (std::int64_t const value : curve) out.check(value >= 0, "the curve of live bytes is negative");
  std::vector<std::int64_t> const held = counter_in(perfetto.str(), "reserved bytes\"");
  same("the curve of reserved bytes ends elsewhere", static_cast<std::size_t>(held.back()),
       snapshot.pool.reserved);
  std::ostringstream file;
  tarn::write_pickle(file, snapshot);
  std::string const pickled = file.str();
  auto const loaded = tarn_test::unpickler(pickled).read();
  tarn_test::undone_history const undone(*loaded, static_cast<std::size_t>(std::max(0, snapshot.device)));
  out.check(undone.mistake().empty(), "the viewer of pickles fails: " + undone.mistake());
  if (has_calls) same("the pickle has blocks before the first event", undone.live_at_start(), 0);

  device.wait();
  while (!all.empty()) free_first();
  device.wait();
  device.end_stream(other);
  device.end_stream(s);
}

/// A handler of retry_on_oom may use the memory that called it, also below a pool.
void handlers(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  if (!stack.has_retry) return;
  stream_ref const s = device.new_stream();
  auto all = fill_up(memory, s, 3_MiB);
  void* const small = all.empty() ? nullptr : all.back().p;
  int called = 0;
  memory.on_out_of_memory([&] {
    ++called;
    if (stack.can.owns) out.check(memory.owns(small), "owns() is false in a handler");
    if (stack.can.state) (void)memory.state();
    if (stack.can.trim) (void)memory.trim(0);
    if (!all.empty() && called == 1) {
      memory.deallocate(s, all.front().p, all.front().bytes, 256);
      all.erase(all.begin());
    }
    // Served from the cache or refused: the pool cannot grow during the handler.
    if (void* const p = called < 3 ? try_allocate(memory, s, 100) : nullptr)
      memory.deallocate(s, p, 100, 256);
  });
  for (int i = 0; i < 20; ++i) {
    void* const p = try_allocate(memory, s, 5_MiB);
    if (p == nullptr) break;
    all.push_back({p, 5_MiB, 256});
  }
  memory.on_out_of_memory({});
  out.check(called != 0 || !device.runs_out(), "the handler was not called");
  free_all(memory, s, all);
  device.wait();
  device.end_stream(s);
}

/// Each thread has its own per-thread default stream.
void ending_threads(stack_under_test const& stack, test_device& device, test_memory& memory, report& out) {
  auto const own = stream_ref::from(reinterpret_cast<void*>(std::uintptr_t{2}));
  auto const turn = [&] {
    std::thread([&] {
      if (void* const p = try_allocate(memory, own, 1000)) {
        device.write(own, p, 1000, 7, 1);
        memory.deallocate(own, p, 1000, 256);
      }
    }).join();
  };
  auto const pool_bytes = [&] { return stack.can.state ? memory.state().host_bytes : std::size_t{0}; };
  for (int i = 0; i < 40; ++i) turn();
  device.wait();
  std::size_t const before = pool_bytes();
  for (int i = 0; i < 100; ++i) turn();
  device.wait();
  std::size_t const after = pool_bytes();
  out.check(after <= before + 100'000,
            "100 threads that ended leave " + std::to_string(after - before) + " bytes of host memory");
  collect(device, out, stack.writes_below_pool);
}

}  // namespace

std::vector<promise> const& promises() {
  static std::vector<promise> const all{
      {"zero bytes", zero_bytes},
      {"alignment", alignment},
      {"exceptions", exceptions},
      {"recorded uses", recorded_streams},
      {"destroyed streams", destroyed_streams},
      {"trim", trim},
      {"ownership", ownership},
      {"capture", capture},
      {"graph memory", graph_memory},
      {"sleep", sleep},
      {"compact", compact},
      {"backend", backend},
      {"sharing", sharing},
      {"statistics", statistics},
      {"check_all", check_all},
      {"places", places},
      {"figures", figures},
      {"handlers", handlers},
  };
  return all;
}
promise const& promise_of_ending_threads() {
  static promise const one{"ending threads", ending_threads};
  return one;
}

namespace {
template <class Check>
void run_on(stack_under_test const& stack, unsigned mode, report& out, Check const& check) {
  misuse_watch const watch;
  auto const device = stack.make_device(mode);
  std::size_t const before = device->left_over();
  if (stack.needs_pages && !device->has_pages()) {
    try {
      (void)stack.make(*device, out);
      out.add("the stack was made without the pages that it needs");
    } catch (tarn::cuda_error const& error) {
      out.check(error.kind() == tarn::failure::unsupported, std::string("throws: ") + error.what());
    }
  } else {
    auto const memory = stack.make(*device, out);
    try {
      check(*device, *memory);
    } catch (std::exception const& error) {
      out.add(std::string("throws: ") + error.what());
    }
    device->wait();
    collect(*device, out, stack.writes_below_pool);
  }
  device->wait();
  collect(*device, out, stack.writes_below_pool);
  out.check(device->left_over() == before, "left over: " + std::to_string(device->left_over() - before) +
                                               " blocks, handles, streams or events");
}
}  // namespace

void run(promise const& p, stack_under_test const& stack, unsigned mode, report& out) {
  out.begin(stack.name + mode_names[mode] + std::string(p.name));
  run_on(stack, mode, out,
         [&](test_device& device, test_memory& memory) { p.check(stack, device, memory, out); });
}

namespace {

/// A random correct program. The counts of a stack are compared with the model after each step.
class random_program {
 public:
  random_program(stack_under_test const& stack, test_device& device, test_memory& memory, report& out,
                 std::uint64_t seed)
      : stack_(stack), device_(device), memory_(memory), out_(out), random_(seed) {
    for (stream_ref& s : streams_) s = device_.new_stream();
  }

  void run(unsigned steps) {
    for (unsigned i = 0; i < steps && out_.found().empty(); ++i) {
      step();
      compare();
      collect(device_, out_, stack_.writes_below_pool);
      if (!out_.found().empty()) out_.add("at step " + std::to_string(i + 1));
    }
    while (!live_.empty()) give_back(live_.size() - 1);
    device_.wait();
    for (stream_ref const s : streams_) device_.end_stream(s);
    if (stack_.can.trim) (void)memory_.trim(0);
    compare();
  }

 private:
  struct live_block {
    void* p;
    std::size_t bytes;
    std::size_t alignment;
    stream_ref stream;
    unsigned char byte;
    bool used_elsewhere;
    int line;
  };

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  stream_ref any_stream() { return streams_[below(3)]; }

  void step() {
    switch (below(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return take();
      case 4:
      case 5:
        if (!live_.empty()) give_back(below(live_.size()));
        return;
      case 6:
        return use_elsewhere();
      case 7:
        if (!live_.empty()) write(live_[below(live_.size())]);
        return;
      case 8:
        if (below(3) == 0) replace_stream();
        return;
      case 9:
        if (stack_.can.trim && below(3) == 0) (void)memory_.trim(below(2) == 0 ? 0 : 8_MiB);
        return;
      case 10:
        if (stack_.can.check_all)
          out_.check(memory_.check_all() == 0, "check_all() reports a correct program");
        return;
      default:
        return take_and_give_now();
    }
  }

  std::size_t any_size() {
    switch (below(4)) {
      case 0:
        return 1 + below(4000);
      case 1:
        return 1 + below(100'000);
      case 2:
        return 1 + below(1_MiB);
      default:
        return 1 + below(6_MiB);
    }
  }

  void take() {
    live_block b{nullptr,
                 any_size(),
                 below(8) == 0 ? std::size_t{64} : std::size_t{256},
                 any_stream(),
                 static_cast<unsigned char>(below(255) + 1),
                 false,
                 0};
    auto const here = tarn::source_location::current();
    b.p = try_allocate(memory_, b.stream, b.bytes, b.alignment, here);
    b.line = here.line;
    if (b.p == nullptr) {  // out of memory: frees half of its blocks, as a program would
      std::size_t const half = live_.size() / 2;
      while (live_.size() > half) give_back(below(live_.size()));
      return;
    }
    requested_ += b.bytes;
    live_.push_back(b);
    write(live_.back());
  }
  void write(live_block& b) {
    if (b.used_elsewhere || is_ended(b.stream)) return;
    device_.write(b.stream, b.p, b.bytes, b.byte, static_cast<unsigned>(below(4) == 0 ? 5000 : 5));
  }
  void give_back(std::size_t i) {
    live_block const b = live_[i];
    live_[i] = live_.back();
    live_.pop_back();
    requested_ -= b.bytes;
    if (below(2) == 0 && !is_ended(b.stream) && !b.used_elsewhere) {
      device_.wait(b.stream);
      out_.check(device_.holds(b.p, b.bytes, b.byte), "a block does not contain what its owner wrote");
    }
    if (below(10) == 0) {
      device_.wait();
      out_.check(device_.holds(b.p, b.bytes, b.byte), "a block does not contain what its owner wrote last");
      memory_.deallocate_sync(b.p, b.bytes, b.alignment);
    } else {
      memory_.deallocate(b.stream, b.p, b.bytes, b.alignment);
    }
  }
  /// Another stream writes to a block, as record_stream() allows.
  void use_elsewhere() {
    if (!stack_.can.record_stream || live_.empty()) return;
    live_block& b = live_[below(live_.size())];
    if (is_ended(b.stream)) return;
    stream_ref const other = any_stream();
    if (is_same(other, b.stream) || b.used_elsewhere) return;
    device_.order(b.stream, other);
    device_.write(other, b.p, b.bytes, b.byte, 5000);
    memory_.record_stream(b.p, b.bytes, other);
    b.used_elsewhere = true;
  }
  void replace_stream() {
    stream_ref& s = streams_[below(3)];
    device_.end_stream(s);
    s = device_.new_stream();
  }
  /// A handle is used again after its stream was destroyed; the identity is not.
  [[nodiscard]] static bool is_same(stream_ref a, stream_ref b) { return a == b && a.id() == b.id(); }
  [[nodiscard]] bool is_ended(stream_ref stream) const {
    return std::none_of(std::begin(streams_), std::end(streams_),
                        [&](stream_ref s) { return is_same(s, stream); });
  }
  void take_and_give_now() {
    std::size_t const bytes = any_size();
    void* p = nullptr;
    try {
      p = memory_.allocate_sync(bytes, 256);
    } catch (tarn::out_of_memory const&) {
      return;
    }
    stream_ref const s = any_stream();
    device_.write(s, p, bytes, 0x77, 5);
    device_.wait();
    out_.check(device_.holds(p, bytes, 0x77), "memory of allocate_sync() does not contain what was written");
    memory_.deallocate_sync(p, bytes, 256);
  }

  void compare() {
    if (stack_.can.statistics) {
      exact_numbers const now = memory_.statistics();
      out_.check(now.blocks == static_cast<std::int64_t>(live_.size()),
                 "tracked counts a different number of blocks");
    }
    if (stack_.can.record) {
      auto const seen = memory_.record();
      bool good = seen.size() == live_.size();
      for (seen_block const& b : seen) {
        auto const it = std::find_if(live_.begin(), live_.end(), [&](live_block const& l) {
          auto const at = reinterpret_cast<std::uintptr_t>(l.p);
          return b.address <= at && at < b.address + b.bytes;
        });
        good = good && it != live_.end() && it->line == b.line;
      }
      out_.check(good, "a `with_history` layer has other blocks than are live, or other lines");
    }
    if (stack_.can.limit && live_.empty() && !stack_.keeps_freed) {
      out_.check(memory_.used() == 0, "a limit counts bytes but no block is live");
    }
    if (stack_.can.limit)
      out_.check(memory_.used() >= requested_, "a limit counts fewer bytes than are live");
    if (stack_.can.state) {
      auto const now = memory_.state();
      out_.check(now.live >= requested_, "state() has fewer live bytes than requested");
      if (live_.empty() && !stack_.keeps_freed) {
        out_.check(now.live == now.deferred, "state() has live bytes but no block is live");
      }
    }
  }

  stack_under_test const& stack_;
  test_device& device_;
  test_memory& memory_;
  report& out_;
  std::mt19937_64 random_;
  stream_ref streams_[3];
  std::vector<live_block> live_;
  std::size_t requested_ = 0;
};

}  // namespace

void run_random(stack_under_test const& stack, unsigned mode, std::uint64_t seed, unsigned steps,
                report& out) {
  if (!has_mode(stack, mode)) mode = 0;
  out.begin(stack.name + mode_names[mode] + "random program " + std::to_string(seed));
  run_on(stack, mode, out, [&](test_device& device, test_memory& memory) {
    random_program(stack, device, memory, out, seed).run(steps);
  });
}

}  // namespace policy_matrix
