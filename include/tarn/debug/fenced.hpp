// SPDX-License-Identifier: Apache-2.0
#pragma once
// fenced: guard bytes before and after every block, which detect writes past either end.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/address_map.hpp"
#include "tarn/core/at_fork.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/misuse.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/debug/fill_pattern.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace TARN_NAMESPACE {

template <class Upstream>
class fenced_layer;

/// Guard bytes on both sides; at least `fence_bytes` each. For debugging.
struct fenced {
  std::size_t fence_bytes = 256;

  template <class Upstream>
  using layer = fenced_layer<Upstream>;
};

/// Fences are written in stream order at allocation and verified at deallocation and by check_all().
/// Verifying waits for the stream on the host. It also detects pointers that are not live here, and wrong
/// sizes. Findings go to the misuse handler; a block that is not live is not passed on. Alignment is kept.
/// Thread-safe: one mutex, not held while waiting for the device. A pair costs two small fills, two small
/// copies and two waits.
///
/// While the stream of a call is capturing a graph, nothing is written, waited for or verified for that call:
/// a block allocated then has no fences. Nor is anything verified while the pool sleeps.
template <class Upstream>
class fenced_layer : public resource_adaptor<fenced_layer<Upstream>, Upstream> {
  using base = resource_adaptor<fenced_layer<Upstream>, Upstream>;

 public:
  using base::driver;

  fenced_layer()
    requires std::default_initializable<Upstream>
      : fenced_layer(Upstream{}) {}
  /// @throws length_error  `fence_bytes` is larger than any block
  explicit fenced_layer(Upstream upstream, fenced const& options = {})
      : base(std::move(upstream)), fences_(options.fence_bytes) {}

  /// What the fences add to each block, bytes; for largest_available_block().
  [[nodiscard]] std::size_t fence_bytes() const noexcept { return fences_.whole_bytes(0, default_alignment); }

  void* around_allocate(request const& asked, auto const& next) {
    request const r = asked.on(detail::named_stream<named>(driver(), asked.stream));
    if (r.bytes == 0) return nullptr;
    require_alignment(r.alignment);
    request const whole = fences_.whole_of(r);
    void* const whole_block = detail::asking_for(r.bytes, [&] { return next.allocate(whole); });
    void* const p = fences_.block_in(whole_block, r.alignment);
    try {
      build(r, p);
    } catch (...) {
      next.deallocate(whole.in_stream_order(), whole_block);  // a fence may still be written
      throw;
    }
    if (r.is_synchronous() && !detail::is_capturing(driver(), r.stream))
      (void)driver().synchronize_stream(r.stream);
    return p;
  }
  void around_deallocate(request const& asked, void* p, auto const& next) noexcept {
    request const r = asked.on(detail::named_stream<named>(driver(), asked.stream));
    if (retire(r, p)) next.deallocate(fences_.whole_of(r), fences_.whole_of(p, r.alignment));
  }

  /// Passes on the block with its fences, as the pool knows it.
  void record_stream(void* p, std::size_t bytes, stream_ref stream)
    requires detail::records_streams<Upstream>
  {
    if (p == nullptr) return;
    std::size_t const alignment = alignment_of(p);
    if (alignment == 0) detail::refuse_pointer(p, "record_stream");
    nearest(this->upstream(), pool_call::record_stream{fences_.whole_of(p, alignment),
                                                       fences_.whole_bytes(bytes, alignment), stream});
  }

  /// Verifies the fences of every block that was live at the call and is still live, reports broken ones and
  /// returns their number. Waits for the device; while a graph is captured, verifies nothing. Another
  /// thread's call waits at most for the verification of one block.
  /// @throws std::bad_alloc
  std::size_t check_all() {
    if (detail::sleeps(this->upstream())) return 0;
    struct candidate {
      std::uintptr_t p = 0;
      block b;
    };
    detail::sequence<candidate> all;
    {
      detail::scoped_lock const guard(mutex_);
      blocks_.for_each([&](std::uintptr_t p, block const& b) { all.push_back({p, b}); });
    }
    // A block is recorded once its fences are queued, so after this wait they are written. Later blocks are
    // not candidates.
    if (detail::may_run(detail::wait_for_all_work(driver()))) return 0;
    detail::own_stream const reading(driver());
    std::size_t broken = 0;
    for (candidate const& c : all) {
      detail::breach found;
      {
        detail::scoped_lock const guard(mutex_);  // held, so that the block is not freed while it is read
        if (!is_fenced(c.b) || !(blocks_.find(c.p) == c.b)) continue;
        found = fences_.find_breach(driver(), reading.get(), reinterpret_cast<void*>(c.p), c.b.bytes,
                                    c.b.alignment);
      }
      if (!found) continue;
      ++broken;
      report(found);
    }
    return broken;
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
    std::size_t const alignment = alignment_of(p);
    return detail::block_address_of(this->upstream(), alignment != 0 ? fences_.whole_of(p, alignment) : p);
  }

