// SPDX-License-Identifier: Apache-2.0
#pragma once
// How processes, threads, contexts and plug-ins end while pools and owners live. Each case is a separate
// process, which endings.py runs. `Kit` is the device: a pool's type, the sizes to use, and how its context
// is lost.

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#include "tarn/debug/with_history.hpp"
#include "tarn/tarn.hpp"

namespace tarn_test {

using namespace tarn;

/// The plug-in's functions (ending_plugin.hpp).
struct plugin_calls {
  bool (*begin)();
  bool (*use)();
  void (*end)();
  void (*hand_over)(void* to);
};

/// An exit status: the case failed.
inline constexpr int found_wrong = 3;

inline int said(bool fine, char const* what) {
  std::puts(what);
  return fine ? 0 : found_wrong;
}

template <class Kit>
struct endings {
  using memory_type = typename Kit::memory_type;
  using buffer = device_buffer<int, memory_type>;

  /// A pool that the process never destroys explicitly, with blocks that it never frees.
  static memory_type& process_pool() {
    static memory_type memory = Kit::memory();
    return memory;
  }

  static int exit_with_a_live_pool(char const*) {
    for (int i = 0; i < 100; ++i) (void)process_pool().allocate(stream_ref{}, 1000);
    (void)process_pool().allocate(stream_ref{}, 5_MiB);
    std::puts("leaving");
    std::exit(0);
  }
  static int owners_with_static_storage(char const*) {
    static buffer made_first(process_pool(), 1000, stream_ref{});
    static device_buffer<int, memory_type> made_second = buffer(process_pool(), 2'000'000, stream_ref{});
    static auto one = make_device<int>(process_pool(), stream_ref{});
    static pinned_buffer<int, typename Kit::pinned_type> pinned(Kit::pinned(), 1000);
    return said(made_first.size() + made_second.size() + pinned.size() + one.size() == 2'002'001,
                "leaving main");
  }
  static int quick_exit_with_a_live_pool(char const*) {
    (void)process_pool().allocate(stream_ref{}, 5_MiB);
    std::puts("leaving");
    std::fflush(stdout);
    std::quick_exit(0);
  }
  static int exit_while_threads_sleep(char const*) {
    std::atomic<int> ready{0};
    for (int t = 0; t < 4; ++t) {
      std::thread([&ready] {
        void* const p = process_pool().allocate(stream_ref{}, 1000);
        process_pool().deallocate(stream_ref{}, p, 1000);
        ++ready;
        for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
      }).detach();
    }
    while (ready != 4) std::this_thread::yield();
    std::puts("leaving");
    std::exit(0);
  }
  /// The main thread's caches are destroyed before a static owner: it frees without one.
  static int thread_local_owners(char const*) {
    memory_type& memory = process_pool();
    int wrong = 0;
    std::thread([&] {
      thread_local buffer late(memory);  // created before this thread's cache: destroyed after it
      late = buffer(memory, 1000, stream_ref{});
      wrong += late.size() == 1000 ? 0 : 1;
    }).join();
    (void)memory.trim(0);
    bool const fine = wrong == 0 && memory_allocated(memory) == 0 && memory_reserved(memory) == 0;
    return said(fine, "the thread's owner is gone");
  }

  static int context_destroyed(char const*) {
    memory_type memory = Kit::memory();
    buffer owner(memory, 1000, stream_ref{});
    auto one = make_device<int>(memory, stream_ref{});
    void* const p = memory.allocate(stream_ref{}, 5_MiB);
    Kit::lose_context();
    memory.deallocate(stream_ref{}, p, 5_MiB);
    one.reset();
    bool reported = false;
    try {
      (void)memory.allocate(stream_ref{}, 40_GiB);
      reported = Kit::context_comes_back;
    } catch (cuda_error const& error) {
      reported = std::string_view(error.what()).find(error.name()) != std::string_view::npos;
    } catch (out_of_memory const&) {
      reported = true;
    }
    return said(reported, "the context is gone");
  }
  static int context_destroyed_before_exit(char const*) {
    static buffer owner(process_pool(), 1000, stream_ref{});
    (void)process_pool().allocate(stream_ref{}, 3_MiB);
    Kit::lose_context();
    return said(true, "leaving main");
  }

