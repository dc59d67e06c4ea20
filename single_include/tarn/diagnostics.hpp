// SPDX-License-Identifier: Apache-2.0
#pragma once
// tarn/diagnostics.hpp over the single tarn.hpp, made by .ci/amalgamate.py. Do not edit.
#include "tarn.hpp"
// ---- tarn/diagnostics.hpp
// Memory diagnostics: memory_stats, live bytes by tag and by source line, where a device's memory went,
// snapshots as pages and files. Opt-in: programs that do not use them need not compile them. Call stacks are
// separate: tarn/debug/backtrace.hpp.

// ---- tarn/debug/logged.hpp
// logged: passes each call to a hook, for any logging that a program uses; format_log_line() makes a line of
// it. `tracked` counts calls, `traced` writes them to a file, `tagged` names them.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

// ---- tarn/core/tag.hpp
// Names for memory: a tag is a number that stands for a name kept for the life of the process, cheap to copy
// and compare.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

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

namespace TARN_NAMESPACE {

enum class logged_call : std::uint8_t {
  allocate,
  deallocate,
  allocate_sync,
  deallocate_sync,
  extend  ///< of a block that has become longer; `bytes` is its new size
};

enum class call_outcome : std::uint8_t {
  pending,  ///< the call is about to be made
  done,
  refused,  ///< out_of_memory
  failed    ///< another exception
};

/// One call, as passed to the hook.
struct call_record {
  logged_call call = logged_call::allocate;
  call_outcome outcome = call_outcome::pending;
  void* address = nullptr;  ///< null for an allocation that is pending, failed or empty
  std::size_t bytes = 0;    ///< as requested
  std::size_t alignment = 0;
  stream_ref stream;      ///< as given; the default stream for synchronous calls
  tag name;               ///< of an allocation
  source_location where;  ///< in the user's source
};

/// Which moments of a call are logged.
enum class log_moments {
  /// An allocation when its outcome is known, a deallocation (pending) before it is made: the records of an
  /// address are in an
  /// order that happened.
  once,
  /// Each call before it is made and after.
  both
};

namespace detail {
/// A C function and its context argument.
struct log_function {
  void (*function)(void* context, call_record const& call) = nullptr;
  void* context = nullptr;
  void operator()(call_record const& call) const { function(context, call); }
};
}  // namespace detail

/// `pool | tarn::logged{[](tarn::call_record const& c) { ... }}`, or `logged{function, context}` with a plain
/// function. Costs what the hook costs; a stack without this policy has no cost.
///
/// The hook may be called from several threads at once, and must not allocate or free through this memory. It
/// may throw. From a successful allocation its exception reaches the caller, after the block was given back:
/// nothing has changed. From a failed allocation the upstream's own exception is passed on instead. From a
/// deallocation, which never throws, and from a block that has become longer the hook's exception is dropped.
template <class Hook = detail::log_function>
  requires std::invocable<Hook&, call_record const&>
struct logged {
  Hook hook;
  log_moments moments = log_moments::once;

  explicit logged(Hook h, log_moments m = log_moments::once) : hook(std::move(h)), moments(m) {}
  logged(void (*function)(void* context, call_record const& call), void* context,
         log_moments m = log_moments::once)
    requires std::same_as<Hook, detail::log_function>
      : hook{function, context}, moments(m) {}

  template <class Upstream>
  using layer = around_layer<logged, Upstream>;
  /// Makes handles and owners record the place of a call for this layer, however many policies lie between.
  static constexpr bool records_places = true;

  void* around_allocate(request const& r, auto const& next) {
    call_record call = record_of(r.is_synchronous() ? logged_call::allocate_sync : logged_call::allocate, r);
    call.name = tag::current();
    if (moments == log_moments::both) hook(std::as_const(call));
    try {
      call.address = next.allocate(r);
    } catch (out_of_memory const&) {
      log_quietly(call, call_outcome::refused);
      throw;
    } catch (...) {
      log_quietly(call, call_outcome::failed);
      throw;
    }
    call.outcome = call_outcome::done;
    try {
      hook(std::as_const(call));
    } catch (...) {
      next.deallocate(r, call.address);
      throw;
    }
    return call.address;
  }
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    call_record call =
        record_of(r.is_synchronous() ? logged_call::deallocate_sync : logged_call::deallocate, r);
    call.address = p;
    log_quietly(call, call_outcome::pending);
    next.deallocate(r, p);
    if (moments == log_moments::both) log_quietly(call, call_outcome::done);
  }
  /// Logs only a block that has become longer.
  [[nodiscard]] bool around_extend(request const& r, void* p, std::size_t more, auto const& next) {
    if (!next.extend(r, p, more)) return false;
    call_record call = record_of(logged_call::extend, r);
    call.address = p;
    call.bytes += more;
    log_quietly(call, call_outcome::done);
    return true;
  }

 private:
  [[nodiscard]] static call_record record_of(logged_call which, request const& r) noexcept {
    return {which, call_outcome::pending,    nullptr, r.bytes, r.alignment, r.stream,
            {},    location_scope::current()};
  }
  void log_quietly(call_record& call, call_outcome outcome) noexcept {
    call.outcome = outcome;
    try {
      hook(std::as_const(call));
    } catch (...) {
    }
  }
};
logged(void (*)(void*, call_record const&), void*) -> logged<detail::log_function>;
logged(void (*)(void*, call_record const&), void*, log_moments) -> logged<detail::log_function>;

// A logged call as a line of comma-separated values, built without allocating.

/// The columns of format_log_line().
inline constexpr std::string_view log_line_header =
    "call,outcome,address,bytes,alignment,stream,tag,file,line,function";

namespace detail {

[[nodiscard]] constexpr std::string_view name_of(logged_call call) noexcept {
  constexpr std::string_view names[] = {"allocate", "deallocate", "allocate_sync", "deallocate_sync",
                                        "extend"};
  return names[static_cast<std::size_t>(call)];
}
[[nodiscard]] constexpr std::string_view name_of(call_outcome outcome) noexcept {
  constexpr std::string_view names[] = {"pending", "done", "refused", "failed"};
  return names[static_cast<std::size_t>(outcome)];
}
/// Adds a value that can be printed, in quotes if it contains a separator (RFC 4180).
template <std::size_t N>
void add_value(message<N>& line, std::string_view text) noexcept {
  bool const quoted = text.find_first_of(",\"\r\n") != std::string_view::npos;
  if (quoted) line.add("\"");
  put_printable(text, [&](std::string_view part) noexcept { line.add(part == "\"" ? "\"\"" : part); });
  if (quoted) line.add("\"");
}

}  // namespace detail

/// "allocate,done,0x7f..,1000,256,0x0,weights,train.cpp,42,step", without a line end, in the columns of
/// log_line_header. The stream is its handle. The file is cut to its last 63 bytes and the function to its
/// first 63, in whole characters, so that a line is never cut.
[[nodiscard]] inline message<640> format_log_line(call_record const& call) noexcept {
  constexpr std::size_t most = 63;
  message<640> line;
  line.add(detail::name_of(call.call)).add(",").add(detail::name_of(call.outcome)).add(",");
  line.add_hex(reinterpret_cast<std::uintptr_t>(call.address)).add(",").add_number(std::uint64_t{call.bytes});
  line.add(",").add_number(std::uint64_t{call.alignment}).add(",");
  line.add_hex(reinterpret_cast<std::uintptr_t>(call.stream.handle())).add(",");
  if (!(call.name == tag{})) detail::add_value(line, call.name.name());
  line.add(",");
  detail::add_value(line, detail::text_suffix(call.where.file, most));
  line.add(",").add_number(call.where.line).add(",");
  detail::add_value(line, detail::text_prefix(call.where.function, most));
  return line;
}

}  // namespace TARN_NAMESPACE
// ---- tarn/debug/nvtx_ranged.hpp
// nvtx_ranged: a profiler range around each call, so that Nsight Systems shows a pool's calls next to the
// kernels. The ranges and names are also for a program's own code.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#if TARN_HAS_CUDA && defined(__has_include)
#if __has_include(<nvtx3/nvToolsExtCudaRt.h>)
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCudaRt.h>
#define TARN_HAS_NVTX_RANGES 1
#endif
#endif
#ifndef TARN_HAS_NVTX_RANGES
#define TARN_HAS_NVTX_RANGES 0
#endif

namespace TARN_NAMESPACE {

// Ranges and names for profilers such as Nsight Systems, through NVTX. Empty without CUDA's headers; without
// a profiler, each call costs one pointer test.

namespace detail {
#if TARN_HAS_NVTX_RANGES
inline constinit std::atomic<nvtxDomainHandle_t> made_nvtx_domain{nullptr};

/// Returns tarn's domain, created at first use and kept; null without a profiler.
[[nodiscard]] inline nvtxDomainHandle_t nvtx_domain() noexcept {
  nvtxDomainHandle_t made = made_nvtx_domain.load(std::memory_order_acquire);
  if (made != nullptr) return made;
  nvtxDomainHandle_t const fresh = nvtxDomainCreateA("tarn");
  if (fresh == nullptr || made_nvtx_domain.compare_exchange_strong(made, fresh)) return fresh;
  nvtxDomainDestroy(fresh);  // another thread was faster
  return made;
}
#endif
}  // namespace detail

// A program may have translation units with CUDA's headers and others without, so the types are the same in
// both, and what one function began is ended by that function's own choice.

/// The text of a range, registered with the profiler once; null without one. Copy freely; never throws.
class nvtx_text {
 public:
#if TARN_HAS_NVTX_RANGES
  explicit nvtx_text(char const* text) noexcept
      : handle_(nvtxDomainRegisterStringA(detail::nvtx_domain(), text)) {}
#else
  explicit nvtx_text(char const*) noexcept {}
#endif
  [[nodiscard]] void* handle() const noexcept { return handle_; }

 private:
  void* handle_ = nullptr;
};

/// A range on this thread in the domain "tarn", from construction to destruction, with a number that the
/// profiler displays. Ranges of a thread nest.
class [[nodiscard]] nvtx_range {
 public:
  /// @param bytes     the payload
  /// @param category  from new_nvtx_category(); 0: none
  nvtx_range([[maybe_unused]] nvtx_text text, [[maybe_unused]] std::uint64_t bytes,
             [[maybe_unused]] std::uint32_t category = 0) noexcept {
#if TARN_HAS_NVTX_RANGES
    nvtxEventAttributes_t const a = attributes(text, bytes, category);
    nvtxDomainRangePushEx(detail::nvtx_domain(), &a);
    end_ = []() noexcept { nvtxDomainRangePop(detail::nvtx_domain()); };
#endif
  }
  ~nvtx_range() {
    if (end_ != nullptr) end_();
  }
  nvtx_range& operator=(nvtx_range&&) = delete;

  /// Marks a moment instead of a range.
  static void mark([[maybe_unused]] nvtx_text text, [[maybe_unused]] std::uint64_t bytes,
                   [[maybe_unused]] std::uint32_t category = 0) noexcept {
#if TARN_HAS_NVTX_RANGES
    nvtxEventAttributes_t const a = attributes(text, bytes, category);
    nvtxDomainMarkEx(detail::nvtx_domain(), &a);
#endif
  }

 private:
#if TARN_HAS_NVTX_RANGES
  [[nodiscard]] static nvtxEventAttributes_t attributes(nvtx_text text, std::uint64_t bytes,
                                                        std::uint32_t category) noexcept {
    nvtxEventAttributes_t a{};
    a.version = NVTX_VERSION;
    a.size = static_cast<std::uint16_t>(sizeof a);
    a.category = category;
    a.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    a.payload.ullValue = bytes;  // NOLINT(cppcoreguidelines-pro-type-union-access): NVTX's own type
    a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    a.message.registered = static_cast<nvtxStringHandle_t>(text.handle());
    return a;
  }
#endif
  void (*end_)() noexcept = nullptr;
};

namespace detail {
inline constinit std::atomic<std::uint32_t> nvtx_categories{0};
}

/// Creates a named category in the domain "tarn"; returns its unique number, from 1.
[[nodiscard]] inline std::uint32_t new_nvtx_category([[maybe_unused]] char const* name) noexcept {
  std::uint32_t const made = detail::nvtx_categories.fetch_add(1, std::memory_order_relaxed) + 1;
#if TARN_HAS_NVTX_RANGES
  nvtxDomainNameCategoryA(detail::nvtx_domain(), made, name);
#endif
  return made;
}

/// Names a CUDA stream's row in the profiler. For CUDA streams only: a profiler does not know simulated
/// streams.
inline void name_stream([[maybe_unused]] stream_ref stream, [[maybe_unused]] char const* name) noexcept {
#if TARN_HAS_NVTX_RANGES
  nvtxNameCudaStreamA(stream.get(), name);
#endif
}

template <class Upstream>
class nvtx_ranged_layer;

/// `cuda_pages{} | pooled{} | nvtx_ranged{"weights"}`: ranges "weights: allocate" and "weights: deallocate"
/// in the domain "tarn", with the bytes as payload and "weights" as category. Over the pool they show the
/// program's calls, under it the calls that reach the driver. Without a profiler the cost is one pointer test
/// per call; without CUDA there is none.
struct nvtx_ranged {
  /// Read when the layer is made; long names are cut to the first 63 bytes. Null: "pool", as without a name.
  char const* name = "pool";

  nvtx_ranged() noexcept = default;
  explicit nvtx_ranged(char const* n) noexcept : name(n) {}

  template <class Upstream>
  using layer = nvtx_ranged_layer<Upstream>;
};

template <class Upstream>
class nvtx_ranged_layer : public resource_adaptor<nvtx_ranged_layer<Upstream>, Upstream> {
  using base = resource_adaptor<nvtx_ranged_layer<Upstream>, Upstream>;

 public:
  explicit nvtx_ranged_layer(Upstream upstream, nvtx_ranged const& options = {})
      : base(std::move(upstream)),
        allocate_(text(options.name, ": allocate")),
        deallocate_(text(options.name, ": deallocate")),
        refused_(text(options.name, ": refused")),
        category_(new_nvtx_category(named(options.name).c_str())) {}

  void* around_allocate(request const& r, auto const& next) {
    nvtx_range const range(allocate_, r.bytes, category_);
    try {
      return next.allocate(r);
    } catch (out_of_memory const&) {
      nvtx_range::mark(refused_, r.bytes, category_);
      throw;
    }
  }
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    nvtx_range const range(deallocate_, r.bytes, category_);
    next.deallocate(r, p);
  }
  [[nodiscard]] bool around_extend(request const& r, void* p, std::size_t more, auto const& next) {
    return next.extend(r, p, more);
  }

 private:
  [[nodiscard]] static message<64> named(char const* name) noexcept {
    return message<64>(name != nullptr ? name : nvtx_ranged{}.name);
  }
  [[nodiscard]] static nvtx_text text(char const* name, char const* what) noexcept {
    return nvtx_text(message<96>(named(name).view(), what).c_str());
  }

  nvtx_text allocate_;
  nvtx_text deallocate_;
  nvtx_text refused_;
  std::uint32_t category_;
};

}  // namespace TARN_NAMESPACE
// ---- tarn/debug/with_history.hpp
// with_history: records every live block with its size, time, source line and tag.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

// ---- tarn/core/clock.hpp
// Host clocks in nanoseconds: a monotonic clock and a calendar clock.

#include <chrono>
#include <cstdint>

namespace TARN_NAMESPACE::detail {

template <class Clock>
[[nodiscard]] std::uint64_t now_ns() noexcept {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count());
}
/// Nanoseconds since an arbitrary moment; monotonic.
[[nodiscard]] inline std::uint64_t steady_now_ns() noexcept {
  return now_ns<std::chrono::steady_clock>();
}
[[nodiscard]] inline std::uint64_t now_since_1970_ns() noexcept {
  return now_ns<std::chrono::system_clock>();
}

}  // namespace TARN_NAMESPACE::detail
// ---- tarn/debug/history_log.hpp
// The records of `with_history`: live blocks, the latest events, and the bytes of each tag.

#include <cstddef>
#include <cstdint>
#include <new>

// ---- tarn/debug/memory_history.hpp
#ifndef TARN_SINGLE_DEBUG_MEMORY_HISTORY_HPP
#define TARN_SINGLE_DEBUG_MEMORY_HISTORY_HPP
// A copy of what a `with_history` layer recorded, at one moment: plain data for reports. Call stacks come
// from a hook: the program chooses how to walk the stack and how to name a frame. debug/backtrace.hpp
// provides glibc's.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace TARN_NAMESPACE {

/// One frame of a location: file, line and function, outermost last.
struct history_frame {
  std::string file;
  int line = 0;
  std::string function;
};

/// A block that is handed out. Address and bytes are those of the pool's block, with the fences of layers
/// below.
struct history_block {
  std::uintptr_t address = 0;
  std::size_t requested = 0;   ///< bytes requested by the caller
  std::size_t bytes = 0;       ///< bytes that it occupies
  stream_id stream = 0;        ///< of the allocation
  std::uint32_t tag = 0;       ///< index into memory_history::tags; 0 is "untagged"
  std::uint32_t location = 0;  ///< index into memory_history::locations; 0 if unknown
  std::uint64_t time_ns = 0;   ///< since memory_history::started_ns
};

/// A block that its user has freed, and that a layer below keeps from reuse, as the quarantine of `checked`
/// does.
struct quarantined_block {
  std::uintptr_t address = 0;
  std::size_t requested = 0;
};

enum class history_event_kind : std::uint8_t { allocate, free, refused };

/// One call, in the order in which the calls took effect.
struct history_event {
  history_event_kind kind = history_event_kind::allocate;
  std::uintptr_t address = 0;  ///< 0 for a refusal
  std::size_t requested = 0;   ///< bytes; for a refusal, those requested
  std::size_t bytes = 0;       ///< bytes that it occupies; 0 for a refusal
  stream_id stream = 0;        ///< of this call
  std::uint32_t tag = 0;
  std::uint32_t location = 0;
  std::uint64_t time_ns = 0;
};

/// The amounts of one tag. Bytes as the blocks occupy them.
struct history_tag {
  std::string name;
  std::size_t bytes = 0;
  std::size_t peak_bytes = 0;
  std::size_t requested = 0;
  std::size_t blocks = 0;
  std::uint64_t allocations = 0;
};

struct memory_history {
  std::uint64_t started_ns = 0;  ///< when the layer was made, since 1970
  std::uint64_t now_ns = 0;      ///< when this was copied, since started_ns
  std::uint64_t steady_ns = 0;   ///< the steady clock at started_ns; 0 with a user's clock
  std::vector<history_block> live;
  std::vector<quarantined_block> quarantined;
  std::vector<history_event> events;                  ///< the latest ones, oldest first
  std::uint64_t forgotten_events = 0;                 ///< older ones that the ring no longer holds
  std::vector<history_tag> tags;                      ///< tags[0] is "untagged"
  std::vector<std::vector<history_frame>> locations;  ///< innermost frame first; locations[0] is empty
};

namespace detail {

/// The nearest record of blocks above the pool: one below it records the pool's segments. No lambda: nvcc
/// drops the constraint of one.
struct ask_record {
  static constexpr bool ends_at_pools = true;
  template <class L>
  auto operator()(L& l) const
      -> std::enable_if_t<std::same_as<std::remove_cvref_t<decltype(l.record())>, memory_history>,
                          memory_history> {
    return l.record();
  }
};

}  // namespace detail

/// How call stacks are captured and, much later, named. Both functions are called from any thread and must
/// not allocate from the memory that is watched. An exception from `capture` ends the program; one from
/// `name` propagates from record().
struct stack_hooks {
  /// Writes the return addresses of the calling thread, innermost first; returns their number, at most
  /// `most`. Null: no stacks.
  std::size_t (*capture)(void** frames, std::size_t most) = nullptr;
  /// Fills in what is known of one address. Called only when a record is made. Null: the address as a number.
  void (*name)(void* frame, history_frame& out) = nullptr;
};

/// Number of innermost frames that are kept of a stack.
inline constexpr std::size_t stack_depth = 32;

}  // namespace TARN_NAMESPACE
#endif  // TARN_SINGLE_DEBUG_MEMORY_HISTORY_HPP

namespace TARN_NAMESPACE::detail {

// The locations that calls came from, each stored once and identified by a number.

/// Where a call came from: the recorded location and, if stacks are captured, the stack.
struct call_origin {
  source_location where;
  void* frames[stack_depth];
  std::size_t depth = 0;
};

/// The caller locks.
class location_table {
 public:
  struct known_location {
    source_location where;
    std::size_t first_frame = 0;
    std::size_t depth = 0;
  };

  /// The number of an origin, from 1; 0 if nothing is known of it, or if `most` are stored already. O(1) plus
  /// the depth.
  /// @throws std::bad_alloc  nothing has changed
  std::uint32_t number_of(call_origin const& o, std::size_t most) {
    if (o.where.line == 0 && o.depth == 0) return 0;
    std::uint64_t key = key_of(o);
    for (;; ++key) {
      std::uint32_t const known = index_.find(key);
      if (known == 0) break;
      if (is_same(locations_[known - 1], o)) return known;
    }
    if (locations_.size() >= most) return 0;
    index_.make_room(1);
    locations_.reserve(locations_.size() + 1);
    frames_.reserve(frames_.size() + o.depth);
    known_location made;
    made.where = o.where;
    made.first_frame = frames_.size();
    made.depth = o.depth;
    for (std::size_t i = 0; i < o.depth; ++i) frames_.push_back(o.frames[i]);
    locations_.push_back(made);
    auto const number = static_cast<std::uint32_t>(locations_.size());
    index_.insert(key, number);
    return number;
  }

  [[nodiscard]] sequence<known_location> const& locations() const noexcept { return locations_; }
  [[nodiscard]] sequence<void*> const& frames() const noexcept { return frames_; }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return locations_.capacity() * sizeof(known_location) + frames_.capacity() * sizeof(void*) +
           index_.host_bytes();
  }

 private:
  [[nodiscard]] static std::uint64_t key_of(call_origin const& o) noexcept {
    auto hash = static_cast<std::uint64_t>(o.where.line);
    auto const mix = [&hash](void const* p) {
      hash = (hash ^ reinterpret_cast<std::uintptr_t>(p)) * 0x9E3779B97F4A7C15U;
      hash ^= hash >> 32;
    };
    mix(o.where.file);
    for (std::size_t i = 0; i < o.depth; ++i) mix(o.frames[i]);
    return hash;
  }
  /// Texts are static: equal pointers are equal texts. A location is stored twice if a compiler emitted its
  /// text twice.
  [[nodiscard]] bool is_same(known_location const& known, call_origin const& o) const noexcept {
    if (known.where.file != o.where.file || known.where.line != o.where.line ||
        known.where.function != o.where.function || known.depth != o.depth) {
      return false;
    }
    for (std::size_t i = 0; i < o.depth; ++i) {
      if (frames_[known.first_frame + i] != o.frames[i]) return false;
    }
    return true;
  }

  sequence<known_location> locations_;
  sequence<void*> frames_;
  address_map<std::uint32_t> index_;
};

/// The amounts of one tag; bytes as blocks occupy them.
struct tag_account {
  std::size_t bytes = 0;
  std::size_t peak_bytes = 0;
  std::size_t requested = 0;
  std::size_t blocks = 0;
  std::uint64_t allocations = 0;
};

/// One order of all threads' calls, under one lock that is held for tens of nanoseconds and never around a
/// call of the layer below. Under contention one thread makes the records of the others, too, so that they
/// stay in its processor's cache. Host memory: 48 bytes and an index of 32 to 64 per live block (room is kept
/// for the peak number), 56 per event of the ring, 40 per tag, 48 per location and 8 per frame of its stack.
class history_log {
 public:
  /// @throws std::bad_alloc
  history_log(std::size_t history, std::size_t most_places) : most_locations_(most_places) {
    ring_.resize(history);
  }

  /// Records a block that was handed out. `b` holds its address, its numbers and its tag id; the location is
  /// looked up from `origin`.
  /// @throws std::bad_alloc  nothing has changed
  void note_allocation(history_block const& b, call_origin const& origin) {
    bool refused = false;
    one_by_one([&]() noexcept {
      try {
        begin(b, origin);
      } catch (...) {
        refused = true;
      }
    });
    if (refused) throw std::bad_alloc();
  }

  /// Records that a block has become `longer`. It keeps its tag and its location.
  void note_extension(history_block longer) noexcept {
    one_by_one([&]() noexcept {
      std::uint32_t const known = index_.find(longer.address);
      if (known == 0) return;
      longer.tag = blocks_[known - 1].tag;
      longer.location = blocks_[known - 1].location;
      start(longer);
    });
  }

  /// Records that a block is about to be freed. An unknown block is left to the layers below.
  void note_free(std::uintptr_t address, stream_id stream, call_origin const& origin,
                 std::uint64_t time_ns) noexcept {
    one_by_one([&]() noexcept {
      std::uint32_t const known = index_.erase(address);
      if (known == 0) return;
      std::uint32_t from = 0;
      if (ring_.size() != 0) {
        try {
          from = locations_.number_of(origin, most_locations_);
        } catch (...) {
        }
      }
      end(known, stream, from, time_ns);
    });
  }

  /// Records a refused request, and returns the tags that hold the most.
  void note_refusal(history_event e, call_origin const& origin, bytes_of_tag (&biggest)[3]) noexcept {
    scoped_lock const guard(lock_);
    try {
      e.location = locations_.number_of(origin, most_locations_);
    } catch (...) {
    }
    e.time_ns = in_order(e.time_ns);
    note(e);
    for (bytes_of_tag& t : biggest) t = {};
    if (accounts_.size() < 2) return;  // no tag was ever used
    for (std::size_t id = 0; id < accounts_.size(); ++id) {
      bytes_of_tag t{known_tags.name_of(static_cast<std::uint32_t>(id)), accounts_[id].bytes};
      for (bytes_of_tag& location : biggest) {
        if (t.bytes > location.bytes) std::swap(t, location);
      }
    }
  }

  /// The numbers of elements to copy.
  struct sizes {
    std::size_t live = 0;
    std::size_t events = 0;
    std::size_t tags = 0;
    std::size_t locations = 0;
    std::size_t frames = 0;
  };
  [[nodiscard]] sizes count() noexcept {
    scoped_lock const guard(lock_);
    return counted();
  }
  /// Calls `take(*this)` under the lock if all of it fits `room`; returns false if more was added meanwhile.
  /// `take` must neither throw nor call the memory that it records.
  template <class Take>
  [[nodiscard]] bool copy(sizes const& room, Take const& take) noexcept {
    scoped_lock const guard(lock_);
    sizes const now = counted();
    if (now.live > room.live || now.events > room.events || now.tags > room.tags ||
        now.locations > room.locations || now.frames > room.frames) {
      return false;
    }
    take(*this);
    return true;
  }

  // For `take`:

  template <class F>
  void for_each_live(F const& f) const {
    for (history_block const& b : blocks_) {
      if (b.address != 0) f(b);
    }
  }
  /// Oldest first.
  template <class F>
  void for_each_event(F const& f) const {
    std::size_t const held = counted().events;
    for (std::uint64_t i = noted_ - held; i != noted_; ++i)
      f(ring_[static_cast<std::size_t>(i % ring_.size())]);
  }
  [[nodiscard]] std::uint64_t forgotten() const noexcept { return noted_ - counted().events; }
  [[nodiscard]] sequence<tag_account> const& accounts() const noexcept { return accounts_; }
  [[nodiscard]] location_table const& locations() const noexcept { return locations_; }
  [[nodiscard]] std::uint64_t last_ns() const noexcept { return last_ns_; }

  /// Current host memory of the records.
  [[nodiscard]] std::size_t host_bytes() noexcept {
    scoped_lock const guard(lock_);
    return blocks_.capacity() * sizeof(history_block) + index_.host_bytes() +
           ring_.capacity() * sizeof(history_event) + accounts_.capacity() * sizeof(tag_account) +
           locations_.host_bytes();
  }

  /// Restarts the peaks of the tags from their current values.
  void reset_peaks() noexcept {
    scoped_lock const guard(lock_);
    for (tag_account& a : accounts_) a.peak_bytes = a.bytes;
  }

 private:
  /// A thread's pending record: a callable on its stack, while the thread waits.
  struct change {
    void (*make)(void*) noexcept = nullptr;
    void* of = nullptr;
  };
  template <class Make>
  void one_by_one(Make make) noexcept {
    (void)lock_.run(change{[](void* of) noexcept { (*static_cast<Make*>(of))(); }, &make},
                    [](change const& c) noexcept { c.make(c.of); });
  }

  /// @throws std::bad_alloc  nothing has changed
  void begin(history_block b, call_origin const& origin) {
    b.location = locations_.number_of(origin, most_locations_);
    while (accounts_.size() <= b.tag) accounts_.push_back(tag_account{});
    index_.make_room(1);
    if (vacant_ == 0) blocks_.reserve(blocks_.size() + 1);
    start(b);
  }
  /// Records a block, for which room has been made.
  void start(history_block b) noexcept {
    // Handed out again without a free through this layer, where it was freed below; or made longer.
    if (std::uint32_t const known = index_.erase(b.address); known != 0)
      end(known, b.stream, b.location, b.time_ns);
    b.time_ns = in_order(b.time_ns);
    index_.insert(b.address, keep(b));
    tag_account& a = accounts_[b.tag];
    a.bytes += b.bytes;
    a.peak_bytes = max_of(a.peak_bytes, a.bytes);
    a.requested += b.requested;
    ++a.blocks;
    ++a.allocations;
    note({history_event_kind::allocate, b.address, b.requested, b.bytes, b.stream, b.tag, b.location,
          b.time_ns});
  }

  [[nodiscard]] sizes counted() const noexcept {
    auto const held = min_of<std::uint64_t>(noted_, ring_.size());
    return {index_.size(), static_cast<std::size_t>(held), accounts_.size(), locations_.locations().size(),
            locations_.frames().size()};
  }
  /// Clocks are read before the lock is taken, so a later call may have the earlier time.
  [[nodiscard]] std::uint64_t in_order(std::uint64_t time_ns) noexcept {
    return last_ns_ = max_of(last_ns_, time_ns);
  }
  void note(history_event const& e) noexcept {
    if (ring_.size() != 0) {
      ring_[next_] = e;
      if (++next_ == ring_.size()) next_ = 0;
    }
    ++noted_;
  }
  /// Stores a block, for which room has been made. Returns its number, from 1.
  std::uint32_t keep(history_block const& b) noexcept {
    if (vacant_ == 0) {
      blocks_.push_back(b);
      return static_cast<std::uint32_t>(blocks_.size());
    }
    std::uint32_t const number = vacant_;
    vacant_ = blocks_[number - 1].location;
    blocks_[number - 1] = b;
    return number;
  }
  void end(std::uint32_t number, stream_id stream, std::uint32_t from, std::uint64_t time_ns) noexcept {
    history_block& b = blocks_[number - 1];
    tag_account& a = accounts_[b.tag];
    a.bytes -= b.bytes;
    a.requested -= b.requested;
    --a.blocks;
    note({history_event_kind::free, b.address, b.requested, b.bytes, stream, b.tag, from, in_order(time_ns)});
    b.address = 0;
    b.location = vacant_;  // vacant entries form a list
    vacant_ = number;
  }

