// SPDX-License-Identifier: Apache-2.0
#pragma once
// The simulated GPU's memory: capacity to the byte, blocks, and pages under the rules of CUDA's virtual
// memory management. Independent of time and streams.
//
// Over 400 lines: one function for each of CUDA's memory calls, over one map of addresses.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tarn/core/bytes.hpp"
#include "tarn/core/host_page.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/sim/sim_backing.hpp"
#include "tarn/driver/sim/sim_memory_tool.hpp"
#include "tarn/driver/sim/sim_options.hpp"
#include "tarn/driver/sim/sim_status.hpp"

namespace TARN_NAMESPACE {

namespace detail {

/// The kind of a block; each kind has its own free call.
enum class sim_kind : std::uint8_t {
  device,
  pinned,
  managed,
  registered,
  async,  ///< as the next two, of cudaMallocAsync's pools
  async_pinned,
  async_managed
};

}  // namespace detail

/// What calls have said of a page of managed memory. `nowhere` as CUDA's cudaInvalidDeviceId.
struct sim_managed_page {
  static constexpr device_id nowhere{-2};
  device_id prefetched_to = nowhere;  ///< by the last prefetch that was enqueued, complete or not
  device_id preferred_location = nowhere;
  bool read_mostly = false;
  std::vector<device_id> accessed_by{};
};

/// Memory use of a simulated device, bytes and counts.
struct sim_usage {
  std::size_t capacity = 0;     ///< of the device
  std::size_t taken = 0;        ///< by others: the context, other processes
  std::size_t used = 0;         ///< allocated through this machine: pages and device blocks
  std::size_t peak_used = 0;    ///< high-water mark of `used`
  std::size_t page_bytes = 0;   ///< part of `used` in page handles
  std::size_t block_bytes = 0;  ///< part of `used` in blocks, cached async blocks included
  std::size_t handles = 0;      ///< page handles not destroyed, or destroyed but still mapped
  std::size_t blocks = 0;       ///< allocated device and async blocks
  [[nodiscard]] std::size_t free_bytes() const noexcept {
    return used + taken >= capacity ? 0 : capacity - taken - used;
  }
};

namespace detail {

/// All memory of a simulated machine. Callers hold the machine's lock.
class sim_memory {
 public:
  /// Part of one physical allocation: `key` numbers its bytes and is never reused.
  struct piece {
    std::uint64_t key;
    std::size_t bytes;
    std::uintptr_t mapping = 0;  ///< start of the mapping it was reached through; 0: none
  };

  explicit sim_memory(sim_options const& options)
      : options_(options),
        devices_(static_cast<std::size_t>(options.devices)),
        device_space_(options.backing),
        host_space_(sim_backing::host_backed),
        pages_(options.backing) {
    for (auto& d : devices_) {
      d.capacity = options.capacity;
      d.taken = options.taken;
    }
  }

  [[nodiscard]] sim_usage& usage(int device) noexcept { return devices_[static_cast<std::size_t>(device)]; }
  [[nodiscard]] std::size_t ranges() const noexcept { return ranges_.size(); }
  [[nodiscard]] std::size_t maps() const noexcept { return maps_.size(); }
  [[nodiscard]] std::size_t host_blocks() const noexcept { return host_blocks_; }
  [[nodiscard]] std::size_t granularity() const noexcept { return options_.granularity; }

  /// Attaches the memory tool. tool() is null without one.
  void attach_tool() {
    tool_ = std::make_unique<sim_memory_tool>(options_.backing == sim_backing::host_backed
                                                  ? sim_memory_tool::bytes_are::of_the_host
                                                  : sim_memory_tool::bytes_are::invented);
  }
  [[nodiscard]] sim_memory_tool* tool() const noexcept { return tool_.get(); }

  /// Records freed physical memory from now on, for drain_gone().
  void watch_gone() noexcept { watched_ = true; }
  template <class Visit>
  void drain_gone(Visit const& visit) {
    for (piece const& p : gone_) visit(p);
    gone_.clear();
  }

