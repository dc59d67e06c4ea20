// SPDX-License-Identifier: Apache-2.0
#pragma once
// with_history: records every live block with its size, time, source line and tag.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tarn/core/clock.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/location_scope.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/tag.hpp"
#include "tarn/debug/history_log.hpp"
#include "tarn/debug/memory_history.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace TARN_NAMESPACE {

template <class Upstream>
class with_history_layer;

/// `cuda_pages{} | pooled{} | with_history{}`: records each live block with its line, tag, stream and time,
/// and the latest calls.
struct with_history {
  /// Number of events kept; the oldest are overwritten. An event is a call, and takes 56 bytes of host memory
  /// from the start: 5.6 MB for the default. 0 keeps live blocks and tags alone. If it is not 0, the pool
  /// below also records what it takes from the driver, see remember_growth(), unless a user's clock is set.
  std::size_t history = 100'000;
  stack_hooks
      stacks{};  ///< also captures call stacks: `.stacks = tarn::backtrace_stacks()` (debug/backtrace)
  /// Nanoseconds since 1970 that never go back, from any thread; null: the system's clock at the start,
  /// steady from then on.
  std::uint64_t (*clock)() = nullptr;
  /// distinct lines, or stacks, that are stored; further ones have no location
  std::size_t locations = 65'536;

  template <class Upstream>
  using layer = with_history_layer<Upstream>;
};

/// Thread-safe. Events are in an order that happened: a block is recorded after it was handed out and before
/// it is freed, so an address is never live twice. One short lock for the records, none around the layer
/// below. Host memory for the records is taken at allocation (see detail::history_log for how much); if there
/// is none, the block is freed again and nothing has changed. An allocation and its free cost about 150 ns
/// more, including two readings of the clock; with 16 threads that do nothing else, 12 µs, since they contend
/// for the records (bench/results/watched_cuda.jsonl). A stack costs microseconds. An out_of_memory that
/// passes through lists the tags that hold the most.
template <class Upstream>
class with_history_layer : public resource_adaptor<with_history_layer<Upstream>, Upstream> {
  using base = resource_adaptor<with_history_layer<Upstream>, Upstream>;

 public:
  /// Makes handles and owners record the location of a call for this layer, however many policies lie
  /// between.
  static constexpr bool records_places = true;

  static_assert(
      resource<Upstream>,
      "tarn: with_history records blocks; put it above the pool: pages | pooled{} | with_history{}");

  with_history_layer()
    requires std::default_initializable<Upstream>
      : with_history_layer(Upstream{}) {}
  /// @throws std::bad_alloc  the ring of events
  explicit with_history_layer(Upstream upstream, with_history const& options = {})
      : base(std::move(upstream)), options_(options), log_(options.history, options.locations) {
    steady_start_ = detail::steady_now_ns();
    started_ns_ = options_.clock != nullptr ? options_.clock() : detail::now_since_1970_ns();
    if (options_.stacks.capture != nullptr) {
      void* frame = nullptr;
      (void)options_.stacks.capture(&frame, 1);  // load now what the first call loads
    }
    note_growth();
  }

  /// @throws out_of_memory  refused below; its report lists the biggest tags
  /// @throws std::bad_alloc  no host memory for the records
  TARN_ALWAYS_INLINE void* around_allocate(request const& asked, auto const& next) {
    request const r = asked.on(with_id(asked.stream));
    void* const p = allocate_or_note(r, next);
    if (p == nullptr) return p;
    history_block b;
    b.address = address_of(p);
    b.requested = r.bytes;
    b.bytes = detail::block_bytes_of(next.upstream(), r.bytes, r.alignment);
    b.stream = r.stream.id();
    b.tag = tag::current().id();
    b.time_ns = now();
    try {
      log_.note_allocation(b, origin());
    } catch (...) {
      next.deallocate(r, p);
      throw;
    }
    return p;
  }
  TARN_ALWAYS_INLINE void around_deallocate(request const& asked, void* p, auto const& next) noexcept {
    request const r = asked.on(with_id(asked.stream));
    log_.note_free(address_of(p), r.stream.id(), origin(), now());
    next.deallocate(r, p);
  }

  /// Records that the block was freed and allocated again, longer, under the same tag.
  [[nodiscard]] bool around_extend(request const& asked, void* p, std::size_t more, auto const& next) {
    request const r = asked.on(with_id(asked.stream));
    if (!next.extend(r, p, more)) return false;
    history_block longer;
    longer.address = address_of(p);
    longer.requested = r.bytes + more;
    longer.bytes = detail::block_bytes_of(next.upstream(), longer.requested, r.alignment);
    longer.stream = r.stream.id();
    longer.time_ns = now();
    log_.note_extension(longer);
    return true;
  }

