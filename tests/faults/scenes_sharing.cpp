// SPDX-License-Identifier: Apache-2.0
// Blocks that are exported, imported and registered: whatever fails, no mapping, event, descriptor or registration is left, the block
// is still pinned or not at all, and after the fault is cleared the calls succeed.
#include <dirent.h>

#include <optional>
#include <type_traits>

#include "faults/held_blocks.hpp"
#include "faults/scene_memory.hpp"
#include "faults/scenes.hpp"
#include "tarn/raii/exported_block.hpp"
#include "tarn/raii/imported_block.hpp"
#include "tarn/raii/page_registrations.hpp"

namespace tarn_test {

namespace of_sharing {

sim_options sharing_machine() {
  sim_options o = machine_of(24_MiB, 16_MiB);
  o.sharing = sim_sharing::descriptors;
  return o;
}

/// Without those of the machine, which keeps one for each handle.
int open_descriptors(trial& t) {
  int count = -static_cast<int>(t.machine().leaks().handles);
  ::DIR* const folder = ::opendir("/proc/self/fd");
  while (folder != nullptr && ::readdir(folder) != nullptr) ++count;
  if (folder != nullptr) (void)::closedir(folder);
  return count;
}

/// Exports a block, imports it and orders streams by its events. The import is on the same machine.
template <class Memory>
void pass_on(trial& t, Memory const& memory, void* p, std::size_t bytes, stream_ref a, stream_ref b) {
  int before = 0;
  {
    host_faults::not_counted const own;
    before = open_descriptors(t);
  }
  {
    std::optional<exported_block<Memory>> block;
    t.attempt("export_block", [&] { block.emplace(export_block(memory, p, bytes, a)); });
    if (!block) return;
    std::optional<std::remove_cvref_t<decltype(import_block(memory, block->description(),
                                                            [&](std::size_t i) { return block->pages(i); }))>>
        imported;
    t.attempt("import_block", [&] {
      imported.emplace(
          import_block(memory, block->description(), [&](std::size_t i) { return block->pages(i); }));
    });
    if (imported) {
      t.attempt("wait_ready", [&] { imported->wait_ready(b); });
      t.attempt("record_done", [&] { imported->record_done(b); });
      t.attempt("wait_done", [&] { block->wait_done(a); });
      t.attempt("synchronize_ready", [&] { imported->synchronize_ready(); });
      t.attempt("synchronize_done", [&] { block->synchronize_done(); });
    }
    t.attempt("dma_buf", [&] {
      try {
        dma_buf const part(memory, p, 1_MiB);
      } catch (cuda_error const& e) {
        if (e.kind() != failure::unsupported) throw;  // the simulated device has none
      }
    });
    t.attempt("to_bytes", [&] { (void)block_description::from_bytes(block->description().to_bytes()); });
  }
  host_faults::not_counted const own;
  t.check_equal(open_descriptors(t), before, "open descriptors before and after");
}

/// A library that counts what is registered with it.
struct counting_library {
  using handle = int;
  int* live;
  int add(void*, std::size_t) const noexcept { return ++*live; }
  void remove(int) const noexcept { --*live; }
};

/// Registers a part of a block and the whole block. A failure leaves what was registered as it was.
template <class Memory>
void register_pages(trial& t, Memory const& memory, void* p, std::size_t bytes) {
  int live = 0;
  {
    page_registrations pages(memory, counting_library{&live});
    t.attempt("register a part", [&] { (void)pages.ensure(p, 1); });
    bool const has_part = pages.covers(p, 1);
    t.attempt("register the block", [&] { (void)pages.ensure(p, bytes); });
    host_faults::not_counted const own;
    if (has_part && !pages.covers(p, 1)) t.complain("a failure ended a registration");
    t.check_equal(live, static_cast<int>(pages.added()), "registrations");
  }
  host_faults::not_counted const own;
  t.check_equal(live, 0, "registrations at the end");
}

void sharing(trial& t) {
  stream const a(t.driver());
  stream const b(t.driver());
  basic_pages const pages(t.driver());
  // A device that cannot be asked is taken to have no pages, or none that can be exported.
  if (!pages.has_pages() || pages.handle_type() == allocation_handle_type::none) return;
  auto const memory = pages | pooled{.largest_handle = 2_MiB} | order_watched{t.machine()} | tracked{};
  held_blocks held(t, memory);
  void* const p = held.get(a, 6_MiB);
  if (p != nullptr) pass_on(t, memory, p, 6_MiB, a, b);
  if (p != nullptr) register_pages(t, memory, p, 6_MiB);
  t.heal();
  void* const q = held.get(a, 6_MiB);
  if (q != nullptr) pass_on(t, memory, q, 6_MiB, a, b);
  if (q != nullptr) register_pages(t, memory, q, 6_MiB);
  held.empty_out("after an export");
}

constexpr scene all[] = {{"sharing", sharing_machine, sharing}};

}  // namespace of_sharing

std::span<scene const> sharing_scenes() {
  return of_sharing::all;
}

}  // namespace tarn_test
