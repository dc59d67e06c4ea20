// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names for memory: a tag is a number for a name that the process keeps, so it is cheap to hand on and to compare.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/call_place.hpp"
#include "tarn/core/cut_text.hpp"
#include "tarn/core/place.hpp"
#include "tarn/core/scope_chain.hpp"
#include "tarn/core/spin_lock.hpp"

namespace tarn {

namespace detail {

/// The names, each once, kept until the process ends. No heap, no construction: 66 KiB of zeros until a name is
/// written.
class tag_names {
 public:
  /// Tags there can be; the first stands for none, the last for all that came too late.
  static constexpr std::uint32_t most = 1024;
  /// Bytes of a name, at most.
  static constexpr std::size_t longest = 63;

  /// The number of a name; wait-free where it is known.
  [[nodiscard]] std::uint32_t number_of(std::string_view name) noexcept {
    name = detail::first_of_text(name.substr(0, name.find('\0')), longest);
    if (name.empty()) return 0;
    std::uint32_t at = home(name);
    if (std::uint32_t const known = find(name, at); known != 0) return known;
    static held_at_fork<spin_lock> const member{lock_};  // the names of a process are one object
    std::lock_guard const guard(lock_);
    if (std::uint32_t const known = find(name, at); known != 0) return known;
    if (count_ == most - 2) return most - 1;
    std::uint32_t const made = ++count_;
    for (std::size_t i = 0; i < name.size(); ++i) texts_[made][i] = name[i];
    slots_[at].store(static_cast<std::uint16_t>(made), std::memory_order_release);
    return made;
  }
  [[nodiscard]] char const* name_of(std::uint32_t number) const noexcept {
    if (number == 0) return "untagged";
    return number < most - 1 ? texts_[number] : "other tags";
  }

 private:
  static constexpr std::uint32_t slot_count = 2 * most;

  /// FNV-1a (Fowler, Noll, Vo).
  [[nodiscard]] static std::uint32_t home(std::string_view name) noexcept {
    std::uint32_t hash = 2166136261U;
    for (char const c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
    return (hash ^ hash >> 16) % slot_count;
  }
  /// From slot `at` on, which becomes the name's, or the one where it belongs. 0: not there.
  [[nodiscard]] std::uint32_t find(std::string_view name, std::uint32_t& at) const noexcept {
    for (;; at = (at + 1) % slot_count) {
      std::uint32_t const number = slots_[at].load(std::memory_order_acquire);
      if (number == 0 || name == texts_[number]) return number;
    }
  }

  std::atomic<std::uint16_t> slots_[slot_count]{};
  char texts_[most][longest + 1]{};
  spin_lock lock_;
  std::uint32_t count_ = 0;
};
inline constinit tag_names known_tags{};

}  // namespace detail

/// A name for memory: "weights", "activations". Equal names are equal tags, in the whole process, for as long as it
/// runs. Names longer than 63 bytes are cut there, and at a zero; after 1,022 names all further ones are the one tag
/// "other tags". Making one costs a hash of the name, and nothing can fail; copying and comparing one is as for a number. Safe from
/// any thread.
class tag {
 public:
  /// None: "untagged".
  constexpr tag() noexcept = default;
  explicit tag(std::string_view name) noexcept : id_(detail::known_tags.number_of(name)) {}
  /// The tag of that number, as id() gave it.
  [[nodiscard]] static tag from_id(std::uint32_t id) noexcept {
    tag t;
    t.id_ = id < detail::tag_names::most ? id : detail::tag_names::most - 1;
    return t;
  }

  [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
  /// Zero-terminated, static storage.
  [[nodiscard]] char const* name() const noexcept { return detail::known_tags.name_of(id_); }
  friend constexpr bool operator==(tag, tag) noexcept = default;

  /// What an allocation made here on this thread would be named: by the call itself, else by the handle it goes through
  /// (policy/tagged), else by the innermost tag_scope.
  [[nodiscard]] static tag current() noexcept {
    std::uint32_t const of_call = call_place::current_tag_id();
    return of_call != 0 ? from_id(of_call) : of_scope();
  }

 private:
  [[nodiscard]] static tag of_scope() noexcept;

  std::uint32_t id_ = 0;
};

inline place::place(tag const& name, char const* in, int at, char const* of) noexcept
    : file(in), line(at), tag_id(name.id()), function(of) {}

/// Names all that this thread allocates in a scope: `tarn::tag_scope const here{"activations"};`. Scopes nest, the
/// inner one wins, and they may end in any order, each on the thread that began it. Two writes of a thread's own word.
class [[nodiscard]] tag_scope {
 public:
  explicit tag_scope(tag name) noexcept : name_(name) { chain::begin(*this); }
  explicit tag_scope(std::string_view name) noexcept : tag_scope(tag(name)) {}
  tag_scope(tag_scope const&) = delete;
  tag_scope& operator=(tag_scope const&) = delete;
  ~tag_scope() { (void)chain::end(*this, "tag_scope"); }

 private:
  using chain = detail::scope_chain<tag_scope>;
  friend chain;
  friend class tag;

  tag name_;
  tag_scope* outer_ = nullptr;
};

inline tag tag::of_scope() noexcept {
  tag_scope const* const innermost = tag_scope::chain::innermost();
  return innermost != nullptr ? innermost->name_ : tag();
}

}  // namespace tarn
