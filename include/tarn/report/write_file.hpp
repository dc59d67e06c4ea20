// SPDX-License-Identifier: Apache-2.0
#pragma once
// write_file: writes a report to a file, whole or not at all.

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <ostream>
#include <string>

#include "tarn/core/file_error.hpp"
#include "tarn/core/message.hpp"

namespace tarn::detail {

/// Calls write(std::ostream&) on the file, which replaces an existing one; if anything fails, the file is removed.
/// @param what  of the report, for errors: "the snapshot"
/// @throws file_error  the file cannot be created or not completely written; and what write() throws
template <class Write>
void write_file(std::string const& path, char const* what, Write const& write) {
  errno = 0;
  std::ofstream file;
  try {
    file.open(path, std::ios::binary | std::ios::trunc);
    if (file.is_open()) write(file);
  } catch (...) {
    (void)std::remove(path.c_str());
    throw;
  }
  if (!file.is_open())
    throw file_error(path, message<96>().add(what).add(" cannot be written; check the path").view(),
                     errno != 0 ? errno : EIO);
  file.close();
  if (!file) {
    int const why = errno != 0 ? errno : EIO;
    (void)std::remove(path.c_str());
    throw file_error(path, message<96>().add("writing ").add(what).add(" failed; is the disk full?").view(),
                     why);
  }
}

}  // namespace tarn::detail
