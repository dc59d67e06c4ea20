// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads the pickles that tarn writes, and no others. Errors: an opcode that PyTorch's viewer does not know, a
// batch of more than 1,000 items, text that is not UTF-8, trailing bytes.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tarn_test {

struct pickled;
using pickled_ref = std::shared_ptr<pickled>;

struct pickled {
  enum class kind { number, boolean, text, list, pair, dict } what = kind::number;
  std::uint64_t number = 0;
  std::string text;
  std::vector<pickled_ref> items;
  std::map<std::string, pickled_ref> fields;

  [[nodiscard]] pickled const& at(std::string const& key) const {
    auto const found = fields.find(key);
    if (found == fields.end()) throw std::runtime_error("no key " + key);
    return *found->second;
  }
  [[nodiscard]] pickled const& at(std::size_t i) const { return *items.at(i); }
  [[nodiscard]] bool has(std::string const& key) const { return fields.count(key) != 0; }
};

class unpickler {
 public:
  explicit unpickler(std::string_view bytes) : rest_(bytes) {}

  pickled_ref read() {
    need(number(1) == 0x80 && number(1) == 4, "no protocol 4");
    for (;;) {
      switch (auto const opcode = static_cast<unsigned char>(number(1)); opcode) {
        case '}':
          push(pickled::kind::dict);
          break;
        case ']':
          push(pickled::kind::list);
          break;
        case '(':
          marks_.push_back(stack_.size());
          break;
        case 'u':
          set_items();
          break;
        case 'e':
          append();
          break;
        case 'X': {
          auto const length = static_cast<std::size_t>(number(4));
          need(length <= rest_.size(), "a text without an end");
          push(pickled::kind::text).text = std::string(rest_.substr(0, length));
          rest_.remove_prefix(length);
          break;
        }
        case 'K':
          push(pickled::kind::number).number = number(1);
          break;
        case 'M':
          push(pickled::kind::number).number = number(2);
          break;
        case 'J': {
          std::uint64_t const value = number(4);
          need(value < 0x80000000, "a negative number");
          push(pickled::kind::number).number = value;
          break;
        }
        case 0x8a: {
          auto const length = static_cast<unsigned>(number(1));
          need(length >= 5 && length <= 9, "a long with a different length");
          std::uint64_t const value = number(length < 9 ? length : 8);
          if (length == 9) need(number(1) == 0, "a number of more than 64 bits");
          need(length == 9 || value >> (8 * length - 1) == 0, "a negative number");
          push(pickled::kind::number).number = value;
          break;
        }
        case 0x88:
        case 0x89:
          push(pickled::kind::boolean).number = opcode == 0x88;
          break;
        case 0x86: {
          need(stack_.size() >= 2, "half a pair");
          auto const second = pop();
          auto const first = pop();
          push(pickled::kind::pair).items = {first, second};
          break;
        }
        case 0x94:
          need(!stack_.empty(), "nothing to remember");
          memo_.push_back(stack_.back());
          break;
        case 'h':
        case 'j': {
          auto const ref = static_cast<std::size_t>(number(opcode == 'h' ? 1 : 4));
          need(ref < memo_.size(), "a reference to nothing");
          stack_.push_back(memo_[ref]);
          break;
        }
        case '.':
          need(stack_.size() == 1 && marks_.empty() && rest_.empty(), "bytes are left over");
          return pop();
        default:
          need(false, "an opcode that the viewer does not know");
      }
    }
  }

 private:
  static void need(bool truth, char const* what) {
    if (!truth) throw std::runtime_error(std::string("unpickle: ") + what);
  }
  std::uint64_t number(unsigned bytes) {
    need(bytes <= rest_.size(), "the end is missing");
    std::uint64_t value = 0;
    for (unsigned i = 0; i < bytes; ++i)
      value |= std::uint64_t{static_cast<unsigned char>(rest_[i])} << (8 * i);
    rest_.remove_prefix(bytes);
    return value;
  }
  pickled& push(pickled::kind what) {
    stack_.push_back(std::make_shared<pickled>());
    stack_.back()->what = what;
    return *stack_.back();
  }
  pickled_ref pop() {
    auto const top = stack_.back();
    stack_.pop_back();
    return top;
  }
  std::vector<pickled_ref> since_mark() {
    need(!marks_.empty() && marks_.back() > 0 && marks_.back() <= stack_.size(), "no mark");
    auto const first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<pickled_ref> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return items;
  }
  void append() {
    auto const items = since_mark();
    need(items.size() <= 1000, "a batch of more than 1000");
    need(stack_.back()->what == pickled::kind::list, "items of no list");
    stack_.back()->items.insert(stack_.back()->items.end(), items.begin(), items.end());
  }
  void set_items() {
    auto const items = since_mark();
    need(items.size() % 2 == 0 && stack_.back()->what == pickled::kind::dict, "a key without a value");
    for (std::size_t i = 0; i < items.size(); i += 2) {
      need(items[i]->what == pickled::kind::text, "a key that is not a text");
      need(stack_.back()->fields.emplace(items[i]->text, items[i + 1]).second, "a key twice");
    }
  }

  std::string_view rest_;
  std::vector<pickled_ref> stack_;
  std::vector<std::size_t> marks_;
  std::vector<pickled_ref> memo_;
};

}  // namespace tarn_test
