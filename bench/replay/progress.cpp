// SPDX-License-Identifier: Apache-2.0
#include "replay/progress.hpp"

#include <unistd.h>

#include <cstdio>

namespace tarn::bench {

progress::progress(output where) : visible_(where == output::automatic && isatty(STDERR_FILENO) == 1) {}

progress::~progress() {
  clear();
}

void progress::begin(std::string_view work) {
  work_ = work;
  last_percent_ = 101;
  show(0, 1);
}

void progress::show(std::uint64_t done, std::uint64_t all) {
  if (!visible_) return;
  auto const percent = static_cast<unsigned>(all == 0 ? 100 : done * 100 / all);
  if (percent == last_percent_) return;
  last_percent_ = percent;
  written_ = true;
  std::fprintf(stderr, "\r\x1b[K%s %3u %%", work_.c_str(), percent);
  std::fflush(stderr);
}

void progress::clear() {
  if (!written_) return;
  written_ = false;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

}  // namespace tarn::bench
