// SPDX-License-Identifier: Apache-2.0
#include "tarn/report/write_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "catch.hpp"
#include "child_process.hpp"

using namespace tarn;
namespace fs = std::filesystem;

namespace {

/// A temporary folder. The destructor removes it.
struct own_folder {
  fs::path path;
  own_folder() {
    std::string name = (fs::temp_directory_path() / "tarn_write_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~own_folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  own_folder(own_folder const&) = delete;
  own_folder& operator=(own_folder const&) = delete;
  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path), {}));
  }
};
std::string content_of(fs::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write(fs::path const& path, std::string const& text) {
  tarn::detail::write_file(path, "the report", [&](std::ostream& out) { out << text; });
}
/// Writes a part of a report and fails.
void fail(fs::path const& path) {
  tarn::detail::write_file(path, "the report", [](std::ostream& out) {
    out << "a part";
    out.setstate(std::ios::badbit);
  });
}

}  // namespace

TEST_CASE("write_file replaces a report whole, and keeps it where writing fails", "[report][write_file]") {
  own_folder const folder;
  fs::path const path = folder.path / "a.json";
  CHECK_THROWS_AS(fail(path), file_error);
  CHECK(folder.files() == 0);
  write(path, "first");
  CHECK(content_of(path) == "first");
  CHECK_THROWS_AS(fail(path), file_error);
  CHECK(content_of(path) == "first");
  auto const throwing = [](std::ostream& out) {
    out << "a part";
    throw std::logic_error("a user's error");
  };
  CHECK_THROWS_AS(tarn::detail::write_file(path, "the report", throwing), std::logic_error);
  CHECK(content_of(path) == "first");
  write(path, "second");
  CHECK(content_of(path) == "second");
  CHECK(folder.files() == 1);
  // The name of a report may be as long as the system allows.
  fs::path const longest = folder.path / std::string(255, 'x');
  write(longest, "long");
  CHECK(content_of(longest) == "long");
}

TEST_CASE("write_file keeps the permissions of a report and the link to it", "[report][write_file]") {
  own_folder const folder;
  fs::path const path = folder.path / "a.json";
  fs::path const link = folder.path / "latest.json";
  write(path, "first");
  mode_t const mask = ::umask(0);
  ::umask(mask);
  CHECK(fs::status(path).permissions() == fs::perms(0666U & ~mask));
  fs::permissions(path, fs::perms(0640));
  fs::create_symlink("a.json", link);
  write(link, "second");
  CHECK(fs::is_symlink(link));
  CHECK(content_of(path) == "second");
  CHECK(fs::status(path).permissions() == fs::perms(0640));
  // A report that may not be written to, in a folder that may.
  fs::permissions(path, fs::perms(::getuid() == 0 ? 0644 : 0444));
  fs::permissions(folder.path, fs::perms(0777));
  int const status = child_of([&] {
    if (::getuid() == 0 && ::setuid(65534) != 0) return false;  // root may write to each file
    try {
      write(path, "third");
    } catch (file_error const& error) {
      return error.code() == std::errc::permission_denied;
    }
    return false;
  });
  CHECK(status == 0);
  CHECK(content_of(path) == "second");
  CHECK(folder.files() == 2);
}

TEST_CASE("write_file writes to what is not a regular file, and removes nothing", "[report][write_file]") {
  own_folder const folder;
  fs::path const pipe = folder.path / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  int const reader = ::open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  write(pipe, "through a pipe");
  char read[32] = "";
  CHECK(::read(reader, read, sizeof read) == 14);
  CHECK(std::string(read) == "through a pipe");
  CHECK_THROWS_AS(fail(pipe), file_error);
  CHECK(fs::is_fifo(pipe));
  (void)::close(reader);
  CHECK_THROWS_AS(write(folder.path, "to a folder"), file_error);
  CHECK(fs::is_directory(folder.path));
  if (!fs::exists("/dev/full")) return;
  fs::path const link = folder.path / "full.json";
  fs::create_symlink("/dev/full", link);
  try {
    write(link, "to a full disk");
    FAIL("no exception was thrown");
  } catch (file_error const& error) {
    CHECK(error.code() == std::errc::no_space_on_device);
  }
  CHECK(fs::is_symlink(link));
}
