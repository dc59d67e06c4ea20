// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bytes and file descriptors over a connected Unix socket, with a time limit for each step. The socket stays
// the caller's.

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "tarn/core/descriptor.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/sharing/sharing_error.hpp"

namespace TARN_NAMESPACE::detail {

/// One side of a connection, of type SOCK_STREAM. No call raises SIGPIPE.
class unix_socket {
 public:
  /// Descriptors in one message; the kernel's limit is 253.
  static constexpr std::size_t most_descriptors = 64;

  /// @param limit  for each call of send() and receive()
  unix_socket(int socket, std::chrono::milliseconds limit) noexcept
      : socket_(socket), limit_(min_of(limit, longest_wait)) {}

  /// Ends the connection in both directions: the other side's next call fails, and what was sent before still
  /// arrives.
  void shut_down() const noexcept { (void)::shutdown(socket_, SHUT_RDWR); }

  /// @throws sharing_error (peer_closed, timed_out, system)
  void send(std::span<std::byte const> bytes) const { send(bytes, {}); }
  /// Descriptors travel with the first of the bytes, of which there is at least one. @throws as above
  void send(std::span<std::byte const> bytes, std::span<int const> descriptors) const {
    auto const until = std::chrono::steady_clock::now() + limit_;
    while (!bytes.empty()) {
      wait_for(POLLOUT, until);
      // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): iovec has no pointer to const
      ::iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
      ::msghdr message = message_of(part);
      control space;
      if (!descriptors.empty()) attach(message, space, descriptors);
      ::ssize_t const sent = ::sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && is_transient(errno)) continue;
      if (sent < 0) fail("sendmsg");
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
      descriptors = {};
    }
  }

  /// Fills `bytes`. Descriptors that came along are added to `descriptors`, for which it allocates; without,
  /// the system closes them.
  /// @throws as send(); std::bad_alloc
  void receive(std::span<std::byte> bytes, std::vector<unique_descriptor>* descriptors = nullptr) const {
    auto const until = std::chrono::steady_clock::now() + limit_;
    while (!bytes.empty()) {
      wait_for(POLLIN, until);
      if (descriptors != nullptr) descriptors->reserve(descriptors->size() + control::most_received);
      ::iovec part{bytes.data(), bytes.size()};
      ::msghdr message = message_of(part);
      control space;
      message.msg_control = descriptors != nullptr ? space.bytes : nullptr;
      message.msg_controllen = descriptors != nullptr ? sizeof space.bytes : 0;
      ::ssize_t const got = ::recvmsg(socket_, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
      if (got < 0 && is_transient(errno)) continue;
      if (got < 0) fail("recvmsg");
      if (descriptors != nullptr) take(message, *descriptors);
      if (descriptors != nullptr && descriptors->size() > most_descriptors)
        throw sharing_error(sharing_failure::wrong_pages, "the other process sends too many descriptors");
      if (got == 0)
        throw sharing_error(sharing_failure::peer_closed, "the other process closed the socket, or ended");
      if (descriptors != nullptr && (message.msg_flags & MSG_CTRUNC) != 0) {
        throw sharing_error(
            sharing_failure::system,
            "file descriptors were lost: this process has no room for more; raise its limit (ulimit -n)");
      }
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    }
  }

 private:
  struct control {
    // The system adds the sender's credentials if the socket's owner asked for them.
    alignas(::cmsghdr) char bytes[CMSG_SPACE(sizeof(int) * most_descriptors) + CMSG_SPACE(sizeof(::ucred))]{};
    /// A message without credentials may have more than most_descriptors: this many fill all bytes.
    static constexpr std::size_t most_received = sizeof bytes / sizeof(int);
  };

  [[nodiscard]] static ::msghdr message_of(::iovec& part) noexcept {
    ::msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    return message;
  }
  static void attach(::msghdr& message, control& space, std::span<int const> descriptors) noexcept {
    message.msg_control = space.bytes;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    ::cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  static void take(::msghdr& message, std::vector<unique_descriptor>& descriptors) noexcept {
    for (::cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
      if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
      std::size_t const count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(h) + i * sizeof(int), sizeof descriptor);
        descriptors.emplace_back(descriptor);  // there is room: see receive()
      }
    }
  }
  void wait_for(short events, std::chrono::steady_clock::time_point until) const {
    ::pollfd asked{socket_, events, 0};
    for (;;) {
      auto const left =
          std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now())
              .count();
      int const ready = ::poll(&asked, 1,
                               left < 0           ? 0
                               : left > 3'600'000 ? 3'600'000
                                                  : static_cast<int>(left));
      if (ready > 0) return;
      if (ready < 0 && errno != EINTR) fail("poll");
      if (left <= 0)
        throw sharing_error(sharing_failure::timed_out, "the other process does not answer in time");
    }
  }
  [[nodiscard]] static bool is_transient(int error) noexcept {
    return error == EINTR || error == EAGAIN || error == EWOULDBLOCK;
  }
  [[noreturn]] static void fail(std::string_view call) {
    int const error = errno;
    if (error == EPIPE || error == ECONNRESET) {
      throw sharing_error(sharing_failure::peer_closed, "the other process closed the socket, or ended",
                          error);
    }
    message<96> const text(call, " failed; pass a connected Unix socket of type SOCK_STREAM");
    throw sharing_error(sharing_failure::system, text.view(), error);
  }

  int socket_;
  std::chrono::milliseconds limit_;
};

}  // namespace TARN_NAMESPACE::detail
