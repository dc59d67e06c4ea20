// SPDX-License-Identifier: Apache-2.0
#pragma once
// import_block(): a block that another process has exported. send_block() and receive_block() pass one over a
// Unix socket.
//
// Over the socket, in turn: the size and the bytes of the description; an answer; then for each group of
// handles a header with their descriptors, and an answer; and when all is mapped an answer with the
// importer's identity. So neither side, nor the kernel between them, holds more than one group of
// descriptors.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/sharing/block_description.hpp"
#include "tarn/sharing/exported_block.hpp"
#include "tarn/sharing/sharing_error.hpp"
#include "tarn/sharing/unix_socket.hpp"

namespace TARN_NAMESPACE {

namespace detail {

/// Mappings of other processes' handles side by side.
template <sharing_driver D>
class imported_mapping {
 public:
  explicit imported_mapping(D driver) noexcept : driver_(std::move(driver)) {}
  imported_mapping& operator=(imported_mapping&&) = delete;
  /// Waits for the device's work, which may use the memory, and for captures in scopes, up to 10 s. If a
  /// capture still forbids to wait for the work, the memory stays mapped for good. A forked child unmaps
  /// nothing.
  ~imported_mapping() {
    if (range_ == nullptr || !process_.is_this()) return;
    if (mapped_ != 0 && may_run(wait_past_captures(driver_))) return;
    std::size_t at = 0;
    for (std::size_t i = 0; i < mapped_; at += sizes_[i], ++i) (void)driver_.unmap_pages(data(at), sizes_[i]);
    (void)driver_.release_range(range_, bytes_);
  }

  /// Reserves addresses for handles of these sizes, so that what is `offset` bytes behind the first is
  /// aligned.
  /// @throws sharing_error (damaged), cuda_error
  void reserve(std::vector<std::size_t> sizes, std::size_t offset, std::size_t alignment) {
    std::size_t granularity = 0;
    must_succeed(driver_, driver_.page_granularity(granularity));
    std::size_t sum = 0;
    for (std::size_t const bytes : sizes) {
      if (bytes % granularity != 0) {
        throw sharing_error(sharing_failure::damaged,
                            "a handle of the block is not a multiple of this device's granularity");
      }
      sum += bytes;
    }
    // The block is aligned as its offset in the first handle is.
    if (alignment > granularity || offset % alignment != 0) {
      throw sharing_error(sharing_failure::damaged, "the block cannot be aligned as its description says");
    }
    sizes_ = std::move(sizes);
    must_succeed(driver_, driver_.reserve_range(sum, granularity, range_));
    bytes_ = sum;
  }
  /// Maps the next handle. It then lives as long as the mapping. @throws cuda_error
  void add(page_export const& pages) {
    page_handle handle{};
    must_succeed(driver_, driver_.import_pages(pages, handle));
    status const s = driver_.map_pages(data(next_), sizes_[mapped_], handle);
    (void)driver_.destroy_pages(handle);
    must_succeed(driver_, s);
    next_ += sizes_[mapped_++];
  }
  [[nodiscard]] void* data(std::size_t offset) const noexcept { return static_cast<char*>(range_) + offset; }

