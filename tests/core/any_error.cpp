// SPDX-License-Identifier: Apache-2.0
// Every error of tarn: by which types it is caught, and the place that it names.
// tests/architecture/check.py finds a type that is missing here.

#include <exception>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "catch.hpp"
#include "tarn/core/any_error.hpp"
#include "tarn/core/error.hpp"
#include "tarn/dlpack.hpp"
#include "tarn/nccl.hpp"
#include "tarn/policy/accessible_from.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/traced.hpp"
#include "tarn/raii/copy.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/report/save_snapshot.hpp"
#include "tarn/report/timeline_html.hpp"
#include "tarn/sharing/sharing_error.hpp"
#include "tarn/sim.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/transfer/batch_options.hpp"
#include "tarn/transfer/mapped_file.hpp"
#include "tarn/transfer/micro_batches.hpp"
#include "tarn/transfer/partitioned_buffer.hpp"
#include "tarn/transfer/reservation.hpp"

#if TARN_HAS_NCCL
// NCCL's headers may be here without its library, which the unit tests do not link.
extern "C" char const* ncclGetErrorString(ncclResult_t) {
  return "invalid usage";
}
extern "C" char const* ncclGetLastError(ncclComm_t) {
  return "";
}
#endif

using namespace tarn;

namespace {

constexpr source_location users_line{"solver.cpp", 42, "step"};

/// Calls f(error, standard) for each error type of tarn, with its standard type.
template <class F>
void for_each_error(F const& f) {
  std::string const long_text(2000, 'x');
  f(length_error("tarn: too many elements"), static_cast<std::length_error*>(nullptr));
  f(dlpack_error(long_text), static_cast<std::invalid_argument*>(nullptr));
  f(bad_alignment(3, 256), static_cast<std::invalid_argument*>(nullptr));
  f(cuda_error({failure::other, 700, "cudaErrorIllegalAddress", "cuMemMap"}, 0, {}),
    static_cast<std::exception*>(nullptr));
  f(out_of_memory(memory_report{}), static_cast<std::bad_alloc*>(nullptr));
  f(reservation_exceeded(memory_report{}), static_cast<std::bad_alloc*>(nullptr));
  f(pool_asleep(100, 0), static_cast<std::exception*>(nullptr));
  f(misuse(misuse_kind::overlap, nullptr, long_text), static_cast<std::exception*>(nullptr));
  f(file_error(long_text, long_text, 2), static_cast<std::system_error*>(nullptr));
  f(unreachable_device(device_id{0}, device_id{1}), static_cast<std::runtime_error*>(nullptr));
  f(trace_error(3, long_text), static_cast<std::runtime_error*>(nullptr));
  f(bad_batch(long_text), static_cast<std::invalid_argument*>(nullptr));
  f(bad_partition(long_text), static_cast<std::invalid_argument*>(nullptr));
  f(sharing_error(sharing_failure::damaged, long_text, 2), static_cast<std::runtime_error*>(nullptr));
  f(unknown_format(long_text), static_cast<std::invalid_argument*>(nullptr));
#if TARN_HAS_NCCL
  f(nccl_error(ncclInvalidUsage, "ncclCommRegister", nullptr), static_cast<std::runtime_error*>(nullptr));
#endif
}

/// Returns what() as a handler of `Handled` sees it; empty: the handler is not reached.
template <class Handled, class Call>
std::string caught_as(Call const& call) {
  try {
    call();
  } catch (Handled const& error) {
    return error.what();
  } catch (...) {
  }
  return {};
}

}  // namespace

TEST_CASE(
    "Every error is caught as any_error, as its standard type and as std::exception, and names the user's "
    "line",
    "[core][error]") {
  for_each_error([]<class Error, class Standard>(Error const& error, Standard*) {
    std::string const unplaced = error.what();
    INFO(unplaced);
    auto const call = [&] { detail::called_from(users_line, [&] { throw Error(error); }); };
    std::string const text = caught_as<Error>(call);
    CHECK(text.ends_with(" [solver.cpp:42]"));
    CHECK(text.starts_with(unplaced.substr(0, 40)));
    CHECK(caught_as<any_error>(call) == text);
    CHECK(caught_as<Standard>(call) == text);
    CHECK(caught_as<std::exception>(call) == text);
  });
}

