// SPDX-License-Identifier: Apache-2.0
#include "replay/choose_options.hpp"

#include <array>
#include <cstdio>
#include <limits>
#include <ostream>

#include "peers/peer.hpp"
#include "replay/table.hpp"
#include "tarn/core/bytes.hpp"

namespace tarn::bench {

namespace {

std::string literal_of(std::size_t bytes) {
  if (bytes == std::numeric_limits<std::size_t>::max()) return "~std::size_t{0}";
  if (bytes % 1_MiB == 0 && bytes != 0) return std::to_string(bytes / 1_MiB) + "_MiB";
  return std::to_string(bytes);
}

std::string fixed(double value, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

std::string figures_of(figures const& row) {
  return as_mib(static_cast<double>(row.peak_reserved.value_or(0))) + " held (" +
         fixed(row.utilisation().value_or(0), 3) + " in use at the peak), first pass " +
         fixed(first_pass_ns(row) * static_cast<double>(row.events) / 1e6, 2) + " ms";
}

}  // namespace

std::string to_text(pooled const& options) {
  pooled const defaults;
  std::string fields;
  auto const add = [&](char const* name, std::string const& value) {
    fields += (fields.empty() ? "." : ", .") + std::string(name) + " = " + value;
  };
  if (options.remap != defaults.remap) add("remap", "remapping::off");
  if (options.slack_per_mille != defaults.slack_per_mille)
    add("slack_per_mille", std::to_string(options.slack_per_mille));
  if (options.largest_handle != defaults.largest_handle)
    add("largest_handle", literal_of(options.largest_handle));
  if (options.release_threshold != defaults.release_threshold)
    add("release_threshold", literal_of(options.release_threshold));
  return "pooled{" + fields + "}";
}

std::vector<pooled> options_to_try() {
  std::vector<pooled> all{pooled{}};
  for (std::size_t const handle : {std::size_t{0}, 2_MiB, 8_MiB, 20_MiB, 64_MiB, 256_MiB}) {
    for (unsigned const slack : {0U, pooled{}.slack_per_mille, 30U}) {
      if (handle == 0 && slack == pooled{}.slack_per_mille) continue;  // the defaults
      all.push_back({.slack_per_mille = slack, .largest_handle = handle});
    }
  }
  all.push_back({.remap = remapping::off});
  all.push_back({.release_threshold = 0});
  all.push_back({.release_threshold = std::numeric_limits<std::size_t>::max()});
  return all;
}

double first_pass_ns(figures const& row) noexcept {
  return row.device == to_text(place_of_memory::simulated) ? row.driver_ns_cold : row.cold_ns_per_event;
}

std::optional<choice> choose_options(std::span<figures const> rows) {
  constexpr double longer = 1.1, less_memory = 0.99, less_time = 0.9;
  auto const held = [&](std::size_t i) { return static_cast<double>(*rows[i].peak_reserved); };
  auto const time = [&](std::size_t i) { return first_pass_ns(rows[i]); };
  auto const holds_less = [&](std::size_t a, std::size_t b) {
    return held(a) < held(b) || (held(a) == held(b) && time(a) < time(b));
  };
  auto const takes_less = [&](std::size_t a, std::size_t b) {
    return time(a) < time(b) || (time(a) == time(b) && held(a) < held(b));
  };
  std::vector<std::size_t> complete;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].utilisation()) complete.push_back(i);
  }
  if (complete.empty()) return std::nullopt;
  std::size_t const first = complete.front();  // the defaults, unless they were refused memory
  choice chosen{first, first, first};
  std::size_t tighter = first, faster = first;  // of those that are no worse than the first
  for (std::size_t const i : complete) {
    if (holds_less(i, chosen.tightest)) chosen.tightest = i;
    if (takes_less(i, chosen.fastest)) chosen.fastest = i;
    if (held(i) > held(first) || time(i) > time(first) * longer) continue;
    if (holds_less(i, tighter)) tighter = i;
    if (takes_less(i, faster)) faster = i;
  }
  if (held(tighter) <= held(first) * less_memory) {
    chosen.recommended = tighter;
  } else if (time(faster) <= time(first) * less_time) {
    chosen.recommended = faster;
  }
  return chosen;
}

void write_choice(std::ostream& out, std::span<figures const> rows, std::span<pooled const> tried) {
  std::optional<choice> const chosen = choose_options(rows);
  if (!chosen) {
    out << "no recommendation: requests were refused with all options\n\n";
    return;
  }
  auto const line = [&](char const* name, std::size_t i) {
    out << name << to_text(tried[i]) << ": " << figures_of(rows[i]) << '\n';
  };
  line("recommended: ", chosen->recommended);
  if (chosen->recommended != 0 && rows[0].utilisation()) line("defaults:    ", 0);
  line("tightest:    ", chosen->tightest);
  line("fastest:     ", chosen->fastest);
  out << '\n';
}

void write_choice_legend(std::ostream& out) {
  out << "recommended: of the options that hold no more than the defaults and whose first pass takes at most "
         "a "
         "tenth longer,\n"
         "the tightest if they save 1 % of the memory, else the fastest if they save a tenth of the time, "
         "else "
         "the defaults.\n"
         "tightest: what holds the least. fastest: the shortest first pass, the driver's modelled time on "
         "the "
         "simulated device,\n"
         "host time with driver calls on a GPU.\n";
}

}  // namespace tarn::bench