  sim_code reserve(std::size_t bytes, std::size_t alignment, void*& p) {
    if (bytes == 0 || bytes % options_.granularity != 0) return sim_code::invalid_value;
    if (alignment != 0 && !is_alignment(alignment)) return sim_code::invalid_value;
    if (alignment < options_.granularity) alignment = options_.granularity;
    std::uintptr_t begin = 0;
    if (!device_space_.take(bytes, alignment, begin)) return sim_code::out_of_memory;
    ranges_.emplace(begin, range{bytes, 0});
    p = reinterpret_cast<void*>(begin);
    return sim_code::ok;
  }

  sim_code release(void* p, std::size_t bytes) {
    auto const it = ranges_.find(address(p));
    if (it == ranges_.end() || it->second.bytes != bytes || it->second.maps != 0) {
      return sim_code::invalid_value;
    }
    device_space_.give(it->first, bytes, options_.granularity);
    ranges_.erase(it);
    return sim_code::ok;
  }

  sim_code create(int device, std::size_t bytes, allocation_handle_type type, page_handle& handle) {
    if (bytes == 0 || bytes % options_.granularity != 0) return sim_code::invalid_value;
    if (bytes > usage(device).free_bytes()) return sim_code::out_of_memory;
    page_piece made{bytes, device, 0, next_key_, 0, false, type, {}, false};
    bool const taken =
        type == allocation_handle_type::none ? pages_.take(bytes, made.offset) : made.file.create(bytes);
    if (!taken) return sim_code::out_of_memory;
    physical_.emplace(next_handle_, std::move(made));
    handle = next_handle_++;
    next_key_ += bytes;
    charge_pages(device, bytes);
    ++usage(device).handles;
    return sim_code::ok;
  }
  /// As cuMemExportToShareableHandle: with the type of the creation only.
  sim_code export_pages(page_handle handle, page_export& exported) {
    auto const it = physical_.find(handle);
    if (it == physical_.end() || it->second.destroyed) return sim_code::invalid_value;
    if (exported.type == allocation_handle_type::none || it->second.type != exported.type)
      return sim_code::invalid_value;
    if (exported.type == allocation_handle_type::fabric) {
      fabric_token const token{this, handle};
      std::memcpy(exported.fabric.data(), &token, sizeof token);
      return sim_code::ok;
    }
    int const descriptor = it->second.file.duplicate();
    if (descriptor < 0) return sim_code::operating_system;
    exported.descriptor = descriptor;
    return sim_code::ok;
  }
  /// As cuMemImportFromShareableHandle. Memory of this machine keeps its identity, and its charge passes to
  /// the import if the handle that it came from is destroyed first; memory of another machine is not charged.
  sim_code import_pages(int device, page_export const& exported, page_handle& handle) {
    page_piece made{0, device, 0, 0, 0, false, exported.type, {}, true};
    if (exported.type == allocation_handle_type::fabric) {
      fabric_token token{};
      std::memcpy(&token, exported.fabric.data(), sizeof token);
      auto const it = token.of == this ? physical_.find(token.handle) : physical_.end();
      if (it == physical_.end()) return sim_code::invalid_value;
      std::size_t bytes = 0;
      if (!made.file.open(it->second.file.descriptor(), bytes)) return sim_code::operating_system;
      made.bytes = bytes;
    } else if (exported.type != allocation_handle_type::posix_file_descriptor ||
               !made.file.open(exported.descriptor, made.bytes)) {
      return sim_code::invalid_value;
    }
    if (made.bytes == 0 || made.bytes % options_.granularity != 0) return sim_code::invalid_value;
    auto const same = find_same(made, 0);
    if (same != physical_.end() && same->second.device != device) return sim_code::invalid_device;
    made.key = same != physical_.end() ? same->second.key : next_key_;
    if (same == physical_.end()) next_key_ += made.bytes;
    physical_.emplace(next_handle_, std::move(made));
    handle = next_handle_++;
    ++usage(device).handles;
    return sim_code::ok;
  }

