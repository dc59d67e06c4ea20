// SPDX-License-Identifier: Apache-2.0
#pragma once
// checked: reports every misuse of a block, with the block's history; check_all() and report_leaks() ask for
// a report now.
//
// Over 400 lines: one short function for each step of a call and for each kind of finding.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/location_scope.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/misuse.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/thread_tag.hpp"
#include "tarn/debug/block_history.hpp"
#include "tarn/debug/fill_pattern.hpp"
#include "tarn/debug/used_streams.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace TARN_NAMESPACE {

template <class Upstream>
class checked_layer;

/// Reports double frees, foreign pointers, wrong sizes, alignments and devices, writes past either end and
/// after the free, and leaks. For debugging: `cuda_pages{} | pooled{} | checked{}`.
struct checked {
  std::size_t fence_bytes = 256;           ///< on each side of a block, at least
  std::size_t quarantine_bytes = 64_MiB;   ///< of freed blocks kept from reuse, to detect late writes
  std::size_t quarantine_blocks = 4096;    ///< maximum number of those blocks
  std::size_t remembered_blocks = 16'384;  ///< blocks remembered after that, to detect second frees
  bool leaks_at_exit = false;              ///< calls report_leaks() when the process ends

  template <class Upstream>
  using layer = checked_layer<Upstream>;
};

/// Findings go to the misuse handler, with where, when (a count of this resource's calls), on which stream
/// and by which thread the block was allocated and freed. A block that is freed wrongly is not passed on.
///
/// At allocation a block gets fences and the uninitialised pattern, in stream order. A deallocation waits on
/// the host for its stream, verifies the fences, poisons the block and quarantines it; when it leaves the
/// quarantine, oldest first, the poison is verified. Blocks with a use recorded on another stream
/// (record_stream) wait for the whole device; without a pool below they are kept while a capture forbids
/// that, and never given back if it still does when the resource ends.
///
/// While the stream of a call is capturing a graph, nothing is written, waited for or verified for that call:
/// a block allocated then has no fences, a block freed then is not quarantined. Its pointer, size and history
/// are still checked.
///
/// Blocks that are live when the resource ends are leaks. An owner that was never destroyed keeps its
/// resource alive: such a resource reports its leaks at the end of the process if `leaks_at_exit` is set.
/// Objects with static storage that were constructed after the first such resource have been destroyed by
/// then; those constructed before it count as leaked.
///
/// Cost of a pair: three fills, two copies of a fence, a copy of the block, two waits. Thread-safe; no lock
/// is held while waiting for the device or while the handler runs, except while check_all() reads one block.
template <class Upstream>
class checked_layer : public resource_adaptor<checked_layer<Upstream>, Upstream> {
  using base = resource_adaptor<checked_layer<Upstream>, Upstream>;

 public:
  using base::driver;
  /// Makes handles and owners record the place of a call for this layer, however many policies lie between.
  static constexpr bool records_places = true;

  checked_layer()
    requires std::default_initializable<Upstream>
      : checked_layer(Upstream{}) {}
  /// @throws length_error  `fence_bytes` is larger than any block; std::bad_alloc
  explicit checked_layer(Upstream upstream, checked const& options = {})
      : base(std::move(upstream)), options_(options), fences_(options.fence_bytes) {
    history_.remember(options.remembered_blocks);
    member_.device = driver().device().value;
    if (options_.leaks_at_exit) member_.add_leaks = &checked_layer::add_leaks_of;
    detail::checked_resources::add(member_);
  }
  /// Verifies the quarantine, then reports each block that is still live; not in a forked child, where a
  /// block may be that of a thread of the parent.
  ~checked_layer() {
    detail::checked_resources::remove(member_);
    end_quarantine(0, 0);
    if (!member_.process.is_this()) return;
    try {
      (void)report_leaks();
    } catch (...) {  // the host has no memory for the list
    }
  }

  /// What the fences add to each block, bytes; for largest_available_block().
  [[nodiscard]] std::size_t fence_bytes() const noexcept { return fences_.whole_bytes(0, default_alignment); }

