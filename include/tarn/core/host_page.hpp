// SPDX-License-Identifier: Apache-2.0
#pragma once
// host_page_bytes(): the size of the host's pages.

#include <unistd.h>

#include <cstddef>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

/// Bytes: 4 KiB on most hosts, 16 or 64 KiB on some with ARM processors. System calls refuse addresses that
/// are not multiples.
[[nodiscard]] inline std::size_t host_page_bytes() noexcept {
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace TARN_NAMESPACE::detail
