// SPDX-License-Identifier: Apache-2.0
#pragma once
// Adapts a stack to the virtual interface of the checks, and composes stacks from the lists of policies.

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "policies.hpp"
#include "subject.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/pool/inspection/inspection.hpp"
#include "tarn/raii/compact.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/sharing/exported_block.hpp"
#include "tarn/sharing/imported_block.hpp"
#include "tarn/sharing/page_pin.hpp"
#include "tarn/sharing/page_registrations.hpp"

namespace policy_matrix {

/// Calls that `tarn::nearest` searches for below the top layer.
namespace ask {
struct limit_call {
  std::size_t bytes = 0;
  template <class L>
  auto operator()(L& l) const -> decltype(l.set_limit(bytes)) {
    return l.set_limit(bytes);
  }
};
inline constexpr auto statistics = [](auto& l) -> decltype(l.statistics()) { return l.statistics(); };
inline constexpr auto used = [](auto& l) -> decltype(l.used()) { return l.used(); };
inline constexpr auto check_all = [](auto& l) -> decltype(l.check_all()) { return l.check_all(); };
struct record_call {
  template <class L>
  auto operator()(L& l) const
      -> std::enable_if_t<std::is_same_v<decltype(l.record()), tarn::memory_history>, tarn::memory_history> {
    return l.record();
  }
};
}  // namespace ask

/// @tparam Exports  whether export, import and registrations are compiled, which takes time
template <class M, bool Exports>
constexpr offers offers_of() {
  return {tarn::reachable<M, tarn::pool_call::record_stream>,
          tarn::reachable<M, tarn::pool_call::trim>,
          tarn::reachable<M, tarn::pool_call::owns>,
          tarn::reachable<M, tarn::pool_call::state>,
          tarn::reachable<M, decltype(ask::statistics)>,
          tarn::reachable<M, ask::limit_call>,
          tarn::reachable<M, decltype(ask::check_all)>,
          tarn::reachable<M, ask::record_call>,
          tarn::reachable<M, tarn::pool_call::inspect<tarn::pool_call::any_look>>,
          tarn::reachable<M, tarn::pool_call::new_graph_memory>,
          tarn::detail::can_sleep<M>,
          tarn::reachable<M, tarn::pool_call::compact>,
          tarn::reachable<M, tarn::pool_call::allocator_backend>,
          tarn::detail::has_segments<M>,
          Exports && tarn::detail::has_segments<M>};
}

/// A library that only counts.
struct counting_library {
  using handle = int;
  std::shared_ptr<int> open;
  int add(void*, std::size_t) { return ++*open; }
  void remove(int) noexcept { --*open; }
};

template <class D, class M, bool Exports>
class adapter final : public test_memory {
 public:
  adapter(D driver, test_device& device, report& out, bool pool_on_top, M (*make)(surroundings<D>&))
      : around_(std::move(driver)), out_(out) {
    around_.device = &device;
    around_.pool_on_top = pool_on_top;
    memory_ = std::make_unique<M>(make(around_));
  }
  ~adapter() override {
    memory_.reset();
    around_.verify(out_);
  }
  void* allocate(tarn::stream_ref stream, std::size_t bytes, std::size_t alignment,
                 tarn::source_location where) override {
    if constexpr (tarn::detail::is_shared<M>) {
      return memory_->allocate(stream, bytes, alignment, where);
    } else {
      return memory_->allocate(stream, bytes, alignment);
    }
  }
  void deallocate(tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) override {
    memory_->deallocate(stream, p, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) override {
    return memory_->allocate_sync(bytes, alignment);
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) override {
    memory_->deallocate_sync(p, bytes, alignment);
  }
  void record_stream(void* p, std::size_t bytes, tarn::stream_ref stream) override {
    if constexpr (can.record_stream)
      tarn::nearest(*memory_, tarn::pool_call::record_stream{p, bytes, stream});
  }
  std::size_t trim(std::size_t keep) override {
    if constexpr (can.trim) return tarn::nearest(*memory_, tarn::pool_call::trim{keep});
    return 0;
  }
  bool owns(void const* p) override {
    if constexpr (can.owns) return tarn::nearest(*memory_, tarn::pool_call::owns{p});
    return false;
  }
  tarn::pool_state state() override {
    if constexpr (can.state) return tarn::nearest(*memory_, tarn::pool_call::state{});
    return {};
  }
  void reset_peaks() override {
    if constexpr (can.state) tarn::nearest(*memory_, tarn::pool_call::reset_peaks{});
  }
  exact_numbers statistics() override {
    if constexpr (can.statistics) {
      auto const s = tarn::nearest(*memory_, ask::statistics);
      return {s.allocations[0].current, s.allocated_bytes[0].current, s.requested_bytes[0].current};
    }
    return {};
  }
  std::size_t used() override {
    if constexpr (can.limit) return tarn::nearest(*memory_, ask::used);
    return 0;
  }
  std::size_t set_limit(std::size_t bytes) override {
    if constexpr (can.limit) return tarn::nearest(*memory_, ask::limit_call{bytes});
    return 0;
  }
  std::size_t check_all() override {
    if constexpr (can.check_all) return tarn::nearest(*memory_, ask::check_all);
    return 0;
  }
  std::vector<seen_block> record() override {
    std::vector<seen_block> out;
    if constexpr (can.record) {
      tarn::memory_history const r = tarn::nearest(*memory_, ask::record_call{});
      for (auto const& b : r.live) {
        auto const& frames = r.locations[b.location];
        out.push_back({b.address, b.bytes, frames.empty() ? 0 : frames[0].line});
      }
    }
    return out;
  }
  tarn::snapshot snapshot() override {
    if constexpr (can.record || can.inspect) return tarn::take_snapshot(*memory_);
    return {};
  }
  std::size_t inspected_bytes() override {
    std::size_t sum = 0;
    if constexpr (can.inspect) {
      for (auto const& s : tarn::detail::contents_of(*memory_).segments) sum += s.bytes;
    }
    return sum;
  }
  std::size_t block_bytes(std::size_t bytes, std::size_t alignment) override {
    if constexpr (tarn::reachable<M, tarn::pool_call::block_bytes>) {
      return tarn::nearest(*memory_, tarn::pool_call::block_bytes{bytes, alignment});
    } else {
      return bytes;
    }
  }
  tarn::detail::owned<tarn::detail::graph_owner> new_graph_memory() override {
    if constexpr (can.graph_memory) return tarn::nearest(*memory_, tarn::pool_call::new_graph_memory{});
    return {};
  }
  std::size_t sleep(tarn::contents where) override {
    if constexpr (can.sleep) return tarn::sleep(*memory_, where);
    return 0;
  }
  std::size_t wake() override {
    if constexpr (can.sleep) return tarn::wake(*memory_);
    return 0;
  }
  tarn::compaction compact() override {
    if constexpr (can.compact) return tarn::compact(*memory_);
    return {};
  }
  bool is_asleep() override {
    if constexpr (can.sleep) return tarn::is_asleep(*memory_);
    return false;
  }
  std::string backend() override {
    if constexpr (can.backend) return tarn::allocator_backend(*memory_);
    return "";
  }
  std::vector<tarn::memory_segment> segments([[maybe_unused]] void const* p,
                                             [[maybe_unused]] std::size_t bytes) override {
    if constexpr (can.segments) return tarn::segments_of(*memory_, p, bytes);
    return {};
  }
  std::shared_ptr<void> pin([[maybe_unused]] void const* p, [[maybe_unused]] std::size_t bytes) override {
    if constexpr (can.segments) return std::make_shared<tarn::page_pin<M>>(*memory_, p, bytes);
    return nullptr;
  }
  second_mapping export_and_import([[maybe_unused]] void const* p, [[maybe_unused]] std::size_t bytes,
                                   [[maybe_unused]] std::optional<tarn::stream_ref> stream) override {
    if constexpr (can.exports) {
      auto const block =
          stream ? tarn::export_block(*memory_, p, bytes, *stream) : tarn::export_block(*memory_, p, bytes);
      using imported = tarn::imported_block<std::remove_cvref_t<decltype(memory_->driver())>>;
      auto const made = std::make_shared<imported>(
          tarn::import_block(*memory_, block.description(), [&](std::size_t i) { return block.pages(i); }));
      if (stream) made->wait_ready(*stream);
      return {made, made->data()};
    }
    return {};
  }
  std::pair<std::size_t, bool> register_pages([[maybe_unused]] void const* p,
                                              [[maybe_unused]] std::size_t bytes) override {
    if constexpr (can.exports) {
      auto const open = std::make_shared<int>(0);
      std::size_t added = 0;
      {
        tarn::page_registrations pages(*memory_, counting_library{open});
        for (int i = 0; i < 3; ++i) (void)pages.ensure(p, bytes);
        added = pages.added();
      }
      return {added, *open == 0};
    }
    return {};
  }
  void on_out_of_memory(std::function<void()> f) override { around_.on_out_of_memory = std::move(f); }

 private:
  static constexpr offers can = offers_of<M, Exports>();
  surroundings<D> around_;
  report& out_;
  std::unique_ptr<M> memory_;
};

/// Applies the policies to memory, from the first to the last.
template <class D, class M>
auto put_on(surroundings<D>&, M memory) {
  return memory;
}
template <class First, class... Rest, class D, class M>
auto put_on(surroundings<D>& s, M memory) {
  auto next = std::move(memory) | First::make(s);
  if constexpr (sizeof...(Rest) == 0) {
    return next;
  } else {
    return put_on<Rest...>(s, std::move(next));
  }
}
/// The layer that reports allocations to the device, as a policy.
struct noted : with::policy {
  static constexpr char const* name = "";
  template <class D>
  static auto make(surroundings<D>& s) {
    return noting{s.device};
  }
};

template <class D, class Source, class... Policies>
auto composed(surroundings<D>& s) {
  return put_on<Policies...>(s, Source::make(s));
}

template <class Policy, class... Policies>
constexpr bool is_in(list<Policies...>) {
  return (std::same_as<Policy, Policies> || ...);
}

/// Whether a policy is the last one, not counting `noted`.
template <class Policy, class... Policies>
constexpr bool is_last() {
  bool last = false;
  ((last = std::same_as<Policies, noted> ? last : std::same_as<Policies, Policy>), ...);
  return last;
}

/// Whether the only pool of a stack, besides a fallback's own, is over pages: a pool over blocks uses memory
/// of another one, or of a source without addresses of its own.
template <class... Policies>
constexpr bool has_one_pool_over_pages() {
  bool of_pages = true;
  bool over_pages = false;
  unsigned pools = 0;
  auto const look = [&](bool has_pool, bool keeps_pages) {
    if (has_pool && ++pools == 1) over_pages = of_pages;
    of_pages = of_pages && keeps_pages;
  };
  (look(std::same_as<Policies, with::pooled>, is_in<Policies>(page_policies{})), ...);
  return pools == 1 && over_pages;
}

/// Adds one stack to a list. Device defines driver_type, and is constructed from a mode.
template <class Device, template <class> class Source, class... Policies>
void add_stack(std::vector<stack_under_test>& all) {
  using D = typename Device::driver_type;
  using source = Source<D>;
  using memory = decltype(composed<D, source, Policies...>(std::declval<surroundings<D>&>()));
  stack_under_test t;
  t.name = source::name;
  ((t.name += Policies::name[0] != '\0' ? std::string(" | ") + Policies::name : std::string()), ...);
  // Each policy once: not again in pairs.
  constexpr bool exports = sizeof...(Policies) <= 3 && tarn::sharing_driver<D>;
  t.can = offers_of<memory, exports>();
  t.policies = (0U + ... + (Policies::name[0] != '\0' && !std::same_as<Policies, with::pooled> ? 1U : 0U));
  t.has_pool = (std::same_as<Policies, with::pooled> || ...);
  t.hides_pool = (std::same_as<Policies, with::erased> || ...);
  t.keeps_graphs = !t.hides_pool && (Policies::has_pool || ...);
  t.has_fallback = ((Policies::has_pool && !std::same_as<Policies, with::pooled>) || ...);
  t.sleeps = !t.hides_pool && source::has_pages && has_one_pool_over_pages<Policies...>();
  t.over_pages = source::has_pages;
  t.needs_pages = (std::same_as<Policies, with::accessible_from> || ...);
  constexpr bool pool_on_top = is_last<with::pooled, Policies...>();
  t.pool_over_pool = pool_on_top && (std::size_t{Policies::has_pool} + ... + 0) > 1;
  t.writes_below_pool = pool_on_top && (Policies::writes || ...);
  if (!t.has_pool)
    t.can.owns = t.can.state = t.can.inspect = false;  // a fallback's pool holds only some of the blocks
  t.keeps_freed = (Policies::keeps_freed || ...);
  // Below a quarantine, freed blocks count as live; below a pool, blocks are segments.
  if (pool_on_top || is_last<with::checked, Policies...>()) {
    t.can.statistics = t.can.limit = t.can.record = false;
  }
  t.has_retry = (Policies::has_retry || ...);
  t.driver_orders = source::driver_orders && !t.has_pool;
  t.keeps_what_captures_free = std::same_as<source, of::registered<D>> && !t.has_pool;
  t.make_device = [](unsigned mode) -> std::unique_ptr<test_device> {
    return std::make_unique<Device>(mode);
  };
  t.make = [](test_device& device, report& out) -> std::unique_ptr<test_memory> {
    return std::make_unique<adapter<D, memory, exports>>(static_cast<Device&>(device).driver(), device, out,
                                                         is_last<with::pooled, Policies...>(),
                                                         &composed<D, source, Policies...>);
  };
  all.push_back(std::move(t));
}

/// Adds one stack for each policy of a list: the source, optionally a pool, the policy, `After`.
template <class Device, template <class> class Source, class... After>
struct for_each_policy {
  template <class... Policies>
  static void below(std::vector<stack_under_test>& all, list<Policies...>) {
    (add_stack<Device, Source, Policies, After...>(all), ...);
  }
  template <class... Policies>
  static void over_pool(std::vector<stack_under_test>& all, list<Policies...>) {
    (add_stack<Device, Source, with::pooled, noted, Policies, After...>(all), ...);
  }
  /// Over a handle to a pool of any type. A fallback's own pool would serve the calls that the handle lacks.
  template <class... Policies>
  static void over_handle(std::vector<stack_under_test>& all, list<Policies...>) {
    auto const add = [&]<class Policy>(list<Policy>) {
      if constexpr (!std::same_as<Policy, with::fallback_to>)
        add_stack<Device, Source, with::pooled, noted, with::erased, Policy, After...>(all);
    };
    (add(list<Policies>{}), ...);
  }
  template <class... Policies>
  static void over_source(std::vector<stack_under_test>& all, list<Policies...>) {
    (add_stack<Device, Source, noted, Policies, After...>(all), ...);
  }
};
/// Adds a stack over a pool for every pair of a policy of the first list and one of the second.
template <class Device, template <class> class Source, class... Firsts, class Seconds>
void add_pairs(std::vector<stack_under_test>& all, list<Firsts...>, Seconds seconds) {
  auto const with_first = [&]<class First, class... Others>(First, list<Others...>) {
    (add_stack<Device, Source, with::pooled, noted, First, Others>(all), ...);
  };
  (with_first(Firsts{}, seconds), ...);
}

}  // namespace policy_matrix
