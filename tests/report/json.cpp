// SPDX-License-Identifier: Apache-2.0
// JSON: snapshot_json and perfetto, read by an independent parser; save_snapshot.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>

#include "catch.hpp"
#include "report/sample_snapshot.hpp"
#include "report/unpickle.hpp"
#include "tarn/report/json_text.hpp"
#include "tarn/report/perfetto.hpp"
#include "tarn/report/save_snapshot.hpp"
#include "tarn/report/snapshot_json.hpp"
#include "tarn/sim.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>
#define TARN_TEST_READS_JSON 1
#endif

using namespace tarn;
using namespace tarn_test;

namespace {

std::string written(snapshot const& s) {
  std::ostringstream out;
  write_json(out, s);
  return out.str();
}
std::string traced(snapshot const& s, perfetto_options const& options = {}) {
  std::ostringstream out;
  write_perfetto(out, s, options);
  return out.str();
}

std::string content_of(std::filesystem::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A temporary folder. The destructor removes it.
struct own_folder {
  std::filesystem::path path;
  own_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "tarn_snapshot_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~own_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  own_folder(own_folder const&) = delete;
  own_folder& operator=(own_folder const&) = delete;
};

}  // namespace

#if defined(TARN_TEST_READS_JSON)

TEST_CASE("write_json writes every number and name of a snapshot", "[report][snapshot_json]") {
  snapshot const s = sample_snapshot();
  auto const json = nlohmann::json::parse(written(s));
  CHECK(json["format"] == "tarn snapshot");
  CHECK(json["version"] == 1);
  CHECK(json["title"] == "a sample");
  CHECK(json["started_ns"] == s.started_ns);
  CHECK(json["forgotten_events"] == 3);
  CHECK(json["pool"]["reserved"] == s.pool.reserved);
  REQUIRE(json["tags"].size() == 2);
  CHECK(json["tags"][1]["name"] == awkward_as_utf8);
  CHECK(json["locations"][0].empty());
  CHECK(json["locations"][1][0]["file"] == "dir/" + awkward_as_utf8 + ".cpp");
  CHECK(json["locations"][1][1]["line"] == 3);
  REQUIRE(json["segments"].size() == s.segments.size());
  for (std::size_t i = 0; i < s.segments.size(); ++i) {
    auto const& segment = json["segments"][i];
    CHECK(segment["bytes"] == s.segments[i].bytes);
    CHECK(segment["handles"] == s.segments[i].handles);
    REQUIRE(segment["blocks"].size() == s.segments[i].blocks.size());
    for (std::size_t k = 0; k < s.segments[i].blocks.size(); ++k) {
      snapshot_block const& b = s.segments[i].blocks[k];
      auto const& block = segment["blocks"][k];
      CHECK(std::stoull(block["address"].get<std::string>(), nullptr, 16) == b.address);
      CHECK(block["bytes"] == b.bytes);
      CHECK(block["requested"] == b.requested);
      CHECK(block["tag"] == b.tag);
      CHECK(block["location"] == b.location);
      CHECK(block["stream"] == b.stream);
    }
  }
  CHECK(json["segments"][0]["address"] == "0x7f0000000000");
  CHECK(json["segments"][0]["kind"] == "pages");
  CHECK(json["segments"][0]["small"] == true);
  CHECK(json["segments"][0]["blocks"][0]["use"] == "live");
  CHECK(json["segments"][0]["blocks"][1]["use"] == "cached");
  CHECK(json["segments"][0]["blocks"][2]["use"] == "deferred");
  CHECK(!json["segments"][0].contains("pieces"));
  CHECK(json["segments"][1]["kind"] == "view");
  CHECK(json["segments"][1]["pieces"][1]["address"] == "0x7f0000020000");
  REQUIRE(json["events"].size() == s.events.size());
  std::string kinds;
  for (std::size_t i = 0; i < s.events.size(); ++i) {
    kinds += json["events"][i]["kind"].get<std::string>() + " ";
    CHECK(json["events"][i]["time_ns"] == s.events[i].time_ns);
    CHECK(json["events"][i]["requested"] == s.events[i].requested);
  }
  CHECK(kinds == "reserve reserve reserve allocate allocate free refused allocate allocate free ");
}

TEST_CASE("write_perfetto counts bytes over time, starting from what was live before the history",
          "[report][perfetto]") {
  snapshot s = sample_snapshot();
  s.events.erase(s.events.begin(), s.events.begin() + 4);  // the history is incomplete
  auto const json = nlohmann::json::parse(traced(s, {.least_slice_bytes = 0x1000}));
  std::map<std::string, std::int64_t> now;
  std::map<std::uint64_t, std::string> open;
  std::int64_t most_live = 0;
  std::size_t closed = 0;
  double time = 0;
  for (auto const& e : json["traceEvents"]) {
    std::string const phase = e["ph"];
    if (phase == "M") {
      CHECK(e["args"]["name"] == "a sample");
      continue;
    }
    if (phase == "C") now[e["name"]] = e["args"]["bytes"];
    if (phase == "b") {
      CHECK(open.emplace(e["id"], e["name"]).second);
      CHECK(e["args"]["bytes"] >= 0x1000);
    }
    if (phase == "e") {
      CHECK(open.erase(e["id"]) == 1);
      ++closed;
    }
    if (phase == "i") CHECK(e["args"]["asked"] == 0x100000000);
    CHECK(e["ts"].get<double>() >= time);
    CHECK(e["pid"] == 1);
    time = e["ts"];
    most_live = std::max(most_live, now["live bytes"]);
    CHECK(now["live bytes"] >= 0);
  }
  CHECK(open.empty());
  CHECK(closed == 3);  // two blocks stay live, one is deferred; the block of 2 KiB is only counted
  CHECK(time == Approx(1000.0));
  CHECK(most_live == 0x6000);
  CHECK(now["live bytes"] == 0x5000);
  CHECK(now["reserved bytes"] == static_cast<std::int64_t>(s.pool.reserved));
  CHECK(now["tag " + awkward_as_utf8] == 0x1000);
  CHECK(now["tag untagged"] == 0x4000);
}

TEST_CASE("write_perfetto has live bytes at the snapshot only where no calls were recorded",
          "[report][perfetto]") {
  snapshot s = sample_snapshot();
  std::erase_if(s.events, [](snapshot_event const& e) { return e.kind <= snapshot_event_kind::refused; });
  auto const json = nlohmann::json::parse(traced(s, {.least_slice_bytes = 1}));
  std::map<std::string, std::size_t> values;
  for (auto const& e : json["traceEvents"]) {
    CHECK((e["ph"] == "M" || e["ph"] == "C"));
    if (e["ph"] != "C") continue;
    ++values[e["name"]];
    if (e["name"] == "reserved bytes") continue;
    CHECK(e["ts"].get<double>() == Approx(1000.0));
  }
  CHECK(values["live bytes"] == 1);
  CHECK(values["tag untagged"] == 1);
  CHECK(values["reserved bytes"] == 1 + s.events.size());
}

TEST_CASE("json_text escapes every byte, also in long texts", "[report][json_text]") {
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  for (int i = 0; i < 300; ++i) all += "0123456789";
  for (int i = 0; i < 200; ++i) all += all.substr(256, 1000);
  std::ostringstream out;
  tarn::detail::json_text json(out);
  json.begin_array()
      .text(all)
      .number(-5)
      .number(~std::uint64_t{0})
      .microseconds(1'234'007)
      .boolean(false)
      .address(0);
  json.begin_object().end_object().begin_array().end_array().end_array().flush();
  auto const read = nlohmann::json::parse(out.str());
  CHECK(read[0] == tarn::detail::as_utf8(all));
  CHECK(read[1] == -5);
  CHECK(read[2] == ~std::uint64_t{0});
  CHECK(read[3].get<double>() == Approx(1234.007));
  CHECK(read[4] == false);
  CHECK(read[5] == "0x0");
  CHECK(read.size() == 8);
}

#else
TEST_CASE("write_json is read by an independent parser", "[report]") {
  WARN("skipped, nothing was tested: install nlohmann-json3-dev");
}
#endif

TEST_CASE("save_snapshot chooses the format by the file's extension", "[report][save_snapshot]") {
  own_folder const folder;
  sim_machine const machine{sim_options{.backing = sim_backing::address_only}};
  sim_pool pool{sim_pages{machine.driver(0)}};
  void* const p = pool.allocate({}, 5_MiB);
  for (char const* name : {"a.pickle", "b.pkl", "c.json", "d.trace.json"})
    save_snapshot(pool, folder.path / name);
  CHECK(unpickler(content_of(folder.path / "a.pickle")).read()->has("segments"));
  CHECK(unpickler(content_of(folder.path / "b.pkl")).read()->has("segments"));
  CHECK(content_of(folder.path / "c.json").find("\"format\":\"tarn snapshot\"") != std::string::npos);
  CHECK(content_of(folder.path / "d.trace.json").find("\"traceEvents\"") != std::string::npos);
  save_snapshot(sample_snapshot(), folder.path / "a.pickle");  // an existing file is replaced
  CHECK(unpickler(content_of(folder.path / "a.pickle")).read()->at("device_traces").items.size() == 2);
  pool.deallocate({}, p, 5_MiB);
}

TEST_CASE("save_snapshot reports the path and reason of a failure and leaves no file behind",
          "[report][save_snapshot]") {
  own_folder const folder;
  snapshot const s = sample_snapshot();
  CHECK_THROWS_AS(save_snapshot(s, folder.path / "a.csv"), std::invalid_argument);
  CHECK(!std::filesystem::exists(folder.path / "a.csv"));
  try {
    save_snapshot(s, folder.path / "none" / "a.pickle");
    FAIL("no exception was thrown");
  } catch (std::system_error const& error) {
    CHECK(error.code() == std::errc::no_such_file_or_directory);
    CHECK(std::string(error.what()).find("none/a.pickle") != std::string::npos);
  }
  if (!std::filesystem::exists("/dev/full")) return;
  std::filesystem::create_symlink("/dev/full", folder.path / "full.json");
  try {
    save_snapshot(s, folder.path / "full.json");
    FAIL("no exception was thrown");
  } catch (std::system_error const& error) {
    CHECK(error.code() == std::errc::no_space_on_device);
  }
}
