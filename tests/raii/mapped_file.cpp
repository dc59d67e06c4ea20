// SPDX-License-Identifier: Apache-2.0
#include "tarn/raii/mapped_file.hpp"

#include <unistd.h>

#include <string_view>
#include <utility>

#include "catch.hpp"
#include "raii/batch_loops.hpp"
#include "tarn/sim.hpp"

using namespace tarn;
using tarn_test::counted;
using tarn_test::scratch_file;

namespace {

std::string_view refusal_of(std::string& text, auto const& act) {
  try {
    act();
  } catch (file_error const& error) {
    text = error.what();
    return text;
  }
  return "nothing was refused";
}
bool says(auto const& act, std::string_view path, std::string_view what) {
  std::string text;
  auto const said = refusal_of(text, act);
  return said.find(path) != std::string_view::npos && said.find(what) != std::string_view::npos;
}

}  // namespace

TEST_CASE("a mapped file is its bytes, and its elements", "[raii][mapped_file]") {
  auto const all = counted(5000);
  scratch_file const file(all);
  mapped_file const mapped(file.path());
  CHECK(mapped.bytes() == 20'000);
  CHECK(std::ranges::equal(mapped.as<std::uint32_t>(), all));
  CHECK(mapped.span().size() == 20'000);
  std::uint32_t two[2]{};
  mapped.read(40, std::as_writable_bytes(std::span(two)));
  CHECK((two[0] == 11 && two[1] == 12));
}

TEST_CASE("an empty file has no elements", "[raii][mapped_file]") {
  scratch_file const file({});
  mapped_file const mapped(file.path());
  CHECK(mapped.bytes() == 0);
  CHECK(mapped.as<double>().empty());
}

TEST_CASE("a mapped file is given up once, by the one that has it last", "[raii][mapped_file]") {
  scratch_file const one(counted(10));
  scratch_file const other(counted(20));
  mapped_file a(one.path());
  mapped_file b(other.path());
  auto const* const place = b.span().data();
  a = std::move(b);
  CHECK(a.span().data() == place);
  CHECK(b.bytes() == 0);  // NOLINT: moved-from is empty
  mapped_file const c = std::move(a);
  CHECK(c.as<std::uint32_t>()[19] == 20);
}

TEST_CASE("a file that cannot be read as asked is refused by name and reason", "[raii][mapped_file]") {
  CHECK(says([] { mapped_file const none("/tmp/tarn_no_such_file"); }, "/tmp/tarn_no_such_file",
             "opened for reading (errno 2)"));
  CHECK(says([] { mapped_file const folder("/tmp"); }, "/tmp", "no regular file"));
  scratch_file const file(counted(3));
  mapped_file const mapped(file.path());
  CHECK(says([&] { (void)mapped.as<double>(); }, file.path(), "ends within an element"));
  CHECK(says([&] { (void)from_file<double>(mapped); }, file.path(), "ends within an element"));
  std::byte beyond[8];
  CHECK(says([&] { mapped.read(8, beyond); }, file.path(), "become shorter"));
}

TEST_CASE("a file that becomes shorter during a loop over it ends the loop by an error",
          "[raii][mapped_file]") {
  sim_machine const machine;
  auto memory = sim_malloc{machine.driver()};
  basic_stream const stream(machine.driver());
  for (unsigned const threads : {0U, 3U}) {
    scratch_file const file(counted(100'000));
    mapped_file const mapped(file.path());
    std::size_t seen = 0;
    auto const loop = [&] {
      for (auto batch : stream_batches(from_file<std::uint32_t>(mapped),
                                       {.batch_bytes = 40'000, .threads = threads}, memory, stream)) {
        if (batch.index() == 1) REQUIRE(::truncate(file.path().c_str(), 5 * 40'000 + 4) == 0);
        ++seen;
      }
    };
    CHECK(says(loop, file.path(), "become shorter"));
    CHECK(seen >= 2);
    CHECK(seen <= 5);
  }
  CHECK(machine.leaks().total() == 1);  // the stream
}
