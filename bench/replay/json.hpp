// SPDX-License-Identifier: Apache-2.0
#pragma once
// The figures as programs read them: one JSON object per line. nlohmann-json is used because quoting file
// names and printing doubles so that they read back the same is easy to get wrong by hand.
// Above it: main. Below it: figures.

#include <iosfwd>

#include "replay/figures.hpp"

namespace tarn::bench {

/// Writes one row as one line. What could not be known is null.
void write_json(std::ostream& out, figures const& row);

}  // namespace tarn::bench
