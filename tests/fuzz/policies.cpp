// SPDX-License-Identifier: Apache-2.0
// Decodes bytes to calls on stacks of policies over real memory. A model checks the counters of `tracked`,
// the limit of `limited`, the pattern of `poisoned`, and what is left at the end. Writes past an end are
// planted; `fenced` must report each of them, and nothing else.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "fuzz/choices.hpp"
#include "fuzz/model_checked.hpp"
#include "fuzz/promise.hpp"
#include "tarn/core/misuse.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/debug/poisoned.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/retry_on_oom.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/peak_scope.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;
using namespace tarn_fuzz;

namespace {

/// The misuse handler's reports since the last query.
struct reported {
  static inline int overruns = 0;
  static inline int others = 0;
  static void handler(misuse const& what) { ++(what.kind() == misuse_kind::overrun ? overruns : others); }
};

sim_options small_machine() {
  sim_options o;
  o.capacity = 8_MiB;
  o.taken = 0;
  return o;
}

struct block {
  void* p;
  std::size_t bytes;
  std::size_t alignment;
  std::size_t stream;
};

/// What a limit in the stack counts.
enum class limit_counts { nothing, live_bytes, reserved_bytes };

template <class Upstream>
bool is_poisoned(poisoned_layer<Upstream>&) {
  return true;
}

/// A program over one stack. `Memory` ends in model_checked, which is above the policies.
template <class Memory>
class program {
 public:
  program(Memory memory, sim_machine const& machine, choices& input, limit_counts counts)
      : memory_(std::move(memory)), machine_(machine), input_(input), limit_counts_(counts) {
    for (std::size_t i = 1; i < streams_.size(); ++i) (void)machine_.driver().create_stream(streams_[i]);
  }
  program(program const&) = delete;
  program& operator=(program const&) = delete;

  void run() {
    while (!input_.empty()) {
      switch (input_.below(8)) {
        case 0:
        case 1:
        case 2:
          allocate();
          break;
        case 3:
        case 4:
          free_one();
          break;
        case 5:
          spoil();
          break;
        case 6:
          watch_peak();
          break;
        default:
          change_limit();
          break;
      }
      check();
    }
    while (!blocks_.empty()) free_one();
    check();
    promise(memory_->blocks().requested() == 0, "nothing is live once all is freed");
    (void)machine_.driver().synchronize_device();
    for (std::size_t i = 1; i < streams_.size(); ++i) (void)machine_.driver().destroy_stream(streams_[i]);
  }

 private:
  /// True if a layer of the stack has the call, searched from the top down.
  template <class Call>
  static constexpr bool has = reachable<Memory, Call>;

  void allocate() {
    block b{nullptr, input_.size(22), input_.alignment(), input_.below(4)};
    bool const sync = b.stream == 0;
    std::size_t const before = memory_->blocks().counted();
    try {
      b.p = sync ? memory_.allocate_sync(b.bytes, b.alignment)
                 : memory_.allocate(streams_[b.stream], b.bytes, b.alignment);
    } catch (out_of_memory const& refused) {
      print_step("refused", b.bytes);
      ++refused_;
      promise(refused.report().asked == b.bytes, "a refusal reports the requested bytes", refused.what());
      promise(memory_->blocks().counted() == before, "a refusal changes nothing");
      return;
    } catch (bad_alignment const&) {
      promise(b.alignment > default_alignment, "only more than the usual alignment may be refused");
      return;  // a fallback's blocks may be less aligned than the pool's
    }
    print_step("allocated", b.bytes, "alignment", b.alignment, "stream", b.stream);
    blocks_.push_back(b);
    check_filled(b);
    if (b.p != nullptr) (void)machine_.driver().fill(streams_[b.stream], b.p, 0x11, b.bytes);
  }

  /// New memory under `poisoned` has its pattern.
  void check_filled(block const& b) {
    auto const ask = [](auto& layer) -> decltype(is_poisoned(layer)) { return is_poisoned(layer); };
    if constexpr (has<decltype(ask)>) {
      if (b.bytes == 0 || b.bytes > 4096) return;
      std::vector<unsigned char> seen(b.bytes);
      (void)machine_.driver().copy(streams_[b.stream], seen.data(), b.p, b.bytes);
      promise(
          std::all_of(seen.begin(), seen.end(), [](unsigned char c) { return c == pattern::uninitialised; }),
          "new memory has the pattern of new memory");
    }
  }
  void free_one() {
    if (blocks_.empty()) return;
    std::size_t const at = input_.below(blocks_.size());
    block const b = blocks_[at];
    blocks_[at] = blocks_.back();
    blocks_.pop_back();
    print_step("free", b.bytes, "stream", b.stream);
    if (b.stream == 0) {
      (void)machine_.driver().synchronize_device();
      memory_.deallocate_sync(b.p, b.bytes, b.alignment);
    } else {
      memory_.deallocate(streams_[b.stream], b.p, b.bytes, b.alignment);
    }
  }

