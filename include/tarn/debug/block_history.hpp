// SPDX-License-Identifier: Apache-2.0
#pragma once
// The history of each block: where it was allocated and freed, and its present state.
//
//   live -> quarantined -> gone -> forgotten, or live again if the address is reused

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tarn/core/address_map.hpp"
#include "tarn/core/at_fork.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/misuse.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/core/stream.hpp"

namespace TARN_NAMESPACE::detail {

/// One call that concerned a block.
struct block_event {
  source_location where;
  std::uint64_t call = 0;  ///< in the count of its resource's calls, from 1; 0 if it has not happened
  stream_id stream = 0;
  std::uint64_t thread = 0;
  std::uint64_t discards = 0;  ///< of the pool, see pool_call::discards
};

enum class block_state : std::uint8_t { unused, live, freed, quarantined, gone };

struct block_record {
  void* p = nullptr;
  std::size_t bytes = 0;
  std::size_t alignment = 0;
  block_event allocated;
  block_event freed;
  std::uint32_t previous = 0;  ///< neighbours in the list of its state; index + 1
  std::uint32_t next = 0;
  int device = 0;
  block_state state = block_state::unused;
  bool fenced = false;
  bool used_elsewhere = false;                     ///< record_stream() named another stream
  stream_id latest_user = stream_ref::unknown_id;  ///< the latest one that record_stream() named
};

/// Records by address. Allocates only in make_room(), so that nothing can fail at deallocation. The caller
/// locks.
class block_history {
 public:
  /// Sets how many blocks are remembered after they are gone.
  void remember(std::size_t blocks) noexcept { most_gone_ = blocks; }

  /// Makes room for one block, until begin() or give_up_room(). @throws std::bad_alloc, nothing has changed
  void make_room() {
    index_.make_room(promised_ + 1);
    records_.reserve(records_.size() + promised_ + 1);
    ++promised_;
  }
  void give_up_room() noexcept { --promised_; }

  void begin(block_record const& b) noexcept {
    --promised_;
    block_record* known = find(b.p);
    if (known == nullptr) {
      known = fresh();
      index_.insert(key(b.p), index_of(known));
    } else if (known->state == block_state::gone) {
      drop_from(gone_, known);
    } else if (known->state == block_state::quarantined) {
      end_quarantine(*known);
    } else if (known->state == block_state::live) {
      --live_;  // handed out again without a free here: it was freed below
    }
    *known = b;
    known->state = block_state::live;
    ++live_;
  }
  /// The user has freed the block.
  void end(block_record& b, block_event const& freed) noexcept {
    b.state = block_state::freed;
    b.freed = freed;
    --live_;
  }
  void quarantine(block_record& b) noexcept {
    b.state = block_state::quarantined;
    append(quarantine_, b);
    quarantined_bytes_ += b.bytes;
  }
  /// The memory goes back to the upstream; the record stays for a while.
  void leave(block_record& b) noexcept {
    if (b.state == block_state::quarantined) end_quarantine(b);
    b.state = block_state::gone;
    append(gone_, b);
    if (gone_.count <= most_gone_) return;
    block_record& forgotten = records_[gone_.first - 1];
    drop_from(gone_, &forgotten);
    (void)index_.erase(key(forgotten.p));
    forgotten = block_record{};
    forgotten.next = spare_;
    spare_ = index_of(&forgotten);
  }

  [[nodiscard]] block_record* find(void const* p) noexcept {
    std::uint32_t const i = index_.find(key(p));
    return i != 0 ? &records_[i - 1] : nullptr;
  }
  [[nodiscard]] block_record const* find(void const* p) const noexcept {
    std::uint32_t const i = index_.find(key(p));
    return i != 0 ? &records_[i - 1] : nullptr;
  }
  /// The block that has been in quarantine longest. Requires that there is one.
  [[nodiscard]] block_record const& oldest() const noexcept { return records_[quarantine_.first - 1]; }
  [[nodiscard]] std::size_t quarantined() const noexcept { return quarantine_.count; }
  [[nodiscard]] std::size_t quarantined_bytes() const noexcept { return quarantined_bytes_; }
  [[nodiscard]] std::size_t live() const noexcept { return live_; }

  template <class Visit>
  void for_each(Visit const& visit) const {
    for (block_record const& b : records_) {
      if (b.state != block_state::unused) visit(b);
    }
  }

