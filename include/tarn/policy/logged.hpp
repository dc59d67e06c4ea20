// SPDX-License-Identifier: Apache-2.0
#pragma once
// logged: passes each call to a hook, for any logging that a program uses.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/core/location_scope.hpp"
#include "tarn/core/tag.hpp"
#include "tarn/policy/compose.hpp"

namespace tarn {

enum class logged_call : std::uint8_t { allocate, deallocate, allocate_sync, deallocate_sync };

enum class call_outcome : std::uint8_t {
  pending,  ///< the call is about to be made
  done,
  refused,  ///< out_of_memory
  failed    ///< another exception
};

/// One call, as passed to the hook.
struct call_record {
  logged_call call = logged_call::allocate;
  call_outcome outcome = call_outcome::pending;
  void* address = nullptr;  ///< null for an allocation that is pending, failed or empty
  std::size_t bytes = 0;    ///< as requested
  std::size_t alignment = 0;
  stream_ref stream;      ///< as given; the default stream for synchronous calls
  tag name;               ///< of an allocation
  source_location where;  ///< in the user's source
};

/// Which moments of a call are logged.
enum class log_moments {
  /// An allocation when its outcome is known, a deallocation (pending) before it is made: the records of an address are in an
  /// order that happened.
  once,
  /// Each call before it is made and after.
  both
};

namespace detail {
/// A C function and its context argument.
struct log_function {
  void (*function)(void* context, call_record const& call) = nullptr;
  void* context = nullptr;
  void operator()(call_record const& call) const { function(context, call); }
};
}  // namespace detail

template <class Upstream, class Hook>
class logged_layer;

/// `pool | tarn::logged{[](tarn::call_record const& c) { ... }}`, or `logged{function, context}` with a plain function. Costs
/// what the hook costs; a stack without this policy has no cost.
template <class Hook = detail::log_function>
  requires std::invocable<Hook&, call_record const&>
struct logged {
  Hook hook;
  log_moments moments = log_moments::once;

  explicit logged(Hook h, log_moments m = log_moments::once) : hook(std::move(h)), moments(m) {}
  logged(void (*function)(void* context, call_record const& call), void* context,
         log_moments m = log_moments::once)
    requires std::same_as<Hook, detail::log_function>
      : hook{function, context}, moments(m) {}

  template <class Upstream>
  using layer = logged_layer<Upstream, Hook>;
};
logged(void (*)(void*, call_record const&), void*) -> logged<detail::log_function>;
logged(void (*)(void*, call_record const&), void*, log_moments) -> logged<detail::log_function>;

/// The hook may be called from several threads at once, and must not allocate or free through this memory. It may throw. From a
/// successful allocation its exception reaches the caller, after the block was given back: nothing has changed. From a failed
/// allocation the upstream's own exception is passed on instead. From a deallocation, which never throws, the hook's exception
/// is dropped.
template <class Upstream, class Hook>
class logged_layer {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;
  /// Makes handles and owners record the place of a call for this layer, however many policies lie between.
  static constexpr bool records_places = true;

  logged_layer(Upstream upstream, logged<Hook> options)
      : upstream_(std::move(upstream)), hook_(std::move(options.hook)), moments_(options.moments) {}
  logged_layer(logged_layer const&) = delete;
  logged_layer& operator=(logged_layer const&) = delete;

  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    return tell_allocation(
        {logged_call::allocate, call_outcome::pending, nullptr, bytes, alignment, stream, {}, {}},
        [&] { return upstream_.allocate(stream, bytes, alignment); },
        [&](void* p) { upstream_.deallocate(stream, p, bytes, alignment); });
  }
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    tell_deallocation({logged_call::deallocate, call_outcome::pending, p, bytes, alignment, stream, {}, {}},
                      [&] { upstream_.deallocate(stream, p, bytes, alignment); });
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    return tell_allocation(
        {logged_call::allocate_sync, call_outcome::pending, nullptr, bytes, alignment, {}, {}, {}},
        [&] { return upstream_.allocate_sync(bytes, alignment); },
        [&](void* p) { upstream_.deallocate_sync(p, bytes, alignment); });
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    tell_deallocation({logged_call::deallocate_sync, call_outcome::pending, p, bytes, alignment, {}, {}, {}},
                      [&] { upstream_.deallocate_sync(p, bytes, alignment); });
  }

  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }

 private:
  template <class Allocate, class Undo>
  void* tell_allocation(call_record call, Allocate const& allocate, Undo const& undo) {
    call.where = location_scope::current();
    call.name = tag::current();
    if (moments_ == log_moments::both) hook_(std::as_const(call));
    try {
      call.address = allocate();
    } catch (out_of_memory const&) {
      tell_quietly(call, call_outcome::refused);
      throw;
    } catch (...) {
      tell_quietly(call, call_outcome::failed);
      throw;
    }
    call.outcome = call_outcome::done;
    try {
      hook_(std::as_const(call));
    } catch (...) {
      undo(call.address);  // does nothing for null
      throw;
    }
    return call.address;
  }
  template <class Deallocate>
  void tell_deallocation(call_record call, Deallocate const& deallocate) noexcept {
    if (call.address == nullptr) return deallocate();
    call.where = location_scope::current();
    tell_quietly(call, call_outcome::pending);
    deallocate();
    if (moments_ == log_moments::both) tell_quietly(call, call_outcome::done);
  }
  void tell_quietly(call_record& call, call_outcome outcome) noexcept {
    call.outcome = outcome;
    try {
      hook_(std::as_const(call));
    } catch (...) {
    }
  }

  Upstream upstream_;
  Hook hook_;
  log_moments moments_;
};

}  // namespace tarn
