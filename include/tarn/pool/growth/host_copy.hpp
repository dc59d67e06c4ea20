// SPDX-License-Identifier: Apache-2.0
#pragma once
// Contents of device memory, kept in host memory while a pool sleeps: in pinned memory, or in ordinary memory that is copied
// through two pinned buffers, one of which the device copies while the host copies the other.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#include "tarn/core/bytes.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/sleeping.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/source/refusal.hpp"

namespace tarn::detail {

/// A driver that allocates pinned memory.
template <class D>
concept pinning_driver = stream_driver<D> && requires(D const& d, std::size_t bytes, void* p, void*& new_p) {
  { d.malloc_pinned(bytes, new_p) } noexcept -> std::same_as<status>;
  { d.free_pinned(p) } noexcept -> std::same_as<status>;
};

/// One contiguous sequence of bytes, addressed by position, in chunks of host memory. Used by one thread at a time.
///
/// save() and load() enqueue copies; finish() waits for all of them, wait_for() for the first. Their positions must not decrease
/// between two calls of finish().
/// An error leaves copies enqueued: call finish() or abandon() before the device memory changes.
template <class Driver>
class host_copy {
 public:
  explicit host_copy(Driver const& driver) noexcept : driver_(driver) {}
  host_copy(host_copy const&) = delete;
  host_copy& operator=(host_copy const&) = delete;
  ~host_copy() { close(); }

  /// Begins an empty copy of `bytes`, in the memory of the last one if that is of the same kind. More is allocated as save()
  /// needs it. @throws std::bad_alloc
  void open(std::size_t bytes, contents where) {
    if (where != where_) close();
    std::size_t const count = (bytes + chunk_bytes - 1) / chunk_bytes;
    chunks_.reserve(count);
    while (chunks_.size() > count ||
           (!chunks_.empty() && chunks_.back().bytes < bytes_of_chunk(chunks_.size() - 1, bytes)))
      drop_chunk();
    bytes_ = bytes;
    done_ = 0;
    where_ = where;
  }

  /// Copies from device memory to [position, position + bytes).
  /// @throws out_of_memory, std::bad_alloc  the host has no memory
  /// @throws cuda_error
  void save(stream_ref stream, std::size_t position, void const* from, std::size_t bytes) {
    auto const* source = static_cast<unsigned char const*>(from);
    if (!is_staged()) {
      for_each_part(position, bytes, [&](void* part, std::size_t count) {
        copy(stream, part, source, count);
        source += count;
      });
      return;
    }
    while (bytes != 0) {
      buffer* b = &buffers_[current_];
      if (b->used == b->capacity || b->position + b->used != position) {
        submit(stream, *b);
        current_ ^= 1;
        b = &buffers_[current_];
        store(*b);
        b->position = position;
      }
      std::size_t const count = min_of(bytes, b->capacity - b->used);
      copy(stream, static_cast<unsigned char*>(b->p) + b->used, source, count);
      b->used += count;
      b->saves = true;
      source += count;
      position += count;
      bytes -= count;
    }
  }

  /// Copies [position, position + bytes) back to device memory. @throws cuda_error
  void load(stream_ref stream, std::size_t position, void* to, std::size_t bytes) {
    auto* target = static_cast<unsigned char*>(to);
    if (!is_staged()) {
      for_each_part(position, bytes, [&](void* part, std::size_t count) {
        copy(stream, target, part, count);
        target += count;
      });
      return;
    }
    while (bytes != 0) {
      buffer* b = &buffers_[current_];
      if (position < b->position || position >= b->position + b->used) {
        submit(stream, *b);
        current_ ^= 1;
        b = &buffers_[current_];
        wait(*b);
        fetch(*b, position);
      }
      std::size_t const skipped = position - b->position;
      std::size_t const count = min_of(bytes, b->used - skipped);
      copy(stream, target, static_cast<unsigned char*>(b->p) + skipped, count);
      target += count;
      position += count;
      bytes -= count;
    }
  }

  /// Whether copies go through the two buffers: the host must take part, so that finish() alone completes them.
  [[nodiscard]] bool is_staged() const noexcept { return buffers_[0].capacity != 0; }

