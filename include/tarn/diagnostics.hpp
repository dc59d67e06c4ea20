// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory diagnostics: live bytes by tag and by source line, where a device's memory went, snapshots as pages and files. Opt-in:
// programs that do not use them need not compile them. Call stacks are separate: tarn/policy/backtrace.hpp.

#include "tarn/tarn.hpp"

#include "tarn/policy/log_line.hpp"
#include "tarn/policy/logged.hpp"
#include "tarn/policy/nvtx_ranged.hpp"
#include "tarn/policy/tagged.hpp"
#include "tarn/policy/with_history.hpp"
#include "tarn/raii/line_profile.hpp"
#include "tarn/report/by_tag.hpp"
#include "tarn/report/explain_memory.hpp"
#include "tarn/report/line_profile_table.hpp"
#include "tarn/report/save_snapshot.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/report/timeline_html.hpp"
