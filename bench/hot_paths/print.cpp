// SPDX-License-Identifier: Apache-2.0
#include "hot_paths/print.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <ostream>

#include "context_json.hpp"

namespace tarn::bench {

namespace {

std::string ns(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), value < 100 ? "%.1f" : "%.0f", value);
  return text.data();
}

std::string microseconds(double ns) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), ns < 1e5 ? "%.2f" : "%.0f", ns / 1000);
  return text.data();
}

double to_hundredth(double value) {
  return std::round(value * 100) / 100;
}

std::string text_of(tail const& t) {
  return "p50 " + ns(t.p50) + ", p99 " + ns(t.p99) + ", p99.9 " + ns(t.p999) + ", longest " + ns(t.longest);
}

nlohmann::ordered_json json_of(tail const& t) {
  return {{"p50", to_hundredth(t.p50)},
          {"p99", to_hundredth(t.p99)},
          {"p999", to_hundredth(t.p999)},
          {"longest", to_hundredth(t.longest)}};
}

}  // namespace

void write_text(std::ostream& out, row const& r) {
  std::string name = r.pool + (r.device == "sim" ? ".sim" : "");
  name.resize(std::max<std::size_t>(name.size(), 18), ' ');
  out << "  " << name << "  ";
  if (!r.problem.empty()) {
    out << "- (" << r.problem << ')';
  } else if (r.pair) {
    out << ns(r.pair->median) << " ns (" << ns(r.pair->best) << " to " << ns(r.pair->worst) << ')';
  }
  if (r.allocate) out << "allocate: " << text_of(*r.allocate) << " ns; ";
  if (r.deallocate) out << "deallocate: " << text_of(*r.deallocate) << " ns";
  if (r.refusal) {
    out << "refused after " << microseconds(r.refusal->p50) << " us, longest "
        << microseconds(r.refusal->longest) << " us";
  }
  if (r.free_ranges) out << "; " << *r.free_ranges << " free ranges";
  out << '\n';
}

void write_json(std::ostream& out, row const& r, context const& where) {
  nlohmann::ordered_json line;
  line["work"] = r.work;
  line["pool"] = r.pool;
  line["device"] = r.device;
  if (!r.problem.empty()) line["problem"] = r.problem;
  if (r.pair) {
    line["ns_per_pair"] = to_hundredth(r.pair->median);
    line["best"] = to_hundredth(r.pair->best);
    line["worst"] = to_hundredth(r.pair->worst);
    line["repetitions"] = r.pair->repetitions;
    line["pairs"] = r.pair->pairs;
  }
  if (r.allocate) line["allocate"] = json_of(*r.allocate);
  if (r.deallocate) line["deallocate"] = json_of(*r.deallocate);
  if (r.refusal) line["refusal"] = json_of(*r.refusal);
  if (r.free_ranges) line["free_ranges"] = *r.free_ranges;
  if (r.allocate || r.refusal) line["clock_ns_taken_off"] = to_hundredth(r.clock_ns);
  write_context(line, where);
  out << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

}  // namespace tarn::bench
