// SPDX-License-Identifier: Apache-2.0
#pragma once
// tiny-cuda-nn's workspace from tarn, chosen at run time. This folder stands before tiny-cuda-nn's own in the
// include path, so that its sources find this header first; it includes theirs, with the arena and its
// functions under other names.

#define GPUMemoryArena GPUMemoryArenaPerStream
#define allocate_workspace allocate_workspace_per_stream
#define allocate_workspace_and_distribute allocate_workspace_per_stream_and_distribute
#define free_gpu_memory_arena free_gpu_memory_arena_per_stream
#define free_all_gpu_memory_arenas free_all_gpu_memory_arenas_per_stream
#include_next <tiny-cuda-nn/gpu_memory.h>
#undef GPUMemoryArena
#undef allocate_workspace
#undef allocate_workspace_and_distribute
#undef free_gpu_memory_arena
#undef free_all_gpu_memory_arenas

#include <utility>

namespace tcnn {

/// Calls of tarn_workspace.cpp. It is C++20 and alone includes tarn; tiny-cuda-nn stays C++17.
namespace tarn_workspace {
/// Whether workspace comes from a pool of tarn; otherwise from tiny-cuda-nn's own arenas, one for each
/// stream.
bool in_use() noexcept;
/// Returns the identity of a stream, which CUDA does not report while the stream is captured; 0 if the
/// program did not create it.
unsigned long long identity_of(cudaStream_t stream) noexcept;
/// Allocates for work on the stream with that identity. @throws what std::bad_alloc catches: nothing has
/// changed
uint8_t* allocate(cudaStream_t stream, unsigned long long id, size_t n_bytes);
/// Frees in the order of the stream, which may have been destroyed.
void free(cudaStream_t stream, unsigned long long id, uint8_t* data, size_t n_bytes) noexcept;
/// Gives the pool's cached memory back to the driver.
void free_cached() noexcept;
}  // namespace tarn_workspace

class GPUMemoryArena {
 public:
  /// A block of workspace, freed in the order of its stream. The training step allocates and frees it while
  /// its stream is captured; the graph is launched once, on the same stream, before the stream gets other
  /// work. The order of the stream is therefore enough, and a capture_scope, which would keep the blocks for
  /// later launches, is not needed. The identity of the stream was noted when it was created: the pool cannot
  /// ask for it while the stream is captured.
  class Allocation {
   public:
    Allocation() = default;
    Allocation(cudaStream_t stream, size_t n_bytes) : m_stream{stream} {
      if (tarn_workspace::in_use()) {
        m_stream_id = tarn_workspace::identity_of(stream);
        m_data = tarn_workspace::allocate(stream, m_stream_id, n_bytes);
        m_n_bytes = n_bytes;
      } else {
        m_from_arena = allocate_workspace_per_stream(stream, n_bytes);
        m_data = m_from_arena.data();
      }
    }
    ~Allocation() {
      if (m_n_bytes != 0) tarn_workspace::free(m_stream, m_stream_id, m_data, m_n_bytes);
    }
    Allocation(Allocation&& other) { swap(other); }
    Allocation& operator=(Allocation&& other) {
      Allocation taken{std::move(other)};
      swap(taken);
      return *this;
    }
    uint8_t* data() { return m_data; }
    const uint8_t* data() const { return m_data; }
    cudaStream_t stream() const { return m_stream; }

   private:
    void swap(Allocation& other) {
      std::swap(m_stream, other.m_stream);
      std::swap(m_stream_id, other.m_stream_id);
      std::swap(m_data, other.m_data);
      std::swap(m_n_bytes, other.m_n_bytes);
      std::swap(m_from_arena, other.m_from_arena);
    }

    cudaStream_t m_stream = nullptr;
    unsigned long long m_stream_id = 0;
    uint8_t* m_data = nullptr;
    size_t m_n_bytes = 0;  // from tarn
    GPUMemoryArenaPerStream::Allocation m_from_arena;
  };
};

inline GPUMemoryArena::Allocation allocate_workspace(cudaStream_t stream, size_t n_bytes) {
  if (n_bytes == 0) return {};
  return {stream, n_bytes};
}

/// Allocates one block for arrays of several types, each at a cache line.
template <typename... Types, typename... Sizes,
          std::enable_if_t<sizeof...(Types) == sizeof...(Sizes), int> = 0>
std::tuple<Types*...> allocate_workspace_and_distribute(cudaStream_t stream,
                                                        GPUMemoryArena::Allocation* alloc, Sizes... sizes) {
  *alloc = allocate_workspace(stream, (size_t{} + ... + align_to_cacheline(sizes * sizeof(Types))));
  size_t offset = 0;
  auto const next = [&](size_t n_bytes) {
    return alloc->data() + std::exchange(offset, offset + align_to_cacheline(n_bytes));
  };
  return std::tuple<Types*...>{reinterpret_cast<Types*>(next(sizes * sizeof(Types)))...};
}

/// The pool has nothing that belongs to one stream: its cached memory serves all.
inline void free_gpu_memory_arena(cudaStream_t stream) {
  if (!tarn_workspace::in_use()) free_gpu_memory_arena_per_stream(stream);
}
inline void free_all_gpu_memory_arenas() {
  tarn_workspace::free_cached();
  free_all_gpu_memory_arenas_per_stream();
}

}  // namespace tcnn
