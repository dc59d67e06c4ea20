// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/pool_calls.hpp"

#include "catch.hpp"
#include "tarn/policy/fenced.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

TEST_CASE("block_bytes_of asks the nearest layer and falls back to the requested bytes",
          "[policy][pool_calls]") {
  host_memory host;
  CHECK(detail::block_bytes_of(host, 1000, 256) == 1000);
  auto pool = host_memory{} | pooled{};
  CHECK(detail::block_bytes_of(pool, 1, 256) == 256);
  CHECK(detail::block_bytes_of(pool, 0, 256) == 0);
  auto limit = host_memory{} | pooled{} | limited{1_MiB};
  CHECK(detail::block_bytes_of(limit, 1, 256) == 256);
  auto fence = host_memory{} | fenced{64};
  CHECK(detail::block_bytes_of(fence, 100, 1) == 228);
}

TEST_CASE("records_streams is true of a pool and of every layer above one", "[policy][pool_calls]") {
  STATIC_REQUIRE(!detail::records_streams<host_memory>);
  STATIC_REQUIRE(!detail::records_streams<stack<host_memory, fenced>>);
  STATIC_REQUIRE(detail::records_streams<stack<host_memory, pooled>>);
  STATIC_REQUIRE(detail::records_streams<stack<host_memory, pooled, limited, fenced>>);
}

TEST_CASE("record_stream_call reaches the nearest layer that has record_stream", "[policy][pool_calls]") {
  struct layer {
    std::size_t recorded = 0;
    void record_stream(void*, std::size_t bytes, stream_ref) { recorded = bytes; }
  } one;
  detail::record_stream_call{nullptr, 42, {}}(one);
  CHECK(one.recorded == 42);
}