TEST_CASE("An error that is placed twice names the last place alone", "[core][error]") {
  for_each_error([]<class Error, class Standard>(Error const& error, Standard*) {
    Error placed(error);
    placed.set_where({"another.cpp", 123, "f"});
    placed.set_where(users_line);
    std::string const text = placed.what();
    CHECK(text.ends_with(" [solver.cpp:42]"));
    CHECK(text.find("another.cpp") == std::string::npos);
  });
}

TEST_CASE("An error that passes through a function of the user's keeps its place", "[core][error]") {
  for_each_error([]<class Error, class Standard>(Error const& error, Standard*) {
    try {
      detail::called_from({"outer.cpp", 1, "f"}, [&] {
        detail::call_user([&] { detail::called_from(users_line, [&] { throw Error(error); }); });
      });
    } catch (any_error const& caught) {
      CHECK(caught.where().line == 42);
      CHECK(std::string(caught.what()).ends_with("[solver.cpp:42]"));
    }
  });
}

TEST_CASE("file_error has the reason behind a long path", "[core][error]") {
  file_error const error(std::string(400, 'a') + "/missing.bin", "cannot be opened", 2);
  CHECK(std::string(error.what())
            .ends_with("missing.bin: cannot be opened (errno 2, No such file or directory)"));
  CHECK(error.error() == 2);
  CHECK(error.code() == std::errc::no_such_file_or_directory);
  // Without errno its code is that of an error, too.
  file_error const no_call("a.bin", "ends within an element", 0);
  CHECK(std::string(no_call.what()) == "tarn: a.bin: ends within an element");
  CHECK(no_call.error() == 0);
  CHECK(no_call.code() == std::errc::invalid_argument);
}

TEST_CASE("Errors of plain functions name the line of their call", "[core][error][pages]") {
  sim_machine const machine{sim_options{}};
  int const begin = __LINE__;
  auto const names_its_line = [](auto const& call) {
    try {
      call();
    } catch (any_error const& error) {
      INFO(error.what());
      CHECK(std::string_view(error.where().file).ends_with("any_error.cpp"));
      return error.where().line > begin;
    }
    return false;
  };
  sim_pages const pages{machine.driver(0)};
  auto memory = pages | pooled{};
  std::vector<int> some(3);
  std::vector<int> more(4);
  std::size_t const all = ~std::size_t{0};
  stream_ref const s;
  CHECK(names_its_line([&] { (void)partition_layout::even(10, 0); }));
  CHECK(names_its_line([&] { sim_pages const absent{machine.driver(9)}; }));
  CHECK(names_its_line([&] { mapped_file const file("/nowhere/at/all"); }));
  CHECK(names_its_line([&] { save_snapshot(memory, "/nowhere/at/all.csv"); }));
  CHECK(names_its_line([&] { save_snapshot(memory, "/nowhere/at/all.json"); }));
  CHECK(names_its_line([&] { save_timeline_html(memory, "/nowhere/at/all.html"); }));
  CHECK(names_its_line([&] { auto const t = host_memory{} | traced{"/nowhere/at/all"}; }));
  CHECK(names_its_line([&] { auto const t = pages | accessible_from{1}; }));
  CHECK(names_its_line([&] { (void)memory.allocate(s, 100, 3); }));
  CHECK(names_its_line([&] { (void)host_memory{}.allocate_sync(100, 3); }));
  CHECK(names_its_line([&] { (void)make_device_buffer<int>(memory, all, s); }));
  CHECK(names_its_line([&] { copy(machine.driver(0), std::span<int const>(some), std::span(more), s); }));
  CHECK(names_its_line([&] { (void)micro_batches(5, 100, std::size_t{50}); }));
}
