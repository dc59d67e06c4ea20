// SPDX-License-Identifier: Apache-2.0
// The vocabulary: config, bytes, message, place, error, misuse, device, stream, property, resource, counter.

#include <cstring>
#include <string>
#include <thread>

#include "catch.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/counter.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/misuse.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

TEST_CASE("checked_bytes throws length_error if the bytes overflow", "[core][bytes]") {
  CHECK(checked_bytes(10, 4) == 40);
  CHECK(checked_bytes(0, 4) == 0);
  CHECK_THROWS_AS(checked_bytes(~std::size_t{0} / 2, 4), length_error);
  CHECK_THROWS_AS(checked_bytes(max_request_bytes / 8 + 1, 8), length_error);
  CHECK(checked_bytes(max_request_bytes / 8, 8) == max_request_bytes / 8 * 8);
}

TEST_CASE("align_up and align_down keep multiples and round others", "[core][bytes]") {
  CHECK(align_up(512, 512) == 512);
  CHECK(align_up(513, 512) == 1024);
  CHECK(align_down(1023, 512) == 512);
  CHECK(is_aligned(reinterpret_cast<void*>(4096), 4096));
  CHECK_FALSE(is_aligned(reinterpret_cast<void*>(4097), 2));
  CHECK(1_GiB == 1024 * 1_MiB);
}

TEST_CASE("require_alignment accepts powers of two up to max_alignment", "[core][bytes][error]") {
  CHECK_NOTHROW(require_alignment(1));
  CHECK_NOTHROW(require_alignment(max_alignment));
  CHECK_THROWS_AS(require_alignment(0), bad_alignment);
  CHECK_THROWS_AS(require_alignment(3), bad_alignment);
  CHECK_THROWS_AS(require_alignment(2 * max_alignment), bad_alignment);
  try {
    require_alignment(24);
  } catch (bad_alignment const& e) {
    CHECK(e.alignment() == 24);
    CHECK(std::string(e.what()).find("power of two") != std::string::npos);
  }
}

TEST_CASE("message truncates text at its capacity", "[core][message]") {
  message<8> m;
  m.add("0123456789");
  CHECK(m.view() == "0123456");
  CHECK(std::strlen(m.c_str()) == 7);
  message<64> n;
  n.add_number(std::uint64_t{0})
      .add(" ")
      .add_number(-5)
      .add(" ")
      .add_hex(0xAB0)
      .add(" ")
      .add_bytes(1536)
      .add(" ")
      .add_bytes(96);
  CHECK(n.view() == "0 -5 0xab0 1.5 KiB 96 B");
  void const* const at = reinterpret_cast<void const*>(std::uintptr_t{16});
  CHECK(message<64>("at ", at, ", ", -3, ", ", std::size_t{7}).view() == "at 0x10, -3, 7");
}

TEST_CASE("out_of_memory reports who refused, the state, and what to do", "[core][error]") {
  memory_report r;
  r.asked = 512_MiB;
  r.device = 0;
  r.stream = 7;
  r.live = 60_GiB;
  r.limit = 60_GiB;
  r.refused_by = "limited";
  out_of_memory const e(r);
  std::string const text = e.what();
  CHECK(text.find("512 MiB asked on device 0, stream 7: refused by limited(60 GiB).") != std::string::npos);
  CHECK(text.find("raise the limit") != std::string::npos);
  CHECK(e.report().live == 60_GiB);
  std::bad_alloc const& base = e;
  CHECK(std::string(base.what()) == text);
}

TEST_CASE("out_of_memory gives advice that fits the request", "[core][error]") {
  memory_report r;
  r.asked = 1_GiB;
  r.device = 0;
  auto const says = [&](char const* what) {
    std::string const text = out_of_memory(r).what();
    INFO(text);
    CHECK(text.find(what) != std::string::npos);
  };
  says(
      "refused by the device. Free buffers, call empty_cache() on other pools, ask for less, or close other "
      "programs on the device.");
  r.call = "cuMemCreate";
  says("refused by the device (cuMemCreate).");
  r.device_free = 2_GiB;
  r.device_total = 140_GiB;
  says("Free on the device 2 GiB. Free buffers");
  r.asked = 1024_GiB;
  says("1 TiB asked on device 0");
  says("The device has 140 GiB in all: ask for less, or split the work.");
  r.asked = ~std::size_t{0} / 2;
  says("check the size for overflow");

  r = {};
  r.asked = 1_GiB;
  r.limit = 4_GiB;
  r.limit_used = 4_GiB;
  r.refused_by = "limited";
  says("refused by limited(4 GiB), of which 4 GiB are used. Free memory or raise the limit.");
  r.reserved = 1_GiB;
  says("Reserved 1 GiB. Free memory or raise the limit.");  // it would fit without this pool's own memory
  r.asked = 2_GiB;
  says("Others under this limit hold 3 GiB: free their memory, call empty_cache() on their pools");
  r.asked = 5_GiB;
  says("The limit is below this request alone: raise it or ask for less.");
}

