// SPDX-License-Identifier: Apache-2.0
// One planted mistake per run, inside a pool's block, which compute-sanitizer must report; check.sh runs them
// all.
//   planted SOURCE CASE     SOURCE: pages, limited (pages), malloc or async; CASE: see below.
// Exit status 3: no such one

#include <cstdio>
#include <cstring>
#include <vector>

#include "tarn/tarn.hpp"

namespace planted {

using namespace tarn::literals;

/// Reads one byte, and writes if it has a value that it never has, so that the read is not optimized away.
template <class Byte>
__global__ void touch_read(Byte* p, long offset, Byte* sink) {
  if (p[offset] == 77) *sink = p[offset];
}
template <class Byte>
__global__ void touch_write(Byte* p, long offset, Byte value) {
  p[offset] = value;
}
/// Reads every byte; as above.
template <class Byte>
__global__ void read_all(Byte const* p, std::size_t bytes, Byte* sink) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < bytes; i += gridDim.x * blockDim.x) {
    if (p[i] == 77) *sink = p[i];
  }
}
template <class Count>
__global__ void spin(Count nanoseconds) {
  Count begin = 0;
  Count now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

using byte_type = unsigned char;

template <class Pool>
class program {
 public:
  explicit program(Pool memory) : pool(memory) { cudaMalloc(&sink, 256); }

  void read(byte_type* p, long offset, tarn::stream_ref stream) {
    touch_read<<<1, 1, 0, stream.get()>>>(p, offset, sink);
  }
  void write(byte_type* p, long offset, tarn::stream_ref stream) {
    touch_write<<<1, 1, 0, stream.get()>>>(p, offset, byte_type{1});
  }
  void read_whole(byte_type const* p, std::size_t bytes, tarn::stream_ref stream) {
    read_all<<<32, 128, 0, stream.get()>>>(p, bytes, sink);
  }
  byte_type* take(tarn::stream_ref stream, std::size_t bytes) {
    return static_cast<byte_type*>(pool.allocate(stream, bytes));
  }

  Pool pool;
  tarn::basic_stream<tarn::cuda_driver> a{tarn::cuda_driver{}};
  tarn::basic_stream<tarn::cuda_driver> b{tarn::cuda_driver{}};
  byte_type* sink = nullptr;
};

template <class Pool>
bool run(Pool memory, char const* name) {
  program<Pool> p(memory);
  auto const is = [&](char const* other) { return std::strcmp(name, other) == 0; };
  constexpr std::size_t bytes = 1000;  // of a block of 1024
  // Live neighbours: an access beyond the guard would hit one and not be reported.
  byte_type* const before = p.take(p.a, bytes);
  byte_type* const block = p.take(p.a, bytes);
  byte_type* const after = p.take(p.a, bytes);
  for (byte_type* const live : {before, block, after}) cudaMemsetAsync(live, 0, bytes, p.a.ref().get());
  bool freed = false;
  auto const free_block = [&](tarn::stream_ref stream) {
    p.pool.deallocate(stream, block, bytes);
    freed = true;
  };

  if (is("clean")) {
    // Correct use: whole blocks touched, reused immediately, on two streams in order, large ones, work still
    // queued when their block is freed.
    for (int round = 0; round < 50; ++round) {
      std::size_t const sizes[] = {1, 255, 257, 4096, 70'000, 3_MiB, 30_MiB + 1};
      for (std::size_t const size : sizes) {
        byte_type* const q = p.take(p.a, size);
        p.write(q, 0, p.a);
        p.write(q, static_cast<long>(size) - 1, p.a);
        if (round < 2) spin<<<1, 1, 0, p.a.ref().get()>>>(1'000'000ULL);
        p.read(q, static_cast<long>(size) - 1, p.a);
        p.pool.deallocate(p.a, q, size);
      }
      byte_type* const q = p.take(p.b, bytes);
      p.write(q, 999, p.b);
      p.pool.deallocate(p.b, q, bytes);
    }
    p.pool.empty_cache();
  } else if (is("clean_copies")) {
    // Blocks written only by copies and fills, read by kernels to their last byte.
    std::vector<byte_type> host(3'000'001, byte_type{1});
    cudaStream_t const stream = p.a.ref().get();
    for (int round = 0; round < 10; ++round) {
      for (std::size_t const size : {std::size_t{1}, std::size_t{999}, std::size_t{70'001}, host.size()}) {
        byte_type* const from_host = p.take(p.a, size);
        byte_type* const from_device = p.take(p.a, size);
        byte_type* const filled = p.take(p.a, size);
        byte_type* const in_rows = p.take(p.a, size);
        std::size_t const rows = size % 3 == 0 ? 3 : 1;
        cudaMemcpyAsync(from_host, host.data(), size, cudaMemcpyHostToDevice, stream);
        cudaMemcpyAsync(from_device, from_host, size, cudaMemcpyDeviceToDevice, stream);
        (void)p.pool.driver().fill(p.a, filled, 2, size);
        cudaMemset2DAsync(in_rows, size / rows, 3, size / rows, rows, stream);
        cudaMemcpy2DAsync(in_rows, size / rows, filled, size / rows, size / rows, rows,
                          cudaMemcpyDeviceToDevice, stream);
        for (byte_type const* const q : {from_host, from_device, filled, in_rows}) p.read_whole(q, size, p.a);
        (void)p.pool.driver().copy(p.a, host.data(), from_device, size);
        for (byte_type* const q : {from_host, from_device, filled, in_rows}) p.pool.deallocate(p.a, q, size);
      }
      if (round == 5) p.pool.empty_cache();
    }
  } else if (is("write_past_requested")) {
    p.write(block, bytes, p.a);  // within the size to which the pool rounds
  } else if (is("read_past_requested")) {
    p.read(block, bytes + 100, p.a);
  } else if (is("write_before")) {
    p.write(block, -1, p.a);
  } else if (is("write_past_large")) {
    std::size_t const large = 20_MiB - 1000;
    byte_type* const q = p.take(p.a, large);
    p.write(q, static_cast<long>(large), p.a);
    p.a.synchronize();
    p.pool.deallocate(p.a, q, large);
  } else if (is("use_after_free")) {
    free_block(p.a);
    p.write(block, 0, p.a);
  } else if (is("use_after_free_and_new_blocks")) {
    free_block(p.a);
    byte_type* const q = p.take(p.a, bytes);  // a pool without quarantine reuses the same bytes
    p.write(block, 0, p.a);
    p.a.synchronize();
    p.pool.deallocate(p.a, q, bytes);
  } else if (is("use_after_free_on_another_stream")) {
    free_block(p.a);
    p.write(block, 0, p.b);
  } else if (is("uninitialised_read")) {
    byte_type* const q = p.take(p.a, bytes);
    p.read(q, 10, p.a);
    p.a.synchronize();
    p.pool.deallocate(p.a, q, bytes);
  } else if (is("uninitialised_read_of_reused")) {
    free_block(p.a);
    p.pool.empty_cache();  // ends the quarantine
    std::vector<byte_type*> all;
    for (int i = 0; i < 64; ++i) all.push_back(p.take(p.a, bytes));
    for (byte_type* const q : all) p.read(q, 10, p.a);
    p.a.synchronize();
    for (byte_type* const q : all) p.pool.deallocate(p.a, q, bytes);
  } else {
    return false;
  }
  cudaDeviceSynchronize();
  if (!freed) p.pool.deallocate(p.a, block, bytes);
  p.pool.deallocate(p.a, before, bytes);
  p.pool.deallocate(p.a, after, bytes);
  (void)cudaGetLastError();
  return true;
}

}  // namespace planted

int main(int count, char** arguments) {
  if (count != 3) return 2;
  bool known = false;
  if (std::strcmp(arguments[1], "pages") == 0) {
    known = planted::run(tarn::cuda_pages{} | tarn::pooled{}, arguments[2]);
  } else if (std::strcmp(arguments[1], "limited") == 0) {
    using namespace tarn::literals;
    known = planted::run(tarn::cuda_pages{} | tarn::limited{1_GiB} | tarn::pooled{}, arguments[2]);
  } else if (std::strcmp(arguments[1], "malloc") == 0) {
    known = planted::run(tarn::cuda_malloc{} | tarn::pooled{}, arguments[2]);
  } else if (std::strcmp(arguments[1], "async") == 0) {
    known = planted::run(tarn::cuda_async{} | tarn::pooled{}, arguments[2]);
  }
  return known ? 0 : 3;
}
