// SPDX-License-Identifier: Apache-2.0
#pragma once
// with_oom_retry: runs work at a given size and at smaller ones while memory runs out; optionally finds the
// largest size.

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/shared_resource.hpp"

namespace TARN_NAMESPACE {

/// Which sizes are tried after one works.
enum class oom_search {
  downward,  ///< none: the first size that works is the result
  upward     ///< larger ones, to find the largest that works
};

/// Which exceptions mean that memory ran out. Decided by type, never by text.
enum class oom_errors {
  tarns_own,     ///< tarn::out_of_memory: from tarn's resources, also through Thrust and containers
  any_bad_alloc  ///< every std::bad_alloc: also those of Thrust itself and of the host's operator new
};

/// The sizes known to work and to fail. Keep one object beside a loop that calls with_oom_retry repeatedly: a
/// size that failed once is not tried again. Assign {} when memory has become free.
struct oom_sizes {
  std::size_t good = 0;               ///< the largest that worked; 0: none yet
  std::size_t bad = ~std::size_t{0};  ///< the smallest that failed; all ones: none yet
};

struct oom_retry_options {
  std::size_t least = 1;  ///< the smallest size to try; a start below it is tried all the same
  oom_search search = oom_search::downward;
  /// upward: the largest size to try, even if `remember` knows a larger one
  std::size_t most = ~std::size_t{0};
  std::size_t tolerance = 1;  ///< upward: stops when a size larger by at most this has failed; 0 counts as 1
  oom_errors errors = oom_errors::tarns_own;
  oom_sizes* remember = nullptr;  ///< read before and updated after each call of f; must outlive the call
};

/// What f returned, and for which size.
template <class T>
struct oom_retry_result {
  T value;
  std::size_t size = 0;      ///< the largest size that worked
  std::size_t attempts = 0;  ///< calls of f, failed ones included
};
template <>
struct oom_retry_result<void> {
  std::size_t size = 0;
  std::size_t attempts = 0;
};

namespace detail {

/// One call of with_oom_retry: its state and its attempts.
template <class F, class Clear>
class oom_retry {
 public:
  using value = std::invoke_result_t<F&, std::size_t>;
  using result = oom_retry_result<value>;

  oom_retry(F& f, Clear const& clear, oom_retry_options const& options)
      : f_(f),
        clear_(clear),
        options_(options),
        known_(options.remember != nullptr ? *options.remember : own_) {}
  oom_retry& operator=(oom_retry&&) = delete;

  result run(std::size_t start) {
    auto const keep = [this](std::size_t size) { return call_keeping(size); };
    start = first_size(start);
    if (options_.search == oom_search::downward) return descend(start, keep);
    auto const drop = [this](std::size_t size) { return call_dropping(size); };
    std::size_t good = 0;
    if (is_found(start)) {  // if it works, it is the result, and its value is kept
      result first = descend(start, keep);
      if (is_found(first.size)) return first;
      good = first.size;
    } else {
      good = descend(start, drop);
    }
    good = ascend(good, drop);
    if constexpr (std::is_void_v<value>) {
      return {good, attempts_};
    } else {
      return descend(good, keep);
    }
  }

 private:
  [[nodiscard]] std::size_t least() const noexcept { return max_of(options_.least, std::size_t{1}); }

  /// Returns the initial size: `start`, unless remembered results suggest another. A search upward stays
  /// within options.most.
  [[nodiscard]] std::size_t first_size(std::size_t start) noexcept {
    bool const upward = options_.search == oom_search::upward;
    std::size_t const asked = start;
    if (known_.good >= known_.bad) known_.good = 0;  // contradictory: keep the failure
    if (upward) start = min_of(start, options_.most);
    if ((known_.bad != no_size && start >= known_.bad) || (upward && start < known_.good))
      start = known_.good;
    if (start == 0 && known_.bad != no_size) start = max_of(known_.bad / 2, least());
    return min_of(start, upward ? options_.most : asked);
  }

  /// Whether no size above `good`, which works, needs to be tried.
  [[nodiscard]] bool is_found(std::size_t good) const noexcept {
    return good >= options_.most || known_.bad - good <= max_of(options_.tolerance, std::size_t{1});
  }

  result call_keeping(std::size_t size) {
    ++attempts_;
    if constexpr (std::is_void_v<value>) {
      f_(size);
      note_good(size);
      return {size, attempts_};
    } else {
      result r{f_(size), size, attempts_};
      note_good(size);
      return r;
    }
  }
  /// The result of f is destroyed before this returns, so it holds no memory while a larger size is tried.
  std::size_t call_dropping(std::size_t size) {
    ++attempts_;
    (void)f_(size);
    note_good(size);
    return size;
  }

