// SPDX-License-Identifier: Apache-2.0
#pragma once
// The line profile: what each marked source line does to memory, as memory_profiler does for Python.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/raii/peak_scope.hpp"

namespace TARN_NAMESPACE {

/// The memory use of one line; bytes as the pool rounds them.
struct profiled_line {
  source_location where;
  std::uint64_t calls = 0;
  std::int64_t change = 0;   ///< change of live bytes over all calls; negative: more was freed
  std::size_t peak = 0;      ///< highest use above the start of a call, over all calls
  std::uint64_t blocks = 0;  ///< blocks allocated in all calls

  /// Adds other calls of the line.
  void add(profiled_line const& more) noexcept {
    calls += more.calls;
    change += more.change;
    peak = detail::max_of(peak, more.peak);
    blocks += more.blocks;
  }
};

namespace detail {

/// The profiled lines of the process. Created at first use and never destroyed: lines may run during process
/// exit.
class line_registry {
 public:
  /// Maximum number of distinct lines; calls of further ones are counted in dropped().
  static constexpr std::size_t most = 4096;

  [[nodiscard]] static line_registry& of_process() {
    static auto* const made = new line_registry;
    return *made;
  }

  /// Adds one call of a line. O(lines). If host memory cannot be allocated, the call is counted as dropped.
  void add(profiled_line const& call) noexcept {
    std::lock_guard const guard(mutex_);
    for (profiled_line& l : lines_) {
      if (l.where.line != call.where.line || l.where.file != call.where.file) continue;
      if (l.where.function != call.where.function) continue;
      return l.add(call);
    }
    if (lines_.size() < most) {
      try {
        lines_.push_back(profiled_line(call));
        return;
      } catch (...) {
      }
    }
    ++dropped_;
  }
  /// Calls f with each line. @throws what f throws
  template <class F>
  void for_each(F const& f) {
    std::lock_guard const guard(mutex_);
    for (profiled_line const& l : lines_) f(l);
  }
  [[nodiscard]] std::uint64_t dropped() noexcept {
    std::lock_guard const guard(mutex_);
    return dropped_;
  }
  void reset() noexcept {
    std::lock_guard const guard(mutex_);
    sequence<profiled_line>().swap(lines_);
    dropped_ = 0;
  }

 private:
  detail::fork_mutex mutex_;
  sequence<profiled_line> lines_;
  std::uint64_t dropped_ = 0;
};

}  // namespace detail

/// Adds the memory use of a scope to the line that declares it. The memory has a `tracked` layer, as every
/// device_pool does. By default only calls of the current thread count: memory freed by another thread does
/// not. Scopes nest; an outer one includes the inner ones. Costs a high-water mark while alive (see
/// peak_scope) and one lock at the end. Throws only if the first scope cannot allocate the table.
template <class Resource>
class [[nodiscard]] line_profile_scope {
 public:
  explicit line_profile_scope(Resource memory, source_location where = source_location::current())
      : line_profile_scope(std::move(memory), peak_of::this_thread, where) {}
  line_profile_scope(Resource memory, peak_of whose, source_location where = source_location::current())
      : lines_(detail::line_registry::of_process()), peak_(std::move(memory), whose), where_(where) {}
  line_profile_scope(line_profile_scope const&) = delete;
  line_profile_scope& operator=(line_profile_scope const&) = delete;
  ~line_profile_scope() {
    lines_.add({where_, 1, peak_.net_bytes(), peak_.peak_above_start(), peak_.count()});
  }

 private:
  detail::line_registry& lines_;
  peak_scope<Resource> peak_;
  source_location where_;
};

/// Clears the profile.
inline void reset_line_profile() {
  detail::line_registry::of_process().reset();
}

}  // namespace TARN_NAMESPACE

/// Profiles from this line to the end of the enclosing block: `{ TARN_PROFILE_LINE(memory); step(); }`.
#define TARN_PROFILE_LINE(memory)                                                     \
  ::tarn::line_profile_scope const TARN_PROFILE_NAME(tarn_profiled_line_, __LINE__) { \
    memory                                                                            \
  }
/// Profiles one expression and returns its value: `auto w = TARN_PROFILE_EXPRESSION(memory,
/// make_device_buffer<float>(memory, n, s));`.
#define TARN_PROFILE_EXPRESSION(memory, ...) ((void)::tarn::line_profile_scope{memory}, __VA_ARGS__)
#define TARN_PROFILE_NAME(prefix, line) TARN_PROFILE_NAME_OF(prefix, line)
#define TARN_PROFILE_NAME_OF(prefix, line) prefix##line