  /// The context of a device that is not current is lost: state remembered for it must not be used.
  static int context_reset_while_another_device_is_current(char const*) {
    memory_type memory = Kit::memory();
    Kit::leave_device();  // if there is another device
    void* const p = memory.allocate(stream_ref{}, 5_MiB);
    {
      buffer const owner(memory, 1000, stream_ref{});
      Kit::come_back();
      Kit::lose_context();
      Kit::leave_device();
    }
    memory.deallocate(stream_ref{}, p, 5_MiB);
    (void)memory.trim(0);
    bool fine = false;
    try {
      std::vector<int> const numbers(1000, 7);
      std::vector<int> back(numbers.size());
      Kit::come_back();
      memory_type fresh = Kit::memory();
      Kit::leave_device();
      buffer copied(fresh, numbers.size(), stream_ref{});
      copied.copy_from(numbers);
      copied.copy_to_sync(back);
      fine = Kit::context_comes_back && back == numbers;
    } catch (cuda_error const& error) {
      fine = !Kit::context_comes_back && error.kind() == failure::unloading;
    }
    return said(fine, "the reset was detected");
  }

  static int status_of(pid_t child) {
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
    return WEXITSTATUS(status);
  }
  /// The child runs the destructors of its parent's pool.
  static int fork_and_the_child_exits(char const*) {
    memory_type& memory = process_pool();
    static buffer owner(memory, 1000, stream_ref{});
    std::fflush(stdout);
    pid_t const child = ::fork();
    if (child == 0) std::exit(0);
    bool const fine = status_of(child) == 0;
    buffer after(memory, 2'000'000, stream_ref{});
    after.fill(std::byte{1});
    return said(fine && after.size() == 2'000'000, "the parent continues");
  }
  /// Calls `act`; returns whether it was refused because the pool was made before the fork.
  template <class Act>
  static bool is_refused_in_child(Act const& act) {
    try {
      act();
    } catch (cuda_error const& error) {
      return error.kind() == failure::forked;
    }
    return false;
  }
  static int fork_and_the_child_uses_the_host(char const*) {
    memory_type& memory = process_pool();
    buffer owner(memory, 1000, stream_ref{});
    auto host = host_memory{} | pooled{} | tracked{};
    void* const p = host.allocate_sync(1000);
    host.deallocate_sync(host.allocate_sync(1000), 1000);  // in this thread's cache
    std::fflush(stdout);
    pid_t const child = ::fork();
    if (child == 0) {
      auto own = host_memory{} | pooled{} | tracked{};
      void* const q = own.allocate_sync(1_MiB);
      std::memset(q, 1, 1_MiB);
      own.deallocate_sync(q, 1_MiB);
      host.deallocate_sync(p, 1000);  // the parent's pool: its memory is not touched
      bool const refused = is_refused_in_child([&] { (void)host.allocate_sync(1000); }) &&
                           is_refused_in_child([&] { (void)host.allocate_sync(100_KiB); });
      ::_exit(memory_allocated(own) == 0 && refused && host.trim(0) == 0 ? 0 : found_wrong);
    }
    bool const fine = status_of(child) == 0;
    bool const kept = memory_allocated(host) != 0;
    host.deallocate_sync(p, 1000);
    return said(fine && kept, "the parent continues");
  }

  /// Threads that allocate and free without a pause, each with its own blocks and with blocks allocated by
  /// another thread.
  template <class Memory>
  class busy_threads {
   public:
    explicit busy_threads(Memory& memory, std::size_t largest) {
      for (unsigned t = 1; t <= 4; ++t) {
        threads_.emplace_back([this, t, largest, &memory] {
          std::vector<std::pair<void*, std::size_t>> blocks;
          auto const drop = [&](std::size_t at) {
            memory.deallocate(stream_ref{}, blocks[at].first, blocks[at].second);
            blocks[at] = blocks.back();
            blocks.pop_back();
          };
          for (std::uint32_t i = t; !over_; i = i * 1664525 + 1013904223) {
            if (blocks.size() < 20 && (i >> 16) % 2 == 0) {
              std::size_t const bytes = (i >> 8) % (i % 64 == t ? largest : 4000) + 1;
              blocks.emplace_back(memory.allocate(stream_ref{}, bytes), bytes);
            } else if (!blocks.empty()) {
              drop((i >> 8) % blocks.size());
            }
            if (t == 4 && i % 256 == 4) memory.empty_cache();
            ++turns_;
          }
          while (!blocks.empty()) drop(0);
        });
      }
      while (turns_ < 1000) std::this_thread::yield();
    }
    ~busy_threads() {
      over_ = true;
      for (auto& t : threads_) t.join();
    }

