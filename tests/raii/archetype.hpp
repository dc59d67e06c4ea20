// SPDX-License-Identifier: Apache-2.0
#pragma once
// A memory resource for tests of owners. It records what is live, whether each block is deallocated with its
// original size and alignment, and on which stream. Each of its allocations and driver calls can be made to
// fail in turn.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/driver/no_driver.hpp"

namespace tarn_test {

/// Host memory on a driver that can be made to fail. Copies share one set of records, which outlives all
/// copies.
class kept_memory {
 public:
  using driver_type = tarn::faulty<tarn::no_driver>;
  using properties = tarn::property_set<tarn::device_accessible, tarn::host_accessible>;

  struct block {
    std::size_t bytes = 0;
    std::size_t alignment = 0;
  };
  struct records {
    std::map<void*, block> live;
    std::size_t allocations = 0;
    std::size_t wrong = 0;  ///< deallocations of a block that was not live, or with another size or alignment
    tarn::stream_ref freed_on;
    std::size_t freed_sync = 0;
  };

  [[nodiscard]] void* allocate(tarn::stream_ref, std::size_t bytes, std::size_t alignment) {
    return take(bytes, alignment);
  }
  void deallocate(tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    records_->freed_on = stream;
    give(p, bytes, alignment);
  }
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    return take(bytes, alignment);
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    ++records_->freed_sync;
    give(p, bytes, alignment);
  }

  [[nodiscard]] driver_type const& driver() const noexcept { return driver_; }
  [[nodiscard]] tarn::device_id device() const noexcept { return driver_.device(); }
  [[nodiscard]] records const& kept() const noexcept { return *records_; }
  /// True if nothing is live and every deallocation matched its allocation.
  [[nodiscard]] bool balanced() const noexcept { return records_->live.empty() && records_->wrong == 0; }
  friend bool operator==(kept_memory const& a, kept_memory const& b) noexcept {
    return a.records_ == b.records_;
  }

 private:
  void* take(std::size_t bytes, std::size_t alignment) {
    tarn::require_alignment(alignment);
    if (bytes == 0) return nullptr;
    // An allocation is one step of the fault plan, like every driver call.
    bool const refused = driver_.plan().next(tarn::driver_call::malloc_device).kind != tarn::failure::none;
    void* const p = refused || bytes > tarn::max_request_bytes
                        ? nullptr
                        : ::operator new(bytes, std::align_val_t{alignment}, std::nothrow);
    if (p == nullptr) {
      tarn::memory_report report;
      report.asked = bytes;
      throw tarn::out_of_memory(report);
    }
    records_->live[p] = {bytes, alignment};
    ++records_->allocations;
    return p;
  }
  void give(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    auto const found = records_->live.find(p);
    if (found == records_->live.end() || found->second.bytes != bytes ||
        found->second.alignment != alignment) {
      ++records_->wrong;
      return;
    }
    records_->live.erase(found);
    ::operator delete(p, std::align_val_t{alignment});
  }

  driver_type driver_;
  std::shared_ptr<records> records_ = std::make_shared<records>();
};

static_assert(tarn::resource<kept_memory>);

/// A stream whose identity the owner has not queried from the driver.
[[nodiscard]] inline tarn::stream_ref bare_stream(std::uintptr_t n) {
  return tarn::stream_ref::from(reinterpret_cast<void*>(n * 4096));
}

/// Makes each step of `act` (an allocation or a driver call) fail in turn, until no step is left to fail.
/// @param make       makes the subject from a fresh resource
/// @param act        the operation
/// @param unchanged  checks the state that a failed operation left
template <class Make, class Act, class Unchanged>
void fail_each_step(Make const& make, Act const& act, Unchanged const& unchanged) {
  std::uint64_t step = 0;
  bool struck = true;
  int refusals = 0;
  while (struck) {
    kept_memory memory;
    {
      auto subject = make(memory);
      auto const live = memory.kept().live.size();
      memory.driver().plan().reset();
      memory.driver().plan().fail(++step);
      bool threw = false;
      try {
        act(subject);
      } catch (std::exception const&) {
        threw = true;
        ++refusals;
      }
      struck = memory.driver().plan().failed() != 0;
      memory.driver().plan().reset();
      INFO("step " << step);
      if (threw) {
        CHECK(memory.kept().live.size() == live);
        unchanged(subject);
      }
      REQUIRE(step < 100);
    }
    CHECK(memory.balanced());
  }
  CHECK(refusals != 0);  // otherwise no step was made to fail
}

}  // namespace tarn_test
