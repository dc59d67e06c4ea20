// SPDX-License-Identifier: Apache-2.0
#include "replay/live_segments.hpp"

#include <algorithm>
#include <map>

namespace tarn::bench {

namespace {

constexpr std::uintptr_t page = std::uintptr_t{2} << 20;
constexpr std::size_t small_block = std::size_t{1} << 20;

/// What lies before the next block, and at the end: free for reuse.
void add_cached(snapshot_segment& s, std::uintptr_t up_to) {
  std::uintptr_t const from = s.blocks.empty() ? s.address : s.blocks.back().address + s.blocks.back().bytes;
  if (up_to <= from) return;
  snapshot_block cached;
  cached.address = from;
  cached.bytes = up_to - from;
  cached.stream = s.blocks.empty() ? 0 : s.blocks.back().stream;
  s.blocks.push_back(cached);
}

void finish(snapshot_segment& s) {
  add_cached(s, s.address + s.bytes);
  std::map<stream_id, std::size_t> bytes_of;
  s.small = true;
  for (snapshot_block const& b : s.blocks) {
    if (b.use != block_use::live) continue;
    bytes_of[b.stream] += b.bytes;
    s.small = s.small && b.bytes <= small_block;
  }
  auto const most = std::max_element(bytes_of.begin(), bytes_of.end(),
                                     [](auto const& a, auto const& b) { return a.second < b.second; });
  if (most != bytes_of.end()) s.stream = most->first;
  s.handles = static_cast<std::uint32_t>(s.bytes / page);
}

}  // namespace

std::uint32_t tag_of_size(std::size_t bytes) noexcept {
  std::uint32_t i = 0;
  while (bytes > size_spans[i].most) ++i;
  return i + 1;
}

std::vector<snapshot_segment> live_segments(std::vector<snapshot_block> const& blocks) {
  std::vector<snapshot_block> live;
  std::copy_if(blocks.begin(), blocks.end(), std::back_inserter(live),
               [](snapshot_block const& b) { return b.address != 0; });
  std::sort(live.begin(), live.end(), [](auto const& a, auto const& b) { return a.address < b.address; });
  std::vector<snapshot_segment> segments;
  for (snapshot_block const& b : live) {
    std::uintptr_t const first = b.address / page * page;
    std::uintptr_t const end = (b.address + b.bytes + page - 1) / page * page;
    if (segments.empty() || first > segments.back().address + segments.back().bytes) {
      if (!segments.empty()) finish(segments.back());
      segments.emplace_back();
      segments.back().address = first;
    }
    snapshot_segment& s = segments.back();
    s.bytes = std::max(s.address + s.bytes, end) - s.address;
    add_cached(s, b.address);
    s.blocks.push_back(b);
  }
  if (!segments.empty()) finish(segments.back());
  return segments;
}

}  // namespace tarn::bench