 private:
  /// First in, first out.
  struct queue {
    std::uint32_t first = 0;
    std::uint32_t last = 0;
    std::size_t count = 0;
  };
  static std::uintptr_t key(void const* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }
  [[nodiscard]] std::uint32_t index_of(block_record const* b) const noexcept {
    return static_cast<std::uint32_t>(b - records_.begin()) + 1;
  }
  block_record* fresh() noexcept {
    if (spare_ == 0) {
      records_.push_back(block_record{});
      return &records_.back();
    }
    block_record& b = records_[spare_ - 1];
    spare_ = b.next;
    return &b;
  }
  void end_quarantine(block_record const& b) noexcept {
    quarantined_bytes_ -= b.bytes;
    drop_from(quarantine_, &b);
  }
  void append(queue& q, block_record& b) noexcept {
    std::uint32_t const i = index_of(&b);
    b.previous = q.last;
    b.next = 0;
    if (q.last == 0) {
      q.first = i;
    } else {
      records_[q.last - 1].next = i;
    }
    q.last = i;
    ++q.count;
  }
  void drop_from(queue& q, block_record const* b) noexcept {
    (b->previous != 0 ? records_[b->previous - 1].next : q.first) = b->next;
    (b->next != 0 ? records_[b->next - 1].previous : q.last) = b->previous;
    --q.count;
  }

  sequence<block_record> records_;
  address_map<std::uint32_t> index_;
  std::uint32_t spare_ = 0;
  queue quarantine_;
  queue gone_;
  std::size_t quarantined_bytes_ = 0;
  std::size_t live_ = 0;
  std::size_t promised_ = 0;
  std::size_t most_gone_ = 0;
};

/// As long as the texts of tarn::misuse.
using history_text = message<512>;

/// "solver.cpp:42 (step), call 7, stream 3, thread 1". Paths and names are shortened: the text is bounded.
inline void add_event(history_text& text, block_event const& e) noexcept {
  std::string_view file = e.where.file;
  if (file.empty()) {
    text.add("at an unknown location");
  } else {
    if (std::size_t const cut = file.find_last_of('/'); cut != std::string_view::npos)
      file.remove_prefix(cut + 1);
    text.add(file).add(":").add_number(e.where.line);
    text.add(" (").add(std::string_view(e.where.function).substr(0, 40)).add(")");
  }
  text.add(", call ").add_number(e.call).add(", stream ").add_number(e.stream);
  text.add(", thread ").add_number(e.thread);
}

/// The event and the recorded history of a block.
[[nodiscard]] inline history_text history_of(block_record const& b, std::string_view what,
                                             std::uint64_t number) noexcept {
  history_text text("block ", b.p, " of ", b.bytes, " bytes ", what, number, "; allocated: ");
  add_event(text, b.allocated);
  if (b.freed.call != 0) {
    text.add("; freed: ");
    add_event(text, b.freed);
  }
  return text;
}

/// Reports blocks as leaks; with the default handler all are printed before the program ends.
inline void report_leaked(sequence<block_record> const& leaks) noexcept {
  for (block_record const& b : leaks) {
    misuse const leak(misuse_kind::leak, b.p,
                      history_of(b, "was not freed; number of leaks: ", leaks.size()).view());
    report_misuse_of_several(leak, &b == leaks.end() - 1);
  }
}

/// The checked resources of the process, to find the owner of a foreign pointer.
class checked_resources {
 public:
  struct member {
    void* layer = nullptr;
    bool (*find)(void* layer, void const* p, block_record& out) noexcept = nullptr;
    /// Adds the live blocks at the end of the process; null: not asked for. @throws std::bad_alloc
    void (*add_leaks)(void* layer, sequence<block_record>& leaks) = nullptr;
    int device = 0;
    creating_process const process{};
    member* next = nullptr;
    static_mutex::user const user{mutex};
  };
  static void add(member& m) {
    scoped_lock const guard(mutex);
    m.next = first;
    first = &m;
    if (m.add_leaks == nullptr || exchange(reports_at_exit, true)) return;
    (void)std::atexit([] { report_leaks(); });
  }
  static void remove(member& m) noexcept {
    scoped_lock const guard(mutex);
    member** at = &first;
    while (*at != &m) at = &(*at)->next;
    *at = m.next;
  }
  /// Finds a live block of another resource.
  static bool find(member const& asking, void const* p, block_record& out) noexcept {
    scoped_lock const guard(mutex);
    for (member* m = first; m != nullptr; m = m->next) {
      if (m != &asking && m->find(m->layer, p, out)) return true;
    }
    return false;
  }

 private:
  /// A forked child ends with its parent's live blocks, which it does not report.
  static void report_leaks() noexcept {
    (void)std::fflush(stdout);  // the default handler aborts, which would lose it
    sequence<block_record> leaks;
    try {
      scoped_lock const guard(mutex);
      for (member* m = first; m != nullptr; m = m->next) {
        if (m->add_leaks != nullptr && m->process.is_this()) m->add_leaks(m->layer, leaks);
      }
    } catch (...) {  // the host has no memory for the list
    }
    report_leaked(leaks);  // without the lock: the handler may use a resource
  }

  inline static constinit static_mutex mutex;
  inline static constinit member* first = nullptr;
  inline static constinit bool reports_at_exit =
      false;  ///< guarded by the mutex; a forked child does so, too
};

}  // namespace TARN_NAMESPACE::detail
