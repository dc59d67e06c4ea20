// SPDX-License-Identifier: Apache-2.0
#pragma once
// A snapshot in the format of PyTorch's tools: drop the file on pytorch.org/memory_viz, or run `python
// _memory_viz.py stats|trace|segments|memory|segment_plot|trace_plot x.pickle` (torch/cuda/_memory_viz.py).

#include <cstddef>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tarn/core/text.hpp"
#include "tarn/report/snapshot.hpp"
#include "tarn/report/viewer_history.hpp"

namespace TARN_NAMESPACE {

namespace detail {

// An incremental writer of pickles of protocol 4: dictionaries, lists, strings, integers, pairs, and
// references to earlier values. Only what PyTorch's viewer unpickles, in batches of at most 1,000 (it passes
// a batch as the arguments of one call).

/// Identifies a written value, to be referenced later.
using pickle_ref = std::uint32_t;

class pickle_text {
 public:
  explicit pickle_text(std::ostream& out) : out_(out) { put("\x80\x04"); }
  pickle_text& operator=(pickle_text&&) = delete;

  void begin_dict() { put("}("); }
  void end_dict() { put("u"); }
  void begin_list() {
    put("](");
    counts_.push_back(0);
  }
  /// Call before each item of a list.
  void item() {
    if (counts_.back()++ == most_in_batch) {
      put("e(");
      counts_.back() = 1;
    }
  }
  void end_list() {
    put("e");
    counts_.pop_back();
  }

  /// Writes a dictionary key or a frequent word; in full only the first time. `word` has static storage.
  void word(char const* word) {
    for (auto const& [known, ref] : words_) {
      if (known == word) return again(ref);
    }
    text(word);
    words_.emplace_back(word, remember());
  }
  void text(std::string_view value) {
    std::string const clean = as_utf8(value);
    put("X");
    put_little(clean.size(), 4);
    put(clean);
  }
  void number(std::uint64_t value) {
    if (value < 0x100) {
      put("K");
      put_little(value, 1);
    } else if (value < 0x10000) {
      put("M");
      put_little(value, 2);
    } else if (value < 0x80000000) {
      put("J");
      put_little(value, 4);
    } else {
      unsigned bytes = 5;  // the highest bit is the sign
      while (bytes < 9 && value >> (8 * bytes - 1) != 0) ++bytes;
      put("\x8a");
      put_little(bytes, 1);
      put_little(value, bytes < 9 ? bytes : 8);
      if (bytes == 9) put_little(0, 1);
    }
  }
  void boolean(bool value) { put(value ? "\x88" : "\x89"); }
  /// Makes a pair of the last two values written.
  void end_pair() { put("\x86"); }

  /// Returns a reference to the last value written.
  [[nodiscard]] pickle_ref remember() {
    put("\x94");
    return next_ref_++;
  }
  void again(pickle_ref ref) {
    bool const is_short = ref < 0x100;
    put(is_short ? "h" : "j");
    put_little(ref, is_short ? 1 : 4);
  }

  /// Ends the pickle.
  void stop() {
    put(".");
    flush();
  }

 private:
  static constexpr std::size_t most_in_batch = 1000;
  static constexpr std::size_t buffered = std::size_t{1} << 16;

  void put(std::string_view bytes) {
    buffer_ += bytes;
    if (buffer_.size() >= buffered) flush();
  }
  void put_little(std::uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; ++i)
      buffer_ += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
  void flush() {
    out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    buffer_.clear();
  }

  std::ostream& out_;
  std::string buffer_;
  std::vector<std::size_t> counts_;  ///< number of items in the current batch of each open list
  std::vector<std::pair<char const*, pickle_ref>> words_;
  pickle_ref next_ref_ = 0;
};

class snapshot_pickler {
 public:
  snapshot_pickler(std::ostream& out, snapshot const& s) : pickle_(out), snapshot_(s), history_(s) {}

  void write() {
    pickle_.begin_dict();
    list("segments", snapshot_.segments);
    pickle_.word("device_traces");
    pickle_.begin_list();
    for (int device = 0; device <= this->device(); ++device) {
      pickle_.item();
      pickle_.begin_list();
      if (device == this->device()) write_trace();
      pickle_.end_list();
    }
    pickle_.end_list();
    pickle_.word("allocator_settings");
    pickle_.begin_dict();
    text("allocator", snapshot_.title);
    field("expandable_segments", history_.is_expandable());
    field("forgotten_events", snapshot_.forgotten_events);
    pickle_.end_dict();
    pickle_.end_dict();
    pickle_.stop();
  }

 private:
  [[nodiscard]] int device() const noexcept { return snapshot_.device < 0 ? 0 : snapshot_.device; }
  /// PyTorch's default stream is 0.
  [[nodiscard]] stream_id stream(stream_id id) const noexcept { return id == snapshot_.null_stream ? 0 : id; }

  void field(char const* key, std::uint64_t value) {
    pickle_.word(key);
    pickle_.number(value);
  }
  void field(char const* key, bool value) {
    pickle_.word(key);
    pickle_.boolean(value);
  }
  void field(char const* key, char const* value) {
    pickle_.word(key);
    pickle_.word(value);
  }
  void text(char const* key, std::string_view value) {
    pickle_.word(key);
    pickle_.text(value);
  }
  template <class Item>
  void list(char const* key, std::vector<Item> const& items) {
    pickle_.word(key);
    pickle_.begin_list();
    for (Item const& i : items) {
      pickle_.item();
      write(i);
    }
    pickle_.end_list();
  }

