// SPDX-License-Identifier: Apache-2.0
#pragma once
// The free memory of an integrated GPU, which shares the host's memory: what the host reports as available in
// /proc/meminfo.

#if defined(__linux__)
#include <fcntl.h>
#include <unistd.h>
#endif

#include <cstddef>
#include <string_view>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

/// Corrects what the driver of an integrated GPU reports as free: it counts the host's page cache as used,
/// though an allocation gets that memory. Takes the line MemAvailable of `meminfo`, at most `total`. Leaves
/// `free` as it is if there is no such line or it is not a number of kB.
constexpr void use_available(std::string_view meminfo, std::size_t total, std::size_t& free) noexcept {
  constexpr std::string_view name = "\nMemAvailable:";
  std::size_t at = meminfo.find(name);
  if (at == std::string_view::npos) return;
  at = meminfo.find_first_not_of(' ', at + name.size());
  std::size_t const digits = at;
  std::size_t const most = total / 1024;  // a larger number is not read on, so that it cannot overflow
  std::size_t kib = 0;
  for (; at < meminfo.size() && meminfo[at] >= '0' && meminfo[at] <= '9'; ++at) {
    if (kib <= most) kib = kib * 10 + static_cast<std::size_t>(meminfo[at] - '0');
  }
  if (at == digits || !meminfo.substr(at).starts_with(" kB\n")) return;
  free = kib <= most ? kib * 1024 : total;
}

/// The same with the system's /proc/meminfo; leaves `free` as it is where there is none, as in some
/// containers. Opens and reads the file. Not the limit of a container's own memory, which the kernel keeps
/// elsewhere.
inline void use_available([[maybe_unused]] std::size_t total, [[maybe_unused]] std::size_t& free) noexcept {
#if defined(__linux__)
  int const file = ::open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  char text[512];  // the line is the third
  auto const length = ::read(file, text, sizeof text);
  (void)::close(file);
  if (length > 0) use_available({text, static_cast<std::size_t>(length)}, total, free);
#endif
}

}  // namespace TARN_NAMESPACE::detail
