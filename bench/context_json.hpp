// SPDX-License-Identifier: Apache-2.0
#pragma once
// Appends the context to each line of results. nlohmann-json writes the lines.

#include <nlohmann/json.hpp>

#include "context.hpp"

namespace tarn::bench {

inline void write_context(nlohmann::ordered_json& line, context const& where) {
  line["gpu"] = where.gpu;
  line["driver"] = where.driver;
  line["cpu"] = where.cpu;
  line["date"] = where.date;
  line["commit"] = where.commit;
}

}  // namespace tarn::bench
