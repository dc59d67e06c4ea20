// SPDX-License-Identifier: Apache-2.0
#pragma once
// sharing_error: why memory could not be shared with another process. sharing_timeout: how long calls wait
// for that process.

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "tarn/core/error.hpp"

namespace TARN_NAMESPACE {

/// How long one step of the other process may take.
inline constexpr std::chrono::milliseconds default_sharing_timeout{30'000};

namespace detail {

/// A longer limit counts as this one, which can be added to the time of any clock.
inline constexpr std::chrono::milliseconds longest_wait = std::chrono::hours(24 * 365);

}  // namespace detail

/// Why memory could not be shared.
enum class sharing_failure : std::uint8_t {
  peer_closed,     ///< the other process has ended or closed the socket
  timed_out,       ///< the other process does not answer
  refused,         ///< the other process could not import the block
  truncated,       ///< the description ends early
  damaged,         ///< not a description of a block, or changed since it was made
  other_version,   ///< made by a version of tarn with another format
  other_machine,   ///< made on another machine, or before the last start of this one
  other_device,    ///< of a device that is not the importing one
  exporter_ended,  ///< the process that exported the block has ended
  importer_ended,  ///< the process that imported the block has ended
  wrong_pages,     ///< the descriptors are not those of the description
  system           ///< a system call failed: error() is its errno
};

/// Memory could not be shared with another process. Nothing was mapped, and nothing is leaked.
class sharing_error : public detail::error_of<std::runtime_error, 512> {
 public:
  sharing_error(sharing_failure kind, std::string_view text, int error = 0) : kind_(kind), error_(error) {
    text_.add("tarn: ").add(text);
    if (error != 0) text_.add(" (errno ").add_number(error).add(")");
  }
  [[nodiscard]] sharing_failure kind() const noexcept { return kind_; }
  /// errno of a system call that failed; 0: none did.
  [[nodiscard]] int error() const noexcept { return error_; }

 private:
  sharing_failure kind_;
  int error_;
};

}  // namespace TARN_NAMESPACE
