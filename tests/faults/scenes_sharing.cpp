// SPDX-License-Identifier: Apache-2.0
// Blocks that are exported, imported and registered: whatever fails, no mapping, event, descriptor or
// registration is left, the block is still pinned or not at all, and after the fault is cleared the calls
// succeed. So it is where a block passes over a socket, at either end.
#include <dirent.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "faults/held_blocks.hpp"
#include "faults/scene_memory.hpp"
#include "faults/scenes.hpp"
#include "tarn/sharing/exported_block.hpp"
#include "tarn/sharing/imported_block.hpp"
#include "tarn/sharing/page_registrations.hpp"

namespace tarn_test {

namespace of_sharing {

sim_options sharing_machine() {
  sim_options o = machine_of(24_MiB, 16_MiB);
  o.sharing = sim_sharing::descriptors;
  return o;
}

/// Without those of the machine, which keeps one for each handle.
int open_descriptors(trial& t) {
  int count = -static_cast<int>(t.machine().leaks().handles);
  ::DIR* const folder = ::opendir("/proc/self/fd");
  while (folder != nullptr && ::readdir(folder) != nullptr) ++count;
  if (folder != nullptr) (void)::closedir(folder);
  return count;
}

/// Exports a block, imports it and orders streams by its events. The import is on the same machine.
template <class Memory>
void pass_on(trial& t, Memory const& memory, void* p, std::size_t bytes, stream_ref a, stream_ref b) {
  int before = 0;
  {
    host_faults::not_counted const own;
    before = open_descriptors(t);
  }
  {
    std::optional<exported_block<Memory>> block;
    t.attempt("export_block", [&] { block.emplace(export_block(memory, p, bytes, a)); });
    if (!block) return;
    std::optional<std::remove_cvref_t<decltype(import_block(memory, block->description(),
                                                            [&](std::size_t i) { return block->pages(i); }))>>
        imported;
    t.attempt("import_block", [&] {
      imported.emplace(
          import_block(memory, block->description(), [&](std::size_t i) { return block->pages(i); }));
    });
    if (imported) {
      t.attempt("wait_ready", [&] { imported->wait_ready(b); });
      t.attempt("record_done", [&] { imported->record_done(b); });
      t.attempt("wait_done", [&] { block->wait_done(a); });
      t.attempt("synchronize_ready", [&] { imported->synchronize_ready(); });
      t.attempt("synchronize_done", [&] { block->synchronize_done(); });
    }
    t.attempt("dma_buf", [&] {
      try {
        dma_buf const part(memory, p, 1_MiB);
      } catch (cuda_error const& e) {
        if (e.kind() != failure::unsupported) throw;  // the simulated device has none
      }
    });
    t.attempt("to_bytes", [&] { (void)block_description::from_bytes(block->description().to_bytes()); });
  }
  host_faults::not_counted const own;
  t.check_equal(open_descriptors(t), before, "open descriptors before and after");
}

/// A library that counts what is registered with it.
struct counting_library {
  using handle = int;
  int* live;
  int add(void*, std::size_t) const noexcept { return ++*live; }
  void remove(int) const noexcept { --*live; }
};

/// Registers a part of a block and the whole block. A failure leaves what was registered as it was.
template <class Memory>
void register_pages(trial& t, Memory const& memory, void* p, std::size_t bytes) {
  int live = 0;
  {
    page_registrations pages(memory, counting_library{&live});
    t.attempt("register a part", [&] { (void)pages.ensure(p, 1); });
    bool const has_part = pages.covers(p, 1);
    t.attempt("register the block", [&] { (void)pages.ensure(p, bytes); });
    host_faults::not_counted const own;
    if (has_part && !pages.covers(p, 1)) t.complain("a failure ended a registration");
    t.check_equal(live, static_cast<int>(pages.added()), "registrations");
  }
  host_faults::not_counted const own;
  t.check_equal(live, 0, "registrations at the end");
}

void sharing(trial& t) {
  stream const a(t.driver());
  stream const b(t.driver());
  basic_pages const pages(t.driver());
  // A device that cannot be asked is taken to have no pages, or none that can be exported.
  if (!pages.has_pages() || pages.handle_type() == allocation_handle_type::none) return;
  auto const memory = pages | pooled{.largest_handle = 2_MiB} | order_watched{t.machine()} | tracked{};
  held_blocks held(t, memory);
  void* const p = held.get(a, 6_MiB);
  if (p != nullptr) pass_on(t, memory, p, 6_MiB, a, b);
  if (p != nullptr) register_pages(t, memory, p, 6_MiB);
  t.heal();
  void* const q = held.get(a, 6_MiB);
  if (q != nullptr) pass_on(t, memory, q, 6_MiB, a, b);
  if (q != nullptr) register_pages(t, memory, q, 6_MiB);
  held.empty_out("after an export");
}

/// Both ends of a connection: one of the trial, and one of a process in which nothing fails.
struct connection {
  connection() {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    own = unique_descriptor(ends[0]);
    other = unique_descriptor(ends[1]);
  }
  unique_descriptor own;
  unique_descriptor other;
};

constexpr std::chrono::milliseconds transfer_limit = std::chrono::seconds(20);

/// Passes a block over a socket: the step `own` at one end, and `other` on a thread of its own, where no call
/// fails. Either both succeed, or both report an error, the other end that of a peer that gave up. No
/// descriptor is left.
template <class Own, class Other>
void transfer(trial& t, char const* what, Own const& own, Other const& other) {
  std::optional<connection> c;
  std::optional<std::thread> thread;
  std::string others_error;
  bool is_clear = true;
  int before = 0;
  {
    host_faults::not_counted const test;
    before = open_descriptors(t);
    c.emplace();
    thread.emplace([&] {
      try {
        other(c->other.get());
      } catch (sharing_error const& e) {
        others_error = e.what();
        is_clear = e.kind() == sharing_failure::peer_closed || e.kind() == sharing_failure::refused;
      } catch (std::exception const& e) {
        others_error = e.what();
        is_clear = false;
      }
    });
  }
  bool const done = t.attempt(what, [&] { own(c->own.get()); });
  host_faults::not_counted const test;
  thread->join();
  c.reset();
  if (done && !others_error.empty()) t.complain("succeeded, but the other end failed: " + others_error);
  if (!done && others_error.empty()) t.complain("failed, but the other end succeeded");
  if (!is_clear) t.complain("the other end does not report that this one gave up: " + others_error);
  t.check_equal(open_descriptors(t), before, "open descriptors before and after");
}

void sent(trial& t) {
  sim_driver const others = t.machine().driver();
  stream const s(t.driver());
  basic_pages const pages(t.driver());
  if (!pages.has_pages() || pages.handle_type() == allocation_handle_type::none) return;
  auto const memory = pages | pooled{.largest_handle = 2_MiB} | order_watched{t.machine()} | tracked{};
  held_blocks held(t, memory);
  for (int round = 0; round < 2; ++round) {
    void* const p = held.get(s, 6_MiB);
    std::optional<exported_block<std::remove_cv_t<decltype(memory)>>> block;
    if (p != nullptr) t.attempt("export_block", [&] { block.emplace(export_block(memory, p, 6_MiB, s)); });
    if (block) {
      transfer(
          t, "send_block", [&](int socket) { send_block(socket, *block, transfer_limit); },
          [&](int socket) { (void)receive_block(socket, basic_pages(others), transfer_limit); });
    }
    t.heal();
  }
  held.empty_out("after blocks were sent");
}

void received(trial& t) {
  // What the other process has, before anything fails.
  host_faults::not_counted const test;
  auto theirs = basic_pages(sim_driver(t.machine().driver())) | pooled{.largest_handle = 2_MiB};
  void* const p = theirs.allocate({}, 6_MiB);
  {
    auto const block = export_block(theirs, p, 6_MiB);
    host_faults::counted const library;
    stream const s(t.driver());
    basic_pages const pages(t.driver());
    for (int round = 0; pages.has_pages() && round < 2; ++round) {
      transfer(
          t, "receive_block",
          [&](int socket) {
            auto const imported = receive_block(socket, pages, transfer_limit);
            t.check(imported.size_bytes() == 6_MiB, "the size of an import");
          },
          [&](int socket) { send_block(socket, block, transfer_limit); });
      t.heal();
    }
  }
  theirs.deallocate({}, p, 6_MiB);
}

/// Receives a message with more descriptors than tarn sends in one. All are closed, also where there is no
/// memory for them.
void crowded(trial& t) {
  for (int round = 0; round < 2; ++round) {
    std::optional<connection> c;
    int before = 0;
    {
      host_faults::not_counted const test;
      c.emplace();
      std::vector<int> const numbers(100, c->other.get());
      alignas(::cmsghdr) char space[CMSG_SPACE(100 * sizeof(int))]{};
      char byte = 0;
      ::iovec part{&byte, 1};
      ::msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = space;
      message.msg_controllen = sizeof space;
      ::cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(100 * sizeof(int));
      std::memcpy(CMSG_DATA(header), numbers.data(), 100 * sizeof(int));
      if (::sendmsg(c->other.get(), &message, 0) != 1) std::abort();
      before = open_descriptors(t);
    }
    t.attempt("receive descriptors", [&] {
      std::vector<unique_descriptor> got;
      std::byte byte{};
      try {
        detail::unix_socket(c->own.get(), transfer_limit).receive(std::span(&byte, 1), &got);
        t.complain("a message with too many descriptors was accepted");
      } catch (sharing_error const&) {
      }
    });
    host_faults::not_counted const test;
    t.check_equal(open_descriptors(t), before, "open descriptors before and after");
    c.reset();
    t.heal();
  }
}

constexpr scene all[] = {{"sharing", sharing_machine, sharing, false, false, true},
                         {"sent_block", sharing_machine, sent},
                         {"received_block", sharing_machine, received, false, false, true},
                         {"crowded_message", sharing_machine, crowded}};

}  // namespace of_sharing

std::span<scene const> sharing_scenes() {
  return of_sharing::all;
}

}  // namespace tarn_test
