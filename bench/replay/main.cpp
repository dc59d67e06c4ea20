// SPDX-License-Identifier: Apache-2.0
// tarn_replay: replays recorded or generated allocation traces on tarn and its peers.

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "context.hpp"
#include "patterns/patterns.hpp"
#include "peers/find_cuda.hpp"
#include "replay/arguments.hpp"
#include "replay/choose_options.hpp"
#include "replay/json.hpp"
#include "replay/pools.hpp"
#include "replay/report_file.hpp"
#include "replay/table.hpp"
#include "replay/trace_reader.hpp"
#include "replay/waste_table.hpp"

namespace {

using namespace tarn::bench;

void list_pools(std::ostream& out) {
  for (pool_entry const& p : all_pools()) {
    out << p.name << std::string(p.name.size() < 18 ? 18 - p.name.size() : 1, ' ') << to_text(p.where)
        << std::string(6 - to_text(p.where).size(), ' ') << p.about << '\n';
  }
}

void list_patterns(std::ostream& out) {
  for (std::string const& name : measured_patterns()) out << name << '\n';
}

/// Appends the generated traces.
void add_patterns(std::vector<trace>& traces, arguments const& a) {
  bool const all = a.patterns.size() == 1 && a.patterns.front() == "all";
  for (std::string const& name : all ? measured_patterns() : a.patterns) {
    std::optional<trace> t = generate_pattern(name, a.seed.value_or(default_pattern_seed));
    if (!t) throw usage_error("no pattern '" + name + "'; --pattern list names them");
    traces.push_back(*std::move(t));
  }
}

/// Returns the named pools on the selected device. Host pools are available with either device.
std::vector<pool_entry> choose(std::vector<std::string> const& names, place_of_memory device) {
  std::vector<pool_entry> usable;
  for (pool_entry const& p : all_pools()) {
    if (p.where == device || p.where == place_of_memory::host) usable.push_back(p);
  }
  if (names.size() == 1 && names.front() == "all") return usable;
  std::vector<pool_entry> chosen;
  for (std::string const& name : names) {
    auto const found =
        std::find_if(usable.begin(), usable.end(), [&](pool_entry const& p) { return p.name == name; });
    if (found == usable.end()) {
      throw usage_error("no pool '" + name + "' on device " + std::string(to_text(device)) +
                        "; --pool list names them");
    }
    chosen.push_back(*found);
  }
  return chosen;
}

struct chosen_device {
  place_of_memory where;
  std::string why;
};

chosen_device choose_device(arguments const& a, found_cuda const& device) {
  if (a.device == "sim") return {place_of_memory::simulated, "sim, a simulated GPU, as requested"};
  if (a.device == "cuda" && a.capacity != 0) {
    throw usage_error("--capacity applies to the simulated device only; a CUDA device has a fixed capacity");
  }
  if (a.device == "cuda" && !device.found) {
    throw usage_error("--device cuda: " + device.text + "; --device sim needs none");
  }
  if (device.found && a.capacity != 0) {
    throw usage_error("--capacity applies to the simulated device only; add --device sim");
  }
  if (device.found) return {place_of_memory::cuda, "cuda: " + device.text};
  return {place_of_memory::simulated, "sim, a simulated GPU: " + device.text};
}

/// Replays each pool under each cap and reports which completes.
void survive_caps(arguments const& a, trace const& t, std::vector<pool_entry> const& pools,
                  context const& where, progress& line) {
  std::vector<survival> rows;
  for (pool_entry const& p : pools) {
    for (double const factor : a.caps) {
      rows.push_back(p.survive(t, factor, line));
      if (a.json) {
        write_json(std::cout, rows.back(), where);
        std::cout.flush();
      }
    }
  }
  if (!a.json) write_table(std::cout, rows);
  std::cout.flush();
}

/// Replays one trace on one pool and writes the requested page.
void write_report(arguments const& a, trace const& t, pool_entry const& p, setup made_for) {
  progress line;
  tarn::snapshot const s = p.report(t, made_for, line);
  write_report_file(a.report, s);
  write_report_line(std::cout, a.report, s);
}

/// Describes the memory of each pool at the peaks of one trace.
void write_waste(arguments const& a, trace const& t, std::vector<pool_entry> const& pools, setup made_for,
                 context const& where, progress& line) {
  for (pool_entry const& p : pools) {
    waste const found = p.find_waste(t, made_for, a.passes, line);
    if (a.json) {
      write_json(std::cout, found, where);
    } else {
      write_table(std::cout, found);
    }
    std::cout.flush();
  }
}

/// Replays one pool with each of the options to try, and recommends some. Returns the recommended ones.
tarn::pooled try_options(arguments const& a, trace const& t, pool_entry const& p, setup made_for,
                         context const& where, progress& line) {
  std::vector<tarn::pooled> const tried = options_to_try();
  std::vector<figures> rows;
  for (tarn::pooled const& options : tried) {
    made_for.options = options;
    rows.push_back(p.run(t, made_for, a.passes, line, pass_gate(false)));
    rows.back().options = to_text(options);
    if (a.json) {
      write_json(std::cout, rows.back(), where);
      std::cout.flush();
    }
  }
  if (!a.json) {
    std::vector<figures> named = rows;
    for (figures& row : named) row.pool = row.options;
    write_table(std::cout, named);
    write_choice(std::cout, rows, tried);
    std::cout.flush();
  }
  std::optional<choice> const chosen = choose_options(rows);
  return chosen ? tried[chosen->recommended] : tarn::pooled{};
}

/// Refuses `what` of pools that are not tarn's.
void require_tarn(std::vector<pool_entry> const& pools, std::string const& what, char const* why) {
  for (pool_entry const& p : pools) {
    if (p.find_waste == nullptr)
      throw usage_error("no " + what + " of pool '" + std::string(p.name) + "': only tarn's pools " + why);
  }
}

void replay(arguments const& a) {
  found_cuda const gpu = a.device == "sim" ? found_cuda{} : find_cuda();
  chosen_device const device = choose_device(a, gpu);
  std::vector<pool_entry> const pools = choose(a.pools, device.where);
  // All are read before the first is replayed, so an invalid one is reported at once.
  std::vector<trace> traces;
  add_patterns(traces, a);
  if (!a.report.empty() && (a.files.size() + traces.size() != 1 || pools.size() != 1)) {
    throw usage_error("--report takes one trace and one pool");
  }
  if (!a.report.empty()) require_tarn(pools, "report", "report what they hold");
  if (a.waste) require_tarn(pools, "waste", "report what they hold");
  if (has_options(a) || a.choose_options) require_tarn(pools, "options", "have them");
  if (a.choose_options && pools.size() != 1) throw usage_error("--choose-options takes one pool");
  if (a.in_turn && std::find(a.files.begin(), a.files.end(), "-") != a.files.end())
    throw usage_error("--in-turn reads standard input, and so does the file -");
  for (std::string const& file : a.files) {
    std::error_code ignored;  // a report that does not exist yet is another file
    if (std::filesystem::equivalent(a.report, file == "-" ? "/dev/stdin" : file, ignored))
      throw usage_error("--report names the trace " + file + ", which it would overwrite");
    traces.push_back(read_trace(file));
  }
  setup made_for;
  made_for.capacity = a.capacity;
  made_for.threads = a.threads;
  made_for.options = a.options;
  if (!a.json) {
    std::cout << "device " << device.why << '\n';
    if (has_options(a)) std::cout << "options " << to_text(a.options) << '\n';
    std::cout << '\n';
  }
  if (!a.report.empty() && !a.choose_options) {
    write_report(a, traces.front(), pools.front(), made_for);
    return;
  }
  context const where = find_context(gpu);
  progress line;
  for (trace const& t : traces) {
    if (!a.caps.empty()) {
      survive_caps(a, t, pools, where, line);
      continue;
    }
    if (a.waste) {
      write_waste(a, t, pools, made_for, where, line);
      continue;
    }
    if (a.choose_options) {
      made_for.options = try_options(a, t, pools.front(), made_for, where, line);
      if (!a.report.empty()) write_report(a, t, pools.front(), made_for);
      continue;
    }
    std::vector<figures> rows;
    for (pool_entry const& p : pools) {
      rows.push_back(p.run(t, made_for, a.passes, line, pass_gate(a.in_turn)));
      if (has_options(a)) rows.back().options = to_text(a.options);
      if (a.json) {
        write_json(std::cout, rows.back(), where);
        std::cout.flush();
      }
    }
    if (a.brief) {
      for (figures const& row : rows) write_brief(std::cout, row);
    } else if (!a.json) {
      write_table(std::cout, rows);
    }
    std::cout.flush();
  }
  if (a.json || a.brief || !a.caps.empty()) return;
  if (a.waste) {
    write_waste_legend(std::cout);
  } else if (a.choose_options) {
    write_choice_legend(std::cout);
  } else {
    write_legend(std::cout);
  }
}

int run(int argc, char** argv) {
  int status = 0;
  try {
    std::optional<arguments> const a = read_arguments(argc, argv, std::cout, std::cerr, status);
    if (!a) return status;
    if (asks_for_list(a->pools) || asks_for_list(a->patterns)) {
      if (asks_for_list(a->pools)) list_pools(std::cout);
      if (asks_for_list(a->patterns)) list_patterns(std::cout);
      return 0;
    }
    if (a->files.empty() && a->patterns.empty()) throw usage_error("no trace given; see --help");
    replay(*a);
  } catch (trace_error const& error) {
    std::cerr << error.what() << '\n';
    return exit_bad_input;
  } catch (usage_error const& error) {
    std::cerr << "tarn_replay: " << error.what() << '\n';
    return exit_bad_input;
  } catch (std::exception const& error) {
    std::cerr << "tarn_replay: " << error.what() << '\n';
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  int const status = run(argc, argv);
  errno = 0;
  if (std::cout.flush()) return status;
  std::cerr << "tarn_replay: standard output cannot be written: " << std::strerror(errno != 0 ? errno : EIO)
            << '\n';
  return status != 0 ? status : 1;
}