  /// Halves the size until a call succeeds. @throws the last error if no smaller size is left
  template <class Call>
  auto descend(std::size_t size, Call const& call) -> decltype(call(size)) {
    for (bool cleared = false;; cleared = true) {
      try {
        return call(size);
      } catch (out_of_memory const&) {
        size = after_failure(size, cleared);
      } catch (std::bad_alloc const&) {
        if (options_.errors == oom_errors::tarns_own) throw;
        size = after_failure(size, cleared);
      }
    }
  }
  /// Returns the next size to try. Called in the handler, where f's objects are destroyed and their memory is
  /// in the cache. Returns the same size once if clearing released memory, since memory cached before the
  /// first try is then free, too.
  [[nodiscard]] std::size_t after_failure(std::size_t size, bool cleared) {
    note_bad(size);
    std::size_t const given = clear_();
    if (!cleared && given != 0) return size;
    if (size <= least()) throw;
    return max_of(size / 2, least());
  }

  /// Doubles the size, then bisects between a size that works and one that fails. Each try starts with an
  /// empty cache.
  /// @returns the largest size that worked
  template <class Call>
  std::size_t ascend(std::size_t good, Call const& call) {
    while (!is_found(good)) {
      std::size_t next = good + (known_.bad - good) / 2;
      if (known_.bad == no_size) next = good > no_size / 2 ? no_size - 1 : max_of(good * 2, std::size_t{1});
      next = min_of(next, options_.most);
      (void)clear_();
      try {
        good = call(next);
      } catch (out_of_memory const&) {
        fail_above(good, next);
      } catch (std::bad_alloc const&) {
        if (options_.errors == oom_errors::tarns_own) throw;
        fail_above(good, next);
      }
    }
    return good;
  }
  void fail_above(std::size_t good, std::size_t bad) noexcept {
    note_bad(bad);
    known_.good = good;
  }

  void note_good(std::size_t size) noexcept {
    known_.good = max_of(known_.good, size);
    if (known_.bad <= known_.good) known_.bad = no_size;  // it works now
  }
  void note_bad(std::size_t size) noexcept {
    known_.bad = min_of(known_.bad, min_of(size, no_size - 1));
    if (known_.good >= known_.bad) known_.good = 0;  // it no longer works
  }

  static constexpr std::size_t no_size = ~std::size_t{0};  ///< no size has failed
  F& f_;
  Clear const& clear_;
  oom_retry_options const& options_;
  oom_sizes own_;
  oom_sizes& known_;
  std::size_t attempts_ = 0;
};

}  // namespace detail

/// Calls f(start). If that throws out_of_memory, trims the cache of `memory`'s pool and, if that freed
/// anything, tries the same size once more, then half of it, and so on down to options.least. With
/// oom_search::upward it then doubles the size while that works, and bisects to find the largest size that
/// works.
/// @param memory   the cache of its nearest pool is cleared before each further try; without a pool nothing
/// is cleared
/// @param f        called with a size, often more than once. It must undo what it changed before it threw, as
/// unwinding does
///                 for owners. Memory that outlives its failed call makes the next try fail as well
/// @returns f's value (if any), the size, and the number of calls. With upward, each try's value is destroyed
/// before the next,
///          and f is called once more with the size found, unless it returns void
/// @throws the last exception of f if no smaller size is left; any other exception of f, at once; cuda_error
/// from clearing Which exceptions count is decided by type (options.errors), never by text. Two threads must
/// not share one `remember`.
template <has_driver Resource, class F>
  requires std::is_invocable_v<F&, std::size_t>
auto with_oom_retry(Resource memory, std::size_t start, F&& f, oom_retry_options const& options = {}) {
  auto const clear = [&memory] { return detail::nearest_or(memory, pool_call::trim{}, std::size_t{}); };
  return detail::oom_retry<std::remove_reference_t<F>, decltype(clear)>(f, clear, options).run(start);
}

/// Retries without a pool whose cache could be cleared.
template <class F>
  requires std::is_invocable_v<F&, std::size_t>
auto with_oom_retry(std::size_t start, F&& f, oom_retry_options const& options = {}) {
  auto const clear = [] { return std::size_t{0}; };
  return detail::oom_retry<std::remove_reference_t<F>, decltype(clear)>(f, clear, options).run(start);
}

}  // namespace TARN_NAMESPACE
