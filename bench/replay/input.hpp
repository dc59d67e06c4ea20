// SPDX-License-Identifier: Apache-2.0
#pragma once
// input: bytes of a file or of standard input, plain or gzip, distinguished by the first two bytes.

#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace tarn::bench {

/// The file cannot be opened or read, or its gzip data are corrupt or truncated.
class input_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A stream of decoded bytes. One thread at a time.
class input {
 public:
  /// Opens a file; "-" is standard input.
  /// @throws input_error  the file cannot be opened
  explicit input(std::string const& path);
  ~input();
  input(input const&) = delete;
  input& operator=(input const&) = delete;

  /// Reads the next bytes into `to`; fewer than requested only before the end or an error, none at the end.
  /// @throws input_error  a read failed, or the gzip data are corrupt or truncated; the bytes before the
  /// error have been
  ///                      returned, so a reader knows the line
  std::size_t read(std::span<char> to);

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace tarn::bench