  /// All records at one moment, live blocks by address. Other threads' calls wait while they are copied, not
  /// while memory for the copy is allocated nor while frames are named. @throws std::bad_alloc
  [[nodiscard]] memory_history record();
  /// Ends the question which blocks are in quarantine above the record: record() has those below.
  template <class F>
  void each_quarantined(F const&) const noexcept {}
  /// The tags that were ever used in an allocation, "untagged" first; the bytes of record(), but faster.
  /// @throws std::bad_alloc
  [[nodiscard]] std::vector<history_tag> tags() const;
  /// Host memory of the records, bytes: the ring, and 80 to 160 times the peak number of live blocks.
  [[nodiscard]] std::size_t host_bytes() const noexcept { return log_.host_bytes(); }
  /// Restarts every tag's peak from its current value.
  void reset_tag_peaks() noexcept { log_.reset_peaks(); }

 private:
  /// Changes of the pool's reserved memory are rare: thousands in a run with millions of calls. 32 bytes
  /// each.
  static constexpr std::size_t growth_history = 16'384;

  /// A tag's amounts, in the form of a record.
  static history_tag tag_of(std::uint32_t id, detail::tag_account const& a) {
    return {tag::from_id(id).name(), a.bytes, a.peak_bytes, a.requested, a.blocks, a.allocations};
  }
  /// Nanoseconds since the start.
  [[nodiscard]] std::uint64_t now() const noexcept {
    return options_.clock != nullptr ? options_.clock() - started_ns_
                                     : detail::steady_now_ns() - steady_start_;
  }
  /// Makes the pool below record, on the same clock, what it takes from the driver, so that a history has
  /// both.
  void note_growth() {
    if constexpr (reachable<Upstream, pool_call::note_growth_from_now>) {
      if (options_.history != 0 && options_.clock == nullptr)
        nearest(this->upstream(), pool_call::note_growth_from_now{growth_history, detail::steady_now_ns});
    }
  }
  /// Blocks are recorded by the addresses that the pool knows, as their sizes are.
  [[nodiscard]] std::uintptr_t address_of(void* p) noexcept {
    return reinterpret_cast<std::uintptr_t>(detail::block_address_of(this->upstream(), p));
  }
  /// The stream with its identity, so that the pool need not query it again.
  [[nodiscard]] stream_ref with_id(stream_ref stream) const noexcept {
    if (stream.id() != stream_ref::unknown_id) return stream;
    stream_id id = stream_ref::unknown_id;
    constexpr auto named = detail::default_streams_of<Upstream>();
    bool const known = detail::is_default_stream(stream)
                           ? detail::identify_named<named>(this->driver(), stream, id).ok()
                           : detail::identify_beside_captures(this->driver(), stream, id).ok();
    if (!known) return stream;
    return stream_ref::from(stream.handle(), id);
  }
  [[nodiscard]] detail::call_origin origin() const noexcept {
    detail::call_origin o;  // the frames stay unset if none are captured
    o.where = location_scope::current();
    if (options_.stacks.capture != nullptr) [[unlikely]]
      o.depth = options_.stacks.capture(o.frames, stack_depth);
    return o;
  }

  void* allocate_or_note(request const& r, auto const& next) {
    try {
      return next.allocate(r);
    } catch (out_of_memory& refused) {
      memory_report report = refused.report();
      history_event e;
      e.kind = history_event_kind::refused;
      e.requested = r.bytes;
      e.stream = r.stream.id();
      e.tag = tag::current().id();
      e.time_ns = now();
      log_.note_refusal(e, origin(), report.biggest_tags);
      refused.set_report(report);
      throw;
    }
  }
  using frame_names = std::unordered_map<void*, history_frame>;
  void name_frames(std::vector<history_frame>& out, source_location const& where, void* const* frames,
                   std::size_t depth, frame_names& known) const;

  with_history const options_;
  std::uint64_t steady_start_ = 0;
  std::uint64_t started_ns_ = 0;
  mutable detail::history_log log_;
};

