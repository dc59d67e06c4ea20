// SPDX-License-Identifier: Apache-2.0
#pragma once
// tarn: GPU memory for C++. The folders, lowest first; each includes only itself and those above it in this
// list:
//
//   core/    basic types: bytes, streams, errors, the concepts, and shared_resource<>, the handle of every composed resource
//   driver/  the device calls, their costs and errors; the CUDA driver, no driver, and a simulated one:
//     sim/         the simulated device (tarn/sim.hpp)
//   source/  sources of memory: pages, cudaMalloc, cudaMallocAsync, pinned, managed and host memory
//   pool/    the caching pool; start reading at pool.hpp:
//     cache/       per-thread magazines of free blocks
//     heap.hpp     the shared state of the pool and its locks
//     arena/       ranges, runs, size classes and streams: metadata only, no driver calls
//     order/       which memory the device has finished with, and blocks that several streams use
//     ladder.hpp   the steps tried when neither cache nor heap has a block
//     pages/       handles, views and segments, taken from the source
//     relocate/    memory that leaves its handles: sleep and compact
//     graph/       the memory of captured graphs; graph_memories.hpp has what becomes of each block
//     tool/        what a tool that watches memory sees (compute-sanitizer)
//     inspection/  what snapshots read
//   policy/   layers that bound, count, tag, retry and route, composed by | and stack<>
//   debug/    layers that check, fence, poison, record and log
//   raii/     owners of memory, and scopes that measure, clear and bound it
//   transfer/ batches, conversions and copies between memories, and working within little memory (tarn/transfer.hpp)
//   sharing/  memory for other processes and for communication libraries (tarn/sharing.hpp)
//   report/   statistics, snapshots and tables, named as in PyTorch
//
// The interoperability headers are included separately: tarn/thrust.hpp, tarn/stl.hpp, tarn/pmr.hpp,
// tarn/cuda_mr.hpp, tarn/dlpack.hpp, tarn/nccl.hpp.

#include "tarn/core/config.hpp"
#include "tarn/version.hpp"

#include "tarn/source/cuda_async.hpp"
#include "tarn/source/cuda_malloc.hpp"
#include "tarn/source/cuda_pages.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/managed.hpp"
#include "tarn/source/pinned_host.hpp"

#include "tarn/policy/any_resource.hpp"
#include "tarn/policy/device_pool.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/headroom.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/prefetched.hpp"
#include "tarn/policy/retry_on_oom.hpp"
#include "tarn/policy/traced.hpp"
#include "tarn/policy/tracked.hpp"

#include "tarn/debug/checked.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/debug/poisoned.hpp"

#include "tarn/raii/budget_scope.hpp"
#include "tarn/raii/cache_guard.hpp"
#include "tarn/raii/compact.hpp"
#include "tarn/raii/copy.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/device_guard.hpp"
#include "tarn/raii/device_ptr.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/growing_buffer.hpp"
#include "tarn/raii/peak_scope.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/raii/stream.hpp"

#include "tarn/report/stats.hpp"
#include "tarn/report/summary.hpp"

#if !TARN_HAS_CUDA && !defined(TARN_NO_CUDA)
#pragma message( \
        "tarn: CUDA's headers were not found: add their folder (-I/usr/local/cuda/include), or simulate a GPU (-DTARN_NO_CUDA -include tarn/sim.hpp). For host memory alone define TARN_NO_CUDA")
#endif
