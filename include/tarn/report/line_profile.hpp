// SPDX-License-Identifier: Apache-2.0
#pragma once
// The line profile: what each marked source line does to memory, as memory_profiler does for Python, and its
// table in source order, as line profilers print it.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/core/text.hpp"
#include "tarn/raii/peak_scope.hpp"
#include "tarn/report/summary.hpp"

namespace TARN_NAMESPACE {

/// The memory use of one line; bytes as the pool rounds them.
struct profiled_line {
  source_location where;
  std::uint64_t calls = 0;
  std::int64_t change = 0;   ///< change of live bytes over all calls; negative: more was freed
  std::size_t peak = 0;      ///< highest use above the start of a call, over all calls
  std::uint64_t blocks = 0;  ///< blocks allocated in all calls

  /// Adds other calls of the line.
  void add(profiled_line const& more) noexcept {
    calls += more.calls;
    change += more.change;
    peak = detail::max_of(peak, more.peak);
    blocks += more.blocks;
  }
};

namespace detail {

/// The profiled lines of the process. Created at first use and never destroyed: lines may run during process
/// exit.
class line_registry {
 public:
  /// Maximum number of distinct lines; calls of further ones are counted in dropped().
  static constexpr std::size_t most = 4096;

  [[nodiscard]] static line_registry& of_process() {
    line_registry* made = only.load(std::memory_order_acquire);
    if (made == nullptr) {
      auto fresh = std::make_unique<line_registry>();
      if (only.compare_exchange_strong(made, fresh.get())) made = fresh.release();
    }
    return *made;
  }

  /// Adds one call of a line. O(lines). If host memory cannot be allocated, the call is counted as dropped.
  void add(profiled_line const& call) noexcept {
    scoped_lock const guard(mutex_);
    for (profiled_line& l : lines_) {
      if (l.where.line != call.where.line || l.where.file != call.where.file) continue;
      if (l.where.function != call.where.function) continue;
      return l.add(call);
    }
    if (lines_.size() < most) {
      try {
        lines_.push_back(profiled_line(call));
        return;
      } catch (...) {
      }
    }
    ++dropped_;
  }
  /// Calls f with each line. @throws what f throws
  template <class F>
  void for_each(F const& f) {
    scoped_lock const guard(mutex_);
    for (profiled_line const& l : lines_) f(l);
  }
  [[nodiscard]] std::uint64_t dropped() noexcept {
    scoped_lock const guard(mutex_);
    return dropped_;
  }
  void reset() noexcept {
    scoped_lock const guard(mutex_);
    sequence<profiled_line>().swap(lines_);
    dropped_ = 0;
  }

 private:
  inline static constinit std::atomic<line_registry*> only{nullptr};

  detail::fork_mutex mutex_;
  sequence<profiled_line> lines_;
  std::uint64_t dropped_ = 0;
};

}  // namespace detail

/// Adds the memory use of a scope to the line that declares it. The memory has a `tracked` layer, as every
/// device_pool does. By default only calls of the current thread count: memory freed by another thread does
/// not. Scopes nest; an outer one includes the inner ones. Costs a high-water mark while alive (see
/// peak_scope) and one lock at the end. Throws only if the first scope cannot allocate the table.
template <class Resource>
class [[nodiscard]] line_profile_scope {
 public:
  explicit line_profile_scope(Resource memory, source_location where = source_location::current())
      : line_profile_scope(std::move(memory), peak_of::this_thread, where) {}
  line_profile_scope(Resource memory, peak_of whose, source_location where = source_location::current())
      : lines_(detail::line_registry::of_process()), peak_(std::move(memory), whose), where_(where) {}
  ~line_profile_scope() {
    lines_.add({where_, 1, peak_.net_bytes(), peak_.peak_above_start(), peak_.count()});
  }

 private:
  detail::line_registry& lines_;
  peak_scope<Resource> peak_;
  source_location where_;
};

/// Clears the profile.
inline void reset_line_profile() {
  detail::line_registry::of_process().reset();
}

}  // namespace TARN_NAMESPACE

/// Profiles from this line to the end of the enclosing block: `{ TARN_PROFILE_LINE(memory); step(); }`.
#define TARN_PROFILE_LINE(memory)                                                     \
  ::tarn::line_profile_scope const TARN_PROFILE_NAME(tarn_profiled_line_, __LINE__) { \
    memory                                                                            \
  }
