// SPDX-License-Identifier: Apache-2.0
#pragma once
// The simulated device and plain host memory as test devices.

#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "subject.hpp"
#include "tarn/driver/no_driver.hpp"
#include "tarn/driver/sim/sim_driver.hpp"
#include "tarn/pool/pool.hpp"
#include "tarn/source/cuda_pages.hpp"
#include "tarn/source/managed.hpp"

namespace policy_matrix {

/// The simulated driver with CUDA's behaviour: it can record the work of the whole device, or reports, as an
/// older driver, that it cannot. It knows which of the streams that it created exist, but not whether others
/// do.
class matrix_driver : public tarn::sim_driver {
 public:
  struct hooks {
    bool can_mark = true;
    std::function<void()> in_device_wait;
    std::atomic<tarn::event_handle> marks_all = nullptr;  ///< the event that marked all work last
    std::mutex mutex;
    std::set<tarn::stream_id> made;
  };
  matrix_driver(tarn::sim_driver driver, std::shared_ptr<hooks> shared)
      : sim_driver(std::move(driver)), hooks_(std::move(shared)) {}

  tarn::status record_all(tarn::event_handle event) const noexcept {
    hooks_->marks_all = event;
    if (hooks_->can_mark) return record_all_work(event);
    return {tarn::failure::unsupported, 801, "cudaErrorNotSupported", "record_all"};
  }
  tarn::status create_stream(tarn::stream_ref& stream) const noexcept {
    tarn::status const s = sim_driver::create_stream(stream);
    std::lock_guard const guard(hooks_->mutex);
    if (s.ok()) hooks_->made.insert(stream.id());
    return s;
  }
  tarn::status destroy_stream(tarn::stream_ref stream) const noexcept {
    {
      std::lock_guard const guard(hooks_->mutex);
      hooks_->made.erase(stream.id());
    }
    return sim_driver::destroy_stream(stream);
  }
  [[nodiscard]] bool has_made(tarn::stream_ref stream) const noexcept {
    std::lock_guard const guard(hooks_->mutex);
    return hooks_->made.count(stream.id()) != 0;
  }
  tarn::status synchronize_device() const noexcept {
    tarn::status const s = sim_driver::synchronize_device();
    waited_for_device();
    return s;
  }
  tarn::status synchronize_event(tarn::event_handle event) const noexcept {
    tarn::status const s = sim_driver::synchronize_event(event);
    if (event == hooks_->marks_all) waited_for_device();
    return s;
  }

 private:
  void waited_for_device() const {
    if (auto f = std::exchange(hooks_->in_device_wait, nullptr)) f();
  }
  std::shared_ptr<hooks> hooks_;
};

class sim_device final : public test_device {
 public:
  using driver_type = matrix_driver;
  explicit sim_device(unsigned mode)
      : machine_(options(mode)), hooks_(std::make_shared<matrix_driver::hooks>()) {
    has_pages_ = mode_has_pages(mode);
    hooks_->can_mark = mode != 1 && mode != 7;
    foreign_streams_ = mode == 2;
  }
  [[nodiscard]] matrix_driver driver() const { return {machine_.driver(), hooks_}; }

  tarn::stream_ref new_stream() override {
    tarn::stream_ref stream;
    int const device = static_cast<int>(streams_++ % static_cast<unsigned>(machine_.options().devices));
    tarn::sim_driver const there = machine_.driver(device);
    (void)(foreign_streams_ ? there.create_stream(stream)
                            : matrix_driver(there, hooks_).create_stream(stream));
    devices_[stream.id()] = device;
    return stream;
  }
  void end_stream(tarn::stream_ref stream) override {
    (void)(foreign_streams_ ? machine_.driver().destroy_stream(stream) : driver().destroy_stream(stream));
  }
  void order(tarn::stream_ref first, tarn::stream_ref second) override {
    auto const driver = machine_.driver(devices_[first.id()]);
    tarn::event_handle event = nullptr;
    if (!driver.create_event(event).ok() || !driver.record_event(event, first).ok() ||
        !driver.wait_event(second, event).ok()) {
      failed_.push_back("an event could not be recorded and waited for");
    }
    (void)driver.destroy_event(event);
  }
  void write(tarn::stream_ref stream, void* p, std::size_t bytes, unsigned char byte,
             unsigned microseconds) override {
    auto const s = machine_.launch(stream, tarn::sim_nanoseconds{microseconds} * 1000,
                                   {tarn::sim_writes(p, bytes)}, [p, bytes, byte] { stamp(p, bytes, byte); });
    if (!s.ok()) failed_.push_back(std::string("work could not be launched: ") + s.name);
  }
  bool holds(void const* p, std::size_t bytes, unsigned char byte) override {
    return is_stamped(p, bytes, byte);
  }
  void wait(tarn::stream_ref stream) override { (void)machine_.driver().synchronize_stream(stream); }
  void wait() override {
    for (int d = 0; d < machine_.options().devices; ++d) (void)machine_.driver(d).synchronize_device();
  }
  /// The driver cannot query the capture state of a stream that it did not create and that is not a default
  /// stream.
  bool begin_capture(tarn::stream_ref stream) override {
    if (foreign_streams_) return false;
    captured_before_ = machine_.captured_calls();
    return machine_.begin_capture(stream).ok();
  }
  bool end_capture(tarn::stream_ref stream, bool may_have_nodes) override {
    tarn::sim_graph graph;
    bool const good = machine_.end_capture(stream, graph).ok();
    return good && (may_have_nodes || machine_.captured_calls() == captured_before_);
  }
  bool in_next_device_wait(std::function<void()> f) override {
    hooks_->in_device_wait = nullptr;
    if (f) hooks_->in_device_wait = [f = std::move(f)] { std::thread(f).join(); };
    return true;
  }
  std::vector<std::string> findings() override {
    auto all = machine_.findings();
    std::vector<std::string> fresh(all.begin() + static_cast<std::ptrdiff_t>(seen_), all.end());
    seen_ = all.size();
    fresh.insert(fresh.end(), failed_.begin(), failed_.end());
    failed_.clear();
    return fresh;
  }
  std::size_t held() override {
    auto const l = machine_.leaks();
    return l.blocks + l.handles;
  }
  std::size_t left_over() override { return machine_.leaks().total(); }
  bool has_pages() const override { return has_pages_; }
  bool runs_out() const override { return true; }
  void allocated(void* p, std::size_t bytes, tarn::stream_ref stream) override {
    machine_.allocated(p, bytes, stream);
  }
  void freed(void* p, std::size_t bytes, tarn::stream_ref stream) override {
    machine_.freed(p, bytes, stream);
  }

