// SPDX-License-Identifier: Apache-2.0
// The bytes are tarn_replay's command line, one argument per line. It is refused with a reason and the status
// of bad input, or its values are within the bounds that the program relies on.

#include "replay/arguments.hpp"

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/promise.hpp"

using namespace tarn::bench;
using tarn_fuzz::promise;

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::vector<std::string> words{"tarn_replay"};
  std::string_view rest(reinterpret_cast<char const*>(data), size);
  while (!rest.empty()) {
    std::size_t const end = rest.find('\n');
    // An argument ends at its first zero byte, whatever follows.
    words.emplace_back(std::string(rest.substr(0, end)).c_str());
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
  }
  std::vector<char const*> argv;
  for (std::string const& w : words) argv.push_back(w.c_str());
  argv.push_back(nullptr);

  std::ostringstream out, err;
  int status = -1;
  auto const a = read_arguments(static_cast<int>(words.size()), argv.data(), out, err, status);
  if (!a) {
    promise(status == 0 || status == exit_bad_input, "a refusal has its status", std::to_string(status));
    promise(status == 0 ? !out.str().empty() : !err.str().empty(),
            "a refusal has a reason, and help has a text");
    return 0;
  }
  promise(status == 0, "an accepted command is not a failure");
  promise(out.str().empty() && err.str().empty(), "an accepted command prints nothing");
  promise(a->device == "auto" || a->device == "cuda" || a->device == "sim", "the device is one of three",
          a->device);
  promise(a->passes >= 1 && a->passes <= 1000, "passes are within their bounds");
  promise(a->capacity <= std::uint64_t{1} << 60, "the capacity is within its bounds");
  promise(a->caps.empty() || a->capacity == 0, "a cap is the capacity");
  promise(std::all_of(a->caps.begin(), a->caps.end(), [](double c) { return c >= 0.01 && c <= 1000; }),
          "caps are within their bounds");
  promise(!a->pools.empty(), "there is a pool to run");
  promise(!asks_for_list(a->pools) || a->pools.front() == "list", "a list is asked for by name");
  promise(!a->seed || !a->patterns.empty(), "a seed is of a pattern");
  promise(a->report.empty() || (!a->json && a->caps.empty()), "a report excludes other output");
  promise(a->options.slack_per_mille <= 1000 && a->options.largest_handle <= std::size_t{1} << 60,
          "options are within their bounds");
  promise(!a->choose_options || !has_options(*a), "options are given or chosen");
  // CLI11 reads `[a,b]` as a list of two, wherever a list is allowed.
  bool const lists =
      std::any_of(words.begin(), words.end(), [](std::string const& w) { return w.starts_with('['); });
  promise(lists || a->files.size() < words.size(), "a file is an argument");
  return 0;
}