template <class Upstream>
memory_history with_history_layer<Upstream>::record() {
  memory_history r;
  std::vector<detail::tag_account> accounts;
  std::vector<detail::location_table::known_location> locations;
  std::vector<void*> frames;
  for (bool copied = false; !copied;) {
    detail::history_log::sizes room = log_.count();
    for (std::size_t* n : {&room.live, &room.events, &room.tags, &room.locations, &room.frames})
      *n += *n / 8 + 64;
    r.live.reserve(room.live);
    r.events.reserve(room.events);
    accounts.reserve(room.tags);
    locations.reserve(room.locations);
    frames.reserve(room.frames);
    copied = log_.copy(room, [&](detail::history_log const& log) {
      log.for_each_live([&](history_block const& b) { r.live.push_back(b); });
      log.for_each_event([&](history_event const& e) { r.events.push_back(e); });
      for (auto const& a : log.accounts()) accounts.push_back(a);
      for (auto const& p : log.locations().locations()) locations.push_back(p);
      for (void* f : log.locations().frames()) frames.push_back(f);
      r.forgotten_events = log.forgotten();
      r.now_ns = log.last_ns();
    });
  }
  detail::for_each_quarantined(this->upstream(), [&](void* p, std::size_t bytes) {
    r.quarantined.push_back({reinterpret_cast<std::uintptr_t>(p), bytes});
  });
  r.started_ns = started_ns_;
  r.steady_ns = options_.clock == nullptr ? steady_start_ : 0;
  r.now_ns = (std::max)(r.now_ns, now());
  std::sort(r.live.begin(), r.live.end(), [](auto const& a, auto const& b) { return a.address < b.address; });
  // Tags are process-wide; the record contains those that it refers to.
  std::vector<std::uint32_t> number(detail::tag_names::most, 0);
  r.tags.push_back({"untagged", 0, 0, 0, 0, 0});
  auto const number_of = [&](std::uint32_t id) {
    if (id != 0 && number[id] == 0) {
      number[id] = static_cast<std::uint32_t>(r.tags.size());
      r.tags.push_back({tag::from_id(id).name(), 0, 0, 0, 0, 0});
    }
    return number[id];
  };
  for (std::uint32_t id = 0; id < accounts.size(); ++id) {
    detail::tag_account const& a = accounts[id];
    if (a.allocations == 0) continue;
    r.tags[number_of(id)] = tag_of(id, a);
  }
  for (history_block& b : r.live) b.tag = number_of(b.tag);
  for (history_event& e : r.events) e.tag = number_of(e.tag);
  r.locations.resize(locations.size() + 1);
  frame_names known;  // stacks share most of their frames, and naming one costs microseconds
  for (std::size_t i = 0; i < locations.size(); ++i) {
    name_frames(r.locations[i + 1], locations[i].where, frames.data() + locations[i].first_frame,
                locations[i].depth, known);
  }
  return r;
}

template <class Upstream>
std::vector<history_tag> with_history_layer<Upstream>::tags() const {
  std::vector<detail::tag_account> accounts;
  for (bool copied = false; !copied;) {
    detail::history_log::sizes room;
    for (std::size_t* n : {&room.live, &room.events, &room.locations, &room.frames}) *n = ~std::size_t{0};
    room.tags = log_.count().tags;
    accounts.reserve(room.tags);
    copied = log_.copy(room, [&](detail::history_log const& log) {
      for (auto const& a : log.accounts()) accounts.push_back(a);
    });
  }
  std::vector<history_tag> out;
  out.push_back({"untagged", 0, 0, 0, 0, 0});
  for (std::uint32_t id = 0; id < accounts.size(); ++id) {
    detail::tag_account const& a = accounts[id];
    if (a.allocations == 0) continue;
    if (id != 0) out.emplace_back();
    out.back() = tag_of(id, a);
  }
  return out;
}

template <class Upstream>
void with_history_layer<Upstream>::name_frames(std::vector<history_frame>& out, source_location const& where,
                                               void* const* frames, std::size_t depth,
                                               frame_names& known) const {
  if (where.line != 0) out.push_back({where.file, where.line, where.function});
  for (std::size_t i = 0; i < depth; ++i) {
    auto const [named, is_new] = known.try_emplace(frames[i]);
    history_frame& f = named->second;
    if (is_new && options_.stacks.name != nullptr) {
      options_.stacks.name(frames[i], f);
    } else if (is_new) {
      message<24> address;
      f.function = address.add_hex(reinterpret_cast<std::uintptr_t>(frames[i])).c_str();
    }
    out.push_back(f);
  }
}

}  // namespace TARN_NAMESPACE
