// SPDX-License-Identifier: Apache-2.0
#pragma once
// The contract of every resource. A new resource is added in one line:
//   TEST_CASE("limited keeps the contract", "[policy][limited]") {
//     resource_contract([] { return host_memory{} | limited{2_GiB}; });
//   }
// `make` returns a new resource; for a pool it returns a new pool each time.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <string_view>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "contract/memory_access.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/shared_resource.hpp"

namespace tarn_test {

/// The default of `check_refusal`: nothing more to check after a refused allocation.
struct nothing_more {
  void operator()() const noexcept {}
};

namespace detail {

/// One block and how to free it.
struct live_block {
  void* p = nullptr;
  std::size_t bytes = 0;
  std::size_t alignment = 0;
};

/// Allocates, uses and frees one block, with and without a stream; also true if it was refused for lack of
/// memory.
template <class Resource>
void allocates_or_refuses(Resource& memory, tarn::stream_ref stream, std::size_t bytes) {
  void* p = nullptr;
  try {
    p = memory.allocate(stream, bytes, tarn::default_alignment);
  } catch (tarn::out_of_memory const& refused) {
    CHECK(refused.asked() == bytes);
    return;
  }
  REQUIRE(p != nullptr);
  CHECK(is_usable(memory, stream, p, bytes));
  memory.deallocate(stream, p, bytes, tarn::default_alignment);
}

template <class Resource>
void honours_or_refuses(Resource& memory, tarn::stream_ref stream, std::size_t bytes, std::size_t alignment) {
  void* p = nullptr;
  try {
    p = memory.allocate(stream, bytes, alignment);
  } catch (tarn::bad_alignment const& refused) {
    CHECK(alignment > tarn::default_alignment);  // every resource must support alignments up to here
    CHECK(refused.alignment() == alignment);
    return;
  }
  REQUIRE(p != nullptr);
  CHECK(tarn::is_aligned(p, alignment));
  CHECK(is_usable(memory, stream, p, bytes));
  memory.deallocate(stream, p, bytes, alignment);
}

}  // namespace detail

/// @param make           returns a new resource
/// @param check_refusal  called after a refused allocation: checks what else must be unchanged (CUDA's last
/// error)
template <class MakeResource, class CheckRefusal = nothing_more>
void resource_contract(MakeResource const& make, CheckRefusal const& check_refusal = {}) {
  using namespace tarn::literals;
  using tarn::default_alignment;
  using resource_type = decltype(make());
  static_assert(tarn::resource<resource_type>);

  resource_type memory = make();
  test_stream stream(memory.driver());
  REQUIRE(stream.made());

  SECTION("allocate of zero bytes returns null, and null can be deallocated") {
    CHECK(memory.allocate(stream, 0, default_alignment) == nullptr);
    CHECK(memory.allocate_sync(0, default_alignment) == nullptr);
    memory.deallocate(stream, nullptr, 0, default_alignment);
    memory.deallocate_sync(nullptr, 0, default_alignment);
  }

  SECTION("every size succeeds or fails with out_of_memory") {
    for (std::size_t const bytes :
         {std::size_t{1}, std::size_t{4}, 1_KiB, 1_MiB, 1_MiB + 1, 100_MiB, 1_GiB}) {
      detail::allocates_or_refuses(memory, stream, bytes);
    }
  }

  SECTION("small sizes succeed") {
    for (std::size_t const bytes : {std::size_t{1}, std::size_t{4}, 1_KiB, 1_MiB}) {
      void* const p = memory.allocate(stream, bytes, default_alignment);
      CHECK(p != nullptr);
      memory.deallocate(stream, p, bytes, default_alignment);
    }
  }

  SECTION("1 PiB is refused with a complete report, and the resource still works") {
    bool refused = false;
    try {
      (void)memory.allocate(stream, 1_TiB * 1024, default_alignment);
    } catch (tarn::out_of_memory const& error) {
      refused = true;
      std::string_view const text = error.what();
      CHECK(error.asked() == 1_TiB * 1024);
      CHECK(text.find("1 PiB") != text.npos);
      CHECK(text.find("refused by") != text.npos);
    }
    CHECK(refused);
    check_refusal();
    CHECK_THROWS_AS(memory.allocate_sync(1_TiB * 1024, default_alignment), tarn::out_of_memory);
    check_refusal();
    detail::allocates_or_refuses(memory, stream, 1_KiB);
  }

  SECTION("a size near the maximum of size_t is refused and does not wrap") {
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    for (std::size_t const bytes : {most, most - 255, most / 2, tarn::max_request_bytes + 1}) {
      CHECK_THROWS_AS(memory.allocate(stream, bytes, default_alignment), tarn::out_of_memory);
      CHECK_THROWS_AS(memory.allocate_sync(bytes, default_alignment), tarn::out_of_memory);
    }
    check_refusal();
  }

  SECTION("pointers are aligned to 256 bytes unless less is requested") {
    std::vector<detail::live_block> blocks;
    for (std::size_t bytes = 1; bytes < 2_MiB; bytes = bytes * 3 + 1) {
      void* const p = memory.allocate(stream, bytes);
      CHECK(tarn::is_aligned(p, 256));
      blocks.push_back({p, bytes, default_alignment});
    }
    for (auto const& b : blocks) memory.deallocate(stream, b.p, b.bytes);
  }

  SECTION("a power-of-two alignment is met or refused, never ignored") {
    for (std::size_t alignment = 1; alignment <= 4_KiB; alignment *= 2) {
      for (std::size_t const bytes : {std::size_t{1}, std::size_t{1000}, 1_MiB}) {
        detail::honours_or_refuses(memory, stream, bytes, alignment);
      }
    }
  }

  SECTION("other alignments are refused") {
    for (std::size_t const alignment :
         {std::size_t{0}, std::size_t{3}, std::size_t{384}, 2 * tarn::max_alignment}) {
      CHECK_THROWS_AS(memory.allocate(stream, 64, alignment), tarn::bad_alignment);
      CHECK_THROWS_AS(memory.allocate_sync(64, alignment), tarn::bad_alignment);
    }
  }

  SECTION("live blocks never overlap, and every byte keeps what was written") {
    std::vector<detail::live_block> blocks;
    std::size_t bytes = 1;
    for (int i = 0; i < 60; ++i) {
      bytes = bytes * 7 % 300'007 + 1;
      void* const p = memory.allocate(stream, bytes, default_alignment);
      REQUIRE(p != nullptr);
      REQUIRE(write(memory, stream, p, i, bytes));
      blocks.push_back({p, bytes, default_alignment});
      if (i % 5 == 4) {  // holes, so that reuse is also tested
        memory.deallocate(stream, blocks[blocks.size() - 3].p, blocks[blocks.size() - 3].bytes,
                          default_alignment);
        blocks[blocks.size() - 3].p = nullptr;
      }
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].p == nullptr) continue;
      CHECK(holds(memory, stream, blocks[i].p, static_cast<int>(i), blocks[i].bytes));
      memory.deallocate(stream, blocks[i].p, blocks[i].bytes, default_alignment);
    }
  }

  SECTION("a resource equals itself and its copies, and a copy frees what it allocated") {
    resource_type copy = memory;
    CHECK(memory == memory);  // NOLINT: that is the question
    CHECK(copy == memory);
    CHECK(!(copy != memory));
    void* const p = memory.allocate(stream, 1000, default_alignment);
    copy.deallocate(stream, p, 1000, default_alignment);
    void* const q = copy.allocate_sync(1000, default_alignment);
    memory.deallocate_sync(q, 1000, default_alignment);
  }

  if constexpr (tarn::detail::is_shared<resource_type>) {
    SECTION("distinct pools and policies are not equal") {
      resource_type const other = make();
      CHECK(!(other == memory));
    }
  }

  SECTION("a copy keeps the resource alive after the original is destroyed") {
    void* p = nullptr;
    resource_type copy = [&] {
      resource_type first = make();
      p = first.allocate(stream, 5000, default_alignment);
      return first;
    }();
    CHECK(is_usable(copy, stream, p, 5000));
    copy.deallocate(stream, p, 5000, default_alignment);
  }

  SECTION("memory from allocate_sync can be used immediately on any stream, also after deallocate_sync") {
    test_stream other(memory.driver());
    void* const p = memory.allocate_sync(10'000, default_alignment);
    CHECK(is_usable(memory, other, p, 10'000));
    CHECK(is_usable(memory, stream, p, 10'000));
    memory.deallocate_sync(p, 10'000, default_alignment);
    void* const q = memory.allocate(other, 10'000, default_alignment);
    CHECK(is_usable(memory, other, q, 10'000));
    memory.deallocate(other, q, 10'000, default_alignment);
  }

  SECTION("calls can be mixed: allocated on one stream, deallocated on another or on none") {
    test_stream other(memory.driver());
    void* const p = memory.allocate(stream, 10'000, default_alignment);
    CHECK(is_usable(memory, stream, p, 10'000));  // waits for the stream
    memory.deallocate(other, p, 10'000, default_alignment);
    void* const q = memory.allocate(stream, 10'000, default_alignment);
    CHECK(is_usable(memory, stream, q, 10'000));
    memory.deallocate_sync(q, 10'000, default_alignment);
    void* const r = memory.allocate_sync(10'000, default_alignment);
    memory.deallocate(stream, r, 10'000, default_alignment);
  }

  SECTION("the default stream can be used like any other") {
    void* const p = memory.allocate({}, 10'000, default_alignment);
    CHECK(is_usable(memory, {}, p, 10'000));
    memory.deallocate({}, p, 10'000, default_alignment);
  }

  SECTION("the old and the new spelling of each call work") {
    void* p = memory.allocate(1000, default_alignment);
    CHECK(p != nullptr);
    memory.deallocate(p, 1000, default_alignment);
    std::size_t const nothing = 0;
    CHECK(memory.allocate(nothing, default_alignment) == nullptr);
    p = memory.allocate_async(1000, default_alignment, stream);
    CHECK(p != nullptr);
    memory.deallocate_async(p, 1000, default_alignment, stream);
    p = memory.allocate_async(1000, stream);
    CHECK(p != nullptr);
    memory.deallocate_async(p, 1000, stream);
  }

  SECTION("several threads can use the resource at the same time") {
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        try {
          resource_type mine = memory;
          test_stream on(mine.driver());
          for (int i = 0; i < 40; ++i) {
            std::size_t const bytes = static_cast<std::size_t>(i) * 97 + 1;
            void* const p = mine.allocate(on, bytes, default_alignment);
            int const byte = t * 40 + i;
            if (!write(mine, on, p, byte, bytes) || !holds(mine, on, p, byte, bytes)) ++wrong;
            mine.deallocate(on, p, bytes, default_alignment);
          }
        } catch (std::exception const&) {
          ++wrong;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
  }
}

}  // namespace tarn_test
