// SPDX-License-Identifier: Apache-2.0
#pragma once
// tarn: GPU memory for C++. The folders, lowest first; each includes only itself and those above it in this list:
//
//   core/    the vocabulary: bytes, streams, errors, the concepts, and shared<>, the handle of everything composed
//   driver/  each call that the device understands, its cost and its failure; the real one, none, and (tarn/sim.hpp) a simulated one
//   source/  where memory comes from: pages, cudaMalloc, cudaMallocAsync, pinned, managed and host memory
//   pool/    the caching pool, read from pool.hpp on:
//     front/       what each thread keeps: magazines of free blocks
//     heap.hpp     what the pool keeps, with its locks
//     arena/       ranges, runs, size classes and streams: records only, no driver call
//     order/       which memory the device is past, and blocks that several streams use
//     ladder.hpp   what is tried when neither has a block
//     growth/      handles, views and segments, from the source
//     inspection/  what tools and snapshots are shown
//   policy/  layers that bound, count, record, retry, check, fence and poison, composed by | and stack<>
//   raii/    owners of memory, and scopes that watch, clear and bound it
//   report/  the numbers, as PyTorch's users know them
//
// The doors let others in and are included on their own: tarn/thrust.hpp, tarn/stl.hpp, tarn/pmr.hpp, tarn/cuda_mr.hpp.

#include "tarn/core/config.hpp"
#include "tarn/version.hpp"

#include "tarn/source/cuda_async.hpp"
#include "tarn/source/cuda_malloc.hpp"
#include "tarn/source/cuda_pages.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/managed.hpp"
#include "tarn/source/pinned_host.hpp"

#include "tarn/policy/checked.hpp"
#include "tarn/policy/device_pool.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/fenced.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/poisoned.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/recorded.hpp"
#include "tarn/policy/retry_on_oom.hpp"
#include "tarn/policy/tracked.hpp"

#include "tarn/raii/budget_scope.hpp"
#include "tarn/raii/cache_guard.hpp"
#include "tarn/raii/copy.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/device_guard.hpp"
#include "tarn/raii/device_ptr.hpp"
#include "tarn/raii/peak_scope.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/raii/stream.hpp"

#include "tarn/report/stats.hpp"
#include "tarn/report/summary.hpp"
