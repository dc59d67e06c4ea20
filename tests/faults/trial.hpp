// SPDX-License-Identifier: Apache-2.0
#pragma once
// One run of one scene under one fault: runs each step, checks what it throws, and compares the state before
// and after.

#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "faults/host_faults.hpp"
#include "faults/sited_driver.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/misuse.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"

namespace tarn_test {

/// The expected outcome of a step when nothing fails.
enum class step_outcome : std::uint8_t { served, refused };

/// The state guaranteed after the fault is cleared.
enum class healing : std::uint8_t { before_the_end, never };

class trial {
 public:
  trial(sim_options const& options, healing heals)
      : log_(std::make_shared<call_log>(options)), heals_(heals) {
    instance() = this;
    (void)set_misuse_handler(
        [](misuse const& m) { instance()->complain(std::string("misuse was reported: ") + m.what()); });
  }
  ~trial() {
    (void)set_misuse_handler(nullptr);
    instance() = nullptr;
  }
  trial(trial const&) = delete;
  trial& operator=(trial const&) = delete;

  [[nodiscard]] call_log& log() noexcept { return *log_; }
  [[nodiscard]] sim_machine& machine() noexcept { return log_->machine; }
  [[nodiscard]] sited_driver driver(device_id device = {}) const { return {log_, device}; }
  [[nodiscard]] sited_driver_of<marking::all_work> driver_that_marks_all() const {
    return {log_, device_id{}};
  }

  [[nodiscard]] bool struck() const {
    return log_->plan.failed() != 0 || log_->full || host_faults::refused() != 0;
  }
  [[nodiscard]] bool healed() const noexcept { return healed_; }
  [[nodiscard]] std::vector<std::string> const& complaints() const noexcept { return log_->complaints; }
  void complain(std::string what) {
    host_faults::not_counted const own;
    log_->complaints.push_back(std::string(step_) + ": " + std::move(what));
  }
  void check(bool holds, char const* what) {
    if (!holds) complain(what);
  }
  /// For values on which two counters must agree.
  template <class A, class B>
  void check_equal(A a, B b, char const* what) {
    if (static_cast<std::uint64_t>(a) == static_cast<std::uint64_t>(b)) return;
    host_faults::not_counted const own;
    complain(std::string(what) + ": " + std::to_string(a) + " and " + std::to_string(b));
  }

  /// Runs a step, the library's part of it under the counted operator new. Returns true if it did not throw.
  /// A step that throws must not have changed any watched state.
  template <class Step>
  bool attempt(char const* what, Step const& step, step_outcome expected = step_outcome::served) {
    host_faults::not_counted const own;
    step_ = what;
    std::vector<std::string> const before = seen();
    bool done = false;
    try {
      {
        host_faults::counted const library;
        step();
      }
      done = true;
      if (expected == step_outcome::refused && !struck()) complain("succeeded, but must fail");
    } catch (cuda_error const& error) {
      judge(error);
    } catch (out_of_memory const& error) {
      judge(error, expected);
    } catch (std::bad_alloc const&) {
      if (host_faults::refused() == 0) complain("std::bad_alloc, although the host had memory");
    } catch (pool_asleep const&) {
      if (expected != step_outcome::refused) complain("pool_asleep, but must succeed");
    } catch (bad_alignment const&) {
      // Documented; the step requested it.
    } catch (std::exception const& error) {
      complain(std::string("an error of an undocumented type: ") + error.what());
    }
    if (!done && seen() != before) complain("threw and changed the state:" + difference(before, seen()));
    return done;
  }

  /// Something whose state a throwing step must not change, while the returned object lives.
  class watched_state {
   public:
    watched_state(trial& t, std::function<std::string()> look) : trial_(t), look_(std::move(look)) {
      trial_.watched_.push_back(this);
    }
    ~watched_state() { trial_.watched_.pop_back(); }
    watched_state(watched_state const&) = delete;
    watched_state& operator=(watched_state const&) = delete;
    [[nodiscard]] std::string look() const { return look_(); }

   private:
    trial& trial_;
    std::function<std::string()> look_;
  };
  template <class Look>
  [[nodiscard]] watched_state watch(Look look) {
    host_faults::not_counted const own;
    return watched_state(*this, std::move(look));
  }

  /// What a program does to use memory of one stream on another: later work of `after` waits for `before`.
  void order(stream_ref after, stream_ref before) {
    host_faults::not_counted const own;
    sim_driver const driver = machine().driver();
    event_handle event = nullptr;
    (void)driver.create_event(event);
    (void)driver.record_event(event, before);
    (void)driver.wait_event(after, event);
    (void)driver.destroy_event(event);
  }

  // The program's other calls of the device: never counted, never refused.

  void wait_for(stream_ref stream) {
    host_faults::not_counted const own;
    (void)machine().driver().synchronize_stream(stream);
  }
  [[nodiscard]] bool begin_capture(stream_ref stream) {
    host_faults::not_counted const own;
    return machine().begin_capture(stream).ok();
  }
  /// False if the capture was invalidated.
  bool end_capture(stream_ref stream) {
    host_faults::not_counted const own;
    sim_graph graph;
    return machine().end_capture(stream, graph).ok();
  }

