// SPDX-License-Identifier: Apache-2.0
#pragma once
// memory_explanation: the parts of a device's memory as numbers and as a table, with a residual that makes
// their sum exact.

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tarn/core/min_max.hpp"
#include "tarn/core/text.hpp"

namespace TARN_NAMESPACE {

/// The memory of one pool, bytes, as the pool reports it. live + deferred + cached is reserved.
struct pool_share {
  std::string name;          ///< "pool 1", ...: may be changed before printing
  std::size_t reserved = 0;  ///< held from the driver
  std::size_t live = 0;      ///< allocated, as the pool rounds
  std::optional<std::size_t>
      requested;  ///< part of live: requested; known if `tracked` counts the pool's allocations
  std::optional<std::size_t> rounding;  ///< part of live: difference between block sizes and requests
  std::size_t untracked = 0;            ///< part of live: allocated bypassing `tracked`
  std::size_t deferred = 0;  ///< freed, but another stream that used it (record_stream) has not finished
  std::size_t cached = 0;    ///< free for reuse
  char const* backend = "";  ///< as allocator_backend() returns it; empty without a pool. Static storage
};

/// One row of the table.
struct memory_row {
  /// 0: the total; 1: its parts, which add up to it; 2: parts of this process; 3: parts of a pool
  int depth = 0;
  std::string name;
  std::optional<std::int64_t> bytes;  ///< none: unknown
  std::string how;                    ///< source of the figure, unless it is a plain count
};

/// The parts of a device's memory, bytes. Unknown is std::nullopt, never 0. Exact by construction:
///   other_processes + process() + set_aside + free + residual() == total, with unknown parts as 0, and
///   context + other_allocations (or outside_pools, if they are not known separately) + pools + other_pools == process().
struct memory_explanation {
  int device = 0;
  std::string source;                    ///< which library reported, or why none could
  std::size_t total = 0;                 ///< of the device, or of the partition that this process uses
  std::size_t free = 0;                  ///< as the driver reports, for all processes
  std::optional<std::size_t> set_aside;  ///< reserved by driver and firmware, for themselves and for ECC
  std::optional<std::size_t> other_processes;  ///< sum over all other processes
  std::optional<std::size_t> this_process;     ///< as nvidia-smi shows it
  std::optional<std::size_t> outside_pools;    ///< part of this process: context, modules, other allocations
  std::optional<std::size_t> context;          ///< part of outside_pools: as measured by measure_context()
  std::string context_how;                     ///< how it was measured
  std::optional<std::size_t>
      other_allocations;               ///< part of outside_pools: the rest, including modules loaded later
  std::vector<pool_share> pools;       ///< in the device's memory
  std::vector<pool_share> host_pools;  ///< in host or managed memory: not part of the sum
  /// reserved by pools of this process on the device that are not among `pools`
  std::size_t other_pools = 0;
  std::size_t other_pool_count = 0;
  std::string gap;  ///< why processes are unknown; empty if they are known

  /// Returns the bytes that all pools hold from the driver.
  [[nodiscard]] std::size_t reserved() const noexcept {
    std::size_t sum = other_pools;
    for (pool_share const& p : pools) sum += p.reserved;
    return sum;
  }
  /// Returns the bytes that count as this process's in the sum: those known to be outside the pools, plus the
  /// pools.
  [[nodiscard]] std::size_t process() const noexcept {
    return outside_pools.value_or(context.value_or(0)) + reserved();
  }
  /// Returns the total minus all known parts. Negative if figures overlap: taken at different moments, or by
  /// a driver that shares memory between processes.
  [[nodiscard]] std::int64_t residual() const noexcept {
    return number(total) - number(other_processes.value_or(0)) - number(process()) -
           number(set_aside.value_or(0)) - number(free);
  }

