// SPDX-License-Identifier: Apache-2.0
#pragma once
// The driver calls with which a growth by pages creates handles at their home addresses.

#include <cstddef>
#include <cstdint>

#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/pool/arena/page_map.hpp"
#include "tarn/pool/growth/address_space.hpp"
#include "tarn/pool/growth/growth.hpp"
#include "tarn/source/refusal.hpp"

namespace tarn::detail {

/// A handle to create.
struct made_handle {
  page_handle id = 0;
  std::size_t bytes = 0;
  bool mapped = false;
};

/// The hot lock is not held.
template <page_source Source>
class page_making {
 public:
  page_making(Source& source, growth_counters& counters, address_space const& space, page_map const& map)
      : source_(source), counters_(counters), addresses_(space), map_(map) {}

  /// Creates each handle and maps it behind the one before, from `address` on: all or none.
  /// @throws out_of_memory, cuda_error, nothing has changed
  void make(sequence<made_handle>& made, std::uintptr_t const address, std::size_t total) {
    if (total >= ask_first_limit) refuse_what_is_not_free(total);
    std::uintptr_t at = address;
    try {
      for (made_handle& c : made) {
        make(c, at);
        at += c.bytes;
      }
    } catch (...) {
      unmake(made, address);
      throw;
    }
  }

 private:
  void make(made_handle& c, std::uintptr_t address) {
    c.id = source_.create(c.bytes);
    counters_.hold(address, c.bytes, addresses_.zone_at(address));
    try {
      source_.map(reinterpret_cast<void*>(address), c.bytes, c.id);
    } catch (...) {
      source_.destroy(c.id, c.bytes);
      counters_.release(address, c.bytes, addresses_.zone_at(address));
      throw;
    }
    ++counters_.maps;
    c.mapped = true;
  }
  void unmake(sequence<made_handle> const& made, std::uintptr_t address) noexcept {
    for (made_handle const& c : made) {
      if (!c.mapped) break;
      unmap(address, c.bytes);
      source_.destroy(c.id, c.bytes);
      counters_.release(address, c.bytes, addresses_.zone_at(address));
      address += c.bytes;
    }
  }

  /// A request this large is refused before its first handle is created if the device does not have that much free memory:
  /// otherwise it would briefly take the whole device. The query costs 5-100 us.
  static constexpr std::size_t ask_first_limit = 1_GiB;
  void refuse_what_is_not_free(std::size_t total) {
    std::size_t available = 0;
    std::size_t all = 0;
    if (!source_.driver().memory_info(available, all).ok() || available >= total) return;
    status const none{failure::out_of_memory, 0, "", name_of_memory(source_.driver())};
    refuse(source_.driver(), none, stream_ref{}, total, map_.granularity());
  }

  void unmap(std::uintptr_t address, std::size_t bytes) noexcept {
    source_.unmap(reinterpret_cast<void*>(address), bytes);
    ++counters_.unmaps;
  }

  Source& source_;
  growth_counters& counters_;
  address_space const& addresses_;
  page_map const& map_;
};

}  // namespace tarn::detail
