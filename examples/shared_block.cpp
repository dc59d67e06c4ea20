// SPDX-License-Identifier: Apache-2.0
// A block of a pool in a second process: exported by file descriptors over a Unix socket, imported, changed, and handed back.

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iostream>
#include <vector>

#include "gpu_or_simulated.hpp"
#include "tarn/sharing.hpp"
#include "tarn/tarn.hpp"
#include "tarn/transfer.hpp"

using namespace tarn::literals;

constexpr std::size_t block_bytes = 512_MiB;

/// Whether all bytes of device memory have this value.
bool all_are(auto gpu, std::byte* p, std::byte value, tarn::stream_ref stream) {
  std::vector<std::byte> on_host(block_bytes);
  tarn::copy_sync(gpu.driver(), std::span<std::byte const>(p, block_bytes), std::span(on_host), stream);
  return std::all_of(on_host.begin(), on_host.end(), [&](std::byte b) { return b == value; });
}

void exporter(auto gpu, int socket) {
  // Handles of 8 MiB, so that the block lies in many: each has a descriptor of its own.
  auto pool = gpu.cuda_pages() | tarn::pooled{.largest_handle = 8_MiB};
  auto const stream = gpu.stream();
  auto buffer = tarn::make_device_buffer<std::byte>(pool, block_bytes, stream);
  buffer.fill(std::byte{1});
  stream.synchronize();

  auto const block = tarn::export_block(pool, buffer.data(), block_bytes);
  tarn::send_block(socket, block);  // returns when the other process has mapped it
  char done = 0;
  if (::read(socket, &done, 1) != 1) return;
  std::cout << "exported by 50 handles and more: " << std::boolalpha
            << (block.description().handles.size() >= 50) << '\n'
            << "what the importer wrote is here: " << all_are(gpu, buffer.data(), std::byte{2}, stream)
            << '\n';
}

void importer(auto gpu, int socket) {
  auto const stream = gpu.stream();
  auto const block = tarn::receive_block(socket, gpu.cuda_pages());
  auto* const p = static_cast<std::byte*>(block.data());
  std::cout << "imported " << block.size_bytes() / 1_MiB << " MiB, intact: " << std::boolalpha
            << all_are(gpu, p, std::byte{1}, stream) << std::endl;
  (void)gpu.driver().fill(stream, p, 2, block_bytes);
  stream.synchronize();
  if (::write(socket, "x", 1) != 1) std::cout << "the exporter has ended\n";
}

int main() {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 1;
  // Before the first use of CUDA, which a forked child could not use.
  ::pid_t const child = ::fork();
  if (child < 0) return 1;
  bool const imports = child == 0;
  ::close(sockets[imports ? 0 : 1]);

  tarn::sim_options simulated;
  simulated.sharing = tarn::sim_sharing::descriptors;
  int status = 0;
  try {
    with_gpu_or_simulated([&](auto gpu) { imports ? importer(gpu, sockets[1]) : exporter(gpu, sockets[0]); },
                          tarn::sim_machine(simulated));
  } catch (std::exception const& error) {
    std::cout << error.what() << std::endl;
    status = 1;
  }
  int of_child = 0;
  if (!imports) (void)::waitpid(child, &of_child, 0);
  return status != 0 || of_child != 0;
}
