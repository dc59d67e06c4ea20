// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sharing with other processes. PyTorch sends a handle of text from one process to another; what it names are file descriptors,
// which travel only over a Unix socket. So a thread of the exporting process answers on a socket, and the handle has its address.

#include <c10/util/Exception.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <tarn/sharing.hpp>
#include <tarn/tarn.hpp>
#include <thread>
#include <unordered_map>

namespace tarn_torch {

namespace detail {

/// Closes the socket at the end of a scope.
class socket_owner {
 public:
  explicit socket_owner(int s) noexcept : socket_(s) {}
  socket_owner(socket_owner const&) = delete;
  socket_owner& operator=(socket_owner const&) = delete;
  ~socket_owner() {
    if (socket_ >= 0) (void)::close(socket_);
  }
  [[nodiscard]] int get() const noexcept { return socket_; }

 private:
  int socket_;
};

/// What an importer sends: the secret that the handle has, and the number of the block.
struct wanted_block {
  std::array<std::uint64_t, 2> secret{};
  std::uint64_t number = 0;
};

inline bool send_all(int socket, void const* data, std::size_t bytes) noexcept {
  return ::send(socket, data, bytes, MSG_NOSIGNAL) == static_cast<::ssize_t>(bytes);
}
inline bool receive_all(int socket, void* data, std::size_t bytes) noexcept {
  return ::recv(socket, data, bytes, MSG_WAITALL) == static_cast<::ssize_t>(bytes);
}
inline void limit_waits(int socket) noexcept {
  ::timeval const limit{30, 0};
  (void)::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  (void)::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}
/// An abstract address, which ends with the process.
inline ::socklen_t address_of(std::string const& name, ::sockaddr_un& address) noexcept {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<::socklen_t>(offsetof(::sockaddr_un, sun_path) + 1 + name.size());
}

}  // namespace detail

/// The blocks that this process lets others import. The thread starts with the first of them. Thread-safe.
template <class Memory>
class block_server {
 public:
  /// Returns the handle of a live block, the same each time. @throws c10::Error, tarn's errors
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
    if (listener_ >= 0) return;
    std::random_device random;
    for (std::uint64_t& part : secret_) part = (std::uint64_t{random()} << 32) | random();
    name_ = "tarn_torch." + std::to_string(::getpid()) + "." + std::to_string(random());
    ::sockaddr_un address;
    ::socklen_t const size = detail::address_of(name_, address);
    int const s = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    TORCH_CHECK(s >= 0 && ::bind(s, reinterpret_cast<::sockaddr const*>(&address), size) == 0 &&
                    ::listen(s, 128) == 0,
                "tarn_torch: cannot listen on a Unix socket to share tensors: ", std::strerror(errno));
    listener_ = s;
    std::thread([this] { serve(); }).detach();
  }
  void serve() {
    for (;;) {
      int const peer = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (peer < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
      if (peer < 0) return;
      try {
        answer(peer);
      } catch (std::exception const&) {
        // The importer reports it.
      }
    }
  }
  void answer(int connection) {
    detail::socket_owner const peer(connection);
    detail::limit_waits(peer.get());
    ::ucred who{};
    ::socklen_t size = sizeof who;
    if (::getsockopt(peer.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 || who.uid != ::getuid()) return;
    detail::wanted_block wanted;
    if (!detail::receive_all(peer.get(), &wanted, sizeof wanted) || wanted.secret != secret_) return;
    std::shared_ptr<exported> block;
    {
      std::lock_guard const guard(mutex_);
      if (auto const it = exported_.find(wanted.number); it != exported_.end()) block = it->second;
    }
    char const there = block != nullptr ? 1 : 0;
    if (!detail::send_all(peer.get(), &there, 1) || block == nullptr) return;
    tarn::send_block(peer.get(), *block);
  }

  std::mutex mutex_;
  std::array<std::uint64_t, 2> secret_{};
  std::string name_;
  int listener_ = -1;
  std::uint64_t last_ = 0;
  std::unordered_map<void*, std::uint64_t> numbers_;
  std::unordered_map<std::uint64_t, std::shared_ptr<exported>> exported_;
};

/// The blocks that this process has imported, by handle: a block is mapped once however many tensors are made of it.
class imported_blocks {
 public:
  /// Maps the block of a handle on a device; the mapping lives as long as the pointer. @throws c10::Error, tarn's errors
  std::shared_ptr<void> open(std::string const& handle, int device) {
    std::lock_guard const guard(mutex_);
    if (std::shared_ptr<void> known = open_[handle].lock()) return known;
    detail::wanted_block wanted;
    char name[100] = {};
    unsigned long long first = 0, second = 0, number = 0;
    TORCH_CHECK(
        std::sscanf(handle.c_str(), "tarn1 %99s %16llx%16llx %llu", name, &first, &second, &number) == 4,
        "tarn_torch: this CUDA memory was shared by a process that does not use tarn_torch. Call "
        "tarn_torch.install() in both processes.");
    wanted = {{first, second}, number};
    detail::socket_owner const peer(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    detail::limit_waits(peer.get());
    ::sockaddr_un address;
    ::socklen_t const size = detail::address_of(name, address);
    TORCH_CHECK(
        ::connect(peer.get(), reinterpret_cast<::sockaddr const*>(&address), size) == 0,
        "tarn_torch: the process that shared this CUDA memory has ended, or runs in another container");
    char there = 0;
    TORCH_CHECK(detail::send_all(peer.get(), &wanted, sizeof wanted) &&
                    detail::receive_all(peer.get(), &there, 1) && there == 1,
                "tarn_torch: the process that shared this CUDA memory has freed it");
    auto block = std::make_shared<imported>(
        tarn::receive_block(peer.get(), tarn::cuda_pages{tarn::device_id{device}}));
    std::shared_ptr<void> const p(block, block->data());
    open_[handle] = p;
    return p;
  }

 private:
  using imported = decltype(tarn::receive_block(0, std::declval<tarn::cuda_pages const&>()));
  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<void>> open_;
};

}  // namespace tarn_torch