  /// Writes one byte past an end; `fenced` reports it at a check, and again at the free, unless the byte is
  /// restored.
  void spoil() {
    auto const ask = [](auto& layer) -> decltype(layer.check_all()) { return layer.check_all(); };
    if constexpr (has<decltype(ask)>) {
      if (blocks_.empty()) return;
      block const b = blocks_[input_.below(blocks_.size())];
      if (b.p == nullptr) return;
      auto* const start = static_cast<unsigned char*>(b.p);
      std::size_t const distance = input_.byte();
      unsigned char* const where = input_.below(2) == 0 ? start + b.bytes + distance : start - 1 - distance;
      (void)machine_.driver().synchronize_device();
      unsigned char const was = std::exchange(*where, static_cast<unsigned char>(~pattern::fence));
      reported::overruns = 0;
      std::size_t const found = nearest(memory_, ask);
      promise(found == 1 && reported::overruns == 1, "a write past an end is found once",
              std::to_string(found) + " found, " + std::to_string(reported::overruns) + " reported");
      *where = was;
      promise(nearest(memory_, ask) == 0, "intact blocks are not reported");
      reported::overruns = 0;
    }
  }

  void watch_peak() {
    peak_scope const peak{memory_};
    std::size_t most = memory_->blocks().counted();
    for (std::size_t i = input_.below(6); i-- > 0;) {
      if (input_.below(3) == 0) {
        free_one();
      } else {
        allocate();
      }
      most = std::max(most, memory_->blocks().counted());
    }
    promise(peak.peak_bytes() == most, "a peak scope reports the maximum of its live bytes");
  }
  [[nodiscard]] tracked_statistics numbers() {
    return nearest(memory_, [](auto& layer) -> decltype(layer.statistics()) { return layer.statistics(); });
  }

  void change_limit() {
    std::size_t const limit = input_.size(26);
    auto const set = [&](auto& layer) -> decltype(layer.set_limit(limit)) { return layer.set_limit(limit); };
    if constexpr (has<decltype(set)>) {
      print_step("limit", limit);
      (void)nearest(memory_, set);
    }
  }

  void check() {
    promise(reported::overruns == 0 && reported::others == 0, "no misuse is reported where there is none");
    live_blocks const& live = memory_->blocks();
    auto const s = numbers();
    auto const as_count = [](std::size_t n) { return static_cast<std::int64_t>(n); };
    promise(s.allocations[0].current == as_count(live.size()), "blocks are counted exactly");
    promise(s.requested_bytes[0].current == as_count(live.requested()), "requested bytes are exact");
    promise(s.allocated_bytes[0].current == as_count(live.counted()), "allocated bytes are exact");
    promise(s.ooms == refused_, "every refusal is counted");
    for (auto const& three : {s.allocations, s.requested_bytes, s.allocated_bytes}) {
      promise(three[0].current == three[1].current + three[2].current, "small and large add up to all");
      for (auto const& one : three) {
        promise(one.peak >= one.current, "a peak is not below the current value");
        promise(one.allocated - one.freed == one.current, "allocated less freed equals current");
      }
    }
    auto const used = [](auto& layer) -> decltype(layer.used()) { return layer.used(); };
    if constexpr (has<decltype(used)>) {
      std::size_t const counted = nearest(memory_, used);
      promise(limit_counts_ != limit_counts::live_bytes || counted == live.counted(),
              "a limit over a pool counts live bytes");
      promise(
          limit_counts_ != limit_counts::reserved_bytes || counted == nearest(memory_, pool_call::reserved{}),
          "a limit under a pool counts reserved bytes");
    }
  }

  Memory memory_;
  sim_machine machine_;
  choices& input_;
  std::array<stream_ref, 4> streams_{};
  std::vector<block> blocks_;
  std::uint64_t refused_ = 0;
  limit_counts limit_counts_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  choices input(data, size);
  sim_machine const machine(small_machine());
  set_misuse_handler(&reported::handler);
  reported::overruns = reported::others = 0;
  std::size_t const limit = input.size(26);
  auto const run = [&](auto memory, limit_counts counts) {
    program(std::move(memory) | model_checked{machine}, machine, input, counts).run();
  };
  switch (input.below(4)) {
    case 0:
      run(sim_pages(machine.driver()) | pooled{} | limited{limit} | tracked{}, limit_counts::live_bytes);
      break;
    case 1:
      run(sim_pages(machine.driver()) | pooled{} | fenced{input.below(64) + std::size_t{256}} | poisoned{} |
              tracked{},
          limit_counts::nothing);
      break;
    case 2: {
      // A handler that raises the limit a little, then gives up; a fallback serves what is refused then.
      auto bounded = sim_malloc(machine.driver()) | limited{limit};
      auto raise = [bounded](out_of_memory const&, unsigned attempt) mutable {
        if (attempt > 1) return false;
        (void)bounded->set_limit(bounded->limit() + 64_KiB);
        return true;
      };
      run(bounded | retry_on_oom{raise} | pooled{} | fallback_to{sim_managed(machine.driver())} | tracked{},
          limit_counts::reserved_bytes);
      break;
    }
    default:
      run(sim_pages(machine.driver()) | limited{limit} | pooled{} | fenced{256} | tracked{} | poisoned{},
          limit_counts::reserved_bytes);
  }
  set_misuse_handler(nullptr);
  sim_leaks const left = machine.leaks();
  promise(left.total() == 0, "all memory is returned to the device");
  return 0;
}
