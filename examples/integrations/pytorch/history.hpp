// SPDX-License-Identifier: Apache-2.0
#pragma once
// What torch.cuda.memory._record_memory_history() turns on: the latest events of each device, and where they
// came from.

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <tarn/core/clock.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "growth_noted.hpp"

namespace tarn_torch {

namespace native = c10::cuda::CUDACachingAllocator;
using native::RecordContext;
using native::TraceEntry;
using context_ptr = std::shared_ptr<c10::GatheredContext>;

inline std::vector<std::string>& compile_contexts() {
  static thread_local std::vector<std::string> all;
  return all;
}

/// The clock of all events, the pool's own among them.
[[nodiscard]] inline std::uint64_t steady_ns() noexcept {
  return tarn::detail::steady_now_ns();
}
/// Microseconds since 1970 at a time of that clock. The wall clock is read once: a step of it would change
/// the order of events.
[[nodiscard]] inline c10::time_t since_1970_us(std::uint64_t steady) {
  static std::int64_t const offset_ns = [] {
    auto const from = static_cast<std::int64_t>(steady_ns());
    return static_cast<std::int64_t>(tarn::detail::now_since_1970_ns()) - from;
  }();
  return (static_cast<std::int64_t>(steady) + offset_ns) / 1000;
}
[[nodiscard]] inline c10::time_t now_us() {
  return since_1970_us(steady_ns());
}

/// Thread-safe. While nothing is recorded and no tracker is attached, an event costs one relaxed read.
class history {
 public:
  void start(bool enabled, native::CreateContextFn recorder, std::size_t most, RecordContext when, bool clear,
             std::vector<std::string> const& skipped) {
    TORCH_CHECK(when == RecordContext::NEVER || recorder != nullptr,
                "recordHistory: a context is wanted, but there is no function that gathers it");
    std::lock_guard const guard(mutex_);
    skipped_.clear();
    for (std::string const& action : skipped)
      skipped_.insert(c10::CachingDeviceAllocator::parseTraceEntryAction(action));
    most_ = std::max<std::size_t>(most, 1);
    recorder_.store(enabled ? recorder : nullptr);
    when_.store(enabled ? when : RecordContext::NEVER);
    if (!enabled || clear) {
      devices_.clear();
      annotations_.clear();
      causes_.clear();
    }
    enabled_.store(enabled);
    note_whether_wanted();
  }
  [[nodiscard]] bool is_enabled() const { return enabled_.load(std::memory_order_relaxed); }
  /// Whether an event has to be recorded or reported.
  [[nodiscard]] bool is_wanted() const { return wanted_.load(std::memory_order_relaxed); }

  /// The caller's context if contexts of this level are recorded. May run Python: no lock is held.
  [[nodiscard]] context_ptr gather(RecordContext level) const {
    if (when_.load(std::memory_order_relaxed) < level) return nullptr;
    auto const recorder = recorder_.load();
    return recorder != nullptr ? recorder() : nullptr;
  }

  void watch(native::AllocatorTraceTracker tracker) {
    std::lock_guard const guard(mutex_);
    auto more = std::make_shared<trackers>(*trackers_);
    more->push_back(std::move(tracker));
    trackers_ = std::move(more);
    note_whether_wanted();
  }

