// SPDX-License-Identifier: Apache-2.0
#pragma once
// The timed loops, for any device. A place provides driver(), now() in seconds and its name.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moving/figure.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/source/cuda_pages.hpp"
#include "tarn/source/pinned_host.hpp"
#include "tarn/source/registered_host.hpp"
#include "tarn/transfer/collect_batches.hpp"
#include "tarn/transfer/stream_batches.hpp"

namespace tarn::bench {

template <class Place>
class loops {
 public:
  using driver_type = typename Place::driver_type;

  loops(Place place, extent const& e, figure_handler const& on_figure)
      : place_(std::move(place)),
        e_(e),
        on_figure_(on_figure),
        memory_(basic_pages<driver_type>(place_.driver()) | pooled{} | tracked{}),
        staging_(basic_registered<driver_type>(place_.driver()) | pooled{} | tracked{}),
        stream_(place_.driver()) {}

  void run() {
    attempt("pin", [&] { pin(); });
    attempt("to the device", [&] { to_the_device(); });
    attempt("to the host", [&] { to_the_host(); });
  }

 private:
  using pool = decltype(basic_pages<driver_type>(std::declval<driver_type>()) | pooled{} | tracked{});
  using pinned_pool =
      decltype(basic_registered<driver_type>(std::declval<driver_type>()) | pooled{} | tracked{});
  using pinned_bytes = pinned_buffer<std::byte, pinned_pool>;

  struct spread {
    double median, best, worst;
  };

  template <class Act>
  void attempt(char const* work, Act const& act) {
    try {
      act();
    } catch (std::exception const& error) {
      figure f;
      f.work = work;
      f.device = Place::name;
      f.problem = error.what();
      on_figure_(f);
    }
  }
  /// Returns the seconds of `act` with all its device work, after one discarded run.
  template <class Act>
  spread time(Act const& act) {
    std::vector<double> seconds;
    for (unsigned i = 0; i <= e_.repetitions; ++i) {
      stream_.synchronize();
      double const begin = place_.now();
      act();
      stream_.synchronize();
      if (i != 0) seconds.push_back(place_.now() - begin);
    }
    std::sort(seconds.begin(), seconds.end());
    return {seconds[seconds.size() / 2], seconds.front(), seconds.back()};
  }
  void say(char const* work, std::string way, char const* unit, spread s, double of_reference = 0) {
    on_figure_({work, std::move(way), Place::name, unit, s.median, s.best, s.worst, of_reference, {}});
  }
  /// Returns bytes per second; reports the rate and its ratio to the reference.
  template <class Act>
  double rate(char const* work, std::string way, double reference, Act const& act) {
    spread const s = time(act);
    auto const per_second = [&](double seconds) { return static_cast<double>(e_.bytes) / seconds * 1e-9; };
    double const median = per_second(s.median);
    say(work, std::move(way), "GB/s", {median, per_second(s.best), per_second(s.worst)},
        reference == 0 ? 0 : median / reference);
    return median;
  }

  [[nodiscard]] batch_options options(unsigned threads = 0) const {
    return {.batch_bytes = e_.batch_bytes, .depth = e_.depth, .threads = threads};
  }
  template <class Source>
  void stream_all(Source&& source, unsigned threads = 0) {
    stream_all(std::forward<Source>(source), options(threads));
  }
  template <class Source>
  void stream_all(Source&& source, batch_options const& o) {
    for ([[maybe_unused]] auto batch :
         stream_batches(std::forward<Source>(source), o, memory_, stream_, staging_)) {
    }
  }

  void to_the_device() {
    constexpr char const* work = "to the device";
    pinned_bytes there(staging_, e_.bytes, elements::value_initialised, stream_);
    auto const slot = make_device_buffer<std::byte>(memory_, e_.batch_bytes, stream_);
    auto const plain = [&] {
      for (std::size_t at = 0; at < e_.bytes; at += e_.batch_bytes) {
        std::size_t const bytes = std::min(e_.batch_bytes, e_.bytes - at);
        require(place_.driver().copy(stream_, const_cast<std::byte*>(slot.data()), there.data() + at, bytes));
      }
    };
    double const reference = rate(work, "pinned, plain copies", 0, plain);
    rate(work, "pinned, stream_batches", reference, [&] { stream_all(there); });
    overlap(there, reference);
    for (unsigned const threads : {1U, e_.threads}) {
      rate(work, "pageable, " + threads_of(threads), reference,
           [&] { stream_all(pageable_source<std::byte>(std::span<std::byte const>(there)), threads); });
    }
    batch_options larger = options(e_.threads);
    larger.batch_bytes *= 4;
    rate(work, "pageable, " + threads_of(e_.threads) + ", batches four times as large", reference,
         [&] { stream_all(pageable_source<std::byte>(std::span<std::byte const>(there)), larger); });
    rate(work, "generator, " + threads_of(e_.threads), reference, [&] {
      stream_all(generate<std::byte>([&](std::span<std::byte> to, std::size_t index) -> std::size_t {
                   std::size_t const from = index * e_.batch_bytes;
                   std::size_t const bytes = from >= e_.bytes ? 0 : std::min(to.size(), e_.bytes - from);
                   if (bytes != 0) std::memset(to.data(), static_cast<int>(index), bytes);
                   return bytes;
                 }),
                 e_.threads);
    });
    there.reset();
    file(reference);
  }

