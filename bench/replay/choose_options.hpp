// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which options of a pool suit a trace: those to try, and the choice among the figures of their replays.

#include <cstddef>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "replay/figures.hpp"
#include "tarn/pool/options.hpp"

namespace tarn::bench {

/// Returns the options as C++ has them: "pooled{.largest_handle = 8_MiB}"; those that are the defaults are
/// left out.
[[nodiscard]] std::string to_text(pooled const& options);

/// Returns the options to try, the defaults first.
[[nodiscard]] std::vector<pooled> options_to_try();

/// Indices of replays.
struct choice {
  std::size_t recommended = 0;
  std::size_t tightest = 0;  ///< least peak reserved, then least time
  std::size_t fastest = 0;   ///< least time of the first pass, then least peak reserved
};

/// Nanoseconds per event of the first pass: modelled driver time on the simulated device, else host time,
/// driver calls included.
[[nodiscard]] double first_pass_ns(figures const& row) noexcept;

/// Chooses among replays of one trace with different options; `rows[0]` has the defaults. Of the options that
/// hold no more than the defaults and whose first pass takes at most a tenth longer, the tightest are
/// recommended if they save 1 % of the memory, else the fastest if they save a tenth of the time, else the
/// defaults. A replay with refused requests is not chosen; nullopt if all have some.
[[nodiscard]] std::optional<choice> choose_options(std::span<figures const> rows);

/// Prints the choice with its figures, the recommendation first.
void write_choice(std::ostream& out, std::span<figures const> rows, std::span<pooled const> tried);

/// Prints what the words of write_choice() mean.
void write_choice_legend(std::ostream& out);

}  // namespace tarn::bench
