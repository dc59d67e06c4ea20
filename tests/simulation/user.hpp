// SPDX-License-Identifier: Apache-2.0
#pragma once
// The user of a random program: executes each step that a correct user could, with the ordering that it
// requires. Any error is then the library's.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "contents.hpp"
#include "in_library.hpp"
#include "operation.hpp"
#include "scheduler.hpp"
#include "streams.hpp"
#include "tally.hpp"
#include "world.hpp"

#if __has_include("tarn/driver/capture_gate.hpp")
#include "tarn/driver/capture_gate.hpp"
#endif

namespace simulation {

/// A capture that the library knows of, as with a capture_scope. Earlier headers have no such thing.
struct announced_capture {
#if __has_include("tarn/driver/capture_gate.hpp")
  static bool begin() noexcept { return tarn::detail::capture_gate::try_begin_capture(); }
  static void end() noexcept { tarn::detail::capture_gate::end_capture(); }
#else
  static bool begin() noexcept { return true; }
  static void end() noexcept {}
#endif
};

/// Whether a pool keeps by itself what a capture without a scope frees. Earlier headers do not.
template <class Options>
inline constexpr bool keeps_frees_of_captures =
    requires(Options options) { std::remove_cvref_t<decltype(options.captures)>::at_frees; };

class user {
 public:
  user(world& w, profile const& kind, tally& counted)
      : world_(w),
        counted_(counted),
        streams_(w, kind.devices, kind.streams),
        blocks_(kind.slots),
        owners_(kind.owners),
        blocks_claimed_(kind.slots),
        owners_claimed_(kind.owners) {
    for (weight const& each : kind.weights) captures_ = captures_ || each.what == act::begin_capture;
    if (captures_) world_.will_capture();
    for (weight const& each : kind.weights)
      uses_graph_memory_ = uses_graph_memory_ || each.what == act::open_capture;
    has_owners_ = kind.owners != 0;
    at_once_ = kind.at_once != 0;
    for (unsigned i = 0; i < kind.pools; ++i) {
      pools_.push_back({});
      pools_[i].device = static_cast<int>(i % kind.devices);
      open_pool(i);
    }
  }

  /// Executes one step on the calling thread, which has this number.
  void step(operation const& o, unsigned thread) {
    streams_.set_thread(thread);
    streams_.begin_step();
    claim const mine(*this, o);
    if (!mine.granted()) return;
    try {
      take(o);
    } catch (tarn::out_of_memory const&) {
      ++counted_.refusals;
    } catch (asleep_error const&) {
      ++counted_.refusals;
    } catch (std::length_error const&) {
      if (o.bytes <= tarn::max_request_bytes)
        world_.found().push_back("a valid size was refused as too large");
    } catch (std::exception const& error) {
      world_.found().push_back(
          text("%s threw: %s", act_names[static_cast<std::size_t>(o.what)], error.what()));
    }
  }

  /// The calling thread is about to end: captures of its own default streams end before.
  void leave(unsigned thread) {
    streams_.set_thread(thread);
    for (std::size_t g = 0; g < graphs_.size(); ++g) {
      if (streams_[graphs_[g].from].thread == thread) finish_capture(g);
    }
    for (auto const& g : captured_) {
      if (g->is_open && streams_[g->from].thread == thread) close_capture(*g);
    }
  }

  /// What must hold after a step of one thread while others are inside theirs.
  void check_order() { world_.check_order(); }

  /// What must hold between steps.
  void check(bool with_state) {
    for (auto const& pool : pools_) {
      world_.check_numbers(pool);
      if (with_state) (void)world_.check_state(pool);
    }
    if (with_state) {
      for (auto& s : scopes_) compare(*s);
      check_memories();
      check_pins();
      if (world_.chosen().machine.devices == 1) world_.check_device(pools_, 0);
    }
    check_headroom();
    world_.check_order();
  }

  /// Frees everything and checks that nothing is left, on the calling thread.
  void close(unsigned thread) {
    streams_.set_thread(thread);
    try {
      for (std::size_t g = 0; g < graphs_.size(); ++g) finish_capture(g);
      graphs_.clear();
      world_.release_held(without_scope);
      bool const memories_first = numbers_ % 2 == 0;
      close_graphs(memories_first);
      end_pins([](pin_of_user const& pin) { return pin.number % 4 == 0; });
      wake_some();
      check_pins();
      while (!scopes_.empty()) close_scope(0);
      for (auto& b : blocks_) {
        if (b == nullptr) continue;
        b->graphs = 0;
        if (!give_back(b, b->number % 5 == 0 ? 3 : 0)) give_back_late(b);
      }
      for (auto& o : owners_) drop(o);
      for (auto& b : ballast_) give_back_late(b);
      ballast_.clear();
      close_graphs(true);
      for (auto& pool : pools_) {
        for (stream_number s = 0; s < streams_.size(); ++s) {
          if (streams_.can_wait_for(s) && streams_[s].device == pool.device && s % 3 == 0)
            streams_.wait_for(s);
        }
        count_depth(world_.check_state(pool));
        (void)pool.memory->trim(0);
        expect_empty(pool);
        end_pins(
            [&](pin_of_user const& pin) { return pin.pool_number == pool.number && pin.number % 4 == 1; });
        (void)pool.memory->trim(0);
        expect_empty(pool);
        world_.check_numbers(pool);
        pool.memory.reset();
      }
      check_pins();
      end_pins([](pin_of_user const&) { return true; });  // the last one ends its pool
      while (!outside_.empty()) return_headroom(0);
      streams_.close();
    } catch (std::exception const& error) {
      world_.found().push_back(text("the end of the program threw: %s", error.what()));
    }
    world_.check_order();
  }