 private:
  struct block {
    std::size_t bytes = 0;
    std::size_t alignment = 0;
    std::uint64_t number = 0;    ///< in the order of allocation: an address may be reused
    std::uint64_t discards = 0;  ///< of the pool, before the fences were written
    bool fenced = false;         ///< false if allocated during a capture, or without contents
    friend bool operator==(block const&, block const&) = default;
  };
  [[nodiscard]] static std::uintptr_t key_of(void* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }
  /// The alignment of a live block; 0 if it is none.
  [[nodiscard]] std::size_t alignment_of(void* p) noexcept {
    detail::scoped_lock const guard(mutex_);
    return blocks_.find(key_of(p)).alignment;
  }
  /// Whether the fences were written, and not discarded by sleep().
  [[nodiscard]] bool is_fenced(block const& b) noexcept {
    return b.fenced && b.discards == detail::discards_of(this->upstream());
  }

  /// Writes the fences and records the block. @throws std::bad_alloc, cuda_error: the block is not recorded
  void build(request const& r, void* p) {
    std::uint64_t number = 0;
    std::uint64_t const discards = detail::discards_of(this->upstream());
    {
      detail::scoped_lock const guard(mutex_);
      blocks_.make_room(promised_ + 1);
      ++promised_;
      number = ++numbered_;
    }
    bool const fenced = !detail::is_capturing(driver(), r.stream) && has_contents(driver(), p);
    status const s = fenced ? fences_.draw(driver(), r.stream, p, r.bytes, r.alignment) : status{};
    {
      detail::scoped_lock const guard(mutex_);
      --promised_;
      // Recorded after its fences are queued: otherwise check_all() would report a fence that is not yet
      // there.
      if (s.ok()) blocks_.insert(key_of(p), {r.bytes, r.alignment, number, discards, fenced});
    }
    if (!s.ok()) throw cuda_error(s, driver().device().value);
  }

  /// Verifies and forgets a block; returns false if it must not be passed on. The handler is called without
  /// the mutex, since it may use this very resource.
  bool retire(request const& r, void* p) noexcept {
    block b{};
    bool matches = false;
    bool has_fences = false;
    {
      detail::scoped_lock const guard(mutex_);
      b = blocks_.find(key_of(p));
      matches = b.bytes == r.bytes && b.alignment == r.alignment;
      has_fences = is_fenced(b);
      if (matches) (void)blocks_.erase(key_of(p));
    }
    if (b == block{}) {
      report(misuse_kind::foreign_pointer, p,
             "is not live in this resource: freed twice, or allocated by another resource", 0);
      return false;
    }
    if (!matches) {
      auto const kind = b.bytes != r.bytes ? misuse_kind::wrong_size : misuse_kind::wrong_alignment;
      report(kind, p, "was freed with a different size or alignment; its allocated size in bytes is ",
             b.bytes);
      return false;
    }
    if (!has_fences || detail::sleeps(this->upstream())) return true;
    stream_ref on = r.stream;
    if (!detail::make_usable(driver(), on, named) || detail::is_capturing(driver(), on)) return true;
    if (detail::breach const found = fences_.find_breach(driver(), on, p, r.bytes, r.alignment))
      report(found);
    return true;
  }

  static void report(detail::breach const& found) noexcept {
    if (found.before != 0)
      report(misuse_kind::overrun, found.p, "was written before its start, at distance ", found.before);
    if (found.after != 0)
      report(misuse_kind::overrun, found.p, "was written past its end, at offset ", found.after);
  }
  static void report(misuse_kind kind, void const* p, std::string_view what, std::size_t number) noexcept {
    message<256> text("block ", p, " ", what);
    if (number != 0) text.add_number(number);
    report_misuse(misuse(kind, p, text.view()));
  }

  /// What a default stream refers to that a call names without an identity.
  static constexpr auto named = detail::default_streams_of<Upstream>();

  detail::fences fences_;
  detail::fork_mutex mutex_;
  detail::address_map<block> blocks_;
  std::size_t promised_ = 0;  ///< blocks whose fences are being queued; there is room for them
  std::uint64_t numbered_ = 0;
};

}  // namespace TARN_NAMESPACE
