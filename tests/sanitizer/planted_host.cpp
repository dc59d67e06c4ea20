// SPDX-License-Identifier: Apache-2.0
// One planted mistake per run on the simulated device, as a user's own host-side tests might make, which
// AddressSanitizer or ThreadSanitizer must report. check_host.sh builds it for each and runs all cases. Exit
// status 3: no such case.

#include <cstdio>
#include <cstring>
#include <string_view>

#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

namespace {

using tarn::stream_ref;
using namespace tarn::literals;

class program {
 public:
  program() { (void)(machine.driver().create_stream(a).ok() && machine.driver().create_stream(b).ok()); }
  ~program() {
    (void)machine.driver().destroy_stream(a);
    (void)machine.driver().destroy_stream(b);
  }
  program(program const&) = delete;
  program& operator=(program const&) = delete;

  unsigned char* take(stream_ref stream, std::size_t bytes) {
    return static_cast<unsigned char*>(pool.allocate(stream, bytes));
  }
  /// Work that writes one byte when it ends.
  void write(stream_ref stream, unsigned char* p, std::size_t offset = 0) {
    (void)machine.launch(stream, 1'000'000, [p, offset] { p[offset] = 1; });
  }
  void wait(stream_ref stream) { (void)machine.driver().synchronize_stream(stream); }

  tarn::sim_machine machine = tarn::sim_machine::standard();  // with the tool, if the environment requests it
  tarn::stack<tarn::sim_pages, tarn::pooled> pool;
  stream_ref a;
  stream_ref b;
};

/// Correct use: memory reused in stream order, across streams by the pool and by events, pages that are
/// remapped.
void clean(program& p) {
  tarn::event_handle event = nullptr;
  (void)p.machine.driver().create_event(event);
  for (int round = 0; round < 30; ++round) {
    for (std::size_t const bytes : {std::size_t{1}, std::size_t{1000}, std::size_t{70'000}, 3_MiB, 40_MiB}) {
      unsigned char* const q = p.take(p.a, bytes);
      p.write(p.a, q, bytes - 1);
      (void)p.machine.driver().record_event(event, p.a);
      (void)p.machine.driver().wait_event(p.b, event);
      p.write(p.b, q, bytes - 1);
      p.pool.record_stream(q, bytes, p.b);
      p.pool.deallocate(p.a, q, bytes);
    }
    unsigned char* const q = p.take(p.b, 1000);
    p.write(p.b, q);
    p.wait(p.b);
    q[0] = 2;
    p.pool.deallocate(p.b, q, 1000);
    if (round % 10 == 9) p.pool.empty_cache();
  }
  (void)p.machine.driver().destroy_event(event);
}

bool run(std::string_view name) {
  program p;
  unsigned char* const block = p.take(p.a, 1000);
  bool freed = false;
  if (name == "clean") {
    clean(p);
  } else if (name == "kernel_past_requested") {
    p.write(p.a, block, 1000);
    p.wait(p.a);
  } else if (name == "host_past_requested") {
    static_cast<unsigned char volatile*>(block)[1001] = 1;
  } else if (name == "kernel_after_free") {
    p.pool.deallocate(p.a, block, 1000);
    freed = true;
    p.write(p.b, block);
    p.wait(p.b);
  } else if (name == "host_after_free") {
    p.pool.deallocate(p.a, block, 1000);
    freed = true;
    static_cast<unsigned char volatile*>(block)[0] = 1;
  } else if (name == "copy_past_requested") {
    unsigned char to[1024];
    (void)p.machine.driver().copy(p.a, to, block, sizeof to);
  } else if (name == "host_reads_before_waiting") {
    p.write(p.a, block);
    p.wait(p.b);  // the wrong stream
    std::printf("%d\n", block[0]);
    p.wait(p.a);
  } else if (name == "host_reads_after_a_while") {
    p.write(p.a, block);
    p.machine.advance(10'000'000);  // the work is over, but no thread has queried it
    std::printf("%d\n", block[0]);
  } else if (name == "host_reads_after_recording") {
    tarn::event_handle event = nullptr;
    (void)p.machine.driver().create_event(event);
    p.write(p.a, block);
    p.machine.advance(10'000'000);
    (void)p.machine.driver().record_event(event, p.a);  // queries nothing
    std::printf("%d\n", block[0]);
    (void)p.machine.driver().destroy_event(event);
  } else if (name == "streams_without_event") {
    p.write(p.a, block);
    p.write(p.b, block);
    p.wait(p.a);
    p.wait(p.b);
  } else if (name == "event_recorded_too_early") {
    tarn::event_handle event = nullptr;
    (void)p.machine.driver().create_event(event);
    (void)p.machine.driver().record_event(event, p.a);
    p.write(p.a, block);
    (void)p.machine.driver().wait_event(p.b, event);
    p.write(p.b, block);
    p.wait(p.a);
    p.wait(p.b);
    (void)p.machine.driver().destroy_event(event);
  } else {
    return false;
  }
  p.wait(p.a);
  if (!freed) p.pool.deallocate(p.a, block, 1000);
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  return count == 2 && run(arguments[1]) ? 0 : 3;
}