/// Profiles one expression and returns its value: `auto w = TARN_PROFILE_EXPRESSION(memory,
/// make_device_buffer<float>(memory, n, s));`.
#define TARN_PROFILE_EXPRESSION(memory, ...) ((void)::tarn::line_profile_scope{memory}, __VA_ARGS__)
#define TARN_PROFILE_NAME(prefix, line) TARN_PROFILE_NAME_OF(prefix, line)
#define TARN_PROFILE_NAME_OF(prefix, line) prefix##line

namespace TARN_NAMESPACE {

/// Whether the table shows the text of the lines, read from the source files if they are readable.
enum class source_text { shown, left_out };

/// Returns the memory use of each profiled line since program start or the last reset_line_profile(), by file
/// and line.
/// @throws std::bad_alloc
[[nodiscard]] inline std::vector<profiled_line> line_profile() {
  std::vector<profiled_line> lines;
  detail::line_registry::of_process().for_each([&](profiled_line const& l) { lines.push_back(l); });
  std::sort(lines.begin(), lines.end(), [](profiled_line const& a, profiled_line const& b) {
    int const order = std::strcmp(a.where.file, b.where.file);
    return order != 0 ? order < 0 : a.where.line < b.where.line;
  });
  // A line of a header, or of a template, is stored once per function.
  std::vector<profiled_line> merged;
  for (profiled_line const& l : lines) {
    if (!merged.empty() && merged.back().where.line == l.where.line &&
        std::strcmp(merged.back().where.file, l.where.file) == 0) {
      merged.back().add(l);
    } else {
      merged.push_back(l);
    }
  }
  return merged;
}

namespace detail {

/// Formats signed bytes: "+1.5 MiB", "-20 B", "0 B".
[[nodiscard]] inline std::string signed_bytes(std::int64_t bytes) {
  message<32> text;
  auto const size = static_cast<std::uint64_t>(bytes < 0 ? -bytes : bytes);
  if (bytes != 0) text.add(bytes < 0 ? "-" : "+");
  return text.add_bytes(size).c_str();
}

/// Lines of source files; each file is read once.
class source_lines {
 public:
  /// Returns a line without leading blanks; empty if it cannot be read.
  [[nodiscard]] std::string of(source_location const& where) {
    auto const [known, is_new] = files_.try_emplace(where.file);
    if (is_new) {
      std::ifstream file(where.file);
      for (std::string line; std::getline(file, line);) known->second.push_back(line);
    }
    auto const at = static_cast<std::size_t>(where.line);
    if (at == 0 || at > known->second.size()) return {};
    std::string const& line = known->second[at - 1];
    std::size_t const begin = line.find_first_not_of(" \t");
    return begin != std::string::npos ? line.substr(begin) : std::string();
  }

 private:
  std::map<std::string, std::vector<std::string>> files_;
};

}  // namespace detail

/// Returns the profile as a table: a heading per file, then per line its number, calls, change of live bytes
/// over all calls, the highest use above the start of a call, and the source text or the function. @throws
/// std::bad_alloc
[[nodiscard]] inline std::string line_profile_table(source_text source = source_text::shown) {
  detail::source_lines sources;
  std::string out;
  std::string_view file;
  for (profiled_line const& l : line_profile()) {
    if (out.empty() || file != l.where.file) {
      if (!out.empty()) out += '\n';
      file = l.where.file;
      out += detail::as_printable(file) + "\n  line      calls       change         peak  source\n";
    }
    out += detail::right(std::to_string(l.where.line), 6) + detail::right(std::to_string(l.calls), 11);
    out += detail::right(detail::signed_bytes(l.change), 13);
    out += detail::right(detail::signed_bytes(static_cast<std::int64_t>(l.peak)), 13);
    std::string text = source == source_text::shown ? sources.of(l.where) : std::string();
    // A macro alone on its line is less informative than the function.
    if (text.starts_with("TARN_PROFILE_LINE(") && text.find(';') + 1 == text.size()) text.clear();
    if (text.empty()) text = detail::concat({"in ", l.where.function});
    out += detail::concat({"  ", detail::as_printable(text), "\n"});
  }
  if (std::uint64_t const dropped = detail::line_registry::of_process().dropped(); dropped != 0) {
    out += std::to_string(dropped) + " calls of further lines are not shown\n";
  }
  return out;
}

}  // namespace TARN_NAMESPACE
