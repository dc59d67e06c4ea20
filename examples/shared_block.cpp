// SPDX-License-Identifier: Apache-2.0
// A block of a pool in a second process: exported by file descriptors over a Unix socket, imported, changed,
// and handed back. Simulated devices share memory with TARN_SIM_SHARING=descriptors in the environment.

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <tarn/sharing.hpp>
#include <tarn/tarn.hpp>
#include <tarn/transfer.hpp>

#include <cstddef>
#include <exception>
#include <iostream>
#include <span>
#include <vector>

using namespace tarn::literals;

constexpr std::size_t block_bytes = 512_MiB;

static void exporter(int socket) {
  // Handles of 8 MiB, so that the block lies in many: each has a descriptor of its own.
  auto pool = tarn::cuda_pages{} | tarn::pooled{.largest_handle = 8_MiB};
  tarn::stream const stream;
  auto buffer = tarn::make_device_buffer<std::byte>(pool, block_bytes, stream);
  buffer.fill(std::byte{1});
  stream.synchronize();

  auto const block = tarn::export_block(pool, buffer.data(), block_bytes);
  tarn::send_block(socket, block);  // returns when the other process has mapped it
  char done = 0;
  if (::read(socket, &done, 1) != 1) return;
  std::vector<std::byte> seen(block_bytes);
  buffer.copy_to_sync(seen);
  std::cout << "exported by 50 handles and more: " << std::boolalpha
            << (block.description().handles.size() >= 50) << '\n'
            << "what the importer wrote is here: "
            << (seen == std::vector<std::byte>(block_bytes, std::byte{2})) << '\n';
}

static void importer(int socket) {
  tarn::cuda_pages const pages;
  tarn::stream const stream;
  auto const block = tarn::receive_block(socket, pages);
  std::span<std::byte> const bytes(static_cast<std::byte*>(block.data()), block.size_bytes());
  std::vector<std::byte> host(bytes.size());
  tarn::copy_sync(pages.driver(), std::span<std::byte const>(bytes), std::span(host), stream);
  std::cout << "imported " << bytes.size() / 1_MiB << " MiB, intact: " << std::boolalpha
            << (host == std::vector<std::byte>(bytes.size(), std::byte{1})) << std::endl;
  host.assign(bytes.size(), std::byte{2});
  tarn::copy_sync(pages.driver(), std::span<std::byte const>(host), bytes, stream);
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

  int status = 0;
  try {
    imports ? importer(sockets[1]) : exporter(sockets[0]);
  } catch (std::exception const& error) {
    std::cout << error.what() << std::endl;
    status = 1;
  }
  int of_child = 0;
  if (!imports) (void)::waitpid(child, &of_child, 0);
  return status != 0 || of_child != 0;
}
