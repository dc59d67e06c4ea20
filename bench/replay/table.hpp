// SPDX-License-Identifier: Apache-2.0
#pragma once
// The figures as people read them: one table per trace, with what PyTorch held for the same run beside.

#include <iosfwd>
#include <span>

#include "replay/figures.hpp"
#include "replay/survival.hpp"

namespace tarn::bench {

/// Writes the table of one trace. All rows are of that trace.
void write_table(std::ostream& out, std::span<figures const> rows);

/// Writes who lived through one trace under which cap. All rows are of that trace.
void write_table(std::ostream& out, std::span<survival const> rows);

/// Writes what the columns mean; once, below the last table.
void write_legend(std::ostream& out);

/// "6,462.0 MiB" with thousands separated.
[[nodiscard]] std::string as_mib(double bytes);

/// 1234567 as "1,234,567".
[[nodiscard]] std::string with_commas(std::uint64_t n);

}  // namespace tarn::bench
