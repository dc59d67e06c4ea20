// SPDX-License-Identifier: Apache-2.0
#pragma once
// Profiles: what kind of program is drawn, on what kind of machine. Each aims at something that the others do seldom.
// Above it: program, world. Below it: operation.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "operation.hpp"
#include "tarn/core/bytes.hpp"

namespace simulation {

using tarn::operator""_KiB;
using tarn::operator""_MiB;
using tarn::operator""_GiB;

/// What is watched while a program runs. The model (overlap, alignment, owner, every counter) always is.
enum class watch : std::uint8_t {
  model,     ///< the model alone: cheap
  order,     ///< and the order checker, at every access
  contents,  ///< and the bytes of every block, which must survive until it is freed
};
inline constexpr char const* watch_names[] = {"model", "order", "contents"};

struct weight {
  act what;
  unsigned share;
};

struct profile {
  char const* name;
  unsigned share;  ///< of a hundred programs
  watch watched;
  unsigned devices, pools, threads, streams, slots, owners;
  std::size_t least_capacity, most_capacity;  ///< of each device, bytes
  std::size_t largest;                        ///< usual request, bytes
  unsigned long_work;  ///< of a hundred kernels so many outlast the program, unless waited for
  unsigned changes;    ///< of a hundred steps so many are on another thread than the step before
  weight weights[24];
};

inline constexpr profile profiles[] = {
    // Calls and calls: magazines, runs, ranges.
    {"calls",
     22,
     watch::model,
     1,
     2,
     3,
     3,
     400,
     0,
     256_MiB,
     2_GiB,
     4_MiB,
     5,
     2,
     {{act::allocate, 500},
      {act::deallocate, 360},
      {act::allocate_sync, 20},
      {act::look, 4},
      {act::trim, 1},
      {act::end_thread, 1},
      {act::reset_peaks, 1},
      {act::open_scope, 2},
      {act::close_scope, 2},
      {act::pass_time, 10}}},
    // Blocks go from stream to stream, and memory is short.
    {"order",
     21,
     watch::order,
     1,
     1,
     2,
     6,
     60,
     0,
     48_MiB,
     160_MiB,
     8_MiB,
     30,
     4,
     {{act::allocate, 300},
      {act::deallocate, 200},
      {act::allocate_sync, 6},
      {act::use, 250},
      {act::copy, 30},
      {act::order, 20},
      {act::synchronize, 3},
      {act::pass_time, 20},
      {act::trim, 2},
      {act::look, 4}}},
    // Streams come and go, mostly under a handle that was another's.
    {"streams",
     13,
     watch::order,
     1,
     1,
     3,
     8,
     60,
     4,
     48_MiB,
     200_MiB,
     4_MiB,
     30,
     4,
     {{act::allocate, 300},
      {act::deallocate, 150},
      {act::allocate_sync, 6},
      {act::use, 150},
      {act::order, 10},
      {act::synchronize, 2},
      {act::pass_time, 10},
      {act::make_stream, 40},
      {act::trim, 2},
      {act::look, 4},
      {act::make_buffer, 10},
      {act::fill_buffer, 10},
      {act::drop_buffer, 10},
      {act::empty_cache, 1}}},
    // Threads start and end; what one allocates another frees.
    {"threads",
     4,
     watch::order,
     1,
     2,
     8,
     4,
     160,
     6,
     64_MiB,
     512_MiB,
     2_MiB,
     15,
     12,
     {{act::allocate, 300},
      {act::deallocate, 250},
      {act::allocate_sync, 10},
      {act::use, 80},
      {act::order, 10},
      {act::synchronize, 2},
      {act::pass_time, 20},
      {act::end_thread, 12},
      {act::trim, 2},
      {act::empty_cache, 1},
      {act::look, 5},
      {act::make_buffer, 6},
      {act::drop_buffer, 6},
      {act::make_pool, 1},
      {act::open_scope, 2},
      {act::close_scope, 2}}},
    // Memory runs out; others take it; the limit moves.
    {"pressure",
     13,
     watch::order,
     1,
     2,
     2,
     4,
     80,
     4,
     24_MiB,
     96_MiB,
     12_MiB,
     20,
     4,
     {{act::allocate, 400},
      {act::deallocate, 160},
      {act::allocate_sync, 12},
      {act::use, 80},
      {act::pass_time, 15},
      {act::trim, 4},
      {act::empty_cache, 2},
      {act::drain, 2},
      {act::take_memory, 8},
      {act::set_limit, 6},
      {act::look, 6},
      {act::make_pool, 2},
      {act::make_buffer, 8},
      {act::resize_buffer, 12},
      {act::drop_buffer, 6},
      {act::end_thread, 1}}},
    // Large blocks on streams that come and go: free pages are put together in views, and views make room.
    {"views",
     5,
     watch::order,
     1,
     1,
     2,
     6,
     16,
     0,
     48_MiB,
     320_MiB,
     24_MiB,
     25,
     4,
     {{act::allocate, 400},
      {act::deallocate, 200},
      {act::use, 60},
      {act::order, 4},
      {act::pass_time, 30},
      {act::make_stream, 40},
      {act::trim, 2},
      {act::allocate_sync, 4},
      {act::synchronize, 1},
      {act::look, 2}}},
    // Graphs are captured and launched while everything else goes on.
    {"capture",
     11,
     watch::order,
     1,
     1,
     2,
     5,
     60,
     0,
     64_MiB,
     256_MiB,
     6_MiB,
     20,
     4,
     {{act::allocate, 300},
      {act::deallocate, 200},
      {act::use, 200},
      {act::order, 20},
      {act::pass_time, 20},
      {act::begin_capture, 12},
      {act::end_capture, 10},
      {act::launch_graph, 16},
      {act::drop_graph, 12},
      {act::trim, 1},
      {act::look, 3},
      {act::allocate_sync, 4},
      {act::synchronize, 2},
      {act::make_stream, 6}}},
    // Owners: buffers grow, move and are copied from stream to stream.
    {"owners",
     2,
     watch::contents,
     1,
     2,
     2,
     4,
     24,
     24,
     48_MiB,
     256_MiB,
     3_MiB,
     15,
     4,
     {{act::allocate, 60},
      {act::deallocate, 60},
      {act::use, 40},
      {act::make_buffer, 80},
      {act::resize_buffer, 120},
      {act::move_buffer, 80},
      {act::copy_buffer, 60},
      {act::fill_buffer, 100},
      {act::drop_buffer, 40},
      {act::make_pointer, 60},
      {act::pass_time, 15},
      {act::synchronize, 2},
      {act::make_stream, 4},
      {act::trim, 2},
      {act::end_thread, 1},
      {act::make_pool, 1},
      {act::look, 5}}},
    // Every byte that is written must be read again.
    {"contents",
     2,
     watch::contents,
     1,
     2,
     3,
     5,
     60,
     4,
     48_MiB,
     256_MiB,
     4_MiB,
     20,
     4,
     {{act::allocate, 300},
      {act::deallocate, 180},
      {act::allocate_sync, 8},
      {act::use, 160},
      {act::copy, 20},
      {act::order, 10},
      {act::synchronize, 2},
      {act::pass_time, 20},
      {act::make_stream, 3},
      {act::trim, 3},
      {act::empty_cache, 1},
      {act::drain, 1},
      {act::look, 4},
      {act::end_thread, 2},
      {act::make_buffer, 10},
      {act::resize_buffer, 10},
      {act::fill_buffer, 10},
      {act::drop_buffer, 5},
      {act::take_memory, 2}}},
    // Two devices, each with its streams and pools.
    {"devices",
     7,
     watch::order,
     2,
     4,
     3,
     4,
     120,
     8,
     48_MiB,
     256_MiB,
     4_MiB,
     20,
     6,
     {{act::allocate, 300},
      {act::deallocate, 200},
      {act::allocate_sync, 8},
      {act::use, 120},
      {act::copy, 20},
      {act::order, 20},
      {act::synchronize, 2},
      {act::pass_time, 20},
      {act::make_stream, 6},
      {act::trim, 2},
      {act::look, 4},
      {act::make_buffer, 12},
      {act::copy_buffer, 12},
      {act::resize_buffer, 6},
      {act::drop_buffer, 8},
      {act::end_thread, 2},
      {act::make_pool, 1}}},
};

inline constexpr std::size_t profile_count = sizeof profiles / sizeof profiles[0];

/// Which profile a seed draws from where none is asked for.
[[nodiscard]] inline profile const& profile_of(std::uint64_t seed) noexcept {
  auto left = static_cast<unsigned>(seed * 37 % 100);  // neighbours differ
  for (profile const& p : profiles) {
    if (left < p.share) return p;
    left -= p.share;
  }
  return profiles[0];
}
[[nodiscard]] inline profile const* find_profile(std::string_view name) noexcept {
  for (profile const& p : profiles) {
    if (name == p.name) return &p;
  }
  return nullptr;
}

}  // namespace simulation