 private:
  D driver_;
  creating_process process_{};
  void* range_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<std::size_t> sizes_{};
  std::size_t mapped_ = 0;  ///< of the sizes
  std::size_t next_ = 0;    ///< offset of the next mapping
};

/// Throws if a description is not of this device, or its exporter is gone.
template <sharing_driver D>
void require_importable(D const& driver, block_description const& d) {
  if (!d.is_consistent())
    throw sharing_error(sharing_failure::damaged, "the description of the block contradicts itself");
  device_uuid own{};
  must_succeed(driver, driver.uuid(own));
  process_identity const here = this_process_identity();
  if (d.type == allocation_handle_type::posix_file_descriptor && d.exporter.machine != here.machine) {
    throw sharing_error(
        sharing_failure::other_machine,
        "the block was exported on another machine, or before the last start of this one: export it again");
  }
  if (own != d.device) {
    throw sharing_error(sharing_failure::other_device,
                        "the block is on another device: pass the memory of that device to the import");
  }
  if (has_ended(d.exporter)) {
    throw sharing_error(sharing_failure::exporter_ended, "the process that exported the block has ended");
  }
}

}  // namespace detail

/// A block of another process, mapped into this one. Owns the mapping: it is unmapped at the end, after the
/// device's work has ended; that wait is as long as the device's work, including streams in wait_ready().
/// While another thread has a capture_scope open, it waits for the scope, too, up to 10 s. If the own thread
/// has one open, the block stays mapped for good; so it does while a stream is captured without a scope, and
/// that capture becomes invalid.
///
/// The physical memory stays while it lives, also if the exporter frees the block or ends; what is in it is
/// the exporter's matter. Move-only; a moved-from object is empty. Thread-safe for const calls.
template <sharing_driver D>
class [[nodiscard]] imported_block {
 public:
  /// See import_block().
  template <class Next>
  imported_block(D driver, block_description const& d, Next&& next, source_location where)
      : driver_(std::move(driver)), offset_(d.offset), bytes_(d.bytes), exporter_(d.exporter) {
    detail::called_from(where, [&] {
      detail::require_importable(driver_, d);
      mapping_ = std::make_unique<mapping>(driver_);
      mapping_->reserve(d.handles, d.offset, d.alignment);
      for (std::size_t i = 0; i < d.handles.size(); ++i) {
        exported_pages const pages = next(i);
        if (pages.get().type != d.type) {
          throw sharing_error(sharing_failure::wrong_pages,
                              "the pages are not of the type that the description says");
        }
        mapping_->add(pages.get());
      }
      if (!d.has_events) return;
      ready_ = std::make_unique<event>(d.ready, driver_);
      done_ = std::make_unique<event>(d.done, driver_);
    });
  }

  [[nodiscard]] void* data() const noexcept {
    return mapping_ != nullptr ? mapping_->data(offset_) : nullptr;
  }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return data() != nullptr ? bytes_ : 0; }
  /// Whether the exporter gave a stream.
  [[nodiscard]] bool has_events() const noexcept { return ready_ != nullptr; }
  /// Later work on the stream waits for what the exporter recorded last. If that process has ended before
  /// that work, this throws; if it is killed later and before its work has ended, the stream may wait
  /// forever.
  /// @throws sharing_error (exporter_ended), cuda_error (unsupported: exported without a stream)
  void wait_ready(stream_ref stream, source_location where = source_location::current()) const {
    detail::called_from(where, [&] {
      event_of(ready_).wait(stream, sharing_failure::exporter_ended, [&] { return exporter_has_ended(); });
    });
  }
  /// The caller waits, on the host, for what the exporter recorded last. Notices within 20 ms that the
  /// exporter has ended.
  /// @throws sharing_error (exporter_ended, timed_out), cuda_error as above
  void synchronize_ready(std::chrono::milliseconds timeout = default_sharing_timeout,
                         source_location where = source_location::current()) const {
    detail::called_from(where, [&] {
      event_of(ready_).synchronize(timeout, sharing_failure::exporter_ended,
                                   [&] { return exporter_has_ended(); });
    });
  }
  /// The exporter's next wait_done() waits for what is on the stream so far. @throws as above
  void record_done(stream_ref stream, source_location where = source_location::current()) const {
    detail::called_from(where, [&] { event_of(done_).record(stream); });
  }

 private:
  using event = detail::shared_event<D>;
  using mapping = detail::imported_mapping<D>;
  [[nodiscard]] bool exporter_has_ended() const noexcept { return detail::has_ended(exporter_); }
  [[nodiscard]] event const& event_of(std::unique_ptr<event> const& e) const {
    if (e == nullptr) detail::must_succeed(driver_, detail::unsupported_call(detail::no_events));
    return *e;
  }

  D driver_;
  std::unique_ptr<mapping> mapping_{};
  std::size_t offset_;
  std::size_t bytes_;
  process_identity exporter_;
  std::unique_ptr<event> ready_{};
  std::unique_ptr<event> done_{};
};