  /// @throws cuda_error  allocate_sync() could not wait for the fills; nothing is allocated
  void* around_allocate(request const& asked, auto const& next) {
    request const r = asked.on(detail::named_stream<named>(driver(), asked.stream));
    if (r.bytes == 0) return nullptr;
    require_alignment(r.alignment);
    detail::block_record b;
    b.bytes = r.bytes;
    b.alignment = r.alignment;
    b.allocated = mark_of(r.stream);
    {
      detail::scoped_lock const guard(mutex_);
      history_.make_room();
    }
    try {
      b.p = fences_.block_in(allocate_whole(r, next), r.alignment);
    } catch (...) {
      detail::scoped_lock const guard(mutex_);
      history_.give_up_room();
      throw;
    }
    bool const captured = is_capturing(r.stream);
    // A fence that was not written would be reported as overwritten.
    b.fenced = !captured && has_contents(driver(), b.p) &&
               fences_.draw(driver(), r.stream, b.p, r.bytes, r.alignment).ok();
    if (b.fenced) (void)detail::fill_in_order(driver(), r.stream, b.p, pattern::uninitialised, r.bytes);
    status written;
    if (r.is_synchronous() && !captured) written = driver().synchronize_stream(r.stream);
    {
      detail::scoped_lock const guard(mutex_);
      if (written.ok()) {
        history_.begin(b);
      } else {
        history_.give_up_room();
      }
    }
    if (written.ok()) return b.p;
    // The fills may still run, and would overwrite what the caller writes.
    next.deallocate(fences_.whole_of(r.in_stream_order()), whole_of(b));
    throw cuda_error(written, driver().device().value);
  }
  void around_deallocate(request const& asked, void* p, auto const& next) noexcept {
    request r = asked.on(detail::named_stream<named>(driver(), asked.stream));
    detail::block_record const b = take_back(p, r.bytes, r.alignment, mark_of(r.stream));
    if (b.p == nullptr) return;
    if (!detail::records_streams<Upstream> && b.used_elsewhere && !wait_for_uses()) return keep(b);
    stream_ref on = r.stream;
    // While a graph is captured nothing may be written or verified, and while the pool sleeps there is no
    // memory.
    bool const untouchable = !detail::make_usable(driver(), on, named) || is_capturing(on) ||
                             (b.used_elsewhere && !wait_for_uses()) || detail::sleeps(this->upstream());
    if (!untouchable) verify_fences(b, on);
    if (untouchable || !b.fenced || !quarantine(b, on, r)) {
      history_gone(b);
      next.deallocate(fences_.whole_of(r), whole_of(b));
      return;
    }
    end_quarantine(options_.quarantine_bytes, options_.quarantine_blocks);
  }

  /// Records that work on `stream` uses the block as well: its deallocation will wait for the whole device.
  /// If the stream is captured, the block is neither verified nor poisoned any more.
  void record_stream(void* p, std::size_t bytes, stream_ref stream) {
    if (p == nullptr) return;
    std::size_t alignment = 0;
    bool const captured = is_capturing(detail::named_stream<named>(driver(), stream));
    {
      detail::scoped_lock const guard(mutex_);
      detail::block_record const* const b = history_.find(p);
      if (b == nullptr || b->state != detail::block_state::live) detail::refuse_pointer(p, "record_stream");
      alignment = b->alignment;
    }
    if constexpr (detail::records_streams<Upstream>) {
      nearest(this->upstream(), pool_call::record_stream{fences_.whole_of(p, alignment),
                                                         fences_.whole_bytes(bytes, alignment), stream});
    }
    stream_id const user = streams_.note(driver(), stream);
    detail::scoped_lock const guard(mutex_);
    if (detail::block_record* const b = history_.find(p)) {  // live, unless it was freed meanwhile: misuse
      b->used_elsewhere = true;
      b->latest_user = user;
      b->fenced = b->fenced && !captured;  // a graph uses the block also after it is freed
    }
  }