  /// As cuMemRelease: memory that is still mapped is freed at its last unmap.
  sim_code destroy(page_handle handle) {
    auto const it = physical_.find(handle);
    if (it == physical_.end() || it->second.destroyed) return sim_code::invalid_value;
    it->second.destroyed = true;
    drop_if_unused(it);
    return sim_code::ok;
  }

  sim_code map(void* p, std::size_t bytes, page_handle handle) {
    std::uintptr_t const begin = address(p);
    auto const behind = physical_.find(handle);
    if (behind == physical_.end() || behind->second.destroyed) return sim_code::invalid_value;
    if (bytes != behind->second.bytes || begin % options_.granularity != 0) return sim_code::invalid_value;
    auto const reserved = containing(ranges_, begin);
    if (reserved == ranges_.end() || bytes > reserved->second.bytes - (begin - reserved->first)) {
      return sim_code::invalid_value;
    }
    auto const next = maps_.lower_bound(begin);
    if (next != maps_.end() && next->first < begin + bytes) return sim_code::invalid_value;
    if (next != maps_.begin()) {
      auto const before = std::prev(next);
      if (before->first + before->second.bytes > begin) return sim_code::invalid_value;
    }
    auto const it = maps_.emplace_hint(next, begin, mapping{bytes, handle, {}});
    page_piece const& shown = behind->second;
    int const file = shown.file.exists() ? shown.file.descriptor() : pages_.descriptor();
    if (!device_space_.show(begin, bytes, file, shown.offset)) {
      maps_.erase(it);
      return sim_code::out_of_memory;
    }
    ++behind->second.maps;
    ++reserved->second.maps;
    return sim_code::ok;
  }

  sim_code unmap(void* p, std::size_t bytes) {
    auto const it = maps_.find(address(p));
    if (it == maps_.end() || it->second.bytes != bytes) return sim_code::invalid_value;
    device_space_.decommit(it->first, bytes);
    --containing(ranges_, it->first)->second.maps;
    auto const behind = physical_.find(it->second.handle);
    --behind->second.maps;
    maps_.erase(it);
    drop_if_unused(behind);
    return sim_code::ok;
  }

  /// Allocates a block. Device blocks of at least a page start at a page boundary, as on a GPU; smaller ones
  /// are aligned to 256 bytes and never to more, which is all that cudaMalloc guarantees.
  sim_code allocate(int device, std::size_t bytes, sim_kind kind, void*& p) {
    p = nullptr;
    if (bytes == 0) return sim_code::ok;
    if (bytes > max_request_bytes) return sim_code::out_of_memory;
    bool const host = on_host(kind);
    std::size_t const charged = align_up(bytes, block_granularity);
    std::size_t const room = host && !is_integrated() ? host_room() : usage(device).free_bytes();
    if (charged > room) return sim_code::out_of_memory;
    bool const whole_pages = bytes >= options_.granularity;
    std::size_t const shift = host || whole_pages ? 0 : default_alignment;
    std::size_t const span = align_up(bytes + shift, host_page_bytes());
    std::size_t const alignment = whole_pages && !host ? options_.granularity : host_page_bytes();
    auto& space = host ? host_space_ : device_space_;
    std::uintptr_t begin = 0;
    if (!space.take(span, alignment, begin)) return sim_code::out_of_memory;
    if (!space.commit(begin, span)) {
      space.give(begin, span, alignment);
      return sim_code::out_of_memory;
    }
    blocks_.emplace(begin + shift, block{bytes, charged, span, shift, alignment, next_key_, device, kind});
    next_key_ += charged;
    if (host) {
      host_used_ += charged;
      ++host_blocks_;
      if (is_integrated()) charge(usage(device), charged);
    } else {
      auto& d = usage(device);
      charge(d, charged);
      d.block_bytes += charged;
      ++d.blocks;
    }
    p = reinterpret_cast<void*>(begin + shift);
    return sim_code::ok;
  }