 private:
  struct captured_graph;
  /// A graph_memory. Its graphs are never launched at the same time.
  struct graph_memory_of_user {
    std::unique_ptr<graph_memory_under_test> it;
    unsigned pool = 0;
    unsigned pool_number = 0;  ///< with the model
    unsigned number = 0;       ///< from 1
    bool is_asleep = false;    /// < forever: the user has given up its pool
    bool has_capture = false;
    bool is_busy = false;      ///< a thread is inside a call of it
    unsigned allocations = 0;  ///< threads that allocate from it outside a capture
    /// Streams whose work may use its memory: the next launch comes after it.
    std::vector<stream_number> users;
  };
  struct graph {
    tarn::sim_graph recorded;
    stream_number from = 0;
    bool open = false;
    std::vector<std::size_t> slots;    /// < whose blocks it uses
    std::vector<stream_number> after;  /// < uses of the blocks that it has freed
  };
  /// A live block, and the streams that may still use it: `last` after all earlier uses, and concurrent
  /// readers.
  struct block {
    void* p = nullptr;
    std::size_t bytes = 0, alignment = 0;
    unsigned pool = 0;
    stream_number last = 0;
    bool unordered = false;  /// < from allocate_sync and not used yet: any stream may use it
    bool written = false;
    std::vector<stream_number> readers;
    unsigned graphs = 0;
    std::uint64_t number = 0;
    captured_graph* in = nullptr;        ///< the open capture that allocated it
    graph_memory_of_user* of = nullptr;  ///< whose captured memory it is
    bool of_graph = false;               ///< of a graph_memory, which may have ended
    int stamped_in = -1;                 ///< the capture that allocated it and writes its stamps; -1: none
    /// That handed it out outside a capture: no graph touches it, unless it uses it.
    graph_memory_of_user* outside_of = nullptr;
  };
  /// A stream that joined a capture.
  struct joined {
    stream_number stream = 0;
    bool is_known = false;  ///< to the pool
  };
  /// A block of before a capture that it uses, and the stream of its last use there.
  struct captured_use {
    block* it = nullptr;
    stream_number on = 0;
    friend bool operator==(captured_use const& use, block const* b) { return use.it == b; }
  };
  /// A graph that is captured, or was, for a graph_memory.
  struct captured_graph {
    graph_memory_of_user* memory = nullptr;
    std::unique_ptr<capture_under_test> scope;
    tarn::sim_graph recorded;
    int number = 0;  ///< stream_state::graph of its streams
    stream_number from = 0;
    unsigned thread = 0;  ///< that opened the scope
    std::vector<joined> others;
    bool is_open = false;
    unsigned calls = 0;  ///< of threads that are inside one for this capture
    std::vector<captured_use> used;
    std::vector<block*> writes, reads;  ///< of those, if contents are watched
    bool reads_freed = false;           ///< it reads blocks that it frees, and that were there before
    bool has_lost_contents = false;     ///< of those: it cannot be launched any more
    std::vector<graph_memory_of_user*> memories;  ///< besides its own, those whose blocks it frees
    std::vector<stream_number> after;             ///< of uses of the blocks that it frees
  };
  struct owner {
    std::unique_ptr<owner_under_test> it;
    unsigned pool = 0;
    stream_number on = 0;
    std::size_t filled = 0;
    unsigned char value = 0;
  };
  struct scope {
    unsigned pool = 0;
    unsigned number = 0;
    std::unique_ptr<scope_under_test> it;
    expected_scope expected;
  };
  using block_slot = std::unique_ptr<block>;
  /// A page_pin.
  struct pin_of_user {
    std::unique_ptr<pin_under_test> it;
    unsigned pool = 0;
    unsigned pool_number = 0;  ///< with the model
    std::uint64_t block = 0;   ///< the number of the block
    std::uint64_t number = 0;
    char const* p = nullptr;
    std::size_t bytes = 0;
    std::vector<page_piece> pieces{};  ///< of handles, when it was made
    bool of_graph = false;             ///< of a graph_memory's block
    bool is_busy = false;              ///< a thread is inside a call of it
    bool is_ending = false;            ///< that call ends it
  };

  /// The slots that a step uses while others run during it. Those skip steps that need the same slots.
  class claim {
   public:
    claim(user& of, operation const& o) {
      if (!several_threads) return;
      bool const of_owners = uses_owners(o.what);
      auto& slots = of_owners ? of.owners_claimed_ : of.blocks_claimed_;
      if (slots.empty()) return;
      bool const two = o.what == act::copy || o.what == act::move_buffer || o.what == act::copy_buffer;
      std::size_t const first = o.slot % slots.size(), second = two ? o.second % slots.size() : first;
      if (!uses_blocks(o.what) && !of_owners) return;
      if (slots[first] || slots[second]) {
        granted_ = false;
        return;
      }
      for (std::size_t const each : {first, second}) slots[each] = true;
      slots_ = &slots;
      first_ = first;
      second_ = second;
    }
    claim(claim const&) = delete;
    claim& operator=(claim const&) = delete;
    ~claim() {
      if (slots_ != nullptr) (*slots_)[first_] = (*slots_)[second_] = false;
    }
    [[nodiscard]] bool granted() const noexcept { return granted_; }

   private:
    static bool uses_owners(act what) noexcept {
      return what >= act::make_buffer && what <= act::make_pointer;
    }
    static bool uses_blocks(act what) noexcept {
      return what == act::allocate || what == act::allocate_sync || what == act::deallocate ||
             what == act::use || what == act::copy || what == act::pin_block;
    }
    std::vector<bool>* slots_ = nullptr;
    std::size_t first_ = 0, second_ = 0;
    bool granted_ = true;
  };

  /// The position of a step among those of other threads.
  class moment {
   public:
    moment() noexcept : alone_(calls_open == 0), switches_(switches()) {}
    /// No other thread is inside a call.
    [[nodiscard]] bool alone() const noexcept { return alone_; }
    /// No other thread was inside a call, and none has run since.
    [[nodiscard]] bool undisturbed() const noexcept { return alone_ && switches_ == switches(); }

   private:
    static std::uint64_t switches() noexcept {
      return scheduler::active != nullptr ? scheduler::active->switches() : 0;
    }
    bool const alone_;
    std::uint64_t const switches_;
  };

  [[nodiscard]] bool reads_contents() const { return world_.chosen().watched == watch::contents; }
  [[nodiscard]] bool only_counts() const { return world_.chosen().watched == watch::model; }
  [[nodiscard]] bool any_capture() const {
    for (graph const& g : graphs_) {
      if (g.open) return true;
    }
    return any_scope();
  }
  [[nodiscard]] bool any_scope() const {
    return opening_captures_ != 0 ||
           std::any_of(captured_.begin(), captured_.end(), [](auto const& g) { return g->is_open; });
  }
  [[nodiscard]] bool is_quiet(block const& b) const { return pools_[b.pool].quiet; }
  [[nodiscard]] tarn::sim_driver driver(unsigned pool) const { return world_.driver(pools_[pool].device); }
  /// The stream of a step for a pool: of the pool's device, or of another one that may use its memory.
  [[nodiscard]] stream_number stream_for(unsigned pool, operation const& o) {
    int const own = pools_[pool].device;
    bool const elsewhere = world_.chosen().across && o.other % 3 == 0;
    return streams_.in(elsewhere ? 1 - own : own, o.stream);
  }