  /// Makes the two buffers for copies of ordinary memory; without them its copies are the driver's own. Does nothing for pinned
  /// memory.
  void begin() noexcept {
    if (where_ != contents::in_host_memory) return;
    if constexpr (pinning_driver<Driver>) {
      for (buffer& b : buffers_) {
        std::size_t const capacity = min_of(staging_bytes, align_up(bytes_, 4096));
        if (driver_.malloc_pinned(capacity, b.p).ok()) b.capacity = capacity;
        if (b.capacity == 0 || !driver_.create_event(b.event).ok()) return end();
        b.has_event = true;
      }
    }
  }
  /// Marks the end of the copies that were enqueued so far, which cover all before `position`, for wait_for(). Marks are set where
  /// at least a part of all bytes was enqueued since the last one. Does nothing while copies are staged, or if the driver refuses.
  void mark(stream_ref stream, std::size_t position) noexcept {
    std::size_t const last = mark_count_ != 0 ? marks_[mark_count_ - 1].position : 0;
    if (is_staged() || mark_count_ == most_marks || position - last < bytes_ / most_marks) return;
    mark_of_copies& m = marks_[mark_count_];
    if (!driver_.create_event(m.event).ok()) return;
    m.position = position;
    ++mark_count_;
    if (driver_.record_event(m.event, stream).ok()) return;
    (void)driver_.destroy_event(m.event);
    --mark_count_;
  }
  /// Waits until the copies of all bytes before `position` are done. Returns false if the driver does not report it.
  [[nodiscard]] bool wait_for(stream_ref stream, std::size_t position) noexcept {
    if (position <= done_) return true;
    std::size_t i = 0;
    while (i < mark_count_ && marks_[i].position < position) ++i;
    if (i < mark_count_ && driver_.synchronize_event(marks_[i].event).ok()) {
      done_ = marks_[i].position;
      return true;
    }
    if (!driver_.synchronize_stream(stream).ok() && !wait_past_captures(driver_).ok()) return false;
    done_ = bytes_;
    return true;
  }
  /// Waits until all copies are done. @throws cuda_error, std::bad_alloc
  void finish(stream_ref stream) {
    if (is_staged()) {
      submit(stream, buffers_[current_]);
      store(buffers_[current_ ^ 1]);
      store(buffers_[current_]);
    }
    must_succeed(driver_.synchronize_stream(stream));
    done_ = bytes_;
  }
  /// Waits for what was enqueued, after an error.
  void abandon(stream_ref stream) noexcept {
    if (!driver_.synchronize_stream(stream).ok()) (void)wait_past_captures(driver_);
  }
  /// Frees the buffers; no copy is enqueued.
  void end() noexcept {
    for (buffer& b : buffers_) {
      if (b.has_event) (void)driver_.destroy_event(b.event);
      if constexpr (pinning_driver<Driver>) {
        if (b.capacity != 0) (void)driver_.free_pinned(b.p);
      }
      b = buffer{};
    }
    current_ = 0;
    while (mark_count_ != 0) (void)driver_.destroy_event(marks_[--mark_count_].event);
  }

  /// Frees all memory; no copy is enqueued.
  void close() noexcept {
    end();
    while (!chunks_.empty()) drop_chunk();
    bytes_ = 0;
  }
  /// Host memory held, bytes.
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    std::size_t sum = 0;
    for (chunk const& c : chunks_) sum += c.bytes;
    return sum;
  }

 private:
  /// Small enough that no large contiguous allocation is needed; while one is allocated, the copies to the one before it run.
  static constexpr std::size_t chunk_bytes = 256_MiB;
  static constexpr std::size_t staging_bytes = 32_MiB;
  /// Handles are given back while later ones are copied: what is left after the last copy is a part in most_marks.
  static constexpr std::size_t most_marks = 32;

