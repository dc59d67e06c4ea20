// SPDX-License-Identifier: Apache-2.0
#pragma once
// A second process on the same GPU, which holds memory and takes more again and again. Include where
// <cuda_runtime_api.h> is found.

#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <new>
#include <stdexcept>
#include <thread>

namespace tarn_clients {

/// Starts a child process, which does nothing until leave(). Construct it before the first call of CUDA: a
/// child of a process that has a context cannot use CUDA. The destructor ends the child.
class second_program {
 public:
  second_program() {
    void* const shared =
        mmap(nullptr, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) throw std::bad_alloc();
    board_ = new (shared) board;
    child_ = fork();
    if (child_ < 0) throw std::runtime_error("second_program: fork failed");
    if (child_ == 0) _exit(run(*board_));
  }
  second_program(second_program const&) = delete;
  second_program& operator=(second_program const&) = delete;
  ~second_program() {
    board_->step = ended;
    int status = 0;
    waitpid(child_, &status, 0);
    munmap(board_, sizeof(board));
  }

  /// Makes it hold so much that `bytes` are free on the device. From then on it takes `taken` bytes, writes
  /// and frees them, in turns of some milliseconds. Returns when the first is done.
  void leave(std::size_t bytes, std::size_t taken) {
    board_->left = bytes;
    board_->taken = taken;
    board_->step = holding;
    auto const limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!board_->holds) {
      if (std::chrono::steady_clock::now() > limit || waitpid(child_, nullptr, WNOHANG) != 0)
        throw std::runtime_error("second_program: it does not hold its memory");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  /// How often it asked for memory since leave(), and how often it was refused.
  [[nodiscard]] int asked() const noexcept { return board_->asked; }
  [[nodiscard]] int refused() const noexcept { return board_->refused; }

 private:
  enum step : int { waiting, holding, ended };
  struct board {
    std::atomic<int> step = waiting;
    std::atomic<bool> holds = false;
    std::atomic<std::size_t> left = 0;
    std::atomic<std::size_t> taken = 0;
    std::atomic<int> asked = 0;
    std::atomic<int> refused = 0;
  };
  static_assert(std::atomic<std::size_t>::is_always_lock_free);

  static int run(board& b) {
    using std::chrono::milliseconds;
    pid_t const parent = getppid();
    auto const over = [&] { return b.step == ended || getppid() != parent; };
    while (b.step == waiting && !over()) std::this_thread::sleep_for(milliseconds(1));
    if (over()) return 0;
    std::size_t free = 0;
    std::size_t total = 0;
    constexpr std::size_t page = std::size_t{2} << 20;
    for (;;) {
      if (cudaMemGetInfo(&free, &total) != cudaSuccess) return 1;
      if (free < b.left + page) break;
      void* held = nullptr;
      if (cudaMalloc(&held, (free - b.left) / page * page) != cudaSuccess) return 1;
    }
    b.holds = true;
    while (!over()) {
      void* p = nullptr;
      ++b.asked;
      if (cudaMalloc(&p, b.taken) == cudaSuccess) {
        (void)cudaMemset(p, 1, b.taken);
        (void)cudaDeviceSynchronize();
        std::this_thread::sleep_for(milliseconds(3));
        (void)cudaFree(p);
      } else {
        (void)cudaGetLastError();
        ++b.refused;
      }
      std::this_thread::sleep_for(milliseconds(3));
    }
    return 0;
  }

  board* board_ = nullptr;
  pid_t child_ = -1;
};

}  // namespace tarn_clients