   private:
    std::atomic<bool> over_{false};
    std::atomic<unsigned> turns_{0};
    std::vector<std::thread> threads_;
  };

  /// Forks `count` children while threads are inside the pool, and calls `child(number)` in each. Returns how
  /// many did not end with status 0 within ten seconds.
  template <class Child>
  static int bad_children(int count, Child const& child) {
    int bad = 0;
    for (int i = 0; i < count; ++i) {
      ::usleep(300);
      pid_t const pid = ::fork();
      if (pid == 0) {
        (void)::alarm(10);
        ::_exit(child(i) ? 0 : found_wrong);
      }
      bad += status_of(pid) == 0 ? 0 : 1;
    }
    return bad;
  }

  template <class Make>
  static int bad_children_of(Make const& make, char const* name, int count = 20) {
    using made = decltype(make());
    std::unique_ptr<made> memory(new made(make()));
    void* const kept = memory->allocate_sync(1000);
    int bad = 0;
    {
      busy_threads<made> const threads(*memory, 300'000);
      bad = bad_children(count, [&](int i) {
        // The parent's pool refuses, and each call of it returns.
        bool refused = true;
        for (std::size_t const bytes : {std::size_t{100}, std::size_t{40'000}, std::size_t{1'500'000}}) {
          refused = refused && is_refused_in_child([&] { (void)memory->allocate(stream_ref{}, bytes); }) &&
                    is_refused_in_child([&] { (void)memory->allocate_sync(bytes); });
        }
        memory->deallocate_sync(kept, 1000);
        memory->empty_cache();
        (void)memory->owns(memory.get());
        if (i % 4 == 1) {  // a thread of the child's own
          std::thread([&] {
            refused = refused && is_refused_in_child([&] { (void)memory->allocate_sync(500); });
          }).join();
        }
        if (i % 4 == 2) memory.reset();
        // One that the child makes works.
        made own(make());
        std::vector<void*> blocks;
        for (int k = 0; k < 100; ++k) blocks.push_back(own.allocate_sync(1000));
        for (void* const p : blocks) own.deallocate_sync(p, 1000);
        void* const large = own.allocate(stream_ref{}, 1'500'000);
        std::memset(large, i, 1'500'000);
        own.deallocate(stream_ref{}, large, 1'500'000);
        std::thread([&] { own.deallocate_sync(own.allocate_sync(500), 500); }).join();
        own.empty_cache();
        return refused;
      });
    }
    memory->deallocate_sync(kept, 1000);
    if (bad != 0) std::fprintf(stderr, "%s: %d of %d children\n", name, bad, count);
    return bad;
  }
  static int fork_with_threads_inside(char const*) {
    // The calls of other threads at the fork are never finished in the child: unfreed blocks are expected
    // there.
    (void)set_misuse_handler([](misuse const& m) {
      if (m.kind() != misuse_kind::leak) std::abort();
    });
    int bad = 0;
    bad += bad_children_of([] { return host_memory{} | pooled{}; }, "pooled");
    bad += bad_children_of([] { return host_memory{} | pooled{} | pooled{}; }, "pooled over pooled");
    bad += bad_children_of([] { return host_memory{} | pooled{} | tracked{}; }, "tracked", 60);
    bad += bad_children_of([] { return host_memory{} | pooled{} | limited{1_GiB}; }, "limited");
    bad += bad_children_of([] { return host_memory{} | pooled{} | traced{"/dev/null"}; }, "traced");
    bad += bad_children_of([] { return host_memory{} | pooled{} | with_history{.history = 100}; },
                           "with_history");
    bad += bad_children_of([] { return host_memory{} | pooled{} | checked{.quarantine_blocks = 16}; },
                           "checked");
    bad += bad_children_of([] { return host_memory{} | pooled{} | fenced{}; }, "fenced");
    bad += bad_children_of([] { return host_memory{} | pooled{} | poisoned{}; }, "poisoned");
    bad += bad_children_of(
        [] {
          return host_memory{} | pooled{} | limited{100'000} | fallback_to(host_memory{} | pooled{}) |
                 tracked{};
        },
        "fallback_to");
    bad += bad_children_of(
        [] {
          return host_memory{} | retry_on_oom{[](out_of_memory const&, unsigned) { return false; }} |
                 pooled{};
        },
        "retry_on_oom");
    return said(bad == 0, "no child was blocked");
  }
  /// A child of a process with device memory: calls are refused, silently where nothing can be thrown, and
  /// the parent continues.
  static int fork_with_threads_inside_the_device(char const*) {
    auto memory = std::make_unique<memory_type>(Kit::memory());
    std::vector<int> const numbers(100'000, 7);
    buffer kept(*memory, numbers.size(), stream_ref{});
    kept.copy_from(numbers);
    int bad = 0;
    {
      busy_threads<memory_type> const threads(*memory, 3'000'000);
      bad = bad_children(60, [&](int i) {
        int refused = 0;
        for (std::size_t const bytes : {std::size_t{100}, std::size_t{40'000}, std::size_t{3'000'000}}) {
          refused += is_refused_in_child([&] { (void)memory->allocate(stream_ref{}, bytes); }) ? 1 : 0;
          refused += is_refused_in_child([&] { (void)memory->allocate_sync(bytes); }) ? 1 : 0;
        }
        std::size_t const given = memory->trim(0);
        if (i % 2 == 0) {
          buffer const gone(std::move(kept));  // frees nothing
        }
        if (i % 3 == 0) memory.reset();
        return refused == 6 && given == 0;
      });
    }
    std::vector<int> back(numbers.size());
    kept.copy_to_sync(back);
    return said(bad == 0 && back == numbers, "every child was refused");
  }
  /// The handler runs under the pool's growth lock: that lock stays held in the child.
  static int fork_in_a_handler(char const*) {
    static int bad = 0;
    static auto other = host_memory{} | pooled{} | tracked{};
    auto memory = host_memory{} | limited{4_MiB} | retry_on_oom{[](out_of_memory const&, unsigned attempt) {
                    bad += bad_children(1, [](int) {
                      auto own = host_memory{} | pooled{} | tracked{};
                      own.deallocate_sync(own.allocate_sync(1000), 1000);
                      return is_refused_in_child([&] { (void)other.allocate_sync(1000); });
                    });
                    return attempt < 2;
                  }} |
                  pooled{};
    bool refused = false;
    try {
      (void)memory.allocate_sync(100_MiB);
    } catch (out_of_memory const&) {
      refused = true;
    }
    memory.deallocate_sync(memory.allocate_sync(1000), 1000);
    return said(bad == 0 && refused, "the child of a handler works");
  }
  /// A lock that its owner holds until after the fork: the fork proceeds without it, and the child's pool
  /// refuses calls.
  static int fork_of_a_thread_that_never_leaves(char const*) {
    static std::atomic<int> step{0};
    auto memory = host_memory{} | limited{4_MiB} | retry_on_oom{[](out_of_memory const&, unsigned) {
                    if (step == 0) step = 1;
                    while (step != 2) std::this_thread::yield();
                    return false;
                  }} |
                  pooled{};
    std::thread inside([&] {
      try {
        (void)memory.allocate_sync(100_MiB);
      } catch (out_of_memory const&) {
      }
    });
    while (step != 1) std::this_thread::yield();
    int const bad =
        bad_children(1, [&](int) { return is_refused_in_child([&] { (void)memory.allocate_sync(1000); }); });
    step = 2;
    inside.join();
    memory.deallocate_sync(memory.allocate_sync(1000), 1000);
    return said(bad == 0, "the child is refused");
  }

  static int threads_outlive_the_pool(char const*) {
    std::atomic<int> used{0};
    std::atomic<bool> over{false};
    std::vector<std::thread> threads;
    std::optional<memory_type> memory(Kit::memory());
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        void* const p = memory->allocate(stream_ref{}, 1000);
        memory->deallocate(stream_ref{}, p, 1000);  // stays in this thread's magazine
        ++used;
        while (!over) std::this_thread::yield();
        memory_type other = Kit::memory();
        void* const q = other.allocate(stream_ref{}, 1000);
        other.deallocate(stream_ref{}, q, 1000);
      });
    }
    while (used != 4) std::this_thread::yield();
    memory.reset();
    over = true;
    for (auto& t : threads) t.join();
    return said(true, "the threads continued");
  }
  static int pools_outlive_threads(char const*) {
    memory_type memory = Kit::memory();
    for (int round = 0; round < 50; ++round) {
      std::vector<std::thread> threads;
      for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
          std::vector<void*> blocks;
          for (int i = 0; i < 20; ++i) blocks.push_back(memory.allocate(stream_ref{}, 1000));
          for (void* p : blocks) memory.deallocate(stream_ref{}, p, 1000);
        });
      }
      for (auto& t : threads) t.join();
    }
    std::size_t const reserved = memory_reserved(memory);
    (void)memory.trim(0);
    bool const fine = memory_allocated(memory) == 0 && memory_reserved(memory) == 0 && reserved <= 16_MiB;
    return said(fine, "the threads left no memory");
  }

  /// An exception of a user's handler reaches the caller, and nothing has changed.
  static int exhaustion_handler_throws(char const*) {
    auto memory = Kit::memory() | retry_on_oom{[](out_of_memory const&, unsigned attempt) -> bool {
                    if (attempt == 2) throw std::runtime_error("the handler's own");
                    return true;
                  }};
    buffer owner(Kit::memory(), 1000, stream_ref{});
    std::size_t const before = memory_allocated(memory);
    bool reached = false;
    try {
      (void)memory.allocate(stream_ref{}, 1024_TiB);
    } catch (std::runtime_error const& error) {
      reached = std::string_view(error.what()) == "the handler's own";
    }
    void* const p = memory.allocate(stream_ref{}, 1000);
    memory.deallocate(stream_ref{}, p, 1000);
    return said(reached && memory_allocated(memory) == before, "the caller has the handler's exception");
  }
  static int misuse_ends_the_program(char const*) {
    memory_type memory = Kit::memory();
    void* const p = memory.allocate(stream_ref{}, 5_MiB);
    memory.deallocate(stream_ref{}, p, 5_MiB);
    memory.deallocate(stream_ref{}, p, 5_MiB);
    std::puts("went on");
    return 0;
  }
  static int misuse_handler_goes_on(char const*) {
    static int reported = 0;
    (void)set_misuse_handler([](misuse const&) { ++reported; });
    memory_type memory = Kit::memory();
    void* const p = memory.allocate(stream_ref{}, 5_MiB);
    memory.deallocate(stream_ref{}, p, 5_MiB);
    memory.deallocate(stream_ref{}, p, 5_MiB);
    return said(reported == 1 && memory_allocated(memory) != 1, "the handler was called");
  }
  /// An owner that is never destroyed keeps its resource alive; an object with static storage is destroyed
  /// before the report.
  static int leaks_are_reported_at_exit(char const*) {
    static auto memory = Kit::memory() | checked{.leaks_at_exit = true};
    static auto fine = make_device<char[]>(memory, 1000, stream_ref{});
    auto const& first = *new auto(make_device<char[]>(memory, 2000, stream_ref{}));
    auto const& second = *new auto(make_device<char[]>(memory, 3000, stream_ref{}));
    return said(first && second && fine, "two owners were forgotten");
  }
  static int misuse_handler_throws(char const*) {
    (void)set_misuse_handler([](misuse const& m) { throw std::runtime_error(m.what()); });
    memory_type memory = Kit::memory();
    void* const p = memory.allocate(stream_ref{}, 5_MiB);
    memory.deallocate(stream_ref{}, p, 5_MiB);
    memory.deallocate(stream_ref{}, p, 5_MiB);
    std::puts("went on");
    return 0;
  }

  static plugin_calls load(void* library) {
    plugin_calls calls;
    calls.begin = reinterpret_cast<bool (*)()>(::dlsym(library, "plugin_begin"));
    calls.use = reinterpret_cast<bool (*)()>(::dlsym(library, "plugin_use"));
    calls.end = reinterpret_cast<void (*)()>(::dlsym(library, "plugin_end"));
    calls.hand_over = reinterpret_cast<void (*)(void*)>(::dlsym(library, "plugin_hand_over"));
    return calls;
  }
  enum class last_call { made, left_out };
  /// Threads that have magazines of a plug-in's pool outlive the plug-in; with `left_out` the pool is the
  /// plug-in's static object, and is destroyed with it.
  static int close_plugin(char const* path, last_call end) {
    void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", ::dlerror());
      return found_wrong;
    }
    plugin_calls const calls = load(library);
    if (calls.begin == nullptr || calls.use == nullptr || calls.end == nullptr || !calls.begin())
      return found_wrong;
    std::atomic<int> used{0};
    std::atomic<bool> over{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        used += calls.use() ? 1 : 100;
        while (!over) std::this_thread::yield();
      });
    }
    while (used < 4) std::this_thread::yield();
    bool const fine = used == 4 && calls.use();
    if (end == last_call::made) calls.end();
    bool const closed = ::dlclose(library) == 0;
    over = true;
    for (auto& t : threads) t.join();
    void* const again = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    bool const works = again != nullptr && load(again).begin() && load(again).use();
    return said(fine && closed && works, "the plug-in was closed and opened again");
  }
  static int plugin_closed_with_live_threads(char const* path) { return close_plugin(path, last_call::made); }
  static int plugin_closed_with_a_live_pool(char const* path) {
    return close_plugin(path, last_call::left_out);
  }

  /// Once all threads that used it have ended, the plug-in is really unloaded, and its pool with it.
  static int plugin_unloaded_with_a_live_pool(char const* path) {
    void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", ::dlerror());
      return found_wrong;
    }
    bool used = false;
    std::thread([&] { used = load(library).begin() && load(library).use(); }).join();
    bool const closed = ::dlclose(library) == 0;
    bool const unloaded = ::dlopen(path, RTLD_NOW | RTLD_NOLOAD) == nullptr;
    return said(used && closed && (unloaded || !Kit::must_unload), "the plug-in is unloaded");
  }

  /// The last copy of the handle on a plug-in's pool is dropped outside of it.
  static int plugin_pool_ended_by_the_program(char const* path) {
    void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", ::dlerror());
      return found_wrong;
    }
    bool fine = false;
    std::thread([&] {
      plugin_calls const calls = load(library);
      std::optional<typename Kit::memory_type> memory;
      fine = calls.begin();
      calls.hand_over(&memory);
      void* const p = memory->allocate(stream_ref{}, 3_MiB);
      memory->deallocate(stream_ref{}, p, 3_MiB);
      fine = fine && p != nullptr;
    }).join();
    bool const closed = ::dlclose(library) == 0;
    ::pid_t const child = ::fork();
    if (child == 0) ::_exit(0);
    int status = -1;
    bool const ended = ::waitpid(child, &status, 0) == child && status == 0;
    return said(fine && closed && ended, "the program ended the plug-in's pool");
  }

  static int run(int argc, char** argv) {
    struct ending {
      char const* name;
      int (*run)(char const* plugin);
    };
    static constexpr ending all[] = {
        {"exit_with_a_live_pool", exit_with_a_live_pool},
        {"owners_with_static_storage", owners_with_static_storage},
        {"quick_exit_with_a_live_pool", quick_exit_with_a_live_pool},
        {"exit_while_threads_sleep", exit_while_threads_sleep},
        {"thread_local_owners", thread_local_owners},
        {"context_destroyed", context_destroyed},
        {"context_destroyed_before_exit", context_destroyed_before_exit},
        {"context_reset_while_another_device_is_current", context_reset_while_another_device_is_current},
        {"fork_and_the_child_exits", fork_and_the_child_exits},
        {"fork_and_the_child_uses_the_host", fork_and_the_child_uses_the_host},
        {"fork_with_threads_inside", fork_with_threads_inside},
        {"fork_with_threads_inside_the_device", fork_with_threads_inside_the_device},
        {"fork_in_a_handler", fork_in_a_handler},
        {"fork_of_a_thread_that_never_leaves", fork_of_a_thread_that_never_leaves},
        {"threads_outlive_the_pool", threads_outlive_the_pool},
        {"pools_outlive_threads", pools_outlive_threads},
        {"exhaustion_handler_throws", exhaustion_handler_throws},
        {"misuse_ends_the_program", misuse_ends_the_program},
        {"misuse_handler_goes_on", misuse_handler_goes_on},
        {"misuse_handler_throws", misuse_handler_throws},
        {"leaks_are_reported_at_exit", leaks_are_reported_at_exit},
        {"plugin_closed_with_live_threads", plugin_closed_with_live_threads},
        {"plugin_closed_with_a_live_pool", plugin_closed_with_a_live_pool},
        {"plugin_unloaded_with_a_live_pool", plugin_unloaded_with_a_live_pool},
        {"plugin_pool_ended_by_the_program", plugin_pool_ended_by_the_program},
    };
    for (ending const& e : all) {
      if (argc == 1) std::puts(e.name);
      if (argc > 1 && std::string_view(argv[1]) == e.name) {
        if (!Kit::is_here()) return 77;
        return e.run(argc > 2 ? argv[2] : "");
      }
    }
    return argc == 1 ? 0 : 2;
  }
};

}  // namespace tarn_test
