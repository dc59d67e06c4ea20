// SPDX-License-Identifier: Apache-2.0
// export_block() and import_block(): blocks of many handles in a second process, what is refused, and what is
// left after a failure.

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/check_unsupported.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sharing.hpp"
#include "tarn/sharing/block_description.hpp"
#include "tarn/sharing/exported_block.hpp"
#include "tarn/sharing/imported_block.hpp"
#include "tarn/sharing/unix_socket.hpp"
#include "tarn/sim.hpp"

using namespace tarn;
using tarn_test::check_unsupported;

namespace {

sim_options sharing_machine(sim_sharing sharing = sim_sharing::descriptors) {
  sim_options o;
  o.capacity = 2_GiB;
  o.taken = 0;
  o.sharing = sharing;
  return o;
}

/// Both ends of a connection.
struct connection {
  connection() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    exporter = unique_descriptor(ends[0]);
    importer = unique_descriptor(ends[1]);
  }
  unique_descriptor exporter;
  unique_descriptor importer;
};

void write(void* p, std::size_t bytes, unsigned seed) {
  auto* const to = static_cast<unsigned char*>(p);
  for (std::size_t i = 0; i < bytes; ++i) to[i] = static_cast<unsigned char>((i >> 12) * 7 + i + seed);
}
bool holds(void const* p, std::size_t bytes, unsigned seed) {
  auto const* const from = static_cast<unsigned char const*>(p);
  for (std::size_t i = 0; i < bytes; ++i) {
    if (from[i] != static_cast<unsigned char>((i >> 12) * 7 + i + seed)) return false;
  }
  return true;
}
int open_descriptors() {
  int count = 0;
  ::DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  (void)::closedir(folder);
  return count;
}

/// Runs `body` in a second process; its result is the exit status. Has no memory of the parent's machines.
template <class F>
pid_t in_another_process(F const& body) {
  pid_t const child = ::fork();
  if (child == 0) {
    int status = 99;
    try {
      status = body();
    } catch (...) {
    }
    ::_exit(status);
  }
  return child;
}
int status_of(pid_t child) {
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

template <class F>
std::optional<sharing_failure> failure_of(F const& call) {
  try {
    (void)call();
  } catch (sharing_error const& error) {
    CHECK(std::string(error.what()).starts_with("tarn: "));
    return error.kind();
  }
  return std::nullopt;
}

/// Passes the exported pages on within this process.
template <class Memory>
auto pages_of(exported_block<Memory> const& block) {
  return [&block](std::size_t i) { return block.pages(i); };
}

/// Sends on a thread of its own, and returns what receive_block() on this one does.
template <class Memory, class Receive>
auto while_sending(exported_block<Memory> const& block, connection& c, Receive const& receive) {
  std::optional<sharing_failure> failed;
  std::thread sender([&] {
    failed = failure_of([&] {
      send_block(c.exporter.get(), block);
      return 0;
    });
  });
  try {
    auto received = receive();
    sender.join();
    CHECK_FALSE(failed);
    return received;
  } catch (...) {
    sender.join();
    CHECK(failed);
    throw;
  }
}

}  // namespace

