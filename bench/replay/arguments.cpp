// SPDX-License-Identifier: Apache-2.0
#include "replay/arguments.hpp"

#include <CLI/CLI.hpp>
#include <ostream>

namespace tarn::bench {

namespace {

/// Limit up to which sums of sizes do not overflow: 2^60 bytes.
constexpr std::uint64_t most_capacity = std::uint64_t{1} << 60;

/// Accepts digits and a unit only: CLI11 also accepts a sign, wraps negative numbers, and accepts
/// hexadecimals.
std::string is_a_size(std::string const& text) {
  std::size_t const unit = text.find_first_not_of("0123456789");
  bool const begins = !text.empty() && unit != 0;
  bool const ends =
      unit == std::string::npos || text.find_first_not_of(" bBiIkKmMgGtTpPeE", unit) == std::string::npos;
  return begins && ends ? std::string() : "is not a size: " + text;
}
std::string is_a_count(std::string const& text) {
  bool const digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  return digits && text.size() <= 9 ? std::string() : "is not a count within its range: " + text;
}
/// Accepts digits and a point: no sign, no hexadecimals, no exponent, no nan.
std::string is_a_factor(std::string const& text) {
  bool const plain = !text.empty() && text.find_first_not_of("0123456789.") == std::string::npos;
  return plain ? std::string() : "is not a factor: " + text;
}

}  // namespace

std::optional<arguments> read_arguments(int argc, char const* const* argv, std::ostream& out,
                                        std::ostream& err, int& status) {
  arguments a;
  CLI::App app("Replays recorded or generated allocation traces on tarn and its peers.", "tarn_replay");
  app.add_option("--device", a.device, "auto (CUDA if a device is found), cuda, or sim (a simulated GPU)")
      ->check(CLI::IsMember({"auto", "cuda", "sim"}))
      ->default_str("auto");
  auto* const capacity =
      app.add_option("--capacity", a.capacity,
                     "memory of the simulated device, such as 140GiB; also limits the host pools")
          ->transform(CLI::Validator(is_a_size, "SIZE") & CLI::AsSizeValue(false))
          ->check(CLI::Range(std::uint64_t{1}, most_capacity));
  app.add_option("--pool", a.pools, "pools by name, separated by commas; 'all'; or 'list' to name them")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->default_str("tarn");
  auto* const passes =
      app.add_option("--passes", a.passes,
                     "times to replay each trace: the first is cold, the others warm; more than two show "
                     "whether reserved memory creeps")
          ->check(CLI::Validator(is_a_count, "COUNT") & CLI::Range(1U, 1000U))
          ->default_str("3");
  auto* const threads =
      app.add_option(
             "--threads", a.threads,
             "threads that play the parts of each pass in turn, as the forward and the backward pass of a "
             "training in PyTorch")
          ->check(CLI::Validator(is_a_count, "COUNT") & CLI::Range(1U, 64U))
          ->default_str("1");
  auto* const cap = app.add_option("--cap", a.caps,
                                   "replay once on a device of this multiple of the trace's peak live bytes, "
                                   "and report which pools survive; "
                                   "several, separated by commas")
                        ->delimiter(',')
                        ->allow_extra_args(false)
                        ->check(CLI::Validator(is_a_factor, "FACTOR") & CLI::Range(0.01, 1000.0))
                        ->excludes(capacity)
                        ->excludes(passes)
                        ->excludes(threads);
  auto* const waste =
      app.add_flag("--waste", a.waste,
                   "print where the bytes between peak live and peak reserved are, at both peaks; tarn's "
                   "pools only")
          ->excludes(cap)
          ->excludes(threads);
  auto* const in_turn =
      app.add_flag(
             "--in-turn", a.in_turn,
             "before each pass, print the line \"ready\" and wait for a line of standard input: several "
             "programs can then replay in turn (bench/replay/in_turn.py)")
          ->excludes(cap)
          ->excludes(waste);
  auto* const choose =
      app.add_flag(
             "--choose-options", a.choose_options,
             "replay with many options of tarn's pool, and recommend some; with --report, the page is of "
             "those of one trace")
          ->excludes(cap)
          ->excludes(waste)
          ->excludes(in_turn);
  auto const size = [&](char const* name, std::size_t& to, char const* about) {
    app.add_option(name, to, about)
        ->transform(CLI::Validator(is_a_size, "SIZE") & CLI::AsSizeValue(false))
        ->check(CLI::Range(std::uint64_t{0}, most_capacity))
        ->excludes(cap)
        ->excludes(choose);
  };
  size("--largest-handle", a.options.largest_handle,
       "largest physical handle that tarn's pools create, such as 8MiB; 0: derived from what is live");
  size("--release-threshold", a.options.release_threshold,
       "bytes that tarn's pools never give back by themselves; 128MiB if it is not given");
  app.add_option(
         "--slack", a.options.slack_per_mille,
         "how far reserved memory may exceed the live peak before tarn's pools remap, in thousandths; "
         "9 if it is not given")
      ->check(CLI::Validator(is_a_count, "COUNT") & CLI::Range(0U, 1000U))
      ->excludes(cap)
      ->excludes(choose);
  auto* const json = app.add_flag("--json", a.json, "one JSON object per trace and pool, one per line");
  app.add_flag(
         "--brief", a.brief,
         "one line per trace and pool instead of tables: what was replayed, what the pool held, and what "
         "PyTorch held where that is known")
      ->excludes(cap)
      ->excludes(choose)
      ->excludes(json)
      ->excludes(waste);
  app.add_option("--report", a.report,
                 "replay one trace once on one pool, and write this HTML page: memory over time, the "
                 "composition of the peak, the map of addresses at the peak")
      ->check(CLI::Validator(
          [](std::string& name) { return std::string(name.empty() ? "names no file" : ""); }, "FILE"))
      ->excludes(cap)
      ->excludes(in_turn)
      ->excludes(json)
      ->excludes(passes)
      ->excludes(threads)
      ->excludes(waste);
  auto* const pattern =
      app.add_option(
             "--pattern", a.patterns,
             "generated traces by name, separated by commas, played like files; 'all'; or 'list' to name "
             "them")
          ->delimiter(',')
          ->allow_extra_args(false);
  app.add_option("--seed", a.seed, "of the generated traces")
      ->check(CLI::Validator(is_a_count, "COUNT"))
      ->needs(pattern)
      ->default_str("1");
  app.add_option("FILE", a.files, "traces, plain or gzip; - is standard input");
  app.footer(
      "A trace is text, one event a line, in the order of the calls:\n"
      "  a ID BYTES STREAM  a block is allocated for work on a stream\n"
      "  f ID               the block with this number is freed\n"
      "  # TEXT             a comment\n"
      "ID and STREAM are numbers chosen by the writer; an ID may be used again once it was freed. A program "
      "writes one\n"
      "with the policy tarn::traced:  tarn::cuda_pages{} | tarn::pooled{} | tarn::traced{\"trace.txt\"}");
  try {
    app.parse(argc, argv);
  } catch (CLI::ParseError const& error) {
    status = app.exit(error, out, err) == 0 ? 0 : exit_bad_input;
    return std::nullopt;
  }
  status = 0;
  return a;
}

bool has_options(arguments const& a) noexcept {
  pooled const defaults;
  return a.options.largest_handle != defaults.largest_handle ||
         a.options.release_threshold != defaults.release_threshold ||
         a.options.slack_per_mille != defaults.slack_per_mille;
}

bool asks_for_list(std::vector<std::string> const& names) {
  return names.size() == 1 && names.front() == "list";
}

}  // namespace tarn::bench
