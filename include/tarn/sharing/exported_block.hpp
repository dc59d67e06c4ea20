// SPDX-License-Identifier: Apache-2.0
#pragma once
// export_block(): a block of a pool for other processes. dma_buf: a block for other devices.

#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/core/descriptor.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/sharing/block_description.hpp"
#include "tarn/sharing/page_pin.hpp"
#include "tarn/sharing/sharing_error.hpp"

namespace TARN_NAMESPACE {

// An event that two processes use.

namespace detail {

/// Owns an event that other processes can open, or that another process has made. A forked child destroys
/// nothing.
template <sharing_driver D>
class shared_event {
 public:
  /// Creates one. @throws cuda_error
  shared_event(D driver, shared_event_token& token) : driver_(std::move(driver)) {
    must_succeed(driver_, driver_.create_shared_event(event_, token));
  }
  /// Opens another process's. @throws cuda_error
  shared_event(shared_event_token const& token, D driver) : driver_(std::move(driver)) {
    must_succeed(driver_, driver_.open_shared_event(token, event_));
  }
  shared_event& operator=(shared_event&&) = delete;
  ~shared_event() {
    if (process_.is_this()) (void)driver_.destroy_event(event_);
  }

  /// @throws cuda_error
  void record(stream_ref stream) const { must_succeed(driver_, record_in_order(driver_, event_, stream)); }
  /// Later work on the stream waits until the recorded work has ended. Asks `has_ended` about the process
  /// that recorded it, and throws `ended` instead if that work cannot end any more. Does not wait.
  /// @throws cuda_error; sharing_error (ended)
  template <class HasEnded>
  void wait(stream_ref stream, sharing_failure ended, HasEnded const& has_ended) const {
    // Queried again after the question: what the process did before its end counts.
    if (!is_reached() && has_ended() && !is_reached()) throw of_ended(ended);
    must_succeed(driver_, driver_.wait_event(stream, event_));
  }
  /// Waits on the host until the recorded work has ended. A device that waits for an event cannot stop when
  /// the process that recorded it is killed, so this queries the event, and asks `has_ended` about that
  /// process.
  /// @throws cuda_error; sharing_error (ended, timed_out)
  template <class HasEnded>
  void synchronize(std::chrono::milliseconds timeout, sharing_failure ended,
                   HasEnded const& has_ended) const {
    auto const deadline = std::chrono::steady_clock::now() + min_of(timeout, longest_wait);
    for (auto pause = shortest_pause;; pause = min_of(2 * pause, longest_pause)) {
      // Asked first: what the process did before its end counts.
      bool const is_gone = pause == longest_pause && has_ended();
      if (is_reached()) return;
      if (is_gone) throw of_ended(ended);
      if (std::chrono::steady_clock::now() >= deadline) {
        throw sharing_error(sharing_failure::timed_out,
                            "the other process's work on the block has not ended: wait longer, or give up");
      }
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  static constexpr std::chrono::microseconds shortest_pause{20};
  static constexpr std::chrono::microseconds longest_pause{5000};

  [[nodiscard]] static sharing_error of_ended(sharing_failure ended) noexcept {
    return {ended, ended == sharing_failure::exporter_ended
                       ? "the process that exported the block has ended before its work on the block"
                       : "the process that imported the block has ended before its work on the block"};
  }
  [[nodiscard]] bool is_reached() const {
    status const s = driver_.query_event(event_);
    if (s.kind == failure::not_ready) return false;
    must_succeed(driver_, s);
    return true;
  }

  D driver_;
  creating_process process_{};
  event_handle event_ = nullptr;
};

inline constexpr char const* not_exportable =
    "export_block (the pool's pages were created without a type that can be exported: use cuda_pages{device, "
    "allocation_handle_type::posix_file_descriptor}; if its handle_type() is none, this device cannot)";
inline constexpr char const* not_side_by_side =
    "export_block (parts of the block do not lie side by side in their handles)";
inline constexpr char const* no_events = "export_block was called without a stream, so there are no events";
inline constexpr char const* several_handles =
    "dma_buf (the block lies in several handles, and a dma-buf spans one: allocate it from a pool with "
    "pooled{.handles = "
    "handles_per_block::one}, or give "
    "each segment of "
    "segments_of() to a dma_buf)";

/// Numbers the exports of this process, from 1.
[[nodiscard]] inline std::uint64_t next_export() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

/// A process that becomes known once. Thread-safe.
class known_process {
 public:
  /// The first call counts.
  void set(process_identity const& id) noexcept {
    state before = state::unknown;
    if (!state_.compare_exchange_strong(before, state::changing)) return;
    id_ = id;
    state_.store(state::known);
  }
  /// False if the process is unknown.
  [[nodiscard]] bool has_ended() const noexcept {
    return state_.load() == state::known && detail::has_ended(id_);
  }

 private:
  enum class state : std::uint8_t { unknown, changing, known };
  process_identity id_{};
  std::atomic<state> state_{state::unknown};
};

}  // namespace detail

/// Memory of one handle, on its way to another process. Owns the descriptor.
class exported_pages {
 public:
  exported_pages() noexcept = default;
  /// Takes ownership of the descriptor, if there is one.
  explicit exported_pages(page_export const& pages) noexcept : pages_(pages), descriptor_(pages.descriptor) {
    descriptor_.close_on_exec();
  }
  [[nodiscard]] page_export const& get() const noexcept { return pages_; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }

 private:
  page_export pages_{};
  unique_descriptor descriptor_{};
};

/// A block of a pool that other processes can import: send_block() sends it over a Unix socket; description()
/// and pages() are for other channels. Any number of processes may import it if it was exported without a
/// stream. With one, export it once for each importer: they would share the event of record_done().
///
/// Pins the block's pages while it lives. It should live, and the block stay allocated, until the importers
/// have finished: an import keeps the physical memory, but not what the pool does with it. Move-only; a
/// moved-from object is empty. Thread-safe for const calls.
///
/// Stream order, if a stream was given: what was written on it before is seen by an importer's stream after
/// wait_ready(). The other way, an importer calls record_done(), says so, and wait_done() here orders a
/// stream after it. A stream that waits for work of a process that was killed may wait forever: on an H200
/// with driver 580 it still waited after 8 s, and CUDA's documentation leaves it open. So wait_ready() and
/// wait_done() throw if the process has ended before its work; they cannot notice that it is killed after the
/// call. Where that may happen, synchronize_ready() and synchronize_done() wait on the host instead, with a
/// limit. The events end with this object: an importer may then use the memory, but neither wait nor record.
template <class Memory>
class [[nodiscard]] exported_block {
  using driver_type = std::remove_cvref_t<decltype(std::declval<Memory const&>().driver())>;
  static_assert(sharing_driver<driver_type>, "tarn: this driver cannot export pages; see driver/driver.hpp");

 public:
  /// See export_block().
  exported_block(Memory memory, void const* p, std::size_t bytes, stream_ref const* ready,
                 std::size_t alignment, source_location where)
      : driver_(memory.driver()), pin_(std::move(memory), p, bytes, where) {
    detail::called_from(where, [&] {
      require_alignment(p, alignment);
      describe(bytes, alignment);
      if (ready == nullptr) return;
      ready_ = std::make_unique<event>(driver_, description_.ready);
      done_ = std::make_unique<event>(driver_, description_.done);
      description_.has_events = true;
      ready_->record(*ready);
    });
  }
  exported_block(exported_block&&) noexcept = default;
  /// Ends this export, and takes over the other. Self-move changes nothing.
  exported_block& operator=(exported_block&& other) noexcept {
    if (this != &other) {
      std::destroy_at(this);
      std::construct_at(this, std::move(other));
    }
    return *this;
  }

