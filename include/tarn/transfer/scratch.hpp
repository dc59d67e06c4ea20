// SPDX-License-Identifier: Apache-2.0
#pragma once
// scratch: a stack allocator for temporaries on a device, with mark and rewind, for recomputation and layered
// work.
//
//   chunk 0                 chunk 1
//   [ a | b |    gap     ]  [ c | d | free         ]    mark m was taken after b: rewind(m) frees c and d
//           ^ m                     ^ top               chunk 1 is kept, empty, for the next take()

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/misuse.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/raii/stream.hpp"

namespace TARN_NAMESPACE {

/// What take() does if the chunks are full.
enum class scratch_growth {
  doubling,  ///< allocates another chunk, as large as all chunks so far or as the request, whichever is
             ///< larger
  none       ///< throws out_of_memory: chunk_bytes is the total
};

struct scratch_options {
  std::size_t chunk_bytes = 4_MiB;  ///< size of the first chunk, allocated at the first take()
  scratch_growth growth = scratch_growth::doubling;
};

/// A position in a scratch to rewind to. A small value; invalid once it, or an earlier mark, is rewound to.
class scratch_mark {
 private:
  template <class Resource>
  friend class scratch;
  void const* of_ = nullptr;
  std::uint64_t serial_ = 0;
  std::size_t depth_ = 0;
};

/// Hands out uninitialised device memory from chunks in ascending order; rewinding to a mark frees all memory
/// handed out since. Chunks come from `memory` and are kept until release() or destruction: a warm take() or
/// rewind() is a few instructions and does not call the pool.
///
/// All memory is ordered by one stream: freed memory may be handed out again at once, for later work on
/// stream(). Work on another stream must be ordered before the rewind (by an event, or set_stream()).
///
/// It is deliberately not a resource: an owner that frees in arbitrary order, or outlives a rewind, would be
/// wrong undetected. Sizes do not wrap. One thread at a time. Destruction frees the chunks in the order of
/// stream(), and never throws.
template <class Resource>
class scratch {
 public:
  using resource_type = Resource;

  /// Allocates no memory yet. @throws cuda_error  the driver does not know the stream
  explicit scratch(Resource memory, scratch_options const& options = {}, stream_ref stream = {},
                   source_location where = source_location::current())
      : memory_(std::move(memory)), stream_(identified(memory_, stream, where)), options_(options) {}
  /// A template, so that `{}` means the default options and not 0 bytes.
  template <std::integral Bytes>
  scratch(Resource memory, Bytes chunk_bytes, stream_ref stream = {},
          source_location where = source_location::current())
      : scratch(std::move(memory), scratch_options{static_cast<std::size_t>(chunk_bytes)}, stream, where) {}
  scratch& operator=(scratch&&) = delete;
  ~scratch() { give_from(0); }

  /// Returns `count` uninitialised elements, valid until an earlier mark is rewound to; null for zero
  /// elements.
  /// @param count  elements, not bytes. Aligned to 256 bytes, or to alignof(T) if that is larger
  /// @throws length_error   count * sizeof(T) overflows
  /// @throws out_of_memory  nothing has changed. With growth::none the error reports the size of the scratch
  /// O(1) if a kept chunk has room (O(chunks) if chunks must be skipped), else one allocation.
  template <class T>
  [[nodiscard]] T* take(std::size_t count, attribution call = attribution::current()) {
    static_assert(std::is_trivially_copyable_v<T>,
                  "tarn: scratch never constructs elements: T must be trivially copyable");
    constexpr std::size_t alignment = detail::alignment_of<T>;
    static_assert(alignment <= max_alignment,
                  "tarn: no resource supports this alignment; align T to max_alignment or less");
    return static_cast<T*>(take_bytes(checked_bytes(count, sizeof(T)), alignment, call));
  }

  /// Records the position that rewind() returns to. @throws std::bad_alloc  (host) nothing has changed
  [[nodiscard]] scratch_mark mark() {
    marks_.push_back(noted{next_serial_, at_, used_});
    scratch_mark m;
    m.of_ = this;
    m.serial_ = next_serial_++;
    m.depth_ = marks_.size() - 1;
    return m;
  }
  /// Frees all memory handed out since the mark and invalidates the mark and all later ones. An invalid mark,
  /// or one of another scratch, is reported to the misuse handler; if that returns, nothing has changed.
  /// Keeps the chunks.
  void rewind(scratch_mark const& m) noexcept {
    bool const known = m.of_ == this && m.depth_ < marks_.size() && marks_[m.depth_].serial == m.serial_;
    if (!known) return report_invalid(m);
    at_ = marks_[m.depth_].at;
    used_ = marks_[m.depth_].used;
    while (marks_.size() > m.depth_) marks_.pop_back();
  }

  /// Frees the unused chunks in the order of stream(). Marks stay valid.
  void release() noexcept { give_from(used_ == 0 ? 0 : at_ + 1); }

  /// Changes the stream. Later work on `stream` waits, on the device, for what was enqueued on the old
  /// stream, which must still exist, as device_buffer::set_stream() has it.
  /// @throws cuda_error  nothing has changed
  void set_stream(stream_ref stream, source_location where = source_location::current()) {
    detail::change_stream(memory_, chunks_.empty() ? nullptr : chunks_[0].p, stream_, stream, where);
  }