  /// Verifies the fences of every block that is live at the call and the poison of every quarantined one;
  /// reports those that were overwritten and returns their number. A block that is freed or leaves the
  /// quarantine meanwhile is verified at that point. Waits for the device; while a graph is captured,
  /// verifies nothing. @throws std::bad_alloc
  std::size_t check_all() {
    if (detail::sleeps(this->upstream())) return 0;
    detail::sequence<detail::block_record> all;
    {
      detail::scoped_lock const guard(mutex_);
      history_.for_each([&](detail::block_record const& b) {
        bool const is_here =
            b.state == detail::block_state::live || b.state == detail::block_state::quarantined;
        if (is_here && is_intact(b)) all.push_back(b);
      });
    }
    // A record begins once its fences are queued, so after this wait they are written. Blocks allocated later
    // are not checked.
    if (detail::may_run(detail::wait_for_all_work(driver()))) return 0;
    detail::own_stream const reading(driver());
    std::size_t found = 0;
    for (detail::block_record const& b : all) {
      detail::breach breach;
      std::size_t written = b.bytes;
      {
        // Held, so that the block is not given back while it is read.
        detail::scoped_lock const guard(mutex_);
        detail::block_record const* const now = history_.find(b.p);
        if (now == nullptr || now->state != b.state || now->allocated.call != b.allocated.call) continue;
        if (!is_intact(*now)) continue;
        if (b.state == detail::block_state::live) {
          breach = look_at_fences(b, reading.get());
        } else {
          written = first_written(b, reading.get());
        }
      }
      if (breach) report_breach(b, breach);
      if (written != b.bytes) report_late_write(b, written);
      if (breach || written != b.bytes) ++found;
    }
    return found;
  }

  /// Puts the pool to sleep, after it reported each stream of a live block that has unfinished work
  /// (misuse_kind::in_use): the stream on which the block was allocated, and the latest one of its
  /// record_stream(). What that work uses is not known, so these streams must be idle. The fences of live
  /// blocks are discarded with the contents.
  std::size_t sleep(contents where)
    requires reachable<Upstream, pool_call::sleep>
  {
    if (detail::all_sleep(this->upstream())) return 0;
    report_unfinished("sleep");
    if (where == contents::discarded) (void)end_quarantine(0, 0);
    return nearest(this->upstream(), pool_call::sleep{where});
  }
  /// Compacts the pool, after the same reports.
  compaction compact()
    requires reachable<Upstream, pool_call::compact>
  {
    report_unfinished("compact");
    return nearest(this->upstream(), pool_call::compact{});
  }

  /// Reports each block that is live now as a leak, and returns their number. With the default handler all
  /// are printed before the program ends. O(blocks). @throws std::bad_alloc  nothing was reported
  std::size_t report_leaks() {  // NOLINT(modernize-use-nodiscard): may be ignored
    detail::sequence<detail::block_record> leaks;
    add_leaks(leaks);
    detail::report_leaked(leaks);
    return leaks.size();
  }
  /// Number of blocks that are handed out.
  [[nodiscard]] std::size_t live_blocks() const noexcept {
    detail::scoped_lock const guard(mutex_);
    return history_.live();
  }
  /// The bytes that a block occupies, including fences.
  [[nodiscard]] std::size_t block_bytes(std::size_t bytes, std::size_t alignment) noexcept {
    return bytes == 0
               ? 0
               : detail::block_bytes_of(this->upstream(), fences_.whole_bytes(bytes, alignment), alignment);
  }
  void allocate_at() = delete;  // a block begins elsewhere than the one below
  /// Where the pool's block begins that holds a block and its fences; for a block that is not live here, `p`.
  [[nodiscard]] void* block_address(void* p) noexcept {
    void* whole = p;
    {
      detail::scoped_lock const guard(mutex_);
      detail::block_record const* const b = history_.find(p);
      if (b != nullptr && b->state == detail::block_state::live) whole = whole_of(*b);
    }
    return detail::block_address_of(this->upstream(), whole);
  }
  /// Calls f(p, bytes) for each block of the pool that the quarantine keeps, here and below. @throws
  /// std::bad_alloc
  template <class F>
  void each_quarantined(F const& f) {
    detail::sequence<detail::block_record> kept;
    {
      detail::scoped_lock const guard(mutex_);
      kept.reserve(history_.quarantined());
      history_.for_each([&](detail::block_record const& b) {
        if (b.state == detail::block_state::quarantined) kept.push_back(b);
      });
    }
    for (detail::block_record const& b : kept)
      f(detail::block_address_of(this->upstream(), whole_of(b)), b.bytes);
    detail::for_each_quarantined(this->upstream(), f);
  }
  /// Verifies what the quarantine keeps, here and below, and gives it back. Layers below count it as
  /// allocated until then.
  void release_quarantine() {
    (void)end_quarantine(0, 0);
    detail::release_quarantine(this->upstream());
  }

