// SPDX-License-Identifier: Apache-2.0
// error: only trivially copyable elements
#include <span>
#include <string>

#include "tarn/source/host_memory.hpp"
#include "tarn/transfer/collect_batches.hpp"

int main() {
  std::span<std::string> texts;
  for (auto batch :
       tarn::collect_batches(texts, {}, tarn::host_memory{}, tarn::stream_ref{}, tarn::host_memory{})) {
  }
}
