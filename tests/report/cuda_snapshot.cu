// SPDX-License-Identifier: Apache-2.0
// Snapshots of pools on CUDA: the contract of take_snapshot.cpp, with the device's own pages, blocks and
// streams.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "report/undo.hpp"
#include "report/unpickle.hpp"
#include "report/whole.hpp"
#include "tarn/core/tag.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/report/save_snapshot.hpp"
#include "tarn/tarn.hpp"

using namespace tarn;
using tarn_test::blocks_with;
using tarn_test::check_history;
using tarn_test::check_whole;
using tarn_test::has_cuda_devices;
using tarn_test::keep_busy;

namespace cuda_snapshot_test {

inline snapshot_block const* block_at(snapshot const& s, void const* p) {
  for (snapshot_segment const& segment : s.segments) {
    for (snapshot_block const& b : segment.blocks) {
      if (b.address == reinterpret_cast<std::uintptr_t>(p)) return &b;
    }
  }
  return nullptr;
}

/// The mistake that PyTorch's viewer would find; empty if there is none.
inline std::string mistake_of(snapshot const& s) {
  std::string path = (std::filesystem::temp_directory_path() / "tarn_cuda_snapshot_XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) return "no folder";
  save_snapshot(s, path + "/x.pickle");
  std::ifstream file(path + "/x.pickle", std::ios::binary);
  std::string const content{std::istreambuf_iterator<char>(file), {}};
  std::filesystem::remove_all(path);
  auto const read = tarn_test::unpickler(content).read();
  return tarn_test::undone_history(*read, static_cast<std::size_t>(s.device)).mistake();
}

/// Random calls on two streams and two threads, with snapshots during the run and one at the end.
template <class Memory>
void try_on(Memory memory) {
  remember_growth(memory);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      basic_stream<cuda_driver> const stream{cuda_driver{}};
      std::mt19937 random(t);
      std::vector<std::pair<void*, std::size_t>> live;
      for (int step = 0; step < 3000; ++step) {
        if (live.size() < 40 && random() % 2 == 0) {
          tag_scope const here{t == 0 ? "first" : "second"};
          std::size_t const bytes = 1 + random() % (std::size_t{1} << (4 + random() % 22));
          live.emplace_back(memory.allocate(stream, bytes), bytes);
        } else if (!live.empty()) {
          std::size_t const i = random() % live.size();
          memory.deallocate(stream, live[i].first, live[i].second);
          live[i] = live.back();
          live.pop_back();
        }
      }
      for (auto const& [p, bytes] : live) memory.deallocate(stream, p, bytes);
    });
  }
  for (int i = 0; i < 5; ++i) {
    snapshot const s = take_snapshot(memory);
    check_whole(s);
    CHECK(mistake_of(s) == "");
  }
  for (std::thread& t : threads) t.join();
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  check_history(s);
  CHECK(blocks_with(s, block_use::live).blocks == 0);
  CHECK(mistake_of(s) == "");
}

}  // namespace cuda_snapshot_test
using namespace cuda_snapshot_test;

TEST_CASE("take_snapshot on CUDA is consistent, and PyTorch's viewer can undo its history",
          "[report][snapshot][cuda]") {
  if (!has_cuda_devices()) return;
  SECTION("over pages") {
    try_on(cuda_pages{} | limited{512_MiB} | pooled{} | with_history{.history = 4000});
  }
  SECTION("over cudaMalloc") {
    try_on(cuda_malloc{} | pooled{} | with_history{.history = 4000});
  }
}

TEST_CASE("take_snapshot on CUDA reports the name, stream and use of a block", "[report][snapshot][cuda]") {
  if (!has_cuda_devices()) return;
  auto memory = cuda_pages{} | pooled{} | with_history{.history = 100};
  basic_stream<cuda_driver> const stream{cuda_driver{}};
  basic_stream<cuda_driver> const other{cuda_driver{}};
  void* p = nullptr;
  {
    tag_scope const here{"weights"};
    p = memory.allocate(stream, 3_MiB);
  }
  void* const q = memory.allocate({}, 5000);
  snapshot const before = take_snapshot(memory);
  check_whole(before);
  REQUIRE(block_at(before, p) != nullptr);
  CHECK(before.tags[block_at(before, p)->tag].name == "weights");
  CHECK(block_at(before, p)->requested == 3_MiB);
  REQUIRE(block_at(before, q) != nullptr);
  CHECK(block_at(before, q)->stream == before.null_stream);
  CHECK(block_at(before, p)->stream != before.null_stream);
  REQUIRE(keep_busy(other, 200));
  memory.record_stream(p, 3_MiB, other);
  memory.deallocate(stream, p, 3_MiB);
  snapshot const after = take_snapshot(memory);
  check_whole(after);
  REQUIRE(block_at(after, p) != nullptr);
  CHECK(block_at(after, p)->use == block_use::deferred);
  memory.deallocate({}, q, 5000);
}

TEST_CASE("take_snapshot on CUDA reports a remapped block as a segment at its user's address",
          "[report][snapshot][view][cuda]") {
  if (!has_cuda_devices()) return;
  if (static_cast<bool>(cuda_driver{}.memory_tool())) {
    WARN("skipped: with a memory tool the pool uses no pages, so there are no pieces");
    return;
  }
  auto memory = cuda_pages{} | limited{64_MiB} | pooled{} | with_history{.history = 1000};
  std::vector<void*> kept;
  std::vector<void*> freed;
  for (int i = 0; i < 24; ++i) (i % 2 == 0 ? kept : freed).push_back(memory.allocate({}, 2_MiB));
  for (void* const p : freed) memory.deallocate({}, p, 2_MiB);
  void* const large = memory.allocate({}, 23_MiB);
  snapshot const s = take_snapshot(memory);
  check_whole(s);
  std::size_t views = 0;
  for (snapshot_segment const& segment : s.segments) {
    if (segment.kind != segment_kind::view) continue;
    ++views;
    CHECK(segment.address == reinterpret_cast<std::uintptr_t>(large));
  }
  CHECK(views == 1);
  CHECK(mistake_of(s) == "");
  memory.deallocate({}, large, 23_MiB);
  for (void* const p : kept) memory.deallocate({}, p, 2_MiB);
}
