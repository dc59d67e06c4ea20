// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes the report page of a replay, and one line about its contents.

#include <iosfwd>
#include <string>

#include "tarn/report/snapshot.hpp"

namespace tarn::bench {

/// Writes the page of a replayed trace, as save_timeline_html() does. @throws file_error
void write_report_file(std::string const& path, snapshot const& s);

/// Writes a line about the page: file, calls, peak.
void write_report_line(std::ostream& out, std::string const& path, snapshot const& s);

}  // namespace tarn::bench
