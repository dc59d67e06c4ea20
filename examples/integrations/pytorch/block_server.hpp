// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sharing with other processes. PyTorch sends a handle of text from one process to another; what it names are
// file descriptors, which travel only over a Unix socket. So a thread of the exporting process answers on a
// socket, and the handle has its address.

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <system_error>
#include <tarn/sharing.hpp>
#include <tarn/tarn.hpp>
#include <thread>
#include <unordered_map>
#include <utility>

namespace tarn_torch {

namespace detail {

/// What an importer sends: the secret that the handle has, and the number of the block.
struct wanted_block {
  std::array<std::uint64_t, 2> secret{};
  std::uint64_t number = 0;
};

/// Of each step of the other process.
inline constexpr std::chrono::seconds time_limit{30};
inline constexpr char const* has_ended =
    "the process that shared this CUDA memory has ended, or runs in another container or as another user";

/// Whether the process at the other end of a connection is one of this user: any user may bind the name of a
/// process that has ended.
inline bool is_of_this_user(int socket) noexcept {
  ::ucred who{};
  ::socklen_t size = sizeof who;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == ::getuid();
}
[[noreturn]] inline void fail(tarn::sharing_failure kind, char const* text, int error = 0) {
  throw tarn::sharing_error(kind, text, error);
}
/// An abstract address, which ends with the process and the children that it forks without exec.
inline ::socklen_t address_of(std::string const& name, ::sockaddr_un& address) noexcept {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<::socklen_t>(offsetof(::sockaddr_un, sun_path) + 1 + name.size());
}
/// Connects to such an address; waits while too many others do. A signal neither ends the wait nor prolongs
/// it. @throws tarn::sharing_error
inline void connect(int socket, std::string const& name) {
  using namespace std::chrono;
  auto const until = steady_clock::now() + time_limit;
  ::sockaddr_un address;
  ::socklen_t const size = address_of(name, address);
  for (;;) {
    auto const left = duration_cast<microseconds>(until - steady_clock::now()).count();
    if (left <= 0)
      fail(tarn::sharing_failure::timed_out, "the process that shared this CUDA memory does not answer");
    ::timeval const limit{left / 1'000'000, left % 1'000'000};
    (void)::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (::connect(socket, reinterpret_cast<::sockaddr const*>(&address), size) == 0) break;
    if (errno != EINTR && errno != EAGAIN) fail(tarn::sharing_failure::exporter_ended, has_ended, errno);
  }
  if (!is_of_this_user(socket)) fail(tarn::sharing_failure::exporter_ended, has_ended);
}

}  // namespace detail

/// The blocks that this process lets others import. A thread that answers starts with the first of them.
/// Thread-safe. Never destroyed.
template <class Memory>
class block_server {
 public:
  /// Returns the handle of a live block, the same each time. @throws tarn's errors; std::system_error  no
  /// thread can be created: the next call tries again
  std::string share(Memory const& memory, void* p, std::size_t bytes) {
    std::lock_guard const guard(mutex_);
    start();
    std::uint64_t& number = numbers_[p];
    if (number == 0) {
      try {
        exported_[last_ + 1] = std::make_shared<exported>(tarn::export_block(memory, p, bytes));
      } catch (...) {
        numbers_.erase(p);
        throw;
      }
      number = ++last_;
    }
    char text[160];
    std::snprintf(text, sizeof text, "tarn1 %s %016llx%016llx %llu", name_.c_str(),
                  static_cast<unsigned long long>(secret_[0]), static_cast<unsigned long long>(secret_[1]),
                  static_cast<unsigned long long>(number));
    return text;
  }
  /// The block is freed: later imports are refused.
  void forget(void* p) {
    std::shared_ptr<exported> last;
    std::lock_guard const guard(mutex_);
    auto const it = numbers_.find(p);
    if (it == numbers_.end()) return;
    last = std::move(exported_[it->second]);
    exported_.erase(it->second);
    numbers_.erase(it);
  }

 private:
  using exported = tarn::exported_block<Memory>;