  void take(operation const& o) {
    if (needs_all(o.what)) {
      if (!moment().alone()) return;
      without_interruption const now;
      return take_one(o);
    }
    take_one(o);
  }
  /// Steps that a correct program executes only while no other thread is in a call: they change what such
  /// calls use.
  static bool needs_all(act what) noexcept {
    switch (what) {
      case act::begin_capture:
      case act::end_capture:
      case act::drain:
      case act::reset_peaks:
      case act::open_scope:
      case act::close_scope:
      case act::make_pool:
      case act::fragment:
        return true;
      default:
        return false;
    }
  }
  void take_one(operation const& o) {
    auto const pool = static_cast<unsigned>(o.pool % pools_.size());
    int const device = pools_[pool].device;
    block_slot* const slot = blocks_.empty() ? nullptr : &blocks_[o.slot % blocks_.size()];
    owner* const mine = owners_.empty() ? nullptr : &owners_[o.slot % owners_.size()];
    switch (o.what) {
      case act::allocate:
      case act::allocate_sync:
        return allocate(o, pool, *slot);
      case act::deallocate:
        if (world_.chosen().across && o.how % 4 == 3 && streams_.is_capturing(0)) streams_.displace_devices();
        if (block_slot old; o.how % 2 == 0 && fetch_old_view(old, o)) {
          // What is freed was used just before.
          if (streams_.runs(old->last) && !is_quiet(*old))
            launch(*old, old->last, 300'000 + o.duration * 4, tarn::sim_use::writes);
          if (!free_slot(old, o)) ballast_.push_back(std::move(old));
          return;
        }
        (void)free_slot(*slot, o);
        return;
      case act::use:
        (void)fetch_old_view(*slot, o);
        return use(o, *slot);
      case act::copy:
        return copy(o, *slot, blocks_[o.second % blocks_.size()]);
      case act::order: {
        auto const before = streams_.in(device, o.other), after = stream_for(pool, o);
        if (streams_.runs(before) && streams_.can_order(before, after)) streams_.order(before, after);
        return;
      }
      case act::synchronize: {
        if (o.how % 8 == 0) {
          if (!streams_.is_capturing(device))
            world_.expect(world_.driver(device).synchronize_device(), "synchronize_device");
        } else if (auto const s = streams_.in(device, o.stream); streams_.can_wait_for(s)) {
          streams_.wait_for(s);
        }
        return;
      }
      case act::pass_time:
        return world_.machine().advance(o.duration % 1'000'000);
      case act::begin_capture:
        return begin_capture(device, o.stream);
      case act::end_capture:
        if (!graphs_.empty()) finish_capture(o.slot % graphs_.size());
        return;
      case act::launch_graph:
        return uses_graph_memory_ ? replay(o) : launch_graph(o, device);
      case act::drop_graph:
        return uses_graph_memory_ ? drop_captured(o.slot) : drop_graph(o.slot);
      case act::make_stream:
        if (!captures_ || world_.marks_all_work()) make_stream(device, o);
        return;
      case act::end_thread:
        return;  // by run, from outside
      case act::trim:
        return trim(pool, o.bytes % (world_.chosen().machine.capacity + 1));
      case act::empty_cache:
        return trim(pool, 0);
      case act::drain:
        return drain(pool, o);
      case act::look:
        return look(pool, o);
      case act::reset_peaks:
        return reset(pool, o);
      case act::open_scope:
        return open_scope(pool);
      case act::close_scope:
        if (!scopes_.empty()) close_scope(o.slot % scopes_.size());
        return;
      case act::make_pool:
        return replace_pool(pool);
      case act::take_memory:
        world_.machine().take_memory(device, o.bytes % (world_.chosen().machine.capacity / 2));
        return;
      case act::set_limit:
        pools_[pool].memory->set_limit(o.how % 3 == 0 ? world_.chosen().machine.capacity * 4
                                                      : o.bytes % world_.chosen().machine.capacity);
        return;
      case act::make_buffer:
        return make_buffer(o, pool, mine);
      case act::make_pointer:
        return make_pointer(o, pool, mine);
      case act::resize_buffer:
        // What a growing_buffer gave back may be used by the graph.
        if (streams_.is_capturing(0)) return;
        return resize(o, mine);
      case act::move_buffer:
        return move(o, mine);
      case act::copy_buffer:
        return copy_owner(o, mine);
      case act::fill_buffer:
        return fill(o, mine);
      case act::drop_buffer:
        if (mine != nullptr) drop(*mine, o.how);
        return;
      case act::fragment:
        return fragment(o, pool);
      case act::make_memory:
        return make_memory(o, pool);
      case act::drop_memory:
        if (graph_memory_slot& m = memories_[o.second % most_memories]; can_drop(m)) drop_memory(m);
        return;
      case act::open_capture:
        return open_capture(o);
      case act::join_capture:
        return join_capture(o);
      case act::close_capture:
        if (!captured_.empty()) close_capture(*captured_[o.slot % captured_.size()]);
        return;
      case act::sleep_pool:
        return put_to_sleep(o, pool);
      case act::wake_pool:
        return wake(o, pool);
      case act::compact_pool:
        return compact(pool);
      case act::pin_block:
        (void)fetch_old_view(*slot, o);
        return make_pin(o, *slot);
      case act::look_at_pin:
        return look_at_pin(o);
      case act::end_pin:
        if (!pins_.empty()) end_pin(o.slot % pins_.size());
        return;
      case act::take_headroom:
        return take_headroom(o);
      case act::return_headroom:
        return return_headroom(o.slot);
      case act::keep_headroom:
        return keep_headroom(pool);
      case act::count_of_acts:
        return;
    }
  }

  /// A pool that may have to query a destroyed stream's handle does so between two driver calls: no stream is
  /// destroyed then. Nor is one while another thread may be inside a call of an owner, which passes the
  /// stream on.
  void make_stream(int device, operation const& o) {
    if ((world_.marks_all_work() && !has_owners_) || moment().alone())
      streams_.replace(device, o.stream, o.how);
  }

  /// Fills the pool with small blocks, frees every other one, and makes large blocks of the pieces, each of
  /// them a view.
  void fragment(operation const& o, unsigned pool) {
    stream_number const s = streams_.in(pools_[pool].device, 0);
    pool_under_test& memory = *pools_[pool].memory;
    if (!ballast_.empty() || !streams_.runs(s)) return;
    std::size_t const views = 600 + o.how / 2;  // more than the pool keeps before it drops some
    auto const add = [&](std::size_t bytes) {
      void* const p = memory.allocate(streams_.name(s, 0), bytes, 256);
      ballast_.push_back(std::make_unique<block>());
      *ballast_.back() = {p, bytes, 256, pool, s, false, false, {}, 0, ++numbers_};
    };
    for (std::size_t i = 0; i < 4 * views + 80; ++i) add(2_MiB);
    std::vector<block_slot> kept;
    for (std::size_t i = 0; i < ballast_.size(); ++i) {
      if (i % 2 == 0) {
        (void)release(ballast_[i], s, 0);
      } else {
        kept.push_back(std::move(ballast_[i]));
      }
    }
    ballast_ = std::move(kept);
    counted_.allocations += 5 * views + 80;
    old_views_ = ballast_.size();
    for (std::size_t i = 0; i < views; ++i) add(4_MiB);
  }
  /// Puts one of the first of these large blocks into a step's slot, if that is empty.
  bool fetch_old_view(block_slot& slot, operation const& o) {
    if (slot != nullptr || ballast_.size() <= old_views_ || !world_.chosen().frees_old_views) return false;
    auto const which = ballast_.begin() +
                       static_cast<std::ptrdiff_t>(
                           old_views_ + o.second % std::min<std::size_t>(64, ballast_.size() - old_views_));
    slot = std::move(*which);
    ballast_.erase(which);
    return true;
  }

  // ---- blocks

  /// Makes a block longer where it is. Its stream is the last user then, and has used all of it.
  [[nodiscard]] bool extend(operation const& o, block& b) {
    stream_number const s = stream_for(b.pool, o);
    std::size_t const more = o.bytes / 4 + 1;
    if (!streams_.runs(s) || streams_[s].graph >= 0 || b.in != nullptr || b.graphs != 0 || b.of_graph ||
        is_quiet(b) || !can_come_after(b, s) || b.bytes + more > tarn::max_request_bytes)
      return false;
    come_after(b, s);
    ++counted_.other_calls;
    if (!pools_[b.pool].memory->extend(streams_.name(s, o.how), b.p, b.bytes, more, b.alignment))
      return false;
    ++counted_.extended;
    // Another thread may have put the pool to sleep meanwhile.
    bool const may_use = b.written && !is_quiet(b);
    if (reads_contents() && may_use) launch(b, s, o.duration / 16, tarn::sim_use::reads);
    b.bytes += more;
    b.written = may_use;
    if (may_use) launch(b, s, o.duration, tarn::sim_use::writes);
    return true;
  }

  void allocate(operation const& o, unsigned pool, block_slot& slot) {
    if (slot != nullptr && o.how % 8 == 2 && extend(o, *slot)) return;
    if (slot != nullptr && !free_slot(slot, o)) return;
    bool const sync = o.what == act::allocate_sync;
    stream_number const s = stream_for(pool, o);
    if (!sync && !streams_.is_usable(s)) return;
    if (!sync && uses_graph_memory_ && streams_[s].graph >= 0) return capture_allocation(o, s, slot);
    bool const asleep = pools_[pool].asleep && !pools_[pool].changing;
    bool const awake = !pools_[pool].quiet;
    std::size_t const alignment = o.alignment;
    pool_under_test& memory = *pools_[pool].memory;
    ++counted_.allocations;
    void* p = nullptr;
    graph_memory_of_user* const from = sync ? nullptr : memory_for(o, pool);
    moment const now;
    try {
      p = sync              ? memory.allocate_sync(o.bytes, alignment)
          : from != nullptr ? allocate_outside(*from, streams_.name(s, o.how), o)
                            : memory.allocate(streams_.name(s, o.how), o.bytes, alignment);
    } catch (asleep_error const&) {
      if (awake && now.undisturbed()) world_.found().push_back("a pool that is awake threw pool_asleep");
      throw;
    } catch (tarn::out_of_memory const&) {
      if (asleep && now.undisturbed())
        world_.found().push_back("a sleeping pool refused memory without pool_asleep");
      if (now.undisturbed()) check_refusal(pool, o.bytes);
      throw;
    }
    if (p == nullptr) return;
    if (asleep && now.undisturbed()) world_.found().push_back("a sleeping pool allocated memory");
    slot = std::make_unique<block>();
    *slot = {p, o.bytes, alignment, pool, s, sync, false, {}, 0, ++numbers_};
    slot->outside_of = from;
    slot->of_graph = from != nullptr;
    bool const at_once = only_counts() ? o.how % 32 == 1 : o.how % 8 != 1;
    if (at_once && streams_.runs(s) && !pools_[pool].quiet) {
      slot->unordered = false;
      launch(*slot, s, o.duration, tarn::sim_use::writes);
    }
  }

  /// Work on a block, in order.
  void launch(block& b, stream_number s, std::uint64_t duration, tarn::sim_use use) {
    ++counted_.kernels;
    if (world_.chosen().frees_old_views && duration < 200'000) duration %= 4096;
    auto const d = streams_.driver(streams_[s]);
    auto const& on = streams_[s].named;
    tarn::sim_access const touched{b.p, b.bytes, use};
    bool const writes = use == tarn::sim_use::writes;
    tarn::status done;
    if (!reads_contents()) {
      done = d.launch(on, duration, {touched});
    } else if (writes) {
      done = d.launch(on, duration, {touched}, write_stamps{b.p, b.bytes, b.number});
    } else {
      done = d.launch(on, duration, {touched}, read_stamps{b.p, b.bytes, b.number, &world_.found()});
    }
    world_.expect(done, "launch");
    b.written = b.written || writes;
  }

  /// True if all uses of a block can be ordered before work on `s`.
  [[nodiscard]] bool can_come_after(block const& b, stream_number s) const {
    if (!b.unordered && !streams_.can_order(b.last, s)) return false;
    for (stream_number r : b.readers) {
      if (!streams_.can_order(r, s)) return false;
    }
    return true;
  }
  /// Orders them; `s` is the last user then.
  void come_after(block& b, stream_number s) {
    if (!b.unordered) streams_.order(b.last, s);
    for (stream_number r : b.readers) streams_.order(r, s);
    b.readers.clear();
    b.unordered = false;
    b.last = s;
  }

  void use(operation const& o, block_slot& slot) {
    if (slot == nullptr || is_quiet(*slot)) return;
    block& b = *slot;
    stream_number const s = stream_for(b.pool, o);
    if (!streams_.is_usable(s)) return;
    if (streams_[s].graph >= 0) return uses_graph_memory_ ? use_in_capture(o, b, s) : capture_use(o, b, s);
    if (b.in != nullptr) return;
    bool const beside = o.how % 4 == 0 && b.written && !b.unordered;
    if (beside) {
      if (!streams_.runs(s) || !streams_.can_order(b.last, s)) return;
      streams_.order(b.last, s);
      launch(b, s, o.duration, tarn::sim_use::reads);
      if (s == b.last) return;
      for (stream_number r : b.readers) {
        if (r == s) return;
      }
      b.readers.push_back(s);
      // PyTorch's record_stream: called at the use, not at the free; a second call has no effect.
      if (o.how % 8 == 0) record_stream(b, s, o.how);
      return;
    }
    if (!streams_.runs(s) || !can_come_after(b, s)) return;
    come_after(b, s);
    bool const reads = o.how % 4 == 1 && b.written;
    launch(b, s, o.duration, reads ? tarn::sim_use::reads : tarn::sim_use::writes);
  }

  void copy(operation const& o, block_slot& from, block_slot& to) {
    if (from == nullptr || to == nullptr || from == to ||
        (pools_[from->pool].device != pools_[to->pool].device && !world_.chosen().across) ||
        is_quiet(*from) || is_quiet(*to) || from->in != nullptr || to->in != nullptr)
      return;
    stream_number const s = stream_for(to->pool, o);
    if (!from->written || !streams_.runs(s) || !can_come_after(*from, s) || !can_come_after(*to, s)) return;
    come_after(*from, s);
    come_after(*to, s);
    std::size_t const bytes = from->bytes < to->bytes ? from->bytes : to->bytes;
    ++counted_.kernels;
    world_.expect(driver(to->pool).copy(streams_[s].named, to->p, from->p, bytes), "copy");
    launch(*to, s, o.duration, tarn::sim_use::writes);
  }

  void record_stream(block& b, stream_number s, unsigned how) {
    ++counted_.other_calls;
    pools_[b.pool].memory->record_stream(b.p, b.bytes, streams_.name(s, how));
  }

  [[nodiscard]] bool free_slot(block_slot& slot, operation const& o) {
    if (slot == nullptr) return true;
    if (uses_graph_memory_ && (slot->in != nullptr || o.how % 4 == 2)) {
      // Inside a capture, if the step's stream is part of one.
      stream_number const s = stream_for(slot->pool, o);
      if (capture_of(s) != nullptr) return free_in_capture(slot, s, o.how);
      if (slot->in != nullptr) return false;
    }
    if (slot->graphs != 0) {
      stream_number const s = stream_for(slot->pool, o);
      return is_captured_without_scope(s) && free_without_scope(slot, s, o.how);
    }
    block& b = *slot;
    unsigned const how = o.how;
    if (reads_contents() && b.written && how % 4 != 3 && !b.unordered && streams_.runs(b.last) &&
        !is_quiet(b))
      launch(b, b.last, o.duration / 16, tarn::sim_use::reads);
    switch (how % 8) {
      case 3:
        return give_back_on(slot, stream_for(b.pool, o), how);
      case 4:
        return give_back_recorded(slot, stream_for(b.pool, o), how);
      case 5:
        return give_back_recorded(slot, b.last, how);
      case 6:
        return (how & 0x18) == 0 ? give_back_sync(slot) : give_back(slot, how);
      default:
        return give_back(slot, how);
    }
  }
  /// On the stream that used it last.
  [[nodiscard]] bool give_back(block_slot& slot, unsigned how) {
    block& b = *slot;
    if (b.readers.empty()) return release(slot, b.last, how);
    return give_back_on(slot, b.last, how) || give_back_recorded(slot, b.last, how);
  }
  /// On a stream that waits for all uses.
  [[nodiscard]] bool give_back_on(block_slot& slot, stream_number s, unsigned how) {
    if (!streams_.is_usable(s) || !can_come_after(*slot, s)) return false;
    come_after(*slot, s);
    return release(slot, s, how);
  }
  /// On any stream, with recorded uses instead.
  [[nodiscard]] bool give_back_recorded(block_slot& slot, stream_number s, unsigned how) {
    block& b = *slot;
    if (b.unordered) return release(slot, s, how);
    if (is_being_opened(b.last) || (b.last != s && !may_record(b, b.last)) ||
        !std::all_of(b.readers.begin(), b.readers.end(), [&](stream_number r) { return may_record(b, r); }))
      return false;
    for (stream_number r : b.readers) record_stream(b, r, how);
    if (b.last != s) record_stream(b, b.last, how);
    return release(slot, s, how);
  }
  /// After the host has waited for all uses.
  [[nodiscard]] bool give_back_sync(block_slot& slot) {
    block& b = *slot;
    if (!b.unordered && !streams_.can_wait_for(b.last)) return false;
    for (stream_number r : b.readers) {
      if (!streams_.can_wait_for(r)) return false;
    }
    if (!b.unordered) streams_.wait_for(b.last);
    for (stream_number r : b.readers) streams_.wait_for(r);
    ++counted_.deallocations;
    pools_[b.pool].memory->deallocate_sync(b.p, b.bytes, b.alignment);
    slot.reset();
    return true;
  }
  bool release(block_slot& slot, stream_number s, unsigned how) {
    block& b = *slot;
    if (uses_graph_memory_ && streams_[s].graph >= 0) return free_in_capture(slot, s, how);
    if (is_captured_without_scope(s)) return free_without_scope(slot, s, how);
    if (b.of != nullptr) add_uses(b.of->users, b);
    ++counted_.deallocations;
    pools_[b.pool].memory->deallocate(streams_.name(s, how), b.p, b.bytes, b.alignment);
    slot.reset();
    return true;
  }
  /// The capture is not announced to the pool. It keeps the block until it ends, since the graph may use it
  /// at any launch.
  [[nodiscard]] bool free_without_scope(block_slot& slot, stream_number s, unsigned how) {
    block& b = *slot;
    pool_state_of_user& pool = pools_[b.pool];
    std::size_t const rounded = expected_block(b.bytes, b.alignment);
    // The pool cannot ask about another thread's default stream.
    if (!streams_.is_usable(s) || pool.kept + rounded > world_.chosen().machine.capacity / 8) return false;
    graph& g = *std::find_if(graphs_.begin(), graphs_.end(),
                             [&](graph const& each) { return each.open && each.from == s; });
    auto const used = std::find_if(g.slots.begin(), g.slots.end(),
                                   [&](std::size_t each) { return blocks_[each].get() == &b; });
    if (b.graphs != (used != g.slots.end() ? 1 : 0)) return false;
    if (used != g.slots.end()) g.slots.erase(used);
    add_uses(g.after, b);
    pool.kept += rounded;
    ++counted_.deallocations;
    {
      in_capture const now(without_scope);
      pool.memory->deallocate(streams_.name(s, how), b.p, b.bytes, b.alignment);
    }
    slot.reset();
    return true;
  }
  [[nodiscard]] bool is_captured_without_scope(stream_number s) const {
    return keeps_frees_of_captures<tarn::pooled> && !uses_graph_memory_ && streams_[s].graph >= 0;
  }
  void give_back_late(block_slot& slot) {
    if (!give_back_recorded(slot, slot->last, 0)) world_.found().push_back("a block cannot be returned");
  }

  /// A pool without live blocks must serve a request that fits its memory.
  void check_refusal(unsigned pool, std::size_t bytes) {
    without_interruption const now;
    pool_state_of_user const& p = pools_[pool];
    if (world_.reference().live(p.number) != 0 || any_capture() || has_memories(p.number) || p.kept != 0 ||
        has_pins(p.number) || p.quiet || bytes > world_.chosen().machine.capacity ||
        is_pinned(world_.chosen().pools[pool].on))
      return;
    tarn::pool_state const s = p.memory->state();
    std::size_t const free = free_for_pools(p.device) + s.reserved;
    // Aligning a block within a driver block takes its alignment and one more grain.
    std::size_t const whole = tarn::align_up(bytes + (is_over_blocks(pool) ? 2_MiB + 512 : 0), 2_MiB);
    if (whole <= free && whole <= limit_of(pool))
      world_.found().push_back(
          text("pool %u refused %zu bytes with nothing live and %zu bytes available", p.number, bytes, free));
  }
  /// A pool over blocks needs room to align them, and requests more than one block at a time.
  [[nodiscard]] bool is_over_blocks(unsigned pool) const {
    ground const on = world_.chosen().pools[pool].on;
    return without_pages || on == ground::blocks || is_pinned(on);
  }
  [[nodiscard]] std::size_t limit_of(unsigned pool) const { return pools_[pool].memory->limit(); }

  // ---- capture

  void begin_capture(int device, unsigned slot) {
    stream_number const s = streams_.in(device, slot);
    if (device != 0 || graphs_.size() >= 4 || !streams_.runs(s) || streams_[s].legacy) return;
    // An owner that is dropped on a captured stream would leave its memory to the graph until the pool ends.
    for (owner const& o : owners_) {
      if (o.it != nullptr && o.on == s) return;
    }
    if (!announced_capture::begin()) return;
    world_.expect(world_.machine().begin_capture(streams_[s].named), "begin_capture");
    streams_[s].graph = 1;
    graphs_.push_back({{}, s, true, {}, {}});
  }
  void capture_use(operation const& o, block& b, stream_number s) {
    for (graph& g : graphs_) {
      if (!g.open || g.from != s) continue;
      for (std::size_t used : g.slots) {
        if (blocks_[used].get() == &b) return launch(b, s, o.duration, tarn::sim_use::writes);
      }
      g.slots.push_back(o.slot % blocks_.size());
      ++b.graphs;
      bool const before = b.written;
      launch(b, s, o.duration, tarn::sim_use::writes);
      b.written = before;
      return;
    }
  }
  void finish_capture(std::size_t which) {
    graph& g = graphs_[which];
    if (!g.open) return;
    // Another thread's default stream cannot be named here.
    if (!streams_.is_usable(g.from)) return;
    g.open = false;
    streams_[g.from].graph = -1;
    world_.expect(world_.machine().end_capture(streams_[g.from].named, g.recorded), "end_capture");
    announced_capture::end();
  }
  void launch_graph(operation const& o, int device) {
    if (graphs_.empty()) return;
    graph& g = graphs_[o.slot % graphs_.size()];
    stream_number const s = streams_.in(device, o.stream);
    if (g.open || device != 0 || !streams_.runs(s)) return;
    for (std::size_t used : g.slots) {
      if (!can_come_after(*blocks_[used], s)) return;
    }
    if (!streams_.can_order(g.from, s) || !can_follow(g.after, s)) return;
    streams_.order(g.from, s);
    for (stream_number const each : g.after) streams_.order(each, s);
    g.after.assign(1, s);
    for (std::size_t used : g.slots) come_after(*blocks_[used], s);
    ++counted_.kernels;
    world_.expect(world_.machine().launch(streams_[s].named, g.recorded), "launch of a graph");
    for (std::size_t used : g.slots) blocks_[used]->written = true;
  }
  void drop_graph(unsigned which) {
    if (graphs_.empty()) return;
    graph& g = graphs_[which % graphs_.size()];
    if (g.open) return;
    for (std::size_t used : g.slots) --blocks_[used]->graphs;
    graphs_.erase(graphs_.begin() + static_cast<std::ptrdiff_t>(which % graphs_.size()));
  }

  // ---- pools

  void open_pool(unsigned i) {
    pool_state_of_user& pool = pools_[i];
    pool.number = world_.reference().add_pool();
    pool.memory = make_pool<watched<tarn::sim_driver>, watched<tarn::sim_marking_driver>>(
        world_.watched_driver(pool.device), world_.chosen().pools[i], world_, pool.number);
    pool.may_stay.clear();
  }
  void replace_pool(unsigned i) {
    if (any_capture() || pools_[i].changing || pools_[i].kept != 0 || !free_all(i)) return;
    for (std::size_t s = scopes_.size(); s-- > 0;) {
      if (scopes_[s]->pool == i) close_scope(s);
    }
    world_.check_numbers(pools_[i]);
    count_depth(world_.check_state(pools_[i]));
    ++counted_.other_calls;
    for (graph_memory_slot const& m : memories_) {
      if (m != nullptr && m->pool_number == pools_[i].number && pools_[i].asleep) m->is_asleep = true;
    }
    pools_[i].quiet = pools_[i].asleep = false;
    open_pool(i);  // owners of the old pool keep it alive
  }
  void count_depth(tarn::pool_state const& s) {
    counted_.device_waits += s.device_waits;
    counted_.host_waits += s.host_waits;
    counted_.remaps += s.remaps;
    counted_.retries += s.alloc_retries;
  }
  [[nodiscard]] bool free_all(unsigned pool) {
    for (auto* list : {&blocks_, &ballast_}) {
      for (block_slot& b : *list) {
        if (b != nullptr && b->pool == pool && (b->in != nullptr || b->graphs != 0 || !give_back(b, 0)))
          return false;
      }
    }
    std::erase(ballast_, nullptr);
    return true;
  }
  void trim(unsigned pool, std::size_t keep) {
    if (any_capture() && !any_scope() && !world_.marks_all_work()) return;
    ++counted_.other_calls;
    moment const now;
    std::size_t const before = pools_[pool].memory->state().reserved;
    std::size_t const given = pools_[pool].memory->trim(keep);
    std::size_t const after = pools_[pool].memory->state().reserved;
    if (now.undisturbed() && before - after != given)
      world_.found().push_back(text("trim() freed %zu bytes and returned %zu", before - after, given));
  }
  void expect_empty(pool_state_of_user const& pool) {
    if (has_graph_pins(pool.number) || pool.kept != 0) return;
    pinned_handles const pinned = pinned_in(pool.number);
    tarn::pool_state const s = pool.memory->state();
    if (pool.asleep) {
      std::size_t const least = bytes_of(pinned);
      if (s.reserved < least)
        world_.found().push_back(
            text("pool %u sleeps and holds %zu bytes, %zu are pinned", pool.number, s.reserved, least));
      return;
    }
    if (!pinned.empty()) {
      if (s.reserved != bytes_of(pinned) || s.handles != pinned.size() || s.live != 0 || s.deferred != 0)
        world_.found().push_back(
            text("pool %u keeps %zu bytes (%zu live, %zu deferred, %" PRIu64
                 " handles) after all was freed and trimmed; %zu bytes are pinned, of %zu handles",
                 pool.number, s.reserved, s.live, s.deferred, static_cast<std::uint64_t>(s.handles),
                 bytes_of(pinned), pinned.size()));
      return;
    }
    if (s.reserved != 0 || s.live != 0 || s.deferred != 0 || s.free_blocks != 0 || s.handles != 0)
      world_.found().push_back(text(
          "pool %u keeps %zu bytes (%zu live, %zu deferred, %zu free blocks, %" PRIu64
          " handles) after all was freed and trimmed",
          pool.number, s.reserved, s.live, s.deferred, s.free_blocks, static_cast<std::uint64_t>(s.handles)));
  }
  void drain(unsigned i, operation const& o) {
    if (any_capture() || pools_[i].quiet || pools_[i].kept != 0 || is_pinned(world_.chosen().pools[i].on) ||
        !free_all(i) || has_memories(pools_[i].number))
      return;
    pool_state_of_user const& pool = pools_[i];
    if (world_.reference().live(pool.number) != 0) return;  // an owner's
    bool const with_pins = o.how % 2 == 0;
    if (!with_pins) end_pins([&](pin_of_user const& pin) { return pin.pool_number == pool.number; });
    trim(i, 0);
    expect_empty(pool);
    if (has_pins(pool.number)) return;
    stream_number const s = stream_for(i, o);
    std::size_t room = free_for_pools(pool.device);
    if (room > limit_of(i)) room = limit_of(i);
    room = tarn::align_down(room, 2_MiB);
    if (is_over_blocks(i) && room != 0) room -= 2_MiB;
    if (room == 0 || !streams_.runs(s)) return;
    // All memory as one block.
    ++counted_.allocations;
    ++counted_.deallocations;
    void* p = nullptr;
    try {
      p = pool.memory->allocate(streams_.name(s, o.how), room, 256);
    } catch (tarn::out_of_memory const&) {
      world_.found().push_back(
          text("pool %u is empty but refuses a block of %zu available bytes", pool.number, room));
      throw;
    }
    world_.expect(
        streams_.driver(streams_[s]).launch(streams_[s].named, o.duration, {tarn::sim_writes(p, room)}),
        "launch");
    pool.memory->deallocate(streams_.name(s, o.how), p, room, 256);
  }
  void look(unsigned i, operation const& o) {
    pool_state_of_user const& pool = pools_[i];
    counted_.other_calls += 6;
    moment const now;
    if (now.alone()) {
      without_interruption const still;
      (void)world_.check_state(pool);
    }
    if (several_threads) (void)pool.memory->state();
    if (pool.memory->owns(nullptr)) world_.found().push_back("a pool owns null");
    for (unsigned k = 0; k < 4; ++k) {
      std::size_t const at = (o.slot + k * 7u) % blocks_.size();
      block_slot const& b = blocks_[at];
      if (b == nullptr || blocks_claimed_[at] || !now.undisturbed()) continue;
      block const looked_at = *b;  // another thread may free it meanwhile
      bool const owned = pool.memory->owns(looked_at.p) &&
                         pool.memory->owns(static_cast<char*>(looked_at.p) + looked_at.bytes - 1);
      if (now.undisturbed() && owned != (looked_at.pool == i))
        world_.found().push_back(text("owns() of pool %u is wrong about block %" PRIu64 " of pool %u", i,
                                      looked_at.number, looked_at.pool));
    }
    std::size_t const bytes = o.bytes % (1_GiB);
    if (pool.memory->block_bytes(bytes, o.alignment) != expected_block(bytes, o.alignment))
      world_.found().push_back(text("block_bytes(%zu, %" PRIu32 ") is %zu", bytes, o.alignment,
                                    pool.memory->block_bytes(bytes, o.alignment)));
    if (o.how % 8 != 0) return;
    auto const said = pool.memory->memory_stat_of("allocated_bytes.all.current");
    auto const is = world_.reference().numbers(pool.number).allocated_bytes[0].current;
    if (now.undisturbed() && said != is)
      world_.found().push_back(text("memory_stats() returns %" PRId64 " bytes, not %" PRId64, said, is));
  }
  void reset(unsigned i, operation const& o) {
    ++counted_.other_calls;
    pools_[i].memory->reset_peaks();
    world_.reference().reset_peaks(pools_[i].number);
    if (o.how % 4 != 0) return;
    pools_[i].memory->reset_totals();
    world_.reference().numbers(pools_[i].number).reset_totals();
  }

  void open_scope(unsigned i) {
    if (scopes_.size() >= 6) return;
    auto s = std::make_unique<scope>();
    s->pool = i;
    s->number = pools_[i].number;
    s->it = pools_[i].memory->open_scope();
    world_.reference().add_scope(s->number, s->expected);
    scopes_.push_back(std::move(s));
  }
  void compare(scope& s) {
    scope_reading const r = s.it->read();
    expected_scope& e = s.expected;
    auto const peak = static_cast<std::int64_t>(r.peak);
    if (peak > e.peak && peak <= e.most_peak) e.peak = peak;
    e.most_peak = e.peak;
    bool const same = peak == e.peak && static_cast<std::int64_t>(r.above_start) == e.peak - e.start &&
                      static_cast<std::int64_t>(r.current) == e.current && r.net == e.current - e.start &&
                      static_cast<std::int64_t>(r.count) == e.blocks;
    if (!same)
      world_.found().push_back(text("a peak_scope reports peak %zu current %zu count %zu; it must be %" PRId64
                                    " %" PRId64 " %" PRId64,
                                    r.peak, r.current, r.count, e.peak, e.current, e.blocks));
  }
  void close_scope(std::size_t which) {
    compare(*scopes_[which]);
    world_.reference().remove_scope(scopes_[which]->number, scopes_[which]->expected);
    scopes_.erase(scopes_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  // ---- graph memories: user_graphs.hpp

  static constexpr std::size_t most_memories = 4;
  static constexpr std::size_t most_graphs = 8;
  using graph_memory_slot = std::unique_ptr<graph_memory_of_user>;

  void make_memory(operation const& o, unsigned pool);
  [[nodiscard]] graph_memory_of_user* memory_for(operation const& o, unsigned pool) const;
  [[nodiscard]] static void* allocate_outside(graph_memory_of_user& from, tarn::stream_ref stream,
                                              operation const& o);
  [[nodiscard]] bool can_drop(graph_memory_slot const& m) const;
  void drop_memory(graph_memory_slot& m);
  [[nodiscard]] bool has_memories(unsigned pool_number) const;
  [[nodiscard]] bool may_capture(stream_number s) const;
  void open_capture(operation const& o);
  void join_capture(operation const& o);
  void close_capture(captured_graph& g);
  [[nodiscard]] captured_graph* capture_of(stream_number s) const;
  [[nodiscard]] bool is_being_opened(stream_number s) const;
  [[nodiscard]] bool may_record(block const& b, stream_number s) const;
  [[nodiscard]] bool is_known(captured_graph const& g, stream_number s) const;
  [[nodiscard]] bool will_be_known(captured_graph const& g) const;
  [[nodiscard]] bool order_in_capture(stream_number before, stream_number after);
  void capture_allocation(operation const& o, stream_number s, block_slot& slot);
  void use_in_capture(operation const& o, block& b, stream_number s);
  [[nodiscard]] bool free_in_capture(block_slot& slot, stream_number s, unsigned how);
  static void add_uses(std::vector<stream_number>& to, block const& b);
  [[nodiscard]] bool can_follow(std::vector<stream_number> const& all, stream_number s) const;
  void replay(operation const& o);
  [[nodiscard]] bool keeps_contents(block const& b, captured_graph const& g) const;
  void note_launch(captured_graph const& g, block& b);
  void drop_captured(unsigned which);
  void check_memories();
  void close_graphs(bool with_memories);

  // ---- pools that sleep: user_sleep.hpp

  [[nodiscard]] bool make_quiet(unsigned pool);
  void put_to_sleep(operation const& o, unsigned pool);
  void wake(operation const& o, unsigned pool);
  void compact(unsigned pool);
  void read_all(unsigned pool);
  void wake_some();

  // ---- another user of the headroom: user_headroom.hpp

  struct outside_block {
    void* p = nullptr;
    std::size_t bytes = 0;
  };
  [[nodiscard]] std::size_t free_for_pools(int device) const;
  [[nodiscard]] std::size_t headroom_left() const;
  void take_headroom(operation const& o);
  void return_headroom(std::size_t which);
  void keep_headroom(unsigned pool);
  void check_headroom();

  // ---- page pins: user_pins.hpp

  static constexpr std::size_t most_pins = 6;

  void make_pin(operation const& o, block_slot& slot);
  void expect_pieces(std::vector<page_piece> const& are, std::vector<page_piece> const& expected,
                     char const* what);
  void expect_one_handle(unsigned pool, std::size_t pieces);
  [[nodiscard]] block const* pinned_block(pin_of_user const& pin) const;
  void look_at_pin(operation const& o);
  void check_pin(pin_of_user const& pin);
  void check_pins();
  [[nodiscard]] bool can_end(pin_of_user const& pin) const;
  void end_pin(std::size_t which);
  template <class Condition>
  void end_pins(Condition const& ends);
  [[nodiscard]] bool has_pins(unsigned pool_number) const;
  [[nodiscard]] bool has_graph_pins(unsigned pool_number) const;
  [[nodiscard]] bool is_wholly_pinned(block const& b) const;
  static void add_pinned(pinned_handles& to, pin_of_user const& pin);
  [[nodiscard]] pinned_handles pinned_in(unsigned pool_number) const;

  // ---- owners

  void make_buffer(operation const& o, unsigned pool, owner* slot) {
    if (slot == nullptr) return;
    stream_number const s = stream_for(pool, o);
    if (!streams_.runs(s)) return;
    drop(*slot);
    ++counted_.allocations;
    bool const grows = o.how % 4 == 2 && !has_one_handle_per_block(world_.chosen().pools[pool].options);
    pool_under_test const& memory = *pools_[pool].memory;
    auto made = grows ? memory.make_growing(o.bytes, streams_.name(s, o.how))
                      : memory.make_buffer(o.bytes, streams_.name(s, o.how), o.alignment);
    *slot = {std::move(made), pool, s, 0, 0};
    if (slot->it->size() != o.bytes) world_.found().push_back("a new buffer has a different size");
  }
  void make_pointer(operation const& o, unsigned pool, owner* slot) {
    if (slot == nullptr) return;
    stream_number const s = stream_for(pool, o);
    if (!streams_.runs(s)) return;
    drop(*slot);
    ++counted_.allocations;
    auto made = pools_[pool].memory->make_pointer(o.bytes, streams_.name(s, o.how));
    *slot = {std::move(made), pool, s, 0, 0};
  }
  /// Work on an owner's memory: reads what it was filled with.
  void verify(owner const& o) {
    streams_.names(o.on);
    if (o.it == nullptr || o.it->data() == nullptr || o.filled == 0 || !streams_.runs(o.on)) return;
    ++counted_.kernels;
    auto const d = driver(o.pool);
    auto const bytes = o.filled;
    tarn::status const s = reads_contents()
                               ? d.launch(streams_[o.on].named, 1000, {tarn::sim_reads(o.it->data(), bytes)},
                                          read_fill{o.it->data(), bytes, o.value, &world_.found()})
                               : d.launch(streams_[o.on].named, 1000, {tarn::sim_reads(o.it->data(), bytes)});
    world_.expect(s, "launch");
  }
  void resize(operation const& o, owner* slot) {
    if (slot == nullptr || slot->it == nullptr || !slot->it->is_buffer()) return;
    stream_number const s = stream_for(slot->pool, o);
    if (!streams_.runs(s) || !streams_.runs(slot->on)) return;
    streams_.names(slot->on);
    std::size_t const before = slot->it->size();
    void const* const at = slot->it->data();
    ++counted_.other_calls;
    try {
      if (o.how % 4 == 0) {
        slot->it->reserve(o.bytes, streams_.name(s, o.how));
      } else if (o.how % 4 == 1) {
        slot->it->shrink_to_fit(streams_.name(s, o.how));
      } else {
        slot->it->resize(o.bytes, streams_.name(s, o.how));
        if (slot->it->size() != o.bytes) world_.found().push_back("a resized buffer has a different size");
        if (o.bytes <= before && slot->it->data() != at) world_.found().push_back("shrinking moved a buffer");
      }
    } catch (...) {
      if (slot->it->size() != before || slot->it->data() != at ||
          !(slot->it->stream() == streams_[slot->on].named))
        world_.found().push_back("a refused resize changed the buffer");
      verify(*slot);
      throw;
    }
    slot->on = s;
    if (slot->filled > slot->it->size()) slot->filled = slot->it->size();
    verify(*slot);
  }
  void move(operation const& o, owner* slot) {
    if (slot == nullptr || slot->it == nullptr) return;
    if (o.how % 2 == 0) {
      owner& other = owners_[o.second % owners_.size()];
      if (&other == slot) return;
      drop(other);
      auto moved = slot->it->move();
      if (slot->it->data() != nullptr || slot->it->size() != 0)
        world_.found().push_back("a moved-from owner is not empty");
      other = {std::move(moved), slot->pool, slot->on, slot->filled, slot->value};
      slot->filled = 0;
      verify(other);
      return;
    }
    stream_number const s = stream_for(slot->pool, o);
    if (!streams_.runs(s) || !streams_.runs(slot->on)) return;
    slot->it->set_stream(streams_.name(s, o.how));
    slot->on = s;
    verify(*slot);
  }
  void copy_owner(operation const& o, owner* slot) {
    if (slot == nullptr || slot->it == nullptr || !slot->it->is_buffer()) return;
    owner& other = owners_[o.second % owners_.size()];
    stream_number const s = stream_for(slot->pool, o);
    if (&other == slot || !streams_.runs(s) || !streams_.runs(slot->on)) return;
    // The source of a library copy must have been written: reading uninitialised bytes is no error, but
    // checks nothing.
    drop(other);
    ++counted_.allocations;
    auto copied = slot->it->copy(streams_.name(s, o.how));
    other = {std::move(copied), slot->pool, s, slot->filled, slot->value};
    verify(other);
    if (o.how % 4 == 0) drop(*slot);  // it may be destroyed immediately
  }
  void fill(operation const& o, owner* slot) {
    if (slot == nullptr || slot->it == nullptr || !slot->it->is_buffer() || !streams_.runs(slot->on)) return;
    verify(*slot);
    slot->value = static_cast<unsigned char>(o.how);
    slot->it->fill(std::byte{slot->value});
    slot->filled = slot->it->size();
    ++counted_.kernels;
  }
  /// Its stream may be destroyed by now, or be another thread's.
  void drop(owner& slot, unsigned how = 1) {
    if (slot.it == nullptr) return;
    verify(slot);
    if (slot.it->data() != nullptr) ++counted_.deallocations;
    slot.filled = 0;
    if (how % 4 == 0) {
      slot.it->reset();
      if (slot.it->data() != nullptr || slot.it->size() != 0)
        world_.found().push_back("an owner is not empty after reset()");
      return;
    }
    slot.it.reset();
  }

  world& world_;
  tally& counted_;
  streams_of_user streams_;
  std::vector<pool_state_of_user> pools_;
  std::vector<block_slot> blocks_;
  std::vector<owner> owners_;
  std::vector<bool> blocks_claimed_, owners_claimed_;  /// < by a step of another thread
  std::vector<block_slot> ballast_;                    /// < blocks that fragment() keeps beside the slots
  std::size_t old_views_ = 0;                          /// < its large blocks start here
  std::vector<graph> graphs_;
  std::vector<std::unique_ptr<scope>> scopes_;
  std::vector<graph_memory_slot> memories_{most_memories};
  std::vector<std::unique_ptr<captured_graph>> captured_;
  std::vector<std::unique_ptr<pin_of_user>> pins_;
  std::vector<outside_block> outside_;  ///< that another user took from the headroom
  unsigned last_memory_ = 0;
  unsigned opening_captures_ = 0;  ///< scopes whose constructor runs
  unsigned ending_pools_ = 0;  ///< pools whose last owner a thread drops: their end waits for captures to end
  int last_capture_ = 0;
  std::uint64_t numbers_ = 0;
  std::uint64_t last_pin_ = 0;
  /// Captures happen. If the pool cannot mark all work, it waits for the device after a stream was destroyed:
  /// then a program has either captures or destroyed streams.
  bool captures_ = false;
  bool has_owners_ = false;
  bool at_once_ = false;
  bool uses_graph_memory_ = false;
};

}  // namespace simulation

#include "user_graphs.hpp"
#include "user_headroom.hpp"
#include "user_pins.hpp"
#include "user_sleep.hpp"
