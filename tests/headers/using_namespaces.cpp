// SPDX-License-Identifier: Apache-2.0
// What a program with both namespaces and POSIX can call without a prefix. Of the public names of tarn these
// are also in std or POSIX: functions are overloads of each other; length_error and stack<> need the prefix,
// and so do allocator and partition() of std while tarn has its deprecated names.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tarn/diagnostics.hpp"
#include "tarn/pmr.hpp"
#include "tarn/sharing.hpp"
#include "tarn/sim.hpp"
#include "tarn/stl.hpp"
#include "tarn/testing.hpp"
#include "tarn/transfer.hpp"

using namespace std;
using namespace tarn;

int main() {
  struct stat facts {};
  int failed = stat("/", &facts);
  failed += static_cast<int>(sleep(0U));

  auto memory = sim_pages{} | pooled{} | tracked{};
  vector<int> from{1, 2, 3};
  vector<int> to(3);
  copy(from.begin(), from.end(), to.begin());
  generate(to.begin(), to.end(), [] { return 1; });
  auto buffer = make_device_buffer<int>(memory, span<int const>(from), stream_ref{});
  copy(memory.driver(), span<int>(buffer.data(), 3), span<int>(to), stream_ref{});
  sleep(memory);
  wake(memory);

  vector<int, stl_allocator<int, host_memory>> numbers(10);
  request const asked{stream_ref{}, 100, 256, {}};
  elements const values = elements::uninitialised;
  auto const layout = partition_layout::even(10, 2);
  counter count;
  count.increase(static_cast<int64_t>(asked.bytes));
  return failed + (values == elements::uninitialised && layout.parts() == 2 && hash<int>{}(1) != 0 ? 0 : 1);
}