  /// Device work that takes as long as the copies.
  void overlap(pinned_bytes const& there, double reference) {
    std::size_t const fill_bytes = 256_MiB;
    auto target = make_device_buffer<std::byte>(memory_, fill_bytes, stream_);
    constexpr unsigned probes = 64;
    double const one = time([&] {
                         for (unsigned i = 0; i < probes; ++i) target.zero();
                       }).median /
                       probes;
    double const copy = static_cast<double>(e_.batch_bytes) / (reference * 1e9);
    auto const fills = std::max(1U, static_cast<unsigned>(copy / one + 0.5));
    auto const body = [&] {
      for (unsigned i = 0; i < fills; ++i) target.zero();
    };
    std::size_t const batches = (e_.bytes + e_.batch_bytes - 1) / e_.batch_bytes;
    double const work_alone = time([&] {
                                for (std::size_t i = 0; i < batches; ++i) body();
                              }).median;
    double const copies_alone = time([&] { stream_all(there); }).median;
    spread const both = time([&] {
      for ([[maybe_unused]] auto batch : stream_batches(there, options(), memory_, stream_, staging_)) body();
    });
    double const longer = std::max(work_alone, copies_alone);
    say("to the device", "pinned, with work as long as the copies, beside the longer of the two alone",
        "times", {both.median / longer, both.best / longer, both.worst / longer}, longer / both.median);
  }

  void file(double reference) {
    std::string const path = e_.folder + "/tarn_moving_" + std::to_string(::getpid());
    try {
      {
        std::vector<char> const part(std::size_t{16} << 20, 'x');
        std::ofstream out(path, std::ios::binary);
        for (std::size_t at = 0; at < e_.bytes && out; at += part.size()) {
          out.write(part.data(), static_cast<std::streamsize>(std::min(part.size(), e_.bytes - at)));
        }
        out.close();
        if (!out) throw file_error(path, "cannot be written", 0);
      }
      mapped_file const mapped(path);
      rate("to the device", "file in the page cache, " + threads_of(e_.threads), reference,
           [&] { stream_all(from_file<std::byte>(mapped), e_.threads); });
      rate("to the device", "mapping of a file in the page cache, " + threads_of(e_.threads), reference, [&] {
        mapped_file const again(path);  // a new mapping, whose pages are not faulted in
        stream_all(again.as<std::byte>(), e_.threads);
      });
    } catch (...) {
      std::remove(path.c_str());
      throw;
    }
    std::remove(path.c_str());
  }

  void to_the_host() {
    constexpr char const* work = "to the host";
    auto device = make_device_buffer<std::byte>(memory_, e_.bytes, stream_);
    device.zero();
    pinned_bytes slot(staging_, e_.batch_bytes, elements::value_initialised, stream_);
    double const reference = rate(work, "pinned, plain copies", 0, [&] {
      for (std::size_t at = 0; at < e_.bytes; at += e_.batch_bytes) {
        std::size_t const bytes = std::min(e_.batch_bytes, e_.bytes - at);
        require(place_.driver().copy(stream_, slot.data(), device.data() + at, bytes));
      }
    });
    rate(work, "pinned, collect_batches", reference, [&] {
      for ([[maybe_unused]] auto batch : collect_batches(device, options(), stream_, staging_)) {
      }
    });
  }

  void pin() {
    pin_once("pinned_host", basic_pinned<driver_type>(place_.driver()));
    for (unsigned const threads : {1U, e_.threads, 16U}) {
      registered_options const huge{.pages = host_page_size::huge, .threads = threads};
      registered_options const usual{.pages = host_page_size::usual, .threads = threads};
      pin_once("registered_host, huge pages, " + threads_of(threads),
               basic_registered<driver_type>(place_.driver(), huge));
      pin_once("registered_host, usual pages, " + threads_of(threads),
               basic_registered<driver_type>(place_.driver(), usual));
    }
    auto pinned = basic_pinned<driver_type>(place_.driver()) | pooled{};
    for (std::size_t const bytes : {4_KiB, 1_MiB, 32_MiB}) {
      constexpr unsigned pairs = 100'000;
      spread const s = time([&] {
        for (unsigned i = 0; i < pairs; ++i)
          pinned.deallocate_sync(pinned.allocate_sync(bytes, 256), bytes, 256);
      });
      message<64> way;
      way.add("pool of pinned_host, warm pair of ").add_bytes(bytes);
      say("pin", std::string(way.view()), "ns",
          {s.median / pairs * 1e9, s.best / pairs * 1e9, s.worst / pairs * 1e9});
    }
    constexpr std::size_t odd = 129_MiB + 512_KiB;
    pinned.empty_cache();
    void* const p = pinned.allocate_sync(odd, 256);
    auto const held = static_cast<double>(pinned->state().reserved);
    pinned.deallocate_sync(p, odd, 256);
    say("pin", "pool of pinned_host, held for 129.5 MiB", "bytes", {held, held, held});
  }
  template <class Source>
  void pin_once(std::string way, Source source) {
    std::vector<double> seconds;
    for (unsigned i = 0; i < 2; ++i) {
      double const begin = place_.now();
      void* const p = source.allocate_sync(e_.pin_bytes, 256);
      seconds.push_back(place_.now() - begin);
      source.deallocate_sync(p, e_.pin_bytes, 256);
    }
    double const per_gib = 1000.0 * static_cast<double>(1_GiB) / static_cast<double>(e_.pin_bytes);
    std::sort(seconds.begin(), seconds.end());
    say("pin", std::move(way), "ms/GiB",
        {seconds.front() * per_gib, seconds.front() * per_gib, seconds.back() * per_gib});
  }

  static void require(status const& s) {
    if (!s.ok()) throw cuda_error(s);
  }
  static std::string threads_of(unsigned n) { return std::to_string(n) + (n == 1 ? " thread" : " threads"); }

  Place place_;
  extent e_;
  figure_handler const& on_figure_;
  pool memory_;
  pinned_pool staging_;
  basic_stream<driver_type> stream_;
};

}  // namespace tarn::bench
