// SPDX-License-Identifier: Apache-2.0
#pragma once
// mapped_file: a file as read-only memory.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/message.hpp"

namespace tarn {

/// A file that cannot be read as asked: says which, what was tried, and errno (0 where the host did not refuse).
class file_error : public std::exception {
 public:
  file_error(std::string_view path, std::string_view what, int error) noexcept : error_(error) {
    text_.add("tarn: ").add(path).add(": ").add(what);
    if (error != 0) text_.add(" (errno ").add_number(error).add(")");
  }
  [[nodiscard]] char const* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] int error() const noexcept { return error_; }

 private:
  int error_;
  message<384> text_;
};

/// Owns a read-only mapping of a whole file. Move-only; moved-from is empty. The host reads ahead, as for one pass from front to
/// back. Safe to read from any thread. A file that others shorten meanwhile ends the program where its missing pages are
/// touched (SIGBUS); read() throws instead, and is what streamed batches use.
class mapped_file {
 public:
  /// Never waits for a writer, and opens no device. @throws file_error  no such file, not readable, not a regular file, or
  /// one of those that the system makes up as they are read (/proc), whose size is not known
  explicit mapped_file(std::string path) : path_(std::move(path)) {
    struct ::stat facts {};
    if (::stat(path_.c_str(), &facts) == 0) require_regular(facts);
    // Without O_NONBLOCK the opening of a FIFO that has just taken the file's place would wait for a writer.
    file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (file_ < 0) throw file_error(path_, "cannot be opened for reading", errno);
    if (::fstat(file_, &facts) != 0) fail("cannot be looked at");
    require_regular(facts);
    bytes_ = static_cast<std::size_t>(facts.st_size);
    if (bytes_ == 0) {
      require_empty();
      return;
    }
    void* const mapped = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file_, 0);
    if (mapped == MAP_FAILED) fail("cannot be mapped");
    data_ = static_cast<std::byte*>(mapped);
    (void)::madvise(mapped, bytes_, MADV_SEQUENTIAL);  // advice: a host that cannot take it is no error
    (void)::madvise(mapped, bytes_, MADV_WILLNEED);
  }
  mapped_file(mapped_file&& other) noexcept { swap(other); }
  mapped_file& operator=(mapped_file&& other) noexcept {
    mapped_file taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~mapped_file() { close(); }
  void swap(mapped_file& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(file_, other.file_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// The file's bytes, in place.
  [[nodiscard]] std::span<std::byte const> span() const noexcept { return {data_, bytes_}; }
  /// The file as elements, in place. @throws file_error  its size is no multiple of theirs
  template <class T>
  [[nodiscard]] std::span<T const> as() const {
    return {reinterpret_cast<T const*>(data_), count_of<T>()};
  }
  /// Elements of T in the file. @throws file_error  its size is no multiple of theirs
  template <class T>
  [[nodiscard]] std::size_t count_of() const {
    static_assert(std::is_trivially_copyable_v<T>, "tarn: a file has bytes: T must be trivially copyable");
    if (bytes_ % sizeof(T) != 0)
      throw file_error(path_, "ends within an element: its size is no multiple", 0);
    return bytes_ / sizeof(T);
  }

  /// Copies bytes of the file to memory by the file's own calls, not through the mapping. From any thread. Of a file in the page
  /// cache one thread of an EPYC virtual machine read 17 GB/s so, 7 through a new mapping, whose pages come fault by fault.
  /// @throws file_error  they cannot be read, or the file has become shorter
  void read(std::size_t offset, std::span<std::byte> to) const {
    while (!to.empty()) {
      ssize_t const got = ::pread(file_, to.data(), to.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw file_error(path_, "cannot be read", errno);
      if (got == 0) throw file_error(path_, "has become shorter than it was when it was mapped", 0);
      offset += static_cast<std::size_t>(got);
      to = to.subspan(static_cast<std::size_t>(got));
    }
  }

 private:
  void require_regular(struct ::stat const& facts) {
    if (S_ISREG(facts.st_mode)) return;
    errno = 0;
    fail("is no regular file; read it by a generator");
  }
  /// Files that the system makes up have a size of 0 and contents all the same.
  void require_empty() {
    char first = 0;
    ssize_t const got = ::pread(file_, &first, 1, 0);
    if (got < 0) fail("cannot be read");
    if (got == 0) return;
    errno = 0;
    fail("has contents, but its size is not known; read it by a generator");
  }
  [[noreturn]] void fail(std::string_view what) {
    int const error = errno;
    close();
    throw file_error(path_, what, error);
  }
  void close() noexcept {
    if (data_ != nullptr) (void)::munmap(data_, bytes_);
    if (file_ >= 0) (void)::close(file_);
    data_ = nullptr;
    file_ = -1;
    bytes_ = 0;
  }

  std::string path_;
  int file_ = -1;
  std::byte* data_ = nullptr;  ///< mapped for reading alone
  std::size_t bytes_ = 0;
};

}  // namespace tarn