  combining_lock<change> lock_;
  std::uint32_t vacant_ = 0;
  std::size_t const most_locations_;
  sequence<history_block> blocks_;
  address_map<std::uint32_t> index_;  ///< address to number in blocks_
  sequence<tag_account> accounts_;    ///< by tag id
  location_table locations_;
  sequence<history_event> ring_;
  std::size_t next_ = 0;     ///< index of the next event
  std::uint64_t noted_ = 0;  ///< events so far
  std::uint64_t last_ns_ = 0;
  held_at_fork<combining_lock<change>> member_{lock_};
};

}  // namespace TARN_NAMESPACE::detail

namespace TARN_NAMESPACE {

template <class Upstream>
class with_history_layer;

/// `cuda_pages{} | pooled{} | with_history{}`: records each live block with its line, tag, stream and time,
/// and the latest calls.
struct with_history {
  /// Number of events kept; the oldest are overwritten. An event is a call, and takes 56 bytes of host memory
  /// from the start: 5.6 MB for the default. 0 keeps live blocks and tags alone. If it is not 0, the pool
  /// below also records what it takes from the driver, see remember_growth(), unless a user's clock is set.
  std::size_t history = 100'000;
  stack_hooks
      stacks{};  ///< also captures call stacks: `.stacks = tarn::backtrace_stacks()` (debug/backtrace)
  /// Nanoseconds since 1970 that never go back, from any thread; null: the system's clock at the start,
  /// steady from then on.
  std::uint64_t (*clock)() = nullptr;
  /// distinct lines, or stacks, that are stored; further ones have no location
  std::size_t locations = 65'536;

  template <class Upstream>
  using layer = with_history_layer<Upstream>;
};

/// Thread-safe. Events are in an order that happened: a block is recorded after it was handed out and before
/// it is freed, so an address is never live twice. One short lock for the records, none around the layer
/// below. Host memory for the records is taken at allocation (see detail::history_log for how much); if there
/// is none, the block is freed again and nothing has changed. An allocation and its free cost about 150 ns
/// more, including two readings of the clock; with 16 threads that do nothing else, 12 µs, since they contend
/// for the records (bench/results/watched_cuda.jsonl). A stack costs microseconds. An out_of_memory that
/// passes through lists the tags that hold the most.
template <class Upstream>
class with_history_layer : public resource_adaptor<with_history_layer<Upstream>, Upstream> {
  using base = resource_adaptor<with_history_layer<Upstream>, Upstream>;

 public:
  /// Makes handles and owners record the location of a call for this layer, however many policies lie
  /// between.
  static constexpr bool records_places = true;

  static_assert(
      resource<Upstream>,
      "tarn: with_history records blocks; put it above the pool: pages | pooled{} | with_history{}");

  with_history_layer()
    requires std::default_initializable<Upstream>
      : with_history_layer(Upstream{}) {}
  /// @throws std::bad_alloc  the ring of events
  explicit with_history_layer(Upstream upstream, with_history const& options = {})
      : base(std::move(upstream)), options_(options), log_(options.history, options.locations) {
    steady_start_ = detail::steady_now_ns();
    started_ns_ = options_.clock != nullptr ? options_.clock() : detail::now_since_1970_ns();
    if (options_.stacks.capture != nullptr) {
      void* frame = nullptr;
      (void)options_.stacks.capture(&frame, 1);  // load now what the first call loads
    }
    note_growth();
  }

  /// @throws out_of_memory  refused below; its report lists the biggest tags
  /// @throws std::bad_alloc  no host memory for the records
  TARN_ALWAYS_INLINE void* around_allocate(request const& asked, auto const& next) {
    request const r = asked.on(with_id(asked.stream));
    void* const p = allocate_or_note(r, next);
    if (p == nullptr) return p;
    history_block b;
    b.address = address_of(p);
    b.requested = r.bytes;
    b.bytes = detail::block_bytes_of(next.upstream(), r.bytes, r.alignment);
    b.stream = r.stream.id();
    b.tag = tag::current().id();
    b.time_ns = now();
    try {
      log_.note_allocation(b, origin());
    } catch (...) {
      next.deallocate(r, p);
      throw;
    }
    return p;
  }
  TARN_ALWAYS_INLINE void around_deallocate(request const& asked, void* p, auto const& next) noexcept {
    request const r = asked.on(with_id(asked.stream));
    log_.note_free(address_of(p), r.stream.id(), origin(), now());
    next.deallocate(r, p);
  }

  /// Records that the block was freed and allocated again, longer, under the same tag.
  [[nodiscard]] bool around_extend(request const& asked, void* p, std::size_t more, auto const& next) {
    request const r = asked.on(with_id(asked.stream));
    if (!next.extend(r, p, more)) return false;
    history_block longer;
    longer.address = address_of(p);
    longer.requested = r.bytes + more;
    longer.bytes = detail::block_bytes_of(next.upstream(), longer.requested, r.alignment);
    longer.stream = r.stream.id();
    longer.time_ns = now();
    log_.note_extension(longer);
    return true;
  }

  /// All records at one moment, live blocks by address. Other threads' calls wait while they are copied, not
  /// while memory for the copy is allocated nor while frames are named. @throws std::bad_alloc
  [[nodiscard]] memory_history record();
  /// Ends the question which blocks are in quarantine above the record: record() has those below.
  template <class F>
  void each_quarantined(F const&) const noexcept {}
  /// The tags that were ever used in an allocation, "untagged" first; the bytes of record(), but faster.
  /// @throws std::bad_alloc
  [[nodiscard]] std::vector<history_tag> tags() const;
  /// Host memory of the records, bytes: the ring, and 80 to 160 times the peak number of live blocks.
  [[nodiscard]] std::size_t host_bytes() const noexcept { return log_.host_bytes(); }
  /// Restarts every tag's peak from its current value.
  void reset_tag_peaks() noexcept { log_.reset_peaks(); }

 private:
  /// Changes of the pool's reserved memory are rare: thousands in a run with millions of calls. 32 bytes
  /// each.
  static constexpr std::size_t growth_history = 16'384;

  /// A tag's amounts, in the form of a record.
  static history_tag tag_of(std::uint32_t id, detail::tag_account const& a) {
    return {tag::from_id(id).name(), a.bytes, a.peak_bytes, a.requested, a.blocks, a.allocations};
  }
  /// Nanoseconds since the start.
  [[nodiscard]] std::uint64_t now() const noexcept {
    return options_.clock != nullptr ? options_.clock() - started_ns_
                                     : detail::steady_now_ns() - steady_start_;
  }
  /// Makes the pool below record, on the same clock, what it takes from the driver, so that a history has
  /// both.
  void note_growth() {
    if constexpr (reachable<Upstream, pool_call::note_growth_from_now>) {
      if (options_.history != 0 && options_.clock == nullptr)
        nearest(this->upstream(), pool_call::note_growth_from_now{growth_history, detail::steady_now_ns});
    }
  }
  /// Blocks are recorded by the addresses that the pool knows, as their sizes are.
  [[nodiscard]] std::uintptr_t address_of(void* p) noexcept {
    return reinterpret_cast<std::uintptr_t>(detail::block_address_of(this->upstream(), p));
  }
  /// The stream with its identity, so that the pool need not query it again.
  [[nodiscard]] stream_ref with_id(stream_ref stream) const noexcept {
    if (stream.id() != stream_ref::unknown_id) return stream;
    stream_id id = stream_ref::unknown_id;
    constexpr auto named = detail::default_streams_of<Upstream>();
    bool const known = detail::is_default_stream(stream)
                           ? detail::identify_named<named>(this->driver(), stream, id).ok()
                           : detail::identify_beside_captures(this->driver(), stream, id).ok();
    if (!known) return stream;
    return stream_ref::from(stream.handle(), id);
  }
  [[nodiscard]] detail::call_origin origin() const noexcept {
    detail::call_origin o;  // the frames stay unset if none are captured
    o.where = location_scope::current();
    if (options_.stacks.capture != nullptr) [[unlikely]]
      o.depth = options_.stacks.capture(o.frames, stack_depth);
    return o;
  }

  void* allocate_or_note(request const& r, auto const& next) {
    try {
      return next.allocate(r);
    } catch (out_of_memory& refused) {
      memory_report report = refused.report();
      history_event e;
      e.kind = history_event_kind::refused;
      e.requested = r.bytes;
      e.stream = r.stream.id();
      e.tag = tag::current().id();
      e.time_ns = now();
      log_.note_refusal(e, origin(), report.biggest_tags);
      refused.set_report(report);
      throw;
    }
  }
  using frame_names = std::unordered_map<void*, history_frame>;
  void name_frames(std::vector<history_frame>& out, source_location const& where, void* const* frames,
                   std::size_t depth, frame_names& known) const;

  with_history const options_;
  std::uint64_t steady_start_ = 0;
  std::uint64_t started_ns_ = 0;
  mutable detail::history_log log_;
};

template <class Upstream>
memory_history with_history_layer<Upstream>::record() {
  memory_history r;
  std::vector<detail::tag_account> accounts;
  std::vector<detail::location_table::known_location> locations;
  std::vector<void*> frames;
  for (bool copied = false; !copied;) {
    detail::history_log::sizes room = log_.count();
    for (std::size_t* n : {&room.live, &room.events, &room.tags, &room.locations, &room.frames})
      *n += *n / 8 + 64;
    r.live.reserve(room.live);
    r.events.reserve(room.events);
    accounts.reserve(room.tags);
    locations.reserve(room.locations);
    frames.reserve(room.frames);
    copied = log_.copy(room, [&](detail::history_log const& log) {
      log.for_each_live([&](history_block const& b) { r.live.push_back(b); });
      log.for_each_event([&](history_event const& e) { r.events.push_back(e); });
      for (auto const& a : log.accounts()) accounts.push_back(a);
      for (auto const& p : log.locations().locations()) locations.push_back(p);
      for (void* f : log.locations().frames()) frames.push_back(f);
      r.forgotten_events = log.forgotten();
      r.now_ns = log.last_ns();
    });
  }
  detail::for_each_quarantined(this->upstream(), [&](void* p, std::size_t bytes) {
    r.quarantined.push_back({reinterpret_cast<std::uintptr_t>(p), bytes});
  });
  r.started_ns = started_ns_;
  r.steady_ns = options_.clock == nullptr ? steady_start_ : 0;
  r.now_ns = (std::max)(r.now_ns, now());
  std::sort(r.live.begin(), r.live.end(), [](auto const& a, auto const& b) { return a.address < b.address; });
  // Tags are process-wide; the record contains those that it refers to.
  std::vector<std::uint32_t> number(detail::tag_names::most, 0);
  r.tags.push_back({"untagged", 0, 0, 0, 0, 0});
  auto const number_of = [&](std::uint32_t id) {
    if (id != 0 && number[id] == 0) {
      number[id] = static_cast<std::uint32_t>(r.tags.size());
      r.tags.push_back({tag::from_id(id).name(), 0, 0, 0, 0, 0});
    }
    return number[id];
  };
  for (std::uint32_t id = 0; id < accounts.size(); ++id) {
    detail::tag_account const& a = accounts[id];
    if (a.allocations == 0) continue;
    r.tags[number_of(id)] = tag_of(id, a);
  }
  for (history_block& b : r.live) b.tag = number_of(b.tag);
  for (history_event& e : r.events) e.tag = number_of(e.tag);
  r.locations.resize(locations.size() + 1);
  frame_names known;  // stacks share most of their frames, and naming one costs microseconds
  for (std::size_t i = 0; i < locations.size(); ++i) {
    name_frames(r.locations[i + 1], locations[i].where, frames.data() + locations[i].first_frame,
                locations[i].depth, known);
  }
  return r;
}

template <class Upstream>
std::vector<history_tag> with_history_layer<Upstream>::tags() const {
  std::vector<detail::tag_account> accounts;
  for (bool copied = false; !copied;) {
    detail::history_log::sizes room;
    for (std::size_t* n : {&room.live, &room.events, &room.locations, &room.frames}) *n = ~std::size_t{0};
    room.tags = log_.count().tags;
    accounts.reserve(room.tags);
    copied = log_.copy(room, [&](detail::history_log const& log) {
      for (auto const& a : log.accounts()) accounts.push_back(a);
    });
  }
  std::vector<history_tag> out;
  out.push_back({"untagged", 0, 0, 0, 0, 0});
  for (std::uint32_t id = 0; id < accounts.size(); ++id) {
    detail::tag_account const& a = accounts[id];
    if (a.allocations == 0) continue;
    if (id != 0) out.emplace_back();
    out.back() = tag_of(id, a);
  }
  return out;
}

template <class Upstream>
void with_history_layer<Upstream>::name_frames(std::vector<history_frame>& out, source_location const& where,
                                               void* const* frames, std::size_t depth,
                                               frame_names& known) const {
  if (where.line != 0) out.push_back({where.file, where.line, where.function});
  for (std::size_t i = 0; i < depth; ++i) {
    auto const [named, is_new] = known.try_emplace(frames[i]);
    history_frame& f = named->second;
    if (is_new && options_.stacks.name != nullptr) {
      options_.stacks.name(frames[i], f);
    } else if (is_new) {
      message<24> address;
      f.function = address.add_hex(reinterpret_cast<std::uintptr_t>(frames[i])).c_str();
    }
    out.push_back(f);
  }
}

}  // namespace TARN_NAMESPACE
// ---- tarn/policy/tagged.hpp
// tagged: a handle on the same memory that gives a tag to all allocations through it. `tracked` counts them,
// `traced` writes them to a file, `logged` passes them to a hook.

#include <string_view>
#include <utility>

namespace TARN_NAMESPACE {

template <class Upstream>
class tagged_layer;

/// `auto weights_memory = memory | tarn::tagged{"weights"};` over memory that is `with_history`. A call with
/// a tag of its own keeps it; this tag takes precedence over those of scopes. A block may be freed through
/// any handle on the same memory.
struct tagged {
  tag name;

  explicit tagged(tag t) noexcept : name(t) {}
  explicit tagged(std::string_view n) noexcept : name(n) {}

  template <class Upstream>
  using layer = tagged_layer<Upstream>;
};

/// Costs two writes of a thread-local word per allocation.
template <class Upstream>
class tagged_layer : public resource_adaptor<tagged_layer<Upstream>, Upstream> {
  using base = resource_adaptor<tagged_layer<Upstream>, Upstream>;

 public:
  tagged_layer(Upstream upstream, tagged const& options) : base(std::move(upstream)), name_(options.name) {}

  TARN_ALWAYS_INLINE void* around_allocate(request const& r, auto const& next) {
    tag_scope const here(name_);
    return next.allocate(r);
  }
  [[nodiscard]] bool around_extend(request const& r, void* p, std::size_t more, auto const& next) {
    return next.extend(r, p, more);
  }

  [[nodiscard]] tag name() const noexcept { return name_; }

 private:
  tag name_;
};

}  // namespace TARN_NAMESPACE
// ---- tarn/report/by_tag.hpp
// memory_by_tag: memory use per tag.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace TARN_NAMESPACE {

/// Returns the statistics of each tag under which memory was allocated, including "untagged", sorted by bytes
/// (descending), then by name. For memory with a `with_history` layer. Takes its lock briefly. @throws
/// std::bad_alloc
template <class Resource>
[[nodiscard]] std::vector<history_tag> memory_by_tag(Resource memory) {
  auto const ask = [](auto& layer) -> decltype(layer.tags()) { return layer.tags(); };
  static_assert(reachable<Resource, decltype(ask)>,
                "tarn: memory_by_tag needs recorded tags; add: | tarn::with_history{}");
  std::vector<history_tag> tags = nearest(memory, ask);
  std::erase_if(tags, [](history_tag const& t) { return t.allocations == 0; });
  std::sort(tags.begin(), tags.end(), [](history_tag const& a, history_tag const& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.name < b.name;
  });
  return tags;
}

/// Returns memory_by_tag() as a table, 75 columns between its edges, with the sum last. A column has one
/// unit, so that it can be added up by eye; numbers are truncated. Peaks are per tag and occur at different
/// times. Names are cut, and printable whatever they hold.
/// @throws std::bad_alloc
template <class Resource>
[[nodiscard]] std::string memory_by_tag_summary(Resource memory) {
  std::vector<history_tag> const tags = memory_by_tag(std::move(memory));
  history_tag all;
  for (history_tag const& t : tags) {
    all.bytes += t.bytes;
    all.peak_bytes = detail::max_of(all.peak_bytes, t.peak_bytes);
    all.requested += t.requested;
    all.blocks += t.blocks;
  }
  std::string const line = detail::concat({"|", std::string(75, '='), "|\n"});
  std::string out = line;
  out += "| Tag                    | Cur Usage  | Peak Usage | Requested  | Blocks     |\n" + line;
  auto const column = [](std::size_t number, std::size_t scale,
                         detail::number_unit unit = detail::number_unit::bytes) {
    auto const shown =
        detail::table_number(static_cast<std::int64_t>(number), static_cast<std::int64_t>(scale), unit);
    return detail::concat({" ", shown, " |"});
  };
  auto const row = [&](history_tag const& t, std::string const& peak) {
    std::string const name = detail::as_printable(detail::text_prefix(t.name, 22));
    out += detail::concat({"| ", detail::left(name, 22), " |", column(t.bytes, all.bytes), peak});
    out +=
        column(t.requested, all.requested) + column(t.blocks, all.blocks, detail::number_unit::count) + "\n";
  };
  for (history_tag const& t : tags) row(t, column(t.peak_bytes, all.peak_bytes));
  out += detail::concat({"|", std::string(75, '-'), "|\n"});
  all.name = "all";
  row(all, std::string(12, ' ') + "|");
  return out + line;
}

}  // namespace TARN_NAMESPACE
// ---- tarn/report/explain_memory.hpp
// explain_memory: accounts for a device's memory, for example why nvidia-smi shows 1,072 MiB for a model of
// 0.0004 MiB.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// ---- tarn/report/memory_explanation.hpp
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

namespace TARN_NAMESPACE {

/// Device memory taken by a process's context and the modules loaded so far, bytes; empty if unknown.
struct context_cost {
  std::optional<std::size_t> bytes;
  char const* how = "as given";  ///< how it was measured; static storage
};

namespace detail {

/// Whether explain_memory() accepts it as memory: a stack with a pool, or at least with `tracked`.
template <class T>
inline constexpr bool is_memory = has_driver<T> && has_properties<T>;
template <class T>
inline constexpr bool is_in_device_memory = requires {
  typename T::properties;
  requires has_property<T, device_accessible> && !has_property<T, host_accessible>;
};

/// A table entry, and what it describes: the same pool, passed twice, counts once.
struct found_share {
  pool_share share;
  pools_of_stack layers;
  device_id device;
  bool is_in_device_memory = false;
};

template <class Layer>
[[nodiscard]] found_share found_in(Layer& layer) {
  found_share found{.share = {},
                    .layers = {},
                    .device = layer.driver().device(),
                    .is_in_device_memory = detail::is_in_device_memory<Layer>};
  if constexpr (std::invocable<pool_call::list_pools const&, Layer&>) {
    pool_call::list_pools{found.layers}(layer);
  } else {
    found.layers.pools.push_back(&layer);
  }
  return found;
}

/// Describes each of the nearest pools.
struct shares_of_pools {
  std::vector<found_share>& all;
  static constexpr auto crosses = crossing::each;
  template <class L>
  auto operator()(L& l) const -> decltype(static_cast<void>(pool_state(l.state()))) {
    pool_state const s = l.state();
    pool_share& p = all.emplace_back(found_in(l)).share;
    if constexpr (reachable<L, pool_call::allocator_backend>) p.backend = allocator_backend(l);
    std::size_t const held = min_of(s.live, s.reserved);
    p.reserved = s.reserved;
    p.deferred = min_of(s.deferred, held);  // to the pool, a deferred block is still live
    p.live = held - p.deferred;
    p.cached = p.reserved - held;
  }
};

template <class Memory>
std::vector<found_share> shares_of(Memory memory) {
  static_assert(is_pooled<Memory> || is_tracked<Memory>,
                "tarn: explain_memory needs a resource that counts its bytes; add: | tarn::pooled{}, or | "
                "tarn::tracked{}");
  std::vector<found_share> found;
  if constexpr (is_pooled<Memory>) nearest(memory, shares_of_pools{found});
  if constexpr (is_tracked<Memory>) {
    tracked_statistics const t = statistics_of(memory);
    std::size_t const allocated = positive(t.allocated_bytes[0].current);
    // While threads count, each is read by itself.
    std::size_t const requested = min_of(positive(t.requested_bytes[0].current), allocated);
    if constexpr (!is_pooled<Memory>) {
      found.push_back(nearest(
          memory,
          [](auto& l) -> decltype(static_cast<void>(l.statistics()), found_in(l)) { return found_in(l); }));
      found[0].share.reserved = found[0].share.live = allocated;
    }
    // `tracked` may also count memory of another source or pool (fallback_to); then it does not show this
    // pool's rounding.
    pool_share& p = found[0].share;
    bool const others = routes_above_pool<layer_behind<Memory>>() || found[0].layers.has_other_blocks;
    if (!others && allocated <= p.live) {
      p.requested = requested;
      p.rounding = allocated - requested;
      p.untracked = p.live - allocated;
    }
  }
  return found;
}

/// Returns the driver that a subject is or stands on.
template <class Subject>
decltype(auto) driver_of(Subject const& subject) {
  if constexpr (is_memory<Subject>) {
    return (subject.driver());
  } else {
    return (subject);
  }
}

/// Returns the first subject that identifies a device: a driver, or memory.
template <class First, class... Rest>
decltype(auto) device_among(First const& first, Rest const&... rest) {
  if constexpr (is_memory<First> || stream_driver<First>) {
    return driver_of(first);
  } else {
    static_assert(sizeof...(Rest) != 0,
                  "tarn: explain_memory needs a device; pass a pool, or a driver: tarn::cuda_driver{}");
    return device_among(rest...);
  }
}

template <class Driver>
device_account account_of(Driver const& driver, std::string& why) {
  device_account account;
  if constexpr (accounting_driver<Driver>) {
    status const s = driver.memory_account(account);
    if (s.ok()) return account;
    why = std::string(s.name) + " (" + s.call + ")";
  } else {
    why = "this driver reports no more";
  }
  return {};
}

[[nodiscard]] inline std::optional<std::size_t> if_known(std::size_t bytes) noexcept {
  return bytes == device_account::unknown ? std::nullopt : std::optional<std::size_t>(bytes);
}

/// A device_id denotes a device of the default driver.
template <class Subject>
decltype(auto) as_subject(Subject const& subject) {
  if constexpr (std::is_same_v<Subject, device_id>) {
    return default_driver<Subject>{subject};
  } else {
    return (subject);
  }
}

template <class... Subjects>
memory_explanation explain(Subjects const&... subjects) {
  auto const& driver = device_among(subjects...);
  memory_explanation e;
  e.device = driver.device().value;
  std::vector<void const*> seen;
  auto const is_seen = [&](void const* pool) {
    return std::find(seen.begin(), seen.end(), pool) != seen.end();
  };
  std::size_t pools = 0;
  auto const take = [&]<class Subject>(Subject const& subject) {
    if constexpr (std::is_same_v<Subject, context_cost>) {
      e.context = subject.bytes;
      e.context_how = subject.how;
    } else {
      static_assert(is_memory<Subject> || stream_driver<Subject>,
                    "tarn: explain_memory takes pools, drivers and the result of measure_context()");
      bool const elsewhere = driver_of(subject).device().value != e.device;
      if constexpr (!is_memory<Subject> || is_in_device_memory<Subject>) {
        if (elsewhere) {
          throw misuse(misuse_kind::wrong_device, nullptr,
                       "explain_memory: the pools belong to different devices; call it once for each device");
        }
      }
      if constexpr (is_memory<Subject>) {
        for (found_share& found : shares_of(subject)) {
          if (std::any_of(found.layers.pools.begin(), found.layers.pools.end(), is_seen)) continue;
          seen.insert(seen.end(), found.layers.pools.begin(), found.layers.pools.end());
          if (found.is_in_device_memory && found.device.value != e.device) continue;
          found.share.name = concat({"pool ", std::to_string(++pools)});
          (found.is_in_device_memory ? e.pools : e.host_pools).push_back(std::move(found.share));
        }
      }
    }
  };
  (take(subjects), ...);
  other_pools<std::remove_cvref_t<decltype(driver)>>::for_each_reserved(
      driver, [&](void const* pool, std::size_t bytes) {
        if (is_seen(pool)) return;
        e.other_pools += bytes;
        ++e.other_pool_count;
      });

  must_succeed(driver, driver.memory_info(e.free, e.total));
  std::string why;
  device_account account = account_of(driver, why);
  bool const knows_more = account.source[0] != '\0';
  // A management library that reports less total memory than the driver means something else (a part of it,
  // or host memory).
  bool const fits = account.total == device_account::unknown || account.total >= e.total;
  if (!fits) account = {};
  e.source = knows_more && fits ? std::string("reported by the driver and by ") + account.source
             : fits             ? "reported by the driver only: " + why
                    : "reported by the driver only: the management library describes a different memory";
  e.gap = account.gap;
  if (account.total != device_account::unknown) e.total = account.total;
  e.set_aside = if_known(account.set_aside);
  e.other_processes = if_known(account.other_processes);
  e.this_process = if_known(account.this_process);
  std::size_t const reserved = e.reserved();
  if (e.this_process && *e.this_process < reserved) {
    e.gap = "the management library reports less for this process than its pools reserve: not used";
  } else if (e.this_process) {
    e.outside_pools = *e.this_process - reserved;
  }
  if (e.context && e.outside_pools) {
    e.context = min_of(*e.context, *e.outside_pools);
    e.other_allocations = *e.outside_pools - *e.context;
  }
  return e;
}

/// Less than any context uses, bytes (contexts start at some 100 MiB): a smaller change is due to other
/// processes.
inline constexpr std::size_t least_context = std::size_t{32} << 20;

template <class... Subjects>
context_cost measure(Subjects const&... subjects) {
  auto const& driver = device_among(subjects...);
  std::string why;
  std::size_t const before = account_of(driver, why).free;
  memory_explanation const e = explain(subjects...);  // creates the context
  if (e.outside_pools) return {e.outside_pools, "measured before anything was allocated"};
  std::size_t const after = account_of(driver, why).free;
  bool const both = before != device_account::unknown && after != device_account::unknown;
  if (!both || before < after + least_context) return {};
  return {before - after, "measured: free memory before its creation minus free memory after"};
}

}  // namespace detail

/// Accounts for a device's memory. Takes, in any order, any number of pools (or other memory with `tracked`)
/// of one device, pools of host memory, a driver or a device_id if there is no pool yet, and the result of
/// measure_context(). A pool passed twice counts once; of a pool over another pool pass only the lower one.
/// Of memory that falls back to other pools, each pool is a row, but for those of another device.
/// Pools of the process on the device that are not passed are one row, but for those over fallback_to, part
/// of whose memory may be the host's.
///
///   std::cout << tarn::explain_memory(pool);
///
/// The pools' figures are exact; those of the driver and NVML are taken a moment later: the residual is
/// meaningful only if nothing is allocated meanwhile. If NVML is missing or does not see the processes, parts
/// are unknown and reported as such. Creates the device's context if there is none. Cost: NVML is initialised
/// and shut down, 10 to 100 ms; it does not wait for the device, but for threads that grow the pools that are
/// passed. Thread-safe.
/// @throws cuda_error  the driver does not report free memory
/// @throws misuse      a pool belongs to another device: call it once per device
template <class... Subjects>
[[nodiscard]] memory_explanation explain_memory(Subjects const&... subjects) {
  static_assert(sizeof...(Subjects) != 0,
                "tarn: explain_memory needs a device; pass a pool, or a driver: "
                "tarn::cuda_driver{}");
  return detail::explain(detail::as_subject(subjects)...);
}

/// Measures the device memory of this process's context and modules; takes the arguments of explain_memory().
/// Call it at program start, before anything but those pools has allocated, and pass the result to
/// explain_memory(), which then reports other allocations separately. Modules are loaded on first use: later
/// ones count as other allocations.
///
/// The result is what the management library reports for the process minus what the pools hold. If the
/// library does not see the process (in a container), it is the decrease of free memory while the context is
/// created: then this must be the program's first call on the device, and what other processes allocate in
/// that fraction of a second is included. Otherwise unknown. Cost and errors as explain_memory(), twice.
template <class... Subjects>
[[nodiscard]] context_cost measure_context(Subjects const&... subjects) {
  return detail::measure(detail::as_subject(subjects)...);
}

}  // namespace TARN_NAMESPACE
// ---- tarn/report/line_profile.hpp
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
// ---- tarn/report/memory_stats.hpp
// memory_stats: all statistics under the keys of torch.cuda.memory_stats(); memory_stats_json: the same
// numbers as JSON. Apart from stats.hpp, because std::vector costs a compiler 40 ms.

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace TARN_NAMESPACE {

/// One statistic under PyTorch's key: "allocated_bytes.all.current", "num_ooms", ...
using memory_stat = std::pair<std::string, std::int64_t>;

/// Returns all statistics under the keys of torch.cuda.memory_stats(), in the same sort order:
///   allocation, allocated_bytes    allocated blocks, as the pool rounds them
///   active, active_bytes           these, and deferred blocks: freed, but used by a stream that record_stream() named, or by
///                                  a destroyed one
///   requested_bytes                bytes requested for active blocks
///   reserved_bytes, segment        bytes held from the driver; physical handles, or segments of a pool over blocks. A handle
///                                  belongs to the small or the large pool it was created for, though it may serve both.
///   inactive_split                 free ranges that lie partly in a handle or a segment without filling it, so that it cannot
///                                  be released; inactive_split_bytes: their bytes in those. (PyTorch omits expandable
///                                  segments.) Blocks in a thread's magazines and free blocks of a run (up to 32 KiB) are not
///                                  counted. Peak and totals are taken when a call that reached the pool's shared part ends.
///   num_alloc_retries              times that the driver refused and the cache was searched again
///   num_sync_all_streams           times that the host waited for a stream
///   oversize_*, max_split_size     0 and -1: blocks of every size may be split
/// The memory of captured graphs is part of these numbers, as PyTorch's private pools are. PyTorch has no
/// keys for it alone. While a pool holds any, there are four keys of tarn's own, each a current value:
///   graph_memory.owners            graph memories, and ended ones whose memory has not been given back yet
///   graph_memory.reserved_bytes    held from the driver for them alone
///   graph_memory.allocated_bytes   the live blocks in it
///   graph_memory.kept_bytes        other blocks that were freed inside a capture, which the pool keeps for the graph; they are
///                                  part of active_bytes until then
/// graph_memory::state() returns these for one owner, take_snapshot() by segment (PyTorch's segment_pool_id).
/// A block is in small_pool up to 1 MiB, as requested; if a layer below `tracked` adds bytes (fences), a
/// deferred block counts with them. Exact while no other thread is inside a call; under concurrency each
/// number belongs to one order of events. Takes the pool's locks briefly. O(threads + streams). @throws
/// std::bad_alloc
template <class Resource>
[[nodiscard]] std::vector<memory_stat> memory_stats(Resource memory) {
  detail::reported_numbers const numbers = detail::read_numbers(memory);
  std::vector<memory_stat> out;
  auto const add = [&](std::string key, std::int64_t n) { out.emplace_back(std::move(key), n); };
  auto const put = [&](std::string const& name, counter const& s) {
    add(name + ".allocated", s.allocated);
    add(name + ".current", s.current);
    add(name + ".freed", s.freed);
    add(name + ".peak", s.peak);
  };
  for (detail::stat_row const& row : detail::stat_rows) {
    std::array<counter, 3> const& s = numbers.*row.values;
    put(std::string(row.key) + ".all", s[0]);
    put(std::string(row.key) + ".small_pool", s[1]);
    put(std::string(row.key) + ".large_pool", s[2]);
  }
  for (detail::pool_number const& n : detail::pool_numbers) {
    if (n.key != nullptr) add(n.key, numbers.since_reset(n));
  }
  for (detail::graph_row const& row : detail::graph_rows) {
    if (numbers.has_graphs()) add(row.key, static_cast<std::int64_t>(numbers.graphs.*row.value));
  }
  add("max_split_size", -1);
  add("num_ooms", static_cast<std::int64_t>(numbers.ooms));
  put("oversize_allocations", {});
  put("oversize_segments", {});
  detail::sort(out.data(), out.size(),
               [](memory_stat const& a, memory_stat const& b) { return a.first < b.first; });
  return out;
}

/// Returns memory_stats() as one line of JSON, as json.dumps(torch.cuda.memory_stats()) has them: an object
/// of the keys in their order, each with an integer. For logs and monitors. For memory with `tracked`. Cost
/// and threads as memory_stats().
/// @throws std::bad_alloc
template <class Resource>
[[nodiscard]] std::string memory_stats_json(Resource memory) {
  std::string out;
  for (auto const& [key, value] : memory_stats(memory))  // keys are plain text: nothing to escape
    out += detail::concat({out.empty() ? "{\"" : ",\"", key, "\":", std::to_string(value)});
  return out += '}';
}

}  // namespace TARN_NAMESPACE
// ---- tarn/report/save_snapshot.hpp
// save_snapshot: writes a snapshot to a file whose extension selects the format.

