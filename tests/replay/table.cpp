// SPDX-License-Identifier: Apache-2.0
#include "replay/table.hpp"

#include <sstream>

#include "catch.hpp"
#include "replay/json.hpp"

using namespace tarn::bench;

namespace {

figures demucs() {
  figures row;
  row.trace = "demucs_train";
  row.pool = "tarn";
  row.device = "sim";
  row.events = 10645;
  row.peak_live = 6242808528;
  row.peak_reserved = 6300000000;
  row.driver_calls = 1234;
  row.driver_calls_warm = 0;
  row.cold_ns_per_event = 123.44;
  row.passes = 1;
  return row;
}

bool says(std::string const& text, std::string_view what) {
  UNSCOPED_INFO(text << "must contain " << what);
  return text.find(what) != text.npos;
}

}  // namespace

TEST_CASE("with_commas and as_mib separate thousands", "[replay]") {
  CHECK(with_commas(0) == "0");
  CHECK(with_commas(999) == "999");
  CHECK(with_commas(1000) == "1,000");
  CHECK(with_commas(1234567) == "1,234,567");
  CHECK(as_mib(6242808528.0) == "5,953.6 MiB");
  CHECK(as_mib(0) == "0.0 MiB");
}

TEST_CASE("write_table shows PyTorch's reserved memory next to the pool's", "[replay]") {
  figures const row = demucs();
  std::ostringstream out;
  write_table(out, std::span(&row, 1));
  CHECK(says(out.str(), "demucs_train: 10,645 events, peak live 5,953.6 MiB"));
  CHECK(says(out.str(), "6,008.1 MiB"));
  CHECK(says(out.str(), "0.991"));
  CHECK(says(out.str(), "7,290.0 MiB"));
  CHECK(says(out.str(), "6,462.0 MiB"));
}

TEST_CASE("write_brief says in one line what was replayed, what the pool held and what PyTorch held",
          "[replay]") {
  figures row = demucs();
  std::ostringstream out;
  write_brief(out, row);
  CHECK(out.str() ==
        "demucs_train: 10,645 calls, 5,953.6 MiB in use at the peak; tarn held 6,008.1 MiB, PyTorch 7,290.0 "
        "MiB, "
        "with expandable segments 6,462.0 MiB\n");
  row.trace = "mine";
  row.peak_reserved.reset();
  row.out_of_memory = 3;
  std::ostringstream other;
  write_brief(other, row);
  CHECK(other.str() ==
        "mine: 10,645 calls, 5,953.6 MiB in use at the peak; tarn held an unknown amount and refused 3 "
        "requests\n");
}

TEST_CASE("write_table has no PyTorch row for a trace without known figures", "[replay]") {
  figures row = demucs();
  row.trace = "mine";
  std::ostringstream out;
  write_table(out, std::span(&row, 1));
  CHECK_FALSE(says(out.str(), "PyTorch"));
}

TEST_CASE("write_table compares the last pass with the first where there are more than two", "[replay]") {
  figures row = demucs();
  row.passes = 2;
  row.peak_reserved_of_pass = {6000000000, 6300000000};
  std::ostringstream two;
  write_table(two, std::span(&row, 1));
  CHECK_FALSE(says(two.str(), "last/first pass"));
  row.passes = 3;
  row.peak_reserved_of_pass = {6000000000, 6300000000, 6150000000};
  std::ostringstream three;
  write_table(three, std::span(&row, 1));
  CHECK(says(three.str(),
             "  pool                   peak reserved  utilisation  last/first pass  driver calls cold"));
  CHECK(says(three.str(),
             "  tarn                     6,008.1 MiB        0.991            1.025              1,234"));
  CHECK(says(three.str(),
             "  PyTorch, expandable *    6,462.0 MiB        0.921                -                  -"));
  row.peak_reserved_of_pass.clear();
  std::ostringstream unknown;
  write_table(unknown, std::span(&row, 1));
  CHECK_FALSE(says(unknown.str(), "last/first pass"));
}

TEST_CASE("write_json has the peak reserved of the first, the last and each pass", "[replay]") {
  figures row = demucs();
  row.peak_reserved_of_pass = {100, 300, 200};
  std::ostringstream out;
  write_json(out, row);
  CHECK(says(out.str(),
             R"("peak_reserved_first":100,"peak_reserved_last":200,"peak_reserved_of_pass":[100,300,200],)"));
  std::ostringstream unknown;
  write_json(unknown, demucs());
  CHECK(says(unknown.str(),
             R"("peak_reserved_first":null,"peak_reserved_last":null,"peak_reserved_of_pass":[],)"));
}

TEST_CASE("write_json has every field, and null for unknown values", "[replay]") {
  std::ostringstream out;
  write_json(out, demucs());
  std::string const text = out.str();
  CHECK(text.back() == '\n');
  CHECK(text.find('\n') == text.size() - 1);
  for (char const* field :
       {R"("trace":"demucs_train")", R"("pool":"tarn")", R"("device":"sim")", R"("events":10645)",
        R"("peak_live":6242808528)", R"("peak_reserved":6300000000)", R"("utilisation":0.99)",
        R"("driver_calls":1234)", R"("driver_calls_warm":0)", R"("cold_ns_per_event":123.4)",
        R"("warm_ns_per_event":null)", R"("out_of_memory":0)"}) {
    CHECK(says(text, field));
  }
}
