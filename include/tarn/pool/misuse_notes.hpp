// SPDX-License-Identifier: Apache-2.0
#pragma once
// Misuse detected under the hot lock, kept until the call has released its locks, since the misuse handler
// may use the pool.

#include <atomic>
#include <cstdint>

#include "tarn/core/message.hpp"
#include "tarn/core/misuse.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"

namespace TARN_NAMESPACE::detail {

class misuse_notes {
 public:
  /// Adds a note; if there are more than `most` at once, the first ones are kept.
  void add(hot_lock const&, release_result what, void const* p) noexcept {
    unsigned const count = count_.load(std::memory_order_relaxed);
    if (count == most) return;
    notes_[count] = {what, p};
    count_.store(count + 1, std::memory_order_relaxed);
  }

  /// Calls the misuse handler for each note. The caller holds no lock of the pool.
  void report_all(hot_mutex& mutex) noexcept {
    while (count_.load(std::memory_order_relaxed) != 0) [[unlikely]] {
      note next;
      {
        hot_lock const held(mutex);
        unsigned const count = count_.load(std::memory_order_relaxed);
        if (count == 0) return;
        next = notes_[count - 1];
        count_.store(count - 1, std::memory_order_relaxed);
      }
      report(next);
    }
  }

 private:
  struct note {
    release_result what = release_result::done;
    void const* p = nullptr;
  };

  static void report(note const& n) noexcept {
    message<256> text;
    misuse_kind kind = misuse_kind::foreign_pointer;
    text.add("deallocation of ").add_hex(reinterpret_cast<std::uintptr_t>(n.p)).add(": ");
    switch (n.what) {
      case release_result::wrong_size:
        kind = misuse_kind::wrong_size;
        text.add("the block has a different size; pass the bytes and alignment of its allocation");
        break;
      case release_result::twice:
        kind = misuse_kind::double_free;
        text.add("the block is already free; add | tarn::checked{} to see where");
        break;
      default:
        text.add(
            "no live block of this pool starts there (freed twice, or allocated by another pool); add | "
            "tarn::checked{} to see where");
        break;
    }
    report_misuse(misuse(kind, n.p, text.view()));
  }

  static constexpr unsigned most = 16;
  note notes_[most];  ///< under the hot lock
  std::atomic<unsigned> count_{0};
};

/// Reports the notes when a call ends. Declared before the locks of its function, so that it runs after their
/// release.
class misuse_report {
 public:
  misuse_report(misuse_notes& notes, hot_mutex& mutex) noexcept : notes_(notes), mutex_(mutex) {}
  misuse_report& operator=(misuse_report&&) = delete;
  ~misuse_report() { notes_.report_all(mutex_); }

 private:
  misuse_notes& notes_;
  hot_mutex& mutex_;
};

}  // namespace TARN_NAMESPACE::detail