  /// Clears the fault and releases what failed calls left behind; from now on nothing may throw. A permanent
  /// fault continues.
  void heal() {
    if (!struck() || heals_ == healing::never) return;
    make_good();
    healed_ = true;
  }
  void make_good() {
    host_faults::not_counted const own;
    step_ = "after the faults were cleared";
    log_->plan.disarm();
    host_faults::disarm();
    log_->machine.repair();
    for (int d = 0; log_->full && d < machine().options().devices; ++d)
      machine().take_memory(device_id{d}, 0);
    log_->full_from = 0;
    (void)machine().driver().synchronize_device();
    log_->pay();
    struck_so_far_ = log_->plan.failed() + host_faults::refused();
  }

 private:
  static trial*& instance() noexcept {
    static trial* now = nullptr;
    return now;
  }
  [[nodiscard]] std::vector<std::string> seen() const {
    std::vector<std::string> all;
    for (watched_state const* w : watched_) all.push_back(w->look());
    return all;
  }
  static std::string difference(std::vector<std::string> const& before,
                                std::vector<std::string> const& after) {
    std::string text;
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (before[i] != after[i]) text += " [" + before[i] + "] became [" + after[i] + "]";
    }
    return text;
  }
  void require_cause(char const* text) {
    if (!struck()) complain(std::string("no call had failed: ") + text);
    if (healed_) complain(std::string("the fault had been cleared: ") + text);
  }
  static bool has(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
  }

  void judge(cuda_error const& error) {
    std::string_view const text = error.what();
    require_cause(error.what());
    bool const is_complete = has(text, error.call()) && has(text, error.name()) &&
                             has(text, "(" + std::to_string(error.code()) + ")") && has(text, "; ") &&
                             (error.where().line == 0 || has(text, std::string(error.where().file) + ':' +
                                                                       std::to_string(error.where().line)));
    if (!is_complete) complain(std::string("does not name call, code, place and remedy: ") + error.what());
    bool known = log_->anything_owed();
    for (made_call const& c : log_->made) {
      known = known || (c.struck && (std::string_view(error.call()).starts_with(c.name) ||
                                     std::string_view(error.call()) == name_of(c.kind)));
      // A source without pages refuses later, when pages are needed.
      known = known || (c.struck && c.kind == driver_call::page_granularity &&
                        has(text, "no virtual memory management"));
    }
    if (!known) complain(std::string("names a call that did not fail: ") + error.what());
  }
  void judge(out_of_memory const& error, step_outcome expected) {
    std::string_view const text = error.what();
    if (expected == step_outcome::served) require_cause(error.what());
    bool const is_complete =
        has(text, " asked") && has(text, "refused by ") && (text.ends_with(".") || text.ends_with("]")) &&
        (has(text, "Free ") || has(text, "empty_cache") || has(text, "check the size") ||
         has(text, "ask for less") || has(text, "call tarn::wake") || has(text, "Reserve more") ||
         has(text, "free some, or use contents::discarded"));
    if (!is_complete)
      complain(std::string("does not contain the request, the refusing layer and the remedy: ") +
               error.what());
  }

  std::shared_ptr<call_log> log_;
  healing heals_;
  bool healed_ = false;
  std::uint64_t struck_so_far_ = 0;
  char const* step_ = "before the first step";
  std::vector<watched_state*> watched_;
};

/// Reports the owners to the machine's order checker: the layer above a pool or a source whose blocks are
/// used.
template <class Upstream>
class order_watched_layer;
struct order_watched {
  sim_machine machine;
  template <class Upstream>
  using layer = order_watched_layer<Upstream>;
};
template <class Upstream>
class order_watched_layer {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;

  order_watched_layer(Upstream upstream, order_watched options)
      : upstream_(std::move(upstream)), machine_(std::move(options.machine)) {}

  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    return report_allocated(upstream_.allocate(stream, bytes, alignment), bytes, stream);
  }
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    report_freed(p, bytes, stream);
    upstream_.deallocate(stream, p, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    return report_allocated(upstream_.allocate_sync(bytes, alignment), bytes, {});
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    report_freed(p, bytes, {});
    upstream_.deallocate_sync(p, bytes, alignment);
  }
  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }

 private:
  void* report_allocated(void* p, std::size_t bytes, stream_ref stream) {
    host_faults::not_counted const own;
    if (p != nullptr) machine_.allocated(p, bytes, stream);
    return p;
  }
  void report_freed(void* p, std::size_t bytes, stream_ref stream) noexcept {
    host_faults::not_counted const own;
    if (p == nullptr) return;
    // identify() would invalidate a capture of the stream.
    bool const lives = machine_.driver().made_identity(stream.handle()) != stream_ref::unknown_id;
    machine_.freed(p, bytes, lives ? stream : stream_ref{});
  }
  Upstream upstream_;
  sim_machine machine_;
};

}  // namespace tarn_test
