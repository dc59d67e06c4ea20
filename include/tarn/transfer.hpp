// SPDX-License-Identifier: Apache-2.0
#pragma once
// Moving memory: batches between host and device, work split to fit free memory, lower precision, eviction, several devices.
// Opt-in: it takes as long to compile as the pool.

#include "tarn/tarn.hpp"

#include "tarn/core/bytes_of.hpp"
#include "tarn/policy/accessible_from.hpp"
#include "tarn/raii/collect_batches.hpp"
#include "tarn/raii/convert.hpp"
#include "tarn/raii/evict_scope.hpp"
#include "tarn/raii/free_on.hpp"
#include "tarn/raii/mapped_file.hpp"
#include "tarn/raii/micro_batches.hpp"
#include "tarn/raii/partitioned_buffer.hpp"
#include "tarn/raii/peer_copy.hpp"
#include "tarn/raii/per_device.hpp"
#include "tarn/raii/reservation.hpp"
#include "tarn/raii/scratch.hpp"
#include "tarn/raii/stream_batches.hpp"
#include "tarn/raii/with_oom_retry.hpp"
#include "tarn/source/registered_host.hpp"