  /// Returns the bytes handed out, including the gaps between them.
  [[nodiscard]] std::size_t used() const noexcept {
    std::size_t bytes = used_;
    for (std::size_t i = 0; i < at_; ++i) bytes += chunks_[i].used_when_left;
    return bytes;
  }
  /// Returns the bytes held from the resource.
  [[nodiscard]] std::size_t capacity() const noexcept {
    std::size_t bytes = 0;
    for (chunk const& c : chunks_) bytes += c.bytes;
    return bytes;
  }
  /// Returns the number of valid marks.
  [[nodiscard]] std::size_t marks() const noexcept { return marks_.size(); }
  [[nodiscard]] stream_ref stream() const noexcept { return stream_; }
  [[nodiscard]] Resource const& resource() const noexcept { return memory_; }

 private:
  struct chunk {
    void* p = nullptr;
    std::size_t bytes = 0;
    std::size_t alignment = 0;
    std::size_t used_when_left = 0;
  };
  struct noted {
    std::uint64_t serial = 0;
    std::size_t at = 0;
    std::size_t used = 0;
  };

  [[nodiscard]] void* take_bytes(std::size_t bytes, std::size_t alignment, attribution const& call) {
    if (bytes == 0) return nullptr;
    for (std::size_t i = at_; i < chunks_.size(); ++i) {
      std::size_t const begin = i == at_ ? used_ : 0;
      if (void* const p = place_in(i, begin, bytes, alignment); p != nullptr) return p;
    }
    detail::called_from<Resource>(call, [&] { grow(bytes, alignment); });
    return place_in(chunks_.size() - 1, 0, bytes, alignment);
  }

  /// Returns null if the chunk has no room above `begin`.
  [[nodiscard]] void* place_in(std::size_t i, std::size_t begin, std::size_t bytes,
                               std::size_t alignment) noexcept {
    chunk const& c = chunks_[i];
    auto const base = reinterpret_cast<std::uintptr_t>(c.p);
    std::size_t const offset = align_up(base + begin, alignment) - base;
    if (offset > c.bytes || bytes > c.bytes - offset) return nullptr;
    if (i != at_) {
      chunks_[at_].used_when_left = used_;
      for (std::size_t skipped = at_ + 1; skipped < i; ++skipped) chunks_[skipped].used_when_left = 0;
      at_ = i;
    }
    used_ = offset + bytes;
    return static_cast<std::byte*>(c.p) + offset;
  }

  void grow(std::size_t bytes, std::size_t alignment) {
    std::size_t const held = capacity();
    if (options_.growth == scratch_growth::none && (held != 0 || bytes > options_.chunk_bytes))
      refuse(bytes, alignment);
    chunks_.reserve(chunks_.size() + 1);
    std::size_t const wanted = held == 0 ? options_.chunk_bytes : held;
    chunk c;
    c.bytes = detail::max_of(bytes, wanted);
    c.alignment = alignment;
    try {
      c.p = memory_.allocate(stream_, c.bytes, alignment);
    } catch (out_of_memory const&) {
      if (c.bytes == bytes || options_.growth == scratch_growth::none) throw;
      c.bytes = bytes;  // retry with only the requested size
      c.p = memory_.allocate(stream_, c.bytes, alignment);
    }
    chunks_.push_back(c);
  }

  [[noreturn]] void refuse(std::size_t bytes, std::size_t alignment) const {
    memory_report r;
    r.asked = bytes;
    r.alignment = alignment;
    r.device = memory_.driver().device().value;
    r.stream = stream_.id();
    r.live = used();
    r.limit = options_.chunk_bytes;
    r.refused_by = "scratch";
    throw out_of_memory(r);
  }

  void give_from(std::size_t first) noexcept {
    while (chunks_.size() > first) {
      chunk const& c = chunks_.back();
      detail::free_block(memory_, stream_, c.p, c.bytes, c.alignment);
      chunks_.pop_back();
    }
  }

  void report_invalid(scratch_mark const& m) const noexcept {
    bool const mine = m.of_ == this;
    report_misuse(misuse(
        mine ? misuse_kind::double_free : misuse_kind::foreign_pointer, this,
        mine ? "rewind to an expired mark: the scratch was already rewound to it or to an earlier mark; "
               "rewind in the reverse order of the marks"
             : "rewind to a mark of another scratch; rewind the scratch that created it"));
  }

  Resource memory_;
  stream_ref stream_;
  scratch_options options_;
  detail::sequence<chunk> chunks_;
  detail::sequence<noted> marks_;  ///< valid marks, oldest first
  std::size_t at_ = 0;             ///< the chunk that take() tries first
  std::size_t used_ = 0;           ///< bytes handed out of that chunk
  std::uint64_t next_serial_ = 1;
};

/// Rewinds a scratch at scope exit to its position at scope entry. Scopes nest.
template <class Resource>
class rewind_scope {
 public:
  /// @throws std::bad_alloc  (host)
  explicit rewind_scope(scratch<Resource>& arena) : arena_(arena), mark_(arena.mark()) {}
  rewind_scope& operator=(rewind_scope&&) = delete;
  ~rewind_scope() { arena_.rewind(mark_); }

 private:
  scratch<Resource>& arena_;
  scratch_mark mark_;
};

}  // namespace TARN_NAMESPACE
