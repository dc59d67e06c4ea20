// SPDX-License-Identifier: Apache-2.0
// Owners with a tag: device_buffer, device_ptr and pinned_buffer over a watched pool.

#include <string>

#include "catch.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/device_ptr.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {

template <class Memory>
std::size_t requested(Memory& memory, std::string const& name) {
  for (history_tag const& t : memory->tags()) {
    if (t.name == name) return t.requested;
  }
  return 0;
}

}  // namespace

TEST_CASE("device_buffer and device_ptr accept a tag with every call that allocates", "[raii][tag]") {
  sim_machine const machine;
  auto memory = sim_pages(machine.driver()) | pooled{} | with_history{};
  stream_ref const s;
  std::vector<float> const values(10, 1.0F);
  auto a = make_device_buffer<float>(memory, 100, s, tag("made"));
  auto b = make_device_buffer<float>(memory, std::span<float const>(values), s, tag("made of values"));
  device_buffer<float, decltype(memory)> const c(memory, 200, s, tag("constructed"));
  device_buffer<float, decltype(memory)> const d(memory, std::span<float const>(values), s, tag("copied in"));
  auto const e = c.clone(s, tag("copy"));
  auto f = make_device<double>(memory, s, tag("one"));
  auto g = make_device<double[]>(memory, 30, s, tag("several"));
  CHECK(requested(memory, "made") == 400);
  CHECK(requested(memory, "made of values") == 40);
  CHECK(requested(memory, "constructed") == 800);
  CHECK(requested(memory, "copied in") == 40);
  CHECK(requested(memory, "copy") == 800);
  CHECK(requested(memory, "one") == 8);
  CHECK(requested(memory, "several") == 240);
  int const line = __LINE__;
  a.resize(1000, s, tag("grown"));
  b.reserve(50);  // reported as untagged
  CHECK(requested(memory, "grown") == 4000);
  CHECK(requested(memory, "made") == 0);
  CHECK(requested(memory, "untagged") == 200);
  memory_history const r = memory->record();
  std::size_t found = 0;
  for (history_block const& block : r.live) {
    if (block.requested == 4000) found += r.locations.at(block.location).at(0).line == line + 1 ? 1 : 0;
  }
  CHECK(found == 1);  // a tag records the location of the call
}

TEST_CASE("pinned_buffer accepts a tag and records the lines that resize it", "[raii][tag]") {
  sim_machine const machine;
  auto memory = sim_pinned_host(machine.driver()) | pooled{} | with_history{};
  pinned_buffer<char, decltype(memory)> p(memory, 100, elements::uninitialised, {}, tag("staging"));
  CHECK(requested(memory, "staging") == 100);
  p.resize(5000, elements::uninitialised, tag("larger staging"));
  CHECK(requested(memory, "staging") == 0);
  CHECK(requested(memory, "larger staging") == 5000);
  p.resize(10);
  p.shrink_to_fit();
  int const line = __LINE__ - 1;
  memory_history const r = memory->record();
  REQUIRE(r.live.size() == 1);
  CHECK(r.locations.at(r.live[0].location).at(0).line == line);
}
