// SPDX-License-Identifier: Apache-2.0
#include "replay/report_file.hpp"

#include <algorithm>
#include <ostream>

#include "replay/table.hpp"
#include "tarn/report/timeline_html.hpp"

namespace tarn::bench {

void write_report_file(std::string const& path, snapshot const& s) {
  tarn::detail::write_file(path, "the page", [&](std::ostream& file) {
    write_timeline_html(file, s, {.time = time_axis::calls});
  });
}

void write_report_line(std::ostream& out, std::string const& path, snapshot const& s) {
  std::uint64_t calls = 0, refused = 0;
  for (snapshot_event const& e : s.events) {
    calls = std::max(calls, e.time_ns);
    refused += e.kind == snapshot_event_kind::refused ? 1U : 0U;
  }
  out << path << ": " << s.title << ", " << with_commas(calls) << " calls, peak "
      << as_mib(static_cast<double>(s.pool.live)) << " in " << with_commas(s.pool.live_blocks)
      << " blocks at call " << with_commas(s.now_ns) << ", " << as_mib(static_cast<double>(s.pool.reserved))
      << " reserved";
  if (refused != 0) out << ", " << with_commas(refused) << " requests refused";
  out << '\n';
}

}  // namespace tarn::bench