 private:
  /// Whether the poison of a quarantined block, or the fences of another one, were written, and not discarded
  /// by sleep(), of this handle or another one. Their call notes the number before it writes.
  [[nodiscard]] bool is_intact(detail::block_record const& b) noexcept {
    auto const& written = b.state == detail::block_state::quarantined ? b.freed : b.allocated;
    return b.fenced && written.discards == detail::discards_of(this->upstream());
  }

  void report_unfinished(char const* call) const noexcept {
    streams_.report_unfinished(driver(), call, [&](stream_id id) {
      bool uses = false;
      detail::scoped_lock const guard(mutex_);
      history_.for_each([&](detail::block_record const& b) {
        bool const live = b.state == detail::block_state::live;
        uses = uses || (live && (b.allocated.stream == id || b.latest_user == id));
      });
      return uses;
    });
  }

  [[nodiscard]] bool is_capturing(stream_ref stream) const noexcept {
    return detail::is_capturing(driver(), stream);
  }
  [[nodiscard]] detail::block_event mark_of(stream_ref stream) noexcept {
    detail::block_event e;
    e.where = location_scope::current();
    e.call = calls_.fetch_add(1, std::memory_order_relaxed) + 1;
    e.discards = detail::discards_of(this->upstream());
    e.thread = detail::this_thread_number();
    if (stream.id() != stream_ref::unknown_id) {
      e.stream = stream.id();
    } else {
      (void)detail::identify_beside_captures(driver(), stream, e.stream);
    }
    streams_.note(driver(), stream_ref::from(stream.handle(), e.stream));
    return e;
  }
  [[nodiscard]] void* whole_of(detail::block_record const& b) const noexcept {
    return fences_.whole_of(b.p, b.alignment);
  }

  /// Allocates a block with its fences; if that fails, empties the quarantine and retries.
  void* allocate_whole(request const& r, auto const& next) {
    request const whole = fences_.whole_of(r);
    return detail::asking_for(r.bytes, [&] {
      try {
        return next.allocate(whole);
      } catch (out_of_memory const&) {
        if (!end_quarantine(0, 0)) throw;
      }
      return next.allocate(whole);
    });
  }

  // ---- deallocation

  /// Takes a live block back from the user; if it may not be freed so, reports that and returns an empty
  /// record.
  detail::block_record take_back(void* p, std::size_t bytes, std::size_t alignment,
                                 detail::block_event const& freed) noexcept {
    detail::block_record b;
    {
      detail::scoped_lock const guard(mutex_);
      if (detail::block_record* const known = history_.find(p)) {
        b = *known;
        if (b.state == detail::block_state::live && b.bytes == bytes && b.alignment == alignment) {
          history_.end(*known, freed);
          return *known;
        }
      }
    }
    report_wrong_free(b, p, bytes, alignment, freed);
    return {};
  }
  void history_gone(detail::block_record const& b) noexcept {
    detail::scoped_lock const guard(mutex_);
    if (detail::block_record* const known = history_.find(b.p)) history_.leave(*known);
  }
  /// Waits for the uses of other streams; returns false if a capture forbids it.
  [[nodiscard]] bool wait_for_uses() const noexcept {
    return !detail::may_run(detail::wait_for_all_work(driver()));
  }
  void verify_fences(detail::block_record const& b, stream_ref stream) noexcept {
    if (!is_intact(b)) return;
    if (auto const breach = look_at_fences(b, stream)) report_breach(b, breach);
  }
  [[nodiscard]] detail::breach look_at_fences(detail::block_record const& b,
                                              stream_ref stream) const noexcept {
    return fences_.find_breach(driver(), stream, b.p, b.bytes, b.alignment);
  }
  [[nodiscard]] std::size_t first_written(detail::block_record const& b, stream_ref stream) const noexcept {
    return detail::first_difference(driver(), stream, b.p, pattern::freed, b.bytes);
  }