  sim_code release(void* p, sim_kind kind) {
    if (p == nullptr) return sim_code::ok;
    auto const it = blocks_.find(address(p));
    if (it == blocks_.end() || it->second.kind != kind) return sim_code::invalid_value;
    block const gone = std::move(it->second);  // a copy of its map could fail
    auto& space = on_host(kind) ? host_space_ : device_space_;
    std::uintptr_t const begin = it->first - gone.shift;
    blocks_.erase(it);
    space.decommit(begin, gone.span);
    space.give(begin, gone.span, gone.alignment);
    note_gone(gone.key, gone.charged);
    if (on_host(kind)) {
      host_used_ -= gone.charged;
      --host_blocks_;
      if (is_integrated()) usage(gone.device).used -= gone.charged;
    } else {
      auto& d = usage(gone.device);
      d.used -= gone.charged;
      d.block_bytes -= gone.charged;
      --d.blocks;
    }
    return sim_code::ok;
  }

  /// Registers existing host memory as pinned: whole pages that overlap no block.
  sim_code adopt(int device, void* p, std::size_t bytes) {
    std::uintptr_t const begin = address(p);
    if (bytes == 0 || begin == 0 || begin % host_page_bytes() != 0) return sim_code::invalid_value;
    if (bytes > max_request_bytes || bytes > host_room()) return sim_code::out_of_memory;
    auto const next = blocks_.lower_bound(begin);
    bool const overlaps =
        (next != blocks_.end() && next->first < begin + bytes) || containing(blocks_, begin) != blocks_.end();
    if (overlaps) return sim_code::already_registered;
    blocks_.emplace(
        begin, block{bytes, bytes, bytes, 0, host_page_bytes(), next_key_, device, sim_kind::registered});
    next_key_ += bytes;
    host_used_ += bytes;
    ++host_blocks_;
    return sim_code::ok;
  }
  sim_code let_go(void* p) {
    auto const it = blocks_.find(address(p));
    if (it == blocks_.end() || it->second.kind != sim_kind::registered) return sim_code::not_registered;
    note_gone(it->second.key, it->second.charged);
    host_used_ -= it->second.charged;
    --host_blocks_;
    blocks_.erase(it);
    return sim_code::ok;
  }

  /// Returns the requested bytes of the block that starts at `p`, if it is of that kind.
  [[nodiscard]] bool find_block(void const* p, sim_kind kind, std::size_t& bytes) const noexcept {
    auto const it = blocks_.find(address(p));
    if (it == blocks_.end() || it->second.kind != kind) return false;
    bytes = it->second.bytes;
    return true;
  }

  /// Returns true if the whole range lies in one block of that kind.
  [[nodiscard]] bool in_block(void const* p, std::size_t bytes, sim_kind kind) const noexcept {
    auto const it = containing(blocks_, address(p));
    return it != blocks_.end() && it->second.kind == kind &&
           bytes <= it->second.bytes - (address(p) - it->first);
  }

  /// Returns true if the first byte belongs to the machine: mapped, reserved or in a block.
  [[nodiscard]] bool knows(void const* p) const noexcept {
    return containing(blocks_, address(p)) != blocks_.end() ||
           containing(ranges_, address(p)) != ranges_.end();
  }
  /// Returns true if device work may access the whole range.
  [[nodiscard]] bool accessible(void const* p, std::size_t bytes) const {
    return each_piece(p, bytes, [](piece) {});
  }
  /// Returns true if real memory backs the address: false only for device memory that is just addresses. Host
  /// memory unknown to the machine is real.
  [[nodiscard]] bool is_real(void const* p) const noexcept {
    if (options_.backing == sim_backing::host_backed || !knows(p)) return true;
    auto const it = containing(blocks_, address(p));
    return it != blocks_.end() && on_host(it->second.kind);
  }