  void note(TraceEntry::Action action, c10::DeviceIndex device, std::size_t address, std::size_t bytes,
            void* stream, c10::MempoolId_t pool, context_ptr context) {
    TraceEntry entry(
        action, device, address, bytes, stream, pool, 0,
        when_.load(std::memory_order_relaxed) >= RecordContext::ALLOC ? std::move(context) : nullptr,
        compile_contexts().empty() ? "N/A" : compile_contexts().back(), user_metadata());
    entry.time_.t_ = now_us();
    std::shared_ptr<trackers const> watchers;
    {
      std::lock_guard const guard(mutex_);
      watchers = trackers_;
      if (enabled_.load(std::memory_order_relaxed)) {
        events& its = devices_[device];
        complete(its, action, address);
        if (action == TraceEntry::FREE_REQUESTED) its.last_free.insert_or_assign(address, entry);
        if (skipped_.count(action) == 0) its.all.push_back(entry);
        if (its.all.size() > most_) its.all.pop_front();
      }
    }
    for (auto const& tracker : *watchers) tracker(entry);
  }
  /// The events of a device, oldest first. `is_deferred(address)` says whether a freed block is still
  /// deferred.
  template <class Deferred>
  [[nodiscard]] std::vector<TraceEntry> events_of(c10::DeviceIndex device, Deferred const& is_deferred) {
    std::lock_guard const guard(mutex_);
    events& its = devices_[device];
    std::vector<std::size_t> done;
    for (auto const& [address, entry] : its.last_free) {
      if (!is_deferred(address)) done.push_back(address);
    }
    for (std::size_t const address : done) complete(its, TraceEntry::ALLOC, address);
    return {its.all.begin(), its.all.end()};
  }

  /// Adds what the pool of a device took from it and gave back. Their times are those of the steady clock,
  /// oldest first. The stack is that of the call that did it; the user's text is that of the event beside it.
  /// Keeps the latest events, as many as start() allows.
  void add_growth(c10::DeviceIndex device, std::vector<TraceEntry>& events, std::vector<TraceEntry> growth) {
    std::lock_guard const guard(mutex_);
    std::sort(causes_.begin(), causes_.end(),
              [](caused const& a, caused const& b) { return a.from < b.from; });
    std::erase_if(growth, [&](TraceEntry const& e) { return skipped_.count(e.action_) != 0; });
    for (TraceEntry& e : growth) {
      bool const takes = e.action_ == TraceEntry::SEGMENT_MAP;
      auto const steady = static_cast<std::uint64_t>(e.time_.t_);
      e.context_ = context_of(device, steady);
      e.time_.t_ = since_1970_us(steady);
      auto const by_time = [](TraceEntry const& a, TraceEntry const& b) { return a.time_.t_ < b.time_.t_; };
      auto const next = std::lower_bound(events.begin(), events.end(), e, by_time);
      e.compile_context_ = "N/A";
      if (!events.empty()) {
        bool const is_after = next == events.end() || (!takes && next != events.begin());
        e.user_metadata_ = (is_after ? next - 1 : next)->user_metadata_;
      }
    }
    std::vector<TraceEntry> all;
    all.reserve(growth.size() + events.size());
    std::merge(std::make_move_iterator(growth.begin()), std::make_move_iterator(growth.end()),
               std::make_move_iterator(events.begin()), std::make_move_iterator(events.end()),
               std::back_inserter(all),
               [](TraceEntry const& a, TraceEntry const& b) { return a.time_.t_ < b.time_.t_; });
    if (all.size() > most_) all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(most_));
    events = std::move(all);
  }

  /// Around a call that may take memory from a device or give it back. If it did, such events of that time
  /// have its context.
  class cause {
   public:
    cause(history& of, c10::DeviceIndex device, context_ptr context) noexcept
        : of_(of), device_(device), context_(std::move(context)) {
      growth_begin() = 0;
    }
    cause(cause const&) = delete;
    cause& operator=(cause const&) = delete;
    ~cause() {
      std::uint64_t const began = growth_begin();
      if (began == 0 || context_ == nullptr) return;
      of_.note_cause({device_, began, steady_ns(), std::move(context_)});
    }

   private:
    history& of_;
    c10::DeviceIndex const device_;
    context_ptr context_;
  };

  void annotate(c10::DeviceIndex device, std::vector<std::pair<std::string, std::string>> const& values) {
    if (!is_enabled()) return;
    c10::CachingDeviceAllocator::AnnotationEntry entry(device, 0);
    entry.time_.t_ = now_us();
    for (auto const& [name, value] : values) entry.recordUserMetadata(name, value);
    std::lock_guard const guard(mutex_);
    annotations_.push_back(std::move(entry));
    if (annotations_.size() > most_) annotations_.pop_front();
  }
  [[nodiscard]] std::vector<c10::CachingDeviceAllocator::AnnotationEntry> annotations() {
    std::lock_guard const guard(mutex_);
    return {annotations_.begin(), annotations_.end()};
  }

