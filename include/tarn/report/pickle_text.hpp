// SPDX-License-Identifier: Apache-2.0
#pragma once
// An incremental writer of pickles of protocol 4: dictionaries, lists, strings, integers, pairs, and
// references to earlier values. Only what PyTorch's viewer unpickles, in batches of at most 1,000 (it passes
// a batch as the arguments of one call).

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tarn/core/text.hpp"

namespace TARN_NAMESPACE::detail {

/// Identifies a written value, to be referenced later.
using pickle_ref = std::uint32_t;

class pickle_text {
 public:
  explicit pickle_text(std::ostream& out) : out_(out) { put("\x80\x04"); }
  pickle_text& operator=(pickle_text&&) = delete;

  void begin_dict() { put("}("); }
  void end_dict() { put("u"); }
  void begin_list() {
    put("](");
    counts_.push_back(0);
  }
  /// Call before each item of a list.
  void item() {
    if (counts_.back()++ == most_in_batch) {
      put("e(");
      counts_.back() = 1;
    }
  }
  void end_list() {
    put("e");
    counts_.pop_back();
  }

  /// Writes a dictionary key or a frequent word; in full only the first time. `word` has static storage.
  void word(char const* word) {
    for (auto const& [known, ref] : words_) {
      if (known == word) return again(ref);
    }
    text(word);
    words_.emplace_back(word, remember());
  }
  void text(std::string_view value) {
    std::string const clean = as_utf8(value);
    put("X");
    put_little(clean.size(), 4);
    put(clean);
  }
  void number(std::uint64_t value) {
    if (value < 0x100) {
      put("K");
      put_little(value, 1);
    } else if (value < 0x10000) {
      put("M");
      put_little(value, 2);
    } else if (value < 0x80000000) {
      put("J");
      put_little(value, 4);
    } else {
      unsigned bytes = 5;  // the highest bit is the sign
      while (bytes < 9 && value >> (8 * bytes - 1) != 0) ++bytes;
      put("\x8a");
      put_little(bytes, 1);
      put_little(value, bytes < 9 ? bytes : 8);
      if (bytes == 9) put_little(0, 1);
    }
  }
  void boolean(bool value) { put(value ? "\x88" : "\x89"); }
  /// Makes a pair of the last two values written.
  void end_pair() { put("\x86"); }

  /// Returns a reference to the last value written.
  [[nodiscard]] pickle_ref remember() {
    put("\x94");
    return next_ref_++;
  }
  void again(pickle_ref ref) {
    bool const is_short = ref < 0x100;
    put(is_short ? "h" : "j");
    put_little(ref, is_short ? 1 : 4);
  }

  /// Ends the pickle.
  void stop() {
    put(".");
    flush();
  }

 private:
  static constexpr std::size_t most_in_batch = 1000;
  static constexpr std::size_t buffered = std::size_t{1} << 16;

  void put(std::string_view bytes) {
    buffer_ += bytes;
    if (buffer_.size() >= buffered) flush();
  }
  void put_little(std::uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; ++i)
      buffer_ += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
  void flush() {
    out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    buffer_.clear();
  }

  std::ostream& out_;
  std::string buffer_;
  std::vector<std::size_t> counts_;  ///< number of items in the current batch of each open list
  std::vector<std::pair<char const*, pickle_ref>> words_;
  pickle_ref next_ref_ = 0;
};

}  // namespace TARN_NAMESPACE::detail