  /// Poisons a block and keeps it. Waits for its stream, so that the later verification does not need that
  /// stream. @param freed  how to free a block that is not kept; behind the poison if that may still run
  bool quarantine(detail::block_record const& b, stream_ref stream, request& freed) noexcept {
    if (b.bytes > options_.quarantine_bytes || options_.quarantine_blocks == 0) return false;
    if (!detail::fill_in_order(driver(), stream, b.p, pattern::freed, b.bytes).ok()) return false;
    if (!driver().synchronize_stream(stream).ok()) {
      freed = freed.in_stream_order().on(stream);
      return false;
    }
    detail::scoped_lock const guard(mutex_);
    if (detail::block_record* const known = history_.find(b.p)) {
      known->used_elsewhere = false;
      history_.quarantine(*known);
    }
    return true;
  }
  /// Keeps a block as it is that no pool below defers, until its uses on other streams can be waited for.
  void keep(detail::block_record const& b) noexcept {
    detail::scoped_lock const guard(mutex_);
    detail::block_record* const known = history_.find(b.p);
    known->fenced = false;
    history_.quarantine(*known);
  }
  /// Releases the oldest blocks until at most the given bytes and blocks are left, or a capture forbids to
  /// wait for the uses of the oldest; returns whether one may have been released. No work on the device may
  /// touch them, so the verification and what follows need no stream order.
  bool end_quarantine(std::size_t bytes, std::size_t blocks) noexcept {
    auto const is_over = [&] {
      return history_.quarantined_bytes() > bytes || history_.quarantined() > blocks;
    };
    {
      detail::scoped_lock const guard(mutex_);
      if (!is_over()) return false;
    }
    detail::own_stream const reading(driver());  // joins no capture
    for (bool any = false;; any = true) {
      detail::block_record b;
      {
        detail::scoped_lock const guard(mutex_);
        if (!is_over()) return any;
        b = history_.oldest();
        if (!b.used_elsewhere) history_.leave(*history_.find(b.p));
      }
      if (b.used_elsewhere) {
        if (!wait_for_uses()) return any;
        detail::scoped_lock const guard(mutex_);
        detail::block_record* const known = history_.find(b.p);
        if (known != nullptr && known->freed.call == b.freed.call) known->used_elsewhere = false;
        continue;
      }
      if (is_intact(b) && !detail::sleeps(this->upstream())) {
        std::size_t const at = reading.made().ok() ? first_written(b, reading.get()) : b.bytes;
        if (at != b.bytes) report_late_write(b, at);
      }
      this->upstream().deallocate_sync(whole_of(b), fences_.whole_bytes(b.bytes, b.alignment), b.alignment);
    }
  }

  // ---- reports

