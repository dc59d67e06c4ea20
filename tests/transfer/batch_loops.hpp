// SPDX-License-Identifier: Apache-2.0
#pragma once
// The contract of loops over batches on every device. A bench has driver(), memory(), pinned() and
// keep_busy(stream).

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/transfer/collect_batches.hpp"
#include "tarn/transfer/stream_batches.hpp"

namespace tarn_test {

using numbers = std::vector<std::uint32_t>;

inline numbers counted(std::size_t n, std::uint32_t from = 1) {
  numbers all(n);
  std::iota(all.begin(), all.end(), from);
  return all;
}

/// A temporary file. The destructor removes it.
class scratch_file {
 public:
  explicit scratch_file(std::span<std::uint32_t const> contents) {
    char name[] = "/tmp/tarn_batches_XXXXXX";
    int const file = ::mkstemp(name);
    REQUIRE(file >= 0);
    ::close(file);
    path_ = name;
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<char const*>(contents.data()),
               static_cast<std::streamsize>(contents.size_bytes()));
  }
  scratch_file(scratch_file const&) = delete;
  scratch_file& operator=(scratch_file const&) = delete;
  ~scratch_file() { std::remove(path_.c_str()); }
  [[nodiscard]] std::string const& path() const noexcept { return path_; }

 private:
  std::string path_;
};

/// Runs a loop whose body copies each batch to the end of the previous ones on the device, after long-running
/// work. Returns what the device received. Checks index(), offset() and size() of each batch.
template <class Bench, class Source>
numbers arrived(Bench& bench, tarn::basic_stream<typename Bench::driver_type> const& stream, Source&& source,
                tarn::batch_options const& options, std::size_t expected) {
  auto const driver = bench.driver();
  auto all = tarn::make_device_buffer<std::uint32_t>(bench.memory(), expected + 1, stream);
  all.zero();
  std::size_t index = 0;
  std::size_t offset = 0;
  for (auto batch :
       tarn::stream_batches(std::forward<Source>(source), options, bench.memory(), stream, bench.pinned())) {
    CHECK(batch.index() == index);
    CHECK(batch.offset() == offset);
    CHECK((batch.size() != 0 && batch.bytes() <= options.batch_bytes));
    REQUIRE(offset + batch.size() <= expected);
    if (index % 3 == 1) REQUIRE(bench.keep_busy(stream));
    REQUIRE(driver.copy(stream, all.data() + offset, batch.data(), batch.bytes()).ok());
    offset += batch.size();
    ++index;
  }
  numbers back(expected + 1);
  all.copy_to_sync(back);
  CHECK(back.back() == 0);
  back.resize(offset);
  return back;
}

/// Tests every kind of source, with sizes around the size of a batch.
template <class Bench>
void sources_arrive_whole(Bench& bench, std::size_t batch_elements, unsigned threads) {
  using namespace tarn;
  basic_stream<typename Bench::driver_type> const stream(bench.driver());
  for (std::size_t const depth : {1U, 2U, 3U, 5U}) {
    batch_options const options{.batch_bytes = batch_elements * 4 + 3, .depth = depth, .threads = threads};
    for (std::size_t const n : {std::size_t{0}, std::size_t{1}, batch_elements - 1, batch_elements,
                                batch_elements + 1, 7 * batch_elements, 7 * batch_elements + 5}) {
      CAPTURE(depth, n);
      numbers const all = counted(n);
      CHECK(arrived(bench, stream, all, options, n) == all);
      CHECK(arrived(bench, stream, std::span<std::uint32_t const>(all), options, n) == all);
      pinned_buffer<std::uint32_t, typename Bench::pinned_type> const there(bench.pinned(), all, stream);
      CHECK(arrived(bench, stream, there, options, n) == all);
      CHECK(arrived(bench, stream, pinned(std::span<std::uint32_t const>(there)), options, n) == all);
      scratch_file const file(all);
      mapped_file const mapped(file.path());
      CHECK(arrived(bench, stream, from_file<std::uint32_t>(mapped), options, n) == all);
      CHECK(arrived(bench, stream, mapped.as<std::uint32_t>(), options, n) == all);
      // Batches of several sizes; the last one is empty.
      std::size_t const short_by = n % 3;
      CHECK(arrived(bench, stream,
                    generate<std::uint32_t>([&](std::span<std::uint32_t> slot, std::size_t index) {
                      std::size_t const each = slot.size() > short_by ? slot.size() - short_by : 1;
                      std::size_t const from = index * each;
                      std::size_t const count = from >= n ? 0 : std::min(each, n - from);
                      for (std::size_t i = 0; i < count; ++i)
                        slot[i] = static_cast<std::uint32_t>(from + i + 1);
                      return count;
                    }),
                    options, n) == all);
    }
  }
}

