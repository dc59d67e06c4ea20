// SPDX-License-Identifier: Apache-2.0
// Decodes bytes to a correct program: two pools, owners, streams that are created and destroyed, capture,
// record_stream, trim and a device that runs short, on a simulated device with an order checker. Checks: the
// trivial allocator at the pool's interface (model_checked.hpp), the checker's findings, the pool's own
// counters, and leaks on the device.

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fuzz/choices.hpp"
#include "fuzz/marking_driver.hpp"
#include "fuzz/model_checked.hpp"
#include "fuzz/promise.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;
using namespace tarn_fuzz;

namespace {

sim_options machine_of(choices& input) {
  sim_options o;
  o.capacity = std::array{24_MiB, 64_MiB, 160_MiB, 1_GiB}[input.below(4)];
  o.taken = 0;
  o.backing = sim_backing::address_only;
  o.checks = sim_checks::stream_order;
  o.seed = input.byte();
  return o;
}

pooled pool_of(choices& input) {
  pooled p;
  p.remap = input.below(2) == 0 ? remapping::when_tight : remapping::off;
  p.slack_per_mille = std::array{9U, 0U, 100U}[input.below(3)];
  p.largest_handle = std::array{std::size_t{0}, 2_MiB, 32_MiB}[input.below(3)];
  return p;
}

template <class Driver>
using page_pool = stack<basic_pages<Driver>, pooled, model_checked>;
template <class Driver>
using block_pool = stack<basic_malloc<Driver>, limited, pooled, model_checked>;

/// A driver that cannot mark the work of destroyed streams waits for the whole device, which invalidates a
/// capture: with it the program captures nothing.
template <class Driver>
constexpr bool may_capture = std::is_same_v<Driver, marking_driver>;

/// A pool, and what the program holds of it.
template <class Memory>
struct side {
  struct block {
    void* p;
    std::size_t bytes;
    std::size_t alignment;
    std::size_t stream;  /// < the stream of its work and its deallocation
  };
  explicit side(Memory m) : memory(std::move(m)) {}

  Memory memory;
  std::vector<block> blocks;
  std::vector<block> without_stream;  ///< of allocate_sync
  std::vector<device_buffer<std::uint32_t, Memory>> buffers;
};

template <class Driver>
class program {
 public:
  explicit program(choices& input)
      : input_(input),
        machine_(machine_of(input)),
        driver_(machine_.driver()),
        pages_(page_pool<Driver>(basic_pages<Driver>(driver_), pool_of(input), model_checked{machine_})),
        segments_(block_pool<Driver>(basic_malloc<Driver>(driver_), limited{machine_.options().capacity / 2},
                                     pool_of(input), model_checked{machine_})) {
    streams_.push_back({stream_ref{}});
    for (int i = 0; i < 3; ++i) add_stream();
  }

  void run() {
    while (!input_.empty()) {
      std::uint8_t const what = input_.byte();
      // Two thirds of the work use the pool over pages.
      if (what % 3 != 0) {
        step(pages_, what / 3);
      } else {
        step(segments_, what / 3);
      }
      auto const findings = machine_.findings();
      promise(findings.empty(), "no bytes are reused without an order",
              findings.empty() ? "" : findings.front());
    }
    end();
  }

 private:
  /// Frees some, all or none of the memory; afterwards nothing may be left on the device.
  void end() {
    for (std::size_t s = 0; s < streams_.size(); ++s) end_capture(s);
    bool const tidy = input_.below(2) == 0;
    (void)driver_.synchronize_device();
    close(std::move(pages_), tidy);
    close(std::move(segments_), tidy);
    auto const findings = machine_.findings();
    promise(findings.empty(), "no bytes are reused without an order at the end",
            findings.empty() ? "" : findings.front());
    for (auto const& s : streams_) {
      if (s.alive && s.ref.handle() != nullptr) (void)driver_.destroy_stream(s.ref);
    }
    sim_leaks const left = machine_.leaks();
    promise(left.total() == left.streams && left.streams == (may_capture<Driver> ? 1 : 0),
            "a destroyed pool has returned all memory");
    promise(machine_.usage().used == 0, "a destroyed pool holds no memory");
  }

  struct stream {
    stream_ref ref;
    bool alive = true;
    bool captured = false;
  };

