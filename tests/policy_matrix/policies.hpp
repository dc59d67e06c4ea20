// SPDX-License-Identifier: Apache-2.0
#pragma once
// The lists of all policies, with options under which a correct program never reaches a limit, and of all
// sources. Add a new policy to block_policies or page_policies; architecture/check.py compares the lists with
// include/tarn.

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "subject.hpp"
#include "tarn/debug/checked.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/debug/logged.hpp"
#include "tarn/debug/nvtx_ranged.hpp"
#include "tarn/debug/poisoned.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/accessible_from.hpp"
#include "tarn/policy/any_resource.hpp"
#include "tarn/policy/failing.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/headroom.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/prefetched.hpp"
#include "tarn/policy/resource_adaptor.hpp"
#include "tarn/policy/retry_on_oom.hpp"
#include "tarn/policy/tagged.hpp"
#include "tarn/policy/traced.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/source/cuda_async.hpp"
#include "tarn/source/cuda_malloc.hpp"
#include "tarn/source/cuda_pages.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/managed.hpp"
#include "tarn/source/pinned_host.hpp"
#include "tarn/source/registered_host.hpp"
#include "tarn/transfer/reservation.hpp"

namespace policy_matrix {

using namespace tarn::literals;

/// The inputs and the records of the policies of one stack. Outlives the memory.
template <class D>
struct surroundings {
  D driver;
  test_device* device = nullptr;
  bool pool_on_top = false;    ///< the device is notified above that pool, not above a fallback's own pool
  std::FILE* trace = nullptr;  ///< the file of `traced`
  std::function<void()> on_out_of_memory;
  long logged_allocations = 0;
  long logged_deallocations = 0;

  explicit surroundings(D d) : driver(std::move(d)) {}
  surroundings(surroundings const&) = delete;
  surroundings& operator=(surroundings const&) = delete;
  ~surroundings() {
    if (trace != nullptr) std::fclose(trace);
  }
  /// Checks the records after everything was freed and the memory was destroyed.
  void verify(report& out) {
    out.check(logged_allocations == logged_deallocations,
              "a logged layer was called for " + std::to_string(logged_allocations) + " allocations and " +
                  std::to_string(logged_deallocations) + " deallocations");
    if (trace == nullptr) return;
    std::rewind(trace);
    char line[256];
    long came = 0;
    long went = 0;
    while (std::fgets(line, sizeof line, trace) != nullptr) {
      came += line[0] == 'a' ? 1 : 0;
      went += line[0] == 'f' ? 1 : 0;
    }
    out.check(came == went,
              "a trace has " + std::to_string(came) + " allocations and " + std::to_string(went) + " frees");
  }
};

/// Reports allocations and deallocations of the pool or source to the order checker of the simulated device.
/// It is below the policies, since some of them write to blocks that are being freed.
struct noting {
  test_device* device = nullptr;
  template <class Upstream>
  using layer = tarn::around_layer<noting, Upstream>;

  void* around_allocate(tarn::request const& r, auto const& next) {
    void* const p = next.allocate(r);
    if (p != nullptr && device != nullptr) device->allocated(p, r.bytes, r.stream);
    return p;
  }
  void around_deallocate(tarn::request const& r, void* p, auto const& next) noexcept {
    if (device != nullptr) device->freed(p, r.bytes, r.stream);
    next.deallocate(r, p);
  }
};

/// A reservation of a limit, as a policy.
struct reserving {
  std::size_t bytes = 0;
  template <class Upstream>
  class layer : public tarn::detail::reserved_layer<tarn::shared_resource<tarn::limited_layer<Upstream>>> {
    using limit = tarn::shared_resource<tarn::limited_layer<Upstream>>;

   public:
    layer(Upstream upstream, reserving const& options)
        : tarn::detail::reserved_layer<limit>(taken(std::move(upstream), options.bytes), options.bytes) {}

