// SPDX-License-Identifier: Apache-2.0
// Tests the arena on the simulated device, with an AMReX for the CPU: what amrex::Arena promises, and frees
// by another thread, as those of host functions are.

#include <AMReX.H>
#include <AMReX_ParmParse.H>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tarn/sim.hpp>
#include <thread>
#include <utility>

#include "tarn_amrex.hpp"

namespace {

using pool_type = tarn::pool_over<tarn::sim_pages>;

void require(bool fulfilled, char const* what) {
  if (!fulfilled) throw std::runtime_error(what);
}

void test(pool_type const& pool) {
  tarn_amrex::arena arena(pool);
  auto const live = [&] { return tarn::memory_allocated(pool); };

  void* const none = arena.alloc(0);
  require(none != nullptr, "alloc(0) returns a pointer");
  arena.free(none);
  arena.free(nullptr);
  require(live() == 0, "free returns a block to the pool");

  constexpr std::size_t bytes = 3 << 20;
  void* const first = arena.alloc(bytes);
  void* const second = arena.alloc(bytes);
  std::memset(first, 1, bytes);
  std::memset(second, 2, bytes);
  require(static_cast<char*>(first)[bytes - 1] == 1, "blocks do not overlap");
  require(reinterpret_cast<std::uintptr_t>(first) % amrex::Arena::align_size == 0, "blocks are aligned");
  arena.free(first);
  require(arena.alloc(bytes) == first, "a block freed on a stream is the next one there");

  std::thread([&] { arena.free(second); }).join();
  require(live() >= 2 * bytes, "free by another thread does not call the pool");
  void* const third = arena.alloc(bytes);
  require(live() < 3 * bytes, "the next allocation gives the pool what another thread freed");
  arena.free(first);
  arena.free(third);

  require(tarn::memory_reserved(pool) > 0, "freed memory is cached");
  arena.free(arena.alloc(32 << 20));
  void* const grown = arena.alloc(bytes);
  std::size_t const most = bytes + (1 << 20);
  require(arena.alloc_in_place(grown, bytes + 1, most) == std::pair(grown, most),
          "alloc_in_place makes a block longer where it is");
  require(arena.alloc_in_place(grown, 1, bytes) == std::pair(grown, most),
          "alloc_in_place leaves a block that is long enough");
  auto const [moved, moved_bytes] = arena.alloc_in_place(grown, 64 << 20, 65 << 20);
  require(moved != grown && moved_bytes == 65 << 20,
          "alloc_in_place allocates where there is no memory behind the block");
  arena.free(moved);
  arena.free(grown);
  require(live() == 0, "free returns a longer block to the pool");
  require(arena.freeUnused() > 0, "freeUnused returns the number of bytes released");
  require(tarn::memory_reserved(pool) == 0, "freeUnused releases all cached memory");
  require(arena.hasFreeDeviceMemory(1), "hasFreeDeviceMemory: one byte is free");
  require(!arena.hasFreeDeviceMemory(SIZE_MAX / 2), "hasFreeDeviceMemory: the address space is not");

  bool refused = false;
  try {
    (void)arena.alloc(SIZE_MAX / 2);
  } catch (tarn::out_of_memory const&) {
    refused = true;
  }
  require(refused, "alloc throws tarn::out_of_memory");
  require(live() == 0, "nothing is live after a refusal");

  refused = false;
  int foreign = 0;
  try {
    arena.free(&foreign);
  } catch (std::runtime_error const&) {  // amrex::Abort with throw_exception
    refused = true;
  }
  require(refused, "free of an unknown pointer aborts");

  void* const last = arena.alloc(bytes);
  std::thread([&] { arena.free(last); }).join();
}

}  // namespace

int main() {
  int count = 1;
  char name[] = "test_arena";
  char* arguments[] = {name, nullptr};
  char** values = arguments;
  amrex::Initialize(count, values, true, MPI_COMM_WORLD, [] {
    amrex::ParmParse parameters("amrex");
    parameters.add("throw_exception", 1);
    parameters.add("signal_handling", 0);
  });
  int status = 0;
  try {
    pool_type const pool = tarn::sim_pages{} | tarn::pooled{} | tarn::tracked{};
    test(pool);
    require(tarn::memory_allocated(pool) == 0, "the destructor gives the pool what another thread freed");
    std::puts("passed");
  } catch (std::exception const& e) {
    std::fprintf(stderr, "FAILED: %s\n", e.what());
    status = 1;
  }
  amrex::Finalize();
  return status;
}