#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>

// ---- tarn/report/perfetto.hpp
// A snapshot's history in Chrome's trace format, for ui.perfetto.dev and chrome://tracing. Contains counters
// of live and reserved bytes and of each tag, larger blocks as slices from allocation to free, and refused
// requests as markers.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

// ---- tarn/report/json_text.hpp
// json_text: an incremental JSON writer that places commas, quotes and escapes correctly for any text.
// Allocates only for the current escaped text.

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>

namespace TARN_NAMESPACE::detail {

/// Where the text stands. In a script element `<`, `>` and `&` are escaped, so that no text can end the
/// element or begin a comment.
enum class json_in : std::uint8_t { file, script };

class json_text {
 public:
  explicit json_text(std::ostream& out, json_in where = json_in::file) : out_(out), where_(where) {}
  json_text& operator=(json_text&&) = delete;

  json_text& begin_object() { return open('{'); }
  json_text& end_object() { return close('}'); }
  json_text& begin_array() { return open('['); }
  json_text& end_array() { return close(']'); }

  /// Writes the name of an object member, before its value. The name is a constant of the writer.
  json_text& key(std::string_view name) {
    separate();
    quote(name);
    text_ += ':';
    follows_ = false;
    return *this;
  }
  json_text& text(std::string_view value) {
    separate();
    quote(value);
    return *this;
  }
  template <class Number>
    requires std::is_integral_v<Number>
  json_text& number(Number value) {
    separate();
    put(value, 10);
    return *this;
  }
  json_text& boolean(bool value) {
    separate();
    text_ += value ? "true" : "false";
    return *this;
  }
  /// Writes an address as text ("0x2000000"): a JavaScript number has 53 bits, an address 64.
  json_text& address(std::uintptr_t value) {
    separate();
    text_ += "\"0x";
    put(value, 16);
    text_ += '"';
    return *this;
  }
  /// Writes nanoseconds as microseconds with three decimals.
  json_text& microseconds(std::uint64_t nanoseconds) {
    separate();
    put(nanoseconds / 1000, 10);
    char const fraction[] = {'.', static_cast<char>('0' + nanoseconds / 100 % 10),
                             static_cast<char>('0' + nanoseconds / 10 % 10),
                             static_cast<char>('0' + nanoseconds % 10)};
    text_.append(fraction, sizeof fraction);
    return *this;
  }
  json_text& field(std::string_view name, std::string_view value) { return key(name).text(value); }
  template <class Number>
    requires std::is_integral_v<Number>
  json_text& field(std::string_view name, Number value) {
    return key(name).number(value);
  }
  /// Starts a new line, for readability.
  json_text& line() {
    starts_line_ = true;
    return *this;
  }

  /// Writes the buffered text; call it last.
  void flush() {
    out_.write(text_.data(), static_cast<std::streamsize>(text_.size()));
    text_.clear();
  }

 private:
  static constexpr std::size_t buffered = std::size_t{1} << 16;

  json_text& open(char bracket) {
    separate();
    text_ += bracket;
    follows_ = false;
    return *this;
  }
  json_text& close(char bracket) {
    text_ += bracket;
    follows_ = true;
    return *this;
  }
  void separate() {
    if (follows_) text_ += ',';
    if (starts_line_) text_ += '\n';
    follows_ = true;
    starts_line_ = false;
    if (text_.size() >= buffered) flush();
  }
  template <class Number>
  void put(Number value, int base) {
    char digits[32];
    auto const end = std::to_chars(digits, digits + sizeof digits, value, base).ptr;
    text_.append(digits, static_cast<std::size_t>(end - digits));
  }
  void quote(std::string_view value) {
    text_ += '"';
    while (!value.empty()) {
      std::size_t const length = utf8_length(value);
      if (length == 1) {
        escape(value.front());
      } else {
        text_ += length != 0 ? value.substr(0, length) : std::string_view("\xEF\xBF\xBD");
      }
      value.remove_prefix(length != 0 ? length : 1);
    }
    text_ += '"';
  }
  void escape(char c) {
    bool const is_markup = where_ == json_in::script && (c == '<' || c == '>' || c == '&' || c == '\x7F');
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (static_cast<unsigned char>(c) >= 0x20 && !is_markup) {
      text_ += c;
    } else {
      text_ += "\\u00";
      text_ += static_cast<char>('0' + c / 16);
      text_ += "0123456789abcdef"[c % 16];
    }
  }

  std::ostream& out_;
  json_in const where_;
  std::string text_;
  bool follows_ = false;
  bool starts_line_ = false;
};

}  // namespace TARN_NAMESPACE::detail
// ---- tarn/report/snapshot.hpp
// A snapshot: the state of a pool at one moment and its history, as plain data. Writers turn it into files:
// pickle (PyTorch's memory_viz), timeline_html, perfetto, snapshot_json.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// ---- tarn/pool/inspection/snapshot_segment.hpp
// snapshot_segment: a range of addresses of a pool, tiled by its blocks. Plain data of a snapshot.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace TARN_NAMESPACE {

enum class block_use : std::uint8_t {
  live,  ///< allocated (PyTorch: active_allocated)
  /// Freed, but another stream that used it has not finished, a graph uses it, or `checked` keeps it
  /// (active_pending_free).
  deferred,
  cached  ///< free for reuse (inactive)
};

struct snapshot_block {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  /// Set for a live block that a `with_history` layer saw, and for a deferred one (the size requested from
  /// the pool if the history lacks its allocation); otherwise 0.
  std::size_t requested = 0;
  block_use use = block_use::cached;
  stream_id stream = 0;        ///< of the allocation; of a cached block: the last possible user; 0: unowned
  std::uint32_t tag = 0;       ///< index into snapshot::tags
  std::uint32_t location = 0;  ///< index into snapshot::locations
  std::uint64_t time_ns = 0;   ///< of the allocation, since snapshot::started_ns
  /// that a block is deferred for which a capture freed, counted from 1; 0 if none
  std::uint64_t graph_memory = 0;
};

enum class segment_kind : std::uint8_t {
  pages,    ///< consecutive physical handles, at their original addresses
  view,     ///< one live block remapped from handles of several locations; these are not listed at their
            ///< original addresses
  upstream  ///< one block of the resource below a pool that has no pages
};

/// A part of a view's block, at its original address.
struct snapshot_piece {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
};

/// An address range backed by memory; its blocks tile it. The bytes of all segments add up to the pool's
/// reserved bytes.
struct snapshot_segment {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  segment_kind kind = segment_kind::pages;
  bool is_small = false;               ///< for blocks of up to 1 MiB
  std::uint32_t handles = 1;           ///< physical handles that back it, wholly or in part
  stream_id stream = 0;                ///< stream of most of its bytes
  std::uint64_t graph_memory = 0;      ///< that it belongs to, counted from 1; 0 if none
  std::vector<snapshot_block> blocks;  ///< by address
  std::vector<snapshot_piece> pieces;  ///< of a view: its original ranges, in order
};

}  // namespace TARN_NAMESPACE

namespace TARN_NAMESPACE {

/// Calls, and what the pool reserved from and released to the driver, in one order.
enum class snapshot_event_kind : std::uint8_t { allocate, free, refused, reserve, release };

struct snapshot_event {
  snapshot_event_kind kind = snapshot_event_kind::allocate;
  std::uintptr_t address = 0;
  std::size_t bytes = 0;      ///< size of the block or handle; of a refused request its size
  std::size_t requested = 0;  ///< of allocate, free and refused
  stream_id stream = 0;
  std::uint32_t tag = 0;
  std::uint32_t location = 0;
  std::uint64_t time_ns = 0;
};

struct snapshot {
  std::string title = "tarn";
  int device = 0;
  std::uint64_t started_ns = 0;  ///< since 1970
  std::uint64_t now_ns = 0;      ///< since started_ns
  std::uint64_t steady_ns = 0;   ///< the steady clock at started_ns; 0 with a user's clock
  stream_id null_stream = 0;     ///< identity of the default stream, 0 if the driver does not report it
  pool_state pool;
  std::vector<snapshot_segment> segments;             ///< by address
  std::vector<snapshot_event> events;                 ///< oldest first
  std::uint64_t forgotten_events = 0;                 ///< number of events before the first of `events`
  std::vector<history_tag> tags;                      ///< tags[0] is "untagged"
  std::vector<std::vector<history_frame>> locations;  ///< innermost frame first; locations[0] is empty
};

}  // namespace TARN_NAMESPACE
// ---- tarn/report/viewer_history.hpp
// Which events of a history fit the final state: the rule of all writers that start from it. And a history
// that PyTorch's viewer can undo. The viewer draws the memory at an earlier moment by undoing events from the
// last one backwards, and fails if an event does not fit: each block must lie in a segment for its whole
// lifetime, and a segment that is removed must exist. So the history is first undone here, and the segment
// changes that the viewer needs are recorded:
//
//   handles created and released  the parts of them at their original addresses at that moment
//   a view's block                its segment is added with it; meanwhile its pieces leave their original addresses
//   a block without a segment     gets one for its lifetime (a view that has ended, memory released without a record);
//                                 its bytes count twice if they are also at their original address
//   events that contradict the    omitted, also from the page and from the Perfetto trace: a free of a block that is
//   final state                   live, an allocation of one that is not
//   events after the snapshot     omitted; the page and the Perfetto trace continue with them

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace TARN_NAMESPACE::detail {

/// How an event is written.
enum class reported_as : std::uint8_t {
  nothing,    ///< omitted, or written as segment changes
  itself,     ///< an allocation, a refused request, a completed free
  requested,  ///< a free that still waits for another stream's work
};

/// A segment that is added or removed next to an event.
struct segment_change {
  std::size_t event = 0;  ///< index of the event
  bool after = false;     ///< false: before the event
  bool comes = false;     ///< true: added; false: removed
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
};

class viewer_history {
 public:
  /// O((events + segments) log blocks); one byte per event, and a map of the live blocks.
  explicit viewer_history(snapshot const& s)
      : snapshot_(s), reported_(s.events.size(), reported_as::nothing) {
    for (snapshot_segment const& segment : s.segments) begin_with(segment);
    std::uint64_t latest = 0;  // threads read the clock before their calls are ordered
    while (known_ < s.events.size() && (latest = (std::max)(latest, s.events[known_].time_ns)) <= s.now_ns)
      ++known_;
    for (std::size_t i = known_; i-- > 0;) undo(i);
    std::reverse(changes_.begin(), changes_.end());
  }

  [[nodiscard]] reported_as reported(std::size_t event) const noexcept { return reported_[event]; }
  /// Number of events up to the snapshot's moment.
  [[nodiscard]] std::size_t known() const noexcept { return known_; }
  /// Whether the event is an allocation or a free that contradicts the final state.
  [[nodiscard]] bool contradicts(std::size_t event) const noexcept {
    return event < known_ && snapshot_.events[event].kind <= snapshot_event_kind::free &&
           reported_[event] == reported_as::nothing;
  }
  /// Returns the segment changes in the order of the events.
  [[nodiscard]] std::vector<segment_change> const& changes() const noexcept { return changes_; }
  /// Whether segments consist of pages, which join with adjacent ones and may be split (PyTorch: expandable
  /// segments); otherwise each is added and removed as a whole.
  [[nodiscard]] bool is_expandable() const noexcept { return expandable_; }

 private:
  struct block {
    std::size_t bytes = 0;
    /// the segment of which it is the only block, and that is added with it
    snapshot_segment const* own = nullptr;
    bool has_own = false;   ///< a segment was created for it
    bool deferred = false;  ///< and its free is not undone yet
  };

  /// Number of handles that are rechecked after each allocation; further ones appear as present from the
  /// start.
  static constexpr std::size_t most_late = 64;

  void begin_with(snapshot_segment const& segment) {
    segments_.emplace(segment.address, segment.address + segment.bytes);
    expandable_ = expandable_ || segment.kind != segment_kind::upstream;
    bool const alone = segment.blocks.size() == 1 && segment.kind != segment_kind::pages;
    for (snapshot_block const& b : segment.blocks) {
      if (b.use == block_use::cached) continue;
      live_.emplace(b.address,
                    block{b.bytes, alone ? &segment : nullptr, false, b.use == block_use::deferred});
    }
  }

  void undo(std::size_t i) {
    snapshot_event const& e = snapshot_.events[i];
    switch (e.kind) {
      case snapshot_event_kind::allocate:
        return undo_allocation(i, e);
      case snapshot_event_kind::free:
        return undo_free(i, e);
      case snapshot_event_kind::reserve:
        if (has_live(e.address, e.bytes)) {  // recorded late: it precedes the first block in it
          if (late_.size() < most_late) late_.emplace_back(e.address, e.bytes);
        } else {
          take_away(i, false, e.address, e.bytes);
        }
        return;
      case snapshot_event_kind::release:
        return put_back(i, false, e.address, e.bytes);
      default:
        reported_[i] = reported_as::itself;
    }
  }

  void undo_allocation(std::size_t i, snapshot_event const& e) {
    auto const found = live_.find(e.address);
    if (found == live_.end() || found->second.deferred) return;  // neither live at the end nor freed since
    reported_[i] = reported_as::itself;
    block const b = found->second;
    live_.erase(found);
    if (b.has_own && !has_live(e.address, b.bytes)) take_away(i, false, e.address, b.bytes);
    if (b.own != nullptr && !has_live(b.own->address, b.own->bytes)) {
      take_away(i, false, b.own->address, b.own->bytes);
      for (std::size_t k = b.own->pieces.size(); k-- > 0;)
        put_back(i, false, b.own->pieces[k].address, b.own->pieces[k].bytes);
    }
    for (std::size_t k = late_.size(); k-- > 0;) {
      if (has_live(late_[k].first, late_[k].second)) continue;
      take_away(i, false, late_[k].first, late_[k].second);
      late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(k));
    }
  }

  void undo_free(std::size_t i, snapshot_event const& e) {
    if (auto const found = live_.find(e.address); found != live_.end()) {
      if (found->second.deferred) reported_[i] = reported_as::requested;
      found->second.deferred = false;
      return;
    }
    if (e.bytes == 0) return;
    block b{e.bytes, nullptr, false, false};
    if (!is_covered(e.address)) {
      b.has_own = true;
      put_back(i, true, e.address, e.bytes);
    }
    reported_[i] = reported_as::itself;
    live_.emplace(e.address, b);
  }

  [[nodiscard]] bool is_covered(std::uintptr_t address) const {
    auto const after = segments_.upper_bound(address);
    return after != segments_.begin() && std::prev(after)->second > address;
  }
  /// Whether a live block overlaps a range.
  [[nodiscard]] bool has_live(std::uintptr_t address, std::size_t bytes) const {
    auto const behind = live_.lower_bound(address + bytes);
    if (behind == live_.begin()) return false;
    auto const& [first, found] = *std::prev(behind);
    return first >= address || address - first < found.bytes;
  }

  /// Undoes the addition of a range: removes those parts of it that are present.
  void take_away(std::size_t i, bool after, std::uintptr_t address, std::size_t bytes) {
    std::uintptr_t const end = address + bytes;
    if (!expandable_) {
      auto const whole = segments_.find(address);
      if (whole == segments_.end() || whole->second != end) return;
      segments_.erase(whole);
      changes_.push_back({i, after, true, address, bytes});
      return;
    }
    auto at = segments_.upper_bound(address);
    if (at != segments_.begin()) --at;
    while (at != segments_.end() && at->first < end) {
      auto const [first, last] = *at;
      if (last <= address) {
        ++at;
        continue;
      }
      std::uintptr_t const from = (std::max)(first, address);
      std::uintptr_t const to = (std::min)(last, end);
      at = segments_.erase(at);
      if (first < from) segments_.emplace(first, from);
      if (to < last) segments_.emplace(to, last);
      changes_.push_back({i, after, true, from, to - from});
    }
  }

  /// Undoes the removal of a range: adds those parts of it that are missing.
  void put_back(std::size_t i, bool after, std::uintptr_t address, std::size_t bytes) {
    std::uintptr_t const end = address + bytes;
    std::vector<std::pair<std::uintptr_t, std::uintptr_t>> gaps;
    auto next = segments_.upper_bound(address);
    std::uintptr_t at = address;
    if (next != segments_.begin()) at = (std::max)(at, std::prev(next)->second);
    for (; at < end; ++next) {
      std::uintptr_t const to = next == segments_.end() ? end : (std::min)(end, next->first);
      if (at < to) gaps.emplace_back(at, to);
      if (next == segments_.end()) break;
      at = (std::max)(at, next->second);
    }
    for (auto const& [first, last] : gaps) {
      segments_.emplace(first, last);
      changes_.push_back({i, after, false, first, last - first});
    }
  }

  snapshot const& snapshot_;
  std::size_t known_ = 0;
  std::vector<reported_as> reported_;
  std::vector<segment_change> changes_;
  std::map<std::uintptr_t, std::uintptr_t> segments_;  ///< begin to end; adjacent ones are not joined
  std::map<std::uintptr_t, block> live_;
  std::vector<std::pair<std::uintptr_t, std::size_t>> late_;
  bool expandable_ = false;
};

}  // namespace TARN_NAMESPACE::detail

namespace TARN_NAMESPACE {

struct perfetto_options {
  /// Smaller blocks are only counted: a slice takes 300 bytes of the file, and viewers handle some 100,000 of
  /// them.
  std::size_t least_slice_bytes = 1_MiB;
};

namespace detail {

class perfetto_writer {
 public:
  perfetto_writer(std::ostream& out, snapshot const& s, perfetto_options const& options)
      : json_(out), snapshot_(s), history_(s), options_(options), of_tag_(s.tags.size() + 1, 0) {
    begin_at_start();
  }

  void write() {
    json_.begin_object().field("displayTimeUnit", "ms").key("otherData").begin_object();
    json_.field("title", snapshot_.title).field("started_ns_since_1970", snapshot_.started_ns);
    json_.field("forgotten_events", snapshot_.forgotten_events).end_object();
    json_.key("traceEvents").begin_array();
    name("process_name", snapshot_.title);
    count("reserved bytes", reserved_, 0);
    // Without recorded calls, what is live is known at the snapshot only.
    bool const has_calls =
        std::any_of(snapshot_.events.begin(), snapshot_.events.end(),
                    [](snapshot_event const& e) { return e.kind <= snapshot_event_kind::refused; });
    if (!has_calls) blocks_.clear();
    if (has_calls) count_live(0);
    for (auto const& [address, b] : blocks_) slice("b", address, b, 0);
    for (std::size_t i = 0; i < snapshot_.events.size(); ++i) {
      if (!history_.contradicts(i)) write(snapshot_.events[i]);
    }
    for (auto const& [address, b] : blocks_) slice("e", address, b, snapshot_.now_ns);
    if (!has_calls) count_live(snapshot_.now_ns);
    json_.end_array().end_object().line();
    json_.flush();
  }

 private:
  struct live_block {
    std::size_t bytes = 0;
    std::size_t requested = 0;
    stream_id stream = 0;
    std::uint32_t tag = 0;
    std::uint32_t location = 0;
    std::uint64_t number = 0;  ///< identity of its slice
  };

  [[nodiscard]] live_block block_of(auto const& b, std::uint64_t number = 0) const noexcept {
    return {b.bytes, b.requested, b.stream, tag_of(b.tag), b.location, number};
  }
  void add_live(live_block const& b, std::int64_t sign) noexcept {
    live_ += sign * static_cast<std::int64_t>(b.bytes);
    of_tag_[b.tag] += sign * static_cast<std::int64_t>(b.bytes);
  }

  /// Computes the live and reserved bytes before the first event by undoing the events from the snapshot's
  /// moment.
  void begin_at_start() {
    reserved_ = static_cast<std::int64_t>(snapshot_.pool.reserved);
    for (snapshot_segment const& s : snapshot_.segments) {
      for (snapshot_block const& b : s.blocks) {
        if (b.use == block_use::live) add_live(blocks_[b.address] = block_of(b), 1);
      }
    }
    for (std::size_t i = history_.known(); i-- > 0;) {
      snapshot_event const& e = snapshot_.events[i];
      auto const bytes = static_cast<std::int64_t>(e.bytes);
      if (e.kind == snapshot_event_kind::reserve) reserved_ -= bytes;
      if (e.kind == snapshot_event_kind::release) reserved_ += bytes;
      if (e.kind > snapshot_event_kind::free || history_.contradicts(i)) continue;
      live_block const b = block_of(e);
      bool const is_free = e.kind == snapshot_event_kind::free;
      add_live(b, is_free ? 1 : -1);
      if (is_free) {
        blocks_.emplace(e.address, b);
      } else {
        blocks_.erase(e.address);
      }
    }
    for (auto& [address, b] : blocks_) b.number = ++numbers_;
  }

  void write(snapshot_event const& e) {
    switch (e.kind) {
      case snapshot_event_kind::reserve:
        return count("reserved bytes", reserved_ += static_cast<std::int64_t>(e.bytes), e.time_ns);
      case snapshot_event_kind::release:
        return count("reserved bytes", reserved_ -= static_cast<std::int64_t>(e.bytes), e.time_ns);
      case snapshot_event_kind::allocate: {
        live_block const b = block_of(e, ++numbers_);
        change(b, 1, e.time_ns);
        if (blocks_.emplace(e.address, b).second) slice("b", e.address, b, e.time_ns);
        return;
      }
      case snapshot_event_kind::free: {
        change(block_of(e), -1, e.time_ns);
        auto const found = blocks_.find(e.address);
        if (found == blocks_.end()) return;
        slice("e", e.address, found->second, e.time_ns);
        blocks_.erase(found);
        return;
      }
      default:
        begin("i", "out of memory", e.time_ns).field("s", "g").key("args").begin_object();
        json_.field("asked", e.requested)
            .field("tag", tag_name(e.tag))
            .field("location", location_name(e.location));
        json_.end_object().end_object();
    }
  }

  void change(live_block const& b, std::int64_t sign, std::uint64_t time) {
    add_live(b, sign);
    count("live bytes", live_, time);
    if (has_tags()) count_tag(b.tag, time);
  }

  json_text& begin(char const* phase, std::string_view name, std::uint64_t time) {
    json_.line()
        .begin_object()
        .field("ph", phase)
        .field("name", name)
        .field("pid", snapshot_.device)
        .field("tid", 0);
    return json_.key("ts").microseconds(time);
  }
  void name(char const* what, std::string_view value) {
    begin("M", what, 0).key("args").begin_object().field("name", value).end_object().end_object();
  }
  void count(std::string_view name, std::int64_t bytes, std::uint64_t time) {
    begin("C", name, time).key("args").begin_object().field("bytes", bytes).end_object().end_object();
  }
  void count_live(std::uint64_t time) {
    count("live bytes", live_, time);
    for (std::uint32_t t = 0; t < snapshot_.tags.size(); ++t) {
      if (has_tags()) count_tag(t, time);
    }
  }
  void count_tag(std::uint32_t tag, std::uint64_t time) {
    count(concat({"tag ", tag_name(tag)}), of_tag_[tag], time);
  }
  void slice(char const* phase, std::uintptr_t address, live_block const& b, std::uint64_t time) {
    if (b.bytes < options_.least_slice_bytes) return;
    begin(phase, tag_name(b.tag), time).field("cat", "block").field("id", b.number);
    if (*phase == 'b') {
      json_.key("args").begin_object().key("address").address(address).field("bytes", b.bytes);
      json_.field("requested", b.requested)
          .field("stream", b.stream)
          .field("location", location_name(b.location))
          .end_object();
    }
    json_.end_object();
  }

  [[nodiscard]] bool has_tags() const noexcept { return snapshot_.tags.size() > 1; }
  [[nodiscard]] std::uint32_t tag_of(std::uint32_t tag) const noexcept {
    return tag < snapshot_.tags.size() ? tag : 0;
  }
  [[nodiscard]] std::string_view tag_name(std::uint32_t tag) const noexcept {
    return tag < snapshot_.tags.size() ? std::string_view(snapshot_.tags[tag].name) : "untagged";
  }
  [[nodiscard]] std::string location_name(std::uint32_t location) const {
    if (location >= snapshot_.locations.size() || snapshot_.locations[location].empty()) return "";
    history_frame const& f = snapshot_.locations[location][0];
    return concat({f.file, ":", std::to_string(f.line)});
  }

  json_text json_;
  snapshot const& snapshot_;
  viewer_history history_;
  perfetto_options options_;
  std::int64_t live_ = 0;
  std::int64_t reserved_ = 0;
  std::vector<std::int64_t> of_tag_;
  std::unordered_map<std::uintptr_t, live_block> blocks_;
  std::uint64_t numbers_ = 0;
};

}  // namespace detail

/// Writes a snapshot's history in Chrome's JSON trace format; times are microseconds since the snapshot's
/// start. Errors are reported by the stream's state. An allocation or a free that contradicts the final state
/// is omitted: see viewer_history.hpp. Where no calls were recorded, live bytes are a single value, at the
/// snapshot's time. Some 80 bytes of the file per counter step; two steps per allocation or free with tags,
/// else one.
inline void write_perfetto(std::ostream& out, snapshot const& s, perfetto_options const& options = {}) {
  detail::perfetto_writer(out, s, options).write();
}

}  // namespace TARN_NAMESPACE
// ---- tarn/report/pickle.hpp
// A snapshot in the format of PyTorch's tools: drop the file on pytorch.org/memory_viz, or run `python
// _memory_viz.py stats|trace|segments|memory|segment_plot|trace_plot x.pickle` (torch/cuda/_memory_viz.py).

#include <cstddef>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace TARN_NAMESPACE {

namespace detail {

// An incremental writer of pickles of protocol 4: dictionaries, lists, strings, integers, pairs, and
// references to earlier values. Only what PyTorch's viewer unpickles, in batches of at most 1,000 (it passes
// a batch as the arguments of one call).

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

class snapshot_pickler {
 public:
  snapshot_pickler(std::ostream& out, snapshot const& s) : pickle_(out), snapshot_(s), history_(s) {}

  void write() {
    pickle_.begin_dict();
    list("segments", snapshot_.segments);
    pickle_.word("device_traces");
    pickle_.begin_list();
    for (int device = 0; device <= this->device(); ++device) {
      pickle_.item();
      pickle_.begin_list();
      if (device == this->device()) write_trace();
      pickle_.end_list();
    }
    pickle_.end_list();
    pickle_.word("allocator_settings");
    pickle_.begin_dict();
    text("allocator", snapshot_.title);
    field("expandable_segments", history_.is_expandable());
    field("forgotten_events", snapshot_.forgotten_events);
    pickle_.end_dict();
    pickle_.end_dict();
    pickle_.stop();
  }

 private:
  [[nodiscard]] int device() const noexcept { return snapshot_.device < 0 ? 0 : snapshot_.device; }
  /// PyTorch's default stream is 0.
  [[nodiscard]] stream_id stream(stream_id id) const noexcept { return id == snapshot_.null_stream ? 0 : id; }

  void field(char const* key, std::uint64_t value) {
    pickle_.word(key);
    pickle_.number(value);
  }
  void field(char const* key, bool value) {
    pickle_.word(key);
    pickle_.boolean(value);
  }
  void field(char const* key, char const* value) {
    pickle_.word(key);
    pickle_.word(value);
  }
  void text(char const* key, std::string_view value) {
    pickle_.word(key);
    pickle_.text(value);
  }
  template <class Item>
  void list(char const* key, std::vector<Item> const& items) {
    pickle_.word(key);
    pickle_.begin_list();
    for (Item const& i : items) {
      pickle_.item();
      write(i);
    }
    pickle_.end_list();
  }

  /// Writes the frames of a location, innermost first, with the tag as the outermost: flame graphs group by
  /// it, and every view shows it.
  void frames(std::uint32_t tag, std::uint32_t location) {
    pickle_.word("frames");
    auto const known = frames_.find({tag, location});
    if (known != frames_.end()) return pickle_.again(known->second);
    pickle_.begin_list();
    if (location < snapshot_.locations.size()) {
      for (history_frame const& f : snapshot_.locations[location]) write(f.file, f.line, f.function);
    }
    if (tag != 0 && tag < snapshot_.tags.size()) write("tag", 0, snapshot_.tags[tag].name);
    pickle_.end_list();
    frames_.emplace(std::pair(tag, location), pickle_.remember());
  }
  void write(std::string_view file, int line, std::string_view function) {
    pickle_.item();
    pickle_.begin_dict();
    text("filename", file);
    field("line", line > 0 ? static_cast<std::uint64_t>(line) : 0);
    text("name", function);
    pickle_.end_dict();
  }

