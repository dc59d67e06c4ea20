// SPDX-License-Identifier: Apache-2.0
#pragma once
// fill_threads: a few threads that fill numbered slots in order, ahead of the consumer.

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tarn/core/at_fork.hpp"

namespace TARN_NAMESPACE::detail {

/// Calls fill(batch, piece) once for each piece of each opened batch, in order of (batch, piece), from
/// several threads at once. Batch b uses slot b % slots; opening it permits writing to the slot. With no
/// threads, the caller fills in is_filled() or take(). An exception thrown by fill is stored and rethrown by
/// take(). One thread opens and takes.
class fill_threads {
 public:
  /// @param fill  returns the number of elements that it filled; called by several threads at once
  using fill_function = std::function<std::size_t(std::size_t batch, std::size_t piece)>;

  /// @throws std::system_error  no thread can be created; std::bad_alloc
  fill_threads(unsigned threads, std::size_t pieces, std::size_t slot_count, fill_function fill)
      : fill_threads(pieces, slot_count, std::move(fill)) {
    // If a thread cannot be created, the destructor runs, since the delegated-to constructor has completed.
    crew_->threads.reserve(threads);
    while (crew_->threads.size() < threads) crew_->threads.emplace_back([this] { work(); });
  }
  /// Waits for the pieces being filled, not for those that have not started. In a forked child, which does
  /// not have the threads, it waits for nothing.
  ~fill_threads() {
    if (process_.is_this()) {
      stop();
    } else {
      (void)crew_.release();
    }
  }

  /// Opens the next batch for filling, in order. The previous batch of its slot has been taken.
  void open() {
    {
      std::lock_guard const lock(crew_->mutex);
      slots_[opened_ % slots_.size()] = {pieces_, 0, nullptr};
      ++opened_;
    }
    crew_->there_is_work.notify_all();
  }
  [[nodiscard]] std::size_t opened() const noexcept { return opened_; }

  /// Whether an opened batch is filled without an exception. Does not wait. Without threads, fills it first.
  [[nodiscard]] bool is_filled(std::size_t batch) {
    slot const& s = slots_[batch % slots_.size()];
    if (crew_->threads.empty()) fill_here(batch);
    std::lock_guard const lock(crew_->mutex);
    return s.pieces_left == 0 && s.error == nullptr;
  }

  /// Waits until an opened batch is filled; returns its number of elements. @throws what fill threw for one
  /// of its pieces
  std::size_t take(std::size_t batch) {
    slot const& s = slots_[batch % slots_.size()];
    if (crew_->threads.empty()) fill_here(batch);
    std::unique_lock lock(crew_->mutex);
    crew_->filled.wait(lock, [&] { return s.pieces_left == 0; });
    if (s.error != nullptr) std::rethrow_exception(s.error);
    return s.elements;
  }

 private:
  struct slot {
    std::size_t pieces_left = 0;
    std::size_t elements = 0;
    std::exception_ptr error;
  };

  /// The threads and what they wait on. In a forked child the mutex may be locked and the conditions have
  /// waiters that do not exist there: to destroy them would wait forever, so the child leaks them.
  struct crew {
    std::mutex mutex;
    std::condition_variable there_is_work, filled;
    std::vector<std::thread> threads;
  };

  fill_threads(std::size_t pieces, std::size_t slot_count, fill_function fill)
      : fill_(std::move(fill)), pieces_(pieces), slots_(slot_count) {}

  void work() {
    std::unique_lock lock(crew_->mutex);
    for (;;) {
      crew_->there_is_work.wait(lock, [this] { return stopping_ || next_ < opened_ * pieces_; });
      if (stopping_) return;
      std::size_t const piece = next_++;
      lock.unlock();
      bool const last = fill_piece(piece / pieces_, piece % pieces_);
      if (last) crew_->filled.notify_one();
      lock.lock();
    }
  }
  void fill_here(std::size_t batch) {
    while (next_ < (batch + 1) * pieces_) {
      std::size_t const piece = next_++;
      (void)fill_piece(piece / pieces_, piece % pieces_);
    }
  }
  /// Returns whether it was the last piece of the batch.
  bool fill_piece(std::size_t batch, std::size_t piece) {
    std::size_t elements = 0;
    std::exception_ptr error;
    try {
      elements = fill_(batch, piece);
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard const lock(crew_->mutex);
    slot& s = slots_[batch % slots_.size()];
    s.elements += elements;
    if (error != nullptr && s.error == nullptr) s.error = std::move(error);
    return --s.pieces_left == 0;
  }
  void stop() noexcept {
    {
      std::lock_guard const lock(crew_->mutex);
      stopping_ = true;
    }
    crew_->there_is_work.notify_all();
    for (std::thread& t : crew_->threads) t.join();
  }

  fill_function const fill_;
  std::size_t const pieces_;
  creating_process const process_{};
  std::unique_ptr<crew> crew_ = std::make_unique<crew>();
  std::vector<slot> slots_;  ///< guarded by the crew's mutex, as are all members below
  std::size_t opened_ = 0;   ///< batches; written only by the thread that opens
  std::size_t next_ = 0;     ///< pieces started
  bool stopping_ = false;
};

}  // namespace TARN_NAMESPACE::detail
