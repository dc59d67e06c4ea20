// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs work in a separate process, so that a crash or a hang is a finding and does not end the run.

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/prctl.h>
#endif
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "run.hpp"

namespace simulation {

/// The outcome.
struct verdict {
  bool failed = false;
  std::string what;  /// < one finding per line
};

class guarded {
 public:
  using clock = std::chrono::steady_clock;

  /// @param silence  the process counts as hung after this long without a step
  explicit guarded(std::chrono::seconds silence) : silence_(silence) {
    void* const shared =
        ::mmap(nullptr, sizeof(progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) throw std::bad_alloc();
    progress_ = new (shared) progress;
  }
  guarded(guarded const&) = delete;
  guarded& operator=(guarded const&) = delete;
  ~guarded() {
    if (process_ > 0) (void)end(SIGKILL);
    (void)::munmap(progress_, sizeof(progress));
  }

  /// Starts `work(progress&) -> findings` in a process.
  template <class Work>
  void start(Work const& work) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::bad_alloc();
    std::fflush(nullptr);
    process_ = ::fork();
    if (process_ < 0) throw std::bad_alloc();
    if (process_ == 0) {
      (void)::close(ends[0]);
#if defined(__linux__)
      (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it ends with its parent
      stay_on_this_processor();
#endif
      findings const found = work(*progress_);
      std::string all;
      for (std::size_t i = 0; i < found.size() && i < 3; ++i) all += found[i] + '\n';
      if (found.size() > 3) all += text("and %zu more\n", found.size() - 3);
      for (std::size_t at = 0; at < all.size();) {
        auto const n = ::write(ends[1], all.data() + at, all.size() - at);
        if (n <= 0) break;
        at += static_cast<std::size_t>(n);
      }
      ::_exit(found.empty() ? 0 : 1);
    }
    (void)::close(ends[1]);
    from_ = ends[0];
    text_.clear();
    beats_ = progress_->beats.load();
    moved_ = clock::now();
  }

  /// Watches it for up to `patience`; returns true once it is over.
  bool attend(std::chrono::milliseconds patience, verdict& out) {
    pollfd waiting{from_, POLLIN, 0};
    if (::poll(&waiting, 1, static_cast<int>(patience.count())) > 0) {
      char part[4096];
      auto const n = ::read(from_, part, sizeof part);
      if (n > 0) {
        text_.append(part, static_cast<std::size_t>(n));
        return false;
      }
      int const status = end(0);
      out.failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
      out.what = text_;
      if (WIFSIGNALED(status)) out.what += text("crashed: %s\n", ::strsignal(WTERMSIG(status)));
      return true;
    }
    auto const now = clock::now();
    if (auto const beats = progress_->beats.load(); beats != beats_) {
      beats_ = beats;
      moved_ = now;
    } else if (now - moved_ > silence_) {
      (void)end(SIGKILL);
      out.failed = true;
      out.what = text_ + text("hangs: no step for %d s\n", static_cast<int>(silence_.count()));
      return true;
    }
    return false;
  }

  [[nodiscard]] progress& where() noexcept { return *progress_; }

 private:
#if defined(__linux__)
  // One thread runs at a time. A switch to a thread on another processor costs several times as much: 26,000
  // instead of 88,000 pool operations a second were measured.
  static void stay_on_this_processor() noexcept {
    int const here = ::sched_getcpu();
    if (here < 0 || here >= CPU_SETSIZE) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(here, &one);
    (void)::sched_setaffinity(0, sizeof one, &one);
  }
#endif
  int end(int signal) {
    if (signal != 0) (void)::kill(process_, signal);
    int status = 0;
    (void)::waitpid(process_, &status, 0);
    (void)::close(from_);
    process_ = 0;
    return status;
  }

  std::chrono::seconds silence_;
  progress* progress_ = nullptr;
  pid_t process_ = 0;
  int from_ = -1;
  std::string text_;
  std::uint64_t beats_ = 0;
  clock::time_point moved_;
};

}  // namespace simulation