  struct chunk {
    void* p = nullptr;
    std::size_t bytes = 0;
    bool is_pinned = false;
  };
  /// One buffer of pinned memory that covers [position, position + used).
  struct buffer {
    void* p = nullptr;
    std::size_t capacity = 0;
    std::size_t position = 0;
    std::size_t used = 0;
    event_handle event = nullptr;
    bool has_event = false;
    bool is_submitted = false;  ///< the event was recorded, and not waited for yet
    bool saves = false;         ///< its bytes must be stored in ordinary memory
  };

  struct mark_of_copies {
    event_handle event = nullptr;
    std::size_t position = 0;
  };
  void must_succeed(status const& s) const {
    if (!s.ok()) throw cuda_error(s, driver_.device().value);
  }
  void copy(stream_ref stream, void* to, void const* from, std::size_t bytes) const {
    must_succeed(driver_.copy(stream, to, from, bytes));
  }

  /// Marks the end of the copies from or to a buffer.
  void submit(stream_ref stream, buffer& b) {
    if (b.used == 0 || b.is_submitted) return;
    must_succeed(driver_.record_event(b.event, stream));
    b.is_submitted = true;
  }
  void wait(buffer& b) {
    if (b.is_submitted) must_succeed(driver_.synchronize_event(b.event));
    b.is_submitted = false;
  }
  /// Empties a buffer: moves saved bytes to ordinary memory.
  void store(buffer& b) {
    wait(b);
    auto const* from = static_cast<unsigned char const*>(b.p);
    if (b.saves) {
      for_each_part(b.position, b.used, [&](void* part, std::size_t count) {
        std::memcpy(part, from, count);
        from += count;
      });
    }
    b.saves = false;
    b.used = 0;
  }
  /// Fills a buffer from ordinary memory, from a position on.
  void fetch(buffer& b, std::size_t position) {
    b.position = position;
    b.used = 0;
    auto* to = static_cast<unsigned char*>(b.p);
    for_each_part(position, min_of(b.capacity, bytes_ - position), [&](void* part, std::size_t count) {
      std::memcpy(to, part, count);
      to += count;
      b.used += count;
    });
  }

  /// Calls f(host memory, bytes) for each chunk's part of [position, position + bytes).
  template <class F>
  void for_each_part(std::size_t position, std::size_t bytes, F const& f) {
    while (bytes != 0) {
      std::size_t const index = position / chunk_bytes;
      std::size_t const offset = position % chunk_bytes;
      while (chunks_.size() <= index) add_chunk();
      std::size_t const count = min_of(bytes, chunk_bytes - offset);
      f(static_cast<unsigned char*>(chunks_[index].p) + offset, count);
      position += count;
      bytes -= count;
    }
  }
  [[nodiscard]] static std::size_t bytes_of_chunk(std::size_t index, std::size_t total) noexcept {
    return min_of(chunk_bytes, total - index * chunk_bytes);
  }
  void drop_chunk() noexcept {
    chunk const c = chunks_.back();
    chunks_.pop_back();
    if (c.is_pinned) {
      if constexpr (pinning_driver<Driver>) (void)driver_.free_pinned(c.p);
    } else {
      ::operator delete(c.p);
    }
  }
  void add_chunk() {
    std::size_t const bytes = bytes_of_chunk(chunks_.size(), bytes_);
    chunk c;
    c.bytes = bytes;
    if constexpr (pinning_driver<Driver>) {
      if (where_ == contents::in_pinned_memory) {
        status const s = driver_.malloc_pinned(bytes, c.p);
        if (!s.ok())
          refuse(driver_, s, stream_ref{}, bytes, default_alignment, source_location::current(), true);
        c.is_pinned = true;
      }
    }
    if (!c.is_pinned) c.p = ::operator new(bytes);
    chunks_.push_back(c);  // open() reserved it
  }

  Driver const& driver_;
  sequence<chunk> chunks_;
  std::size_t bytes_ = 0;
  contents where_ = contents::discarded;
  buffer buffers_[2];
  unsigned current_ = 0;
  mark_of_copies marks_[most_marks];
  std::size_t mark_count_ = 0;
  std::size_t done_ = 0;  ///< the copies of all bytes before it are complete
};

}  // namespace tarn::detail
