// SPDX-License-Identifier: Apache-2.0
#pragma once
// Handles at their home addresses: created and mapped, all or none, and unmapped and destroyed.

#include <cstddef>
#include <cstdint>

#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/pool/arena/page_map.hpp"
#include "tarn/pool/pages/address_space.hpp"
#include "tarn/pool/pages/growth.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/source/refusal.hpp"

namespace TARN_NAMESPACE::detail {

/// A request this large is refused before its first handle is created if the device does not have that much
/// free memory: otherwise it would briefly take the whole device. The query costs 5-100 us.
inline constexpr std::size_t ask_first_limit = 1_GiB;

/// @throws out_of_memory  the device has less than `total` bytes free
template <class Source>
void refuse_what_is_not_free(Source& source, std::size_t total) {
  std::size_t available = 0;
  std::size_t all = 0;
  if (!source.driver().memory_info(available, all).ok() || available >= total) return;
  status const none{failure::out_of_memory, 0, "", name_of_memory(source.driver())};
  refuse(source.driver(), none, stream_ref{}, total, usual_granule);
}

/// Destroys a handle that is in no view; first unmaps it if it is mapped.
template <class Source>
void destroy_handle(Source& source, growth_counters& counters, address_space const& addresses,
                    growth_lock const& growing, physical const& p) noexcept {
  if (p.state == backing::mapped) {
    source.unmap(reinterpret_cast<void*>(p.home), p.bytes);
    ++counters.unmaps;
  }
  source.destroy(p.id, p.bytes);
  counters.release(growing, p.home, p.bytes, addresses.zone_at(p.home));
}

/// Creates the handles and maps them. The hot lock is not held.
/// @param total  their bytes
/// @throws out_of_memory, cuda_error, nothing has changed
template <class Source>
void create_handles(Source& source, growth_counters& counters, address_space const& addresses,
                    growth_lock const& growing, sequence<physical>& made, std::size_t total) {
  if (total >= ask_first_limit) refuse_what_is_not_free(source, total);
  try {
    for (physical& p : made) {
      p.id = source.create(p.bytes);
      p.state = backing::unmapped;
      counters.hold(growing, p.home, p.bytes, addresses.zone_at(p.home));
      source.map(reinterpret_cast<void*>(p.home), p.bytes, p.id);
      p.state = backing::mapped;
      ++counters.maps;
    }
  } catch (...) {
    for (physical const& p : made) {
      if (p.state == backing::released) break;
      destroy_handle(source, counters, addresses, growing, p);
    }
    throw;
  }
}

/// Unmaps and destroys the handle with this number, as far as it is mapped and created; returns the bytes
/// given back.
template <class Source>
std::size_t destroy_handle(Source& source, growth_counters& counters, address_space const& addresses,
                           growth_lock const& growing, page_map& map, handle_ref h) noexcept {
  physical const p = map[h];
  if (p.state == backing::released) return 0;
  destroy_handle(source, counters, addresses, growing, p);
  map.set(h, page_handle{}, backing::released);
  return p.bytes;
}

}  // namespace TARN_NAMESPACE::detail
