// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes figures as text: one table per trace, with what PyTorch reserved for the same run.

#include <iosfwd>
#include <span>

#include "replay/figures.hpp"
#include "replay/survival.hpp"

namespace tarn::bench {

/// Writes the table of one trace. All rows are of that trace.
void write_table(std::ostream& out, std::span<figures const> rows);

/// Writes which pool completed one trace under which cap. All rows are of that trace.
void write_table(std::ostream& out, std::span<survival const> rows);

/// Writes one line: what was replayed, what the pool held, and what PyTorch held where that is known.
void write_brief(std::ostream& out, figures const& row);

/// Writes the meaning of the columns; once, below the last table.
void write_legend(std::ostream& out);

/// "6,462.0 MiB" with thousands separated.
[[nodiscard]] std::string as_mib(double bytes);

/// Formats 1234567 as "1,234,567".
[[nodiscard]] std::string with_commas(std::uint64_t n);

}  // namespace tarn::bench