  [[nodiscard]] void const* data() const noexcept { return pin_.data(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return pin_.size_bytes(); }
  [[nodiscard]] block_description const& description() const noexcept { return description_; }
  /// Exports the pages of one handle of the description; each call makes a new descriptor. @throws cuda_error
  [[nodiscard]] exported_pages pages(std::size_t index) const {
    page_export exported;
    exported.type = description_.type;
    detail::must_succeed(driver_, driver_.export_pages(handles_[index], exported));
    return exported_pages(exported);
  }

  /// What is on the stream so far comes before what importers do after their next wait_ready(). @throws
  /// cuda_error (unsupported: exported without a stream)
  void record_ready(stream_ref stream, source_location where = source_location::current()) const {
    detail::called_from(where, [&] { event_of(ready_).record(stream); });
  }
  /// Later work on the stream waits for the last record_done() of the importer. If that process is known and
  /// has ended before its work, this throws; if it is killed later and before its work has ended, the stream
  /// may wait forever.
  /// @throws sharing_error (importer_ended), cuda_error as above
  void wait_done(stream_ref stream, source_location where = source_location::current()) const {
    detail::called_from(where, [&] {
      event_of(done_).wait(stream, sharing_failure::importer_ended, [&] { return importer_->has_ended(); });
    });
  }
  /// The caller waits, on the host, for the last record_done() of the importer. Notices within 20 ms that a
  /// known importer has ended.
  /// @throws sharing_error (importer_ended, timed_out), cuda_error as above
  void synchronize_done(std::chrono::milliseconds timeout = default_sharing_timeout,
                        source_location where = source_location::current()) const {
    detail::called_from(where, [&] {
      event_of(done_).synchronize(timeout, sharing_failure::importer_ended,
                                  [&] { return importer_->has_ended(); });
    });
  }
  /// The process that imports the block, so that its end is noticed. send_block() calls this; of several
  /// calls the first counts.
  void set_importer(process_identity const& importer) const noexcept {
    if (importer_ != nullptr) importer_->set(importer);
  }

 private:
  using event = detail::shared_event<driver_type>;

  [[nodiscard]] event const& event_of(std::unique_ptr<event> const& e) const {
    if (e == nullptr) refuse(detail::no_events);
    return *e;
  }
  [[noreturn]] void refuse(char const* why) const {
    throw cuda_error(detail::unsupported_call(why), driver_.device().value, source_location{});
  }
  /// An import is aligned as far as its handles are.
  void require_alignment(void const* p, std::size_t alignment) const {
    std::size_t limit = 0;
    detail::must_succeed(driver_, driver_.page_granularity(limit));
    auto const address = reinterpret_cast<std::uintptr_t>(p);
    if (address % limit != 0) limit = std::size_t{1} << std::countr_zero(address);
    if (!is_alignment(alignment) || alignment > limit) throw bad_alignment(alignment, limit);
  }
  void describe(std::size_t bytes, std::size_t alignment) {
    auto const segments = pin_.segments();
    for (std::size_t i = 0; i < segments.size(); ++i) {
      memory_segment const& s = segments[i];
      bool const begins = i == 0 || s.offset == 0;
      bool const ends = i + 1 == segments.size() || s.offset + s.bytes == s.handle_bytes;
      if (!begins || !ends) refuse(detail::not_side_by_side);
      description_.handles.push_back(s.handle_bytes);
      handles_.push_back(s.handle);
    }
    description_.exporter = detail::this_process_identity();
    description_.number = detail::next_export();
    description_.bytes = bytes;
    description_.offset = segments.front().offset;
    description_.alignment = alignment;
    detail::must_succeed(driver_, driver_.uuid(description_.device));
    // A handle is exported with the type that it was created with, and another is an invalid value.
    for (auto const type : {allocation_handle_type::posix_file_descriptor, allocation_handle_type::fabric}) {
      page_export exported;
      exported.type = type;
      status const s = driver_.export_pages(handles_.front(), exported);
      if (!s.ok() && s.code == invalid_value) continue;
      detail::must_succeed(driver_, s);
      exported_pages const closed(exported);
      description_.type = type;
      return;
    }
    refuse(detail::not_exportable);
  }

  static constexpr int invalid_value = 1;  ///< CUDA_ERROR_INVALID_VALUE

  driver_type driver_;
  page_pin<Memory> pin_;
  block_description description_{};
  std::vector<page_handle> handles_{};
  std::unique_ptr<event> ready_{};
  std::unique_ptr<event> done_{};
  std::unique_ptr<detail::known_process> importer_ = std::make_unique<detail::known_process>();
};

/// Exports a block of a pool over pages, for other processes. The stream's work so far is what importers wait
/// for.
///
/// @param p, bytes    a live block or a part of one
/// @param alignment   of `p`, bytes, a power of two up to the granularity of the pages (2 MiB); the import
/// has the same
/// @throws misuse (foreign_pointer), pool_asleep, cuda_error (unsupported) as segments_of()
/// @throws cuda_error (unsupported)  the pages cannot be exported: the text says what to do
/// @throws bad_alignment             `p` is not so aligned
/// @throws cuda_error, std::bad_alloc  nothing has changed
/// Thread-safe. O(views + segments), one export to find the handle type.
template <class Memory>
[[nodiscard]] exported_block<Memory> export_block(Memory memory, void const* p, std::size_t bytes,
                                                  stream_ref ready, std::size_t alignment = default_alignment,
                                                  source_location where = source_location::current()) {
  return {std::move(memory), p, bytes, &ready, alignment, where};
}
/// The same without events: the caller has synchronised what wrote the block.
template <class Memory>
[[nodiscard]] exported_block<Memory> export_block(Memory memory, void const* p, std::size_t bytes,
                                                  source_location where = source_location::current()) {
  return {std::move(memory), p, bytes, nullptr, default_alignment, where};
}

/// A dma-buf of a block, through which other devices (network cards, other vendors' GPUs) reach its memory.
/// Spans the whole block, which must lie in one handle, or is refused. Pins the block's pages while it lives.
/// Move-only.
template <class Memory>
class [[nodiscard]] dma_buf {
 public:
  /// @param p, bytes  a live block or a part of one
  /// @throws cuda_error (unsupported)  the block lies in several handles, or the system has no dma-bufs for
  /// this device
  /// @throws as segments_of()
  dma_buf(Memory memory, void const* p, std::size_t bytes, source_location where = source_location::current())
      : pin_(std::move(memory), p, bytes, where) {
    detail::called_from(where, [&] { open(bytes); });
  }

