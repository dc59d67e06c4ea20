// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory diagnostics: memory_stats, live bytes by tag and by source line, where a device's memory went,
// snapshots as pages and files. Opt-in: programs that do not use them need not compile them. Call stacks are
// separate: tarn/debug/backtrace.hpp.

#include "tarn/tarn.hpp"

#include "tarn/debug/logged.hpp"
#include "tarn/debug/nvtx_ranged.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/tagged.hpp"
#include "tarn/report/by_tag.hpp"
#include "tarn/report/explain_memory.hpp"
#include "tarn/report/line_profile.hpp"
#include "tarn/report/memory_stats.hpp"
#include "tarn/report/save_snapshot.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/report/timeline_html.hpp"