  /// Calls change(page, bytes) for the pages of managed memory behind a range, once for those that are alike.
  template <class Change>
  sim_code change_managed(void const* p, std::size_t bytes, Change const& change) {
    if (!in_block(p, bytes, sim_kind::managed) && !in_block(p, bytes, sim_kind::async_managed))
      return sim_code::invalid_value;
    auto const it = containing(blocks_, address(p));
    auto& pages = it->second.pages;
    std::size_t const begin = align_down(address(p) - it->first, host_page_bytes());
    std::size_t const end = align_up(address(p) - it->first + bytes, host_page_bytes());
    for (std::size_t const cut : {begin, end}) pages.emplace(cut, std::prev(pages.upper_bound(cut))->second);
    for (auto at = pages.find(begin); at->first != end; ++at)
      change(at->second, std::next(at)->first - at->first);
    return sim_code::ok;
  }
  /// Returns what holds of a page of managed memory, or of none.
  [[nodiscard]] sim_managed_page managed_page(void const* p) const {
    auto const it = containing(blocks_, address(p));
    if (it == blocks_.end()) return {};
    return std::prev(it->second.pages.upper_bound(address(p) - it->first))->second;
  }
  /// Returns true for pinned, registered and managed memory.
  [[nodiscard]] bool is_on_host(void const* p) const noexcept {
    auto const it = containing(blocks_, address(p));
    return it != blocks_.end() && on_host(it->second.kind);
  }
  /// As cuMemSetAccess for another device: requires whole mappings without a gap.
  sim_code share(void* p, std::size_t bytes, int device) {
    std::uintptr_t const begin = address(p);
    auto const first = maps_.find(begin);
    auto it = first;
    std::uintptr_t at = begin;
    for (; at - begin < bytes && it != maps_.end() && it->first == at; ++it) at += it->second.bytes;
    if (bytes == 0 || at - begin != bytes) return sim_code::invalid_value;
    for (auto shared = first; shared != it; ++shared) shared->second.others.push_back(device);
    return sim_code::ok;
  }

  /// Returns the device that owns the memory; -1 for host memory and for addresses without memory.
  [[nodiscard]] int device_of(void const* p) const noexcept {
    if (auto const it = containing(blocks_, address(p)); it != blocks_.end()) {
      return on_host(it->second.kind) ? -1 : it->second.device;
    }
    auto const it = containing(maps_, address(p));
    return it == maps_.end() ? -1 : physical_.find(it->second.handle)->second.device;
  }
  /// Returns true if work of `device` may access the memory at `p`: pages are accessible to their own device
  /// and those they were shared with.
  [[nodiscard]] bool is_reachable(void const* p, int device) const noexcept {
    auto const it = containing(maps_, address(p));
    if (it == maps_.end() || physical_.find(it->second.handle)->second.device == device) return true;
    for (int const other : it->second.others) {
      if (other == device) return true;
    }
    return false;
  }
  /// Returns the bytes of a page handle; 0 if it does not exist.
  [[nodiscard]] std::size_t page_bytes_of(page_handle handle) const noexcept {
    auto const it = physical_.find(handle);
    return it == physical_.end() ? 0 : it->second.bytes;
  }

  /// Visits the physical pieces behind a range in order. Skips what has no backing, and then returns false.
  template <class Visit>
  bool each_piece(void const* p, std::size_t bytes, Visit const& visit) const {
    std::uintptr_t at = address(p);
    if (bytes > max_request_bytes) return false;
    std::uintptr_t const end = at + bytes;
    if (auto const it = containing(blocks_, at); it != blocks_.end()) {
      std::size_t const offset = at - it->first;
      if (bytes > it->second.bytes - offset) return false;
      visit(piece{it->second.key + offset, bytes});
      return true;
    }
    bool all = true;
    auto it = maps_.upper_bound(at);
    if (it != maps_.begin()) --it;
    for (; at < end && it != maps_.end() && it->first < end; ++it) {
      std::uintptr_t const map_end = it->first + it->second.bytes;
      if (map_end <= at) continue;
      if (it->first > at) {
        all = false;
        at = it->first;
      }
      std::size_t const part = (map_end < end ? map_end : end) - at;
      visit(piece{physical_.find(it->second.handle)->second.key + (at - it->first), part, it->first});
      at += part;
    }
    return all && at == end;
  }

 private:
  /// Blocks are charged in multiples of this, bytes; the smallest allocation unit of cudaMalloc.
  static constexpr std::size_t block_granularity = 512;

