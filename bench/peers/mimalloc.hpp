// SPDX-License-Identifier: Apache-2.0
#pragma once
// Microsoft's mimalloc, if it is installed. Loaded at run time: if linked, it would replace malloc in the
// whole program, and host_malloc would measure it as well.

#include <dlfcn.h>

#include <algorithm>

#include "peers/peer.hpp"

namespace tarn::bench {

/// The functions of mimalloc in use, as its mimalloc.h declares them; null if it is not installed.
struct mimalloc_calls {
  void* (*allocate)(std::size_t) = nullptr;
  void (*free)(void*) = nullptr;
  void (*collect)(bool) = nullptr;
  void (*process_info)(std::size_t*, std::size_t*, std::size_t*, std::size_t*, std::size_t*, std::size_t*,
                       std::size_t*, std::size_t*) = nullptr;

  [[nodiscard]] static mimalloc_calls const& loaded() {
    static mimalloc_calls const calls = load();
    return calls;
  }
  [[nodiscard]] bool found() const noexcept { return allocate && free && collect && process_info; }

 private:
  static mimalloc_calls load() {
    mimalloc_calls calls;
    for (char const* const file : {"libmimalloc.so.2", "libmimalloc.so.3", "libmimalloc.so"}) {
      void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) continue;
      calls.allocate = reinterpret_cast<decltype(calls.allocate)>(dlsym(library, "mi_malloc"));
      calls.free = reinterpret_cast<decltype(calls.free)>(dlsym(library, "mi_free"));
      calls.collect = reinterpret_cast<decltype(calls.collect)>(dlsym(library, "mi_collect"));
      calls.process_info = reinterpret_cast<decltype(calls.process_info)>(dlsym(library, "mi_process_info"));
      break;
    }
    return calls;
  }
};

/// mi_malloc and mi_free. Its peak is the committed memory that it reports.
class mimalloc {
 public:
  static constexpr std::string_view name = "mimalloc";
  static constexpr std::string_view about = "mi_malloc and mi_free of mimalloc, memory never touched";
  static constexpr place_of_memory where = place_of_memory::host;

  /// Checked before the pool is offered.
  [[nodiscard]] static bool installed() { return mimalloc_calls::loaded().found(); }

  explicit mimalloc(setup const& s)
      : limited_(s.capacity != 0), room_(s.capacity == 0 ? ~std::uint64_t{0} : s.capacity) {
    calls_.collect(true);
    before_ = committed();
  }

  void* allocate(std::size_t /*stream*/, std::size_t bytes) noexcept {
    if (bytes > room_) return nullptr;
    void* const block = calls_.allocate(bytes);
    if (limited_ && block != nullptr) room_ -= bytes;
    return block;
  }
  void deallocate(std::size_t /*stream*/, void* block, std::size_t bytes) noexcept {
    if (limited_ && block != nullptr) room_ += bytes;
    calls_.free(block);
  }
  [[nodiscard]] usage used() const noexcept { return {peak_, std::nullopt, 0}; }

  void sample() noexcept { peak_ = std::max(peak_, committed() - std::min(committed(), before_)); }

 private:
  std::uint64_t committed() const noexcept {
    std::size_t ms = 0, user = 0, system = 0, rss = 0, peak_rss = 0, commit = 0, peak_commit = 0, faults = 0;
    calls_.process_info(&ms, &user, &system, &rss, &peak_rss, &commit, &peak_commit, &faults);
    return commit;
  }
  mimalloc_calls const calls_ = mimalloc_calls::loaded();
  bool limited_;        // if set, calls write room_, so one thread at a time
  std::uint64_t room_;  // remaining bytes of the capacity
  std::uint64_t before_ = 0;
  std::uint64_t peak_ = 0;
};
static_assert(sampled_peer<mimalloc>);

}  // namespace tarn::bench
