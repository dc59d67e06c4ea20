// SPDX-License-Identifier: Apache-2.0
// tarn's pool as RMM's device resource: RMM's containers allocate from it, RMM's adaptor counts, and RMM's
// exception says why a request was refused. README.md has the command that compiles it.

#include <cstddef>
#include <exception>
#include <iostream>
#include <rmm/cuda_stream.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>

#include "tarn/tarn.hpp"
#include "tarn_rmm.hpp"

int main() {
  tarn::device_pool pool;
  rmm::mr::statistics_resource_adaptor counted{tarn_rmm::resource(pool)};
  rmm::mr::set_current_device_resource(counted);

  rmm::cuda_stream stream;
  {
    rmm::device_uvector<float> a(1 << 20, stream);
    rmm::device_uvector<float> b(1 << 18, stream);
    std::cout << "RMM counts " << counted.get_bytes_counter().value << " bytes in "
              << counted.get_allocations_counter().value << " blocks, tarn " << tarn::memory_allocated(pool)
              << '\n';
  }
  std::cout << "then " << counted.get_bytes_counter().value << " and " << tarn::memory_allocated(pool)
            << ", at most " << counted.get_bytes_counter().peak << '\n';

  int errors = 0;
  try {
    rmm::device_uvector<char> all(std::size_t{1} << 50, stream);
  } catch (rmm::out_of_memory const& refused) {
    std::cout << refused.what() << '\n';
    ++errors;
    try {
      std::rethrow_if_nested(refused);
    } catch (tarn::out_of_memory const& why) {
      std::cout << "asked for " << why.report().asked << " bytes\n";
      ++errors;
    }
  }
  rmm::mr::reset_current_device_resource();
  return errors == 2 && counted.get_bytes_counter().value == 0 ? 0 : 1;
}