  void set_user_metadata(std::string const& text) {
    std::lock_guard const guard(metadata_mutex_);
    metadata_ = text;
  }
  [[nodiscard]] std::string user_metadata() const {
    std::lock_guard const guard(metadata_mutex_);
    return metadata_;
  }

 private:
  using trackers = std::vector<native::AllocatorTraceTracker>;
  /// A call that changed what a device's pool holds, and when.
  struct caused {
    c10::DeviceIndex device = 0;
    std::uint64_t from = 0;  ///< of the steady clock, in nanoseconds
    std::uint64_t until = 0;
    context_ptr context;
  };
  static constexpr std::size_t most_causes = 65'536;  // as many as the pool records changes

  struct events {
    std::deque<TraceEntry> all;
    std::unordered_map<std::size_t, TraceEntry> last_free;  ///< requested, and not completed yet
  };

  /// Before a block is handed out again, its last free is complete. The pool does not report when that
  /// happened: the viewer needs the order, which is right.
  void complete(events& its, TraceEntry::Action next, std::size_t address) {
    if (next != TraceEntry::ALLOC && next != TraceEntry::FREE_COMPLETED) return;
    auto const it = its.last_free.find(address);
    if (it == its.last_free.end()) return;
    TraceEntry done = it->second;
    its.last_free.erase(it);
    if (next == TraceEntry::FREE_COMPLETED) return;  // the caller adds it
    done.action_ = TraceEntry::FREE_COMPLETED;
    done.time_.t_ = now_us();
    if (skipped_.count(TraceEntry::FREE_COMPLETED) == 0) its.all.push_back(std::move(done));
    if (its.all.size() > most_) its.all.pop_front();
  }
  /// The context of the call that changed what a device's pool holds at that time; null if it is not known.
  /// causes_ are sorted. Of several calls it is the one that began last: the pool changes under a lock, and a
  /// call begins when it has that.
  [[nodiscard]] context_ptr context_of(c10::DeviceIndex device, std::uint64_t time) const {
    auto const after = std::upper_bound(causes_.begin(), causes_.end(), time,
                                        [](std::uint64_t t, caused const& c) { return t < c.from; });
    constexpr std::ptrdiff_t most_at_once = 64;
    auto const first = after - std::min(after - causes_.begin(), most_at_once);
    for (auto it = after; it != first;) {
      --it;
      if (it->device == device && time <= it->until) return it->context;
    }
    return nullptr;
  }
  void note_cause(caused&& one) noexcept {
    if (when_.load(std::memory_order_relaxed) < RecordContext::ALLOC) return;
    std::lock_guard const guard(mutex_);
    try {
      causes_.push_back(std::move(one));
    } catch (std::bad_alloc const&) {  // these events have no stack
    }
    if (causes_.size() > most_causes) causes_.pop_front();
  }
  void note_whether_wanted() { wanted_.store(enabled_.load() || !trackers_->empty()); }

  std::atomic<bool> enabled_{false};
  std::atomic<bool> wanted_{false};
  std::atomic<RecordContext> when_{RecordContext::NEVER};
  std::atomic<native::CreateContextFn> recorder_{nullptr};
  std::mutex mutex_;
  std::unordered_map<c10::DeviceIndex, events> devices_;
  std::deque<c10::CachingDeviceAllocator::AnnotationEntry> annotations_;
  std::deque<caused> causes_;
  std::unordered_set<int> skipped_;
  std::size_t most_ = 1;
  std::shared_ptr<trackers const> trackers_ = std::make_shared<trackers>();
  mutable std::mutex metadata_mutex_;
  std::string metadata_;
};

}  // namespace tarn_torch
