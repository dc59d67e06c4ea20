// SPDX-License-Identifier: Apache-2.0
#pragma once
// The simulated GPU as ThreadSanitizer sees it: each stream is a thread of its own, and what orders streams and the host
// on a GPU, and only that, orders them here. Without ThreadSanitizer these are empty types.
//
//   the host enqueues work    the work comes after what this thread has done, and after the stream's past
//   record(E, S)              E keeps the stream's past          wait(S, E)              S's past grows by E's
//   synchronize(S or E)       this thread comes after it         query(E) = done         likewise

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "tarn/core/config.hpp"
#include "tarn/core/stream.hpp"

#if TARN_TSAN
#include <sanitizer/tsan_interface.h>

#include <map>
#include <vector>

extern "C" void AnnotateIgnoreReadsBegin(char const* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(char const* file, int line);
#endif

namespace tarn::detail {

#if TARN_TSAN

/// A stream's own context. The machine's lock orders nothing in it: a real driver's locks are none of the program's.
class sim_fiber {
 public:
  sim_fiber() : handle_(__tsan_create_fiber(0)) {}
  sim_fiber(sim_fiber const&) = delete;
  sim_fiber& operator=(sim_fiber const&) = delete;
  ~sim_fiber() { __tsan_destroy_fiber(handle_); }
  [[nodiscard]] void* handle() const noexcept { return handle_; }

 private:
  void* handle_;
};

/// Does one thing as another thread that comes after some moments and makes one. Not instrumented itself: what it reads is
/// the host's, and no order between the two is to be invented for that.
__attribute__((no_sanitize("thread"))) TARN_NOINLINE inline void run_in_fiber(void* fiber, void* const* after,
                                                                              std::size_t count, void* makes,
                                                                              void (*act)(void*),
                                                                              void* what) {
  void* const host = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync);
  for (std::size_t i = 0; i < count; ++i) __tsan_acquire(after[i]);
  act(what);
  __tsan_release(makes);
  __tsan_switch_to_fiber(host, __tsan_switch_to_fiber_no_sync);
}

/// The beginning and the end of one piece of work, by their addresses.
struct sim_moment {
  char begun = 0;
  char over = 0;
};

/// The latest work of each stream that something comes after.
class sim_past {
 public:
  void join(sim_past const& other) {
    for (auto const& [stream, moment] : other.latest_) add(stream, moment);
  }
  /// The calling thread comes after all of it.
  void observe() const {
    for (auto const& [stream, moment] : latest_) __tsan_acquire(&moment.second->over);
  }

 private:
  template <class Work>
  friend class sim_ordered_work;
  using numbered = std::pair<std::uint64_t, std::shared_ptr<sim_moment>>;
  void add(stream_id stream, numbered const& moment) {
    numbered& known = latest_[stream];
    if (known.first < moment.first) known = moment;
  }
  std::map<stream_id, numbered> latest_;
};

/// What a stream's work is run in; made with the stream's first work.
class sim_context {
 public:
  [[nodiscard]] std::shared_ptr<sim_fiber> const& fiber() {
    if (!fiber_) fiber_ = std::make_shared<sim_fiber>();
    return fiber_;
  }

 private:
  std::shared_ptr<sim_fiber> fiber_;
};

/// One piece of enqueued work. It is destroyed as the stream that ran it, since that has looked at what it holds.
template <class Work>
class sim_ordered_work {
 public:
  /// `past` is the stream's and comes to include this work.
  sim_ordered_work(std::shared_ptr<Work> work, sim_context& context, sim_past& past, stream_id stream,
                   std::uint64_t number)
      : fiber_(context.fiber()),
        before_(past),
        moment_(std::make_shared<sim_moment>()),
        held_(std::make_unique<std::shared_ptr<Work>>(std::move(work))) {
    __tsan_release(&moment_->begun);
    past.add(stream, {number, moment_});
  }
  /// The host looks at the work, which is the stream's to destroy; no order between the two is to be invented for that.
  template <class Look>
  [[nodiscard]] auto look(Look const& f) const noexcept {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    auto const seen = f(**held_);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    return seen;
  }
  void run() {
    std::vector<void*> after{&moment_->begun};
    for (auto const& [stream, moment] : before_.latest_) after.push_back(&moment.second->over);
    run_in_fiber(
        fiber_->handle(), after.data(), after.size(), &moment_->over,
        [](void* held) {
          auto* const work = static_cast<std::shared_ptr<Work>*>(held);
          (*work)->act();
          delete work;
        },
        held_.release());
  }

 private:
  std::shared_ptr<sim_fiber> fiber_;
  sim_past before_;
  std::shared_ptr<sim_moment> moment_;
  std::unique_ptr<std::shared_ptr<Work>> held_;
};

#else

struct sim_past {
  constexpr void join(sim_past const&) const noexcept {}
  constexpr void observe() const noexcept {}
};
struct sim_context {};
template <class Work>
class sim_ordered_work {
 public:
  sim_ordered_work(std::shared_ptr<Work> work, sim_context&, sim_past&, stream_id, std::uint64_t) noexcept
      : work_(std::move(work)) {}
  template <class Look>
  [[nodiscard]] auto look(Look const& f) const noexcept {
    return f(*work_);
  }
  void run() { work_->act(); }

 private:
  std::shared_ptr<Work> work_;
};

#endif

}  // namespace tarn::detail
