// SPDX-License-Identifier: Apache-2.0
// Checked memory: each misuse is reported with the block's history.

#include <tarn/tarn.hpp>

#include <cstdio>
#include <span>
#include <string_view>

int main() {
  tarn::set_misuse_handler([](tarn::misuse const& what) {
    // Addresses differ between runs: print the text from "of ... bytes" on.
    std::string_view const text = what.what();
    std::printf("%s\n", text.substr(text.find(" of ") + 1).data());
  });
  auto memory = tarn::cuda_pages{} | tarn::pooled{} | tarn::checked{} | tarn::tracked{};
  tarn::stream_ref const stream;
  unsigned char const one = 1;
  auto const write = [&](unsigned char* to) {  // in place of a kernel
    tarn::copy_sync(memory.driver(), std::span<unsigned char const>(&one, 1), std::span<unsigned char>(to, 1),
                    stream);
  };

  auto* const p = static_cast<unsigned char*>(memory.allocate(stream, 100));
  write(p + 100);  // one past the end
  memory.deallocate(stream, p, 100);
  memory.deallocate(stream, p, 100);  // double free

  auto* const q = static_cast<unsigned char*>(memory.allocate(stream, 200));
  memory.deallocate(stream, q, 200);
  write(q + 7);  // use after free
  memory->upstream()->check_all();

  (void)memory.allocate(stream, 300);  // leaked
}
