// SPDX-License-Identifier: Apache-2.0
// policy/watched, tagged, logged, nvtx_ranged and the line profile on CUDA: what the simulated tests check,
// on a device.

#include <string>
#include <vector>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/debug/logged.hpp"
#include "tarn/debug/nvtx_ranged.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/tagged.hpp"
#include "tarn/report/by_tag.hpp"
#include "tarn/report/line_profile.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/tarn.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;
using tarn_test::keep_busy;

TEST_CASE("watched, logged, nvtx_ranged and tagged on CUDA meet the resource contract", "[policy][cuda]") {
  if (!has_cuda_devices()) return;
  tarn_test::resource_contract(
      [] {
        return cuda_pages{} | pooled{} | with_history{.history = 100} | logged{[](call_record const&) {}} |
               nvtx_ranged{"contract"} | tagged{"contract"};
      },
      tarn_test::last_error_is_clean{});
}

TEST_CASE("watched on CUDA records the stream, line and tag of each block while kernels run",
          "[policy][cuda]") {
  if (!has_cuda_devices()) return;
  basic_stream<cuda_driver> const a{cuda_driver{}};
  basic_stream<cuda_driver> const b{cuda_driver{}};
  name_stream(a, "watched stream");
  auto memory = cuda_pages{} | pooled{} | with_history{.history = 100} | tracked{};
  auto weights = make_device_buffer<float>(memory, 1 << 20, a, tag("weights on CUDA"));
  int const line = __LINE__ - 1;
  REQUIRE(keep_busy(a, 20));
  {
    tag_scope const here{"activations on CUDA"};
    auto hidden = make_device_buffer<float>(memory, 1 << 18, b);
  }
  memory_history const r = memory->upstream()->record();
  REQUIRE(r.live.size() == 1);
  stream_id id = 0;
  REQUIRE(cuda_driver{}.identify(a, id).ok());
  CHECK(r.live[0].stream == id);
  CHECK(r.live[0].address == reinterpret_cast<std::uintptr_t>(weights.data()));
  CHECK(r.live[0].requested == 4_MiB);
  CHECK(r.tags.at(r.live[0].tag).name == "weights on CUDA");
  CHECK(r.locations.at(r.live[0].location).at(0).line == line);
  REQUIRE(r.events.size() == 3);
  CHECK(r.events[1].stream != id);
  CHECK(r.tags.at(r.events[1].tag).name == "activations on CUDA");
  auto const tags = memory_by_tag(memory);
  REQUIRE(tags.size() == 2);
  CHECK(tags[0].bytes == memory_allocated(memory));
  CHECK(tags[1].peak_bytes == 1_MiB);
}

TEST_CASE("watched on CUDA adds the largest tags to out_of_memory", "[policy][cuda]") {
  if (!has_cuda_devices()) return;
  auto memory = cuda_pages{} | pooled{} | with_history{};
  auto const weights = make_device_buffer<char>(memory, 8_MiB, stream_ref{}, tag("weights that stay"));
  try {
    (void)memory.allocate({}, 1_TiB);
    FAIL("1 TiB was not refused");
  } catch (out_of_memory const& e) {
    CHECK(std::string(e.what()).find("By tag: weights that stay 8 MiB") != std::string::npos);
    CHECK(e.report().biggest_tags[0].bytes == 8_MiB);
  }
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("line_profile on CUDA reports the change and peak of a line", "[raii][cuda]") {
  if (!has_cuda_devices()) return;
  reset_line_profile();
  device_pool pool;
  auto const kept = TARN_PROFILE_EXPRESSION(pool, make_device_buffer<char>(pool, 3_MiB, stream_ref{}));
  auto const lines = line_profile();
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].where.line == __LINE__ - 3);
  CHECK(lines[0].change == static_cast<std::int64_t>(3_MiB));
  CHECK(lines[0].peak == 3_MiB);
  reset_line_profile();
}

TEST_CASE("take_snapshot of a device_pool without a history compiles with nvcc and adds up",
          "[policy][cuda]") {
  if (!has_cuda_devices()) return;
  device_pool pool;
  void* const p = pool.allocate(stream_ref{}, 3_MiB);
  snapshot const s = take_snapshot(pool);
  std::size_t bytes = 0;
  for (snapshot_segment const& segment : s.segments) bytes += segment.bytes;
  CHECK(bytes == memory_reserved(pool));
  pool.deallocate(stream_ref{}, p, 3_MiB);
}
