// SPDX-License-Identifier: Apache-2.0
#pragma once
#pragma GCC system_header  // forwarding makes a variable of a literal, and compilers warn of its conversion
// A driver each of whose calls goes through one function of a test: to make it fail, to delay it.

#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/driver/driver.hpp"

namespace tarn_test {

/// `Driver`, where each call of the contract is made as wrapper.through(driver_call, f), in which f() makes
/// it on the driver and returns its status. `Wrapper` derives from this class. What makes no driver call is
/// the driver's own, and a call that the driver lacks is lacking here.
template <class Driver, class Wrapper>
class wrapped_driver : public Driver {
 public:
  wrapped_driver() = default;
  explicit wrapped_driver(Driver driver) : Driver(std::move(driver)) {}

#define TARN_WRAPPED(name)                                                                                  \
  template <class... A>                                                                                     \
    requires requires(Driver const& d, A&&... a) { d.name(static_cast<A&&>(a)...); }                        \
  tarn::status name(A&&... a) const noexcept {                                                              \
    return through_it(tarn::driver_call::name, [&] { return this->Driver::name(static_cast<A&&>(a)...); }); \
  }
  TARN_DRIVER_CALLS(TARN_WRAPPED)
#undef TARN_WRAPPED
  /// Counts as a copy.
  template <class... A>
    requires requires(Driver const& d, A&&... a) { d.copy_from_device(static_cast<A&&>(a)...); }
  tarn::status copy_from_device(A&&... a) const noexcept {
    return through_it(tarn::driver_call::copy,
                      [&] { return Driver::copy_from_device(static_cast<A&&>(a)...); });
  }
  /// Counts as record_event().
  template <class... A>
    requires requires(Driver const& d, A&&... a) { d.record_all(static_cast<A&&>(a)...); }
  tarn::status record_all(A&&... a) const noexcept {
    return through_it(tarn::driver_call::record_event,
                      [&] { return Driver::record_all(static_cast<A&&>(a)...); });
  }

 private:
  template <class F>
  tarn::status through_it(tarn::driver_call call, F const& f) const noexcept {
    return static_cast<Wrapper const&>(*this).through(call, f);
  }
};

}  // namespace tarn_test
