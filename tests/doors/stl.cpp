// SPDX-License-Identifier: Apache-2.0

#include "tarn/stl.hpp"

#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "catch.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

TEST_CASE("standard containers live in a pool and take it along", "[doors][stl]") {
  using pool_type = stack<host_memory, pooled, tracked>;
  pool_type one;
  pool_type two;
  using ints = std::vector<int, allocator<int, pool_type>>;
  {
    ints a(1000, 7, allocator<int, pool_type>(one));
    ints b{allocator<int, pool_type>(two)};
    b = a;
    CHECK(b.get_allocator() == a.get_allocator());
    int const* const place = a.data();
    ints c{allocator<int, pool_type>(two)};
    c = std::move(a);
    CHECK(c.data() == place);
    swap(b, c);
    CHECK(b.data() == place);
    std::list<std::string, allocator<std::string, pool_type>> names(one);
    names.emplace_back("a name that is too long for the small buffer of a string");
    std::unordered_map<int, int, std::hash<int>, std::equal_to<int>,
                       allocator<std::pair<int const, int>, pool_type>>
        map(4, allocator<std::pair<int const, int>, pool_type>(two));
    for (int i = 0; i < 1000; ++i) map[i] = i;
    CHECK(map[999] == 999);
    CHECK(memory_allocated(one) > 0);
    CHECK_THROWS_AS((allocator<double, pool_type>(one).allocate(~std::size_t{0} / 4)), length_error);
  }
  CHECK(memory_allocated(one) + memory_allocated(two) == 0);
}