  void write(snapshot_segment const& s) {
    std::size_t allocated = 0;
    std::size_t active = 0;
    std::size_t requested = 0;
    for (snapshot_block const& b : s.blocks) {
      if (b.use == block_use::cached) continue;
      active += b.bytes;
      requested += requested_of(b);
      if (b.use == block_use::live) allocated += b.bytes;
    }
    pickle_.begin_dict();
    field("device", static_cast<std::uint64_t>(device()));
    field("address", s.address);
    field("total_size", s.bytes);
    field("allocated_size", allocated);
    field("active_size", active);
    field("requested_size", requested);
    field("stream", stream(s.stream));
    field("segment_type", s.is_small ? "small" : "large");
    pool_id("segment_pool_id", s.graph_memory);
    field("is_expandable", s.kind != segment_kind::upstream);
    frames(0, 0);
    list("blocks", s.blocks);
    pickle_.end_dict();
  }
  /// Writes a pool's id: (0, 0), or (0, n) for the memory of captured graphs, as the viewer expects it.
  void pool_id(char const* key, std::uint64_t graph_memory) {
    pickle_.word(key);
    pickle_.number(0);
    pickle_.number(graph_memory);
    pickle_.end_pair();
  }
  /// Returns the requested bytes of a block, which PyTorch always has; where tarn does not know them, the
  /// whole block.
  static std::size_t requested_of(snapshot_block const& b) noexcept {
    return b.requested != 0 || b.use == block_use::cached ? b.requested : b.bytes;
  }
  void write(snapshot_block const& b) {
    pickle_.begin_dict();
    field("address", b.address);
    field("size", b.bytes);
    field("requested_size", requested_of(b));
    field("state", b.use == block_use::live       ? "active_allocated"
                   : b.use == block_use::deferred ? "active_pending_free"
                                                  : "inactive");
    frames(b.use == block_use::cached ? 0 : b.tag, b.use == block_use::cached ? 0 : b.location);
    pickle_.end_dict();
  }

  void write_trace() {
    auto change = history_.changes().begin();
    auto const write_changes = [&](std::size_t i, bool after) {
      for (; change != history_.changes().end() && change->event == i && change->after == after; ++change) {
        snapshot_event const& at = snapshot_.events[i];
        char const* const whole = change->comes ? "segment_alloc" : "segment_free";
        write(
            history_.is_expandable() ? (change->comes ? "segment_map" : "segment_unmap") : whole,
            {.address = change->address, .bytes = change->bytes, .stream = at.stream, .time_ns = at.time_ns});
      }
    };
    for (std::size_t i = 0; i < snapshot_.events.size(); ++i) {
      snapshot_event const& e = snapshot_.events[i];
      reported_as const reported = history_.reported(i);
      write_changes(i, false);
      if (reported != reported_as::nothing) {
        if (e.kind == snapshot_event_kind::allocate) write("alloc", e);
        if (e.kind == snapshot_event_kind::refused) write("oom", e);
        if (e.kind == snapshot_event_kind::free) {
          write("free_requested", e);
          if (reported != reported_as::requested) write("free_completed", e);
        }
      }
      write_changes(i, true);
    }
  }
  void write(char const* action, snapshot_event const& e) {
    pickle_.item();
    pickle_.begin_dict();
    field("action", action);
    // The free memory of the device at a refusal is not recorded; the viewers need a number.
    field(e.kind == snapshot_event_kind::refused ? "device_free" : "addr",
          e.kind == snapshot_event_kind::refused ? 0 : e.address);
    field("size", e.requested != 0 ? e.requested : e.bytes);
    field("stream", stream(e.stream));
    field("time_us", (snapshot_.started_ns + e.time_ns) / 1000);
    pool_id("pool_id", 0);
    frames(e.tag, e.location);
    pickle_.end_dict();
  }

  pickle_text pickle_;
  snapshot const& snapshot_;
  viewer_history history_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, pickle_ref> frames_;
};

}  // namespace detail

/// Writes a snapshot as a pickle of protocol 4. Errors are reported by the stream's state. `size` of an event
/// is the requested bytes, as in PyTorch; times are microseconds since 1970; the default stream is 0; the tag
/// is the outermost frame, "tag:0:NAME". Handles are written as segment_map and segment_unmap, as PyTorch's
/// expandable segments; over blocks segment_alloc and segment_free. An event without a segment in the history
/// gets one; an event that contradicts the final state is omitted: see viewer_history.hpp. Host memory: one
/// byte per event, 50 per live block, 64 KiB. Some 60 bytes of the file per event.
inline void write_pickle(std::ostream& out, snapshot const& s) {
  detail::snapshot_pickler(out, s).write();
}

}  // namespace TARN_NAMESPACE
// ---- tarn/report/snapshot_json.hpp
// A snapshot as JSON, for other programs.
//
//   {"format": "tarn snapshot", "version": 1, "title", "device", "started_ns", "now_ns", "null_stream", "forgotten_events",
//    "pool":     {"live", ...},                                               the numbers of pool_state, by their names there
//    "tags":     [{"name", "bytes", "peak_bytes", "requested", "blocks", "allocations"}],    the first is "untagged"
//    "locations":   [[{"file", "line", "function"}]],                      innermost frame first; the first has no frames
//    "segments": [{"address", "bytes", "kind": "pages" | "view" | "upstream", "small", "handles", "stream",
//                  "graph_memory",                                            of memory of captured graphs only, from 1
//                  "pieces": [{"address", "bytes"}],                                                 of a view only
//                  "blocks": [{"address", "bytes", "requested", "use": "live" | "deferred" | "cached",
//                              "stream", "tag", "location", "time_ns",
//                              "graph_memory"}]}],                          of a block deferred for a graph only, from 1
//    "events":   [{"kind": "allocate" | "free" | "refused" | "reserve" | "release",
//                  "address", "bytes", "requested", "stream", "tag", "location", "time_ns"}]}
//
// Bytes, counts, streams and times are numbers; a time is nanoseconds since started_ns, which is nanoseconds
// since 1970. Addresses are strings ("0x7f0000000000"), since many readers keep 53 bits of a number. `tag`
// and `location` are indices. Text is UTF-8; invalid bytes become U+FFFD. Each block of a segment and each
// event is one line.

#include <ostream>

namespace TARN_NAMESPACE {

namespace detail {

[[nodiscard]] constexpr char const* name_of(block_use use) noexcept {
  if (use == block_use::cached) return "cached";
  return use == block_use::live ? "live" : "deferred";
}
[[nodiscard]] constexpr char const* name_of(segment_kind kind) noexcept {
  if (kind == segment_kind::pages) return "pages";
  return kind == segment_kind::view ? "view" : "upstream";
}
[[nodiscard]] constexpr char const* name_of(snapshot_event_kind kind) noexcept {
  constexpr char const* names[] = {"allocate", "free", "refused", "reserve", "release"};
  return names[static_cast<std::size_t>(kind)];
}

inline void write_pool(json_text& json, pool_state const& p) {
  json.line().key("pool").begin_object();
  for (pool_number const& n : pool_numbers) json.field(n.name, p.*n.value);
  json.end_object();
}

inline void write_names(json_text& json, snapshot const& s) {
  json.line().key("tags").begin_array();
  for (history_tag const& t : s.tags) {
    json.line()
        .begin_object()
        .field("name", t.name)
        .field("bytes", t.bytes)
        .field("peak_bytes", t.peak_bytes);
    json.field("requested", t.requested)
        .field("blocks", t.blocks)
        .field("allocations", t.allocations)
        .end_object();
  }
  json.end_array().line().key("locations").begin_array();
  for (auto const& frames : s.locations) {
    json.line().begin_array();
    for (history_frame const& f : frames) {
      json.begin_object()
          .field("file", f.file)
          .field("line", f.line)
          .field("function", f.function)
          .end_object();
    }
    json.end_array();
  }
  json.end_array();
}

inline void write_segment(json_text& json, snapshot_segment const& s) {
  json.line().begin_object().key("address").address(s.address).field("bytes", s.bytes);
  json.field("kind", name_of(s.kind)).key("small").boolean(s.is_small);
  json.field("handles", s.handles).field("stream", s.stream);
  if (s.graph_memory != 0) json.field("graph_memory", s.graph_memory);
  if (s.kind == segment_kind::view) {
    json.key("pieces").begin_array();
    for (snapshot_piece const& p : s.pieces)
      json.begin_object().key("address").address(p.address).field("bytes", p.bytes).end_object();
    json.end_array();
  }
  json.key("blocks").begin_array();
  for (snapshot_block const& b : s.blocks) {
    json.line().begin_object().key("address").address(b.address).field("bytes", b.bytes);
    json.field("requested", b.requested).field("use", name_of(b.use)).field("stream", b.stream);
    json.field("tag", b.tag).field("location", b.location).field("time_ns", b.time_ns);
    if (b.graph_memory != 0) json.field("graph_memory", b.graph_memory);
    json.end_object();
  }
  json.end_array().end_object();
}

}  // namespace detail

/// Writes a snapshot as JSON. Errors are reported by the stream's state. Host memory: 64 KiB for any
/// snapshot. Some 150 bytes per event.
inline void write_json(std::ostream& out, snapshot const& s) {
  detail::json_text json(out);
  json.begin_object().field("format", "tarn snapshot").field("version", 1).field("title", s.title);
  json.field("device", s.device).field("started_ns", s.started_ns).field("now_ns", s.now_ns);
  json.field("null_stream", s.null_stream).field("forgotten_events", s.forgotten_events);
  detail::write_pool(json, s.pool);
  detail::write_names(json, s);
  json.line().key("segments").begin_array();
  for (snapshot_segment const& segment : s.segments) detail::write_segment(json, segment);
  json.end_array().line().key("events").begin_array();
  for (snapshot_event const& e : s.events) {
    json.line().begin_object().field("kind", detail::name_of(e.kind)).key("address").address(e.address);
    json.field("bytes", e.bytes).field("requested", e.requested).field("stream", e.stream);
    json.field("tag", e.tag).field("location", e.location).field("time_ns", e.time_ns).end_object();
  }
  json.end_array().end_object().line();
  json.flush();
  out << '\n';
}

}  // namespace TARN_NAMESPACE
// ---- tarn/report/take_snapshot.hpp
// take_snapshot: captures the state and history of memory from its nearest pool and watched layer.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

// ---- tarn/pool/inspection/inspection.hpp
// A snapshot of the memory that a pool holds, as segments that blocks tile. Assembled from copied facts,
// without a lock.
//
//  home  | block | free | piece of a view | run: slots | cached by a thread |  two segments beside the piece
//  view  | block, at the address that its user has |                           one segment

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

namespace TARN_NAMESPACE::detail {

// A copy of a pool's records at one moment. Every thread is kept out of its magazines during the copy, and
// the hot lock is held for the arena's part.

/// Keeps every thread out of its cache. The hot lock is taken after this, never before.
template <class Front>
class stopped_threads {
 public:
  stopped_threads(growth_lock const&, Front& front) noexcept : front_(front) { front_.keep_threads_out(); }
  stopped_threads& operator=(stopped_threads&&) = delete;
  ~stopped_threads() { front_.let_threads_in(); }

 private:
  Front& front_;
};

/// The copied facts.
struct pool_facts {
  struct used_view {
    std::uintptr_t address = 0;  ///< of the block, as its user has it
    std::size_t first_piece = 0;
    std::size_t pieces = 0;
    domain_ref domain = neutral;
    std::uint16_t generation = 0;
  };

  std::vector<range> ranges;  ///< live and free ones
  std::vector<run> runs;
  std::vector<stream_id> domains;          ///< by domain_ref
  std::vector<std::uint16_t> generations;  ///< by domain_ref, the last bits
  std::vector<used_view> views;
  std::vector<snapshot_piece> pieces;
  std::vector<held_memory> held;
  std::vector<snapshot_block>
      cached;  ///< live to the arena: in magazines, freed into another domain's run, or in quarantine
  std::vector<snapshot_block> deferred;
  std::vector<growth_note> notes;
  std::size_t reserved = 0;
  std::vector<std::uint64_t> owners;  ///< by part_ref: the graph_memory that a part belongs to, 0 if none

  /// Copies them from a pool. @throws std::bad_alloc
  template <class Heap, class Front, class Deferred>
  void copy(growth_lock const& growing, Heap& heap, Front& front, Deferred const& blocks) {
    heap.growth(growing).visit(
        [&](auto const& memory) { memory.for_each_held([&](held_memory const& h) { held.push_back(h); }); });
    for (std::size_t i = 0; i < heap.counters(growing).notes.size(); ++i)
      notes.push_back(heap.counters(growing).notes[i]);
    reserved = heap.counters(growing).reserved;
    stopped_threads const stopped(growing, front);
    // Before the hot lock: no two locks are held at once.
    blocks.for_each([&](freed_block const& b) {
      deferred.push_back({address_of(b.p), rounded_bytes(b.bytes, b.alignment), b.bytes, block_use::deferred,
                          public_id(b.stream.id())});
    });
    if constexpr (Heap::has_tool) {
      heap.tool().for_each_quarantined([&](freed_block const& b) {
        cached.push_back({address_of(b.p), 0, 0, block_use::cached, public_id(b.stream.id())});
      });
    }
    front.for_each([&](stream_cache const& mine) { copy_magazines(mine); });
    // Make room outside the hot lock, repeatedly if other threads use it up meanwhile.
    for (;;) {
      std::size_t const most_ranges = count(heap, [](arena const& space) { return space.ranges.size(); });
      std::size_t const most_runs = count(heap, [](arena const& space) { return space.runs.size(); });
      std::size_t const most_domains = count(heap, [](arena const& space) { return space.streams.size(); });
      std::size_t const most_parts = count(heap, [](arena const& space) { return space.streams.parts(); });
      std::size_t const most_foreign = count(heap, [](arena const& space) { return foreign_blocks(space); });
      ranges.reserve(most_ranges);
      runs.reserve(most_runs);
      domains.reserve(most_domains);
      generations.reserve(most_domains);
      owners.reserve(most_parts);
      cached.reserve(cached.size() + most_foreign);
      hot_lock const held_lock = heap.lock_hot();
      arena& space = heap.space(held_lock);
      if (space.ranges.size() > most_ranges || space.runs.size() > most_runs ||
          space.streams.size() > most_domains || space.streams.parts() > most_parts ||
          foreign_blocks(space) > most_foreign)
        continue;
      copy_arena(space);
      return;
    }
  }

  /// The stream that a live block was taken for; 0 if it has been forgotten.
  template <class Taken>
  [[nodiscard]] stream_id stream_of(Taken const& taken) const noexcept {
    return taken.generation == generations[taken.domain] ? domains[taken.domain] : 0;
  }

  /// The graph_memory that the memory at a home address belongs to, 0 if none. O(log(ranges)), once they are
  /// sorted.
  [[nodiscard]] std::uint64_t owner_at(std::uintptr_t home) const noexcept {
    auto const after = std::upper_bound(ranges.begin(), ranges.end(), home,
                                        [](std::uintptr_t at, range const& r) { return at < r.address; });
    if (after != ranges.begin() && (after - 1)->end() > home) return owners[(after - 1)->part];
    return after != ranges.end() ? owners[after->part] : 0;  // a segment may begin before its first range
  }

  /// A stream's identity as users know it: 0 if unowned.
  [[nodiscard]] static stream_id public_id(stream_id id) noexcept { return id == neutral_id ? 0 : id; }

 private:
  template <class Heap, class Count>
  static std::size_t count(Heap& heap, Count const& counted) {
    hot_lock const held_lock = heap.lock_hot();
    return static_cast<std::size_t>(counted(heap.space(held_lock)));
  }
  static std::uintptr_t address_of(void const* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }
  static std::size_t foreign_blocks(arena const& space) noexcept {
    std::size_t sum = 0;
    for (domain_ref d = 0; d < space.streams.size(); ++d) sum += space.streams[d].foreign_count;
    return sum;
  }

  void copy_magazines(stream_cache const& mine) {
    stream_id const id = public_id(mine.id);
    if (mine.large_block != nullptr)
      cached.push_back({address_of(mine.large_block), mine.large_bytes, 0, block_use::cached, id});
    for (std::uint32_t i = 0; i < mine.of_capture.count; ++i) {
      auto const& block = mine.of_capture.blocks[i];
      cached.push_back({address_of(block.p), block.bytes, 0, block_use::cached, id});
    }
    for (magazine const& m : mine.magazines) {
      for (std::uint32_t i = 0; i < m.count; ++i)
        cached.push_back({address_of(m.blocks[i]), 0, 0, block_use::cached, id});
    }
  }

  /// Under the hot lock; there is room for everything but the pieces of views, which are few.
  void copy_arena(arena& space) {
    for (range_ref r = 1; r < space.ranges.size(); ++r) {
      range const& node = space.ranges[r];
      if (node.state == range_state::live || node.state == range_state::free) ranges.push_back(node);
    }
    for (run_ref r = 1; r < space.runs.size(); ++r) {
      if (space.runs[r].address != 0) runs.push_back(space.runs[r]);
    }
    for (part_ref p = common; p < space.streams.parts(); ++p) owners.push_back(space.streams.part(p).owner);
    for (domain_ref d = 0; d < space.streams.size(); ++d) {
      domains.push_back(public_id(space.streams[d].id));
      generations.push_back(static_cast<std::uint16_t>(space.streams[d].generation));
      for (auto const& list : space.streams[d].foreign) {
        for (void* const p : list) cached.push_back({address_of(p), 0, 0, block_use::cached, domains.back()});
      }
    }
    if (space.tenancies.size() <= 1) return;  // no view was ever made
    space.blocks.for_each([&](std::uintptr_t address, range_ref r) {
      if (space.ranges[r].view_or_split == 0) return;
      used_view v{address, pieces.size(), 0, space.ranges[r].domain, space.ranges[r].generation};
      for (; r != 0; r = space.ranges[r].chain, ++v.pieces)
        pieces.push_back({space.ranges[r].address, space.ranges[r].bytes});
      views.push_back(v);
    });
  }
};

/// Assembles copied facts into segments, sorted by address.
class pool_tiling {
 public:
  explicit pool_tiling(pool_facts& facts) : facts_(facts) {
    auto const by_address = [](auto const& a, auto const& b) { return a.address < b.address; };
    std::sort(facts.ranges.begin(), facts.ranges.end(), by_address);
    std::sort(facts.runs.begin(), facts.runs.end(), by_address);
    std::sort(facts.held.begin(), facts.held.end(), by_address);
    std::sort(facts.cached.begin(), facts.cached.end(), by_address);
    std::sort(facts.deferred.begin(), facts.deferred.end(), by_address);
    for (snapshot_piece const& p : facts.pieces) pieces_.push_back(p.address);
    std::sort(pieces_.begin(), pieces_.end());
  }

  [[nodiscard]] std::vector<snapshot_segment> segments() {
    std::vector<snapshot_segment> all;
    std::size_t r = 0;
    for (std::size_t h = 0; h < facts_.held.size();) {
      held_memory const& first = facts_.held[h];
      std::uintptr_t end = first.address + first.bytes;
      for (++h; h < facts_.held.size() && joins(first, facts_.held[h], end); ++h) end += facts_.held[h].bytes;
      add_home(all, r, first, end);
    }
    for (auto const& v : facts_.views) all.push_back(seen_through(v));
    std::sort(all.begin(), all.end(), [](auto const& a, auto const& b) { return a.address < b.address; });
    return all;
  }

 private:
  [[nodiscard]] bool joins(held_memory const& first, held_memory const& next,
                           std::uintptr_t end) const noexcept {
    return first.is_handle && next.is_handle && next.address == end && next.where == first.where &&
           facts_.owner_at(next.address) == facts_.owner_at(first.address);
  }

  /// Adds the ranges from `r` on that lie before `end`, split at pieces of views.
  void add_home(std::vector<snapshot_segment>& all, std::size_t& r, held_memory const& memory,
                std::uintptr_t end) {
    snapshot_segment s;
    std::uintptr_t at = memory.address;
    auto const begin = [&] {
      s = snapshot_segment{};
      s.address = at;
      s.kind = memory.is_handle ? segment_kind::pages : segment_kind::upstream;
      s.is_small = memory.where == zone::smaller;
      s.graph_memory = facts_.owner_at(memory.address);
    };
    auto const finish = [&] {
      s.bytes = at - s.address;
      if (s.bytes == 0) return;
      s.handles = handles_in(s.address, s.bytes);
      all.push_back(std::move(s));
    };
    begin();
    for (; r < facts_.ranges.size() && facts_.ranges[r].address < end; ++r) {
      range const& node = facts_.ranges[r];
      fill(s, at, node.address);
      if (std::binary_search(pieces_.begin(), pieces_.end(), node.address)) {
        finish();
        at = node.end();
        begin();
        continue;
      }
      add_range(s, node);
      at = node.end();
    }
    fill(s, at, end);
    finish();
  }

  /// Adds what no range covers: the unaligned ends of a segment.
  static void fill(snapshot_segment& s, std::uintptr_t& at, std::uintptr_t end) {
    if (at >= end) return;
    s.blocks.push_back({at, end - at});
    at = end;
  }

  void add_range(snapshot_segment& s, range const& node) {
    if (node.state == range_state::free) {
      s.blocks.push_back({node.address, node.bytes, 0, block_use::cached, facts_.domains[node.domain]});
      return;
    }
    auto const found = std::lower_bound(facts_.runs.begin(), facts_.runs.end(), node.address,
                                        [](run const& a, std::uintptr_t at) { return a.address < at; });
    if (found != facts_.runs.end() && found->address == node.address) return add_run(s, *found, node.bytes);
    s.blocks.push_back(taken(node.address, node.bytes, facts_.stream_of(node)));
  }

  /// Adds a run's blocks; adjacent free ones are merged.
  void add_run(snapshot_segment& s, run const& r, std::size_t bytes) {
    std::size_t const step = class_bytes(r.size_class);
    stream_id const stream = facts_.stream_of(r);
    bool open = false;
    auto const add_free = [&](std::uintptr_t address, std::size_t length) {
      if (open) {
        s.blocks.back().bytes += length;
      } else if (length != 0) {
        s.blocks.push_back({address, length, 0, block_use::cached, stream});
        open = true;
      }
    };
    std::uint32_t const blocks = run_blocks(r.size_class);
    for (std::uint32_t n = 0; n < blocks; ++n) {
      std::uintptr_t const address = r.address + n * step;
      if (((r.free_bits[n / 64] >> (n % 64)) & 1) != 0) {
        add_free(address, step);
      } else {
        s.blocks.push_back(taken(address, step, stream));
        open = false;
      }
    }
    add_free(r.address + blocks * step, bytes - blocks * step);
  }

  /// The actual use of a block that is live to the arena.
  [[nodiscard]] snapshot_block taken(std::uintptr_t address, std::size_t bytes, stream_id stream) const {
    for (auto const* list : {&facts_.cached, &facts_.deferred}) {
      auto const found =
          std::lower_bound(list->begin(), list->end(), address,
                           [](snapshot_block const& b, std::uintptr_t at) { return b.address < at; });
      if (found != list->end() && found->address == address)
        return {.address = address,
                .bytes = bytes,
                .requested = found->requested,
                .use = found->use,
                .stream = found->graph_memory != 0 ? stream : found->stream,
                .graph_memory = found->graph_memory};
    }
    return {address, bytes, 0, block_use::live, stream};
  }

  [[nodiscard]] snapshot_segment seen_through(pool_facts::used_view const& v) const {
    snapshot_segment s;
    s.address = v.address;
    s.kind = segment_kind::view;
    s.handles = 0;
    for (std::size_t i = v.first_piece; i < v.first_piece + v.pieces; ++i) {
      snapshot_piece const& p = facts_.pieces[i];
      s.pieces.push_back(p);
      s.bytes += p.bytes;
      s.handles += handles_in(p.address, p.bytes);
    }
    s.graph_memory = facts_.owner_at(facts_.pieces[v.first_piece].address);
    s.blocks.push_back(taken(v.address, s.bytes, facts_.stream_of(v)));
    return s;
  }

  /// Number of handles or segments that lie in a range of home addresses, wholly or in part.
  [[nodiscard]] std::uint32_t handles_in(std::uintptr_t address, std::size_t bytes) const {
    auto const before = [](std::uintptr_t at, held_memory const& h) { return at < h.address; };
    auto const first = std::upper_bound(facts_.held.begin(), facts_.held.end(), address, before) - 1;
    auto const last = std::upper_bound(facts_.held.begin(), facts_.held.end(), address + bytes - 1, before);
    return static_cast<std::uint32_t>(last - first);
  }

  pool_facts& facts_;
  std::vector<std::uintptr_t> pieces_;
};

/// The memory that a pool holds.
struct pool_contents {
  std::vector<snapshot_segment> segments;  ///< by address; their bytes sum to `reserved`
  std::vector<held_memory> held;           ///< handles and segments, by address
  std::vector<growth_note> notes;          ///< if they are recorded, the oldest first
  std::size_t reserved = 0;
};

/// Inspects the pools of a stack. Threads that call it meanwhile wait while 64 bytes per range and 80 per run
/// are copied, some milliseconds at 100,000 blocks. A block that another thread is just moving from the arena
/// to its magazine appears live.
/// @throws std::bad_alloc
template <class Memory>
[[nodiscard]] pool_contents contents_of(Memory& memory) {
  std::vector<pool_facts> of_each;  // a layer that routes inspects several pools, one after another
  auto const look = [&](growth_lock const& growing, auto& heap, auto& front, auto& deferred, auto& graphs) {
    pool_facts& facts = of_each.emplace_back();
    facts.copy(growing, heap, front, deferred);
    graphs.for_each_deferred(growing, [&](void const* p, std::size_t bytes, std::uint64_t number) {
      facts.deferred.push_back({.address = reinterpret_cast<std::uintptr_t>(p),
                                .requested = bytes,
                                .use = block_use::deferred,
                                .graph_memory = number});
    });
  };
  nearest(memory, pool_call::inspect{look});
  pool_contents contents;
  auto const by_address = [](auto const& a, auto const& b) { return a.address < b.address; };
  auto const by_time = [](auto const& a, auto const& b) { return a.time < b.time; };
  auto const append = [](auto& to, auto& from, auto const& before) {
    auto merged = std::remove_reference_t<decltype(to)>();
    merged.reserve(to.size() + from.size());
    std::merge(std::move_iterator(to.begin()), std::move_iterator(to.end()), std::move_iterator(from.begin()),
               std::move_iterator(from.end()), std::back_inserter(merged), before);
    to = std::move(merged);
  };
  for (pool_facts& facts : of_each) {
    std::vector<snapshot_segment> segments = pool_tiling(facts).segments();
    append(contents.segments, segments, by_address);
    append(contents.held, facts.held, by_address);
    append(contents.notes, facts.notes, by_time);
    contents.reserved += facts.reserved;
  }
  return contents;
}

}  // namespace TARN_NAMESPACE::detail