TEST_CASE("receive_block maps a block of over 100 handles in a second process, with each byte",
          "[raii][sharing][pages][no_emulator]") {
  sim_machine const machine(sharing_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{.largest_handle = 2_MiB} | tracked{};
  constexpr std::size_t bytes = 300_MiB;
  void* const p = memory.allocate({}, bytes);
  write(p, bytes, 1);
  auto* const part = static_cast<unsigned char*>(p) + 1_MiB + 256;
  auto const block = export_block(memory, part, bytes - 2_MiB);
  CHECK(block.description().handles.size() >= 100);
  CHECK(block.data() == part);
  connection c;
  pid_t const child = in_another_process([&] {
    c.exporter = {};
    sim_machine const other(sharing_machine());
    auto received = receive_block(c.importer.get(), sim_pages{other.driver(0)});
    if (!holds(received.data(), received.size_bytes(), 1 + static_cast<unsigned>((1_MiB >> 12) * 7))) {
      // The pattern depends on the offset in the whole block.
      auto const* const from = static_cast<unsigned char const*>(received.data());
      for (std::size_t i = 0; i < received.size_bytes(); ++i) {
        std::size_t const at = i + 1_MiB + 256;
        if (from[i] != static_cast<unsigned char>((at >> 12) * 7 + at + 1)) return 1;
      }
    }
    write(received.data(), received.size_bytes(), 5);
    return received.size_bytes() == 298_MiB ? 0 : 2;
  });
  c.importer = {};
  int const before = open_descriptors();
  send_block(c.exporter.get(), block);
  CHECK(open_descriptors() == before);
  CHECK(status_of(child) == 0);
  CHECK(holds(part, bytes - 2_MiB, 5));  // the same memory: what the other process wrote is here
  memory.deallocate({}, p, bytes);
}

TEST_CASE("import_block on the same machine shows the same memory, and leaves nothing behind",
          "[raii][sharing][pages]") {
  sim_machine const machine(sharing_machine());
  sim_driver const driver = machine.driver(0);
  {
    auto memory = sim_pages{driver} | pooled{.largest_handle = 4_MiB};
    void* const p = memory.allocate({}, 30_MiB);
    write(p, 30_MiB, 3);
    auto const used = machine.usage().used;
    {
      auto block = export_block(memory, p, 30_MiB);
      auto imported = import_block(memory, block.description(), pages_of(block));
      CHECK(imported.data() != p);
      CHECK(imported.size_bytes() == 30_MiB);
      CHECK_FALSE(imported.has_events());
      CHECK(holds(imported.data(), 30_MiB, 3));
      write(imported.data(), 30_MiB, 4);
      CHECK(machine.usage().used == used);
      auto moved = std::move(imported);
      CHECK(holds(moved.data(), 30_MiB, 4));
    }
    CHECK(holds(p, 30_MiB, 4));
    memory.deallocate({}, p, 30_MiB);
  }
  CHECK(machine.leaks().total() == 0);
  CHECK(machine.usage().used == 0);
}

TEST_CASE("an imported block keeps its memory after the exporting pool has ended", "[raii][sharing][pages]") {
  sim_machine const machine(sharing_machine());
  sim_driver const driver = machine.driver(0);
  {
    auto imported = [&] {
      auto memory = sim_pages{driver} | pooled{.largest_handle = 2_MiB};
      void* const p = memory.allocate({}, 9_MiB);
      write(p, 9_MiB, 7);
      auto result = [&] {
        auto block = export_block(memory, p, 9_MiB);
        CHECK((block.data() == p && block.size_bytes() == 9_MiB));
        return import_block(memory, block.description(), pages_of(block));
      }();
      memory.deallocate({}, p, 9_MiB);
      return result;
    }();
    CHECK(machine.usage().used >= 9_MiB);
    CHECK(holds(imported.data(), 9_MiB, 7));
  }
  CHECK(machine.leaks().total() == 0);
  CHECK(machine.usage().used == 0);
}

TEST_CASE("an imported block has the alignment that its exporter names", "[raii][sharing][pages]") {
  sim_machine const machine(sharing_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{.largest_handle = 2_MiB};
  void* const unaligned = memory.allocate({}, 6_MiB + 4_KiB);
  void* const p = memory.allocate({}, 5_MiB, 2_MiB);
  auto* const odd = static_cast<unsigned char*>(p) + 64_KiB;
  auto const aligned = export_block(memory, p, 5_MiB, stream_ref{}, 2_MiB);
  auto const block = export_block(memory, odd, 4_MiB, stream_ref{}, 64_KiB);
  // Other ranges between, so that the addresses differ.
  std::vector<decltype(import_block(memory, block.description(), pages_of(block)))> all;
  for (int i = 0; i < 3; ++i) {
    all.push_back(import_block(memory, aligned.description(), pages_of(aligned)));
    CHECK(reinterpret_cast<std::uintptr_t>(all.back().data()) % 2_MiB == 0);
    all.push_back(import_block(memory, block.description(), pages_of(block)));
    CHECK(reinterpret_cast<std::uintptr_t>(all.back().data()) % 64_KiB == 0);
  }
  CHECK_THROWS_AS(export_block(memory, odd, 1_MiB, stream_ref{}, 128_KiB), bad_alignment);
  CHECK_THROWS_AS(export_block(memory, odd, 1_MiB, stream_ref{}, 3), bad_alignment);
  CHECK_THROWS_AS(export_block(memory, p, 1_MiB, stream_ref{}, 4_MiB), bad_alignment);
  all.clear();
  memory.deallocate({}, p, 5_MiB, 2_MiB);
  memory.deallocate({}, unaligned, 6_MiB + 4_KiB);
}

TEST_CASE("events order an importer's stream after the exporter's, and back", "[raii][sharing][pages]") {
  sim_options options = sharing_machine();
  options.checks = sim_checks::stream_order;
  sim_machine const machine(options);
  sim_driver const driver = machine.driver(0);
  stream_ref ours;
  stream_ref theirs;
  REQUIRE(driver.create_stream(ours).ok());
  REQUIRE(driver.create_stream(theirs).ok());
  auto memory = sim_pages{driver} | pooled{.largest_handle = 2_MiB};
  void* const p = memory.allocate(ours, 8_MiB);
  machine.allocated(p, 8_MiB, ours);
  REQUIRE(driver.launch(ours, 1'000'000, {sim_writes(p, 8_MiB)}).ok());
  {
    auto block = export_block(memory, p, 8_MiB, ours);
    auto imported = import_block(memory, block.description(), pages_of(block));
    REQUIRE(imported.has_events());
    imported.wait_ready(theirs);
    CHECK(machine.is_ordered(ours, theirs));
    REQUIRE(driver.launch(theirs, 1'000'000, {sim_reads(imported.data(), 8_MiB)}).ok());
    CHECK_FALSE(machine.is_ordered(theirs, ours));
    imported.record_done(theirs);
    block.wait_done(ours);
    CHECK(machine.is_ordered(theirs, ours));
    REQUIRE(driver.launch(ours, 1'000'000, {sim_writes(p, 8_MiB)}).ok());
    CHECK_FALSE(machine.is_ordered(ours, theirs));
    block.record_ready(ours);
    imported.wait_ready(theirs);
    CHECK(machine.is_ordered(ours, theirs));
    REQUIRE(driver.launch(theirs, 1'000, {sim_reads(imported.data(), 8_MiB)}).ok());
    imported.record_done(theirs);
    block.wait_done(ours);
    machine.freed(p, 8_MiB, ours);
    CHECK(machine.findings().empty());
    // The checker knows the memory by its other address, too: it is used after the exporter has freed it.
    REQUIRE(driver.launch(theirs, 1'000, {sim_writes(imported.data(), 8_MiB)}).ok());
    REQUIRE(driver.synchronize_device().ok());
    CHECK_FALSE(machine.findings().empty());
  }
  memory.deallocate(ours, p, 8_MiB);
  (void)driver.synchronize_device();
  (void)driver.destroy_stream(ours);
  (void)driver.destroy_stream(theirs);
}

TEST_CASE("synchronize_ready and synchronize_done wait on the host, until a limit or the end of the exporter",
          "[raii][sharing][pages]") {
  sim_machine const machine(sharing_machine());
  sim_driver const driver = machine.driver(0);
  auto memory = sim_pages{driver} | pooled{};
  stream_ref ours;
  stream_ref theirs;
  REQUIRE(driver.create_stream(ours).ok());
  REQUIRE(driver.create_stream(theirs).ok());
  void* const p = memory.allocate(ours, 8_MiB);
  bool is_written = false;
  REQUIRE(machine.launch(ours, 2'000, [&] { is_written = true; }).ok());
  {
    auto block = export_block(memory, p, 8_MiB, ours);
    // The exporter is another process, which is killed below.
    pid_t const child = in_another_process([] { return ::pause(); });
    auto description = block.description();
    description.exporter.pid = static_cast<std::uint64_t>(child);
    description.exporter.started =
        detail::status_of_process(("/proc/" + std::to_string(child) + "/stat").c_str()).started;
    REQUIRE(description.exporter.started != 0);
    auto const imported = import_block(memory, description, pages_of(block));
    imported.synchronize_ready();
    CHECK(is_written);
    bool is_read = false;
    REQUIRE(machine.launch(theirs, 2'000, [&] { is_read = true; }).ok());
    imported.record_done(theirs);
    block.synchronize_done();
    CHECK(is_read);

    REQUIRE(driver.launch(ours, 3'600'000'000'000, {}).ok());
    block.record_ready(ours);
    imported.record_done(ours);
    auto const ready = [&] {
      return failure_of([&] {
        imported.synchronize_ready(std::chrono::seconds(20));
        return 0;
      });
    };
    using std::chrono::milliseconds;
    CHECK(failure_of([&] {
            imported.synchronize_ready(milliseconds(30));
            return 0;
          }) == sharing_failure::timed_out);
    CHECK(failure_of([&] {
            block.synchronize_done(milliseconds(30));
            return 0;
          }) == sharing_failure::timed_out);
    CHECK(failure_of([&] {
            block.synchronize_done(milliseconds(0));
            return 0;
          }) == sharing_failure::timed_out);
    REQUIRE(::kill(child, SIGKILL) == 0);
    REQUIRE(ready() == sharing_failure::exporter_ended);  // its parent has not waited for it
    CHECK(failure_of([&] {
            imported.synchronize_ready(milliseconds::max());  // no overflow
            return 0;
          }) == sharing_failure::exporter_ended);
    (void)status_of(child);
    CHECK(ready() == sharing_failure::exporter_ended);
    // What the exporter did before its end counts.
    REQUIRE(driver.synchronize_device().ok());
    imported.synchronize_ready();
  }
  auto const plain = export_block(memory, p, 8_MiB);
  CHECK_THROWS_AS(plain.synchronize_done(), cuda_error);
  CHECK_THROWS_AS(import_block(memory, plain.description(), pages_of(plain)).synchronize_ready(), cuda_error);
  memory.deallocate(ours, p, 8_MiB);
}

TEST_CASE("wait_ready and wait_done throw if the other process was killed before its work had ended",
          "[raii][sharing][pages]") {
  sim_machine const machine(sharing_machine());
  sim_driver const driver = machine.driver(0);
  auto memory = sim_pages{driver} | pooled{.largest_handle = 2_MiB};
  stream_ref theirs;
  stream_ref ours;
  REQUIRE(driver.create_stream(theirs).ok());
  REQUIRE(driver.create_stream(ours).ok());
  void* const p = memory.allocate(theirs, 8_MiB);
  constexpr std::uint64_t an_hour = 3'600'000'000'000;
  REQUIRE(driver.launch(theirs, an_hour, {}).ok());
  {
    // This process does what the other one does until that is killed.
    pid_t const child = in_another_process([] { return ::pause(); });
    process_identity other = detail::this_process_identity();
    other.pid = static_cast<std::uint64_t>(child);
    other.started = detail::status_of_process(("/proc/" + std::to_string(child) + "/stat").c_str()).started;
    REQUIRE(other.started != 0);

    auto block = export_block(memory, p, 8_MiB, theirs);
    auto const unsent = export_block(memory, p, 8_MiB, theirs);
    auto description = block.description();
    description.exporter = other;
    connection c;
    std::optional<sharing_failure> failed;
    std::thread sender([&] {
      failed = failure_of([&] {
        send_block(c.exporter.get(), block);
        return 0;
      });
    });
    detail::unix_socket const peer(c.importer.get(), default_sharing_timeout);
    std::uint64_t size = 0;
    peer.receive(std::as_writable_bytes(std::span(&size, 1)));
    std::vector<std::byte> bytes(size);
    peer.receive(bytes);
    detail::give_answer(peer, detail::import_answer::go_on);
    detail::group_receiver groups(peer, description);
    auto const imported = import_block(memory, description, [&](std::size_t i) { return groups.take(i); });
    detail::give_answer(peer, detail::import_answer::go_on);
    detail::give_answer(peer, detail::import_answer::go_on);
    detail::send_identity(peer, other);
    sender.join();
    CHECK_FALSE(failed);
    auto const of_unsent = import_block(memory, unsent.description(), pages_of(unsent));

    auto const ready = [&] {
      return failure_of([&] {
        imported.wait_ready(ours);
        return 0;
      });
    };
    auto const done = [&](auto const& of) {
      return failure_of([&] {
        of.wait_done(ours);
        return 0;
      });
    };
    imported.record_done(theirs);
    of_unsent.record_done(theirs);
    // While the other process lives, its work may end.
    CHECK_FALSE(ready());
    CHECK_FALSE(done(block));
    REQUIRE(::kill(child, SIGKILL) == 0);
    // The system ends it a little later.
    for (int i = 0; i < 2000 && !ready(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    REQUIRE(ready() == sharing_failure::exporter_ended);
    CHECK(done(block) == sharing_failure::importer_ended);
    CHECK(failure_of([&] {
            block.synchronize_done();
            return 0;
          }) == sharing_failure::importer_ended);
    (void)status_of(child);
    CHECK(ready() == sharing_failure::exporter_ended);
    CHECK(done(block) == sharing_failure::importer_ended);
    CHECK_FALSE(done(unsent));  // who imports it is not known
    auto const moved = std::move(block);
    CHECK(done(moved) == sharing_failure::importer_ended);
    // What it did before its end counts.
    REQUIRE(driver.synchronize_device().ok());
    CHECK_FALSE(ready());
    CHECK_FALSE(done(moved));
  }
  memory.deallocate(theirs, p, 8_MiB);
}

TEST_CASE("an import that ends while a stream is captured stays mapped, as work may use it",
          "[raii][sharing][pages]") {
  sim_machine const machine(sharing_machine());
  sim_driver const driver = machine.driver(0);
  auto memory = sim_pages{driver} | pooled{};
  stream_ref s;
  REQUIRE(driver.create_stream(s).ok());
  void* const p = memory.allocate({}, 8_MiB);
  auto const block = export_block(memory, p, 8_MiB);
  void* at = nullptr;
  sim_graph graph;
  {
    auto const imported = import_block(memory, block.description(), pages_of(block));
    at = imported.data();
    REQUIRE(machine.begin_capture(s).ok());
  }
  CHECK(machine.is_accessible(at, 8_MiB));
  (void)machine.end_capture(s, graph);  // invalid, as CUDA makes it
  memory.deallocate({}, p, 8_MiB);
}

TEST_CASE("a socket that passes credentials, too, has room for all descriptors", "[raii][sharing][pages]") {
  sim_machine const machine(sharing_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{.largest_handle = 2_MiB};
  void* const p = memory.allocate({}, 300_MiB);
  auto const block = export_block(memory, p, 300_MiB);
  REQUIRE(block.description().handles.size() > 128);
  connection c;
  int const yes = 1;
  REQUIRE(::setsockopt(c.importer.get(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) == 0);
  auto const imported = while_sending(block, c, [&] { return receive_block(c.importer.get(), memory); });
  CHECK(imported.size_bytes() == 300_MiB);
  memory.deallocate({}, p, 300_MiB);
}

TEST_CASE("unix_socket reports descriptors that its process has no room for",
          "[raii][sharing][no_emulator]") {
  pid_t const child = in_another_process([] {
    connection c;
    std::byte const sent{1};
    int const descriptors[] = {STDIN_FILENO, STDOUT_FILENO};
    detail::unix_socket(c.exporter.get(), default_sharing_timeout).send({&sent, 1}, descriptors);
    ::rlimit low{};
    (void)::getrlimit(RLIMIT_NOFILE, &low);
    low.rlim_cur = 0;
    (void)::setrlimit(RLIMIT_NOFILE, &low);
    std::byte got{};
    std::vector<unique_descriptor> received;
    bool const reported =
        failure_of([&] {
          detail::unix_socket(c.importer.get(), default_sharing_timeout).receive({&got, 1}, &received);
          return 0;
        }) == sharing_failure::system;
    return reported ? 0 : 1;
  });
  CHECK(status_of(child) == 0);
}

TEST_CASE("unix_socket gives up a peer that sends single bytes after the limit of the whole step",
          "[raii][sharing]") {
  connection c;
  std::atomic<bool> is_given_up{false};
  std::thread slow([&] {
    // As long as the other side waits; half a minute suffices to find that it does not give up.
    for (int i = 0; i < 1000 && !is_given_up; ++i) {
      if (::send(c.exporter.get(), "\1", 1, MSG_NOSIGNAL) != 1) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    (void)::shutdown(c.exporter.get(), SHUT_RDWR);
  });
  std::vector<std::byte> bytes(1_MiB);
  CHECK(failure_of([&] {
          detail::unix_socket(c.importer.get(), std::chrono::milliseconds(60)).receive(bytes);
          return 0;
        }) == sharing_failure::timed_out);
  is_given_up = true;
  slow.join();
}

TEST_CASE("a description whose count would lie in its checksum is refused", "[raii][sharing][pages]") {
  sim_machine const machine(sharing_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  void* const p = memory.allocate({}, 1_MiB);
  auto good = export_block(memory, p, 1_MiB).description();
  std::size_t refused = 0;
  for (std::uint64_t number = 0; number < 2000; ++number) {
    good.number = number;
    auto bytes = good.to_bytes();
    std::size_t const fixed =
        bytes.size() - 3 * sizeof(std::uint64_t);  // the count, one handle, the checksum
    bytes.resize(fixed);
    for (int i = 0; i < 7; ++i) bytes.push_back(std::byte{0xFF});
    std::uint64_t const size = bytes.size() + sizeof(std::uint64_t);
    std::memcpy(bytes.data() + 12, &size, sizeof size);
    std::uint64_t sum = 0xcbf29ce484222325U;
    for (std::byte const b : bytes) sum = (sum ^ static_cast<std::uint64_t>(b)) * 0x100000001b3U;
    auto const* const of_sum = reinterpret_cast<std::byte const*>(&sum);
    bytes.insert(bytes.end(), of_sum, of_sum + sizeof sum);
    refused +=
        failure_of([&] { return block_description::from_bytes(bytes).bytes; }) == sharing_failure::truncated;
  }
  CHECK(refused == 2000);
  memory.deallocate({}, p, 1_MiB);
}

TEST_CASE("exported blocks are pinned: sleep and the end of other blocks leave them in place",
          "[raii][sharing][pages]") {
  sim_machine const machine(sharing_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{.largest_handle = 2_MiB};
  void* const p = memory.allocate({}, 8_MiB);
  void* const other = memory.allocate({}, 8_MiB);
  write(p, 8_MiB, 9);
  {
    auto block = export_block(memory, p, 8_MiB);
    auto imported = import_block(memory, block.description(), pages_of(block));
    memory.deallocate({}, other, 8_MiB);
    (void)sleep(memory, contents::discarded);
    CHECK(holds(imported.data(), 8_MiB, 9));
    CHECK(holds(p, 8_MiB, 9));
    (void)wake(memory);
    write(p, 8_MiB, 10);
    CHECK(holds(imported.data(), 8_MiB, 10));
  }
  memory.deallocate({}, p, 8_MiB);
}

TEST_CASE("pages on a fabric are imported by their tokens", "[raii][sharing][pages]") {
  sim_machine const machine(sharing_machine(sim_sharing::descriptors_and_fabric));
  sim_pages const source(machine.driver(0), allocation_handle_type::fabric);
  CHECK(source.handle_type() == allocation_handle_type::fabric);
  auto memory = source | pooled{.largest_handle = 2_MiB};
  void* const p = memory.allocate({}, 200_MiB);
  write(p, 200_MiB, 2);
  auto block = export_block(memory, p, 200_MiB);
  CHECK(block.description().type == allocation_handle_type::fabric);
  connection c;
  auto imported = while_sending(block, c, [&] { return receive_block(c.importer.get(), memory); });
  CHECK(holds(imported.data(), 200_MiB, 2));
  memory.deallocate({}, p, 200_MiB);
}

TEST_CASE("the handle type of a source is the wanted one, or the best that the device has",
          "[raii][sharing][pages]") {
  using type = allocation_handle_type;
  sim_machine const none(sharing_machine(sim_sharing::none));
  sim_machine const descriptors(sharing_machine());
  CHECK(sim_pages(none.driver(0)).handle_type() == type::none);
  CHECK(sim_pages(none.driver(0), type::fabric).handle_type() == type::none);
  CHECK(sim_pages(descriptors.driver(0)).handle_type() == type::posix_file_descriptor);
  CHECK(sim_pages(descriptors.driver(0), type::fabric).handle_type() == type::posix_file_descriptor);
  CHECK(sim_pages(descriptors.driver(0), type::none).handle_type() == type::none);
  fault_plan plan;
  plan.fail(driver_call::can_export_pages, 1);
  faulty<sim_driver> const faulty(descriptors.driver(0), plan);
  CHECK(basic_pages(faulty).handle_type() == type::none);
}

TEST_CASE("export_block refuses what cannot be exported, and says what to do", "[raii][sharing][pages]") {
  sim_machine const machine(sharing_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  auto hidden = sim_pages{machine.driver(0), allocation_handle_type::none} | pooled{};
  void* const p = memory.allocate({}, 4_MiB);
  void* const q = hidden.allocate({}, 4_MiB);
  int local = 0;
  for (auto const& [at, bytes] :
       {std::pair<void*, std::size_t>{&local, 4}, {p, 4_MiB + 4096}, {q, 4_MiB}, {nullptr, 16}}) {
    try {
      (void)export_block(memory, at, bytes);
      FAIL("exported " << bytes);
    } catch (misuse const& error) {
      CHECK(error.kind() == misuse_kind::foreign_pointer);
    }
  }
  check_unsupported([&] { (void)export_block(hidden, q, 4_MiB); }, {"posix_file_descriptor", "sharing.cpp"});
  auto const block = export_block(memory, p, 4_MiB);
  CHECK_THROWS_AS(block.wait_done({}), cuda_error);
  CHECK_THROWS_AS(block.record_ready({}), cuda_error);
  memory.deallocate({}, p, 4_MiB);
  CHECK_THROWS_AS(export_block(memory, p, 4_MiB), misuse);  // freed
  hidden.deallocate({}, q, 4_MiB);
}

TEST_CASE("from_bytes refuses each truncation and each changed byte of a description",
          "[raii][sharing][pages]") {
  sim_machine const machine(sharing_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{.largest_handle = 2_MiB};
  void* const p = memory.allocate({}, 8_MiB);
  auto const block = export_block(memory, p, 8_MiB, stream_ref{});
  auto const bytes = block.description().to_bytes();
  CHECK(block_description::from_bytes(bytes) == block.description());
  auto const read = [](std::span<std::byte const> in) { return block_description::from_bytes(in); };
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    CHECK(failure_of([&] { return read(std::span(bytes).first(n)); }) == sharing_failure::truncated);
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto changed = bytes;
    changed[i] ^= std::byte{0x41};
    auto const failed = failure_of([&] { return read(changed); });
    CHECK(failed);
    if (i >= 8 && i < 12) CHECK(failed == sharing_failure::other_version);
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  CHECK(failure_of([&] { return read(longer); }) == sharing_failure::damaged);
  memory.deallocate({}, p, 8_MiB);
}

TEST_CASE(
    "import_block refuses a description that contradicts itself, or is of another device, machine or a "
    "process that ended",
    "[raii][sharing][pages]") {
  sim_options options = sharing_machine();
  options.devices = 2;
  sim_machine const machine(options);
  auto memory = sim_pages{machine.driver(0)} | pooled{.largest_handle = 2_MiB};
  void* const p = memory.allocate({}, 8_MiB);
  {
    auto const block = export_block(memory, p, 8_MiB);
    auto const refused = [&](auto const& change) {
      block_description d = block.description();
      change(d);
      return failure_of([&] { return import_block(memory, d, pages_of(block)); });
    };
    using d = block_description;
    CHECK_FALSE(refused([](d&) {}));
    CHECK(refused([](d& x) { x.bytes += 2_MiB; }) == sharing_failure::damaged);
    CHECK(refused([](d& x) { x.bytes -= 4_MiB; }) == sharing_failure::damaged);
    CHECK(refused([](d& x) { x.bytes = 0; }) == sharing_failure::damaged);
    CHECK(refused([](d& x) { x.offset += 2_MiB; }) == sharing_failure::damaged);
    CHECK(refused([](d& x) { x.offset = ~std::size_t{0} - 4_MiB; }) == sharing_failure::damaged);
    CHECK(refused([](d& x) { x.handles.clear(); }) == sharing_failure::damaged);
    CHECK(refused([](d& x) { x.handles.push_back(2_MiB); }) == sharing_failure::damaged);
    CHECK(refused([](d& x) { x.handles.assign(x.handles.size(), ~std::size_t{0}); }) ==
          sharing_failure::damaged);
    CHECK(refused([](d& x) { x.handles.back() += 4_KiB; }) == sharing_failure::damaged);
    CHECK(refused([](d& x) { x.alignment = 3; }) == sharing_failure::damaged);
    CHECK(refused([](d& x) { x.offset += 4_KiB, x.bytes -= 4_KiB, x.alignment = 64_KiB; }) ==
          sharing_failure::damaged);
    CHECK(refused([](d& x) { x.type = allocation_handle_type::none; }) == sharing_failure::damaged);
    CHECK(refused([](d& x) { x.type = static_cast<allocation_handle_type>(77); }) ==
          sharing_failure::damaged);
    CHECK(refused([](d& x) { x.type = allocation_handle_type::fabric; }) == sharing_failure::wrong_pages);
    CHECK(refused([](d& x) { x.device[8] ^= 1; }) == sharing_failure::other_device);
    CHECK(refused([](d& x) { x.exporter.machine[0] ^= 1; }) == sharing_failure::other_machine);
    CHECK(refused([](d& x) { ++x.exporter.started; }) == sharing_failure::exporter_ended);
    CHECK(refused([](d& x) { x.exporter.pid = 4'000'000'000; }) == sharing_failure::exporter_ended);
    CHECK_FALSE(refused([](d& x) {
      x.exporter.started = 0, x.exporter.pid = 4'000'000'000;
    }));  // the system does not report it
    CHECK(failure_of([&] {
            return import_block(sim_pages{machine.driver(1)}, block.description(), pages_of(block));
          }) == sharing_failure::other_device);
  }
  memory.deallocate({}, p, 8_MiB);
  empty_cache(memory);
  CHECK(machine.leaks().maps == 0);
  CHECK(machine.leaks().handles == 0);
}

TEST_CASE("a description that is replayed after its exporter has ended is refused",
          "[raii][sharing][pages]") {
  connection c;
  pid_t const child = in_another_process([&] {
    sim_machine const machine(sharing_machine());
    auto memory = sim_pages{machine.driver(0)} | pooled{};
    auto const block = export_block(memory, memory.allocate({}, 4_MiB), 4_MiB);
    auto const bytes = block.description().to_bytes();
    std::uint64_t const size = bytes.size();
    detail::unix_socket const peer(c.exporter.get(), default_sharing_timeout);
    peer.send(std::as_bytes(std::span(&size, 1)));
    peer.send(bytes);
    return 0;
  });
  CHECK(status_of(child) == 0);
  sim_machine const machine(sharing_machine());
  CHECK(failure_of([&] { return receive_block(c.importer.get(), sim_pages{machine.driver(0)}); }) ==
        sharing_failure::exporter_ended);
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("send_block says that the other process refused the block", "[raii][sharing][pages][no_emulator]") {
  sim_machine const machine(sharing_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  void* const p = memory.allocate({}, 4_MiB);
  {
    auto const block = export_block(memory, p, 4_MiB);
    connection c;
    fault_plan const plan;
    auto elsewhere = basic_pages<faulty<sim_driver>>(faulty(machine.driver(0), plan)) | pooled{};
    plan.fail(driver_call::import_pages, 1);
    bool failed = false;
    std::thread importer([&] {
      try {
        (void)receive_block(c.importer.get(), elsewhere);
      } catch (cuda_error const&) {
        failed = true;
      }
    });
    CHECK(failure_of([&] {
            send_block(c.exporter.get(), block);
            return 0;
          }) == sharing_failure::refused);
    importer.join();
    CHECK(failed);
  }
  memory.deallocate({}, p, 4_MiB);
}

TEST_CASE("descriptors of something else are never mapped", "[raii][sharing][pages]") {
  sim_machine const machine(sharing_machine());
  {
    auto memory = sim_pages{machine.driver(0)} | pooled{.largest_handle = 4_MiB};
    void* const p = memory.allocate({}, 12_MiB);
    void* const small = memory.allocate({}, 2_MiB);
    {
      auto const block = export_block(memory, p, 12_MiB);
      auto const other = export_block(memory, small, 2_MiB);
      int const before = open_descriptors();
      auto const import_with = [&](auto const& next) {
        return import_block(memory, block.description(), next);
      };
      auto const of_file = [](std::size_t) {
        page_export e;
        e.type = allocation_handle_type::posix_file_descriptor;
        e.descriptor = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
        return exported_pages(e);
      };
      auto const closed = [](std::size_t) {
        page_export e;
        e.type = allocation_handle_type::posix_file_descriptor;
        return exported_pages(e);
      };
      auto const shorter = [&](std::size_t i) { return i == 1 ? other.pages(0) : block.pages(i); };
      CHECK_THROWS_AS(import_with(of_file), cuda_error);
      CHECK_THROWS_AS(import_with(closed), cuda_error);
      if (other.description().handles[0] != block.description().handles[1])
        CHECK_THROWS_AS(import_with(shorter), cuda_error);
      CHECK(open_descriptors() == before);
    }
    memory.deallocate({}, p, 12_MiB);
    memory.deallocate({}, small, 2_MiB);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE(
    "receive_block refuses the descriptors of another block, too few, and bytes that are no description",
    "[raii][sharing][pages]") {
  sim_machine const machine(sharing_machine());
  {
    auto memory = sim_pages{machine.driver(0)} | pooled{.largest_handle = 2_MiB};
    void* const p = memory.allocate({}, 8_MiB);
    {
      auto const block = export_block(memory, p, 8_MiB);
      int const before = open_descriptors();
      auto const receive_with = [&](auto const& change, std::size_t descriptors) {
        connection c;
        auto const bytes = block.description().to_bytes();
        std::uint64_t const size = bytes.size();
        detail::unix_socket const peer(c.exporter.get(), default_sharing_timeout);
        peer.send(std::as_bytes(std::span(&size, 1)));
        peer.send(bytes);
        detail::group_header header{block.description().number, 0, block.description().handles.size()};
        change(header);
        std::vector<exported_pages> all;
        std::vector<int> numbers;
        for (std::size_t i = 0; i < descriptors; ++i)
          numbers.push_back(all.emplace_back(block.pages(i)).descriptor());
        peer.send(std::as_bytes(std::span(&header, 1)), numbers);
        return failure_of([&] { return receive_block(c.importer.get(), memory); });
      };
      std::size_t const n = block.description().handles.size();
      REQUIRE(n >= 4);
      CHECK_FALSE(receive_with([](auto&) {}, n));
      CHECK(receive_with([](auto& h) { ++h.number; }, n) == sharing_failure::wrong_pages);
      CHECK(receive_with([](auto& h) { ++h.first; }, n) == sharing_failure::wrong_pages);
      CHECK(receive_with([](auto& h) { h.count = 0; }, 0) == sharing_failure::wrong_pages);
      CHECK(receive_with([](auto& h) { ++h.count; }, n) == sharing_failure::wrong_pages);
      CHECK(receive_with([](auto&) {}, n - 1) == sharing_failure::wrong_pages);
      CHECK(receive_with([](auto& h) { h.count = ~std::uint64_t{0}; }, 1) == sharing_failure::wrong_pages);
      CHECK(open_descriptors() == before);
    }
    connection c;
    std::uint64_t const huge = std::uint64_t{1} << 62;
    detail::unix_socket(c.exporter.get(), default_sharing_timeout).send(std::as_bytes(std::span(&huge, 1)));
    CHECK(failure_of([&] { return receive_block(c.importer.get(), memory); }) == sharing_failure::damaged);
    memory.deallocate({}, p, 8_MiB);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("either process may end at any step of a transfer: the other gets an error and leaks nothing",
          "[raii][sharing][pages][no_emulator]") {
  sim_machine const machine(sharing_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{.largest_handle = 2_MiB};
  void* const p = memory.allocate({}, 300_MiB);
  int const before = open_descriptors();
  // The importer ends after so many bytes of the description, groups, or before the last answer.
  for (int step = 0; step < 6; ++step) {
    auto const block = export_block(memory, p, 300_MiB);
    connection c;
    pid_t const child = in_another_process([&] {
      c.exporter = {};
      detail::unix_socket const peer(c.importer.get(), default_sharing_timeout);
      std::uint64_t size = 0;
      if (step == 0) return 0;
      peer.receive(std::as_writable_bytes(std::span(&size, 1)));
      if (step == 1) return 0;
      std::vector<std::byte> bytes(size);
      peer.receive(bytes);
      for (int group = 2; group < step; ++group) {
        detail::give_answer(peer, detail::import_answer::go_on);
        detail::group_header header;
        std::vector<unique_descriptor> descriptors;
        peer.receive(std::as_writable_bytes(std::span(&header, 1)), &descriptors);
      }
      return 0;
    });
    c.importer = {};
    CHECK(failure_of([&] {
            send_block(c.exporter.get(), block);
            return 0;
          }) == sharing_failure::peer_closed);
    CHECK(status_of(child) == 0);
  }
  CHECK(open_descriptors() == before);
  // The exporter ends after so many groups.
  for (std::size_t groups = 0; groups < 3; ++groups) {
    connection c;
    pid_t const child = in_another_process([&] {
      c.importer = {};
      sim_machine const own(sharing_machine());
      auto theirs = sim_pages{own.driver(0)} | pooled{.largest_handle = 2_MiB};
      auto const block = export_block(theirs, theirs.allocate({}, 300_MiB), 300_MiB);
      detail::unix_socket const peer(c.exporter.get(), default_sharing_timeout);
      detail::send_description(peer, block.description());
      for (std::size_t i = 0, first = 0; i < groups; ++i) first += detail::send_group(peer, block, first);
      return 0;
    });
    c.exporter = {};
    auto const handles = machine.leaks().handles;
    auto const maps = machine.leaks().maps;
    auto const ranges = machine.leaks().ranges;
    // Which of the two the importer notices first depends on when the exporter ends.
    auto const failure = failure_of([&] { return receive_block(c.importer.get(), memory); });
    CHECK((failure == sharing_failure::peer_closed || failure == sharing_failure::exporter_ended));
    CHECK(machine.leaks().handles == handles);
    CHECK(machine.leaks().maps == maps);
    CHECK(machine.leaks().ranges == ranges);
    CHECK(status_of(child) == 0);
  }
  CHECK(open_descriptors() == before);
  memory.deallocate({}, p, 300_MiB);
}

TEST_CASE("an imported block is intact after its exporter was killed",
          "[raii][sharing][pages][no_emulator]") {
  sim_machine const machine(sharing_machine());
  connection c;
  pid_t const child = in_another_process([&] {
    c.importer = {};
    sim_machine const own(sharing_machine());
    auto theirs = sim_pages{own.driver(0)} | pooled{.largest_handle = 2_MiB};
    void* const p = theirs.allocate({}, 150_MiB);
    write(p, 150_MiB, 6);
    send_block(c.exporter.get(), export_block(theirs, p, 150_MiB));
    for (;;) ::pause();
    return 0;
  });
  c.exporter = {};
  auto imported = receive_block(c.importer.get(), sim_pages{machine.driver(0)});
  REQUIRE(::kill(child, SIGKILL) == 0);
  CHECK(status_of(child) == -1);
  CHECK(holds(imported.data(), 150_MiB, 6));
  write(imported.data(), 150_MiB, 8);
  CHECK(holds(imported.data(), 150_MiB, 8));
}

TEST_CASE("a process that does not answer is given up after the time limit", "[raii][sharing][pages]") {
  using namespace std::chrono_literals;
  sim_machine const machine(sharing_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  void* const p = memory.allocate({}, 4_MiB);
  {
    auto const block = export_block(memory, p, 4_MiB);
    connection c;
    CHECK(failure_of([&] {
            send_block(c.exporter.get(), block, 30ms);
            return 0;
          }) == sharing_failure::timed_out);
    CHECK(failure_of([&] { return receive_block(c.importer.get(), memory, 30ms); }) !=
          sharing_failure::timed_out);
    connection silent;
    CHECK(failure_of([&] { return receive_block(silent.importer.get(), memory, 30ms); }) ==
          sharing_failure::timed_out);
    CHECK(failure_of([&] { return receive_block(-1, memory, 30ms); }) == sharing_failure::timed_out);
    CHECK(failure_of([&] {
            send_block(::open("/dev/null", O_RDWR), block, 30ms);
            return 0;
          }) == sharing_failure::system);
  }
  memory.deallocate({}, p, 4_MiB);
}

TEST_CASE("at each failure of a driver call, export and import leave nothing behind",
          "[raii][sharing][pages]") {
  int failures = 0;
  for (driver_call const call :
       {driver_call::export_pages, driver_call::uuid, driver_call::create_shared_event,
        driver_call::record_event, driver_call::page_granularity, driver_call::reserve_range,
        driver_call::import_pages, driver_call::map_pages, driver_call::open_shared_event}) {
    for (std::uint64_t which = 1; which <= 8; ++which) {
      sim_machine const machine(sharing_machine());
      {
        fault_plan plan;
        faulty<sim_driver> const driver(machine.driver(0), plan);
        auto memory = basic_pages(driver) | pooled{.largest_handle = 2_MiB};
        void* const p = memory.allocate({}, 8_MiB);
        write(p, 8_MiB, 1);
        auto const before = machine.leaks().total();
        int const descriptors = open_descriptors();
        plan.fail(call, which);
        try {
          auto block = export_block(memory, p, 8_MiB, stream_ref{});
          auto imported = import_block(memory, block.description(), pages_of(block));
        } catch (cuda_error const&) {
          ++failures;
        } catch (out_of_memory const&) {
          ++failures;
        }
        CHECK(machine.leaks().total() == before);
        CHECK(open_descriptors() == descriptors);
        plan.disarm();
        {
          auto block = export_block(memory, p, 8_MiB, stream_ref{});
          auto imported = import_block(memory, block.description(), pages_of(block));
          CHECK(holds(imported.data(), 8_MiB, 1));
        }
        memory.deallocate({}, p, 8_MiB);
      }
      CHECK(machine.leaks().total() == 0);
    }
  }
  CHECK(failures >= 20);
}

TEST_CASE("a forked child that ends exports and imports makes no driver call",
          "[raii][sharing][at_fork][pages]") {
  sim_machine const machine(sharing_machine());
  {
    fault_plan plan;
    faulty<sim_driver> const driver(machine.driver(0), plan);
    auto memory = basic_pages(driver) | pooled{.largest_handle = 2_MiB};
    void* const p = memory.allocate({}, 8_MiB);
    std::optional block(export_block(memory, p, 8_MiB, stream_ref{}));
    std::optional imported(import_block(memory, block->description(), pages_of(*block)));
    int const status = status_of(in_another_process([&] {
      auto const before = plan.calls();
      imported.reset();
      block.reset();
      return plan.calls() == before ? 1 : 2;
    }));
    CHECK(status == 1);
    imported.reset();
    block.reset();
    memory.deallocate({}, p, 8_MiB);
  }
  CHECK(machine.leaks().total() == 0);
}

namespace {
/// A layer that reports each handle as 2 MiB larger than it is: then the parts of a block do not lie side by
/// side.
template <class Upstream>
class larger_handles_layer : public resource_adaptor<larger_handles_layer<Upstream>, Upstream> {
 public:
  template <class Options>
  larger_handles_layer(Upstream upstream, Options const&)
      : resource_adaptor<larger_handles_layer, Upstream>(std::move(upstream)) {}
  template <class F>
  void each_segment(void const* p, std::size_t bytes, F const& f) {
    for (memory_segment s : segments_of(this->upstream(), p, bytes)) {
      s.handle_bytes += 2_MiB;
      f(s);
    }
  }
};
struct larger_handles {
  template <class Upstream>
  using layer = larger_handles_layer<Upstream>;
};
}  // namespace

TEST_CASE("a block whose parts do not lie side by side in their handles is not exported",
          "[raii][sharing][pages]") {
  sim_machine const machine(sharing_machine());
  auto memory = sim_pages{machine.driver(0), allocation_handle_type::posix_file_descriptor} |
                pooled{.largest_handle = 2_MiB} | larger_handles{};
  void* const one = memory.allocate({}, 2_MiB);
  void* const several = memory.allocate({}, 8_MiB);
  CHECK_NOTHROW(export_block(memory, one, 2_MiB));
  check_unsupported([&] { (void)export_block(memory, several, 8_MiB); }, {"side by side"});
  memory.deallocate({}, several, 8_MiB);
  memory.deallocate({}, one, 2_MiB);
}

TEST_CASE("a dma_buf spans a whole block or is refused", "[raii][sharing][pages]") {
  sim_machine const machine(sharing_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{.largest_handle = 2_MiB};
  void* const p = memory.allocate({}, 8_MiB);
  check_unsupported([&] { dma_buf const several(memory, p, 8_MiB); }, {"several handles"});
  CHECK_THROWS_AS(dma_buf(memory, p, 1_MiB), cuda_error);  // the simulated device has none
  memory.deallocate({}, p, 8_MiB);
}
