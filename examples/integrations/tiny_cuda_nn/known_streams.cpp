// SPDX-License-Identifier: Apache-2.0
#include "known_streams.hpp"

#include <mutex>
#include <unordered_map>

namespace {

struct table {
  std::mutex mutex;
  std::unordered_map<cudaStream_t, unsigned long long> ids;
};
/// Never destroyed: streams are destroyed until the very end of a process.
table& known() {
  static table* const all = new table;
  return *all;
}

/// Notes a stream that was just created, which no capture has begun on. One that cannot be noted is used as a
/// bare handle.
cudaError_t note(cudaError_t created, cudaStream_t const* stream) noexcept {
  unsigned long long id = 0;
  if (created != cudaSuccess || cudaStreamGetId(*stream, &id) != cudaSuccess) return created;
  try {
    table& all = known();
    std::lock_guard const guard(all.mutex);
    all.ids[*stream] = id;
  } catch (...) {
  }
  return created;
}

}  // namespace

// The linker renames each reference to a function to __wrap_ and its name, and __real_ and its name to the
// function.
extern "C" {
cudaError_t __real_cudaStreamCreate(cudaStream_t* stream);
cudaError_t __real_cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags);
cudaError_t __real_cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority);
cudaError_t __real_cudaStreamDestroy(cudaStream_t stream);

cudaError_t __wrap_cudaStreamCreate(cudaStream_t* stream) {
  return note(__real_cudaStreamCreate(stream), stream);
}
cudaError_t __wrap_cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return note(__real_cudaStreamCreateWithFlags(stream, flags), stream);
}
cudaError_t __wrap_cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  return note(__real_cudaStreamCreateWithPriority(stream, flags, priority), stream);
}
cudaError_t __wrap_cudaStreamDestroy(cudaStream_t stream) {
  {  // before it is destroyed: its handle may be the next stream's at once
    table& all = known();
    std::lock_guard const guard(all.mutex);
    all.ids.erase(stream);
  }
  return __real_cudaStreamDestroy(stream);
}
}

unsigned long long tarn_clients::identity_of(cudaStream_t stream) noexcept {
  table& all = known();
  std::lock_guard const guard(all.mutex);
  auto const found = all.ids.find(stream);
  return found == all.ids.end() ? 0 : found->second;
}