TEST_CASE("out_of_memory says how an amount differs that reads as the request", "[core][error]") {
  memory_report r;
  r.asked = 4608_MiB;
  r.device = 0;
  r.device_free = 4607_MiB;
  CHECK(std::string(out_of_memory(r).what()).find("Free on the device 4.4 GiB.") != std::string::npos);
  r.asked = 4608_MiB + 512;
  r.device_free = 4608_MiB;
  CHECK(std::string(out_of_memory(r).what()).find("Free on the device 4.5 GiB, 512 B less than asked.") !=
        std::string::npos);
  r.device_free = r.asked;
  CHECK(std::string(out_of_memory(r).what()).find("Free on the device 4.5 GiB.") != std::string::npos);
}

TEST_CASE("cuda_error of a capture names capture_scope, and of an absent device the number of devices",
          "[core][error]") {
  cuda_error const captured({failure::other, 900, "cudaErrorStreamCaptureUnsupported", "cuMemCreate"}, 0);
  CHECK(std::string(captured.what()).find("allocate in a tarn::capture_scope") != std::string::npos);
  cuda_error const absent({failure::no_device, 101, "cudaErrorInvalidDevice", "page_granularity"}, 9);
  CHECK(std::string(absent.what()).find("there is no device of this number, see cudaGetDeviceCount()") !=
        std::string::npos);
}

TEST_CASE("An error's place can be replaced, also in its text", "[core][error][source_location]") {
  cuda_error e({failure::other, 700, "cudaErrorIllegalAddress", "cuMemMap"}, 3, {"library.hpp", 1, "f"});
  e.set_where({"solver.cpp", 42, "step"});
  std::string const text = e.what();
  CHECK(text.find("[solver.cpp:42]") != std::string::npos);
  CHECK(text.find("library.hpp") == std::string::npos);
  CHECK(e.where().line == 42);
  out_of_memory o(memory_report{});
  std::string const before = o.what();
  CHECK(before.find('[') == std::string::npos);
  o.set_where({"solver.cpp", 43, "step"});
  CHECK(o.what() == before + " [solver.cpp:43]");
  o.set_where({"solver.cpp", 44, "step"});
  CHECK(o.what() == before + " [solver.cpp:44]");
  CHECK(o.where().line == 44);
}

TEST_CASE("cuda_error of an unknown handle says that the stream may not exist", "[core][error]") {
  cuda_error const e({failure::other, 400, "cudaErrorInvalidResourceHandle", "cudaStreamGetId"}, 0);
  CHECK(std::string(e.what()).find("the stream may not exist any more") != std::string::npos);
}

TEST_CASE("cuda_error reports code, name, call, device and place", "[core][error][source_location]") {
  cuda_error const e({failure::other, 700, "cudaErrorIllegalAddress", "cuMemMap"}, 3);
  std::string const text = e.what();
  for (char const* part : {"cuMemMap", "cudaErrorIllegalAddress", "700", "device 3", "vocabulary.cpp"}) {
    CHECK(text.find(part) != std::string::npos);
  }
  CHECK(e.kind() == failure::other);
  CHECK(source_location::current().line == __LINE__);
}

TEST_CASE("cuda_error of any kind says what to do", "[core][error]") {
  for (failure const kind : {failure::not_ready, failure::out_of_memory, failure::unloading,
                             failure::unsupported, failure::no_device, failure::other}) {
    cuda_error const e({kind, 2, "cudaErrorOfSomeKind", "cudaEventCreate"}, 0);
    INFO(e.what());
    CHECK(std::string(e.what()).find("cudaErrorOfSomeKind (2); ") != std::string::npos);
  }
}

TEST_CASE("report_misuse calls the user's handler", "[core][misuse]") {
  static int reported = 0;
  auto const before =
      set_misuse_handler([](misuse const& m) { reported += m.kind() == misuse_kind::double_free ? 1 : 0; });
  report_misuse(misuse(misuse_kind::double_free, nullptr, "twice"));
  CHECK(reported == 1);
  CHECK(set_misuse_handler(before) != before);
}

TEST_CASE("Comparing stream_refs is an equivalence: of their handles", "[core][stream][device]") {
  int a = 0;
  int b = 0;
  stream_ref const bare = stream_ref::from(&a);
  stream_ref const fourth = stream_ref::from(&a, 4);
  stream_ref const fifth = stream_ref::from(&a, 5);
  CHECK(stream_ref{} == stream_ref::from(nullptr));
  CHECK((fourth == bare && bare == fifth && fourth == fifth));
  CHECK_FALSE(fifth == stream_ref::from(&b, 5));
  CHECK_FALSE(bare == stream_ref::from(&b));
  static_assert(!std::is_constructible_v<stream_ref, int>);
  CHECK(device_id{2} == device_id(2));
}

TEST_CASE("has_property, resource and page_source distinguish resources",
          "[core][property][resource][config]") {
  static_assert(has_property<host_memory, host_accessible>);
  static_assert(!has_property<host_memory, device_accessible>);
  static_assert(resource<host_memory> && !page_source<host_memory> && memory_source<host_memory>);
  static_assert(!resource<int>);
  CHECK(check_memory_source<host_memory>());
  CHECK(cache_line_bytes == 64);
}

TEST_CASE("counter keeps its peak through decreases and resets", "[core][counter]") {
  tarn::counter s;
  s.increase(10);
  s.decrease(4);
  s.increase(2);
  CHECK((s.current == 8 && s.peak == 10 && s.allocated == 12 && s.freed == 4));
  s.reset_peak();
  s.reset_totals();
  CHECK((s.peak == 8 && s.allocated == 0 && s.freed == 0));
}
