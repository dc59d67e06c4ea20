// SPDX-License-Identifier: Apache-2.0
#pragma once
// A growth by pages that sleeps: its physical memory is given back, its addresses, sizes and views are kept.
// Each direction has a step that can fail and changes nothing if it does, and a step that cannot fail, so
// that a pool and its graph memories fall asleep and wake together or not at all.
//
//   sleep  save()     enqueues the copies of kept contents to the host
//          release()  unmaps the views; for each handle, waits for its copy, unmaps its home and destroys it
//   wake   restore()  for each handle, creates it, maps its home and enqueues the copy back; maps the views;
//                     waits for the copies. If a step fails, release() again, which leaves the copy as it was
//          keep()     frees the copy on the host
//
// If compact() can map a handle neither new nor old, unmap() leaves all handles created and maps none:
// restore() maps them.
//
// Per handle on an H200: sleep about 35 us, wake 45 us, and 20 us for each view that shows it. The driver
// makes and destroys handles while it copies others, so that with kept contents these times are hidden behind
// the copies.

#include <cstddef>
#include <cstdint>

#include "tarn/core/error.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/pages/address_space.hpp"
#include "tarn/pool/pages/created_handles.hpp"
#include "tarn/pool/pages/growth.hpp"
#include "tarn/pool/pages/view_table.hpp"
#include "tarn/pool/relocate/host_copy.hpp"
#include "tarn/pool/relocate/kept_ranges.hpp"

namespace TARN_NAMESPACE::detail {

/// Meanwhile nothing allocates from the pool, so no handle is created or taken, and other threads only
/// free blocks: a stretch that was found live may be free later, which makes its copy superfluous and never
/// wrong.
template <page_source Source>
class page_sleep {
 public:
  using driver_type = typename Source::driver_type;

  page_sleep(Source& source, growth_counters& counters, page_map& map, address_space const& space,
             view_table<Source>& views)
      : source_(source),
        counters_(counters),
        map_(map),
        addresses_(space),
        views_(views),
        copy_(source.driver()) {}

  /// Enqueues copies of kept contents to the host, for release() or forget(). No work on the device uses the
  /// memory until wake() returns.
  /// @throws out_of_memory               pinned memory is lacking; nothing has changed
  /// @throws cuda_error, std::bad_alloc  nothing has changed
  void save(growth_lock const& growing, arena const& a, may_release hot, contents const where) {
    must_succeed(source_.driver(), finish_copies(growing, hot));
    sequence<stretch> found;
    std::size_t kept = 0;
    map_.keep_pinned();
    for (handle_ref h = 1; h < map_.size() && where != contents::discarded; ++h) {
      if (map_[h].bytes == 0 || map_[h].stays) continue;
      for_each_kept(a, map_[h], [&](std::size_t offset, std::size_t bytes) {
        found.push_back(stretch{h, offset, bytes, kept});
        kept += bytes;
      });
    }
    unlocked const released(hot);
    if (kept != 0) copy_all(found, kept);
    saved_.swap(found);
  }
  /// Gives all physical memory back, and keeps what save() copied; returns its bytes. Handles that unmap()
  /// kept stay so. If the driver does not report that a copy is complete, its handle and the later ones stay
  /// mapped.
  std::size_t release(growth_lock const& growing) noexcept {
    views_.unmap_all();
    if (keeps_handles_) {
      unmap_homes();
      return 0;
    }
    std::size_t given = 0;
    std::size_t next = 0;  // in saved_, which is in the order of handles
    bool are_saved = true;
    for (handle_ref h = 1; h < map_.size(); ++h) {
      std::size_t const first = next;
      while (next < saved_.size() && saved_[next].handle == h) ++next;
      if (map_[h].bytes == 0 || map_[h].stays) continue;
      if (next != first && are_saved && !copy_.wait_for(saved_[next - 1].end())) {
        are_saved = false;
        copies_may_run_ = true;
        keeps_handles_ = true;  // what a failing restore() must not destroy
        while (saved_.size() > first) saved_.pop_back();
        next = first;
      }
      if (are_saved) given += destroy_handle(source_, counters_, addresses_, growing, map_, h);
    }
    copy_.end();
    return given;
  }
  /// Unmaps everything, and keeps the handles and what is in them for restore().
  void unmap(growth_lock const&) noexcept {
    keeps_handles_ = true;
    map_.keep_pinned();
    views_.unmap_all();
    unmap_homes();
  }

  /// Creates and maps what release() gave back, and copies the contents back; returns the bytes created.
  /// @throws out_of_memory  the device or a limit has not enough; still asleep, nothing is lost
  /// @throws cuda_error     likewise
  std::size_t restore(growth_lock const& growing, may_release hot) {
    unlocked const released(hot);
    std::size_t const bytes = missing();
    restore_all(growing);
    return bytes;
  }
  /// Ends the sleep after restore().
  void keep(growth_lock const&, after_waking then) noexcept {
    keeps_handles_ = false;
    map_.treat_all_alike();
    if (then == after_waking::free_host_memory) copy_.close();
    sequence<stretch>().swap(saved_);
  }

