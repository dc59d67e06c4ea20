// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bytes of a file or of standard input, plain or gzip, told apart by the first two bytes.

#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace tarn::bench {

/// The file cannot be opened or read, or its gzip data are broken or cut short.
class input_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A stream of decoded bytes. One thread at a time.
class input {
 public:
  /// Opens a file; "-" is standard input.
  /// @throws input_error  it cannot be opened
  explicit input(std::string const& path);
  ~input();
  input(input const&) = delete;
  input& operator=(input const&) = delete;

  /// Reads the next bytes into `to`; fewer than asked only before the end or an error, none at the end.
  /// @throws input_error  a read failed, or the gzip data are corrupt or truncated; all bytes before it have
  ///                      been handed out, so a reader knows the line
  std::size_t read(std::span<char> to);

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace tarn::bench
