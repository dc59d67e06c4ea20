// SPDX-License-Identifier: Apache-2.0
#pragma once
// write_file: writes a report to a file, whole or not at all.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>

#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"

namespace TARN_NAMESPACE::detail {

/// A new file in the folder of `path`, which takes the place of what is there once it is whole. The
/// destructor removes it if it did not. What is there and is not a regular file (a device, a pipe) is not
/// replaced: name() is then the path itself, and nothing is removed.
class file_beside {
 public:
  /// @param path  a symbolic link stays, and its target is replaced
  explicit file_beside(std::string const& path) : target_(path), name_(path) {
    struct ::stat facts {};
    bool const exists = ::lstat(path.c_str(), &facts) == 0;
    if (exists && !(::stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode) && follow_links())) return;
    error_ = exists && ::access(target_.c_str(), W_OK) != 0 ? errno : create();
    if (is_new_ && exists) (void)::chmod(name_.c_str(), facts.st_mode & 0777U);
  }
  file_beside& operator=(file_beside&&) = delete;
  ~file_beside() {
    if (is_new_) (void)std::remove(name_.c_str());
  }

  /// errno: why there is no file to write to; 0: there is one.
  [[nodiscard]] int error() const noexcept { return error_; }
  /// The file to write to.
  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  /// Replaces what is at the path by the file. Returns false, with errno, if the system refuses.
  [[nodiscard]] bool take_place() noexcept {
    if (is_new_ && std::rename(name_.c_str(), target_.c_str()) != 0) return false;
    is_new_ = false;
    return true;
  }

 private:
  /// Returns false if the target has no path: a deleted file that is still open.
  [[nodiscard]] bool follow_links() {
    std::unique_ptr<char, void (*)(void*)> const real(::realpath(target_.c_str(), nullptr), &std::free);
    if (real != nullptr) target_ = real.get();
    return real != nullptr;
  }
  /// Returns errno, or 0.
  [[nodiscard]] int create() {
    static std::atomic<unsigned> last{0};
    std::string const folder = target_.substr(0, target_.find_last_of('/') + 1);
    for (;;) {
      message<48> own;
      own.add(".tarn_").add_number(static_cast<std::uint64_t>(::getpid()));
      own.add("_").add_number(std::uint64_t{last.fetch_add(1, std::memory_order_relaxed)});
      name_ = folder + own.c_str();
      int const file = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (file < 0 && errno == EEXIST) continue;
      if (file < 0) return errno;
      is_new_ = true;
      (void)::close(file);
      return 0;
    }
  }

  std::string target_;
  std::string name_;
  int error_ = 0;
  bool is_new_ = false;
};

/// Calls write(std::ostream&) on a new file, which then replaces what is at the path. If anything fails, what
/// was there stays. A device or a pipe is written to as it is. Needs a folder in which files can be created.
/// @param what  of the report, for errors: "the snapshot"
/// @throws file_error  the file cannot be created or not completely written; and what write() throws
template <class Write>
void write_file(std::string const& path, char const* what, Write const& write) {
  file_beside beside(path);
  errno = 0;
  std::ofstream file;
  if (beside.error() == 0) file.open(beside.name(), std::ios::binary | std::ios::trunc);
  if (!file.is_open()) {
    int const why = beside.error() != 0 ? beside.error() : errno != 0 ? errno : EIO;
    throw file_error(path, message<96>().add(what).add(" cannot be written; check the path").view(), why);
  }
  write(file);
  file.close();
  if (!file || !beside.take_place()) {
    int const why = errno != 0 ? errno : EIO;
    throw file_error(path, message<96>().add("writing ").add(what).add(" failed; is the disk full?").view(),
                     why);
  }
}

}  // namespace TARN_NAMESPACE::detail
