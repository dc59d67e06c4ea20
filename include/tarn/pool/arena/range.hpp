// SPDX-License-Identifier: Apache-2.0
#pragma once
// A range: a piece of address space that is live, free, a view or a hole. Ranges tile the reserved address
// space; their nodes are in host memory, because the host cannot write links into device memory.

#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/promised_room.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/pool/arena/size_class.hpp"

namespace TARN_NAMESPACE::detail {

/// Index of a node; 0 is none.
using range_ref = std::uint32_t;
/// Index of a stream's domain; 0 is the neutral domain, whose memory nothing on the device uses any more.
using domain_ref = std::uint32_t;
inline constexpr domain_ref neutral = 0;
/// Number of a part of the heap (stream_order.hpp).
using part_ref = std::uint16_t;
inline constexpr part_ref common = 0;  ///< the part of all memory that is no graph memory's

enum class range_state : std::uint8_t {
  unused,  ///< a spare node
  live,    ///< handed out, or divided into a run
  free,    ///< mapped and reusable by its domain
  view,    ///< addresses where handles are mapped a second time
  hole     ///< address space with nothing mapped
};

/// Blocks above class_limit are kept apart from smaller ones, so that small ones do not pin large handles.
enum class zone : std::uint8_t { smaller, larger };
inline constexpr zone all_zones[] = {zone::larger, zone::smaller};
inline constexpr std::size_t zone_count = 2;

[[nodiscard]] constexpr zone zone_of(std::size_t block_bytes) noexcept {
  return block_bytes <= class_limit ? zone::smaller : zone::larger;
}

/// One node, 64 bytes.
struct range {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  std::uint64_t epoch = 0;  ///< when it was freed, in its domain's count
  range_ref previous = 0;   ///< neighbour by address, 0 at the end of the segment
  range_ref next = 0;
  range_ref bin_previous = 0;  ///< neighbours in the index's bin
  range_ref bin_next = 0;
  range_ref chain = 0;  ///< next piece of a live block in pieces
  /// In the first piece of a live block: the view it is mapped in. In an indexed free range: the bytes that
  /// the arena counts as split, in units of range_grain. Otherwise 0.
  std::uint32_t view_or_split = 0;
  std::uint32_t segment = 0;  ///< index of the upstream block, for pools over blocks
  domain_ref domain = neutral;
  /// of a live range: the last bits of its domain's generation when it was taken
  std::uint16_t generation = 0;
  range_state state = range_state::unused;
  zone where = zone::smaller;
  bool at_end = false;     ///< in an index: a hole follows, so it may be extended, see range_index
  part_ref part = common;  ///< whose handle, or segment, it lies in

  [[nodiscard]] std::uintptr_t end() const noexcept { return address + bytes; }
};
static_assert(sizeof(range) == 64, "the documentation states 64 bytes of host memory per range");

/// All nodes. Grows only if a caller made room beforehand, so that releasing never allocates.
class range_table {
 public:
  range_table() { nodes_.resize(1); }

  /// Ensures that `count` nodes can be taken without allocating. @throws std::bad_alloc, nothing has changed
  void make_room(std::size_t count) {
    if (spare_count_ < count) {
      std::size_t const first = nodes_.size();
      std::size_t const added = count > first ? count : first;
      nodes_.resize(first + added);
      for (std::size_t i = nodes_.size(); i-- > first;) put_back(static_cast<range_ref>(i));
    }
    room_.promise(count);
  }
  /// A promise of make_room() ends with the hold of a lock.
  void end_room_with(std::uint64_t const& hold) noexcept { room_.ends_with(hold); }

  /// Takes a new node. Requires make_room().
  [[nodiscard]] range_ref take() noexcept {
    room_.take();
    range_ref const r = first_spare_;
    first_spare_ = nodes_[r].next;
    --spare_count_;
    nodes_[r] = range{};
    return r;
  }

  void put_back(range_ref r) noexcept {
    nodes_[r] = range{};
    nodes_[r].next = first_spare_;
    first_spare_ = r;
    ++spare_count_;
  }

  [[nodiscard]] range& operator[](range_ref r) noexcept { return TARN_VISIT(), nodes_[r]; }
  [[nodiscard]] range const& operator[](range_ref r) const noexcept { return TARN_VISIT(), nodes_[r]; }
  [[nodiscard]] std::size_t host_bytes() const noexcept { return nodes_.capacity() * sizeof(range); }
  /// One more than the largest index; spare nodes are `unused`.
  [[nodiscard]] std::size_t size() const noexcept { return nodes_.size(); }
  [[nodiscard]] std::size_t in_use() const noexcept { return nodes_.size() - 1 - spare_count_; }

 private:
  sequence<range> nodes_;
  range_ref first_spare_ = 0;
  std::size_t spare_count_ = 0;
  [[no_unique_address]] promised_room<check_locks> room_;
};

}  // namespace TARN_NAMESPACE::detail
