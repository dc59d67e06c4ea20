// SPDX-License-Identifier: Apache-2.0
#include "replay/waste.hpp"

namespace tarn::bench {

void require_sum(waste const& of, waste_moment const& moment) {
  std::uint64_t sum = 0;
  for (part_amount const& part : moment.parts) sum += part.bytes;
  if (sum == moment.reserved) return;
  throw waste_error(of.trace + " on " + of.pool + ", event " + std::to_string(moment.event) + " of pass " +
                    std::to_string(moment.pass) + ": the parts add up to " + std::to_string(sum) +
                    " bytes, but " + std::to_string(moment.reserved) + " are reserved");
}

}  // namespace tarn::bench
