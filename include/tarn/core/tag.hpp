// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names for memory: a tag is a number that stands for a name kept for the life of the process, cheap to copy
// and compare.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/location_scope.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/scope_chain.hpp"
#include "tarn/core/text.hpp"

namespace TARN_NAMESPACE {

namespace detail {

/// The table of names, each stored once until the process ends. Uses no heap and no constructor: 66 KiB of
/// zeros until a name is added.
class tag_names {
 public:
  /// Maximum number of tags; the first means none, the last stands for all names added after the table is
  /// full.
  static constexpr std::uint32_t most = 1024;
  /// Maximum bytes of a name.
  static constexpr std::size_t longest = 63;

  /// Returns the number of a name and adds it if it is new; wait-free for a known name.
  [[nodiscard]] std::uint32_t number_of(std::string_view name) noexcept;
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
  /// Searches from slot `at`, which is set to the name's slot, or to the slot where it would be inserted.
  /// Returns 0 if absent.
  [[nodiscard]] std::uint32_t find(std::string_view name, std::uint32_t& at) const noexcept {
    for (;; at = (at + 1) % slot_count) {
      std::uint32_t const number = slots_[at].load(std::memory_order_acquire);
      if (number == 0 || name == texts_[number]) return number;
    }
  }

  std::atomic<std::uint16_t> slots_[slot_count]{};
  char texts_[most][longest + 1]{};
  std::uint32_t count_ = 0;
  inline static constinit static_spin_lock<tag_names> lock;  ///< not in the table, which is zeros
};
inline constinit tag_names known_tags{};

inline std::uint32_t tag_names::number_of(std::string_view name) noexcept {
  name = detail::text_prefix(name.substr(0, name.find('\0')), longest);
  if (name.empty() || name == name_of(0)) return 0;
  std::uint32_t at = home(name);
  if (std::uint32_t const known = find(name, at); known != 0) return known;
  scoped_lock const guard(lock);
  if (std::uint32_t const known = find(name, at); known != 0) return known;
  if (count_ == most - 2) return most - 1;
  std::uint32_t const made = ++count_;
  for (std::size_t i = 0; i < name.size(); ++i) texts_[made][i] = name[i];
  slots_[at].store(static_cast<std::uint16_t>(made), std::memory_order_release);
  return made;
}

}  // namespace detail

/// A name for memory: "weights", "activations". Equal names are equal tags throughout the process, for its
/// whole life. Names are truncated at 63 bytes and at a zero; after 1,022 names, all further ones share the
/// tag "other tags". Constructing one costs a hash of the name and cannot fail; copying and comparing cost as
/// much as for a number. Thread-safe.
class tag {
 public:
  /// No tag: "untagged".
  constexpr tag() noexcept = default;
  explicit tag(std::string_view name) noexcept : id_(detail::known_tags.number_of(name)) {}
  /// Returns the tag with a number returned by id().
  [[nodiscard]] static tag from_id(std::uint32_t id) noexcept {
    tag t;
    t.id_ = id < detail::tag_names::most ? id : detail::tag_names::most - 1;
    return t;
  }

  [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
  /// Zero-terminated, static storage.
  [[nodiscard]] char const* name() const noexcept { return detail::known_tags.name_of(id_); }
  friend constexpr bool operator==(tag, tag) noexcept = default;

  /// Returns the tag of an allocation made here on this thread: the call's own, else that of its handle
  /// (policy/tagged), else that of the innermost tag_scope.
  [[nodiscard]] static tag current() noexcept {
    std::uint32_t const of_call = location_scope::current_tag_id();
    return of_call != 0 ? from_id(of_call) : of_scope();
  }

 private:
  [[nodiscard]] static tag of_scope() noexcept;

  std::uint32_t id_ = 0;
};

inline attribution::attribution(tag const& name, source_location at) noexcept
    : where(at), tag_id(name.id()) {}

/// Tags everything that this thread allocates in a scope: `tarn::tag_scope const here{"activations"};`.
/// Scopes nest; the innermost one applies. They may end in any order, each on the thread that began it. Costs
/// two writes of a thread-local word.
class [[nodiscard]] tag_scope {
 public:
  explicit tag_scope(tag name) noexcept : name_(name) { chain::begin(*this); }
  explicit tag_scope(std::string_view name) noexcept : tag_scope(tag(name)) {}
  tag_scope& operator=(tag_scope&&) = delete;
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

}  // namespace TARN_NAMESPACE