  void start() {
    if (is_listening_) return;
    std::random_device random;
    for (std::uint64_t& part : secret_) part = (std::uint64_t{random()} << 32) | random();
    name_ = "tarn_torch." + std::to_string(::getpid()) + "." + std::to_string(random());
    ::sockaddr_un address;
    ::socklen_t const size = detail::address_of(name_, address);
    tarn::unique_descriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!listener || ::bind(listener.get(), reinterpret_cast<::sockaddr const*>(&address), size) != 0 ||
        ::listen(listener.get(), 128) != 0)
      detail::fail(tarn::sharing_failure::system, "cannot listen on a Unix socket to share tensors", errno);
    std::thread([this, own = std::move(listener)] { serve(own.get()); }).detach();
    is_listening_ = true;
  }
  [[noreturn]] void serve(int listener) {
    for (;;) {
      tarn::unique_descriptor peer(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
      if (!peer) {
        // Without a descriptor or memory for the connection, the importer waits.
        if (errno != EINTR && errno != ECONNABORTED)
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        continue;
      }
      try {
        answer(peer.get());
      } catch (std::exception const&) {
        // The importer reports it.
      }
    }
  }
  void answer(int peer) {
    if (!detail::is_of_this_user(peer)) return;
    tarn::detail::unix_socket const socket(peer, detail::time_limit);
    detail::wanted_block wanted;
    socket.receive(std::as_writable_bytes(std::span(&wanted, 1)));
    if (wanted.secret != secret_) return;
    std::shared_ptr<exported> block;
    {
      std::lock_guard const guard(mutex_);
      if (auto const it = exported_.find(wanted.number); it != exported_.end()) block = it->second;
    }
    std::byte const there{block != nullptr};
    socket.send(std::span(&there, 1));
    if (block != nullptr) tarn::send_block(peer, *block);
  }

  std::mutex mutex_;
  std::array<std::uint64_t, 2> secret_{};
  std::string name_;
  bool is_listening_ = false;
  std::uint64_t last_ = 0;
  std::unordered_map<void*, std::uint64_t> numbers_;
  std::unordered_map<std::uint64_t, std::shared_ptr<exported>> exported_;
};

/// The blocks that this process has imported, by handle: a block is mapped once however many tensors are made
/// of it. Thread-safe.
class imported_blocks {
 public:
  /// Maps the block of a handle on the device of `memory`; the mapping lives as long as the pointer. Waits at
  /// most for the process that shared it, 30 s for each of its steps, and for other threads that open the
  /// same handle. @throws tarn's errors
  template <class Memory>
  std::shared_ptr<void> open(std::string const& handle, Memory const& memory) {
    std::shared_ptr<entry> const its = entry_of(handle);
    std::lock_guard const guard(its->mutex);
    if (std::shared_ptr<void> known = its->block.lock()) return known;
    std::shared_ptr<void> p = import(handle, memory);
    its->block = p;
    return p;
  }

 private:
  struct entry {
    std::mutex mutex;  ///< held while the block is imported
    std::weak_ptr<void> block;
  };

  /// Forgets the handles that no tensor and no other thread uses, whenever there are twice as many as were
  /// left the last time. O(1) amortised.
  std::shared_ptr<entry> entry_of(std::string const& handle) {
    std::lock_guard const guard(mutex_);
    if (entries_.size() >= next_look_) {
      std::erase_if(entries_, [](auto const& known) {
        if (known.second.use_count() != 1) return false;
        std::lock_guard const its(known.second->mutex);
        return known.second->block.expired();
      });
      next_look_ = 2 * entries_.size() + 16;
    }
    std::shared_ptr<entry>& its = entries_[handle];
    if (its == nullptr) its = std::make_shared<entry>();
    return its;
  }
  template <class Memory>
  static std::shared_ptr<void> import(std::string const& handle, Memory const& memory) {
    char name[100] = {};
    unsigned long long first = 0, second = 0, number = 0;
    if (std::sscanf(handle.c_str(), "tarn1 %99s %16llx%16llx %llu", name, &first, &second, &number) != 4) {
      detail::fail(tarn::sharing_failure::damaged,
                   "this CUDA memory was shared by a process that does not use tarn_torch. Call "
                   "tarn_torch.install() in both "
                   "processes.");
    }
    tarn::unique_descriptor const peer(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    detail::connect(peer.get(), name);
    detail::wanted_block const wanted{{first, second}, number};
    std::byte there{};
    tarn::detail::unix_socket const socket(peer.get(), detail::time_limit);
    socket.send(std::as_bytes(std::span(&wanted, 1)));
    socket.receive(std::span(&there, 1));
    if (there != std::byte{1})
      detail::fail(tarn::sharing_failure::refused, "the process that shared this CUDA memory has freed it");
    auto block =
        std::make_shared<decltype(tarn::receive_block(0, memory))>(tarn::receive_block(peer.get(), memory));
    return {block, block->data()};
  }

  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<entry>> entries_;
  std::size_t next_look_ = 16;  ///< number of entries
};

}  // namespace tarn_torch