/// Imports a block that another process has exported, on the device of `memory` (a source or any memory over
/// it).
///
/// @param next  next(i) returns the exported_pages of handle i; called once for each, in order
/// @throws sharing_error  damaged, other_machine, other_device, exporter_ended, wrong_pages: nothing was
/// mapped
/// @throws cuda_error, std::bad_alloc, and what `next` throws: likewise
/// A process can import its own block only if that was exported without a stream: CUDA refuses events of the
/// same process (201). A handle of a driver that has the right size but is not the block's cannot be
/// detected: pass only what the exporter sent. Reserves as many bytes of addresses as the handles have.
/// O(handles): an import and a map for each.
template <class Memory, class Next>
[[nodiscard]] auto import_block(Memory const& memory, block_description const& description, Next&& next,
                                source_location where = source_location::current()) {
  using driver_type = std::remove_cvref_t<decltype(memory.driver())>;
  return imported_block<driver_type>(memory.driver(), description, std::forward<Next>(next), where);
}

namespace detail {

/// Precedes a group of descriptors.
struct group_header {
  std::uint64_t number = 0;  ///< of the export
  std::uint64_t first = 0;   ///< index of the first handle
  std::uint64_t count = 0;
};
/// The importer's answer after each step.
enum class import_answer : std::uint8_t { go_on = 0x67, refused = 0x72 };

template <class T>
[[nodiscard]] std::span<std::byte const> bytes_to_send(T const& value) noexcept {
  return std::as_bytes(std::span(&value, 1));
}

inline void await_answer(unix_socket const& peer) {
  std::byte answer{};
  peer.receive(std::span(&answer, 1));
  if (answer != static_cast<std::byte>(import_answer::go_on)) {
    throw sharing_error(sharing_failure::refused,
                        "the other process could not import the block; its error says why");
  }
}
inline void give_answer(unix_socket const& peer, import_answer answer) {
  auto const byte = static_cast<std::byte>(answer);
  peer.send(std::span(&byte, 1));
}

/// The importing process sends its identity after its last answer.
inline void send_identity(unix_socket const& peer, process_identity const& id) {
  each_part(id, [&](auto const& part) { peer.send(bytes_to_send(part)); });
}
[[nodiscard]] inline process_identity receive_identity(unix_socket const& peer) {
  process_identity id;
  each_part(id, [&](auto& part) { peer.receive(std::as_writable_bytes(std::span(&part, 1))); });
  return id;
}

inline void send_description(unix_socket const& peer, block_description const& d) {
  auto const bytes = d.to_bytes();
  peer.send(bytes_to_send(static_cast<std::uint64_t>(bytes.size())));
  peer.send(bytes);
  await_answer(peer);
}
/// Sends the handles from `first` on that fit one message; returns their number.
template <class Memory>
std::size_t send_group(unix_socket const& peer, exported_block<Memory> const& block, std::size_t first) {
  block_description const& d = block.description();
  group_header const header{d.number, first, min_of(d.handles.size() - first, unix_socket::most_descriptors)};
  std::vector<exported_pages> group;
  std::vector<int> descriptors;
  std::vector<std::byte> tokens;
  for (std::size_t i = 0; i < header.count; ++i) {
    group.push_back(block.pages(first + i));
    if (d.type == allocation_handle_type::posix_file_descriptor) {
      descriptors.push_back(group.back().descriptor());
    } else {
      auto const token = std::as_bytes(std::span(group.back().get().fabric));
      tokens.insert(tokens.end(), token.begin(), token.end());
    }
  }
  peer.send(bytes_to_send(header), descriptors);
  peer.send(tokens);
  await_answer(peer);
  return header.count;
}

/// The handles of one message at a time.
class group_receiver {
 public:
  group_receiver(unix_socket const& peer, block_description const& d) noexcept : peer_(peer), of_(d) {}

  /// The pages of handle `i`, each once and in order. @throws sharing_error
  [[nodiscard]] exported_pages take(std::size_t i) {
    if (i == end_) {
      if (i != 0) give_answer(peer_, import_answer::go_on);
      receive(i);
    }
    return std::move(group_[i - (end_ - group_.size())]);
  }

