// SPDX-License-Identifier: Apache-2.0
#pragma once
// Prints rows as text and as JSON.

#include <iosfwd>

#include "context.hpp"
#include "hot_paths/row.hpp"

namespace tarn::bench {

/// Writes one line of text: "  tarn.sim  57 ns (55 to 60)".
void write_text(std::ostream& out, row const& r);

/// Writes one JSON object on one line, with the context of the measurement.
void write_json(std::ostream& out, row const& r, context const& where);

}  // namespace tarn::bench
