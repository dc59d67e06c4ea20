// SPDX-License-Identifier: Apache-2.0
#pragma once
// limited: a bound on bytes. Its position decides which: over a pool it bounds live bytes, under it reserved
// bytes.

#include <cstddef>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/policy/byte_budget.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace TARN_NAMESPACE {

template <class Upstream>
class limited_layer;

/// Refuses allocations that would exceed `limit` bytes. Over a pool, blocks count as the pool rounds them.
struct limited {
  std::size_t limit;

  limited() = delete;  // tarn: a limit needs a number of bytes: limited{60_GiB}
  constexpr explicit limited(std::size_t bytes) noexcept : limit(bytes) {}

  template <class Upstream>
  using layer = limited_layer<Upstream>;
};

namespace detail {

/// The common part of both kinds of limit: the budget, and the refusal.
template <class Layer, class Upstream>
class limited_base : public resource_adaptor<Layer, Upstream> {
 public:
  limited_base(Upstream upstream, std::size_t limit)
      : resource_adaptor<Layer, Upstream>(std::move(upstream)), budget_(limit) {}

  /// Bytes that count against the limit now.
  [[nodiscard]] std::size_t used() const noexcept { return budget_.used(); }
  /// The limit in force: the layer's own, or that of a live budget_scope if it is smaller.
  [[nodiscard]] std::size_t limit() const noexcept { return budget_.limit(); }
  /// The upstream's plain blocks count against the same limit. @throws out_of_memory, as the layer's other
  /// calls
  [[nodiscard]] void* allocate_plain(std::size_t bytes)
    requires has_plain_blocks<Upstream>
  {
    return within_budget(bytes, {stream_ref{}, bytes, default_alignment},
                         [&] { return this->upstream().allocate_plain(bytes); });
  }
  void deallocate_plain(void* p, std::size_t bytes) noexcept
    requires has_plain_blocks<Upstream>
  {
    this->upstream().deallocate_plain(p, bytes);
    budget_.give(bytes);
  }

  /// Changes the layer's own limit and returns the previous one; if it is below used(), allocations are
  /// refused until enough is freed. Live budget_scopes stay in force. Thread-safe.
  std::size_t set_limit(std::size_t bytes) noexcept { return budget_.set_limit(bytes); }
  /// Begins an additional bound, of `more` bytes above used(); it must stay in place until remove(). For
  /// budget_scope.
  void add(detail::budget_bound& bound, std::size_t more) noexcept { budget_.add(bound, more); }
  /// Ends a bound; in any order, from any thread. O(bounds).
  void remove(detail::budget_bound& bound) noexcept { budget_.remove(bound); }

 protected:
  /// Runs `allocate` within the budget: a refusal or an upstream failure uses none of it.
  template <class Allocate>
  TARN_ALWAYS_INLINE auto within_budget(std::size_t counted, request const& r, Allocate const& allocate) {
    if (!budget_.take(counted)) [[unlikely]]
      refuse(r);
    return or_give(counted, allocate);
  }
  /// Runs `act`, and gives what was taken for it back if it throws.
  template <class Act>
  TARN_ALWAYS_INLINE auto or_give(std::size_t counted, Act const& act) {
    try {
      return act();
    } catch (...) {
      budget_.give(counted);
      throw;
    }
  }

  byte_budget budget_;

 private:
  [[noreturn]] TARN_NOINLINE void refuse(request const& r) const {
    require_alignment(r.alignment);  // more memory would not help
    memory_report report = this->report_of(r);
    report.live = used();
    report.limit = limit();
    report.limit_used = used();
    report.refused_by = "limited";
    throw out_of_memory(report);
  }
};

}  // namespace detail

/// The limit over a resource: bounds live bytes. Per allocation two loads and a compare-and-exchange; per
/// free a subtraction and a load that are sequentially consistent, so that no thread that waits for bytes is
/// missed.
template <class Upstream>
class limited_layer : public detail::limited_base<limited_layer<Upstream>, Upstream> {
  using base = detail::limited_base<limited_layer, Upstream>;

 public:
  limited_layer(Upstream upstream, limited const& options) : base(std::move(upstream), options.limit) {}

  /// @throws out_of_memory  the limit, or the upstream, refused; no budget was used
  TARN_ALWAYS_INLINE void* around_allocate(request const& r, auto const& next) {
    return this->within_budget(counted(r), r, [&] { return next.allocate(r); });
  }
  TARN_ALWAYS_INLINE void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    next.deallocate(r, p);
    this->budget_.give(counted(r));
  }
  /// False if the limit would be exceeded. While the layers below are asked, the bytes are taken: another
  /// thread may be refused memory meanwhile, even if they then refuse to extend.
  [[nodiscard]] bool around_extend(request const& r, void* p, std::size_t more, auto const& next) {
    request longer = r;
    longer.bytes += more;
    if (longer.bytes < more) return false;
    std::size_t const added = counted(longer) - counted(r);
    if (!this->budget_.take(added)) return false;
    bool const extended = this->or_give(added, [&] { return next.extend(r, p, more); });
    if (!extended) this->budget_.give(added);
    return extended;
  }
  /// The bytes under the limit. For reservations.
  [[nodiscard]] detail::byte_budget& budget() noexcept { return this->budget_; }

 private:
  [[nodiscard]] std::size_t counted(request const& r) noexcept {
    return detail::counted_bytes(this->upstream(), r.bytes, r.alignment);
  }
};

/// The limit over a page source: bounds physical bytes. It is a page source itself, so a pool can use it.
template <page_source Upstream>
class limited_layer<Upstream> : public detail::limited_base<limited_layer<Upstream>, Upstream>,
                                public detail::page_calls<limited_layer<Upstream>, Upstream> {
  using base = detail::limited_base<limited_layer, Upstream>;

 public:
  limited_layer(Upstream upstream, limited const& options) : base(std::move(upstream), options.limit) {}

  /// @throws out_of_memory  the limit, or the device, refused; no budget was used
  [[nodiscard]] page_handle create(std::size_t bytes) {
    return this->within_budget(bytes, {stream_ref{}, bytes, this->granularity()},
                               [&] { return this->upstream().create(bytes); });
  }
  void destroy(page_handle handle, std::size_t bytes) noexcept {
    this->upstream().destroy(handle, bytes);
    this->budget_.give(bytes);
  }
};

}  // namespace TARN_NAMESPACE
