// SPDX-License-Identifier: Apache-2.0
#include "tarn/report/by_tag.hpp"

#include "catch.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/report/line_profile.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

TEST_CASE("memory_by_tag is sorted by bytes, and memory_by_tag_summary adds up", "[report][by_tag]") {
  auto memory = sim_pages{} | pooled{} | with_history{} | limited{1_GiB};
  void* const p = memory.allocate({}, 3_MiB, 256, tag("small"));
  void* const q = memory.allocate({}, 30_MiB, 256, tag("large"));
  void* const r = memory.allocate({}, 60_MiB, 256, tag("gone"));
  void* const s = memory.allocate({}, 100);
  memory.deallocate({}, r, 60_MiB);
  tag const unused("never allocated under");
  auto const tags = memory_by_tag(memory);
  REQUIRE(tags.size() == 4);
  CHECK(tags[0].name == "large");
  CHECK(tags[1].name == "small");
  CHECK(tags[2].name == "untagged");
  CHECK(tags[3].name == "gone");
  CHECK(tags[3].peak_bytes == 60_MiB);
  CHECK(memory_by_tag_summary(memory) ==
        "|===========================================================================|\n"
        "| Tag                    | Cur Usage  | Peak Usage | Requested  | Blocks     |\n"
        "|===========================================================================|\n"
        "| large                  |  30720 KiB |  30720 KiB |  30720 KiB |       1    |\n"
        "| small                  |   3072 KiB |   3072 KiB |   3072 KiB |       1    |\n"
        "| untagged               |      0 KiB |      0 KiB |      0 KiB |       1    |\n"
        "| gone                   |      0 KiB |  61440 KiB |      0 KiB |       0    |\n"
        "|---------------------------------------------------------------------------|\n"
        "| all                    |  33792 KiB |            |  33792 KiB |       3    |\n"
        "|===========================================================================|\n");
  memory.deallocate({}, p, 3_MiB);
  memory.deallocate({}, q, 30_MiB);
  memory.deallocate({}, s, 100);
}

TEST_CASE("memory_by_tag_summary has one unit in a column, and no bytes of a name that control a terminal",
          "[report][by_tag]") {
  auto memory = sim_pages{} | pooled{} | with_history{};
  void* const p = memory.allocate({}, 3_GiB, 256, tag("large"));
  void* const q = memory.allocate({}, 3_MiB, 256, tag("\x1B[2J\xFF\n"));
  std::string const table = memory_by_tag_summary(memory);
  INFO(table);
  CHECK(table.find("| large                  |   3072 MiB |   3072 MiB |   3072 MiB |       1    |\n") !=
        table.npos);
  CHECK(table.find("|  [2J?                  |      3 MiB |      3 MiB |      3 MiB |       1    |\n") !=
        table.npos);
  CHECK(table.find("KiB") == table.npos);
  memory.deallocate({}, p, 3_GiB);
  memory.deallocate({}, q, 3_MiB);
}

TEST_CASE("line_profile_table lists the lines of each file in order, with their source text",
          "[report][line_profile]") {
  reset_line_profile();
  CHECK(line_profile_table().empty());
  sim_pool pool;
  void* const p = TARN_PROFILE_EXPRESSION(pool, pool.allocate({}, 10_MiB));
  {
    TARN_PROFILE_LINE(pool);
    pool.deallocate({}, p, 10_MiB);
  }
  int const line = __LINE__ - 3;
  detail::line_registry::of_process().add({{"nowhere.cpp", 7, "somewhere"}, 1, 0, 1536, 1});
  detail::line_registry::of_process().add({{"nowhere.cpp", 7, "elsewhere"}, 1, 20, 10, 1});
  std::string const file = source_location::current().file;
  std::string const n = std::to_string(line - 2);
  std::string const m = std::to_string(line);
  std::string const heading = "\n  line      calls       change         peak  source\n";
  std::string const ours =
      file + heading + "    " + n + "          1      +10 MiB      +10 MiB  void* const p = " +
      "TARN_PROFILE_EXPRESSION(pool, pool.allocate({}, 10_MiB));\n    " + m +
      "          1      -10 MiB          0 B  in " + source_location::current().function + "\n";
  std::string const theirs =
      "nowhere.cpp" + heading + "     7          2        +20 B     +1.5 KiB  in somewhere\n";
  bool const first = file < "nowhere.cpp";
  CHECK(line_profile_table() == (first ? ours + "\n" + theirs : theirs + "\n" + ours));
  CHECK(line_profile_table(source_text::left_out).find("TARN_PROFILE_EXPRESSION") == std::string::npos);
  reset_line_profile();
}
