// SPDX-License-Identifier: Apache-2.0
#include "replay/json.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>

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

}  // namespace

void write_json(std::ostream& out, figures const& row, context const& where) {
  nlohmann::ordered_json line;
  line["trace"] = row.trace;
  line["pool"] = row.pool;
  line["device"] = row.device;
  line["events"] = row.events;
  line["peak_live"] = row.peak_live;
  line["peak_reserved"] = or_null(row.peak_reserved);
  line["utilisation"] = or_null(row.utilisation());
  line["driver_calls"] = or_null(row.driver_calls);
  line["driver_calls_warm"] = or_null(row.driver_calls_warm);
  line["cold_ns_per_event"] = to_tenth(row.cold_ns_per_event);
  line["warm_ns_per_event"] = or_null(to_tenth(row.warm_ns_per_event));
  line["warm_best_ns_per_event"] = or_null(to_tenth(row.warm_best_ns_per_event));
  line["out_of_memory"] = row.out_of_memory;
  line["passes"] = row.passes;
  line["driver_ns_cold"] = to_tenth(row.driver_ns_cold);
  line["driver_ns_warm"] = to_tenth(row.driver_ns_warm);
  line["gpu"] = where.gpu;
  line["driver"] = where.driver;
  line["cpu"] = where.cpu;
  line["date"] = where.date;
  line["commit"] = where.commit;
  // A trace's name is a file's name, which need not be UTF-8.
  out << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

}  // namespace tarn::bench