/// Tests collect_batches, both to the end and with an early exit.
template <class Bench>
void device_memory_comes_back(Bench& bench, std::size_t batch_elements) {
  using namespace tarn;
  basic_stream<typename Bench::driver_type> const stream(bench.driver());
  for (std::size_t const depth : {1U, 2U, 4U}) {
    batch_options const options{.batch_bytes = batch_elements * 4 + 1, .depth = depth};
    for (std::size_t const n : {std::size_t{0}, std::size_t{1}, batch_elements, 5 * batch_elements + 7}) {
      CAPTURE(depth, n);
      numbers const all = counted(n);
      auto device = make_device_buffer<std::uint32_t>(bench.memory(), n, stream);
      // Written by an asynchronous copy behind long-running work. It must complete before the first batch is
      // copied.
      pinned_buffer<std::uint32_t, typename Bench::pinned_type> const there(bench.pinned(), all, stream);
      device.zero();
      REQUIRE(bench.keep_busy(stream));
      device.copy_from(std::span<std::uint32_t const>(there));
      numbers back;
      for (auto batch : collect_batches(device, options, stream, bench.pinned())) {
        CHECK(batch.offset() == back.size());
        CHECK(batch.index() == back.size() / batch_elements);
        back.insert(back.end(), batch.begin(), batch.end());
      }
      CHECK(back == all);
      back.clear();
      for (auto batch : collect_batches(device.span(), options, bench.memory(), stream, bench.pinned())) {
        back.assign(batch.begin(), batch.end());
        if (batch.index() == 2) break;
      }
      std::size_t const last = n == 0 ? 0 : std::min((n - 1) / batch_elements, std::size_t{2});
      std::size_t const from = last * batch_elements;
      CHECK(back == counted(std::min(batch_elements, n - from), static_cast<std::uint32_t>(from + 1)));
    }
  }
}

/// Tests loops that end early by break or exception. The next loop uses the same memory immediately.
template <class Bench>
void leaving_early_is_safe(Bench& bench, std::size_t batch_elements) {
  using namespace tarn;
  basic_stream<typename Bench::driver_type> const stream(bench.driver());
  batch_options const options{.batch_bytes = batch_elements * 4, .depth = 3, .threads = 2};
  numbers const all = counted(9 * batch_elements + 1);
  for (std::size_t leave = 0; leave < 10; ++leave) {
    for (auto batch : stream_batches(all, options, bench.memory(), stream, bench.pinned())) {
      REQUIRE(bench.keep_busy(stream));
      if (batch.index() == leave) break;
    }
    auto const in_the_body = [&] {
      for (auto batch : stream_batches(all, options, bench.memory(), stream, bench.pinned())) {
        if (batch.index() == leave) throw std::runtime_error("the body's");
      }
    };
    CHECK_THROWS_WITH(in_the_body(), "the body's");
    std::size_t seen = 0;
    auto const in_the_generator = [&] {
      for (auto batch :
           stream_batches(generate<std::uint32_t>([&](std::span<std::uint32_t> slot, std::size_t index) {
                            if (index == leave) throw std::runtime_error("the generator's");
                            return slot.size();
                          }),
                          options, bench.memory(), stream, bench.pinned())) {
        CHECK(batch.index() == seen++);
      }
    };
    CHECK_THROWS_WITH(in_the_generator(), "the generator's");
    CHECK(seen == leave);
    CHECK(arrived(bench, stream, all, options, all.size()) == all);
  }
}

}  // namespace tarn_test
