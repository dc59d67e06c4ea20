// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes figures for programs: one JSON object per line. Uses nlohmann-json, since quoting file names and
// printing doubles that read back exactly are error-prone by hand.

#include <iosfwd>

#include "context.hpp"
#include "replay/figures.hpp"
#include "replay/survival.hpp"
#include "replay/waste.hpp"

namespace tarn::bench {

/// Writes one row as one line, with the context of the measurement. Unknown values are null.
void write_json(std::ostream& out, figures const& row, context const& where = {});
void write_json(std::ostream& out, survival const& row, context const& where);
void write_json(std::ostream& out, waste const& row, context const& where = {});

}  // namespace tarn::bench