 private:
  void receive(std::size_t first) {
    group_header header;
    std::vector<unique_descriptor> descriptors;
    peer_.receive(std::as_writable_bytes(std::span(&header, 1)), &descriptors);
    bool const by_fabric = of_.type == allocation_handle_type::fabric;
    bool const fits = header.number == of_.number && header.first == first && header.count != 0 &&
                      header.count <= min_of(of_.handles.size() - first, unix_socket::most_descriptors) &&
                      descriptors.size() == (by_fabric ? 0 : header.count);
    if (!fits)
      throw sharing_error(sharing_failure::wrong_pages, "the descriptors are not those of the block");
    group_.clear();
    for (std::size_t i = 0; i < header.count; ++i) {
      page_export pages;
      pages.type = of_.type;
      if (by_fabric) peer_.receive(std::as_writable_bytes(std::span(pages.fabric)));
      if (!by_fabric) pages.descriptor = descriptors[i].release();
      exported_pages taken(pages);  // which closes the descriptor if the group cannot grow
      group_.push_back(std::move(taken));
    }
    end_ = first + group_.size();
  }

  unix_socket const& peer_;
  block_description const& of_;
  std::vector<exported_pages> group_{};
  std::size_t end_ = 0;  ///< index of the handle behind the group
};

inline constexpr std::uint64_t longest_description = 64_MiB;

}  // namespace detail

/// Sends an exported block to a process that calls receive_block(), and returns when it has mapped the block.
/// @param socket   a connected Unix socket of type SOCK_STREAM (socketpair(), or connect() and accept());
/// used in both directions, stays
///                 the caller's. After an error the connection is shut down, so that the other process does not wait
/// @param timeout  for each step of the other process
/// @throws sharing_error (peer_closed, timed_out, refused, system), cuda_error, std::bad_alloc
/// Holds at most 64 descriptors at once. One call at a time for each socket.
template <class Memory>
void send_block(int socket, exported_block<Memory> const& block,
                std::chrono::milliseconds timeout = default_sharing_timeout) {
  detail::unix_socket const peer(socket, timeout);
  try {
    detail::send_description(peer, block.description());
    for (std::size_t first = 0; first < block.description().handles.size();)
      first += detail::send_group(peer, block, first);
    detail::await_answer(peer);
    block.set_importer(detail::receive_identity(peer));
  } catch (...) {
    peer.shut_down();
    throw;
  }
}

/// Receives a block from a process that calls send_block(), and imports it on the device of `memory`.
/// @param socket, timeout  as send_block()
/// @throws sharing_error, cuda_error, std::bad_alloc; nothing was mapped, and send_block() of the other
/// process throws, too Holds at most 64 descriptors at once. One call at a time for each socket.
template <class Memory>
[[nodiscard]] auto receive_block(int socket, Memory const& memory,
                                 std::chrono::milliseconds timeout = default_sharing_timeout,
                                 source_location where = source_location::current()) {
  detail::unix_socket const peer(socket, timeout);
  try {
    std::uint64_t size = 0;
    peer.receive(std::as_writable_bytes(std::span(&size, 1)));
    if (size > detail::longest_description) {
      throw sharing_error(sharing_failure::damaged, "these bytes are not a description of a block");
    }
    std::vector<std::byte> bytes(size);
    peer.receive(bytes);
    auto const description = block_description::from_bytes(bytes);
    detail::require_importable(memory.driver(), description);
    detail::give_answer(peer, detail::import_answer::go_on);

    detail::group_receiver groups(peer, description);
    auto block = import_block(
        memory, description, [&](std::size_t i) { return groups.take(i); }, where);
    detail::give_answer(peer, detail::import_answer::go_on);  // for the last group
    detail::give_answer(peer, detail::import_answer::go_on);  // all is mapped
    detail::send_identity(peer, detail::this_process_identity());
    return block;
  } catch (...) {
    try {
      detail::give_answer(peer, detail::import_answer::refused);
    } catch (sharing_error const&) {  // the other process sees that the connection is shut down
    }
    peer.shut_down();
    throw;
  }
}

}  // namespace TARN_NAMESPACE