  /// Writes the frames of a location, innermost first, with the tag as the outermost: flame graphs group by
  /// it, and every view shows it.
  void frames(std::uint32_t tag, std::uint32_t location) {
    pickle_.word("frames");
    auto const known = frames_.find({tag, location});
    if (known != frames_.end()) return pickle_.again(known->second);
    pickle_.begin_list();
    if (location < snapshot_.locations.size()) {
      for (history_frame const& f : snapshot_.locations[location]) write(f.file, f.line, f.function);
    }
    if (tag != 0 && tag < snapshot_.tags.size()) write("tag", 0, snapshot_.tags[tag].name);
    pickle_.end_list();
    frames_.emplace(std::pair(tag, location), pickle_.remember());
  }
  void write(std::string_view file, int line, std::string_view function) {
    pickle_.item();
    pickle_.begin_dict();
    text("filename", file);
    field("line", line > 0 ? static_cast<std::uint64_t>(line) : 0);
    text("name", function);
    pickle_.end_dict();
  }

  void write(snapshot_segment const& s) {
    std::size_t allocated = 0;
    std::size_t active = 0;
    std::size_t requested = 0;
    for (snapshot_block const& b : s.blocks) {
      if (b.use == block_use::cached) continue;
      active += b.bytes;
      requested += requested_of(b);
      if (b.use == block_use::live) allocated += b.bytes;
    }
    pickle_.begin_dict();
    field("device", static_cast<std::uint64_t>(device()));
    field("address", s.address);
    field("total_size", s.bytes);
    field("allocated_size", allocated);
    field("active_size", active);
    field("requested_size", requested);
    field("stream", stream(s.stream));
    field("segment_type", s.is_small ? "small" : "large");
    pool_id("segment_pool_id", s.graph_memory);
    field("is_expandable", s.kind != segment_kind::upstream);
    frames(0, 0);
    list("blocks", s.blocks);
    pickle_.end_dict();
  }
  /// Writes a pool's id: (0, 0), or (0, n) for the memory of captured graphs, as the viewer expects it.
  void pool_id(char const* key, std::uint64_t graph_memory) {
    pickle_.word(key);
    pickle_.number(0);
    pickle_.number(graph_memory);
    pickle_.end_pair();
  }
  /// Returns the requested bytes of a block, which PyTorch always has; where tarn does not know them, the
  /// whole block.
  static std::size_t requested_of(snapshot_block const& b) noexcept {
    return b.requested != 0 || b.use == block_use::cached ? b.requested : b.bytes;
  }
  void write(snapshot_block const& b) {
    pickle_.begin_dict();
    field("address", b.address);
    field("size", b.bytes);
    field("requested_size", requested_of(b));
    field("state", b.use == block_use::live       ? "active_allocated"
                   : b.use == block_use::deferred ? "active_pending_free"
                                                  : "inactive");
    frames(b.use == block_use::cached ? 0 : b.tag, b.use == block_use::cached ? 0 : b.location);
    pickle_.end_dict();
  }

  void write_trace() {
    auto change = history_.changes().begin();
    auto const write_changes = [&](std::size_t i, bool after) {
      for (; change != history_.changes().end() && change->event == i && change->after == after; ++change) {
        snapshot_event const& at = snapshot_.events[i];
        char const* const whole = change->comes ? "segment_alloc" : "segment_free";
        write(
            history_.is_expandable() ? (change->comes ? "segment_map" : "segment_unmap") : whole,
            {.address = change->address, .bytes = change->bytes, .stream = at.stream, .time_ns = at.time_ns});
      }
    };
    for (std::size_t i = 0; i < snapshot_.events.size(); ++i) {
      snapshot_event const& e = snapshot_.events[i];
      reported_as const reported = history_.reported(i);
      write_changes(i, false);
      if (reported != reported_as::nothing) {
        if (e.kind == snapshot_event_kind::allocate) write("alloc", e);
        if (e.kind == snapshot_event_kind::refused) write("oom", e);
        if (e.kind == snapshot_event_kind::free) {
          write("free_requested", e);
          if (reported != reported_as::requested) write("free_completed", e);
        }
      }
      write_changes(i, true);
    }
  }
  void write(char const* action, snapshot_event const& e) {
    pickle_.item();
    pickle_.begin_dict();
    field("action", action);
    // The free memory of the device at a refusal is not recorded; the viewers need a number.
    field(e.kind == snapshot_event_kind::refused ? "device_free" : "addr",
          e.kind == snapshot_event_kind::refused ? 0 : e.address);
    field("size", e.requested != 0 ? e.requested : e.bytes);
    field("stream", stream(e.stream));
    field("time_us", (snapshot_.started_ns + e.time_ns) / 1000);
    pool_id("pool_id", 0);
    frames(e.tag, e.location);
    pickle_.end_dict();
  }

  pickle_text pickle_;
  snapshot const& snapshot_;
  viewer_history history_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, pickle_ref> frames_;
};

}  // namespace detail

/// Writes a snapshot as a pickle of protocol 4. Errors are reported by the stream's state. `size` of an event
/// is the requested bytes, as in PyTorch; times are microseconds since 1970; the default stream is 0; the tag
/// is the outermost frame, "tag:0:NAME". Handles are written as segment_map and segment_unmap, as PyTorch's
/// expandable segments; over blocks segment_alloc and segment_free. An event without a segment in the history
/// gets one; an event that contradicts the final state is omitted: see viewer_history.hpp. Host memory: one
/// byte per event, 50 per live block, 64 KiB. Some 60 bytes of the file per event.
inline void write_pickle(std::ostream& out, snapshot const& s) {
  detail::snapshot_pickler(out, s).write();
}

}  // namespace TARN_NAMESPACE
