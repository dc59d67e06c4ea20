// SPDX-License-Identifier: Apache-2.0
#include "replay/json.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

#include "context_json.hpp"

namespace tarn::bench {

namespace {

template <class T>
nlohmann::ordered_json or_null(std::optional<T> const& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

double to_tenth(double ns) {
  return std::round(ns * 10) / 10;
}
std::optional<double> to_tenth(std::optional<double> ns) {
  if (ns) ns = to_tenth(*ns);
  return ns;
}

nlohmann::ordered_json as_json(waste_moment const& m) {
  nlohmann::ordered_json moment;
  moment["pass"] = m.pass;
  moment["event"] = m.event;
  moment["asked"] = m.asked;
  moment["reserved"] = m.reserved;
  moment["handles"] = m.handles;
  for (std::size_t i = 0; i < memory_part_count; ++i) {
    moment["bytes"][std::string(memory_part_names[i].key)] = m.parts[i].bytes;
  }
  for (std::size_t i = 0; i < memory_part_count; ++i) {
    moment["count"][std::string(memory_part_names[i].key)] = m.parts[i].count;
  }
  return moment;
}

/// A line that begins with what was replayed, on what.
template <class Row>
nlohmann::ordered_json line_of(Row const& row) {
  nlohmann::ordered_json line;
  line["trace"] = row.trace;
  line["pool"] = row.pool;
  line["device"] = row.device;
  return line;
}
/// Replaces invalid UTF-8: the name of a trace is a file name.
void write_line(std::ostream& out, nlohmann::ordered_json line, context const& where) {
  write_context(line, where);
  out << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

}  // namespace

void write_json(std::ostream& out, figures const& row, context const& where) {
  nlohmann::ordered_json line = line_of(row);
  if (!row.options.empty()) line["options"] = row.options;
  line["events"] = row.events;
  line["peak_live"] = row.peak_live;
  line["peak_reserved"] = or_null(row.peak_reserved);
  line["peak_reserved_first"] = or_null(row.peak_reserved_first());
  line["peak_reserved_last"] = or_null(row.peak_reserved_last());
  line["peak_reserved_of_pass"] = row.peak_reserved_of_pass;
  line["utilisation"] = or_null(row.utilisation());
  line["driver_calls"] = or_null(row.driver_calls);
  line["driver_calls_warm"] = or_null(row.driver_calls_warm);
  line["cold_ns_per_event"] = to_tenth(row.cold_ns_per_event);
  line["warm_ns_per_event"] = or_null(to_tenth(row.warm_ns_per_event));
  line["warm_best_ns_per_event"] = or_null(to_tenth(row.warm_best_ns_per_event));
  for (double const ns : row.ns_per_event_of_pass) line["ns_per_event_of_pass"].push_back(to_tenth(ns));
  line["out_of_memory"] = row.out_of_memory;
  line["passes"] = row.passes;
  line["threads"] = row.threads;
  line["driver_ns_cold"] = to_tenth(row.driver_ns_cold);
  line["driver_ns_warm"] = to_tenth(row.driver_ns_warm);
  write_line(out, std::move(line), where);
}

void write_json(std::ostream& out, survival const& row, context const& where) {
  nlohmann::ordered_json line = line_of(row);
  line["factor"] = row.factor;
  line["cap"] = row.cap;
  line["free_at_start"] = row.free_at_start;
  line["survived"] = row.survived();
  line["events"] = row.events;
  line["refusals"] = row.refusals;
  line["first_refusal"] = row.first_refusal;
  line["first_refused_bytes"] = row.first_refused_bytes;
  line["live_at_first"] = row.live_at_first;
  line["failed"] = row.failed;
  write_line(out, std::move(line), where);
}

void write_json(std::ostream& out, waste const& row, context const& where) {
  nlohmann::ordered_json line = line_of(row);
  line["events"] = row.events;
  line["passes"] = row.passes;
  line["peak_live"] = row.peak_live;
  line["peak_reserved"] = row.peak_reserved;
  line["utilisation"] = or_null(row.utilisation());
  line["out_of_memory"] = row.out_of_memory;
  line["at_peak_reserved"] = as_json(row.at_peak_reserved);
  line["at_peak_live"] = as_json(row.at_peak_live.value_or(row.at_peak_reserved));
  write_line(out, std::move(line), where);
}

}  // namespace tarn::bench