   private:
    static limit taken(Upstream upstream, std::size_t bytes) {
      auto memory = std::move(upstream) | tarn::limited{bytes};
      if (!memory->budget().take(bytes)) std::abort();
      return memory;
    }
  };
};

/// A handle to a pool of any type, as a policy.
struct erasing {
  template <class Driver, class... Properties>
  static tarn::basic_any_resource<Driver, Properties...> of(tarn::property_set<Properties...>);
  template <class Upstream>
  using handle = decltype(of<typename Upstream::driver_type>(typename Upstream::properties{}));
  template <class Upstream>
  struct layer : handle<Upstream> {
    layer(Upstream upstream, erasing const&) : handle<Upstream>(std::move(upstream) | tarn::tracked{}) {}
  };
};

/// Each policy with the options that the matrix uses.
namespace with {

struct policy {
  static constexpr bool keeps_freed = false;
  static constexpr bool has_retry = false;
  static constexpr bool has_pool = false;  ///< contains a pool
  static constexpr bool writes = false;    ///< writes to blocks that are being freed
};
struct limited : policy {
  static constexpr char const* name = "limited";
  template <class D>
  static auto make(surroundings<D>&) {
    return tarn::limited{64_GiB};
  }
};
struct headroom : policy {
  static constexpr char const* name = "headroom";
  template <class D>
  static auto make(surroundings<D>&) {
    return tarn::headroom{1_KiB};
  }
};
struct reserved : policy {
  static constexpr char const* name = "reserved";
  template <class D>
  static auto make(surroundings<D>&) {
    return reserving{64_GiB};
  }
};
struct tracked : policy {
  static constexpr char const* name = "tracked";
  template <class D>
  static auto make(surroundings<D>&) {
    return tarn::tracked{};
  }
};
struct fenced : policy {
  static constexpr char const* name = "fenced";
  template <class D>
  static auto make(surroundings<D>&) {
    return tarn::fenced{};
  }
};
struct poisoned : policy {
  static constexpr char const* name = "poisoned";
  static constexpr bool writes = true;
  template <class D>
  static auto make(surroundings<D>&) {
    return tarn::poisoned{};
  }
};
struct checked : policy {
  static constexpr char const* name = "checked";
  static constexpr bool writes = true;
  static constexpr bool keeps_freed = true;
  template <class D>
  static auto make(surroundings<D>&) {
    return tarn::checked{.quarantine_bytes = 1_MiB, .quarantine_blocks = 4};
  }
};
struct traced : policy {
  static constexpr char const* name = "traced";
  template <class D>
  static auto make(surroundings<D>& s) {
    if (s.trace == nullptr) s.trace = std::tmpfile();
    return tarn::traced{s.trace};
  }
};
struct logged : policy {
  static constexpr char const* name = "logged";
  template <class D>
  static auto make(surroundings<D>& s) {
    auto hook = [&s](tarn::call_record const& call) {
      bool const comes =
          call.call == tarn::logged_call::allocate || call.call == tarn::logged_call::allocate_sync;
      if (call.address != nullptr) (comes ? s.logged_allocations : s.logged_deallocations) += 1;
    };
    return tarn::logged<decltype(hook)>(hook);
  }
};
struct with_history : policy {
  static constexpr char const* name = "with_history";
  template <class D>
  static auto make(surroundings<D>&) {
    return tarn::with_history{.history = 64};
  }
};
struct tagged : policy {
  static constexpr char const* name = "tagged";
  template <class D>
  static auto make(surroundings<D>&) {
    return tarn::tagged{"matrix"};
  }
};
struct nvtx_ranged : policy {
  static constexpr char const* name = "nvtx_ranged";
  template <class D>
  static auto make(surroundings<D>&) {
    return tarn::nvtx_ranged{"matrix"};
  }
};
/// Falls back to a pool of managed memory.
struct fallback_to : policy {
  static constexpr char const* name = "fallback_to";
  static constexpr bool has_pool = true;
  template <class D>
  static auto make(surroundings<D>& s) {
    return tarn::fallback_to(tarn::basic_managed<D>{s.driver} | tarn::pooled{} |
                             noting{s.pool_on_top ? nullptr : s.device});
  }
};
struct retry_on_oom : policy {
  static constexpr char const* name = "retry_on_oom";
  static constexpr bool has_retry = true;
  template <class D>
  static auto make(surroundings<D>& s) {
    auto handler = [&s](tarn::out_of_memory const&, unsigned attempt) {
      if (attempt > 1) return false;
      if (s.on_out_of_memory) s.on_out_of_memory();
      return true;
    };
    return tarn::retry_on_oom<decltype(handler)>(handler);
  }
};
struct prefetched : policy {
  static constexpr char const* name = "prefetched";
  template <class D>
  static auto make(surroundings<D>&) {
    return tarn::prefetched{};
  }
};
struct failing : policy {
  static constexpr char const* name = "failing";
  template <class D>
  static auto make(surroundings<D>&) {
    return tarn::failing{.call = 0};
  }
};
struct pooled : policy {
  static constexpr char const* name = "pooled";
  static constexpr bool has_pool = true;
  template <class D>
  static auto make(surroundings<D>&) {
    return tarn::pooled{};
  }
};
struct erased : policy {
  static constexpr char const* name = "any_resource";
  template <class D>
  static auto make(surroundings<D>&) {
    return erasing{};
  }
};
struct accessible_from : policy {
  static constexpr char const* name = "accessible_from";
  template <class D>
  static auto make(surroundings<D>&) {
    return tarn::accessible_from{};
  }
};

}  // namespace with

template <class...>
struct list {};

/// Every policy over blocks; pairs combine these. The stacks add `pooled` themselves.
using block_policies = list<with::limited, with::tracked, with::fenced, with::poisoned, with::checked,
                            with::traced, with::logged, with::with_history, with::tagged, with::nvtx_ranged,
                            with::fallback_to, with::retry_on_oom, with::prefetched, with::failing>;
/// Part number Part of Parts parts of a list, so that pairs can be compiled in several files.
template <unsigned Part, unsigned Parts, unsigned At, class Done, class Rest>
struct part_of_list {
  using type = Done;
};
template <unsigned Part, unsigned Parts, unsigned At, class... Done, class First, class... Rest>
struct part_of_list<Part, Parts, At, list<Done...>, list<First, Rest...>>
    : part_of_list<Part, Parts, At + 1,
                   std::conditional_t<At % Parts == Part, list<Done..., First>, list<Done...>>,
                   list<Rest...>> {};
template <unsigned Part, unsigned Parts, class All>
using part_of = typename part_of_list<Part, Parts, 0, list<>, All>::type;

/// Every policy that may be below a pool of pages.
using page_policies = list<with::limited, with::headroom, with::accessible_from>;

/// Every source.
namespace of {
template <class D>
struct pages {
  static constexpr char const* name = "pages";
  static constexpr bool has_pages = true;
  static constexpr bool driver_orders = false;
  static auto make(surroundings<D>& s) { return tarn::basic_pages<D>(s.driver); }
};
template <class D>
struct blocks_of_malloc {
  static constexpr char const* name = "malloc";
  static constexpr bool has_pages = false;
  static constexpr bool driver_orders = false;
  static auto make(surroundings<D>& s) { return tarn::basic_malloc<D>(s.driver); }
};
template <class D>
struct async {
  static constexpr char const* name = "async";
  static constexpr bool has_pages = false;
  static constexpr bool driver_orders = true;
  static auto make(surroundings<D>& s) { return tarn::basic_async<D>(s.driver); }
};
template <class D>
struct async_pinned {
  static constexpr char const* name = "async_pinned";
  static constexpr bool has_pages = false;
  static constexpr bool driver_orders = true;
  static auto make(surroundings<D>& s) { return tarn::basic_async_pinned<D>(s.driver); }
};
template <class D>
struct async_managed {
  static constexpr char const* name = "async_managed";
  static constexpr bool has_pages = false;
  static constexpr bool driver_orders = true;
  static auto make(surroundings<D>& s) { return tarn::basic_async_managed<D>(s.driver); }
};
template <class D>
struct pinned {
  static constexpr char const* name = "pinned";
  static constexpr bool has_pages = false;
  static constexpr bool driver_orders = false;
  static auto make(surroundings<D>& s) { return tarn::basic_pinned<D>(s.driver); }
};
template <class D>
struct registered {
  static constexpr char const* name = "registered";
  static constexpr bool has_pages = false;
  static constexpr bool driver_orders = false;
  static auto make(surroundings<D>& s) {
    return tarn::basic_registered<D>(s.driver, {.pages = tarn::host_page_size::usual});
  }
};
template <class D>
struct managed {
  static constexpr char const* name = "managed";
  static constexpr bool has_pages = false;
  static constexpr bool driver_orders = false;
  static auto make(surroundings<D>& s) { return tarn::basic_managed<D>(s.driver); }
};
/// Only for no_driver.
template <class D>
struct host {
  static constexpr char const* name = "host";
  static constexpr bool has_pages = false;
  static constexpr bool driver_orders = false;
  static auto make(surroundings<D>&) { return tarn::host_memory{}; }
};
}  // namespace of

}  // namespace policy_matrix
