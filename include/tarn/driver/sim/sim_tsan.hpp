// SPDX-License-Identifier: Apache-2.0
#pragma once
// The simulated GPU under ThreadSanitizer: each stream is a separate thread, and only what orders streams and
// the host on a GPU orders them here. Without ThreadSanitizer these are empty types.
//
//   the host enqueues work    the work is ordered after this thread's past and the stream's past
//   record(E, S)              E keeps the stream's past          wait(S, E)              E's past is added to S's
//   synchronize(S or E)       this thread is ordered after it    query(E) = done         likewise

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "tarn/core/config.hpp"
#include "tarn/core/stream.hpp"

#if TARN_TSAN
#include <sanitizer/tsan_interface.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <map>
#include <new>
#include <vector>

extern "C" void AnnotateIgnoreReadsBegin(char const* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(char const* file, int line);
extern "C" void AnnotateIgnoreWritesBegin(char const* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(char const* file, int line);
#endif

namespace TARN_NAMESPACE::detail {

#if TARN_TSAN

/// A stream's own context. The machine's lock creates no order in it: a real driver's locks are invisible to
/// the program.
///
/// Its work runs on a stack of its own. On the stack of the thread that runs it, it would write where that
/// thread has written before, and ThreadSanitizer would report a race: of all local variables at -O0, of a
/// few with optimisation.
class sim_fiber {
 public:
  static constexpr std::size_t stack_bytes = std::size_t{1} << 20;

  sim_fiber()
      : stack_(mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0)) {
    if (stack_ == MAP_FAILED) throw std::bad_alloc();
    handle_ = __tsan_create_fiber(0);
  }
  sim_fiber& operator=(sim_fiber&&) = delete;
  ~sim_fiber() {
    __tsan_destroy_fiber(handle_);
    (void)munmap(stack_, stack_bytes);
  }
  [[nodiscard]] void* handle() const noexcept { return handle_; }
  [[nodiscard]] void* stack() const noexcept { return stack_; }

 private:
  void* stack_;
  void* handle_ = nullptr;
};

/// An action that runs as another thread, which is ordered after some moments and releases one.
struct sim_fiber_call {
  void* fiber;
  void* const* after;
  std::size_t count;
  void* makes;
  void (*act)(void*);
  void* what;
  ucontext_t host = {};
  ucontext_t own = {};
};

// Neither is instrumented: they read host data, and must not create an order between the two.

/// The first function on the fiber's stack. makecontext() passes integers: the halves of the address of a
/// sim_fiber_call.
__attribute__((no_sanitize("thread"))) TARN_NOINLINE inline void start_fiber_call(unsigned high,
                                                                                  unsigned low) {
  auto* const call = reinterpret_cast<sim_fiber_call*>(static_cast<std::uintptr_t>(high) << 32U |
                                                       low);  // NOLINT: an address
  void* const host = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(call->fiber, __tsan_switch_to_fiber_no_sync);
  for (std::size_t i = 0; i < call->count; ++i) __tsan_acquire(call->after[i]);
  call->act(call->what);
  __tsan_release(call->makes);
  __tsan_switch_to_fiber(host, __tsan_switch_to_fiber_no_sync);
  (void)swapcontext(&call->own, &call->host);
}
__attribute__((no_sanitize("thread"))) TARN_NOINLINE inline void run_in_fiber(sim_fiber_call& call,
                                                                              void* stack) {
  (void)getcontext(&call.own);
  call.own.uc_stack.ss_sp = stack;
  call.own.uc_stack.ss_size = sim_fiber::stack_bytes;
  auto const address = reinterpret_cast<std::uintptr_t>(&call);
  makecontext(&call.own, reinterpret_cast<void (*)()>(start_fiber_call), 2,
              static_cast<unsigned>(address >> 32U), static_cast<unsigned>(address));
  (void)swapcontext(&call.host, &call.own);
}

/// The start and the end of one operation, identified by their addresses.
struct sim_moment {
  char begun = 0;
  char over = 0;
};

/// The latest operation of each stream that something is ordered after.
class sim_past {
 public:
  void join(sim_past const& other) {
    for (auto const& [stream, moment] : other.latest_) add(stream, moment);
  }
  /// Orders the calling thread after all of it.
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

/// The fiber that runs a stream's work; created with the stream's first work.
class sim_context {
 public:
  [[nodiscard]] std::shared_ptr<sim_fiber> const& fiber() {
    if (!fiber_) fiber_ = std::make_shared<sim_fiber>();
    return fiber_;
  }

 private:
  std::shared_ptr<sim_fiber> fiber_;
};

/// One enqueued operation. The stream that ran it also destroys it, since the stream has accessed its
/// contents.
template <class Work>
class sim_ordered_work {
 public:
  /// Adds this work to `past`, which belongs to the stream.
  sim_ordered_work(std::shared_ptr<Work> work, sim_context& context, sim_past& past, stream_id stream,
                   std::uint64_t number)
      : fiber_(context.fiber()),
        before_(past),
        moment_(std::make_shared<sim_moment>()),
        held_(std::make_unique<std::shared_ptr<Work>>(std::move(work))) {
    __tsan_release(&moment_->begun);
    past.add(stream, {number, moment_});
  }
  /// Lets the host inspect the work, which the stream destroys, without creating an order between the two.
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
    auto const act = [](void* held) {
      auto* const work = static_cast<std::shared_ptr<Work>*>(held);
      (*work)->act();
      delete work;
    };
    sim_fiber_call call{fiber_->handle(), after.data(), after.size(), &moment_->over, act, held_.release()};
    run_in_fiber(call, fiber_->stack());
  }

 private:
  std::shared_ptr<sim_fiber> fiber_;
  sim_past before_;
  std::shared_ptr<sim_moment> moment_;
  std::unique_ptr<std::shared_ptr<Work>> held_;
};

/// Destroys what streams have read, such as the work of a graph, without creating an order between them and
/// this thread.
template <class Held>
void drop_unordered(Held& held) noexcept {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  held = {};
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}

#else

template <class Held>
void drop_unordered(Held&) noexcept {}
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

}  // namespace TARN_NAMESPACE::detail