namespace TARN_NAMESPACE {

namespace detail {

// merge_history() merges the records of a `with_history` layer into the blocks of a pool: tags, locations
// and requested bytes, and one history of calls, handles and segments. The two are taken at different
// moments; differences are resolved so that blocks tile their segments.

/// Returns the stream that holds most of a segment's bytes; on a tie the lowest.
[[nodiscard]] inline stream_id stream_of(snapshot_segment const& s) {
  std::map<stream_id, std::size_t> bytes;
  for (snapshot_block const& b : s.blocks) bytes[b.stream] += b.bytes;
  auto const most = std::max_element(bytes.begin(), bytes.end(),
                                     [](auto const& a, auto const& b) { return a.second < b.second; });
  return most == bytes.end() ? 0 : most->first;
}

[[nodiscard]] inline snapshot_block block_of(history_block const& w) noexcept {
  return {w.address, w.bytes, min_of(w.requested, w.bytes), block_use::live, w.stream, w.tag, w.location,
          w.time_ns, 0};
}

/// Splits one block of the pool at the bounds of the layer's blocks inside it. There is at least one.
inline void cut_block(snapshot_block const& whole, std::vector<history_block>::const_iterator first,
                      std::vector<history_block>::const_iterator last, std::vector<snapshot_block>& out) {
  std::uintptr_t at = whole.address;
  std::uintptr_t const end = whole.address + whole.bytes;
  auto const add_rest = [&](std::uintptr_t to) {
    if (at == to) return;
    out.push_back(whole);
    out.back().address = at;
    out.back().bytes = to - at;
    at = to;
  };
  for (; first != last; ++first) {
    add_rest(first->address);
    std::uintptr_t const limit = std::next(first) != last ? std::next(first)->address : end;
    // A live block of the pool determines the rounding: the rest up to its end belongs to the last block.
    bool const takes_rest = whole.use == block_use::live && limit == end;
    snapshot_block seen = block_of(*first);
    seen.bytes = takes_rest || first->bytes > limit - at ? limit - at : max_of(first->bytes, std::size_t{1});
    seen.requested = min_of(first->requested, seen.bytes);
    out.push_back(seen);
    at += seen.bytes;
  }
  add_rest(end);
}

/// Adds the layer's data to the pool's blocks. `live` is sorted by address. Blocks of the layer for which the
/// pool holds no memory are omitted; blocks that the pool has allocated and the layer has not seen stay live,
/// with 0 requested.
/// @returns true if every block of the layer is live in the pool
inline bool merge_history(std::vector<snapshot_segment>& segments, std::vector<history_block> const& live) {
  bool agreed = true;
  auto next = live.begin();
  for (snapshot_segment& s : segments) {
    while (next != live.end() && next->address < s.address) agreed = false, ++next;
    auto const here = next;
    while (next != live.end() && next->address < s.address + s.bytes) ++next;
    if (here == next) continue;
    std::vector<snapshot_block> blocks;
    blocks.reserve(s.blocks.size() + static_cast<std::size_t>(next - here));
    auto begin = here;
    for (snapshot_block const& b : s.blocks) {
      auto last = begin;
      while (last != next && last->address < b.address + b.bytes) ++last;
      if (begin == last) {
        blocks.push_back(b);
        continue;
      }
      agreed = agreed && b.use == block_use::live;
      cut_block(b, begin, last, blocks);
      begin = last;
    }
    s.blocks.swap(blocks);
  }
  return agreed && next == live.end();
}

/// Reports blocks that `checked` keeps from reuse as deferred: their user has freed them. The record does not
/// have those that a layer below it keeps; where it has one again, that was handed out meanwhile.
/// @param above  kept by a layer above the record, which has them as live: they are freed at its time
inline void defer_quarantined(snapshot& s, memory_history& record,
                              std::vector<quarantined_block> const& above) {
  std::unordered_map<std::uintptr_t, std::size_t> unseen;
  std::unordered_map<std::uintptr_t, std::size_t> seen;
  for (quarantined_block const& k : record.quarantined) unseen.emplace(k.address, k.requested);
  for (quarantined_block const& k : above) seen.emplace(k.address, k.requested);
  for (snapshot_segment& segment : s.segments) {
    for (snapshot_block& b : segment.blocks) {
      if (b.use != block_use::live) continue;
      auto const& kept = b.requested == 0 && unseen.contains(b.address) ? unseen : seen;
      auto const found = kept.find(b.address);
      if (found == kept.end()) continue;
      if (b.requested != 0) {
        history_tag& t = record.tags[b.tag];
        t.bytes -= min_of(t.bytes, b.bytes);
        t.requested -= min_of(t.requested, b.requested);
        --t.blocks;
        s.events.push_back(
            {snapshot_event_kind::free, b.address, b.bytes, b.requested, b.stream, b.tag, 0, record.now_ns});
      }
      b.use = block_use::deferred;
      b.requested = min_of(found->second, b.bytes);
      s.pool.deferred += b.bytes;
      ++s.pool.deferred_blocks;
    }
  }
}

/// Adds tags and locations to deferred blocks, as far as the history contains them.
inline void name_deferred(std::vector<snapshot_segment>& segments, std::vector<history_event> const& events) {
  std::unordered_map<std::uintptr_t, snapshot_block*> deferred;
  for (snapshot_segment& s : segments) {
    for (snapshot_block& b : s.blocks) {
      if (b.use == block_use::deferred) deferred.emplace(b.address, &b);
    }
  }
  for (auto e = events.rbegin(); e != events.rend() && !deferred.empty(); ++e) {
    if (e->kind != history_event_kind::allocate) continue;
    auto const found = deferred.find(e->address);
    if (found == deferred.end()) continue;
    found->second->tag = e->tag;
    found->second->location = e->location;
    if (e->requested != 0) found->second->requested = min_of(e->requested, found->second->bytes);
    found->second->time_ns = e->time_ns;
    deferred.erase(found);
  }
}

/// Returns what the pool reserved and released, by time. Memory that it holds without a recorded reserve, or
/// released without one, is reported as reserved at time 0: at each moment from the first record on, the sum
/// is what was reserved then.
/// @param now    the current time of the records' clock
/// @param now_ns the current time of the snapshot
[[nodiscard]] inline std::vector<snapshot_event> growth_events(pool_contents const& contents,
                                                               std::uint64_t now, std::uint64_t now_ns) {
  // By size, too: a compaction takes the memory of a new handle before it gives the old one at its address
  // back.
  std::set<std::pair<std::uintptr_t, std::size_t>> held;
  for (held_memory const& h : contents.held) {
    if (!h.is_asleep) held.emplace(h.address, h.bytes);
  }
  std::vector<snapshot_event> events;
  auto const add = [&](snapshot_event_kind kind, std::uintptr_t address, std::size_t bytes,
                       std::uint64_t time) {
    events.push_back({.kind = kind, .address = address, .bytes = bytes, .time_ns = time});
  };
  for (std::size_t i = contents.notes.size(); i-- > 0;) {
    growth_note const& n = contents.notes[i];
    std::uint64_t const age = now > n.time ? now - n.time : 0;
    std::uint64_t const time = now_ns > age ? now_ns - age : 0;
    if (n.what == growth_change::given_back) {
      held.emplace(n.address, n.bytes);
      add(snapshot_event_kind::release, n.address, n.bytes, time);
    } else if (held.erase({n.address, n.bytes}) != 0) {
      add(snapshot_event_kind::reserve, n.address, n.bytes, time);
    }
  }
  std::size_t const known = events.size();
  for (auto const& [address, bytes] : held) add(snapshot_event_kind::reserve, address, bytes, 0);
  std::sort(events.begin() + static_cast<std::ptrdiff_t>(known), events.end(),
            [](auto const& a, auto const& b) { return a.address > b.address; });
  std::reverse(events.begin(), events.end());
  return events;
}

[[nodiscard]] inline snapshot_event event_of(history_event const& w) noexcept {
  std::size_t const bytes = w.kind == history_event_kind::refused ? w.requested : w.bytes;
  return {static_cast<snapshot_event_kind>(w.kind),
          w.address,
          bytes,
          w.requested,
          w.stream,
          w.tag,
          w.location,
          w.time_ns};
}

/// Merges the two histories: calls in their order, the pool's reserves and releases between them by time.
[[nodiscard]] inline std::vector<snapshot_event> one_history(std::vector<history_event> const& calls,
                                                             std::vector<snapshot_event> const& growth) {
  std::vector<snapshot_event> events;
  events.reserve(calls.size() + growth.size());
  auto next = growth.begin();
  for (history_event const& call : calls) {
    for (; next != growth.end() && next->time_ns <= call.time_ns; ++next) events.push_back(*next);
    events.push_back(event_of(call));
  }
  events.insert(events.end(), next, growth.end());
  return events;
}

/// Whether the block at `p` is a piece of a pool's memory, and not one of a source.
struct is_of_pool {
  void const* p = nullptr;
  static constexpr auto crosses = crossing::owner;
  [[nodiscard]] void const* address() const noexcept { return p; }
  template <class L>
    requires(gives_pieces<L> || !stands_on_another<L>)
  constexpr bool operator()(L&) const noexcept {
    return gives_pieces<L>;
  }
};

/// Takes the blocks that are in no pool out of a record that is sorted by address, and returns them with
/// those in quarantine below it.
template <class Resource>
[[nodiscard]] std::vector<snapshot_block> take_alone(Resource& memory, memory_history& record) {
  std::vector<snapshot_block> alone;
  auto const is_alone = [&](std::uintptr_t address) {
    return !nearest(memory, is_of_pool{reinterpret_cast<void const*>(address)});  // NOLINT: as recorded
  };
  for (quarantined_block const& k : record.quarantined) {
    auto const at =
        std::lower_bound(record.live.begin(), record.live.end(), k.address,
                         [](history_block const& b, std::uintptr_t address) { return b.address < address; });
    bool const is_live_again = at != record.live.end() && at->address == k.address;
    if (is_live_again || !is_alone(k.address)) continue;
    snapshot_block& b = alone.emplace_back();
    b.address = k.address;
    b.bytes = block_bytes_of(memory, k.requested, default_alignment);
    b.use = block_use::live;
  }
  std::erase_if(record.live, [&](history_block const& w) {
    if (!is_alone(w.address)) return false;
    alone.push_back(block_of(w));
    return true;
  });
  return alone;
}

/// Each block that is in no pool is a segment of its own, which begins and ends with it.
inline void add_alone(snapshot& s, std::vector<snapshot_block> const& alone) {
  for (snapshot_block const& b : alone) {
    snapshot_segment& segment = s.segments.emplace_back();
    segment.address = b.address;
    segment.bytes = b.bytes;
    segment.kind = segment_kind::upstream;
    segment.is_small = b.bytes <= class_limit;
    segment.blocks.push_back(b);
    pool_part& part = segment.is_small ? s.pool.smaller : s.pool.larger;
    part.reserved.current += static_cast<std::int64_t>(b.bytes);
    ++part.handles.current;
    s.pool.reserved += b.bytes;
    ++s.pool.handles;
    s.pool.live += b.bytes;
    ++s.pool.live_blocks;
    for (counter* const of : {&part.reserved, &part.handles}) of->peak = max_of(of->peak, of->current);
  }
  s.pool.reserved_peak = max_of(s.pool.reserved_peak, s.pool.reserved);
  s.pool.handles_peak = max_of(s.pool.handles_peak, s.pool.handles);
  std::sort(s.segments.begin(), s.segments.end(),
            [](auto const& a, auto const& b) { return a.address < b.address; });
}

}  // namespace detail

/// Makes the pool record the latest `most` changes of what it holds from the driver, 32 bytes each, so that
/// snapshots show reserved bytes over time; 0 disables it. Without it, what is held at the end appears as
/// held from the start. Costs some 30 ns per driver call that creates or releases a handle. @throws
/// std::bad_alloc, nothing has changed
template <class Resource>
void remember_growth(Resource memory, std::size_t most = 65536) {
  static_assert(reachable<Resource, pool_call::note_growth>,
                "tarn: this needs a pool; add: | tarn::pooled{}");
  nearest(memory, pool_call::note_growth{most, detail::steady_now_ns});
}

/// Returns what `memory` holds now: segments and blocks of the nearest pool; tags, locations, requested bytes
/// and history of the nearest watched layer above the pool. Either suffices. Without a `with_history` layer,
/// blocks are live with 0 requested, and the only history is that of remember_growth(), with what was held
/// before it at time 0. A block of the record that is in no pool, since there is none or since it is of a
/// source that fallback_to adds, is a segment of its own, and counts in `pool`.
///
/// Blocks always tile their segments, and segments add up to `pool.reserved`. The live blocks with requested
/// bytes are those of the layer's record. If other threads continue meanwhile, the record and the pool are
/// read again up to three times; after that, a block in the layer's record that the pool has already released
/// to the driver is omitted. Live blocks with 0 requested were not seen by the layer: allocated bypassing it,
/// or still inside a call.
///
/// Below fences, addresses and bytes are those of the pool's blocks, which hold the user's. What the
/// quarantine of `checked` keeps is deferred, also in `pool.deferred`. If `checked` is above the layer's
/// record, such a block is freed at the time of the snapshot.
///
/// Memory of captured graphs has segments of its own (snapshot_segment::graph_memory). A block of the pool
/// that was freed inside a capture is deferred until the end of the graph_memory whose graphs use it
/// (snapshot_block::graph_memory).
///
/// Of a sleeping pool, segments and blocks are the addresses that it keeps, and `pool.reserved` is 0: nothing
/// is behind them.
///
/// Thread-safe; threads that enter the pool meanwhile wait, some milliseconds at 100,000 blocks. Host cost
/// O(ranges + history).
/// @throws std::bad_alloc
template <class Resource>
[[nodiscard]] snapshot take_snapshot(Resource memory, std::string title = "tarn") {
  constexpr bool has_record = reachable<Resource, detail::ask_record>;
  constexpr bool has_pool = reachable<Resource, pool_call::inspect<pool_call::any_look>>;
  static_assert(
      has_record || has_pool,
      "tarn: take_snapshot needs a pool or a history; add: | tarn::pooled{} or | tarn::with_history{}");
  snapshot s;
  s.title = std::move(title);
  s.device = memory.device().value;
  stream_id null_stream = 0;
  if (memory.driver().identify(stream_ref{}, null_stream).ok()) s.null_stream = null_stream;
  memory_history record;
  for (int attempts_left = 3; attempts_left != 0; --attempts_left) {
    if constexpr (has_record) record = nearest(memory, detail::ask_record{});
    std::vector<quarantined_block> kept;  // above the record
    detail::for_each_quarantined(memory, [&](void* p, std::size_t bytes) {
      kept.push_back({reinterpret_cast<std::uintptr_t>(p), bytes});
    });
    std::sort(record.live.begin(), record.live.end(),
              [](auto const& a, auto const& b) { return a.address < b.address; });
    std::vector<snapshot_block> const alone = detail::take_alone(memory, record);
    if constexpr (has_pool) {
      s.pool = nearest(memory, pool_call::state{});
      detail::pool_contents contents = detail::contents_of(memory);
      if constexpr (!has_record) {
        // Both clocks at once: what runs between two readings would shift all events against the wall clock.
        // The first change is at time 1, after what was held before it.
        std::uint64_t const steady = detail::steady_now_ns();
        std::uint64_t const since_1970 = detail::now_since_1970_ns();
        if (!contents.notes.empty())
          record.now_ns = steady - detail::min_of(steady, contents.notes.front().time) + 1;
        record.steady_ns = steady - record.now_ns;
        record.started_ns = since_1970 - record.now_ns;
      }
      // The time of the records' clock when the record was copied; later changes are reported as of this
      // time.
      std::uint64_t const now =
          record.steady_ns != 0 ? record.steady_ns + record.now_ns : detail::steady_now_ns();
      s.segments = std::move(contents.segments);
      s.pool.reserved = contents.reserved;
      s.pool.cached = s.pool.reserved > s.pool.live ? s.pool.reserved - s.pool.live : 0;
      bool const agreed = detail::merge_history(s.segments, record.live);
      if (!agreed && attempts_left != 1) continue;
      for (snapshot_block const& b : alone) contents.held.push_back({b.address, b.bytes});
      s.events = detail::one_history(record.events, detail::growth_events(contents, now, record.now_ns));
    } else {
      s.events = detail::one_history(record.events, {});
    }
    detail::add_alone(s, alone);
    detail::defer_quarantined(s, record, kept);
    break;
  }
  s.started_ns = record.started_ns;
  s.steady_ns = record.steady_ns;
  s.now_ns = record.now_ns;
  s.forgotten_events = record.forgotten_events;
  detail::name_deferred(s.segments, record.events);
  s.tags = std::move(record.tags);
  s.locations = std::move(record.locations);
  if (s.tags.empty()) s.tags.resize(1);
  if (s.tags[0].name.empty()) s.tags[0].name = "untagged";
  if (s.locations.empty()) s.locations.resize(1);
  for (snapshot_segment& segment : s.segments) segment.stream = detail::stream_of(segment);
  return s;
}

}  // namespace TARN_NAMESPACE
// ---- tarn/report/write_file.hpp
// write_file: writes a report to a file, whole or not at all.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>

namespace TARN_NAMESPACE::detail {

/// A new file in the folder of `path`, which takes the place of what is there once it is whole. The
/// destructor removes it if it did not. What is there and is not a regular file (a device, a pipe) is not
/// replaced: name() is then the path itself, and nothing is removed.
class file_beside {
 public:
  /// @param path  a symbolic link stays, and its target is replaced
  explicit file_beside(std::string const& path) : target_(path), name_(path) {
    struct ::stat facts {};
    bool const exists = ::lstat(path.c_str(), &facts) == 0;
    if (exists && !(::stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode) && follow_links())) return;
    error_ = exists && ::access(target_.c_str(), W_OK) != 0 ? errno : create();
    if (is_new_ && exists) (void)::chmod(name_.c_str(), facts.st_mode & 0777U);
  }
  file_beside& operator=(file_beside&&) = delete;
  ~file_beside() {
    if (is_new_) (void)std::remove(name_.c_str());
  }

  /// errno: why there is no file to write to; 0: there is one.
  [[nodiscard]] int error() const noexcept { return error_; }
  /// The file to write to.
  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  /// Replaces what is at the path by the file. Returns false, with errno, if the system refuses.
  [[nodiscard]] bool take_place() noexcept {
    if (is_new_ && std::rename(name_.c_str(), target_.c_str()) != 0) return false;
    is_new_ = false;
    return true;
  }

 private:
  /// Returns false if the target has no path: a deleted file that is still open.
  [[nodiscard]] bool follow_links() {
    std::unique_ptr<char, void (*)(void*)> const real(::realpath(target_.c_str(), nullptr), &std::free);
    if (real != nullptr) target_ = real.get();
    return real != nullptr;
  }
  /// Returns errno, or 0.
  [[nodiscard]] int create() {
    static std::atomic<unsigned> last{0};
    std::string const folder = target_.substr(0, target_.find_last_of('/') + 1);
    for (;;) {
      message<48> own;
      own.add(".tarn_").add_number(static_cast<std::uint64_t>(::getpid()));
      own.add("_").add_number(std::uint64_t{last.fetch_add(1, std::memory_order_relaxed)});
      name_ = folder + own.c_str();
      int const file = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (file < 0 && errno == EEXIST) continue;
      if (file < 0) return errno;
      is_new_ = true;
      (void)::close(file);
      return 0;
    }
  }

  std::string target_;
  std::string name_;
  int error_ = 0;
  bool is_new_ = false;
};

/// Calls write(std::ostream&) on a new file, which then replaces what is at the path. If anything fails, what
/// was there stays. A device or a pipe is written to as it is. Needs a folder in which files can be created.
/// @param what  of the report, for errors: "the snapshot"
/// @throws file_error  the file cannot be created or not completely written; and what write() throws
template <class Write>
void write_file(std::string const& path, char const* what, Write const& write) {
  file_beside beside(path);
  errno = 0;
  std::ofstream file;
  if (beside.error() == 0) file.open(beside.name(), std::ios::binary | std::ios::trunc);
  if (!file.is_open()) {
    int const why = beside.error() != 0 ? beside.error() : errno != 0 ? errno : EIO;
    throw file_error(path, message<96>().add(what).add(" cannot be written; check the path").view(), why);
  }
  write(file);
  file.close();
  if (!file || !beside.take_place()) {
    int const why = errno != 0 ? errno : EIO;
    throw file_error(path, message<96>().add("writing ").add(what).add(" failed; is the disk full?").view(),
                     why);
  }
}

}  // namespace TARN_NAMESPACE::detail

namespace TARN_NAMESPACE {

/// The name of a file has no extension of a snapshot format.
class unknown_format : public detail::error_of<std::invalid_argument, 512> {
 public:
  explicit unknown_format(std::string_view path) {
    text_.add("tarn: '").add(detail::text_suffix(path, 200)).add("' has no extension of a snapshot format; ");
    text_.add("use .pickle (PyTorch's memory_viz), .trace.json (Perfetto, Chrome) or .json");
  }
};

namespace detail {

using snapshot_writer = void (*)(std::ostream&, snapshot const&);

/// @throws unknown_format  the extension is unknown
[[nodiscard]] inline snapshot_writer writer_for(std::string_view path) {
  if (path.ends_with(".pickle") || path.ends_with(".pkl")) return write_pickle;
  if (path.ends_with(".trace.json"))
    return [](std::ostream& out, snapshot const& s) { write_perfetto(out, s); };
  if (path.ends_with(".json")) return write_json;
  throw unknown_format(path);
}

}  // namespace detail

/// Writes a snapshot to a file in the format of its extension: `.pickle` or `.pkl` for PyTorch's memory_viz,
/// `.trace.json` for Perfetto and Chrome, `.json` for other programs. A file beside it is written, which then
/// replaces an existing one.
/// @throws unknown_format  another extension
/// @throws file_error      the file cannot be created or not completely written
/// @throws std::bad_alloc
/// After an error an existing file is as it was.
inline void save_snapshot(snapshot const& s, std::string const& path,
                          source_location where = source_location::current()) {
  detail::called_from(where, [&] {
    auto const write = detail::writer_for(path);
    detail::write_file(path, "the snapshot", [&](std::ostream& file) { write(file, s); });
  });
}

/// Saves take_snapshot() of `memory` by save_snapshot().
template <has_driver Resource>
void save_snapshot(Resource memory, std::string const& path,
                   source_location where = source_location::current()) {
  detail::called_from(where, [&] {
    (void)detail::writer_for(path);  // report a wrong name before the snapshot blocks other threads
    save_snapshot(take_snapshot(memory), path, where);
  });
}

}  // namespace TARN_NAMESPACE
// ---- tarn/report/timeline_html.hpp
// A snapshot as one self-contained HTML file: live and reserved bytes over time, the peak and its
// composition, a map of the addresses, tables. It loads nothing; its content security policy (CSP) forbids
// it.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

// ---- tarn/report/timeline_page.hpp
// The report page as text. Generated by .ci/embed_page.py from the files in timeline/; do not edit. Longer
// than other headers, because it holds the whole page.

#include <cstdint>
#include <string_view>

namespace TARN_NAMESPACE::detail {

/// What a snapshot fills in.
enum class html_slot : std::uint8_t { title, events, blocks, shapes, info, none };

/// A part of the page, and what follows it.
struct html_part {
  std::string_view text;
  html_slot then;
};

// clang-format off
inline constexpr html_part html_page[] = {
{R"html(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:;
    base-uri 'none'; form-action 'none'">
<link rel="icon" href="data:,">
<title>)html", html_slot::title},
{R"html(</title>
<style>
)html", html_slot::none},
{R"css(:root {
  color-scheme: light;
  --page: #f4f5f6; --surface: #ffffff; --ink: #15191e; --soft: #59626d; --line: #e3e6e9; --edge: #d5d9de;
  --hover: #eef1f4; --focus: #1d5fd1; --chosen: #15191e; --on-chosen: #ffffff;
  --live: #2468c4; --live-fill: #9cc0ee; --live-faint: #d3e3f8; --reserved: #59626d; --requested: #b4540a;
  --cached: #e4e8ec; --deferred: #d97706;
  --c0: #2a78d6; --c1: #12a37a; --c2: #e59f00; --c3: #6a3fb5; --c4: #d9485f; --c5: #0f7d8c; --c6: #d9772b;
  --c7: #c05fa8;
  --other: #9aa3ad;
  --s0: #cfe2fa; --s1: #a9cbf5; --s2: #7fb1ee; --s3: #5494e2; --s4: #2f76d0; --s5: #1c58a8; --s6: #123b75;
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  -webkit-text-size-adjust: 100%;
}
#main { max-width: 1280px; margin: 0 auto; padding: 28px 24px 56px; }
h1, h2, h3, p, dl, dd, ul { margin: 0; padding: 0; }
h1 { font-size: 26px; line-height: 1.2; font-weight: 650; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 18px; font-weight: 650; }
h3 { font-size: 15px; font-weight: 650; }
.soft { color: var(--soft); }
.mark { color: var(--soft); font-size: 12px; letter-spacing: 0.06em; margin-bottom: 4px; }
.hidden {
  position: absolute; width: 1px; height: 1px; margin: -1px; overflow: hidden; clip-path: inset(50%);
  white-space: nowrap;
}
[hidden] { display: none !important; }
.skip { position: absolute; left: -9999px; top: 8px; padding: 8px 12px; background: var(--surface);
  color: var(--ink); z-index: 1; }
.skip:focus { left: 8px; }
:focus-visible { outline: 2px solid var(--focus); outline-offset: 2px; }

header { display: flex; flex-wrap: wrap; gap: 16px; justify-content: space-between; align-items: flex-start;
  margin-bottom: 20px; }
header > div:first-child { min-width: 0; flex: 1 1 320px; }
.card { background: var(--surface); border: 1px solid var(--edge); border-radius: 10px; padding: 20px;
  margin-top: 16px; }
.bar { display: flex; flex-wrap: wrap; gap: 8px 14px; align-items: center; }
.bar > h2 { flex: 1 1 auto; }
.bar > h3 { flex: none; }
.tools { display: flex; flex-wrap: wrap; gap: 8px; }

button, input {
  font: inherit; font-size: 13px; color: var(--ink); background: var(--surface); border: 1px solid var(--edge);
  border-radius: 6px; padding: 4px 11px; min-height: 30px;
}
button { cursor: pointer; }
button:hover:not(:disabled) { background: var(--hover); }
button:disabled { color: var(--soft); opacity: 0.55; cursor: default; }
button[aria-pressed=true], [role=tab][aria-selected=true] { background: var(--chosen); color: var(--on-chosen);
  border-color: var(--chosen); }
button[aria-pressed=true]:hover:not(:disabled) { background: var(--chosen); }
.group { display: inline-flex; }
.group button { border-radius: 0; margin-left: -1px; }
.group button:focus-visible { z-index: 1; position: relative; }
.group button:first-child { border-radius: 6px 0 0 6px; margin-left: 0; }
.group button:last-child { border-radius: 0 6px 6px 0; }
.group button:only-child, .group button[hidden] + button { border-radius: 6px; }
.tabs { display: flex; flex-wrap: wrap; gap: 6px; }
@media (prefers-reduced-motion: no-preference) { button { transition: background-color 0.12s; } }

#tiles { display: grid; grid-template-columns: repeat(6, minmax(0, 1fr)); gap: 12px; }
@media (max-width: 1060px) { #tiles { grid-template-columns: repeat(3, minmax(0, 1fr)); } }
#tiles > div { background: var(--surface); border: 1px solid var(--edge); border-radius: 10px; padding: 14px 16px;
  min-width: 0; }
#tiles dt { color: var(--soft); font-size: 13px; }
#tiles .value { font-size: 24px; line-height: 1.3; font-weight: 650; font-variant-numeric: tabular-nums;
  letter-spacing: -0.01em; }
#tiles .soft { font-size: 12.5px; overflow-wrap: anywhere; }

.readout { display: flex; flex-wrap: wrap; gap: 2px 18px; min-height: 42px; align-content: center; margin-top: 8px;
  font-variant-numeric: tabular-nums; font-size: 13px; }
.readout .name { color: var(--soft); }
.pair { overflow-wrap: anywhere; }
canvas { display: block; width: 100%; border-radius: 4px; }
#chart { height: 340px; cursor: crosshair; touch-action: pan-y; }
#overview { height: 40px; margin-top: 4px; cursor: grab; touch-action: none; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; margin-top: 12px; font-size: 13px; }
.legend li { display: inline-flex; align-items: center; overflow-wrap: anywhere; }
.key { display: inline-block; flex: none; width: 11px; height: 11px; border-radius: 3px; margin-right: 7px; }
.key.dash { height: 3px; width: 14px; border-radius: 2px; }
.keys { font-size: 12.5px; margin-top: 8px; }
kbd { font: inherit; font-size: 11.5px; border: 1px solid var(--edge); border-radius: 4px; padding: 0 5px;
  background: var(--page); }
#chart-note:not(:empty) { margin-top: 8px; }

#moment { border-top: 1px solid var(--line); margin-top: 18px; padding-top: 16px; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); gap: 16px 32px;
  margin-top: 10px; }
.columns > div { min-width: 0; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
caption { text-align: left; color: var(--soft); font-size: 12.5px; padding-bottom: 4px; }
th, td { text-align: left; font-weight: 400; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line);
  vertical-align: baseline; }
