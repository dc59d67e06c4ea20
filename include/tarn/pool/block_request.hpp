// SPDX-License-Identifier: Apache-2.0
#pragma once
// A request, or a freed block, that the fast path did not serve, in the form that the heap and the ladder
// use.

#include <cstddef>
#include <cstdint>

#include "tarn/core/stream.hpp"
#include "tarn/pool/arena/range.hpp"
#include "tarn/pool/arena/run.hpp"
#include "tarn/pool/arena/size_class.hpp"

namespace TARN_NAMESPACE::detail {

struct block_request {
  stream_id id;
  stream_ref stream;
  std::size_t asked;      ///< bytes requested by the caller
  std::size_t alignment;  ///< requested by the caller
  std::size_t block;      ///< bytes taken: `asked`, plus a guard under a tool, rounded
  unsigned size_class;    ///< class_count if none
  bool in_run;            ///< served from a run of its class, otherwise from a range
  zone where;
  part_ref part = common;
  std::uint32_t view = 0;  ///< the growing view that the block is to extend, 0 if none
  std::size_t offset = 0;  ///< where the block begins in it

  /// @param bytes  `asked` plus the guard
  block_request(stream_id i, stream_ref s, std::size_t asked_for, std::size_t bytes,
                std::size_t aligned) noexcept
      : block_request(i, s, asked_for, block_size(bytes, aligned), aligned) {}

 private:
  block_request(stream_id i, stream_ref s, std::size_t asked_for, block_size size,
                std::size_t aligned) noexcept
      : id(i),
        stream(s),
        asked(asked_for),
        alignment(aligned),
        block(size.bytes),
        size_class(size.size_class),
        in_run(size_class < run_class_count),
        where(zone_of(block)) {}
};

/// Blocks that callers hold, as one thread counts them: negative if it frees what other threads allocate.
struct live_count {
  std::int64_t bytes = 0;
  std::int64_t blocks = 0;
};

/// A freed block that has not yet returned to the heap.
struct freed_block {
  void* p = nullptr;
  std::size_t bytes = 0;
  std::size_t alignment = 0;
  stream_ref stream;  ///< with its identity
};

/// Blocks of one size: one for the caller, and others of its class for the thread's magazine.
struct block_batch {
  static constexpr std::uint32_t most = 64;
  void* blocks[most];
  std::uint32_t wanted = 1;
  std::uint32_t count = 0;
  bool ends_step = false;  ///< a step of the pool's live_window is over
};

}  // namespace TARN_NAMESPACE::detail
