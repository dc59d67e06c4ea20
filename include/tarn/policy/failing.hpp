// SPDX-License-Identifier: Apache-2.0
#pragma once
// failing: refuses the allocation with a given number, for tests of what a program does without memory.

#include <atomic>
#include <cstdint>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace TARN_NAMESPACE {

template <class Upstream>
class failing_layer;

/// Refuses allocation number `call` with out_of_memory and passes on the others. A test lets each allocation
/// of a program fail in turn, until the program makes fewer than `call` of them:
///
///   for (std::uint64_t call = 1;; ++call) {
///     auto memory = pool | tarn::failing{.call = call};
///     try {
///       program(memory);
///     } catch (tarn::out_of_memory const&) {
///     }
///     CHECK(tarn::memory_allocated(pool) == 0);
///     if (!memory->has_failed()) break;
///   }
///
/// A class that is no template takes the memory as any_resource. What asks again when it is refused, as
/// growing_buffer does with fewer bytes, survives one refusal: `failing{.call = call, .times = 2}`.
struct failing {
  std::uint64_t call = 1;   ///< counted from 1 since the layer was made; 0: none is refused
  std::uint64_t times = 1;  ///< how many calls in a row are refused, from 1 on

  template <class Upstream>
  using layer = failing_layer<Upstream>;
};

/// Counts allocations of any thread, with and without a stream, and the growth of a growing_buffer; those of
/// zero bytes are not counted, nor is extend(). Only allocations fail, not copies, streams or events.
/// Thread-safe. One relaxed atomic operation per allocation.
template <class Upstream>
class failing_layer : public resource_adaptor<failing_layer<Upstream>, Upstream> {
  using base = resource_adaptor<failing_layer<Upstream>, Upstream>;

 public:
  failing_layer(Upstream upstream, failing const& options) : base(std::move(upstream)), options_(options) {}

  /// @throws out_of_memory  the number of this call is refused, or the upstream refused
  [[nodiscard]] void* around_allocate(request const& r, auto const& next) {
    if (r.bytes != 0) {
      std::uint64_t const call = calls_.fetch_add(1, std::memory_order_relaxed) + 1;
      if (is_from_first(call) && call - options_.call < options_.times) refuse(r);
    }
    return next.allocate(r);
  }
  [[nodiscard]] bool around_extend(request const& r, void* p, std::size_t more, auto const& next) {
    return next.extend(r, p, more);
  }
  /// Whether an allocation was refused here.
  [[nodiscard]] bool has_failed() const noexcept {
    return options_.times != 0 && is_from_first(calls_.load(std::memory_order_relaxed));
  }

 private:
  [[nodiscard]] bool is_from_first(std::uint64_t call) const noexcept {
    return options_.call != 0 && call >= options_.call;
  }
  [[noreturn]] TARN_NOINLINE void refuse(request const& r) const {
    memory_report report = this->report_of(r);
    report.refused_by = "failing";
    throw out_of_memory(report, " A test refuses this allocation.");
  }

  failing const options_;
  std::atomic<std::uint64_t> calls_{0};
};

}  // namespace TARN_NAMESPACE