  void add_stream() {
    stream_ref made;
    if (input_.below(4) == 0) {
      (void)machine_.create_blocking_stream({}, made);
    } else {
      (void)driver_.create_stream(made);
    }
    streams_.push_back({made});
    if constexpr (may_capture<Driver>) driver_.roll().add(made);
    print_step("create stream", streams_.size() - 1);
  }
  /// A stream that exists.
  std::size_t any_stream() {
    std::size_t s = input_.below(streams_.size());
    while (!streams_[s].alive) s = (s + 1) % streams_.size();
    return s;
  }
  /// A stream with or without its identity: a user may have either. A bare handle of a captured stream is
  /// refused outside of a capture_scope, and invalidates the capture.
  stream_ref named(std::size_t s) {
    stream_ref const known = streams_[s].ref;
    return streams_[s].alive && input_.below(2) == 0 && !streams_[s].captured
               ? stream_ref::from(known.handle())
               : known;
  }
  [[nodiscard]] bool works(std::size_t s) const {
    bool captured = true;
    return streams_[s].alive && driver_.is_capturing(streams_[s].ref, captured).ok() && !captured;
  }
  void launch(std::size_t s, void* p, std::size_t bytes) {
    if (!works(s)) return;
    auto const duration = input_.number(1) * 1000;
    print_step("  work on stream", s);
    auto const use = input_.below(3) == 0 ? sim_reads(p, bytes) : sim_writes(p, bytes);
    promise(machine_.launch(streams_[s].ref, duration, {use}).ok(), "allocated memory can be used");
  }
  /// The user's own event: `after` waits for all of `before`.
  bool order(std::size_t after, std::size_t before) {
    if (!works(after) || !works(before)) return false;
    print_step("stream", after, "waits for", before);
    Driver const& driver = driver_;
    event_handle event = nullptr;
    (void)driver.create_event(event);
    (void)driver.record_event(event, streams_[before].ref);
    (void)driver.wait_event(streams_[after].ref, event);
    (void)driver.destroy_event(event);
    return true;
  }
  void end_capture(std::size_t s) {
    if (!streams_[s].captured) return;
    streams_[s].captured = false;
    print_step("end capture of stream", s);
    sim_graph graph;
    promise(machine_.end_capture(streams_[s].ref, graph).ok(), "no allocation invalidates a capture");
    promise(graph.is_empty() && machine_.captured_calls() == calls_of_user_,
            "no driver call of the pool is captured into a graph");
  }

  template <class Memory>
  void step(side<Memory>& in, unsigned what) {
    switch (what % 20) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        return allocate(in);
      case 5:
      case 6:
      case 7:
      case 8:
        return deallocate(in);
      case 9:
        return deallocate_elsewhere(in);
      case 10:
        return use(in);
      case 11:
        return allocate_sync(in);
      case 12:
        return deallocate_sync(in);
      case 13:
        return record_stream(in);
      case 14:
        return own(in);
      case 15:
        return change_owner(in);
      case 16:
        return shrink(in);
      case 17:
        return change_streams();
      case 18:
        return change_device();
      default:
        return look(in);
    }
  }

  char const* name_of(side<page_pool<Driver>> const&) { return "pages"; }
  char const* name_of(side<block_pool<Driver>> const&) { return "blocks"; }