  /// Returns the rows of the table, the total first. @throws std::bad_alloc
  [[nodiscard]] std::vector<memory_row> rows() const {
    std::vector<memory_row> out;
    auto const add = [&](int depth, std::string name, std::optional<std::size_t> bytes,
                         std::string how = {}) {
      std::optional<std::int64_t> value;
      if (bytes) value = number(*bytes);
      out.push_back({depth, std::move(name), value, std::move(how)});
    };
    add(0, "total on the device", total, source);
    add(1, "other processes", other_processes, other_processes ? "" : gap);
    if (this_process && outside_pools) {
      add(1, "this process", process(), "as nvidia-smi shows it");
    } else {
      add(1, "this process, at least", process(),
          detail::concat({"the known part", gap.empty() ? "" : "; ", gap}));
    }
    if (context) {
      add(2, "context and modules", context, context_how);
      add(2, "other allocations", other_allocations,
          "the remainder: memory outside tarn, modules loaded later");
    } else {
      add(2, "context, modules, other allocations", outside_pools,
          outside_pools ? "estimated: nvidia-smi's value minus the pools; measure_context() separates them"
                        : "");
    }
    for (pool_share const& p : pools) add_pool(out, p, 2, ", reserved");
    if (other_pool_count != 0)
      add(2, "other pools, reserved", other_pools,
          detail::concat(
              {std::to_string(other_pool_count), " of this process; pass them to see their parts"}));
    add(1, "set aside by driver and firmware", set_aside);
    add(1, "free", free);
    out.push_back({1, "not accounted for", residual(), missing()});
    for (pool_share const& p : host_pools) add_pool(out, p, 0, ", reserved in host or managed memory");
    return out;
  }

  /// Prints text(): `std::cout << tarn::explain_memory(pool);`
  template <class Traits>
  friend std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out,
                                                      memory_explanation const& e) {
    return out << e.text();
  }
  /// Returns the table as text, each row in bytes and in MiB. @throws std::bad_alloc
  [[nodiscard]] std::string text() const {
    std::string out = line(detail::concat({"device ", std::to_string(device)}), "bytes", "MiB", "");
    for (memory_row const& row : rows()) {
      std::string const indent(static_cast<std::size_t>(2 * row.depth), ' ');
      out += line(indent + row.name, row.bytes ? std::to_string(*row.bytes) : "unknown",
                  row.bytes ? in_mib(*row.bytes) : "", row.how);
    }
    return out;
  }

 private:
  [[nodiscard]] static std::int64_t number(std::size_t bytes) noexcept {
    return static_cast<std::int64_t>(bytes);
  }
  /// Returns what the residual may contain: the unknown parts, and what no interface reports.
  [[nodiscard]] std::string missing() const {
    std::string out;
    if (!other_processes) out += "other processes, ";
    if (!outside_pools) out += context ? "other allocations, " : "context, modules, other allocations, ";
    if (!set_aside) out += "memory set aside by driver and firmware, ";
    return out + "the driver's own bookkeeping";
  }
  static void add_pool(std::vector<memory_row>& out, pool_share const& p, int depth, char const* where) {
    auto const add = [&](int level, std::string name, std::size_t bytes, char const* how = "") {
      out.push_back({level, std::move(name), number(bytes), how});
    };
    bool const of_blocks = p.backend[0] != '\0' && std::string_view(p.backend) != "pages";
    add(depth, p.name + where, p.reserved);
    if (of_blocks) out.back().how = detail::concat({"in blocks of ", p.backend});
    if (p.requested && p.rounding) {
      add(depth + 1, "live, requested", *p.requested);
      add(depth + 1, "live, rounding", *p.rounding);
      if (p.untracked != 0) add(depth + 1, "live, not counted by `tracked`", p.untracked);
    } else {
      add(depth + 1, "live", p.live, "| tarn::tracked{} directly above the pool shows the rounding");
    }
    add(depth + 1, "deferred for another stream", p.deferred);
    add(depth + 1, "cached", p.cached);
  }
  [[nodiscard]] static std::string in_mib(std::int64_t bytes) {
    // Four decimals, so that a model of 440 bytes shows as 0.0004. Not printf, which depends on the locale.
    char text[48];
    double const mib = static_cast<double>(bytes) / (1 << 20);
    return {text, std::to_chars(text, text + sizeof text, mib, std::chars_format::fixed, 4).ptr};
  }
  [[nodiscard]] static std::string line(std::string name, std::string const& bytes, std::string const& mib,
                                        std::string const& how) {
    name.resize(detail::max_of<std::size_t>(name.size(), 40), ' ');
    std::string out = name + detail::right(bytes, 15) + detail::right(mib, 13) + "  " + how;
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  }
};

}  // namespace TARN_NAMESPACE
