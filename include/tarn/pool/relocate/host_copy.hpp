// SPDX-License-Identifier: Apache-2.0
#pragma once
// Contents of device memory, kept in pinned memory while a pool sleeps.

#include <cstddef>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/source/refusal.hpp"

namespace TARN_NAMESPACE::detail {

/// One contiguous sequence of bytes, addressed by position, in chunks of pinned memory. Used by one thread at
/// a time.
///
/// save() and load() enqueue copies on a stream of its own, in the order of their positions. Copies that were
/// enqueued before an error continue: call abandon() or close() before the device memory changes.
template <class Driver>
class host_copy {
 public:
  explicit host_copy(Driver const& driver) noexcept : driver_(driver) {}
  host_copy& operator=(host_copy&&) = delete;
  /// In a forked child nothing is freed: it is the parent's.
  ~host_copy() {
    if (process_.is_this())
      close();
    else
      stream_.release();
  }

  /// Begins an empty copy of `bytes`, in the memory of the last one. save() allocates more as it needs it.
  /// @throws std::bad_alloc
  void set_up(std::size_t bytes) {
    std::size_t const count = (bytes + chunk_bytes - 1) / chunk_bytes;
    chunks_.reserve(count);
    while (chunks_.size() > count ||
           (!chunks_.empty() && chunks_.back().bytes < bytes_of_chunk(chunks_.size() - 1, bytes)))
      drop_chunk();
    bytes_ = bytes;
    done_ = 0;
  }

  /// Copies from device memory to [position, position + bytes). @throws out_of_memory, std::bad_alloc,
  /// cuda_error
  void save(std::size_t position, void const* from, std::size_t bytes) {
    auto const* source = static_cast<unsigned char const*>(from);
    for_each_part(position, bytes, [&](void* part, std::size_t count) {
      copy(part, source, count);
      source += count;
    });
    mark(position + bytes);
  }
  /// Copies [position, position + bytes) back to device memory. @throws std::bad_alloc, cuda_error
  void load(std::size_t position, void* to, std::size_t bytes) {
    auto* target = static_cast<unsigned char*>(to);
    for_each_part(position, bytes, [&](void* part, std::size_t count) {
      copy(target, part, count);
      target += count;
    });
  }

  /// Waits until the bytes before `position` are saved. Returns false if the driver does not report it.
  [[nodiscard]] bool wait_for(std::size_t position) noexcept {
    if (position <= done_) return true;
    std::size_t i = 0;
    while (i < mark_count_ && marks_[i].position < position) ++i;
    if (i < mark_count_ && driver_.synchronize_event(marks_[i].event).ok()) {
      done_ = marks_[i].position;
      return true;
    }
    if (!finish_stream(driver_, stream_->get()).ok()) return false;
    done_ = bytes_;
    return true;
  }
  /// Waits until all copies are done, as end(). @throws cuda_error
  void finish() {
    if (stream_.get() == nullptr) return;
    if (status const s = driver_.synchronize_stream(stream_->get()); !s.ok())
      throw cuda_error(s, driver_.device().value);
    end();
  }
  /// Waits for the copies that were enqueued before an error, as end(). Returns false if the driver does not
  /// report that they are complete.
  bool abandon() noexcept {
    bool const done = stream_.get() == nullptr || finish_stream(driver_, stream_->get()).ok();
    end();
    return done;
  }
  /// Frees what the copies needed. They are complete, or the driver does not report it.
  void end() noexcept {
    while (mark_count_ != 0) (void)driver_.destroy_event(marks_[--mark_count_].event);
    stream_ = {};
  }
  /// Frees all memory, after abandon().
  void close() noexcept {
    (void)abandon();
    while (!chunks_.empty()) drop_chunk();
  }

  /// Pinned memory held, bytes.
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    std::size_t sum = 0;
    for (chunk const& c : chunks_) sum += c.bytes;
    return sum;
  }

 private:
  /// Small enough that no large contiguous allocation is needed; while one is allocated, the copies to the
  /// one before it run.
  static constexpr std::size_t chunk_bytes = 256_MiB;
  /// Handles are given back while later ones are copied: what is left after the last copy is a part in
  /// most_marks.
  static constexpr std::size_t most_marks = 32;

  struct chunk {
    void* p = nullptr;
    std::size_t bytes = 0;
  };
  struct mark_of_copies {
    event_handle event = nullptr;
    std::size_t position = 0;
  };

  void copy(void* to, void const* from, std::size_t bytes) {
    if (stream_.get() == nullptr) stream_ = owned<own_stream<Driver>>(new own_stream<Driver>(driver_));
    if (status const s = driver_.copy(stream_->get(), to, from, bytes); !s.ok())
      throw cuda_error(s, driver_.device().value);
  }
  /// Marks the end of the copies of all bytes before `position`, where at least a part of all bytes was
  /// enqueued since the last mark. Does nothing if the driver refuses.
  void mark(std::size_t position) noexcept {
    std::size_t const last = mark_count_ != 0 ? marks_[mark_count_ - 1].position : 0;
    if (mark_count_ == most_marks || position - last < bytes_ / most_marks) return;
    mark_of_copies& m = marks_[mark_count_];
    if (!driver_.create_event(m.event).ok()) return;
    m.position = position;
    ++mark_count_;
    if (driver_.record_event(m.event, stream_->get()).ok()) return;
    (void)driver_.destroy_event(m.event);
    --mark_count_;
  }

  /// Calls f(pinned memory, bytes) for each chunk's part of [position, position + bytes).
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
    (void)driver_.free_pinned(chunks_.back().p);
    chunks_.pop_back();
  }
  void add_chunk() {
    chunk c;
    c.bytes = bytes_of_chunk(chunks_.size(), bytes_);
    if (status const s = driver_.malloc_pinned(c.bytes, c.p); !s.ok())
      refuse(
          driver_, s, stream_ref{}, bytes_, default_alignment, source_location::current(), true,
          " Pinned memory for the contents of the pool is lacking: free some, or use contents::discarded.");
    chunks_.push_back(c);  // set_up() reserved it
  }

  Driver const& driver_;
  sequence<chunk> chunks_;
  std::size_t bytes_ = 0;
  creating_process process_;
  owned<own_stream<Driver>> stream_;  ///< of copies that are not known to be complete
  mark_of_copies marks_[most_marks];
  std::size_t mark_count_ = 0;
  std::size_t done_ = 0;  ///< the copies of all bytes before it are complete
};

}  // namespace TARN_NAMESPACE::detail