  struct range {
    std::size_t bytes;
    std::size_t maps;
  };
  struct mapping {
    std::size_t bytes;
    page_handle handle;
    std::vector<int> others{};  ///< other devices with access
  };
  struct page_piece {
    std::size_t bytes;
    int device;
    std::uintptr_t offset;
    std::uint64_t key;
    std::size_t maps;
    bool destroyed;
    allocation_handle_type type;
    sim_shared_file
        file;       ///< exists if the pages can be exported; otherwise they are in the file of all pages
    bool imported;  ///< the memory is charged to another handle, or to another process
  };
  struct block {
    std::size_t bytes;
    std::size_t charged;
    std::size_t span;
    std::size_t shift;
    std::size_t alignment;
    std::uint64_t key;
    int device;
    sim_kind kind;
    /// Of managed memory, by the offset of the first of those that are alike.
    std::map<std::size_t, sim_managed_page> pages{{0, {}}};
  };
  using block_map = std::map<std::uintptr_t, block>;

  static std::uintptr_t address(void const* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }
  static bool on_host(sim_kind kind) noexcept { return kind != sim_kind::device && kind != sim_kind::async; }
  [[nodiscard]] bool is_integrated() const noexcept {
    return options_.placement == sim_placement::integrated;
  }
  [[nodiscard]] std::size_t host_room() const noexcept {
    return host_used_ >= options_.host_capacity ? 0 : options_.host_capacity - host_used_;
  }
  static void charge(sim_usage& d, std::size_t bytes) noexcept {
    d.used += bytes;
    if (d.used > d.peak_used) d.peak_used = d.used;
  }
  /// The entry whose bytes contain an address, or the end.
  template <class Map>
  [[nodiscard]] static auto containing(Map& map, std::uintptr_t at) noexcept -> decltype(map.end()) {
    auto it = map.upper_bound(at);
    if (it == map.begin()) return map.end();
    --it;
    return at - it->first < it->second.bytes ? it : map.end();
  }
  void note_gone(std::uint64_t key, std::size_t bytes) {
    if (watched_) gone_.push_back({key, bytes});
  }
  void drop_if_unused(std::unordered_map<page_handle, page_piece>::iterator it) {
    if (!it->second.destroyed || it->second.maps != 0) return;
    page_piece const& gone = it->second;
    --usage(gone.device).handles;
    auto const same = find_same(gone, it->first);
    if (!gone.imported && same != physical_.end()) {
      same->second.imported = false;
    } else if (!gone.imported) {
      usage(gone.device).used -= gone.bytes;
      usage(gone.device).page_bytes -= gone.bytes;
    }
    if (!gone.file.exists()) pages_.give(gone.offset, gone.bytes);
    if (same == physical_.end()) note_gone(gone.key, gone.bytes);
    physical_.erase(it);
  }
  void charge_pages(int device, std::size_t bytes) noexcept {
    auto& d = usage(device);
    charge(d, bytes);
    d.page_bytes += bytes;
  }
  /// Another handle of the same memory.
  std::unordered_map<page_handle, page_piece>::iterator find_same(page_piece const& of,
                                                                  page_handle but) noexcept {
    std::uint64_t const identity = of.file.identity();
    if (identity == 0) return physical_.end();
    for (auto it = physical_.begin(); it != physical_.end(); ++it) {
      if (it->first != but && it->second.file.identity() == identity) return it;
    }
    return physical_.end();
  }

  struct fabric_token {
    sim_memory const* of;
    page_handle handle;
  };

  sim_options const& options_;
  std::vector<sim_usage> devices_;
  std::size_t host_used_ = 0;
  std::size_t host_blocks_ = 0;
  sim_addresses device_space_;
  sim_addresses host_space_;
  sim_file pages_;
  std::map<std::uintptr_t, range> ranges_;
  std::map<std::uintptr_t, mapping> maps_;
  std::unordered_map<page_handle, page_piece> physical_;
  block_map blocks_;
  page_handle next_handle_ = 1;
  std::uint64_t next_key_ = 1;
  bool watched_ = false;
  std::vector<piece> gone_;
  std::unique_ptr<sim_memory_tool> tool_;  ///< must be destroyed before the address spaces
};

}  // namespace detail

}  // namespace TARN_NAMESPACE
