// SPDX-License-Identifier: Apache-2.0
#pragma once
// The figures as programs read them: one JSON object per line. nlohmann-json is used because quoting file
// names and printing doubles so that they read back the same is easy to get wrong by hand.

#include <iosfwd>

#include "context.hpp"
#include "replay/figures.hpp"
#include "replay/survival.hpp"

namespace tarn::bench {

/// Writes one row as one line, with where and of what it was measured. What could not be known is null.
void write_json(std::ostream& out, figures const& row, context const& where = {});
void write_json(std::ostream& out, survival const& row, context const& where);

}  // namespace tarn::bench
