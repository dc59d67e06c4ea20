// SPDX-License-Identifier: Apache-2.0
#include "tarn/transfer/mapped_file.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <utility>

#include "catch.hpp"
#include "tarn/sim.hpp"
#include "transfer/batch_loops.hpp"

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
  return "no exception was thrown";
}
bool says(auto const& act, std::string_view path, std::string_view what) {
  std::string text;
  auto const said = refusal_of(text, act);
  return said.find(path) != std::string_view::npos && said.find(what) != std::string_view::npos;
}

}  // namespace

TEST_CASE("mapped_file gives the bytes of a file, and its elements", "[raii][mapped_file]") {
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

TEST_CASE("mapped_file of an empty file has no elements", "[raii][mapped_file]") {
  scratch_file const file({});
  mapped_file const mapped(file.path());
  CHECK(mapped.bytes() == 0);
  CHECK(mapped.as<double>().empty());
}

TEST_CASE("mapped_file moves its mapping, and the last owner unmaps it", "[raii][mapped_file]") {
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

TEST_CASE("mapped_file refuses an unreadable file and reports its name and the reason",
          "[raii][mapped_file]") {
  CHECK(says([] { mapped_file const none("/tmp/tarn_no_such_file"); }, "/tmp/tarn_no_such_file",
             "opened for reading (errno 2, No such file or directory)"));
  CHECK(says([] { mapped_file const folder("/tmp"); }, "/tmp", "not a regular file"));
  scratch_file const file(counted(3));
  mapped_file const mapped(file.path());
  CHECK(says([&] { (void)mapped.as<double>(); }, file.path(), "ends within an element"));
  CHECK(says([&] { (void)from_file<double>(mapped); }, file.path(), "ends within an element"));
  std::byte beyond[8];
  CHECK(says([&] { mapped.read(8, beyond); }, file.path(), "is shorter than"));
}

TEST_CASE("stream_batches over a mapped_file throws if the file is truncated during the loop",
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
    CHECK(says(loop, file.path(), "is shorter than"));
    CHECK(seen >= 2);
    CHECK(seen < 10);
  }
  CHECK(machine.leaks().total() == 1);  // the stream
}

namespace {
/// Ends the program if an act that must not block does block.
struct patience {
  patience() { ::alarm(10); }
  ~patience() { ::alarm(0); }
};
}  // namespace

TEST_CASE("mapped_file refuses a FIFO at once, with and without a writer", "[raii][mapped_file]") {
  patience const limit;
  std::string const path = "/tmp/tarn_fifo_" + std::to_string(::getpid());
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK(says([&] { mapped_file const fifo(path); }, path, "not a regular file"));
  int const kept_open = ::open(path.c_str(), O_RDWR | O_NONBLOCK);  // now the FIFO has a writer
  CHECK(says([&] { mapped_file const fifo(path); }, path, "not a regular file"));
  ::close(kept_open);
  CHECK(::unlink(path.c_str()) == 0);
}

TEST_CASE("mapped_file refuses devices, folders, sockets and files without a size", "[raii][mapped_file]") {
  patience const limit;
  for (std::string const path : {"/dev/null", "/dev/zero", "/dev/full", "/tmp"}) {
    if (::access(path.c_str(), F_OK) != 0) continue;
    CHECK(says([&] { mapped_file const special(path); }, path, "not a regular file"));
  }
  std::string const socket_path = "/tmp/tarn_socket_" + std::to_string(::getpid());
  int const socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket_path.copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(::bind(socket, reinterpret_cast<sockaddr const*>(&address), sizeof address) == 0);
  CHECK(says([&] { mapped_file const special(socket_path); }, socket_path, "not a regular file"));
  ::close(socket);
  ::unlink(socket_path.c_str());
  // A generated file: its size is 0, but it has contents.
  CHECK(says([] { mapped_file const made_up("/proc/self/status"); }, "/proc/self/status",
             "its size is unknown"));
}

TEST_CASE("mapped_file follows symbolic links and refuses dangling ones", "[raii][mapped_file]") {
  scratch_file const file(counted(5));
  std::string const link = file.path() + "_link";
  REQUIRE(::symlink(file.path().c_str(), link.c_str()) == 0);
  CHECK(mapped_file(link).as<std::uint32_t>()[4] == 5);
  CHECK(::unlink(link.c_str()) == 0);
  REQUIRE(::symlink("/tmp/tarn_no_such_file", link.c_str()) == 0);
  CHECK(says([&] { mapped_file const dangling(link); }, link,
             "opened for reading (errno 2, No such file or directory)"));
  CHECK(::unlink(link.c_str()) == 0);
}
