// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes the waste of a trace as text.

#include <iosfwd>

#include "replay/waste.hpp"

namespace tarn::bench {

/// Writes the table of one trace on one pool: every part that is not empty, in MiB and in per cent of
/// reserved memory.
void write_table(std::ostream& out, waste const& of);

/// Writes the meaning of the rows; once, below the last table.
void write_waste_legend(std::ostream& out);

}  // namespace tarn::bench
