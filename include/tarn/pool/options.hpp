// SPDX-License-Identifier: Apache-2.0
#pragma once
// pooled: the options of a pool, which compose it with a source (policy/pooled.hpp). The defaults suit all
// recorded traces.

#include <cstddef>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE {

/// Whether free physical handles may be remapped next to each other at a second address.
enum class remapping {
  when_tight,  ///< yes, before reserved memory exceeds the live peak (needs a page source)
  off          ///< no: every handle stays where it was first mapped
};

/// In how many physical handles a block of a pool over pages may lie.
enum class handles_per_block {
  any,  ///< several, mapped side by side
  one   ///< one, as a cudaMalloc block: for libraries that look only at the first handle of a block
};

/// When a pool asks CUDA whether the stream of a call is captured into a graph. A block that is freed inside
/// a capture must not be handed out while the graph may be replayed. In a capture_scope the block is deferred
/// until the graph's owner ends; in a capture without a scope, until the pool ends. A deferred block counts
/// as active (memory_stats), and the next capture takes new memory, so open a scope where graphs are captured
/// again and again. Without a scope, record_stream() with the captured stream throws cuda_error (code 900).
/// At its end a pool with deferred blocks waits for the device, which invalidates captures without a scope.
///
/// The legacy default stream is never captured and not asked about. Of a bare handle the pool asks for the
/// identity, at each call: in a capture without a scope CUDA refuses that (code 900) and invalidates the
/// capture. A stream that may be destroyed must not be asked about. So a pool does not notice that a block is
/// freed in a capture without a scope on
///   - a stream that this copy of tarn did not make (tarn::stream does) and whose identity was noted before
///     the capture, by the owner or by tarn::identified;
///   - the default stream of another thread;
///   - a stream that found no place in the list of made streams, which has 4,096 in buckets of eight.
/// deallocate_sync() names no stream. An owner may free on a stream that was destroyed before, but not while
/// it is destroyed.
enum class capture_watch {
  /// At each deallocation on a stream of known identity: some 20 ns (include/LIMITS.md). An
  /// allocation makes no driver call. Inside a capture it may return what its stream freed before: launch the
  /// graph after that work.
  at_frees,
  /// Only in threads that have opened a capture_scope: warm calls on streams of known identity make no driver
  /// call. The caller promises that other captures free no blocks of the pool that their graphs use.
  in_scopes,
  /// Also at each allocation, which is refused in a capture without a scope. No warm path.
  always
};

template <class Upstream>
class pooled_layer;

/// A caching, stream-ordered pool over pages or blocks; see pool/pool.hpp. The defaults suit all recorded
/// traces.
struct pooled {
  /// Whether free handles may be remapped next to each other at a second address. With `off`, a second pass
  /// over the same work makes no driver call, at the cost of more reserved memory.
  remapping remap = remapping::when_tight;
  /// How far reserved memory may exceed the peak of live bytes, in thousandths, before free handles are
  /// remapped for a request above 8 MiB; up to eight times as far for smaller ones, see slack_of() in
  /// pool/pages/growth_rules.hpp.
  unsigned slack_per_mille = 9;
  /// Largest physical handle to create, bytes, a multiple of 2 MiB; 0 derives it from the live peak and from
  /// the memory that is left, see pool/pages/growth_rules.hpp. Smaller ones waste less and cost more driver
  /// calls: bench/results/frontier.txt.
  std::size_t largest_handle = 0;
  /// Reserved bytes that the pool never gives back by itself. Beyond them it gives free handles back once the
  /// live peak has stayed lower for long: pool/arena/live_window.hpp says when. With the largest std::size_t
  /// it gives back only what trim() or empty_cache() asks for, and what other pools lack.
  std::size_t release_threshold = std::size_t{128} << 20;
  /// When the pool looks for captures that no capture_scope announces.
  capture_watch captures = capture_watch::at_frees;
  /// With `one`, each block lies within one handle: free neighbours in two handles are not joined, free
  /// handles are not remapped, and `largest_handle` has no effect. Does nothing where the pool has plain
  /// blocks.
  ///
  /// The pool then wastes more: utilisation of the recorded traces 0.64 to 0.85 instead of 0.93 to 0.99
  /// (bench/results/frontier.txt). So allocate what is sent from a second pool with this option, and the rest
  /// from one without it.
  handles_per_block handles = handles_per_block::any;

  template <class Upstream>
  using layer = pooled_layer<Upstream>;
};

namespace detail {
[[nodiscard]] constexpr bool may_remap(pooled const& options) noexcept {
  return options.remap == remapping::when_tight && options.handles == handles_per_block::any;
}
}  // namespace detail

}  // namespace TARN_NAMESPACE