  template <class Memory>
  void allocate(side<Memory>& in) {
    std::size_t const s = any_stream();
    std::size_t const bytes = input_.size(27);
    std::size_t const alignment = input_.alignment();
    print_step(name_of(in), "allocate on stream", s, "bytes", bytes, "alignment", alignment);
    try {
      void* const p = in.memory.allocate(named(s), bytes, alignment);
      in.blocks.push_back({p, bytes, alignment, s});
      launch(s, p, bytes);
    } catch (out_of_memory const& refused) {
      promise(refused.report().asked == bytes, "a refusal reports the requested bytes");
    }
  }
  template <class Block>
  Block take(std::vector<Block>& from) {
    std::size_t const at = input_.below(from.size());
    Block const b = from[at];
    from[at] = from.back();
    from.pop_back();
    return b;
  }
  template <class Memory>
  void deallocate(side<Memory>& in) {
    if (in.blocks.empty()) return;
    auto const b = take(in.blocks);
    print_step(name_of(in), "deallocate on stream", b.stream, "bytes", b.bytes);
    in.memory.deallocate(named(b.stream), b.p, b.bytes, b.alignment);
  }
  /// Freed on a stream that the program has ordered after the block's own.
  template <class Memory>
  void deallocate_elsewhere(side<Memory>& in) {
    if (in.blocks.empty()) return;
    auto const b = take(in.blocks);
    std::size_t const s = any_stream();
    if (order(s, b.stream)) {
      print_step(name_of(in), "deallocate on stream", s, "bytes", b.bytes);
      launch(s, b.p, b.bytes);
      print_step(name_of(in), "record_stream on stream", s, "of stream", b.stream, "bytes", b.bytes);
      in.memory.deallocate(named(s), b.p, b.bytes, b.alignment);
    } else {
      in.blocks.push_back(b);
    }
  }
  template <class Memory>
  void use(side<Memory>& in) {
    if (in.blocks.empty()) return;
    auto const& b = in.blocks[input_.below(in.blocks.size())];
    launch(b.stream, b.p, b.bytes);
  }
  template <class Memory>
  void allocate_sync(side<Memory>& in) {
    std::size_t const bytes = input_.size(24);
    std::size_t const alignment = input_.alignment();
    print_step(name_of(in), "allocate_sync bytes", bytes, "alignment", alignment);
    try {
      void* const p = in.memory.allocate_sync(bytes, alignment);
      in.without_stream.push_back({p, bytes, alignment, 0});
      launch(any_stream(), p, bytes);  // immediately, on any stream
    } catch (out_of_memory const& refused) {
      promise(refused.report().asked == bytes, "a refusal reports the requested bytes");
    }
  }
  template <class Memory>
  void deallocate_sync(side<Memory>& in) {
    if (in.without_stream.empty()) return;
    // The user has waited: if a capture forbids that, the block stays.
    if (!driver_.synchronize_device().ok()) return forgive_capture();
    auto const b = take(in.without_stream);
    print_step(name_of(in), "deallocate_sync bytes", b.bytes);
    in.memory.deallocate_sync(b.p, b.bytes, b.alignment);
  }
  /// A wait that the user should not have requested invalidates the capture.
  void forgive_capture() {
    for (stream& s : streams_) {
      if (!s.captured) continue;
      s.captured = false;
      sim_graph graph;
      (void)machine_.end_capture(s.ref, graph);
    }
  }
  template <class Memory>
  void record_stream(side<Memory>& in) {
    if (in.blocks.empty()) return;
    auto const& b = in.blocks[input_.below(in.blocks.size())];
    std::size_t const s = any_stream();
    if (!order(s, b.stream)) return;
    launch(s, b.p, b.bytes);
    in.memory.record_stream(b.p, b.bytes, named(s));
  }

  template <class Memory>
  void own(side<Memory>& in) {
    std::size_t const s = any_stream();
    std::size_t const count = input_.size(20);
    if (!works(s)) return;
    try {
      print_step(name_of(in), "buffer on stream", s, "elements", count);
      device_buffer<std::uint32_t, Memory> made(in.memory, count, named(s), input_.alignment());
      made.fill(std::byte{1});
      in.buffers.push_back(std::move(made));
    } catch (out_of_memory const&) {
    }
  }
  template <class Memory>
  void change_owner(side<Memory>& in) {
    if (in.buffers.empty()) return;
    auto& b = in.buffers[input_.below(in.buffers.size())];
    std::size_t const s = any_stream();
    std::uint8_t const how = input_.byte();
    std::size_t const count = input_.size(21);
    // All other operations need the buffer's own stream to exist.
    bool exists = false;
    for (std::size_t i = 0; i < streams_.size(); ++i)
      exists |= works(i) && streams_[i].ref.id() == b.stream().id();
    exists |= b.stream().handle() == nullptr && works(0);
    print_step(name_of(in), "change a buffer", how % 8, "elements", count, "stream", s);
    if (how % 8 == 0 || !exists || !works(s)) {
      std::swap(b, in.buffers.back());
      return in.buffers.pop_back();
    }
    try {
      switch (how % 8) {
        case 1:
          return b.resize(count, named(s));
        case 2:
          return b.reserve(count, named(s));
        case 3:
          return b.shrink_to_fit(named(s));
        case 4:
          return b.set_stream(named(s));
        case 5:
          return b.reset();
        case 6:
          return in.buffers.emplace_back(b.clone(named(s))).zero();
        default: {
          auto& other = in.buffers[input_.below(in.buffers.size())];
          std::size_t const before = b.size();
          auto const* const data = b.data();
          auto taken = std::move(b);
          b = std::move(taken);
          promise(b.size() == before && b.data() == data,
                  "moving a buffer and moving it back changes nothing");
          return b.swap(other);
        }
      }
    } catch (out_of_memory const&) {
    }
  }

