// SPDX-License-Identifier: Apache-2.0
// How the PyTorch example shares blocks with other processes, on the simulated device.

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "catch.hpp"
#include "child_process.hpp"
#include "integrations/pytorch/block_server.hpp"
#include "tarn/sim.hpp"

using namespace tarn;
using namespace std::chrono_literals;

namespace {

/// A machine that can share, a block and its server. Never destroyed: the server's thread is never joined.
struct exporter {
  sim_machine machine{[] {
    sim_options o;
    o.sharing = sim_sharing::descriptors;
    return o;
  }()};
  sim_pool pool{sim_pages{machine.driver(0)}};
  void* p = pool.allocate({}, 1_MiB);
  tarn_torch::block_server<sim_pool> server;
  std::string share() { return server.share(pool, p, 1_MiB); }
};
exporter& new_exporter() {
  return *new exporter;
}

/// Returns why the block is not imported; empty: it is.
std::string refusal(tarn_torch::imported_blocks& blocks, std::string const& handle) {
  sim_options o;
  o.sharing = sim_sharing::descriptors;
  sim_machine const machine(o);
  try {
    (void)blocks.open(handle, sim_pages{machine.driver(0)});
  } catch (sharing_error const& error) {
    return error.what();
  }
  return {};
}
bool names(std::string const& text, char const* part) {
  UNSCOPED_INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the PyTorch example maps a shared block once while it is used", "[interop][sharing][pages]") {
  exporter& e = new_exporter();
  *static_cast<int*>(e.p) = 42;
  std::string const handle = e.share();
  CHECK(handle == e.share());
  tarn_torch::imported_blocks blocks;
  sim_pages const pages{e.machine.driver(0)};
  std::shared_ptr<void> const first = blocks.open(handle, pages);
  CHECK(*static_cast<int const*>(first.get()) == 42);
  CHECK(blocks.open(handle, pages) == first);
  CHECK(names(refusal(blocks, "cuda_ipc"), "Call tarn_torch.install() in both"));
  e.server.forget(e.p);
  CHECK(blocks.open(handle, pages) == first);
  std::string const other = handle.substr(0, handle.rfind(' ')) + " 999";
  CHECK(names(refusal(blocks, other), "has freed it"));
  CHECK(names(refusal(blocks, "tarn1 tarn_torch.no.such 00112233445566778899aabbccddeeff 1"), "has ended"));
}

TEST_CASE("the PyTorch example shares after a thread was refused", "[interop][sharing][pages][no_emulator]") {
  int const status = child_of([] {
    exporter& e = new_exporter();
    ::pthread_attr_t large;
    (void)::pthread_attr_init(&large);
    (void)::pthread_attr_setstacksize(&large, 4_GiB);
    (void)::pthread_setattr_default_np(&large);
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    ::rlimit before{};
    (void)::getrlimit(RLIMIT_AS, &before);
    ::rlimit low = before;
    low.rlim_cur = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + 512_MiB;
    (void)::setrlimit(RLIMIT_AS, &low);
    bool refused = false;
    try {
      (void)e.share();
    } catch (std::system_error const&) {
      refused = true;
    }
    (void)::setrlimit(RLIMIT_AS, &before);
    tarn_torch::imported_blocks blocks;
    return refused && blocks.open(e.share(), sim_pages{e.machine.driver(0)}) != nullptr;
  });
  CHECK(status == 0);
}

TEST_CASE("the PyTorch example answers importers after it had no descriptor for them",
          "[interop][sharing][pages][no_emulator]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  ::pid_t const child = ::fork();
  if (child == 0) {
    (void)::alarm(20);
    std::string const handle = new_exporter().share();
    ::rlimit before{};
    (void)::getrlimit(RLIMIT_NOFILE, &before);
    ::rlimit low = before;
    low.rlim_cur = 0;
    (void)::setrlimit(RLIMIT_NOFILE, &low);
    (void)!::write(ends[1], handle.data(), handle.size());
    std::this_thread::sleep_for(300ms);
    (void)::setrlimit(RLIMIT_NOFILE, &before);
    for (;;) ::pause();
  }
  char handle[200] = "";
  REQUIRE(::read(ends[0], handle, sizeof handle - 1) > 0);
  tarn_torch::imported_blocks blocks;
  (void)refusal(blocks, handle);  // accept() had a descriptor for the first one, whose pages cannot be sent
  CHECK(refusal(blocks, handle).empty());
  (void)::kill(child, SIGKILL);
  (void)::waitpid(child, nullptr, 0);
  (void)::close(ends[0]);
  (void)::close(ends[1]);
}

TEST_CASE("the PyTorch example sends no secret to another user's process", "[interop][sharing]") {
  if (::geteuid() != 0) {
    WARN("skipped, nothing was tested: only root can be another user");
    return;
  }
  std::string const name = "tarn_torch.test." + std::to_string(::getpid());
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  ::pid_t const child = ::fork();
  if (child == 0) {  // binds the name of an exporter that has ended
    (void)::alarm(20);
    ::sockaddr_un address;
    ::socklen_t const size = tarn_torch::detail::address_of(name, address);
    unique_descriptor const listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::setuid(65534) != 0 ||
        ::bind(listener.get(), reinterpret_cast<::sockaddr const*>(&address), size) != 0 ||
        ::listen(listener.get(), 1) != 0)
      ::_exit(2);
    (void)!::write(ends[1], "x", 1);
    unique_descriptor const peer(::accept(listener.get(), nullptr, nullptr));
    char secret = 0;
    ::_exit(::recv(peer.get(), &secret, 1, 0) > 0 ? 1 : 0);
  }
  char ready = 0;
  REQUIRE(::read(ends[0], &ready, 1) == 1);
  tarn_torch::imported_blocks blocks;
  CHECK(names(refusal(blocks, "tarn1 " + name + " 00112233445566778899aabbccddeeff 1"), "as another user"));
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  (void)::close(ends[0]);
  (void)::close(ends[1]);
}
