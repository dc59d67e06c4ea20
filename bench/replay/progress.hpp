// SPDX-License-Identifier: Apache-2.0
#pragma once
// One line on the terminal that says how far long work is. Silent where standard error is no terminal.

#include <cstdint>
#include <string>
#include <string_view>

namespace tarn::bench {

/// A line that rewrites itself and vanishes with its object.
class progress {
 public:
  enum class output : std::uint8_t { automatic, silent };

  explicit progress(output where = output::automatic);
  ~progress();
  progress(progress const&) = delete;
  progress& operator=(progress const&) = delete;

  /// Names the work from now on.
  void begin(std::string_view work);
  /// Says that `done` of `all` is done. Rewrites the line at most once per percent.
  void show(std::uint64_t done, std::uint64_t all);
  /// Takes the line away, so that other text can be written.
  void clear();

 private:
  bool visible_;
  bool written_ = false;
  unsigned last_percent_ = 101;
  std::string work_;
};

}  // namespace tarn::bench
