// SPDX-License-Identifier: Apache-2.0
#pragma once
// A snapshot's history in Chrome's trace format, for ui.perfetto.dev and chrome://tracing. Contains counters
// of live and reserved bytes and of each tag, larger blocks as slices from allocation to free, and refused
// requests as markers.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tarn/core/bytes.hpp"
#include "tarn/core/text.hpp"
#include "tarn/report/json_text.hpp"
#include "tarn/report/snapshot.hpp"
#include "tarn/report/viewer_history.hpp"

namespace TARN_NAMESPACE {

struct perfetto_options {
  /// Smaller blocks are only counted: a slice takes 300 bytes of the file, and viewers handle some 100,000 of
  /// them.
  std::size_t least_slice_bytes = 1_MiB;
};

namespace detail {

class perfetto_writer {
 public:
  perfetto_writer(std::ostream& out, snapshot const& s, perfetto_options const& options)
      : json_(out), snapshot_(s), history_(s), options_(options), of_tag_(s.tags.size() + 1, 0) {
    begin_at_start();
  }

  void write() {
    json_.begin_object().field("displayTimeUnit", "ms").key("otherData").begin_object();
    json_.field("title", snapshot_.title).field("started_ns_since_1970", snapshot_.started_ns);
    json_.field("forgotten_events", snapshot_.forgotten_events).end_object();
    json_.key("traceEvents").begin_array();
    name("process_name", snapshot_.title);
    count("reserved bytes", reserved_, 0);
    // Without recorded calls, what is live is known at the snapshot only.
    bool const has_calls =
        std::any_of(snapshot_.events.begin(), snapshot_.events.end(),
                    [](snapshot_event const& e) { return e.kind <= snapshot_event_kind::refused; });
    if (!has_calls) blocks_.clear();
    if (has_calls) count_live(0);
    for (auto const& [address, b] : blocks_) slice("b", address, b, 0);
    for (std::size_t i = 0; i < snapshot_.events.size(); ++i) {
      if (!history_.contradicts(i)) write(snapshot_.events[i]);
    }
    for (auto const& [address, b] : blocks_) slice("e", address, b, snapshot_.now_ns);
    if (!has_calls) count_live(snapshot_.now_ns);
    json_.end_array().end_object().line();
    json_.flush();
  }

 private:
  struct live_block {
    std::size_t bytes = 0;
    std::size_t requested = 0;
    stream_id stream = 0;
    std::uint32_t tag = 0;
    std::uint32_t location = 0;
    std::uint64_t number = 0;  ///< identity of its slice
  };

  [[nodiscard]] live_block block_of(auto const& b, std::uint64_t number = 0) const noexcept {
    return {b.bytes, b.requested, b.stream, tag_of(b.tag), b.location, number};
  }
  void add_live(live_block const& b, std::int64_t sign) noexcept {
    live_ += sign * static_cast<std::int64_t>(b.bytes);
    of_tag_[b.tag] += sign * static_cast<std::int64_t>(b.bytes);
  }

  /// Computes the live and reserved bytes before the first event by undoing the events from the snapshot's
  /// moment.
  void begin_at_start() {
    reserved_ = static_cast<std::int64_t>(snapshot_.pool.reserved);
    for (snapshot_segment const& s : snapshot_.segments) {
      for (snapshot_block const& b : s.blocks) {
        if (b.use == block_use::live) add_live(blocks_[b.address] = block_of(b), 1);
      }
    }
    for (std::size_t i = history_.known(); i-- > 0;) {
      snapshot_event const& e = snapshot_.events[i];
      auto const bytes = static_cast<std::int64_t>(e.bytes);
      if (e.kind == snapshot_event_kind::reserve) reserved_ -= bytes;
      if (e.kind == snapshot_event_kind::release) reserved_ += bytes;
      if (e.kind > snapshot_event_kind::free || history_.contradicts(i)) continue;
      live_block const b = block_of(e);
      bool const is_free = e.kind == snapshot_event_kind::free;
      add_live(b, is_free ? 1 : -1);
      if (is_free) {
        blocks_.emplace(e.address, b);
      } else {
        blocks_.erase(e.address);
      }
    }
    for (auto& [address, b] : blocks_) b.number = ++numbers_;
  }

