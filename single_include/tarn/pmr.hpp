// SPDX-License-Identifier: Apache-2.0
#pragma once
// tarn/pmr.hpp over the single tarn.hpp, made by .ci/amalgamate.py. Do not edit.
#include "tarn.hpp"
// ---- tarn/pmr.hpp
// std::pmr interoperability, in both directions.

#if defined(__GNUC__) && !defined(__GXX_RTTI) || defined(_MSC_VER) && !defined(_CPPRTTI)
#error "tarn/pmr.hpp: RTTI is needed to compare memory resources; compile without -fno-rtti"
#endif

#include <cstddef>
#include <memory_resource>
#include <new>
#include <utility>

namespace TARN_NAMESPACE {

/// A std::pmr::memory_resource over a host-accessible tarn resource. Synchronous, as pmr is. Holds the
/// resource. Containers hold a pointer to the adaptor, which must outlive them. Two adaptors are equal if
/// their resources are equal.
template <class Resource>
class pmr_resource final : public std::pmr::memory_resource {
 public:
  static_assert(
      has_property<Resource, host_accessible>,
      "tarn: pmr containers access their elements on the host; use pinned_host, managed or host_memory");

  explicit pmr_resource(Resource memory) : memory_(std::move(memory)) {}
  pmr_resource& operator=(pmr_resource&&) = delete;
  [[nodiscard]] Resource const& resource() const noexcept { return memory_; }

 private:
  // pmr requires distinct pointers even for zero bytes.
  static constexpr std::size_t at_least_one(std::size_t bytes) noexcept { return bytes == 0 ? 1 : bytes; }

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    return detail::called_from<Resource>(
        detail::unknown_place(), [&] { return memory_.allocate_sync(at_least_one(bytes), alignment); });
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    detail::free_block_sync(memory_, p, at_least_one(bytes), alignment);
  }
  [[nodiscard]] bool do_is_equal(std::pmr::memory_resource const& other) const noexcept override {
    auto const* const same = dynamic_cast<pmr_resource const*>(&other);
    return same != nullptr && same->memory_ == memory_;
  }

  Resource memory_;
};

/// Creates a pmr_resource: `auto memory = tarn::as_pmr_resource(pool); std::pmr::vector<int>
/// numbers(&memory);`. It cannot be copied or moved, since containers point to it.
template <class Resource>
[[nodiscard]] pmr_resource<Resource> as_pmr_resource(Resource memory) {
  return pmr_resource<Resource>(std::move(memory));
}

/// A tarn resource over a std::pmr::memory_resource, which must outlive it. Host memory, without streams.
class pmr_source {
 public:
  using driver_type = no_driver;
  using properties = property_set<host_accessible>;

  explicit pmr_source(std::pmr::memory_resource* upstream) noexcept : upstream_(upstream) {}

  /// @throws out_of_memory  the upstream threw std::bad_alloc
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    if (bytes == 0) return nullptr;
    require_alignment(alignment);
    try {
      if (bytes <= max_request_bytes) return upstream_->allocate(bytes, alignment);
    } catch (out_of_memory const&) {
      throw;  // a tarn resource below: its error has more information
    } catch (std::bad_alloc const&) {
    }
    memory_report r;
    r.asked = bytes;
    r.alignment = alignment;
    r.refused_by = "std::pmr::memory_resource";
    throw out_of_memory(r);
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    if (p != nullptr) upstream_->deallocate(p, bytes, alignment);
  }
  [[nodiscard]] void* allocate(stream_ref, std::size_t bytes, std::size_t alignment = default_alignment) {
    return allocate_sync(bytes, alignment);
  }
  void deallocate(stream_ref, void* p, std::size_t bytes,
                  std::size_t alignment = default_alignment) noexcept {
    deallocate_sync(p, bytes, alignment);
  }

  [[nodiscard]] no_driver const& driver() const noexcept { return driver_; }
  [[nodiscard]] device_id device() const noexcept { return driver_.device(); }
  [[nodiscard]] std::pmr::memory_resource* memory_resource() const noexcept { return upstream_; }
  friend bool operator==(pmr_source const& a, pmr_source const& b) noexcept {
    return *a.upstream_ == *b.upstream_;
  }

 private:
  std::pmr::memory_resource* upstream_;
  no_driver driver_;
};

/// Creates a pmr_source; counterpart of the adaptor above.
[[nodiscard]] inline pmr_source from_pmr_resource(std::pmr::memory_resource* upstream) noexcept {
  return pmr_source(upstream);
}

static_assert(resource<pmr_source>);

}  // namespace TARN_NAMESPACE