th:last-child, td:last-child { padding-right: 0; }
tr:last-child > * { border-bottom: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
/* The name takes the width that the numbers leave. */
.plain tbody th { width: 100%; max-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.plain td.share { color: var(--soft); }
.rest > * { color: var(--soft); }

#map-scroll { overflow-y: auto; overflow-x: hidden; position: relative; margin-top: 4px; }
#map-space { position: relative; }
#map { position: sticky; top: 0; cursor: crosshair; }
#map:focus-visible, #chart:focus-visible { outline-offset: -2px; }

[role=tabpanel] { margin-top: 14px; }
[role=tabpanel] > .bar { margin-bottom: 8px; }
input[type=search] { width: min(100%, 260px); }
input::placeholder { color: var(--soft); opacity: 1; }
.scroll { overflow: auto; max-height: 560px; }
.scroll table { min-width: 560px; }
.scroll thead th { position: sticky; top: 0; background: var(--surface); border-bottom: 0;
  box-shadow: inset 0 -1px var(--edge); }
.scroll tbody th, .scroll tbody td { max-width: 420px; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; }
.sort { display: inline-flex; align-items: baseline; border: 0; background: none; padding: 2px 0; min-height: 24px;
  color: var(--soft); font-size: 13px; white-space: nowrap; }
.sort:hover:not(:disabled) { background: none; color: var(--ink); }
[aria-sort] .sort { color: var(--ink); font-weight: 650; }
.arrow { display: inline-block; width: 1em; text-align: center; }
th.number .arrow { order: -1; }
[aria-sort=descending] .arrow::after { content: "↓"; }
[aria-sort=ascending] .arrow::after { content: "↑"; }
[role=tabpanel] > button { margin-top: 12px; }

@media (max-width: 640px) {
  #main { padding: 18px 12px 40px; }
  .card { padding: 14px 12px; border-radius: 8px; }
  #tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 8px; }
  #tiles > div { padding: 10px 12px; }
  #tiles .value { font-size: 20px; }
  h1 { font-size: 22px; }
  #chart { height: 260px; }
  .readout { min-height: 64px; }
}
)css", html_slot::none},
{R"css(@media (prefers-color-scheme: dark) {
:root:not([data-theme=light]) {
  color-scheme: dark;
  --page: #101214; --surface: #191c20; --ink: #eceff2; --soft: #a2abb5; --line: #2a2f35; --edge: #363c43;
  --hover: #23282d; --focus: #7db1ff; --chosen: #eceff2; --on-chosen: #15191e;
  --live: #6aa9f5; --live-fill: #2c5c99; --live-faint: #213d5f; --reserved: #a2abb5; --requested: #f09a4d;
  --cached: #2b3036; --deferred: #f0a53a;
  --c0: #4a93ea; --c1: #22b48a; --c2: #e0a424; --c3: #9c7be8; --c4: #ec6a7e; --c5: #2ba5b5; --c6: #e88f4a;
  --c7: #d67fbf;
  --other: #737c86;
  --s0: #1e3a5f; --s1: #26507f; --s2: #2f69a8; --s3: #4285ce; --s4: #66a3e8; --s5: #97c3f5; --s6: #cfe3fc;
}
}
)css", html_slot::none},
{R"css(:root[data-theme=dark] {
  color-scheme: dark;
  --page: #101214; --surface: #191c20; --ink: #eceff2; --soft: #a2abb5; --line: #2a2f35; --edge: #363c43;
  --hover: #23282d; --focus: #7db1ff; --chosen: #eceff2; --on-chosen: #15191e;
  --live: #6aa9f5; --live-fill: #2c5c99; --live-faint: #213d5f; --reserved: #a2abb5; --requested: #f09a4d;
  --cached: #2b3036; --deferred: #f0a53a;
  --c0: #4a93ea; --c1: #22b48a; --c2: #e0a424; --c3: #9c7be8; --c4: #ec6a7e; --c5: #2ba5b5; --c6: #e88f4a;
  --c7: #d67fbf;
  --other: #737c86;
  --s0: #1e3a5f; --s1: #26507f; --s2: #2f69a8; --s3: #4285ce; --s4: #66a3e8; --s5: #97c3f5; --s6: #cfe3fc;
}
)css", html_slot::none},
{R"html(</style>
</head>
<body>
<a class="skip" href="#over-time">Skip to the timeline</a>
<div id="main">
<header>
  <div>
    <p class="mark">tarn memory report</p>
    <h1 id="title"></h1>
    <p id="about" class="soft"></p>
  </div>
  <div class="group" role="group" aria-label="Colours">
    <button type="button" id="theme-auto" aria-pressed="true">Auto</button>
    <button type="button" id="theme-light" aria-pressed="false">Light</button>
    <button type="button" id="theme-dark" aria-pressed="false">Dark</button>
  </div>
</header>
<noscript><p class="card">This report draws itself with a script; please allow it.</p></noscript>
<main>
<section aria-label="Numbers"><dl id="tiles"></dl></section>

<section class="card" id="over-time" aria-labelledby="over-time-title">
  <div class="bar">
    <h2 id="over-time-title">Over time</h2>
    <div class="tools">
      <div class="group" id="live-shown" role="group" aria-label="Live bytes shown">
        <button type="button" id="show-total" aria-pressed="true">Total</button>
        <button type="button" id="show-tags" aria-pressed="false">By tag</button>
      </div>
      <div class="group" id="curves-shown" role="group" aria-label="Curves beside live bytes">
        <button type="button" id="show-reserved" aria-pressed="true">Reserved</button>
        <button type="button" id="show-requested" aria-pressed="false">Requested</button>
      </div>
      <div class="group" id="axis" role="group" aria-label="Axis">
        <button type="button" id="axis-time" aria-pressed="true">Time</button>
        <button type="button" id="axis-calls" aria-pressed="false">Calls</button>
      </div>
      <div class="group" id="zoom" role="group" aria-label="Zoom">
        <button type="button" id="zoom-out" aria-label="Zoom out">−</button>
        <button type="button" id="zoom-in" aria-label="Zoom in">+</button>
        <button type="button" id="zoom-all">All</button>
      </div>
    </div>
  </div>
  <p id="chart-readout" class="readout"></p>
  <canvas id="chart" tabindex="0" role="application" aria-roledescription="timeline"
    aria-label="Live and reserved bytes over time" aria-describedby="chart-keys"></canvas>
  <canvas id="overview" aria-hidden="true"></canvas>
  <ul id="chart-legend" class="legend" aria-label="Colours of the timeline"></ul>
  <p id="chart-note" class="soft"></p>
  <p id="chart-keys" class="soft keys">Wheel zooms, drag pans, a click chooses a moment. Keys: <kbd>←</kbd> <kbd>→</kbd>
    move the moment, with <kbd>Shift</kbd> by one call; <kbd>+</kbd> <kbd>−</kbd> zoom; <kbd>Page&nbsp;Up</kbd>
    <kbd>Page&nbsp;Down</kbd> pan; <kbd>0</kbd> all; <kbd>P</kbd> the peak.</p>
  <div id="moment">
    <div class="bar">
      <h3 id="moment-title">Live at the peak</h3>
      <p id="moment-about" class="soft"></p>
      <button type="button" id="to-peak" hidden>Back to the peak</button>
    </div>
    <div class="columns">
      <div>
        <table class="plain"><caption>By tag</caption>
          <thead class="hidden"><tr><th scope="col">Tag</th><th scope="col">Bytes</th><th scope="col">Share</th>
            <th scope="col">Blocks</th></tr></thead>
          <tbody id="moment-tags"></tbody></table>
      </div>
      <div id="locations-part">
        <table class="plain"><caption>By location</caption>
          <thead class="hidden"><tr><th scope="col">Location</th><th scope="col">Bytes</th><th scope="col">Share</th>
            <th scope="col">Blocks</th></tr></thead>
          <tbody id="moment-locations"></tbody></table>
      </div>
      <div>
        <table class="plain"><caption>Largest blocks</caption>
          <thead class="hidden"><tr><th scope="col">Block</th><th scope="col">Bytes</th>
            <th scope="col">Share</th></tr></thead>
          <tbody id="moment-blocks"></tbody></table>
      </div>
    </div>
  </div>
</section>

<section class="card" id="address-range" aria-labelledby="address-range-title">
  <div class="bar">
    <h2 id="address-range-title">Addresses</h2>
    <div class="tools">
      <div class="group" role="group" aria-label="Colour blocks by">
        <button type="button" id="color-use" aria-pressed="true">Use</button>
        <button type="button" id="color-size" aria-pressed="false">Size</button>
        <button type="button" id="color-stream" aria-pressed="false">Stream</button>
        <button type="button" id="color-tag" aria-pressed="false">Tag</button>
      </div>
      <div class="group" role="group" aria-label="Bytes in a row">
        <button type="button" id="map-out" aria-label="More bytes in a row">−</button>
        <button type="button" id="map-in" aria-label="Fewer bytes in a row">+</button>
      </div>
    </div>
  </div>
  <p id="map-about" class="soft"></p>
  <div id="map-view">
    <p id="map-readout" class="readout"></p>
    <div id="map-scroll">
      <div id="map-space"><canvas id="map" tabindex="0" role="application" aria-roledescription="map"
        aria-label="Blocks by address" aria-describedby="map-keys"></canvas></div>
    </div>
    <ul id="map-legend" class="legend" aria-label="Colours of the map"></ul>
    <p id="map-keys" class="soft keys"><span id="map-scale"></span>. Keys: <kbd>←</kbd> <kbd>→</kbd> from block to
      block, <kbd>↑</kbd> <kbd>↓</kbd> by a row, <kbd>+</kbd> <kbd>−</kbd> bytes in a row.</p>
  </div>
</section>

<section class="card" id="tables" aria-labelledby="tables-title">
  <div class="bar">
    <h2 id="tables-title">Tables</h2>
    <div class="tabs" role="tablist" aria-labelledby="tables-title">
      <button type="button" role="tab" id="tab-tags" aria-controls="panel-tags">Tags</button>
      <button type="button" role="tab" id="tab-blocks" aria-controls="panel-blocks">Blocks</button>
      <button type="button" role="tab" id="tab-locations" aria-controls="panel-locations">Locations</button>
      <button type="button" role="tab" id="tab-segments" aria-controls="panel-segments">Segments</button>
      <button type="button" role="tab" id="tab-numbers" aria-controls="panel-numbers">Numbers</button>
    </div>
  </div>
  <div role="tabpanel" id="panel-tags" aria-labelledby="tab-tags"></div>
  <div role="tabpanel" id="panel-blocks" aria-labelledby="tab-blocks" hidden></div>
  <div role="tabpanel" id="panel-locations" aria-labelledby="tab-locations" hidden></div>
  <div role="tabpanel" id="panel-segments" aria-labelledby="tab-segments" hidden></div>
  <div role="tabpanel" id="panel-numbers" aria-labelledby="tab-numbers" hidden></div>
</section>
</main>
<p id="spoken" class="hidden" role="status" aria-live="polite"></p>
</div>
<script type="text/plain" id="tarn-events">)html", html_slot::events},
{R"html(</script>
<script type="text/plain" id="tarn-blocks">)html", html_slot::blocks},
{R"html(</script>
<script type="text/plain" id="tarn-shapes">)html", html_slot::shapes},
{R"html(</script>
<script type="application/json" id="tarn-info">)html", html_slot::info},
{R"html(</script>
<script>
(() => {
'use strict';
)html", html_slot::none},
{R"js(
// ---- reading
const byId = (id) => document.getElementById(id);
const info = JSON.parse(byId('tarn-info').textContent);
const none = -1;

class Numbers {
  constructor(id) {
    const text = byId(id).textContent;
    byId(id).remove();
    if (Uint8Array.fromBase64) {
      this.bytes = Uint8Array.fromBase64(text);
    } else {
      const raw = atob(text);
      this.bytes = new Uint8Array(raw.length);
      for (let i = 0; i < raw.length; ++i) this.bytes[i] = raw.charCodeAt(i);
    }
    this.at = 0;
  }
  next() {
    let byte = this.bytes[this.at++];
    if (byte < 128) return byte;
    let value = byte - 128, scale = 128;
    do {
      byte = this.bytes[this.at++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte > 127);
    return value;
  }
  step() {
    const value = this.next();
    return value % 2 ? -(value + 1) / 2 : value / 2;
  }
}

const unit = 2 ** info.shift;
// Addresses are distances from the lowest one; `none` means no address.
const distance = (units) => units === 0 ? none : (units - 1) * unit;

const readShapes = (count) => {
  const from = new Numbers('tarn-shapes');
  const shapes = {bytes: new Float64Array(count), requested: new Float64Array(count), stream: new Uint32Array(count),
    tag: new Uint32Array(count), location: new Uint32Array(count)};
  for (let i = 0; i < count; ++i) {
    for (const part of ['bytes', 'requested', 'stream', 'tag', 'location']) shapes[part][i] = from.next();
  }
  return shapes;
};

const kinds = ['allocate', 'free', 'refused', 'reserve', 'release'];
const [allocated, freed, refused, reserving, releasing] = [0, 1, 2, 3, 4];

// partner: for an allocation, the event that frees it; for a free, the event that allocated the block.
const readEvents = (count, shapes) => {
  const from = new Numbers('tarn-events');
  const events = {count, kind: new Uint8Array(count), shape: new Uint32Array(count), address: new Float64Array(count),
    time: new Float64Array(count), stream: new Uint32Array(count), partner: new Int32Array(count).fill(none)};
  const kindOf = [allocated, freed, freed, freed, refused, reserving, releasing];
  let units = 0, time = 0, latest = 0;
  for (let i = 0; i < count; ++i) {
    const head = from.next(), code = head % 8, what = (head - code) / 8;
    events.kind[i] = kindOf[code];
    if (code === 1 || code === 2) {
      const j = i - what;
      events.shape[i] = events.shape[j];
      events.address[i] = events.address[j];
      events.partner[i] = j;
      events.partner[j] = i;
      events.stream[i] = code === 2 ? from.next() : events.stream[j];
    } else {
      events.shape[i] = what;
      events.stream[i] = shapes.stream[what];
      units += from.step();
      events.address[i] = distance(units);
    }
    time += from.step();
    // Threads read the clock before their calls are ordered. The order of the calls is the valid one.
    latest = Math.max(latest, time);
    events.time[i] = latest;
  }
  return events;
};

const useNames = ['live', 'deferred', 'cached'];
const segmentKinds = ['pages', 'view', 'upstream'];

const readSegments = (count, shapes) => {
  const from = new Numbers('tarn-blocks');
  const segments = [], blocks = {address: [], shape: [], use: [], time: [], segment: []};
  let units = 0, time = 0;
  for (let i = 0; i < count; ++i) {
    units += from.step();
    const s = {address: distance(units), bytes: from.next()};
    const flags = from.next();
    s.kind = segmentKinds[flags & 3];
    s.small = (flags & 4) !== 0;
    s.handles = from.next();
    s.stream = from.next();
    s.first = blocks.shape.length;
    s.end = s.first + from.next();
    s.live = 0;
    s.liveBlocks = 0;
    let address = s.address;
    for (let b = s.first; b < s.end; ++b) {
      const head = from.next(), shape = Math.floor(head / 8);
      if (head & 4) address += from.step();
      time += from.step();
      blocks.address.push(address);
      blocks.shape.push(shape);
      blocks.use.push(head & 3);
      blocks.time.push(time);
      blocks.segment.push(i);
      if ((head & 3) === 0) {
        s.live += shapes.bytes[shape];
        ++s.liveBlocks;
      }
      address += shapes.bytes[shape];
    }
    segments.push(s);
  }
  blocks.count = blocks.shape.length;
  return {segments, blocks};
};

// ---- the curves: state i is the state after i events
const makeModel = () => {
  const shapes = readShapes(info.shapes);
  const events = readEvents(info.events, shapes);
  const {segments, blocks} = readSegments(info.segments, shapes);
  const n = events.count;
  const upperBound = (time) => {
    let low = 0, high = n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (events.time[middle] <= time) low = middle + 1; else high = middle;
    }
    return low;
  };
  const lowerBound = (time) => {
    let low = 0, high = n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (events.time[middle] < time) low = middle + 1; else high = middle;
    }
    return low;
  };
  // The snapshot lists the blocks of this state: the curve passes through the bytes that are live there.
  const known = upperBound(info.now);

  // Blocks that are older than the first event: freed in the events without an allocation, or live and never allocated.
  const older = [], freedLater = new Map(), placed = new Map();
  for (let i = 0; i < n; ++i) {
    if (events.kind[i] === freed && events.partner[i] === none) {
      const block = {shape: events.shape[i], address: events.address[i], end: i};
      if (i < known) older.push(block); else freedLater.set(block.address, block);
    }
    const p = events.partner[i];
    if (i < known && events.kind[i] === allocated && (p === none || p >= known)) placed.set(events.address[i], i);
  }
  // The requested size of a block that was not watched is unknown: its own size is used.
  const asked = (shape) => shapes.requested[shape] || shapes.bytes[shape];
  let liveNow = 0, requestedNow = 0;
  for (let b = 0; b < blocks.count; ++b) {
    if (blocks.use[b] !== 0) continue;
    const shape = blocks.shape[b], address = blocks.address[b];
    liveNow += shapes.bytes[shape];
    requestedNow += asked(shape);
    if (placed.has(address)) continue;
    const later = freedLater.get(address);
    freedLater.delete(address);
    older.push({shape, address, end: later ? later.end : Infinity});
  }
  for (const block of freedLater.values()) older.push(block);
  if (segments.length === 0) liveNow = requestedNow = info.pool.live;

  const live = new Float64Array(n + 1), requested = new Float64Array(n + 1), reserved = new Float64Array(n + 1);
  // The program's calls up to each state. What the pool reserves and releases is no call.
  const calls = new Float64Array(n + 1).fill(info.forgotten);
  let reservations = 0;
  for (const block of older) {
    live[0] += shapes.bytes[block.shape];
    requested[0] += asked(block.shape);
  }
  for (let i = 0; i < n; ++i) {
    const shape = events.shape[i], kind = events.kind[i];
    const blockSign = kind === allocated ? 1 : kind === freed ? -1 : 0;
    const poolSign = kind === reserving ? 1 : kind === releasing ? -1 : 0;
    live[i + 1] = live[i] + blockSign * shapes.bytes[shape];
    requested[i + 1] = requested[i] + blockSign * asked(shape);
    reserved[i + 1] = reserved[i] + poolSign * shapes.bytes[shape];
    reservations += poolSign * poolSign;
    calls[i + 1] = calls[i] + (kind <= refused ? 1 : 0);
  }
  // Without recorded calls, live bytes are known at the snapshot only.
  const knowsCalls = calls[n] > calls[0];
  // Bytes that neither events nor blocks explain belong to no block. They are added so that the curves end at the true level.
  const unexplained = liveNow - live[known];
  const unexplainedRequested = segments.length === 0 ? unexplained : requestedNow - requested[known];
  const reservedNow = info.pool.reserved;
  const reservedBefore = reservedNow - reserved[known];
  let peak = knowsCalls ? 0 : known;
  for (let i = 0; i <= n; ++i) {
    live[i] += unexplained;
    requested[i] += unexplainedRequested;
    reserved[i] += reservedBefore;
    if (live[i] > live[peak]) peak = i;
  }

  // Calls `take(shape, address)` for each block that is live in a state.
  const eachLive = (state, take) => {
    for (const block of older) if (block.end >= state) take(block.shape, block.address);
    for (let i = 0; i < state; ++i) {
      if (events.kind[i] !== allocated) continue;
      const end = events.partner[i];
      if (end === none || end >= state) take(events.shape[i], events.address[i]);
    }
  };
  return {shapes, events, segments, blocks, n, live, requested, reserved, reservedNow, known, peak, unexplained, older, calls,
    eachLive, upperBound, lowerBound, knowsCalls, knowsReserved: reservations > 0};
};

// ---- the maximum and minimum of any range of a curve, in time proportional to its length / 128
const stretch = 128;
class Extremes {
  constructor(values) {
    const count = Math.ceil(values.length / stretch);
    this.values = values;
    this.most = new Float64Array(count).fill(-Infinity);
    this.least = new Float64Array(count).fill(Infinity);
    for (let i = 0; i < values.length; ++i) {
      const s = Math.floor(i / stretch);
      if (values[i] > this.most[s]) this.most[s] = values[i];
      if (values[i] < this.least[s]) this.least[s] = values[i];
    }
  }
  // Index of the first of the largest values in [from, to].
  indexOfMost(from, to) {
    const {values, most} = this;
    let best = from;
    const look = (a, b) => {
      for (let i = a; i <= b; ++i) if (values[i] > values[best]) best = i;
    };
    const first = Math.floor(from / stretch) + 1, last = Math.floor(to / stretch);
    if (first >= last) {
      look(from, to);
      return best;
    }
    look(from, first * stretch - 1);
    let where = none, high = values[best];
    for (let s = first; s < last; ++s) {
      if (most[s] > high) {
        high = most[s];
        where = s;
      }
    }
    if (where !== none) look(where * stretch, where * stretch + stretch - 1);
    look(last * stretch, to);
    return best;
  }
  leastOf(from, to) {
    const {values, least} = this;
    let low = Infinity;
    const look = (a, b) => {
      for (let i = a; i <= b; ++i) if (values[i] < low) low = values[i];
    };
    const first = Math.floor(from / stretch) + 1, last = Math.floor(to / stretch);
    if (first >= last) {
      look(from, to);
      return low;
    }
    look(from, first * stretch - 1);
    for (let s = first; s < last; ++s) if (least[s] < low) low = least[s];
    look(last * stretch, to);
    return low;
  }
}
)js", html_slot::none},
{R"js(
// ---- words
const grouped = (n) => Math.round(n).toLocaleString('en-US');
const inBytes = (n) => {
  const sign = n < 0 ? '-' : '';
  let value = Math.abs(n), at = 0;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    ++at;
  }
  if (at < units.length - 1 && Number(value.toPrecision(value >= 1000 ? 4 : 3)) >= 1024) {
    value /= 1024;
    ++at;
  }
  const digits = at === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${sign}${value.toFixed(digits).replace(/(\.\d*?)0+$/, '$1').replace(/\.$/, '')} ${units[at]}`;
};
const inTime = (ns, resolution = ns / 1000) => {
  const units = [[60e9, 'min'], [1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']];
  const [size, name] = units.find(([s]) => Math.abs(ns) >= s) || units[4];
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(Math.max(resolution, 1) / size) - 1e-9)));
  return `${(ns / size).toFixed(digits)} ${name}`;
};
const percent = (part, of) => {
  const share = of > 0 ? part / of : 0;
  if (share > 0 && share < 0.0005) return '< 0.1 %';
  return `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %`;
};
const counted = (n, one, many = one + 's') => `${grouped(n)} ${n === 1 ? one : many}`;
const base = BigInt(info.base);
const addressText = (distance) => distance === none ? '' : '0x' + (base + BigInt(distance)).toString(16);
const streamText = (index) => {
  const id = info.streams[index] ?? '0';
  return id !== '0' && id === info.nullStream ? `${id} (default)` : id;
};
const tagText = (tag) => info.tags[tag]?.name || 'untagged';
const fileName = (path) => path.split(/[\\/]/).pop();
const locationText = (location) => {
  const frame = info.locations[location]?.[0];
  if (!frame) return 'location unknown';
  const [file, line, name] = frame;
  return file ? `${fileName(file)}:${line}${name ? ' ' + name : ''}` : name;
};
// Shortens names, which may have any length, for lines of text.
const brief = (text, most = 64) => text.length > most ? text.slice(0, most - 1) + '…' : text;
const usesCalls = info.clock === 'calls';
const momentText = (time, state) => usesCalls ? `call ${grouped(time)}` :
  model.knowsCalls ? `${inTime(time)}, call ${grouped(model.calls[state])}` : inTime(time);

const make = (name, attributes = {}, ...children) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'on') for (const [event, f] of Object.entries(value)) node.addEventListener(event, f);
    else if (key === 'color') node.style.background = value;
    else if (value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
};

// ---- colours, by their names in the style sheet
const colorsOf = () => {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(name).trim();
  return {
    ink: get('--ink'), soft: get('--soft'), line: get('--line'), surface: get('--surface'), live: get('--live'),
    liveFill: get('--live-fill'), liveFaint: get('--live-faint'), reserved: get('--reserved'),
    requested: get('--requested'), cached: get('--cached'), deferred: get('--deferred'), focus: get('--focus'),
    series: [0, 1, 2, 3, 4, 5, 6, 7].map((i) => get(`--c${i}`)), other: get('--other'),
    sizes: [0, 1, 2, 3, 4, 5, 6].map((i) => get(`--s${i}`)),
  };
};
let colors = colorsOf();
const font = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

// Sizes a canvas to its position on the page, in device pixels, and clears it.
const fit = (canvas, width, height) => {
  const ratio = window.devicePixelRatio || 1;
  const w = Math.max(1, Math.round(width * ratio)), h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w) canvas.width = w;
  if (canvas.height !== h) canvas.height = h;
  const pen = canvas.getContext('2d');
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = font;
  return pen;
};
const afterFrame = (draw) => {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
};

const model = makeModel();
const {shapes, events} = model;

// ---- tags by their bytes at the peak: the first ones have their own colour, the others share one
const palette = 8;
const bytesAtPeak = new Float64Array(Math.max(1, info.tags.length));
model.eachLive(model.peak, (shape) => { bytesAtPeak[shapes.tag[shape]] += shapes.bytes[shape]; });
const ranked = [...bytesAtPeak.keys()].sort((a, b) => bytesAtPeak[b] - bytesAtPeak[a] ||
  (info.tags[b]?.peak ?? 0) - (info.tags[a]?.peak ?? 0));
const seenTags = ranked.filter((tag) => bytesAtPeak[tag] > 0 || info.tags[tag]?.peak > 0);
const coloredTags = seenTags.slice(0, seenTags.length > palette ? palette - 1 : palette);
const slotOfTag = new Uint8Array(bytesAtPeak.length).fill(palette);
coloredTags.forEach((tag, slot) => { slotOfTag[tag] = slot; });
const slots = palette + 1;
const slotColor = (slot) => slot < palette ? colors.series[slot] : colors.other;
)js", html_slot::none},
{R"js(
// ---- the timeline
const chart = byId('chart'), overview = byId('overview');
const margin = {left: 72, right: 14, top: 26, bottom: 26};
// If all events have the same time, only the order of the calls distinguishes them.
const isMoment = model.knowsCalls && model.n > 1 && events.time[0] === events.time[model.n - 1];
const view = {axis: usesCalls ? 'given' : isMoment ? 'calls' : 'time', from: 0, to: 1, stacked: false,
  reserved: false, requested: false, moment: model.peak, pointer: none};

// Where a state begins on the axis. Only the axis of calls separates events with equal times.
const startOf = (state) => view.axis === 'calls' ? model.calls[state] : state === 0 ? domain()[0] : events.time[state - 1];
const domain = () => {
  const n = model.n;
  if (view.axis === 'calls') return [model.calls[0], model.calls[n] + 1];
  const first = n ? events.time[0] : 0, last = n ? events.time[n - 1] : 0;
  if (usesCalls) return [Math.min(first, 1) - 1, Math.max(last, 0) + 1];
  // The axis ends with the program; what happened at its end is in the last column.
  const end = Math.max(last, info.now, first + 1);
  return [Math.max(0, first - (end - first) * 0.005), end];
};
// The last state with at most so many calls.
const stateOfCall = (call) => {
  let low = 0, high = model.n;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (model.calls[middle] <= call) low = middle; else high = middle - 1;
  }
  return low;
};
const stateAt = (x) => view.axis === 'calls' ? stateOfCall(Math.floor(x)) : model.upperBound(x);
const lastStateBefore = (x) =>
  view.axis === 'calls' ? stateOfCall(Math.ceil(x) - 1) : x >= domain()[1] ? model.n : model.lowerBound(x);
const timeOf = (state) => state === 0 ? (model.n ? events.time[0] : info.now) : events.time[state - 1];

const liveExtremes = new Extremes(model.live), reservedExtremes = new Extremes(model.reserved);
const requestedExtremes = new Extremes(model.requested);

// The bytes of each colour in a state: starts at the nearest earlier state that is kept, and applies event by event.
const keptEvery = 256;
let kept = null;
const keepStacks = () => {
  const now = new Float64Array(slots);
  for (const block of model.older) now[slotOfTag[shapes.tag[block.shape]]] += shapes.bytes[block.shape];
  now[palette] += model.unexplained;
  kept = new Float64Array((Math.floor(model.n / keptEvery) + 1) * slots);
  for (let i = 0; i <= model.n; ++i) {
    if (i % keptEvery === 0) kept.set(now, i / keptEvery * slots);
    if (i < model.n) applyEvent(now, i);
  }
};
const applyEvent = (sums, i) => {
  const kind = events.kind[i];
  if (kind > freed) return;
  const shape = events.shape[i];
  sums[slotOfTag[shapes.tag[shape]]] += kind === allocated ? shapes.bytes[shape] : -shapes.bytes[shape];
};
const stacks = {state: none, sums: new Float64Array(slots)};
const stackAt = (state) => {
  if (!kept) keepStacks();
  const nearest = Math.floor(state / keptEvery);
  if (stacks.state === none || state < stacks.state || stacks.state < nearest * keptEvery) {
    stacks.state = nearest * keptEvery;
    stacks.sums.set(kept.subarray(nearest * slots, (nearest + 1) * slots));
  }
  for (; stacks.state < state; ++stacks.state) applyEvent(stacks.sums, stacks.state);
  return stacks.sums;
};

const byteStep = (range, ticks) => {
  let step = 1;
  while (step * ticks < range) step *= 2;
  return step;
};
const roundStep = (range, ticks) => {
  const raw = Math.max(range / ticks, 1), power = 10 ** Math.floor(Math.log10(raw));
  return power * ([1, 2, 5, 10].find((m) => m * power >= raw * 0.95) || 10);
};

// The columns of a range of the axis. Each has the state with the most live bytes, the least live bytes, and the most
// reserved and requested bytes.
const columnsOf = (from, to, count) => {
  const columns = {state: new Int32Array(count), least: new Float64Array(count), reserved: new Float64Array(count),
    requested: new Float64Array(count), most: 0};
  const width = (to - from) / count;
  for (let c = 0; c < count; ++c) {
    const end = c + 1 === count ? to : from + (c + 1) * width;
    const first = stateAt(from + c * width), last = Math.max(first, lastStateBefore(end));
    const state = liveExtremes.indexOfMost(first, last);
    columns.state[c] = state;
    columns.least[c] = first === last ? model.live[state] : liveExtremes.leastOf(first, last);
    if (model.knowsCalls) columns.most = Math.max(columns.most, model.live[state]);
    if (view.reserved) columns.reserved[c] = model.reserved[reservedExtremes.indexOfMost(first, last)];
    if (view.requested) columns.requested[c] = model.requested[requestedExtremes.indexOfMost(first, last)];
  }
  return columns;
};

const stepLine = (pen, count, left, step, y) => {
  pen.beginPath();
  for (let c = 0; c < count; ++c) {
    pen.lineTo(left + c * step, y(c));
    pen.lineTo(left + (c + 1) * step, y(c));
  }
};

let plot = null;  // the position of the last drawing, for the pointer
const drawChart = () => {
  if (chart.hidden) return;
  const began = performance.now();
  const width = chart.clientWidth, height = chart.clientHeight;
  const pen = fit(chart, width, height);
  const left = margin.left, right = width - margin.right, top = margin.top, bottom = height - margin.bottom;
  const ratio = window.devicePixelRatio || 1;
  const count = Math.max(1, Math.round((right - left) * ratio)), step = (right - left) / count;
  const columns = columnsOf(view.from, view.to, count);
  let most = columns.most;
  const showsLevel = !model.knowsReserved && model.reservedNow > 0 && view.reserved;
  const mostOf = (values) => values.reduce((a, b) => Math.max(a, b), most);
  if (view.reserved) most = showsLevel ? Math.max(most, model.reservedNow) : mostOf(columns.reserved);
  if (view.requested) most = mostOf(columns.requested);
  const stepBytes = byteStep(Math.max(most, 1) * 1.04, 6);
  const ceiling = Math.max(most * 1.04, 1);
  const y = (bytes) => bottom - Math.max(0, bytes) / ceiling * (bottom - top);
  const x = (value) => left + (value - view.from) / (view.to - view.from) * (right - left);
  plot = {left, right, top, bottom, x};

  pen.textBaseline = 'middle';
  pen.textAlign = 'right';
  pen.lineWidth = 1;
  for (let bytes = 0; bytes <= ceiling; bytes += stepBytes) {
    const at = Math.round(y(bytes)) + 0.5;
    pen.strokeStyle = colors.line;
    pen.beginPath();
    pen.moveTo(left, at);
    pen.lineTo(right, at);
    pen.stroke();
    pen.fillStyle = colors.soft;
    pen.fillText(bytes === 0 ? '0' : inBytes(bytes), left - 8, at);
  }
  drawAxis(pen, left, right, bottom, x);

  pen.save();
  pen.beginPath();
  pen.rect(left, top - 20, right - left, bottom - top + 20);
  pen.clip();
  if (model.knowsCalls) (view.stacked ? drawStacks : drawLive)(pen, columns, count, left, step, y, bottom);
  if (view.requested) {
    stepLine(pen, count, left, step, (c) => y(columns.requested[c]));
    pen.strokeStyle = colors.requested;
    pen.lineWidth = 1.5;
    pen.stroke();
  }
  if (view.reserved) {
    stepLine(pen, count, left, step, (c) => y(showsLevel ? model.reservedNow : columns.reserved[c]));
    pen.strokeStyle = colors.reserved;
    pen.lineWidth = 1.5;
    if (showsLevel) pen.setLineDash([6, 4]);
    pen.stroke();
    pen.setLineDash([]);
  }
  pen.restore();
  drawMarks(pen, x, y, left, right, top, bottom);
  drawOverview();
  const span = domain();
  chart.dataset.from = view.from;
  chart.dataset.to = view.to;
  chart.dataset.share = (view.to - view.from) / (span[1] - span[0]);
  chart.dataset.most = columns.most;
  chart.dataset.drawMs = (performance.now() - began).toFixed(2);
};

const drawLive = (pen, columns, count, left, step, y, bottom) => {
  const area = (level, color) => {
    stepLine(pen, count, left, step, level);
    pen.lineTo(left + count * step, bottom);
    pen.lineTo(left, bottom);
    pen.fillStyle = color;
    pen.fill();
  };
  area((c) => y(model.live[columns.state[c]]), colors.liveFaint);
  area((c) => y(columns.least[c]), colors.liveFill);
  stepLine(pen, count, left, step, (c) => y(model.live[columns.state[c]]));
  pen.strokeStyle = colors.live;
  pen.lineWidth = 1.5;
  pen.stroke();
};

// A column shows the tags of its state with the most live bytes, so that it is as high as the curve without tags.
const drawStacks = (pen, columns, count, left, step, y, bottom) => {
  const tops = Array.from({length: slots}, () => new Float64Array(count));
  let before = null, state = none;
  for (let c = 0; c < count; ++c) {
    if (columns.state[c] !== state) {
      state = columns.state[c];
      before = stackAt(state);
    }
    let sum = 0;
    for (let slot = slots - 1; slot >= 0; --slot) {
      sum += before[slot];
      tops[slot][c] = sum;
    }
  }
  for (let slot = 0; slot < slots; ++slot) {
    stepLine(pen, count, left, step, (c) => y(tops[slot][c]));
    pen.lineTo(left + count * step, bottom);
    pen.lineTo(left, bottom);
    pen.fillStyle = slotColor(slot);
    pen.fill();
  }
};

const drawAxis = (pen, left, right, bottom, x) => {
  const span = view.to - view.from, ticks = Math.max(3, Math.floor((right - left) / 130));
  const step = roundStep(span, ticks);
  pen.textBaseline = 'top';
  pen.textAlign = 'center';
  const texts = [];
  for (let value = Math.ceil(view.from / step) * step; value <= view.to; value += step) texts.push(value);
  for (const value of texts) {
    const at = Math.round(x(value)) + 0.5;
    const text = view.axis === 'time' ? axisTime(value, step) : grouped(value);
    const half = pen.measureText(text).width / 2;
    pen.strokeStyle = colors.soft;
    pen.beginPath();
    pen.moveTo(at, bottom + 0.5);
    pen.lineTo(at, bottom + 5);
    pen.stroke();
    pen.fillStyle = colors.soft;
    pen.fillText(text, Math.max(left - 20 + half, Math.min(right + margin.right - half, at)), bottom + 8);
  }
};
// All ticks of an axis have one unit, and enough digits to differ.
const axisTime = (ns, step) => {
  const units = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']];
  const [size, name] = units.find(([s]) => Math.max(Math.abs(view.to), 1) >= s) || units[3];
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / size) - 1e-9)));
  return `${(ns / size).toFixed(digits)} ${name}`;
};

const drawMarks = (pen, x, y, left, right, top, bottom) => {
  if (!model.knowsCalls) return;
  const vertical = (at, color, dash) => {
    pen.strokeStyle = color;
    pen.lineWidth = 1;
    pen.setLineDash(dash);
    pen.beginPath();
    pen.moveTo(Math.round(at) + 0.5, top - 6);
    pen.lineTo(Math.round(at) + 0.5, bottom);
    pen.stroke();
    pen.setLineDash([]);
  };
  const momentX = x(startOf(view.moment));
  if (view.moment !== model.peak && momentX >= left && momentX <= right) vertical(momentX, colors.ink, []);
  if (view.pointer !== none) {
    const pointerX = x(startOf(view.pointer));
    if (pointerX >= left && pointerX <= right) vertical(pointerX, colors.soft, [3, 3]);
  }
  const peakX = x(startOf(model.peak)), peakY = y(model.live[model.peak]);
  if (peakX < left - 1 || peakX > right + 1) return;
  vertical(peakX, colors.ink, []);
  pen.fillStyle = colors.surface;
  pen.strokeStyle = colors.ink;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.arc(peakX, peakY, 4.5, 0, 2 * Math.PI);
  pen.fill();
  pen.stroke();
  const text = `Peak ${inBytes(model.live[model.peak])}`;
  pen.font = '600 ' + font;
  const half = pen.measureText(text).width / 2 + 6;
  const at = Math.max(left + half, Math.min(right - half, peakX));
  pen.fillStyle = colors.surface;
  pen.fillRect(at - half, top - 24, 2 * half, 18);
  pen.fillStyle = colors.ink;
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  pen.fillText(text, at, top - 15);
  pen.font = font;
};

let overviewColumns = null;
const drawOverview = () => {
  const width = overview.clientWidth, height = overview.clientHeight;
  const pen = fit(overview, width, height);
  const left = margin.left, right = width - margin.right;
  const [from, to] = domain();
  const count = Math.max(1, Math.round(right - left));
  const key = `${view.axis} ${count}`;
  if (!overviewColumns || overviewColumns.key !== key) {
    const shown = {reserved: view.reserved, requested: view.requested};
    view.reserved = view.requested = false;
    overviewColumns = {key, columns: columnsOf(from, to, count)};
    Object.assign(view, shown);
  }
  const {columns} = overviewColumns;
  const y = (bytes) => height - 1 - Math.max(0, bytes) / Math.max(columns.most, 1) * (height - 6);
  if (model.knowsCalls) {
    stepLine(pen, count, left, 1, (c) => y(model.live[columns.state[c]]));
    pen.lineTo(left + count, height);
    pen.lineTo(left, height);
    pen.fillStyle = colors.liveFill;
    pen.fill();
  }
  const a = left + (view.from - from) / (to - from) * (right - left);
  const b = left + (view.to - from) / (to - from) * (right - left);
  pen.globalAlpha = 0.72;
  pen.fillStyle = colors.surface;
  pen.fillRect(left, 0, a - left, height);
  pen.fillRect(b, 0, right - b, height);
  pen.globalAlpha = 1;
  pen.strokeStyle = colors.soft;
  pen.lineWidth = 1;
  pen.strokeRect(Math.round(a) + 0.5, 0.5, Math.max(2, Math.round(b - a) - 1), height - 1);
};
const redrawChart = afterFrame(drawChart);
)js", html_slot::none},
{R"js(
// ---- the timeline's readout and input
const readout = byId('chart-readout'), spoken = byId('spoken');
const eventText = (i) => {
  const shape = events.shape[i], kind = events.kind[i];
  const parts = [`${kinds[kind]} ${inBytes(shapes.bytes[shape] || shapes.requested[shape])}`];
  if (kind <= refused) {
    parts.push(`stream ${streamText(events.stream[i])}`);
    if (info.tags.length > 1) parts.push(brief(tagText(shapes.tag[shape])));
    if (shapes.location[shape]) parts.push(brief(locationText(shapes.location[shape])));
  }
  return parts.join(', ');
};
const stateParts = (state) => {
  const parts = [['at', momentText(timeOf(state), state)]];
  if (model.knowsCalls) parts.push(['live', inBytes(model.live[state])], ['requested', inBytes(model.requested[state])]);
  if (model.knowsReserved) parts.push(['reserved', inBytes(model.reserved[state])]);
  if (state > 0) parts.push(['last', eventText(state - 1)]);
  return parts;
};
const showReadout = () => {
  const state = view.pointer === none ? view.moment : view.pointer;
  readout.replaceChildren(...stateParts(state).map(([name, text]) =>
    make('span', {class: 'pair'}, make('span', {class: 'name'}, name), ' ', text)));
};
const speak = (text) => { spoken.textContent = text; };

const setView = (from, to) => {
  const [low, high] = domain();
  const whole = high - low;
  const least = view.axis === 'time' ? Math.min(whole, Math.max(10, whole / 1e8)) : Math.min(whole, 8);
  const span = Math.max(least, Math.min(whole, to - from));
  let start = from + ((to - from) - span) / 2;
  start = Math.max(low, Math.min(high - span, start));
  view.from = start;
  view.to = start + span;
  redrawChart();
};
const showAll = () => setView(...domain());
const zoom = (factor, around = (view.from + view.to) / 2) =>
  setView(around - (around - view.from) * factor, around + (view.to - around) * factor);
const pan = (share) => {
  const by = (view.to - view.from) * share;
  const [low, high] = domain();
  const kept = Math.max(low - view.from, Math.min(high - view.to, by));
  setView(view.from + kept, view.to + kept);
};
const isWhole = () => {
  const [low, high] = domain();
  return view.to - view.from >= (high - low) * 0.999999;
};
const bringIntoView = (state) => {
  const at = startOf(state), span = view.to - view.from;
  if (at < view.from || at > view.to) setView(at - span / 2, at + span / 2);
};
const pickMoment = (state) => {
  if (!model.knowsCalls) return;
  view.moment = state;
  bringIntoView(state);
  showMoment();
  showReadout();
  redrawChart();
};

const axisAt = (event) => {
  const box = chart.getBoundingClientRect();
  const share = (event.clientX - box.left - plot.left) / (plot.right - plot.left);
  return view.from + Math.max(0, Math.min(1, share)) * (view.to - view.from);
};
// The state under the pointer: of the states in that column, the one with the most live bytes, as it is drawn.
const stateUnder = (event) => {
  const at = axisAt(event), half = (view.to - view.from) / Math.max(1, plot.right - plot.left) / 2;
  const first = stateAt(at - half);
  return liveExtremes.indexOfMost(first, Math.max(first, lastStateBefore(at + half)));
};

chart.addEventListener('wheel', (event) => {
  if (!plot) return;
  const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
  if (sideways) {
    if (isWhole()) return;
    event.preventDefault();
    pan((event.deltaX || event.deltaY) / 1000);
    return;
  }
  if (event.deltaY > 0 && isWhole()) return;  // everything is shown: let the page scroll
  event.preventDefault();
  zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), axisAt(event));
}, {passive: false});

const touches = new Map();
let drag = null;
chart.addEventListener('pointerdown', (event) => {
  if (!plot || event.button > 0) return;
  touches.set(event.pointerId, event.clientX);
  chart.setPointerCapture(event.pointerId);
  drag = {x: event.clientX, from: view.from, to: view.to, moved: touches.size > 1};
  if (touches.size === 2) drag.apart = Math.abs([...touches.values()][0] - [...touches.values()][1]);
});
chart.addEventListener('pointermove', (event) => {
  if (!plot) return;
  if (touches.has(event.pointerId)) {
    touches.set(event.pointerId, event.clientX);
    const perPixel = (drag.to - drag.from) / Math.max(1, plot.right - plot.left);
    if (touches.size === 2) {
      const [a, b] = [...touches.values()];
      const factor = Math.max(20, drag.apart) / Math.max(20, Math.abs(a - b)), middle = (drag.from + drag.to) / 2;
      setView(middle - (middle - drag.from) * factor, middle + (drag.to - middle) * factor);
      return;
    }
    if (Math.abs(event.clientX - drag.x) > 4) drag.moved = true;
    if (drag.moved && !isWhole()) {
      const [low, high] = domain();
      const by = Math.max(low - drag.from, Math.min(high - drag.to, (drag.x - event.clientX) * perPixel));
      setView(drag.from + by, drag.to + by);
    }
  }
  view.pointer = stateUnder(event);
  showReadout();
  redrawChart();
});
const endDrag = (event) => {
  const wasClick = touches.has(event.pointerId) && drag && !drag.moved && event.type === 'pointerup';
  touches.delete(event.pointerId);
  if (wasClick) pickMoment(stateUnder(event));
};
chart.addEventListener('pointerup', endDrag);
chart.addEventListener('pointercancel', endDrag);
chart.addEventListener('pointerleave', () => {
  view.pointer = none;
  showReadout();
  redrawChart();
});
chart.addEventListener('dblclick', (event) => { zoom(0.25, axisAt(event)); });

// The selected moment is the cursor of the keyboard.
const moveMoment = (state) => {
  pickMoment(Math.max(0, Math.min(model.n, state)));
  speak(stateParts(view.moment).map(([name, text]) => `${name} ${text}`).join(', '));
};
// What the pool reserves and releases between two calls is passed by.
const moveByCall = (by) => {
  let state = view.moment + by;
  while (state > 0 && state < model.n && events.kind[state - 1] > refused) state += by;
  moveMoment(state);
};
const moveByPixels = (pixels) => {
  const at = startOf(view.moment) + pixels * (view.to - view.from) / Math.max(1, plot.right - plot.left);
  const state = stateAt(at);
  moveMoment(state === view.moment ? state + Math.sign(pixels) : state);
};
const chartKeys = {
  ArrowLeft: (event) => event.shiftKey ? moveByCall(-1) : moveByPixels(-12),
  ArrowRight: (event) => event.shiftKey ? moveByCall(1) : moveByPixels(12),
  '+': () => zoom(0.5, momentOrMiddle()), '=': () => zoom(0.5, momentOrMiddle()),
  '-': () => zoom(2, momentOrMiddle()), '_': () => zoom(2, momentOrMiddle()),
  PageUp: () => pan(-0.5), PageDown: () => pan(0.5),
  Home: () => moveMoment(0), End: () => moveMoment(model.n),
  0: () => showAll(), p: () => moveMoment(model.peak), P: () => moveMoment(model.peak),
};
const momentOrMiddle = () => {
  const at = startOf(view.moment);
  return at >= view.from && at <= view.to ? at : (view.from + view.to) / 2;
};
chart.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !chartKeys[event.key] || !plot) return;
  event.preventDefault();
  chartKeys[event.key](event);
});

let overviewDrag = false;
const moveOverview = (event) => {
  const box = overview.getBoundingClientRect(), [low, high] = domain();
  const share = (event.clientX - box.left - margin.left) / Math.max(1, box.width - margin.left - margin.right);
  const at = low + share * (high - low), half = (view.to - view.from) / 2;
  setView(at - half, at + half);
};
overview.addEventListener('pointerdown', (event) => {
  overviewDrag = true;
  overview.setPointerCapture(event.pointerId);
  moveOverview(event);
});
overview.addEventListener('pointermove', (event) => { if (overviewDrag) moveOverview(event); });
overview.addEventListener('pointerup', () => { overviewDrag = false; });
overview.addEventListener('pointercancel', () => { overviewDrag = false; });

// ---- switches of the timeline
const pressed = (button, on) => button.setAttribute('aria-pressed', String(on));
const switches = (ids, choose) => ids.forEach((id) => byId(id).addEventListener('click', () => {
  ids.forEach((other) => pressed(byId(other), other === id));
  choose(id);
}));
const showLegend = () => {
  const entries = [];
  const entry = (color, text, kind = 'box') =>
    entries.push(make('li', {title: text}, make('span', {class: `key ${kind}`, color}), brief(text, 40)));
  if (view.stacked) {
    coloredTags.forEach((tag, slot) => entry(slotColor(slot), tagText(tag)));
    const rest = seenTags.length - coloredTags.length;
    if (rest > 0) entry(colors.other, counted(rest, 'other tag'));
    else if (model.unexplained > 0) entry(colors.other, 'not known');
  } else if (model.knowsCalls) {
    entry(colors.live, 'live, as blocks occupy it');
  }
  if (view.requested) entry(colors.requested, 'requested', 'dash');
  if (view.reserved) entry(colors.reserved, model.knowsReserved ? 'reserved' : 'reserved at the snapshot', 'dash');
  byId('chart-legend').replaceChildren(...entries);
};
const changed = () => {
  showLegend();
  redrawChart();
};
switches(['show-total', 'show-tags'], (id) => {
  view.stacked = id === 'show-tags';
  changed();
});
switches(['axis-time', 'axis-calls'], (id) => {
  const middle = stateAt((view.from + view.to) / 2), whole = isWhole();
  view.axis = id === 'axis-time' ? 'time' : 'calls';
  const at = startOf(middle), [low, high] = domain();
  const span = whole ? high - low : (high - low) * Number(chart.dataset.share);
  setView(at - span / 2, at + span / 2);
  if (whole) showAll();
});
byId('show-reserved').addEventListener('click', (event) => {
  view.reserved = !view.reserved;
  pressed(event.currentTarget, view.reserved);
  changed();
});
byId('show-requested').addEventListener('click', (event) => {
  view.requested = !view.requested;
  pressed(event.currentTarget, view.requested);
  changed();
});
byId('zoom-in').addEventListener('click', () => zoom(0.5, momentOrMiddle()));
byId('zoom-out').addEventListener('click', () => zoom(2, momentOrMiddle()));
byId('zoom-all').addEventListener('click', showAll);
byId('to-peak').addEventListener('click', () => pickMoment(model.peak));
)js", html_slot::none},
{R"js(
// ---- what was live at the moment
const mostShown = 10;
const barRow = (color, name, title, bytes, of, blocks) => make('tr', {},
  make('th', {scope: 'row', title}, ...(color ? [make('span', {class: 'key box', color})] : []), name),
  make('td', {class: 'number'}, inBytes(bytes)),
  make('td', {class: 'number share'}, percent(bytes, of)),
  ...(blocks === null ? [] : [make('td', {class: 'number'}, grouped(blocks))]));
const fillMoment = (id, rows, rest, of) => {
  const body = byId(id);
  body.replaceChildren(...rows);
  if (rest.count > 0) {
    body.append(barRow(null, rest.name, undefined, rest.bytes, of, rest.blocks));
    body.lastChild.className = 'rest';
  }
  if (rows.length === 0) body.append(make('tr', {}, make('td', {colspan: '4', class: 'soft'}, 'Nothing was live.')));
};
const showMoment = () => {
  const state = view.moment, total = model.live[state];
  const tags = new Map(), locations = new Map();
  let blocks = 0, count = 0;
  const largest = [];
  let least = 0;
  model.eachLive(state, (shape, address) => {
    const bytes = shapes.bytes[shape];
    ++count;
    for (const [map, key] of [[tags, shapes.tag[shape]], [locations, shapes.location[shape]]]) {
      const sum = map.get(key);
      if (sum) {
        sum.bytes += bytes;
        ++sum.blocks;
      } else {
        map.set(key, {key, bytes, blocks: 1});
      }
    }
    if (largest.length < mostShown || bytes > least) {
      largest.push({shape, address, bytes});
      largest.sort((a, b) => b.bytes - a.bytes);
      largest.length = Math.min(largest.length, mostShown);
      least = largest[largest.length - 1].bytes;
    }
  });
  blocks = count;
  const where = !model.knowsCalls ? 'Live at the snapshot' :
    state === model.peak ? 'Live at the peak' : 'Live at the chosen moment';
  byId('moment-title').textContent = where;
  byId('moment-about').textContent =
    `${inBytes(total)} in ${counted(blocks, 'block')}, ${momentText(model.knowsCalls ? timeOf(state) : info.now, state)}` +
    (model.unexplained > 0 ? `; ${inBytes(model.unexplained)} of it in blocks that were not recorded` : '');
  byId('moment').dataset.bytes = total;
  byId('moment').dataset.blocks = blocks;
  byId('to-peak').hidden = state === model.peak;
  const top = (map) => [...map.values()].sort((a, b) => b.bytes - a.bytes);
  const restOf = (list, word) => {
    const rest = list.slice(mostShown);
    return {count: rest.length, name: `${counted(rest.length, 'more ' + word)}`,
      bytes: rest.reduce((sum, r) => sum + r.bytes, 0), blocks: rest.reduce((sum, r) => sum + r.blocks, 0)};
  };
  const tagList = top(tags), locationList = top(locations);
  fillMoment('moment-tags', tagList.slice(0, mostShown).map((t) =>
    barRow(slotColor(slotOfTag[t.key]), tagText(t.key), tagText(t.key), t.bytes, total, t.blocks)),
    restOf(tagList, 'tag'), total);
  fillMoment('moment-locations', locationList.slice(0, mostShown).map((p) =>
    barRow(null, locationText(p.key), locationTitle(p.key), p.bytes, total, p.blocks)), restOf(locationList, 'location'), total);
  fillMoment('moment-blocks', largest.map((b) => barRow(null,
    [info.tags.length > 1 && tagText(shapes.tag[b.shape]), shapes.location[b.shape] && locationText(shapes.location[b.shape]),
      addressText(b.address)].filter(Boolean).slice(0, 2).join(', '),
    addressText(b.address), b.bytes, total, null)), {count: 0}, total);
};
const locationTitle = (location) =>
  (info.locations[location] ?? []).map(([file, line, name]) => `${file}:${line} ${name}`).join('\n');
)js", html_slot::none},
{R"js(
// ---- the map
const map = byId('map'), scroller = byId('map-scroll'), spacer = byId('map-space'), mapReadout = byId('map-readout');
const {segments, blocks} = model;
const mapped = segments.reduce((sum, s) => sum + s.bytes, 0);
const rowHeight = 22, barHeight = 16, segmentGap = 3, mostMapHeight = 528;
const mapView = {color: 'use', scale: 0, width: 0, labels: 0, starts: new Float64Array(segments.length), rows: 0,
  selected: none, pointer: none};

const usedStreams = () => {
  const bytes = new Map();
  for (let b = 0; b < blocks.count; ++b) {
    if (blocks.use[b] === 2) continue;
    const stream = shapes.stream[blocks.shape[b]];
    bytes.set(stream, (bytes.get(stream) ?? 0) + shapes.bytes[blocks.shape[b]]);
  }
  return [...bytes].sort((a, b) => b[1] - a[1]);
};
const streamsByBytes = usedStreams();
const coloredStreams = streamsByBytes.slice(0, streamsByBytes.length > palette ? palette - 1 : palette).map(([s]) => s);
const slotOfStream = new Map(coloredStreams.map((s, slot) => [s, slot]));
const sizeLimits = [2 ** 12, 2 ** 16, 2 ** 20, 2 ** 24, 2 ** 28, 2 ** 30, Infinity];
const sizeSlot = (bytes) => sizeLimits.findIndex((limit) => bytes <= limit);
const useColor = (use) => use === 0 ? colors.live : use === 1 ? colors.deferred : colors.cached;

// The colour of a block that is not cached. Cached blocks have the colour of the background.
const mapColors = {
  use: (shape, use) => useColor(use),
  size: (shape) => colors.sizes[sizeSlot(shapes.bytes[shape])],
  stream: (shape) => slotColor(slotOfStream.get(shapes.stream[shape]) ?? palette),
  tag: (shape) => slotColor(slotOfTag[shapes.tag[shape]]),
};

const layOutMap = () => {
  const width = scroller.clientWidth;
  mapView.labels = width < 560 ? 0 : 124;
  mapView.width = Math.max(1, width - mapView.labels - 2);
  const gaps = segments.length * segmentGap;
  // The initial scale shows the whole map without scrolling, unless there are too many gaps.
  const rows = 22;
  const natural = mapped / Math.max(mapView.width, mapView.width * rows - gaps);
  const least = 2 ** Math.ceil(Math.log2(Math.max(1, natural)));
  mapView.perPixel = Math.max(1, least * 2 ** -mapView.scale);
  mapView.deepest = Math.max(0, Math.ceil(Math.log2(least / 64)));
  let at = 0;
  segments.forEach((s, i) => {
    mapView.starts[i] = at;
    at += Math.max(1, s.bytes / mapView.perPixel) + segmentGap;
  });
  mapView.rows = Math.max(1, Math.ceil(at / mapView.width));
  const whole = Math.min(mapView.rows * rowHeight, 16e6);
  spacer.style.height = `${whole}px`;
  scroller.style.height = `${Math.min(whole, mostMapHeight) + 2}px`;
  byId('map-scale').textContent = `One row is ${inBytes(mapView.perPixel * mapView.width)}`;
  byId('map-in').disabled = mapView.scale >= mapView.deepest;
  byId('map-out').disabled = mapView.scale <= 0;
};
const segmentAt = (pixel) => {
  let low = 0, high = segments.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (mapView.starts[middle] <= pixel) low = middle; else high = middle - 1;
  }
  return low;
};
const blockIn = (segment, address) => {
  let low = segment.first, high = segment.end - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (blocks.address[middle] <= address) low = middle; else high = middle - 1;
  }
  return segment.end > segment.first ? low : none;
};
const blockAtPixel = (pixel) => {
  if (segments.length === 0) return none;
  const i = segmentAt(pixel), s = segments[i];
  const inside = (pixel - mapView.starts[i]) * mapView.perPixel;
  return inside > s.bytes ? none : blockIn(s, s.address + inside);
};
const pixelOf = (b) => {
  const i = blocks.segment[b];
  return mapView.starts[i] + (blocks.address[b] - segments[i].address) / mapView.perPixel;
};
const widthOf = (b) => shapes.bytes[blocks.shape[b]] / mapView.perPixel;

const topOfRow = (row) => row * rowHeight - scroller.scrollTop;
// Calls `draw(x, y, width)` for each visible row that a range of pixels covers.
const eachRow = (from, to, firstRow, lastRow, draw) => {
  for (let row = Math.max(firstRow, Math.floor(from / mapView.width)); row <= lastRow; ++row) {
    const start = row * mapView.width;
    if (start >= to) break;
    const a = Math.max(from, start), b = Math.min(to, start + mapView.width);
    if (b > a) draw(mapView.labels + a - start, topOfRow(row) + (rowHeight - barHeight) / 2, b - a);
  }
};

const drawMap = () => {
  if (segments.length === 0) return;
  const began = performance.now();
  const width = scroller.clientWidth, height = scroller.clientHeight;
  map.style.height = `${height}px`;
  const pen = fit(map, width, height);
  const firstRow = Math.floor(scroller.scrollTop / rowHeight);
  const lastRow = Math.min(mapView.rows - 1, Math.ceil((scroller.scrollTop + height) / rowHeight));
  const from = firstRow * mapView.width, to = (lastRow + 1) * mapView.width;
  const colorOf = mapColors[mapView.color];
  for (let i = segmentAt(from); i < segments.length && mapView.starts[i] < to; ++i) {
    const s = segments[i], start = mapView.starts[i];
    pen.fillStyle = colors.cached;
    eachRow(start, start + Math.max(1, s.bytes / mapView.perPixel), firstRow, lastRow,
      (x, y, w) => pen.fillRect(x, y, w, barHeight));
    const first = blockIn(s, s.address + Math.max(0, from - start) * mapView.perPixel);
    if (first === none) continue;
    for (let b = first; b < s.end; ++b) {
      const at = pixelOf(b), wide = widthOf(b);
      if (at >= to) break;
      if (blocks.use[b] === 2) continue;
      pen.fillStyle = colorOf(blocks.shape[b], blocks.use[b]);
      // A block of several pixels ends with a gap, which separates it from its neighbour; smaller ones blend, weighted by
      // their bytes.
      eachRow(at, at + (wide > 4 ? wide - 1 : wide), firstRow, lastRow, (x, y, w) => pen.fillRect(x, y, w, barHeight));
    }
  }
  const outline = (b, color) => {
    const at = pixelOf(b);
    pen.strokeStyle = color;
    pen.lineWidth = 2;
    eachRow(at, at + Math.max(3, widthOf(b)), firstRow, lastRow,
      (x, y, w) => pen.strokeRect(x, y - 1, Math.max(w, 2), barHeight + 2));
  };
  if (mapView.pointer !== none) outline(mapView.pointer, colors.soft);
  if (mapView.selected !== none) outline(mapView.selected, colors.ink);
  if (mapView.labels) {
    pen.textAlign = 'right';
    pen.textBaseline = 'middle';
    pen.font = '11px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace';
    pen.fillStyle = colors.soft;
    for (let row = firstRow; row <= lastRow; ++row) {
      const i = segmentAt(row * mapView.width), s = segments[i];
      const inside = Math.min(s.bytes, Math.max(0, row * mapView.width - mapView.starts[i]) * mapView.perPixel);
      pen.fillText(addressText(s.address + Math.floor(inside)), mapView.labels - 10,
        topOfRow(row) + rowHeight / 2);
    }
  }
  map.dataset.drawMs = (performance.now() - began).toFixed(2);
};
const redrawMap = afterFrame(drawMap);

const blockParts = (b) => {
  const shape = blocks.shape[b], use = blocks.use[b], s = segments[blocks.segment[b]];
  const parts = [['', useNames[use]], ['', addressText(blocks.address[b])], ['bytes', inBytes(shapes.bytes[shape])]];
  if (use === 0 && shapes.requested[shape]) parts.push(['requested', inBytes(shapes.requested[shape])]);
  parts.push(['stream', streamText(shapes.stream[shape])]);
  if (use !== 2) {
    if (info.tags.length > 1) parts.push(['tag', brief(tagText(shapes.tag[shape]))]);
    if (shapes.location[shape]) parts.push(['from', brief(locationText(shapes.location[shape]))]);
    parts.push(['since', usesCalls ? `call ${grouped(blocks.time[b])}` : inTime(blocks.time[b])]);
  }
  parts.push(['in', `${s.kind} of ${inBytes(s.bytes)}`]);
  return parts;
};
const showBlock = () => {
  const b = mapView.pointer === none ? mapView.selected : mapView.pointer;
  const parts = b === none ? [['', 'Point at a block, or focus the map and use the arrow keys.']] : blockParts(b);
  mapReadout.replaceChildren(...parts.map(([name, text]) => name === '' ? make('span', {class: 'pair'}, text) :
    make('span', {class: 'pair'}, make('span', {class: 'name'}, name), ' ', text)));
  map.dataset.block = b;
};
const pointedBlock = (event) => {
  const box = map.getBoundingClientRect();
  const x = event.clientX - box.left - mapView.labels, y = event.clientY - box.top + scroller.scrollTop;
  if (x < 0 || x > mapView.width) return none;
  return blockAtPixel(Math.floor(y / rowHeight) * mapView.width + x);
};
const selectBlock = (b) => {
  if (b === none) return;
  mapView.selected = b;
  mapView.pointer = none;
  const y = Math.floor(pixelOf(b) / mapView.width) * rowHeight, room = scroller.clientHeight;
  scroller.scrollTop = Math.max(y + rowHeight - room, Math.min(y, scroller.scrollTop));
  showBlock();
  speak(blockParts(b).map((p) => p.join(' ').trim()).join(', '));
  redrawMap();
};
map.addEventListener('pointermove', (event) => {
  const b = pointedBlock(event);
  if (b === mapView.pointer) return;
  mapView.pointer = b;
  showBlock();
  redrawMap();
});
map.addEventListener('pointerleave', () => {
  mapView.pointer = none;
  showBlock();
  redrawMap();
});
map.addEventListener('click', (event) => selectBlock(pointedBlock(event)));
const selectNear = (b, rows) => {
  const at = pixelOf(b) + Math.min(widthOf(b), mapView.width) / 2 + rows * mapView.width;
  return blockAtPixel(Math.max(0, Math.min(mapView.rows * mapView.width, at)));
};
const scaleMap = (by) => {
  mapView.scale = Math.max(0, Math.min(mapView.deepest, mapView.scale + by));
  layOutMap();
  if (mapView.selected !== none) selectBlock(mapView.selected);
  redrawMap();
};
const mapKeys = {
  ArrowLeft: (b) => Math.max(0, b - 1), ArrowRight: (b) => Math.min(blocks.count - 1, b + 1),
  ArrowUp: (b) => selectNear(b, -1), ArrowDown: (b) => selectNear(b, 1),
  PageUp: (b) => selectNear(b, -10), PageDown: (b) => selectNear(b, 10),
  Home: () => 0, End: () => blocks.count - 1,
};
map.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || blocks.count === 0) return;
  if ('+=-_'.includes(event.key)) {
    event.preventDefault();
    scaleMap('+='.includes(event.key) ? 1 : -1);
  } else if (mapKeys[event.key]) {
    event.preventDefault();
    selectBlock(mapView.selected === none ? 0 : mapKeys[event.key](mapView.selected));
  }
});
scroller.addEventListener('scroll', redrawMap);
byId('map-in').addEventListener('click', () => scaleMap(1));
byId('map-out').addEventListener('click', () => scaleMap(-1));

const showMapLegend = () => {
  const entries = [];
  const entry = (color, text) =>
    entries.push(make('li', {title: text}, make('span', {class: 'key box', color}), brief(text, 40)));
  const sums = [0, 0, 0], counts = [0, 0, 0];
  for (let b = 0; b < blocks.count; ++b) {
    sums[blocks.use[b]] += shapes.bytes[blocks.shape[b]];
    ++counts[blocks.use[b]];
  }
  if (mapView.color === 'use') {
    for (const use of [0, 1]) if (counts[use]) entry(useColor(use), `${useNames[use]} ${inBytes(sums[use])}`);
  } else if (mapView.color === 'size') {
    sizeLimits.forEach((limit, i) => entry(colors.sizes[i],
      limit === Infinity ? `over ${inBytes(sizeLimits[i - 1])}` : `to ${inBytes(limit)}`));
  } else if (mapView.color === 'stream') {
    coloredStreams.forEach((s, slot) => entry(slotColor(slot), `stream ${streamText(s)}`));
    const rest = streamsByBytes.length - coloredStreams.length;
    if (rest > 0) entry(colors.other, counted(rest, 'other stream'));
  } else {
    coloredTags.forEach((tag, slot) => entry(slotColor(slot), tagText(tag)));
    const rest = seenTags.length - coloredTags.length;
    if (rest > 0) entry(colors.other, counted(rest, 'other tag'));
  }
  if (mapped > sums[0] + sums[1]) entry(colors.cached, `cached ${inBytes(mapped - sums[0] - sums[1])}`);
  byId('map-legend').replaceChildren(...entries);
  const elsewhere = info.pool.reserved - mapped;
  byId('map-about').textContent = segments.length === 0 ? 'No memory is held.' :
    `${counted(blocks.count, 'block')} in ${counted(segments.length, 'segment')} of ${inBytes(mapped)}, ` +
    (usesCalls ? `after call ${grouped(info.now)}` : `at ${inTime(info.now)}`) +
    (elsewhere > 0 ? `; ${inBytes(elsewhere)} more is reserved and in no segment here` : '');
  map.dataset.blocks = blocks.count;
};
switches(['color-use', 'color-size', 'color-stream', 'color-tag'], (id) => {
  mapView.color = id.slice('color-'.length);
  showMapLegend();
  redrawMap();
});
)js", html_slot::none},
{R"js(
// ---- tables
// A column: {name, value(row), text(row), number, title(row), color(row)}.
const tables = [];
const makeTable = (id, columns, rows, sortedBy, empty) => {
  const panel = byId(`panel-${id}`);
  const state = {column: sortedBy, down: true, filter: '', shown: 100};
  const status = make('p', {class: 'soft', role: 'status'});
  const search = make('input', {type: 'search', id: `filter-${id}`, placeholder: 'Filter', autocomplete: 'off',
    spellcheck: 'false', on: {input: () => {
      state.filter = search.value.trim().toLowerCase();
      state.shown = 100;
      show();
    }}});
  const heads = columns.map((column, i) => make('th', {scope: 'col', class: column.number ? 'number' : undefined},
    make('button', {type: 'button', class: 'sort', on: {click: () => {
      state.down = state.column === i ? !state.down : !!column.number;
      state.column = i;
      show();
    }}}, column.name, make('span', {class: 'arrow', 'aria-hidden': 'true'}))));
  const body = make('tbody');
  const more = make('button', {type: 'button', on: {click: () => {
    state.shown += 400;
    show();
  }}}, 'Show more');
  let texts = null;  // the text of all cells of each row, filled by the first filter
  const textOf = (row) => columns.map((c) => `${c.text(row)}\n${c.title?.(row) ?? ''}`).join('\n').toLowerCase();
  const show = () => {
    const {value} = columns[state.column];
    let chosen = rows.map((_, i) => i);
    if (state.filter) {
      if (!texts) texts = rows.map(textOf);
      chosen = chosen.filter((i) => texts[i].includes(state.filter));
    }
    const keys = rows.map(value);
    chosen.sort((a, b) => {
      const order = typeof keys[a] === 'string' ? keys[a].localeCompare(keys[b]) : keys[a] - keys[b];
      return (state.down ? -order : order) || a - b;
    });
    body.replaceChildren(...chosen.slice(0, state.shown).map((i) => make('tr', {}, ...columns.map((column, c) => {
      const cell = {class: column.number ? 'number' : undefined, title: column.title?.(rows[i])};
      const key = column.color ? [make('span', {class: 'key box', color: column.color(rows[i])})] : [];
      return c === 0 ? make('th', {scope: 'row', ...cell}, ...key, column.text(rows[i])) :
        make('td', cell, ...key, column.text(rows[i]));
    }))));
    heads.forEach((head, i) => {
      if (i === state.column) head.setAttribute('aria-sort', state.down ? 'descending' : 'ascending');
      else head.removeAttribute('aria-sort');
    });
    const shown = Math.min(chosen.length, state.shown);
    const inAll = chosen.length < rows.length ? ` matching, ${grouped(rows.length)} in all` : '';
    status.textContent = rows.length === 0 ? empty : chosen.length === 0 ? 'Nothing matches.' :
      `${grouped(shown)} of ${grouped(chosen.length)}${inAll}`;
    more.hidden = shown === chosen.length;
  };
  panel.replaceChildren(
    make('div', {class: 'bar'}, make('label', {for: `filter-${id}`, class: 'hidden'}, `Filter ${id}`), search, status),
    make('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': `Table of ${id}`},
      make('table', {}, make('thead', {}, make('tr', {}, ...heads)), body)), more);
  show();
  tables.push(show);
};

const bytesColumn = (name, value) => ({name, value, text: (row) => inBytes(value(row)),
  title: (row) => `${grouped(value(row))} bytes`, number: true});
const countColumn = (name, value) => ({name, value, text: (row) => grouped(value(row)), number: true});

const makeTables = () => {
  const atPeak = model.knowsCalls ? [bytesColumn('At the peak', (row) => row.atPeak)] : [];
  const tags = info.tags.map((tag, i) => ({...tag, i, atPeak: bytesAtPeak[i]}));
  makeTable('tags', [
    {name: 'Tag', value: (t) => tagText(t.i), text: (t) => tagText(t.i), color: (t) => slotColor(slotOfTag[t.i])},
    bytesColumn('Live', (t) => t.bytes), ...atPeak,
    bytesColumn('Its own peak', (t) => t.peak), bytesColumn('Requested', (t) => t.requested),
    countColumn('Blocks', (t) => t.blocks), countColumn('Allocations', (t) => t.allocations),
  ], tags, 1 + atPeak.length, 'No tags.');

  const live = [];
  for (let b = 0; b < blocks.count; ++b) if (blocks.use[b] !== 2) live.push(b);
  const shapeOf = (b) => blocks.shape[b];
  makeTable('blocks', [
    {name: 'Address', value: (b) => blocks.address[b], text: (b) => addressText(blocks.address[b])},
    bytesColumn('Bytes', (b) => shapes.bytes[shapeOf(b)]),
    bytesColumn('Requested', (b) => shapes.requested[shapeOf(b)]),
    {name: 'Use', value: (b) => useNames[blocks.use[b]], text: (b) => useNames[blocks.use[b]]},
    {name: 'Stream', value: (b) => shapes.stream[shapeOf(b)], text: (b) => streamText(shapes.stream[shapeOf(b)]),
      number: true},
    {name: 'Tag', value: (b) => tagText(shapes.tag[shapeOf(b)]), text: (b) => tagText(shapes.tag[shapeOf(b)])},
    {name: 'From', value: (b) => locationText(shapes.location[shapeOf(b)]), text: (b) => locationText(shapes.location[shapeOf(b)]),
      title: (b) => locationTitle(shapes.location[shapeOf(b)]) || 'location unknown'},
    {name: usesCalls ? 'Since call' : 'Since', value: (b) => blocks.time[b], number: true,
      text: (b) => usesCalls ? grouped(blocks.time[b]) : inTime(blocks.time[b])},
  ], live, 1, 'No live blocks.');

  const locations = info.locations.map((_, i) => ({i, bytes: 0, blocks: 0, atPeak: 0}));
  for (const b of live) {
    const entry = locations[shapes.location[shapeOf(b)]];
    if (!entry || blocks.use[b] !== 0) continue;
    entry.bytes += shapes.bytes[shapeOf(b)];
    ++entry.blocks;
  }
  model.eachLive(model.peak, (shape) => {
    if (locations[shapes.location[shape]]) locations[shapes.location[shape]].atPeak += shapes.bytes[shape];
  });
  makeTable('locations', [
    {name: 'Location', value: (p) => locationText(p.i), text: (p) => locationText(p.i),
      title: (p) => locationTitle(p.i) || 'location unknown'},
    bytesColumn('Live', (p) => p.bytes), ...atPeak,
    countColumn('Blocks', (p) => p.blocks),
  ], locations.filter((p) => p.bytes || p.atPeak || p.i), 1 + atPeak.length, 'No locations were recorded.');

  makeTable('segments', [
    {name: 'Address', value: (s) => s.address, text: (s) => addressText(s.address)},
    bytesColumn('Bytes', (s) => s.bytes), bytesColumn('Live', (s) => s.live),
    {name: 'Filled', value: (s) => s.bytes ? s.live / s.bytes : 0, text: (s) => percent(s.live, s.bytes), number: true},
    countColumn('Live blocks', (s) => s.liveBlocks), countColumn('Handles', (s) => s.handles),
    {name: 'Kind', value: (s) => s.kind, text: (s) => s.small ? `${s.kind}, small blocks` : s.kind},
    {name: 'Stream', value: (s) => s.stream, text: (s) => streamText(s.stream), number: true},
  ], segments, 1, 'No segments.');

  const meanings = {
    live: ['Live', 'bytes handed out, rounded to blocks'], live_blocks: ['Live blocks', ''],
    reserved: ['Reserved', 'bytes held from the driver'], reserved_peak: ['Reserved, peak', ''],
    reserved_small: ['Reserved for small blocks', 'blocks up to 1 MiB'],
    reserved_large: ['Reserved for large blocks', ''], cached: ['Cached', 'reserved, not handed out'],
    deferred: ['Deferred', 'freed, but another stream may still use it'], deferred_blocks: ['Deferred blocks', ''],
    largest_free_range: ['Largest free range', 'the largest block that needs no driver call'],
    free_blocks: ['Free ranges', ''],
    inactive_split_bytes: ['Free beside live', 'free parts of handles in use; PyTorch: inactive split'],
    reserved_total: ['Reserved in all', 'ever taken from the driver'], released_total: ['Released in all', 'ever given back'],
    handles: ['Handles', 'physical handles, or segments'], handles_peak: ['Handles, peak', ''],
    creates: ['Handles made', ''], destroys: ['Handles destroyed', ''], maps: ['Maps', ''], unmaps: ['Unmaps', ''],
    remaps: ['Remaps', 'handles moved under another address'],
    alloc_retries: ['Retries', 'the driver refused, and the cache was searched again'],
    ooms: ['Out of memory', 'requests refused'], host_waits: ['Waits of the host', ''],
    device_waits: ['Waits of streams', ''], host_bytes: ['Bookkeeping', 'host memory of the pool itself'],
  };
  const numbers = [...new Set([...Object.keys(meanings), ...Object.keys(info.pool)])].map((key, order) => {
    const [name, about] = meanings[key] || [key.replaceAll('_', ' '), ''];
    return {name, value: info.pool[key], about, count: info.counts.includes(key), order};
  });
  makeTable('numbers', [
    {name: 'Number', value: (r) => -r.order, text: (r) => r.name},
    {name: 'Value', value: (r) => r.value, number: true, text: (r) => r.count ? grouped(r.value) : inBytes(r.value),
      title: (r) => grouped(r.value) + (r.count ? '' : ' bytes')},
    {name: 'Meaning', value: (r) => r.about, text: (r) => r.about},
  ], numbers, 0, '');
};

const tabs = [...document.querySelectorAll('[role=tab]')];
const showTab = (tab) => {
  for (const other of tabs) {
    const on = other === tab;
    other.setAttribute('aria-selected', String(on));
    other.tabIndex = on ? 0 : -1;
    byId(other.getAttribute('aria-controls')).hidden = !on;
  }
};
tabs.forEach((tab, i) => {
  tab.addEventListener('click', () => showTab(tab));
  tab.addEventListener('keydown', (event) => {
    const to = {ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = tabs[(to + tabs.length) % tabs.length];
    showTab(next);
    next.focus();
  });
});
)js", html_slot::none},
{R"js(
// ---- the numbers on top
const tile = (name, value, about, exact) => make('div', {}, make('dt', {}, name),
  make('dd', {class: 'value', title: exact === undefined ? undefined : `${grouped(exact)} bytes`}, value),
  make('dd', {class: 'soft'}, about));
const showTop = () => {
  byId('title').textContent = info.title;
  const about = [`device ${info.device}`];
  const began = new Date(info.started / 1e6);
  if (info.started && !isNaN(began)) {
    about.push(`recorded from ${began.toISOString().slice(0, 19).replace('T', ' ')} UTC`);
  }
  about.push(counted(model.calls[model.n] - model.calls[0], 'call'));
  if (info.forgotten) about.push(`${counted(info.forgotten, 'earlier one')} not kept`);
  byId('about').textContent = about.join(' · ');
  const peakLive = model.live[model.peak], live = model.live[model.known], requested = model.requested[model.known];
  const reservedPeak = Math.max(info.pool.reserved_peak, model.reservedNow);
  const occupied = Math.max(0, live - requested);
  const refusals = Math.max(info.pool.ooms, events.kind.reduce((n, kind) => n + (kind === refused), 0));
  const tiles = [
    model.knowsCalls ? tile('Peak live', inBytes(peakLive), momentText(timeOf(model.peak), model.peak), peakLive) :
      tile('Peak live', '–', 'no calls were recorded'),
    tile('Live at the snapshot', inBytes(live), counted(blocks.use.reduce((n, use) => n + (use === 0), 0), 'block') +
      (usesCalls ? `, call ${grouped(info.now)}` : ''), live),
    tile('Reserved', inBytes(model.reservedNow), `at most ${inBytes(reservedPeak)}`, model.reservedNow),
    tile('In use', percent(live, model.reservedNow), 'live of reserved'),
    tile('Rounding', inBytes(occupied), `${percent(occupied, live)} of live`, occupied),
    tile('Refused', grouped(refusals), refusals === 1 ? 'request' : 'requests'),
  ];
  byId('tiles').replaceChildren(...tiles);
  byId('tiles').dataset.peakBytes = peakLive;
  byId('tiles').dataset.liveBytes = live;
  if (!model.knowsCalls) {
    byId('chart-note').textContent = 'No calls were recorded, so there is no curve of live bytes. To record them, add a history ' +
      'above the pool: pool | tarn::with_history{}';
  } else if (info.forgotten) {
    byId('chart-note').textContent = `The record begins after ${counted(info.forgotten, 'earlier call')}: ` +
      'a higher peak may lie before it.';
  }
};

// ---- light and dark
const darkSystem = matchMedia('(prefers-color-scheme: dark)');
const recolor = () => {
  colors = colorsOf();
  overviewColumns = null;
  showLegend();
  showMapLegend();
  showMoment();
  tables.forEach((show) => show());
  redrawChart();
  redrawMap();
};
const remember = (theme) => {
  try {
    localStorage.setItem('tarn-theme', theme);
  } catch {
    // A page opened from a file may have no storage. The choice then lasts until the page is closed.
  }
};
const setTheme = (theme) => {
  if (theme === 'auto') document.documentElement.removeAttribute('data-theme');
  else document.documentElement.setAttribute('data-theme', theme);
  for (const name of ['auto', 'light', 'dark']) pressed(byId(`theme-${name}`), name === theme);
};
for (const theme of ['auto', 'light', 'dark']) {
  byId(`theme-${theme}`).addEventListener('click', () => {
    setTheme(theme);
    remember(theme);
    recolor();
  });
}
darkSystem.addEventListener('change', recolor);
try {
  const theme = localStorage.getItem('tarn-theme');
  if (theme === 'light' || theme === 'dark') setTheme(theme);
} catch {
  // No storage: see remember().
}
colors = colorsOf();

// ---- start
byId('axis').hidden = usesCalls || !model.knowsCalls;
for (const id of ['live-shown', 'curves-shown', 'chart-keys']) byId(id).hidden = !model.knowsCalls;
for (const id of ['zoom', 'chart-readout', 'chart', 'overview', 'chart-legend'])
  byId(id).hidden = !model.knowsCalls && !model.knowsReserved;
pressed(byId('axis-time'), view.axis === 'time');
pressed(byId('axis-calls'), view.axis === 'calls');
byId('show-tags').disabled = info.tags.length < 2;
byId('color-tag').disabled = info.tags.length < 2;
byId('locations-part').hidden = info.locations.length < 2;
const hasReserved = model.knowsReserved || model.reservedNow > 0;
byId('show-reserved').hidden = !hasReserved;
// If far more bytes are reserved than were ever live, their curve would flatten the live one: it is initially off.
view.reserved = hasReserved &&
  (!model.knowsCalls || Math.max(info.pool.reserved_peak, model.reservedNow) < 8 * model.live[model.peak]);
pressed(byId('show-reserved'), view.reserved);
byId('map-view').hidden = segments.length === 0;
showTop();
[view.from, view.to] = domain();
showLegend();
showMoment();
showReadout();
showMapLegend();
showBlock();
makeTables();
showTab(tabs[0]);
layOutMap();
drawChart();
drawMap();
let resizedWidth = 0;
new ResizeObserver(() => {
  redrawChart();
  if (scroller.clientWidth === resizedWidth) return;
  resizedWidth = scroller.clientWidth;
  layOutMap();
  redrawMap();
}).observe(byId('main'));
document.documentElement.dataset.ready = performance.now().toFixed(0);
)js", html_slot::none},
{R"html(})();
</script>
</body>
</html>
)html", html_slot::none},
};
// clang-format on

}  // namespace TARN_NAMESPACE::detail

namespace TARN_NAMESPACE {

namespace detail {

// The events and blocks of a snapshot as numbers for the HTML page (the reader is
// timeline/model.js).
//
//   shapes   combinations shared by many blocks, each written once: bytes, requested, stream, tag, location
//   events   a head, what << 3 | code, then: for an allocation (what: its shape) the address and time differences; for the free
//            of a listed allocation (what: the number of events since) the time difference
//   blocks   per segment: address difference, bytes, kind, handles, stream, number of blocks; per block a head,
//            shape << 3 | gap << 2 | use, the size of the gap before it, if any, and the time difference
//
// Addresses are relative to the lowest one, in units of their common alignment; 0 means none.
//
// Encodes numbers for the page: LEB128 (seven bits per byte, low bits first, the top bit set if more bytes
// follow) in base64, which is plain text in HTML. An event takes 4 to 8 characters; as JSON it would take
// 100.

/// Writes numbers to a stream incrementally with a 4 KiB buffer. Call finish() last.
class html_numbers {
 public:
  explicit html_numbers(std::ostream& out) noexcept : out_(out) {}
  html_numbers& operator=(html_numbers&&) = delete;

  void add(std::uint64_t number) {
    for (; number > 127; number >>= 7U) add_byte(static_cast<std::uint8_t>(number | 128U));
    add_byte(static_cast<std::uint8_t>(number));
  }
  /// Writes the signed difference of two numbers in zigzag encoding: small if they are close.
  void add_step(std::uint64_t from, std::uint64_t to) {
    add(to >= from ? (to - from) << 1U : ((from - to) << 1U) - 1);
  }
  void finish() {
    if (bytes_ != 0) {
      std::size_t const real = bytes_ + 1;
      while (bytes_ != 0) add_byte(0);
      for (std::size_t i = real; i < 4; ++i) text_[size_ - 4 + i] = '=';
    }
    flush();
  }

 private:
  void add_byte(std::uint8_t byte) {
    group_ = group_ << 8U | byte;
    if (++bytes_ < 3) return;
    constexpr char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (size_ == sizeof text_) flush();
    for (unsigned shift = 24; shift != 0;) {
      shift -= 6;
      text_[size_++] = letters[group_ >> shift & 63U];
    }
    group_ = 0;
    bytes_ = 0;
  }
  void flush() {
    out_.write(text_, static_cast<std::streamsize>(size_));
    size_ = 0;
  }

  std::ostream& out_;
  std::uint32_t group_ = 0;
  std::size_t bytes_ = 0;
  std::size_t size_ = 0;
  char text_[4096]{};
};

/// The properties that many blocks have in common.
struct html_shape {
  std::uint64_t bytes = 0;
  std::uint64_t requested = 0;
  std::uint32_t stream = 0;  ///< index into html_data::streams()
  std::uint32_t tag = 0;
  std::uint32_t location = 0;
  friend bool operator==(html_shape const&, html_shape const&) = default;
};

struct html_shape_hash {
  std::size_t operator()(html_shape const& s) const noexcept {
    std::size_t h = 0;
    for (std::uint64_t const part :
         {s.bytes, s.requested, std::uint64_t{s.stream}, std::uint64_t{s.tag}, std::uint64_t{s.location}}) {
      h = (h ^ static_cast<std::size_t>(part)) * 0x9E3779B97F4A7C15U;
      h ^= h >> 29U;
    }
    return h;
  }
};

/// Writes the parts of one snapshot. Write events and blocks first: they collect the shapes and streams.
class html_data {
 public:
  explicit html_data(snapshot const& of) : of_(of), history_(of) {
    for_each_address(
        [&](std::uintptr_t address) { base_ = base_ == 0 ? address : (std::min)(base_, address); });
    std::uintptr_t bits = 0;
    for_each_address([&](std::uintptr_t address) { bits |= address - base_; });
    shift_ = bits == 0 ? 0 : static_cast<unsigned>(std::countr_zero(bits));
  }

  /// The kind of an event in its head, three bits.
  enum class code : std::uint8_t { allocate, free, free_elsewhere, free_unlisted, refused, reserve, release };

  void write_events(std::ostream& out) {
    html_numbers numbers(out);
    // address to the index, among those written, and the stream of the allocating event
    std::unordered_map<std::uintptr_t, std::pair<std::size_t, stream_id>> live;
    std::uint64_t address = 0;
    std::uint64_t time = 0;
    for (std::size_t i = 0; i < of_.events.size(); ++i) {
      if (history_.contradicts(i)) continue;
      snapshot_event const& e = of_.events[i];
      auto const head = [&](std::uint64_t what, code c) {
        numbers.add(what << 3U | static_cast<std::uint64_t>(c));
      };
      auto const found = e.kind == snapshot_event_kind::free ? live.find(e.address) : live.end();
      if (found != live.end()) {
        auto const [index, stream] = found->second;
        bool const same = stream == e.stream;
        head(events_ - index, same ? code::free : code::free_elsewhere);
        if (!same) numbers.add(stream_index(e.stream));
        live.erase(found);
      } else {
        head(shape_index(e.bytes, e.requested, e.stream, e.tag, e.location), code_of(e.kind));
        if (e.kind == snapshot_event_kind::allocate) live[e.address] = {events_, e.stream};
        numbers.add_step(address, units(e.address));
        address = units(e.address);
      }
      numbers.add_step(time, e.time_ns);
      time = e.time_ns;
      ++events_;
    }
    numbers.finish();
  }

  void write_blocks(std::ostream& out) {
    html_numbers numbers(out);
    std::uint64_t address = 0;
    std::uint64_t time = 0;
    for (snapshot_segment const& s : of_.segments) {
      numbers.add_step(address, units(s.address));
      address = units(s.address);
      numbers.add(s.bytes);
      numbers.add(static_cast<std::uint64_t>(s.kind) | (s.is_small ? 4U : 0U));
      numbers.add(s.handles);
      numbers.add(stream_index(s.stream));
      numbers.add(s.blocks.size());
      std::uintptr_t expected = s.address;
      for (snapshot_block const& b : s.blocks) {
        bool const gap = b.address != expected;
        numbers.add(std::uint64_t{shape_index(b.bytes, b.requested, b.stream, b.tag, b.location)} << 3U |
                    (gap ? 4U : 0U) | static_cast<std::uint64_t>(b.use));
        if (gap) numbers.add_step(expected, b.address);
        numbers.add_step(time, b.time_ns);
        time = b.time_ns;
        expected = b.address + b.bytes;
      }
    }
    numbers.finish();
  }

  void write_shapes(std::ostream& out) const {
    html_numbers numbers(out);
    for (html_shape const& s : shapes_) {
      for (std::uint64_t const part : {s.bytes, s.requested}) numbers.add(part);
      for (std::uint32_t const part : {s.stream, s.tag, s.location}) numbers.add(part);
    }
    numbers.finish();
  }

  /// Number of events written.
  [[nodiscard]] std::size_t events() const noexcept { return events_; }
  [[nodiscard]] std::size_t shapes() const noexcept { return shapes_.size(); }
  [[nodiscard]] std::vector<stream_id> const& streams() const noexcept { return streams_; }
  [[nodiscard]] std::uintptr_t base() const noexcept { return base_; }
  [[nodiscard]] unsigned shift() const noexcept { return shift_; }

 private:
  template <class F>
  void for_each_address(F f) const {
    for (snapshot_event const& e : of_.events) {
      if (e.address != 0) f(e.address);
    }
    for (snapshot_segment const& s : of_.segments) {
      if (s.address != 0) f(s.address);
    }
  }
  [[nodiscard]] std::uint64_t units(std::uintptr_t address) const noexcept {
    return address == 0 ? 0 : ((address - base_) >> shift_) + 1;
  }
  static code code_of(snapshot_event_kind kind) noexcept {
    constexpr code codes[] = {code::allocate, code::free_unlisted, code::refused, code::reserve,
                              code::release};
    return codes[static_cast<std::size_t>(kind)];
  }
  std::uint32_t stream_index(stream_id id) {
    auto const [at, added] = stream_at_.try_emplace(id, static_cast<std::uint32_t>(streams_.size()));
    if (added) streams_.push_back(id);
    return at->second;
  }
  std::uint32_t shape_index(std::uint64_t bytes, std::uint64_t requested, stream_id stream, std::uint32_t tag,
                            std::uint32_t location) {
    // An out-of-range index must not break the page: it becomes 0, "unknown".
    html_shape const shape{bytes, requested, stream_index(stream), tag < of_.tags.size() ? tag : 0,
                           location < of_.locations.size() ? location : 0};
    auto const [at, added] = shape_at_.try_emplace(shape, static_cast<std::uint32_t>(shapes_.size()));
    if (added) shapes_.push_back(shape);
    return at->second;
  }

  snapshot const& of_;
  viewer_history history_;
  std::size_t events_ = 0;
  std::uintptr_t base_ = 0;
  unsigned shift_ = 0;
  std::vector<html_shape> shapes_;
  std::unordered_map<html_shape, std::uint32_t, html_shape_hash> shape_at_;
  std::vector<stream_id> streams_;
  std::unordered_map<stream_id, std::uint32_t> stream_at_;
};

}  // namespace detail

/// The unit of the times in a snapshot.
enum class time_axis : std::uint8_t {
  nanoseconds,  ///< as a watched pool records them
  calls         ///< the number of the call, as in a replayed trace
};

struct timeline_html_options {
  time_axis time = time_axis::nanoseconds;
};

namespace detail {

/// Writes everything except the columns of numbers, as JSON.
inline void write_html_info(std::ostream& out, snapshot const& s, html_data const& data, time_axis time) {
  json_text json(out, json_in::script);
  json.begin_object().field("format", 1).field("title", s.title).field("device", std::to_string(s.device));
  json.field("clock", time == time_axis::calls ? "calls" : "time");
  // Addresses and stream identities may need more than the 53 bits of a JavaScript number, so they are text.
  json.field("base", std::to_string(data.base())).field("nullStream", std::to_string(s.null_stream));
  json.field("shift", data.shift()).field("started", s.started_ns).field("now", s.now_ns);
  json.field("events", data.events()).field("forgotten", s.forgotten_events);
  json.field("segments", s.segments.size()).field("shapes", data.shapes());
  json.key("streams").begin_array();
  for (stream_id const id : data.streams()) json.text(std::to_string(id));
  json.end_array().key("tags").begin_array();
  for (history_tag const& t : s.tags) {
    json.begin_object().field("name", t.name).field("bytes", t.bytes).field("peak", t.peak_bytes);
    json.field("requested", t.requested).field("blocks", t.blocks).field("allocations", t.allocations);
    json.end_object();
  }
  json.end_array().key("locations").begin_array();
  for (auto const& frames : s.locations) {
    json.begin_array();
    for (history_frame const& f : frames) {
      json.begin_array().text(f.file).number(f.line).text(f.function).end_array();
    }
    json.end_array();
  }
  json.end_array().key("counts").begin_array();
  for (pool_number const& n : pool_numbers) json.text(n.unit == number_unit::count ? n.name : "");
  json.end_array().key("pool").begin_object().field("reserved_small", s.pool.smaller.reserved.current);
  json.field("reserved_large", s.pool.larger.reserved.current);
  for (pool_number const& n : pool_numbers) json.field(n.name, s.pool.*n.value);
  json.end_object().end_object().flush();
}

/// Appends text for an HTML element that contains only text, such as a title. @throws std::bad_alloc
inline void add_html_text(std::string& to, std::string_view text) {
  for (char const c : as_utf8(text)) {
    if (c == '<') {
      to += "&lt;";
    } else if (c == '>') {
      to += "&gt;";
    } else if (c == '&') {
      to += "&amp;";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      to += "\xEF\xBF\xBD";
    } else {
      to += c;
    }
  }
}

}  // namespace detail

/// Writes a page that a browser opens from a file, without a network: some 80 KB, and 4 to 11 bytes per
/// event. The curves pass through what is live at `now_ns`: earlier events are undone from there, later ones
/// applied. An allocation or a free that contradicts what is live then is omitted: see viewer_history.hpp.
/// Without recorded calls (see with_history) there is no curve of live bytes, and no
/// peak.
/// @param out  its state shows whether everything was written: check it afterwards
/// @throws std::bad_alloc, and what `out` throws if its exceptions are enabled; part of the page has then
/// been written Only reads `s`. O(events + blocks), 1,000,000 events in some 0.6 s; besides the snapshot it
/// uses a few words for each block that is live at a time and each distinct (bytes, requested, stream, tag,
/// location).
inline void write_timeline_html(std::ostream& out, snapshot const& s, timeline_html_options options = {}) {
  std::string title;
  detail::add_html_text(title, s.title);
  detail::html_data data(s);
  for (detail::html_part const& part : detail::html_page) {
    out << part.text;
    if (part.then == detail::html_slot::title) out << title;
    if (part.then == detail::html_slot::events) data.write_events(out);
    if (part.then == detail::html_slot::blocks) data.write_blocks(out);
    if (part.then == detail::html_slot::shapes) data.write_shapes(out);
    if (part.then == detail::html_slot::info) detail::write_html_info(out, s, data, options.time);
  }
}

/// Writes the page to a file beside `path`, which then replaces an existing one.
/// @throws file_error  the file cannot be created or not completely written; an existing file is as it was
inline void save_timeline_html(snapshot const& s, std::string const& path, timeline_html_options options = {},
                               source_location where = source_location::current()) {
  detail::called_from(where, [&] {
    detail::write_file(path, "the page", [&](std::ostream& file) { write_timeline_html(file, s, options); });
  });
}
/// Saves the page of take_snapshot(memory).
template <has_driver Resource>
void save_timeline_html(Resource memory, std::string const& path, timeline_html_options options = {},
                        source_location where = source_location::current()) {
  save_timeline_html(take_snapshot(memory), path, options, where);
}

}  // namespace TARN_NAMESPACE
