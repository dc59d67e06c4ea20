// SPDX-License-Identifier: Apache-2.0
#pragma once
// Moving memory: batches between host and device, work split to fit free memory, lower precision, eviction,
// several devices. Opt-in: it takes as long to compile as the pool.

#include "tarn/tarn.hpp"

#include "tarn/policy/accessible_from.hpp"
#include "tarn/source/registered_host.hpp"
#include "tarn/transfer/collect_batches.hpp"
#include "tarn/transfer/convert.hpp"
#include "tarn/transfer/element_reader.hpp"
#include "tarn/transfer/evict_scope.hpp"
#include "tarn/transfer/free_on.hpp"
#include "tarn/transfer/mapped_file.hpp"
#include "tarn/transfer/micro_batches.hpp"
#include "tarn/transfer/partitioned_buffer.hpp"
#include "tarn/transfer/peer_copy.hpp"
#include "tarn/transfer/per_device.hpp"
#include "tarn/transfer/reservation.hpp"
#include "tarn/transfer/scratch.hpp"
#include "tarn/transfer/stream_batches.hpp"
#include "tarn/transfer/with_oom_retry.hpp"
