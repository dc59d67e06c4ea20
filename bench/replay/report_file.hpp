// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes the report page of a replay, and one line about its contents.

#include <iosfwd>
#include <stdexcept>
#include <string>

#include "tarn/report/snapshot.hpp"

namespace tarn::bench {

/// The page cannot be written; the text contains the file and the system's reason.
class report_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Writes the page of a replayed trace. @throws report_error  the file cannot be opened, or not completely written
void write_report_file(std::string const& path, snapshot const& s);

/// Writes a line about the page: file, calls, peak.
void write_report_line(std::ostream& out, std::string const& path, snapshot const& s);

}  // namespace tarn::bench