  static void report_breach(detail::block_record const& b, detail::breach const& breach) noexcept {
    if (breach.before != 0) {
      report_misuse(
          misuse(misuse_kind::overrun, b.p,
                 detail::history_of(b, "was written before its start, at distance ", breach.before).view()));
    }
    if (breach.after != 0) {
      report_misuse(
          misuse(misuse_kind::overrun, b.p,
                 detail::history_of(b, "was written past its end, at offset ", breach.after).view()));
    }
  }
  static void report_late_write(detail::block_record const& b, std::size_t at) noexcept {
    report_misuse(misuse(misuse_kind::use_after_free, b.p,
                         detail::history_of(b, "was written after it was freed, at offset ", at).view()));
  }
  void report_wrong_free(detail::block_record const& b, void* p, std::size_t bytes, std::size_t alignment,
                         detail::block_event const& freed) noexcept {
    misuse_kind kind = misuse_kind::foreign_pointer;
    detail::history_text text;
    if (b.p == nullptr) {
      detail::block_record other;
      if (detail::checked_resources::find(member_, p, other)) {
        bool const elsewhere = other.device != member_.device;
        if (elsewhere) kind = misuse_kind::wrong_device;
        text = detail::history_of(other,
                                  elsewhere ? "belongs to another device but was freed on device "
                                            : "belongs to another resource but was freed by one of device ",
                                  static_cast<std::uint64_t>(member_.device));
      } else if (detail::block_record const around = containing(p); around.p != nullptr) {
        auto const offset = static_cast<std::uint64_t>(static_cast<char*>(p) - static_cast<char*>(around.p));
        text = detail::history_of(around, "freed by a pointer that is not its start, at offset ", offset);
      } else {
        text = detail::history_text("pointer ", p, " was freed but not allocated by this resource");
      }
    } else if (b.state != detail::block_state::live) {
      kind = misuse_kind::double_free;
      text = detail::history_of(b, "was freed again, in call ", freed.call);
    } else if (b.bytes != bytes) {
      kind = misuse_kind::wrong_size;
      text = detail::history_of(b, "was freed with a different size: ", bytes);
    } else {
      kind = misuse_kind::wrong_alignment;
      text = detail::history_of(b, "was freed with a different alignment: ", alignment);
    }
    text.add("; this free: ");
    detail::add_event(text, freed);
    report_misuse(misuse(kind, p, text.view()));
  }
  [[nodiscard]] detail::block_record containing(void const* p) const noexcept {
    detail::block_record found;
    detail::scoped_lock const guard(mutex_);
    history_.for_each([&](detail::block_record const& b) {
      auto const at = reinterpret_cast<std::uintptr_t>(p);
      auto const start = reinterpret_cast<std::uintptr_t>(b.p);
      if (b.state != detail::block_state::gone && at >= start && at - start < b.bytes) found = b;
    });
    return found;
  }
  static bool find_in(void* self, void const* p, detail::block_record& out) noexcept {
    auto const& layer = *static_cast<checked_layer*>(self);
    detail::scoped_lock const guard(layer.mutex_);
    detail::block_record const* const b = layer.history_.find(p);
    if (b == nullptr || b->state != detail::block_state::live) return false;
    out = *b;
    out.device = layer.member_.device;
    return true;
  }

  void add_leaks(detail::sequence<detail::block_record>& leaks) const {
    detail::scoped_lock const guard(mutex_);
    history_.for_each([&](detail::block_record const& b) {
      if (b.state == detail::block_state::live) leaks.push_back(b);
    });
  }
  static void add_leaks_of(void* self, detail::sequence<detail::block_record>& leaks) {
    static_cast<checked_layer*>(self)->add_leaks(leaks);
  }

  /// What a default stream refers to that a call names without an identity.
  static constexpr auto named = detail::default_streams_of<Upstream>();

  checked const options_;
  detail::fences fences_;
  std::atomic<std::uint64_t> calls_{0};
  mutable detail::fork_mutex mutex_;
  detail::block_history history_;
  detail::used_streams<typename Upstream::driver_type> streams_;
  detail::checked_resources::member member_{this, &checked_layer::find_in};
};

/// Verifies all blocks, see checked_layer::check_all(), whatever policies are above that layer. Returns the
/// number of findings.
/// @throws std::bad_alloc
template <class Resource>
std::size_t check_all(Resource const& memory) {
  auto const call = [](auto& layer) -> decltype(layer.check_all()) { return layer.check_all(); };
  static_assert(reachable<Resource, decltype(call)>,
                "tarn: this needs checked memory; add: | tarn::checked{}");
  return nearest(memory, call);
}
/// Reports live blocks, see checked_layer::report_leaks(). Returns their number.
/// @throws std::bad_alloc
template <class Resource>
std::size_t report_leaks(Resource const& memory) {
  auto const call = [](auto& layer) -> decltype(layer.report_leaks()) { return layer.report_leaks(); };
  static_assert(reachable<Resource, decltype(call)>,
                "tarn: this needs checked memory; add: | tarn::checked{}");
  return nearest(memory, call);
}

}  // namespace TARN_NAMESPACE