  /// Bytes that restore() creates.
  [[nodiscard]] std::size_t missing() const noexcept {
    std::size_t sum = 0;
    for (handle_ref h = 1; h < map_.size(); ++h) {
      if (map_[h].state == backing::released) sum += map_[h].bytes;
    }
    return sum;
  }

  /// Copies of a compaction may run.
  void note_running_copies(growth_lock const&) noexcept { copies_may_run_ = true; }
  [[nodiscard]] bool copies_may_run() const noexcept { return copies_may_run_; }
  /// Waits for copies that the driver did not report as complete when it was asked last.
  status finish_copies(growth_lock const&) noexcept {
    if (!copies_may_run_) return {};
    status const done = wait_past_captures(source_.driver());
    copies_may_run_ = !done.ok();
    return done;
  }
  /// The same, before anything is destroyed or mapped again.
  [[nodiscard]] status finish_copies(growth_lock const& growing, may_release hot) noexcept {
    if (!copies_may_run_) return {};
    unlocked const released(hot);
    return finish_copies(growing);
  }

  /// Frees the contents on the host. The handles are as save() found them.
  void forget(growth_lock const&) noexcept {
    map_.treat_all_alike();
    copy_.close();
    sequence<stretch>().swap(saved_);
  }

  /// Host memory of the kept contents and their list, bytes.
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return copy_.host_bytes() + saved_.capacity() * sizeof(stretch);
  }

 private:
  /// Contiguous kept bytes of one handle.
  struct stretch {
    handle_ref handle = 0;
    std::size_t offset = 0;  ///< in the handle
    std::size_t bytes = 0;
    std::size_t position = 0;  ///< in the copy

    [[nodiscard]] std::size_t end() const noexcept { return position + bytes; }
  };

  [[nodiscard]] void* address_of(stretch const& s) const noexcept {
    return reinterpret_cast<void*>(map_[s.handle].home + s.offset);
  }

  void copy_all(sequence<stretch> const& found, std::size_t bytes) {
    try {
      copy_.set_up(bytes);
      for (stretch const& s : found) copy_.save(s.position, address_of(s), s.bytes);
    } catch (...) {
      copy_.close();
      throw;
    }
  }

  void unmap_homes() noexcept {
    for (handle_ref h = 1; h < map_.size(); ++h) {
      physical const p = map_[h];
      if (p.bytes == 0 || p.state != backing::mapped || p.stays) continue;
      source_.unmap(reinterpret_cast<void*>(p.home), p.bytes);
      ++counters_.unmaps;
      map_.set(h, p.id, backing::unmapped);
    }
  }
  /// Restores all, or leaves the pool asleep.
  void restore_all(growth_lock const& growing) {
    try {
      make_handles(growing);
      views_.map_all();
      copy_.finish();
    } catch (...) {
      if (copy_.abandon()) {
        (void)release(growing);
      } else {  // copies may still write to the handles
        views_.unmap_all();
        copies_may_run_ = keeps_handles_ = true;
      }
      throw;
    }
  }
  /// Creates and maps the handles, and enqueues the copies of what they held.
  void make_handles(growth_lock const& growing) {
    std::size_t next = 0;
    for (handle_ref h = 1; h < map_.size(); ++h) {
      if (map_[h].bytes != 0 && map_[h].state == backing::released) create(growing, h);
      if (map_[h].bytes != 0 && map_[h].state == backing::unmapped) map_home(h);
      for (; next < saved_.size() && saved_[next].handle == h; ++next) {
        stretch const& s = saved_[next];
        // A handle whose blocks were all freed meanwhile is gone.
        if (map_[h].bytes != 0) copy_.load(s.position, address_of(s), s.bytes);
      }
    }
  }
  void create(growth_lock const& growing, handle_ref h) {
    physical const p = map_[h];
    map_.set(h, source_.create(p.bytes), backing::unmapped);
    counters_.hold(growing, p.home, p.bytes, addresses_.zone_at(p.home));
  }
  void map_home(handle_ref h) {
    physical const p = map_[h];
    source_.map(reinterpret_cast<void*>(p.home), p.bytes, p.id);
    ++counters_.maps;
    map_.set(h, p.id, backing::mapped);
  }

  Source& source_;
  growth_counters& counters_;
  page_map& map_;
  address_space const& addresses_;
  view_table<Source>& views_;
  host_copy<driver_type> copy_;
  sequence<stretch> saved_;  ///< by handle; empty unless contents are kept on the host
  /// copies from or to handles that are mapped may not be complete
  bool copies_may_run_ = false;
  bool keeps_handles_ = false;  ///< asleep, and handles are kept: their contents, or copies that may run
};

}  // namespace TARN_NAMESPACE::detail