  void write(snapshot_event const& e) {
    switch (e.kind) {
      case snapshot_event_kind::reserve:
        return count("reserved bytes", reserved_ += static_cast<std::int64_t>(e.bytes), e.time_ns);
      case snapshot_event_kind::release:
        return count("reserved bytes", reserved_ -= static_cast<std::int64_t>(e.bytes), e.time_ns);
      case snapshot_event_kind::allocate: {
        live_block const b = block_of(e, ++numbers_);
        change(b, 1, e.time_ns);
        if (blocks_.emplace(e.address, b).second) slice("b", e.address, b, e.time_ns);
        return;
      }
      case snapshot_event_kind::free: {
        change(block_of(e), -1, e.time_ns);
        auto const found = blocks_.find(e.address);
        if (found == blocks_.end()) return;
        slice("e", e.address, found->second, e.time_ns);
        blocks_.erase(found);
        return;
      }
      default:
        begin("i", "out of memory", e.time_ns).field("s", "g").key("args").begin_object();
        json_.field("asked", e.requested)
            .field("tag", tag_name(e.tag))
            .field("location", location_name(e.location));
        json_.end_object().end_object();
    }
  }

  void change(live_block const& b, std::int64_t sign, std::uint64_t time) {
    add_live(b, sign);
    count("live bytes", live_, time);
    if (has_tags()) count_tag(b.tag, time);
  }

  json_text& begin(char const* phase, std::string_view name, std::uint64_t time) {
    json_.line()
        .begin_object()
        .field("ph", phase)
        .field("name", name)
        .field("pid", snapshot_.device)
        .field("tid", 0);
    return json_.key("ts").microseconds(time);
  }
  void name(char const* what, std::string_view value) {
    begin("M", what, 0).key("args").begin_object().field("name", value).end_object().end_object();
  }
  void count(std::string_view name, std::int64_t bytes, std::uint64_t time) {
    begin("C", name, time).key("args").begin_object().field("bytes", bytes).end_object().end_object();
  }
  void count_live(std::uint64_t time) {
    count("live bytes", live_, time);
    for (std::uint32_t t = 0; t < snapshot_.tags.size(); ++t) {
      if (has_tags()) count_tag(t, time);
    }
  }
  void count_tag(std::uint32_t tag, std::uint64_t time) {
    count(concat({"tag ", tag_name(tag)}), of_tag_[tag], time);
  }
  void slice(char const* phase, std::uintptr_t address, live_block const& b, std::uint64_t time) {
    if (b.bytes < options_.least_slice_bytes) return;
    begin(phase, tag_name(b.tag), time).field("cat", "block").field("id", b.number);
    if (*phase == 'b') {
      json_.key("args").begin_object().key("address").address(address).field("bytes", b.bytes);
      json_.field("requested", b.requested)
          .field("stream", b.stream)
          .field("location", location_name(b.location))
          .end_object();
    }
    json_.end_object();
  }

  [[nodiscard]] bool has_tags() const noexcept { return snapshot_.tags.size() > 1; }
  [[nodiscard]] std::uint32_t tag_of(std::uint32_t tag) const noexcept {
    return tag < snapshot_.tags.size() ? tag : 0;
  }
  [[nodiscard]] std::string_view tag_name(std::uint32_t tag) const noexcept {
    return tag < snapshot_.tags.size() ? std::string_view(snapshot_.tags[tag].name) : "untagged";
  }
  [[nodiscard]] std::string location_name(std::uint32_t location) const {
    if (location >= snapshot_.locations.size() || snapshot_.locations[location].empty()) return "";
    history_frame const& f = snapshot_.locations[location][0];
    return concat({f.file, ":", std::to_string(f.line)});
  }

  json_text json_;
  snapshot const& snapshot_;
  viewer_history history_;
  perfetto_options options_;
  std::int64_t live_ = 0;
  std::int64_t reserved_ = 0;
  std::vector<std::int64_t> of_tag_;
  std::unordered_map<std::uintptr_t, live_block> blocks_;
  std::uint64_t numbers_ = 0;
};

}  // namespace detail

/// Writes a snapshot's history in Chrome's JSON trace format; times are microseconds since the snapshot's
/// start. Errors are reported by the stream's state. An allocation or a free that contradicts the final state
/// is omitted: see viewer_history.hpp. Where no calls were recorded, live bytes are a single value, at the
/// snapshot's time. Some 80 bytes of the file per counter step; two steps per allocation or free with tags,
/// else one.
inline void write_perfetto(std::ostream& out, snapshot const& s, perfetto_options const& options = {}) {
  detail::perfetto_writer(out, s, options).write();
}

}  // namespace TARN_NAMESPACE