  /// Stays owned by this object.
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }
  /// Of the block in the dma-buf, bytes: a dma-buf begins at a page of the host.
  [[nodiscard]] std::size_t offset() const noexcept { return size_bytes() != 0 ? offset_ : 0; }
  /// Of the block.
  [[nodiscard]] std::size_t size_bytes() const noexcept { return pin_.size_bytes(); }

 private:
  void open(std::size_t bytes) {
    auto const segments = pin_.segments();
    auto const driver = pin_.driver();
    if (segments.size() != 1) {
      detail::must_succeed(driver, detail::unsupported_call(detail::several_handles));
    }
    // Within the handle, whose address and size are multiples of larger pages.
    auto const address = reinterpret_cast<std::uintptr_t>(segments.front().address);
    offset_ = address % host_page;
    int made = -1;
    detail::must_succeed(driver, driver.export_dma_buf(reinterpret_cast<void*>(address - offset_),
                                                       align_up(bytes + offset_, host_page), made));
    descriptor_ = unique_descriptor(made);
    descriptor_.close_on_exec();
  }

  static constexpr std::size_t host_page = 64_KiB;  ///< a multiple of each host's page size

  page_pin<Memory> pin_;
  unique_descriptor descriptor_{};
  std::size_t offset_ = 0;
};

}  // namespace TARN_NAMESPACE
