// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows for readers and for programs.

#include <iosfwd>

#include "context.hpp"
#include "hot_paths/row.hpp"

namespace tarn::bench {

/// One line for a reader: "  tarn.sim  57 ns (55 to 60)".
void write_text(std::ostream& out, row const& r);

/// One JSON object on one line, with where and of what it was measured.
void write_json(std::ostream& out, row const& r, context const& where);

}  // namespace tarn::bench
