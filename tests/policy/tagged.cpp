// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/tagged.hpp"

#include <string>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

TEST_CASE("tagged meets the resource contract", "[policy][tagged]") {
  tarn_test::resource_contract([] { return host_memory{} | with_history{} | tagged{"contract"}; });
}

TEST_CASE("tagged names every allocation through its handle unless the call has a name", "[policy][tagged]") {
  auto memory = host_memory{} | pooled{} | with_history{};
  auto weights_memory = memory | tagged{"handle's"};
  CHECK(weights_memory->name() == tag("handle's"));
  tag_scope const scope{"scope's"};
  auto a = make_device_buffer<char>(weights_memory, 100, stream_ref{});
  auto b = make_device_buffer<char>(weights_memory, 200, stream_ref{}, tag("call's"));
  auto c = make_device_buffer<char>(memory, 300, stream_ref{});
  void* const d = weights_memory.allocate_sync(400);
  auto const requested = [&](std::string const& name) -> std::size_t {
    for (auto const& t : memory->tags()) {
      if (t.name == name) return t.requested;
    }
    return 0;
  };
  CHECK(requested("handle's") == 500);
  CHECK(requested("call's") == 200);
  CHECK(requested("scope's") == 300);
  memory.deallocate_sync(d, 400);  // through another handle on the same memory
  CHECK(requested("handle's") == 100);
}

TEST_CASE("tagged has no effect without a `with_history` layer", "[policy][tagged]") {
  auto memory = host_memory{} | pooled{} | tagged{"unseen"};
  static_assert(std::is_same_v<detail::location_of_call<decltype(memory)>, no_location_scope>);
  auto buffer = make_device_buffer<int>(memory, 10, stream_ref{}, tag("unseen as well"));
  CHECK(buffer.size() == 10);
}
