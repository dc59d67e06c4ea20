// SPDX-License-Identifier: Apache-2.0
#pragma once
// The contract of every page source.

#include <cstddef>

#include "catch.hpp"
#include "contract/memory_access.hpp"
#include "contract/resource_contract.hpp"
#include "contract/unique_pages.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/resource.hpp"

namespace tarn_test {

/// @param make           returns a page source
/// @param check_refusal  called after a refused creation: checks what else must be unchanged
template <class MakeSource, class CheckRefusal = nothing_more>
void page_source_contract(MakeSource const& make, CheckRefusal const& check_refusal = {}) {
  using namespace tarn::literals;
  using source_type = decltype(make());
  static_assert(tarn::page_source<source_type>);

  source_type pages = make();
  test_stream stream(pages.driver());
  REQUIRE(stream.made());
  std::size_t const page = pages.granularity();
  auto const at = [](void* p, std::size_t offset) {
    return static_cast<void*>(static_cast<char*>(p) + offset);
  };

  SECTION("the granularity is a power of two") {
    CHECK(tarn::is_alignment(page));
  }

  SECTION("reserved addresses take no memory and are aligned to the granularity") {
    std::size_t before = 0;
    std::size_t after = 0;
    std::size_t total = 0;
    REQUIRE(pages.driver().memory_info(before, total).ok());
    std::size_t const bytes = tarn::align_up(total, page);
    void* const p = pages.reserve(bytes);
    CHECK(tarn::is_aligned(p, page));
    REQUIRE(pages.driver().memory_info(after, total).ok());
    CHECK(after + page > before);  // other processes may share the device, but not use this much
    pages.unreserve(p, bytes);
  }

  SECTION("every byte of mapped pages can be used, and adjacent pages form one block") {
    void* const p = pages.reserve(4 * page);
    unique_pages one(pages, page);
    unique_pages three(pages, 3 * page);
    pages.map(p, page, one.get());
    pages.map(at(p, page), 3 * page, three.get());
    CHECK(is_usable(pages, stream, p, 4 * page));
    pages.unmap(p, page);
    pages.unmap(at(p, page), 3 * page);
    pages.unreserve(p, 4 * page);
  }

  SECTION("a handle keeps its contents when it is mapped elsewhere") {
    void* const p = pages.reserve(2 * page);
    unique_pages handle(pages, page);
    pages.map(p, page, handle.get());
    REQUIRE(write(pages, stream, p, 0x3c, page));
    pages.unmap(p, page);
    pages.map(at(p, page), page, handle.get());
    CHECK(holds(pages, stream, at(p, page), 0x3c, page));
    pages.unmap(at(p, page), page);
    pages.unreserve(p, 2 * page);
  }

  SECTION("a request larger than the device is refused with a report, and the source still works") {
    std::size_t free = 0;
    std::size_t total = 0;
    REQUIRE(pages.driver().memory_info(free, total).ok());
    std::size_t const bytes = tarn::align_up(total, page) + page;
    bool refused = false;
    try {
      (void)pages.create(bytes);
    } catch (tarn::out_of_memory const& error) {
      refused = true;
      CHECK(error.asked() == bytes);
      CHECK(error.report().device_free != tarn::memory_report::unknown);
    }
    CHECK(refused);
    check_refusal();
    CHECK_THROWS_AS(pages.create(tarn::max_request_bytes + 1), tarn::out_of_memory);
    unique_pages small(pages, page);
    CHECK(small);
  }

  SECTION("mapping over a mapped page is refused and changes nothing") {
    void* const p = pages.reserve(page);
    unique_pages first(pages, page);
    unique_pages second(pages, page);
    pages.map(p, page, first.get());
    REQUIRE(write(pages, stream, p, 0x11, page));
    CHECK_THROWS_AS(pages.map(p, page, second.get()), tarn::cuda_error);
    check_refusal();
    CHECK(holds(pages, stream, p, 0x11, page));
    pages.unmap(p, page);
    pages.unreserve(p, page);
  }

  SECTION("an owner of pages can be moved, emptied and swapped; its pages are released once") {
    unique_pages a(pages, page);
    tarn::page_handle const first = a.get();
    unique_pages b = std::move(a);
    CHECK(!a);  // NOLINT: moved-from owners are empty
    CHECK(b.get() == first);
    unique_pages c(pages, 2 * page);
    b.swap(c);
    CHECK(b.bytes() == 2 * page);
    CHECK(c.get() == first);
    b = std::move(c);
    CHECK(b.get() == first);
    tarn::page_handle const loose = b.release();
    CHECK(!b);
    pages.destroy(loose, page);
  }

  SECTION("copies are the same source") {
    source_type copy = pages;
    CHECK(copy == pages);
    tarn::page_handle const handle = pages.create(page);
    copy.destroy(handle, page);
  }
}

}  // namespace tarn_test
