// SPDX-License-Identifier: Apache-2.0
#pragma once
// progress: a line on the terminal that shows the progress of long work. Silent if standard error is not a
// terminal.

#include <cstdint>
#include <string>
#include <string_view>

namespace tarn::bench {

/// A line that is rewritten in place and removed on destruction.
class progress {
 public:
  enum class output : std::uint8_t { automatic, silent };

  explicit progress(output where = output::automatic);
  ~progress();
  progress(progress const&) = delete;
  progress& operator=(progress const&) = delete;

  /// Sets the name of the current work.
  void begin(std::string_view work);
  /// Shows that `done` of `all` is done. Rewrites the line at most once per percent.
  void show(std::uint64_t done, std::uint64_t all);
  /// Removes the line, so that other text can be written.
  void clear();

 private:
  bool visible_;
  bool written_ = false;
  unsigned last_percent_ = 101;
  std::string work_;
};

}  // namespace tarn::bench
