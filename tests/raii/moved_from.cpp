// SPDX-License-Identifier: Apache-2.0
// A moved-from object is empty: it can be destroyed, assigned, and asked for its size. One list of types,
// each with how it is made: a new owner or value is added there.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "tarn/core/misuse.hpp"
#include "tarn/diagnostics.hpp"
#include "tarn/sharing.hpp"
#include "tarn/sim.hpp"
#include "tarn/transfer.hpp"

using namespace tarn;

namespace {

/// Asks all that an object can be asked for its size; returns of each answer whether it is that of an empty
/// one.
template <class T>
std::vector<bool> emptiness(T const& t) {
  std::vector<bool> answers;
  auto const ask = [&](bool answer) { answers.push_back(answer); };
  if constexpr (requires { static_cast<bool>(t); }) ask(!static_cast<bool>(t));
  if constexpr (requires {
                  { t.empty() } -> std::same_as<bool>;
                })
    ask(t.empty());
  if constexpr (requires {
                  { t.size() } -> std::integral;
                })
    ask(t.size() == 0);
  if constexpr (requires {
                  { t.size_bytes() } -> std::integral;
                })
    ask(t.size_bytes() == 0);
  if constexpr (requires {
                  { t.bytes() } -> std::integral;
                })
    ask(t.bytes() == 0);
  if constexpr (requires {
                  { t.capacity() } -> std::integral;
                })
    ask(t.capacity() == 0);
  if constexpr (requires {
                  { t.used() } -> std::integral;
                })
    ask(t.used() == 0);
  if constexpr (requires {
                  { t.peak() } -> std::integral;
                })
    ask(t.peak() == 0);
  if constexpr (requires {
                  { t.parts() } -> std::integral;
                })
    ask(t.parts() == 0);
  if constexpr (requires {
                  { t.added() } -> std::integral;
                })
    ask(t.added() == 0);
  if constexpr (requires {
                  { t.offset() } -> std::integral;
                })
    ask(t.offset() == 0);
  if constexpr (requires {
                  { t.descriptor() } -> std::integral;
                })
    ask(t.descriptor() < 0);
  if constexpr (requires {
                  { t.has_events() } -> std::same_as<bool>;
                })
    ask(!t.has_events());
  if constexpr (requires { t.data() == nullptr; }) ask(t.data() == nullptr);
  if constexpr (requires { t.description().handles; }) ask(t.description().handles.empty());
  CHECK(!answers.empty());
  return answers;
}
template <class T>
bool is_empty(T const& t) {
  auto const answers = emptiness(t);
  return std::find(answers.begin(), answers.end(), false) == answers.end();
}

template <class Make>
void check(char const* name, Make const& make) {
  using type = decltype(make());
  INFO(name);
  type a = make();
  CHECK_FALSE(is_empty(a));
  type b(std::move(a));
  CHECK(is_empty(a));  // NOLINT: that is the question
  CHECK_FALSE(is_empty(b));
  a = std::move(b);
  CHECK_FALSE(is_empty(a));
  CHECK(is_empty(b));                    // NOLINT
  if constexpr (!std::copyable<type>) {  // an owner
    auto const before = emptiness(a);
    type& same = a;
    a = std::move(same);
    CHECK(emptiness(a) == before);
  }
  a = make();  // what it held is given back
  CHECK_FALSE(is_empty(a));
  a = std::move(b);  // empty from empty
  CHECK(is_empty(a));
  type c(std::move(a));  // NOLINT
  CHECK(is_empty(c));
}

/// A library that knows registered ranges only by their number.
struct counting_library {
  using handle = int;
  int last = 0;
  int add(void*, std::size_t) { return ++last; }
  void remove(int) noexcept {}
};

}  // namespace

