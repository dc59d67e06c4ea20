// SPDX-License-Identifier: Apache-2.0
#include "tarn/debug/logged.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

TEST_CASE("logged meets the resource contract", "[policy][logged]") {
  tarn_test::resource_contract([] { return host_memory{} | logged{[](call_record const&) {}}; });
}

TEST_CASE("logged passes each call once to its hook, with all its fields", "[policy][logged]") {
  sim_machine const machine;
  basic_stream<sim_driver> const a(machine.driver());
  std::vector<call_record> calls;
  auto memory = sim_pages(machine.driver()) | pooled{} | limited{1_MiB} |
                logged{[&](call_record const& c) { calls.push_back(c); }} | tracked{};
  void* p = nullptr;
  {
    tag_scope const here{"of the log"};
    p = memory.allocate(a, 1000, 512);
  }
  int const line = __LINE__ - 2;
  memory.deallocate(a, p, 1000, 512);
  void* const q = memory.allocate_sync(10);
  memory.deallocate_sync(q, 10);
  CHECK_THROWS_AS(memory.allocate(a, 2_MiB), out_of_memory);
  CHECK_THROWS_AS(memory.allocate(a, 10, 3), bad_alignment);
  memory.deallocate(a, nullptr, 10);
  REQUIRE(calls.size() == 6);
  CHECK(calls[0].call == logged_call::allocate);
  CHECK(calls[0].outcome == call_outcome::done);
  CHECK(calls[0].address == p);
  CHECK(calls[0].bytes == 1000);
  CHECK(calls[0].alignment == 512);
  CHECK(calls[0].stream == stream_ref(a));
  CHECK(calls[0].name == tag("of the log"));
  CHECK(calls[0].where.line == line);
  CHECK(calls[1].call == logged_call::deallocate);
  CHECK(calls[1].outcome == call_outcome::pending);
  CHECK(calls[1].address == p);
  CHECK(calls[1].where.line == line + 3);
  CHECK(calls[2].call == logged_call::allocate_sync);
  CHECK(calls[3].call == logged_call::deallocate_sync);
  CHECK(calls[4].outcome == call_outcome::refused);
  CHECK(calls[4].address == nullptr);
  CHECK(calls[4].bytes == 2_MiB);
  CHECK(calls[5].outcome == call_outcome::failed);
}

TEST_CASE("logged with log_moments::both calls its hook before and after each call", "[policy][logged]") {
  std::vector<call_record> calls;
  auto memory = host_memory{} | logged{[&](call_record const& c) { calls.push_back(c); }, log_moments::both};
  void* const p = memory.allocate({}, 100);
  memory.deallocate({}, p, 100);
  REQUIRE(calls.size() == 4);
  CHECK(calls[0].outcome == call_outcome::pending);
  CHECK(calls[0].address == nullptr);
  CHECK(calls[1].outcome == call_outcome::done);
  CHECK(calls[1].address == p);
  CHECK(calls[2].outcome == call_outcome::pending);
  CHECK(calls[3].outcome == call_outcome::done);
  CHECK(calls[3].call == logged_call::deallocate);
}

TEST_CASE("logged accepts a plain function with a context as its hook", "[policy][logged]") {
  int count = 0;
  auto memory = host_memory{} |
                logged{+[](void* context, call_record const&) { ++*static_cast<int*>(context); }, &count};
  memory.deallocate({}, memory.allocate({}, 100), 100);
  CHECK(count == 2);
}

TEST_CASE("logged lets a hook's exception leave allocate without a leak, and never leave deallocate",
          "[policy][logged]") {
  struct stop : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  logged_call throws_in = logged_call::allocate;
  auto below = host_memory{} | limited{1_MiB} | tracked{};
  auto memory = below | logged{[&](call_record const& c) {
                  if (c.call == throws_in) throw stop("the log is full");
                }};
  CHECK_THROWS_AS(memory.allocate({}, 1000), stop);
  CHECK(memory_allocated(below) == 0);
  CHECK_THROWS_AS(memory.allocate({}, 0), stop);
  CHECK_THROWS_AS(memory.allocate({}, 2_MiB),
                  out_of_memory);  // the allocation's error takes precedence over the hook's
  void* const s = memory.allocate_sync(10);
  throws_in = logged_call::allocate_sync;
  CHECK_THROWS_AS(memory.allocate_sync(1000), stop);
  CHECK(memory_allocated(below) == 10);
  memory.deallocate_sync(s, 10);
  throws_in = logged_call::deallocate;
  void* const p = memory.allocate({}, 1000);
  memory.deallocate({}, p, 1000);
  throws_in = logged_call::deallocate_sync;
  memory.deallocate_sync(memory.allocate_sync(10), 10);
  CHECK(memory_allocated(below) == 0);
}

TEST_CASE("format_log_line writes comma-separated values and quotes them where necessary",
          "[policy][log_line]") {
  call_record c;
  c.outcome = call_outcome::done;
  c.address = reinterpret_cast<void*>(std::uintptr_t{0xabc00});
  c.bytes = 1000;
  c.alignment = 256;
  c.stream = stream_ref::from(reinterpret_cast<void*>(std::uintptr_t{0x20}));
  c.name = tag("weights");
  c.where = {"train.cpp", 42, "step"};
  CHECK(format_log_line(c).view() == "allocate,done,0xabc00,1000,256,0x20,weights,train.cpp,42,step");
  c.call = logged_call::deallocate_sync;
  c.outcome = call_outcome::pending;
  c.name = tag("a \"b\", c");
  c.where.function = "operator,";
  CHECK(format_log_line(c).view() ==
        "deallocate_sync,pending,0xabc00,1000,256,0x20,\"a \"\"b\"\", c\",train.cpp,42,\"operator,\"");
  c.name = tag("two\nlines");
  CHECK(format_log_line(c).view().find(",\"two lines\",") != std::string_view::npos);
  c.name = {};
  c.outcome = call_outcome::refused;
  c.name = tag("\x1B[2J\xFF");
  CHECK(format_log_line(c).view().find(",0x20, [2J?,") != std::string_view::npos);
  c.name = tag{};
  CHECK(format_log_line(c).view().substr(0, 46) == "deallocate_sync,refused,0xabc00,1000,256,0x20,");
  CHECK(format_log_line(c).view().find("0x20,,train.cpp") != std::string_view::npos);
  auto const columns = [](std::string_view line) { return std::count(line.begin(), line.end(), ','); };
  c.where.function = "step";
  CHECK(columns(format_log_line(c).view()) == columns(log_line_header));
  std::string const long_file = "/far/away/" + std::string(60, 'f') + ".cpp";
  std::string const long_function = "step<" + std::string(70, 'T') + ">";
  c.where = {long_file.c_str(), 1, long_function.c_str()};
  std::string const cut(format_log_line(c).view());
  CHECK(cut.find("," + std::string(59, 'f') + ".cpp,1,step<" + std::string(58, 'T')) != std::string::npos);
  CHECK(cut.back() == 'T');
  // The longest possible line is not truncated.
  std::string const quotes(200, '"');
  c.name = tag(quotes);
  c.bytes = c.alignment = ~std::size_t{0};
  c.address = reinterpret_cast<void*>(~std::uintptr_t{0});
  c.stream = stream_ref::from(c.address);
  c.where = {quotes.c_str(), -2147483647, quotes.c_str()};
  std::string const line(format_log_line(c).view());
  CHECK(line.substr(line.size() - 3) == "\"\"\"");
  CHECK(std::count(line.begin(), line.end(), '"') == 3 * (2 * 63 + 2));
}