  template <class Memory>
  void shrink(side<Memory>& in) {
    std::size_t const keep = input_.below(2) == 0 ? 0 : input_.size(27);
    print_step(name_of(in), "trim to", keep);
    std::size_t const before = in.memory->upstream()->state().reserved;
    std::size_t const given = in.memory.trim(keep);
    std::size_t const after = in.memory->upstream()->state().reserved;
    promise(before - after == given, "trim returns the number of bytes it freed");
  }
  void change_streams() {
    std::size_t const s = any_stream();
    switch (input_.below(4)) {
      case 0:
        if (streams_.size() < 24) add_stream();
        return;
      case 1:  // its blocks live on
        if (s == 0) return;
        end_capture(s);
        print_step("destroy stream", s);
        if constexpr (may_capture<Driver>) driver_.roll().remove(streams_[s].ref);
        (void)driver_.destroy_stream(streams_[s].ref);
        streams_[s].alive = false;
        return;
      case 2:
        print_step("capture stream", s);
        if (may_capture<Driver> && s != 0 && works(s))
          streams_[s].captured = machine_.begin_capture(streams_[s].ref).ok();
        return;
      default:
        return end_capture(s);
    }
  }
  void change_device() {
    print_step("change the device");
    switch (input_.below(3)) {
      case 0:
        return machine_.advance(input_.number(3));
      case 1:
        return machine_.take_memory({}, input_.size(26));
      default:
        return machine_.take_memory({}, 0);
    }
  }

  template <class Memory>
  void look(side<Memory>& in) {
    live_blocks const& live = in.memory->blocks();
    pool_state const s = in.memory->upstream()->state();
    promise(s.reserved + 0 <= machine_.options().capacity, "reserved does not exceed the device");
    promise(s.live >= live.counted(), "live blocks are counted");
    promise(s.deferred != 0 || s.live == live.counted(), "live bytes are exact");
    promise(s.deferred != 0 || s.live_blocks == live.size(), "live blocks are exact");
    promise(s.live <= s.reserved, "live does not exceed reserved");
    promise(s.reserved_total - s.released_total == s.reserved, "allocated less freed equals held");
    promise(s.creates - s.destroys == s.handles && s.maps >= s.unmaps, "handles are counted");
    promise(s.smaller.reserved.current + s.larger.reserved.current == static_cast<std::int64_t>(s.reserved),
            "small and large add up to all");
    promise(s.reserved <= s.reserved_peak && s.handles <= s.handles_peak,
            "a peak is not below the current value");
    if (!in.blocks.empty()) {
      auto const& b = in.blocks[input_.below(in.blocks.size())];
      void* const last = static_cast<char*>(b.p) + (b.bytes == 0 ? 0 : b.bytes - 1);
      promise(b.bytes == 0 || (in.memory.owns(b.p) && in.memory.owns(last)),
              "a pool owns its allocated blocks");
      promise(!pages_.memory.owns(b.p) || !segments_.memory.owns(b.p), "no two pools own a block");
    }
    try {
      (void)in.memory.allocate({}, std::numeric_limits<std::size_t>::max() - input_.byte(), 256);
      promise(false, "an impossible size is refused");
    } catch (out_of_memory const&) {
    }
    try {
      (void)in.memory.allocate({}, 1, 3 * input_.alignment());
      promise(false, "an alignment that is not a power of two is refused");
    } catch (bad_alignment const&) {
    }
    promise(in.memory.allocate({}, 0, 256) == nullptr, "an allocation of zero bytes is null");
    if (input_.below(8) == 0) in.memory->upstream()->reset_peaks();
  }

  template <class Memory>
  void close(side<Memory> in, bool tidy) {
    if (!tidy) return;  // owners free; the rest is left to the pool
    for (auto const& b : in.blocks) in.memory.deallocate(streams_[b.stream].ref, b.p, b.bytes, b.alignment);
    for (auto const& b : in.without_stream) in.memory.deallocate_sync(b.p, b.bytes, b.alignment);
    in.buffers.clear();
    (void)in.memory.trim(0);
    pool_state const s = in.memory->upstream()->state();
    live_blocks const& kept = in.memory->kept();
    promise(s.live == kept.counted() && s.live_blocks == kept.size() && s.deferred == kept.counted(),
            "freed blocks are not live, but for those that captures have freed");
    promise(s.reserved == 0 || kept.size() != 0, "a pool trimmed to zero holds nothing");
  }

  choices& input_;
  sim_machine machine_;
  std::vector<stream> streams_;
  Driver driver_;
  side<page_pool<Driver>> pages_;
  side<block_pool<Driver>> segments_;
  std::size_t calls_of_user_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  choices input(data, size);
  if (input.below(3) != 0) {
    program<marking_driver>(input).run();
  } else {
    program<sim_driver>(input).run();
  }
  return 0;
}