TEST_CASE("a moved-from object is empty, and can be destroyed, assigned and asked for its size",
          "[raii][moved_from][pages]") {
  sim_options options;
  options.devices = 2;
#if defined(__linux__)
  options.sharing = sim_sharing::descriptors;
#endif
  sim_machine const machine(options);
  sim_driver const driver = machine.driver(0);
  {
    auto memory = sim_pages{driver} | pooled{} | tracked{};
    auto pinned = sim_pinned_host{driver} | pooled{};
    auto limited_memory = sim_pages{driver} | pooled{} | limited{1_GiB};
    basic_stream const stream(driver);
    void* const block = memory.allocate(stream, 5_MiB);
    std::filesystem::path const path = std::filesystem::temp_directory_path() / "tarn_moved_from";
    std::ofstream(path) << "contents";

    check("pool", [&] { return sim_pages{driver} | pooled{}; });
    check("any_resource", [&] { return basic_any_resource<sim_driver, device_accessible>(memory); });
    check("stream", [&] { return basic_stream(driver); });
    check("device_buffer", [&] { return make_device_buffer<int>(memory, 100, stream); });
    check("device_ptr", [&] { return make_device<int>(memory, stream); });
    check("device_ptr of an array", [&] { return make_device<int[]>(memory, 100, stream); });
    check("growing_buffer", [&] {
      growing_buffer<int, decltype(memory)> buffer(memory, 1000, stream);
      buffer.resize(100);
      return buffer;
    });
    check("pinned_buffer", [&] { return pinned_buffer<int, decltype(pinned)>(pinned, 100); });
    check("partition", [] { return partition_layout::even(100, 3); });
    check("partitioned_buffer", [&] {
      std::vector<sim_pages> const pages{sim_pages{driver}, sim_pages{machine.driver(1)}};
      std::vector<decltype(pages[0] | pooled{})> const pools{pages[0] | pooled{}, pages[1] | pooled{}};
      return partitioned_buffer<int, decltype(pages[0] | pooled{})>(pools, partition_layout::even(100, 2));
    });
    check("reservation", [&] {
      auto task = reserve(limited_memory, 10_MiB);
      auto from = task.resource();
      from.deallocate(stream, from.allocate(stream, 100), 100);
      return task;
    });
    check("mapped_file", [&] { return mapped_file(path.string()); });
    check("page_pin", [&] { return page_pin(memory, block, 5_MiB); });
    check("page_registrations", [&] {
      page_registrations<decltype(memory), counting_library> pages(memory, {});
      (void)pages.ensure(block, 5_MiB);
      return pages;
    });
#if defined(__linux__)
    check("exported_block", [&] { return export_block(memory, block, 5_MiB, stream); });
    auto const exported = export_block(memory, block, 5_MiB, stream);
    check("exported_pages", [&] { return exported.pages(0); });
    check("imported_block", [&] {
      return import_block(memory, exported.description(), [&](std::size_t i) { return exported.pages(i); });
    });
#endif
    check("unique_descriptor", [] { return unique_descriptor(::dup(1)); });
    std::filesystem::remove(path);
    memory.deallocate(stream, block, 5_MiB);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("a moved-from stream refuses to be used instead of being the default stream",
          "[raii][moved_from][stream]") {
  sim_machine const machine;
  basic_stream a(machine.driver());
  basic_stream const b(std::move(a));
  auto const is_refused = [](auto const& use) {
    try {
      use();
    } catch (misuse const& m) {
      return m.kind() == misuse_kind::no_resource;
    }
    return false;
  };
  auto memory = sim_pages{machine.driver()} | pooled{};
  // NOLINTBEGIN(bugprone-use-after-move)
  CHECK(is_refused([&] { (void)memory.allocate(a, 100); }));
  CHECK(is_refused([&] { (void)a.ref(); }));
  CHECK(is_refused([&] { (void)a.get(); }));
  CHECK(is_refused([&] { a.synchronize(); }));
  // NOLINTEND(bugprone-use-after-move)
  CHECK(memory->state().live == 0);
  b.synchronize();
}
