// SPDX-License-Identifier: Apache-2.0
// Memory use by name: scopes, owners and handles can have a tag; errors then report it as well.

#include <tarn/diagnostics.hpp>
#include <tarn/tarn.hpp>

#include <iostream>

using namespace tarn::literals;

int main() {
  auto memory = tarn::cuda_pages{} | tarn::pooled{} | tarn::limited{64_MiB} | tarn::with_history{};
  tarn::stream_ref const stream;

  // A tag on an owner ...
  auto embedding = tarn::make_device_buffer<float>(memory, 4 << 20, stream, tarn::tag("embedding"));
  // ... on a handle, for all that is allocated through it ...
  auto weights_memory = memory | tarn::tagged{"weights"};
  auto first = tarn::make_device_buffer<float>(weights_memory, 1 << 20, stream);
  auto second = tarn::make_device_buffer<float>(weights_memory, 2 << 20, stream);
  {
    // ... and on a scope, for all that its thread allocates meanwhile.
    tarn::tag_scope const here{"activations"};
    auto hidden = tarn::make_device_buffer<float>(memory, 3 << 20, stream);
    auto output = tarn::make_device_buffer<float>(memory, 1 << 20, stream);
    hidden.reset();
    std::cout << tarn::memory_by_tag_summary(memory);
  }
  try {
    auto gradients = tarn::make_device_buffer<float>(memory, 16 << 20, stream, tarn::tag("gradients"));
  } catch (tarn::out_of_memory const& error) {
    std::cout << error.what() << '\n';
    std::cout << error.report().biggest_tags[0].name << " holds the most\n";
  }
}
