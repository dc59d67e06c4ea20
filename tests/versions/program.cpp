// SPDX-License-Identifier: Apache-2.0
// A program with two versions of tarn, each in a shared library: linked with both, or, with two paths as
// arguments, opened by dlopen with RTLD_LOCAL. It includes no header of tarn. Prints the first check that
// fails.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <thread>

#include "part.hpp"

namespace {

void require(bool holds, char const* what) {
  if (holds) return;
  std::fprintf(stderr, "FAILED: %s\n", what);
  std::_Exit(1);
}

/// Whether a forked child returns true from `f`, within 20 s.
template <class F>
bool child_says(F const& f) {
  ::pid_t const child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::_exit(f() ? 0 : 1);
  }
  int status = -1;
  return ::waitpid(child, &status, 0) == child && status == 0;
}

void test_pools(part_calls const& a, part_calls const& b) {
  std::array<bool, 2> fine{};
  std::thread other([&] { fine[0] = a.run_threads(); });
  fine[1] = b.run_threads();
  other.join();
  require(fine[0] && fine[1], "threads of both versions use their pools at once");
  for (int i = 0; i < 50; ++i) require(a.use() && b.use(), "one thread uses the pools of both in turn");
}

void test_forks(part_calls const& a, part_calls const& b) {
  std::array<bool, 2> fine{};
  std::thread of_a([&] { fine[0] = a.run_threads(); });
  std::thread of_b([&] { fine[1] = b.run_threads(); });
  for (int i = 0; i < 10; ++i)
    require(child_says([&] { return a.works_in_child() && b.works_in_child(); }),
            "both versions work in a forked child");
  of_a.join();
  of_b.join();
  require(fine[0] && fine[1], "threads of both versions go on after a fork");
}

template <class Standard>
bool is_caught(part_calls const& part, tarn_error which) {
  try {
    part.raise(which);
  } catch (Standard const& e) {
    return std::strlen(e.what()) > 10;
  }
  return false;
}
void test_errors(part_calls const& a, part_calls const& b) {
  for (part_calls const* part : {&a, &b}) {
    require(is_caught<std::bad_alloc>(*part, tarn_error::no_memory),
            "out_of_memory is caught as std::bad_alloc");
    require(is_caught<std::length_error>(*part, tarn_error::overflow),
            "length_error is caught as std::length_error");
    require(is_caught<std::invalid_argument>(*part, tarn_error::alignment),
            "bad_alignment is caught as std::invalid_argument");
    require(is_caught<std::exception>(*part, tarn_error::captured), "cuda_error is caught as std::exception");
    part_calls const& other = part == &a ? b : a;
    for (auto const e :
         {tarn_error::no_memory, tarn_error::overflow, tarn_error::alignment, tarn_error::captured}) {
      require(part->catch_from(part->raise, e) == caught_as::own_type,
              "an error has its type in its own version");
      require(part->catch_from(other.raise, e) == caught_as::standard_type,
              "an error of another version is caught by its standard type");
      require(part->pass_through(other.raise, e), "an error of another version passes through a pool");
    }
  }
}

void test_captures(part_calls const& a, part_calls const& b, bool (&hidden)()) {
  require(!a.sees_capture() && !b.sees_capture() && b.may_mark_device(), "no capture is open");
  require(a.begin_capture(), "a capture begins");
  require(b.sees_capture(), "a capture that one version opened is seen by the other");
  require(hidden(), "it is seen by a plug-in with hidden symbols");
  require(!b.may_mark_device(), "a call that would invalidate it is refused");
  require(b.sees_own_thread(), "the other version knows that it is this thread's");
  require(b.use(), "the other version's pools work during it");
  require(b.use_captured_stream(), "a captured stream may be named to the other version");
  require(child_says([&] { return a.sees_capture() && b.sees_capture() && b.sees_own_thread(); }),
          "a forked child keeps the capture of the forking thread");
  std::thread([&] {
    require(b.sees_capture() && !b.sees_own_thread(), "on another thread it is another thread's");
    require(child_says([&] { return !a.sees_capture() && !b.sees_capture(); }),
            "a forked child forgets the captures of other threads");
  }).join();
  require(b.begin_capture() && b.end_capture() && a.sees_capture(),
          "captures of both versions are open at once");
  require(a.end_capture(), "what the other version did left the capture valid");
  require(!hidden() && !b.sees_capture() && b.may_mark_device() && !b.sees_own_thread(),
          "its end is seen by the other version");
}

using sees_capture = bool();

/// @param gates_apart  whether each library has a gate of its own
void run(part_calls const& a, part_calls const& b, sees_capture& hidden, bool gates_apart) {
  bool const same = std::strcmp(a.version(), b.version()) == 0;
  require(a.begin() && b.begin(), "both versions make pools");
  test_pools(a, b);
  test_forks(a, b);
  require(!same, "the versions have different namespaces");
  test_errors(a, b);
  if (!gates_apart) {
    test_captures(a, b, hidden);
    test_captures(b, a, hidden);
  }
  require(a.end() && b.end(), "nothing is left");
}

#if !defined(TARN_TEST_LINKED)
#if defined(__clang__)
constexpr bool unique_symbols = false;  // libraries opened with RTLD_LOCAL have gates of their own
#else
constexpr bool unique_symbols = true;
#endif

template <class F>
F& load(char const* path, char const* name) {
  void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::fprintf(stderr, "%s\n", ::dlerror());
  require(library != nullptr, "the library opens");
  auto* const f = reinterpret_cast<F*>(::dlsym(library, name));
  require(f != nullptr, "the library has its function");
  return *f;
}
#endif

}  // namespace

int main([[maybe_unused]] int argc, [[maybe_unused]] char** argv) {
  ::alarm(120);
#if defined(TARN_TEST_LINKED)
  run(*first_part(), *second_part(), hidden_sees_capture, false);
#else
  require(argc == 4, "three libraries are given");
  using part = part_calls const*();
  run(*load<part>(argv[1], "first_part")(), *load<part>(argv[2], "second_part")(),
      load<sees_capture>(argv[3], "hidden_sees_capture"), !unique_symbols);
#endif
  std::puts("two versions work in one program");
}