  /// Fills all of a small block and both ends of a large one.
  static void stamp(void* p, std::size_t bytes, unsigned char byte) {
    std::size_t const part = bytes < 512 ? bytes : 256;
    std::memset(p, byte, part);
    std::memset(static_cast<char*>(p) + (bytes - part), byte, part);
  }
  static bool is_stamped(void const* p, std::size_t bytes, unsigned char byte) {
    std::size_t const part = bytes < 512 ? bytes : 256;
    auto const* const first = static_cast<unsigned char const*>(p);
    for (std::size_t i = 0; i < part; ++i) {
      if (first[i] != byte || first[bytes - 1 - i] != byte) return false;
    }
    return true;
  }

 private:
  static tarn::sim_options options(unsigned mode) {
    tarn::sim_options o;
    if (mode_has_two_devices(mode)) o.devices = 2;
    if (!mode_has_pages(mode)) o.paging = tarn::sim_paging::missing;
    if (!mode_has_memory_pools(mode)) o.memory_pools = tarn::sim_memory_pools::missing;
    o.capacity = tarn::operator""_MiB(24);
    o.taken = 0;
    o.host_capacity = tarn::operator""_MiB(24);
    o.checks = tarn::sim_checks::stream_order;
    o.sharing = tarn::sim_sharing::descriptors;
    return o;
  }
  tarn::sim_machine machine_;
  std::shared_ptr<matrix_driver::hooks> hooks_;
  bool foreign_streams_ = false;
  bool has_pages_ = true;
  unsigned streams_ = 0;  ///< made so far
  std::map<tarn::stream_id, int> devices_;
  std::vector<std::string> failed_;
  std::size_t seen_ = 0;
  std::size_t captured_before_ = 0;
};

/// Host memory without a device: streams are only ids, and work is done at once.
class host_device final : public test_device {
 public:
  using driver_type = tarn::no_driver;
  explicit host_device(unsigned) {}
  [[nodiscard]] tarn::no_driver driver() const { return {}; }
  tarn::stream_ref new_stream() override {
    tarn::stream_ref stream;
    (void)driver().create_stream(stream);
    return stream;
  }
  void end_stream(tarn::stream_ref) override {}
  void order(tarn::stream_ref, tarn::stream_ref) override {}
  void write(tarn::stream_ref, void* p, std::size_t bytes, unsigned char byte, unsigned) override {
    sim_device::stamp(p, bytes, byte);
  }
  bool holds(void const* p, std::size_t bytes, unsigned char byte) override {
    return sim_device::is_stamped(p, bytes, byte);
  }
  void wait(tarn::stream_ref) override {}
  void wait() override {}
  bool begin_capture(tarn::stream_ref) override { return false; }
  bool end_capture(tarn::stream_ref, bool) override { return true; }
  bool in_next_device_wait(std::function<void()>) override { return false; }
  std::vector<std::string> findings() override { return {}; }
  std::size_t held() override { return 0; }
  std::size_t left_over() override { return 0; }
  bool runs_out() const override { return false; }
};

}  // namespace policy_matrix

// The pools of most stacks are instantiated once, in stacks_of_sources.cpp.
extern template class tarn::pool<tarn::basic_pages<policy_matrix::matrix_driver>>;
extern template class tarn::pool<tarn::basic_managed<policy_matrix::matrix_driver>>;
