// SPDX-License-Identifier: Apache-2.0
#pragma once
// traced: writes every call to a file, a trace with which tarn_replay measures any pool. `tracked` counts
// calls, `logged` passes them to a hook, `tagged` names them.

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tarn/core/address_map.hpp"
#include "tarn/core/at_fork.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace TARN_NAMESPACE {

// The trace format: one line per event, readable by people and by tarn_replay.
//
//   a <id> <bytes> <stream>   allocate: requested bytes; stream is a number, 0 the first one seen
//   f <id>                    free
//   # ...                     a comment
//

/// A line that is not an event. Reports the line number and the reason.
class trace_error : public detail::error_of<std::runtime_error, 512> {
 public:
  trace_error(std::uint64_t line, std::string_view reason) : line_(line) {
    begin_ = text_.add("line ").add_number(line).add(": ").size();
    text_.add(reason);
  }
  [[nodiscard]] std::uint64_t line() const noexcept { return line_; }
  /// What is wrong with the line, without its number.
  [[nodiscard]] std::string_view reason() const noexcept { return std::string_view(what()).substr(begin_); }

 private:
  std::uint64_t line_;
  std::size_t begin_ = 0;  ///< of the reason in the text
};

/// Streams that a trace can distinguish, including the default one. The limit of `traced` and of tarn_replay.
inline constexpr std::uint32_t most_trace_streams = 65535;

enum class trace_event_kind : std::uint8_t { comment, allocate, free };

struct trace_event {
  trace_event_kind kind = trace_event_kind::comment;
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;   ///< allocate only
  std::uint64_t stream = 0;  ///< allocate only
};

/// Reads one line, without its line feed. Blank lines are comments.
/// @param number  of the line, for the error
/// @throws trace_error  anything else, including numbers that do not fit and extra words. O(length)
[[nodiscard]] inline trace_event parse_trace_line(std::string_view line, std::uint64_t number) {
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t'))
    line.remove_suffix(1);
  auto const skip_blanks = [&] {
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
  };
  auto const read = [&](auto& value, std::string_view what) {
    skip_blanks();
    using number_type = std::remove_reference_t<decltype(value)>;
    constexpr auto most = static_cast<number_type>(-1);
    message<256> reason;
    if (line.empty() || line.front() < '0' || line.front() > '9')
      throw trace_error(number, reason.add(what).add(" is missing or not a number").view());
    for (value = 0; !line.empty() && line.front() >= '0' && line.front() <= '9'; line.remove_prefix(1)) {
      auto const digit = static_cast<number_type>(line.front() - '0');
      if (value > most / 10 || value * 10 > most - digit) {
        throw trace_error(number, reason.add(what).add(" is too large").view());
      }
      value = value * 10 + digit;
    }
    if (!line.empty() && line.front() != ' ' && line.front() != '\t') {
      throw trace_error(number, reason.add(what).add(" is not a number").view());
    }
  };
  trace_event event;
  skip_blanks();
  if (line.empty() || line.front() == '#') return event;
  char const letter = line.front();
  if ((letter != 'a' && letter != 'f') || (line.size() > 1 && line[1] != ' ' && line[1] != '\t')) {
    throw trace_error(number, "no event; expected 'a <id> <bytes> <stream>', 'f <id>' or '# comment'");
  }
  line.remove_prefix(1);
  event.kind = letter == 'a' ? trace_event_kind::allocate : trace_event_kind::free;
  read(event.id, "the id");
  if (event.kind == trace_event_kind::allocate) {
    read(event.bytes, "the size");
    read(event.stream, "the stream");
  }
  if (!line.empty()) throw trace_error(number, "too many words");
  return event;
}

/// Formats one event as a line, including the line feed.
[[nodiscard]] inline message<72> format_trace_line(trace_event const& event) noexcept {
  message<72> line;
  if (event.kind == trace_event_kind::allocate) {
    line.add("a ").add_number(event.id).add(" ").add_number(event.bytes).add(" ");
    line.add_number(event.stream);
  } else if (event.kind == trace_event_kind::free) {
    line.add("f ").add_number(event.id);
  } else {
    line.add("#");
  }
  line.add("\n");
  return line;
}

template <class Upstream>
class traced_layer;

/// Records to a newly created file of that name, or to an open file, which the caller closes.
struct traced {
  char const* path = nullptr;
  std::FILE* file = nullptr;

  source_location where;  ///< for errors

  constexpr explicit traced(char const* name, source_location at = source_location::current()) noexcept
      : path(name), where(at) {}
  constexpr explicit traced(std::FILE* open, source_location at = source_location::current()) noexcept
      : file(open), where(at) {}

  template <class Upstream>
  using layer = traced_layer<Upstream>;
};

/// Writes `a id bytes stream` with requested bytes and `f id`, in an order that happened: an address that is
/// freed and handed out again is never live twice in the trace. One mutex around the record, none around the
/// upstream. Costs a hash lookup and a buffered write per call; write errors are reported once on standard
/// error and end the recording, never the program. fork() writes what is buffered; the child records nothing.
/// Up to 65,533 streams besides the default one have numbers
/// of their own; further ones share one number, so that every trace can be replayed.
template <class Upstream>
class traced_layer : public resource_adaptor<traced_layer<Upstream>, Upstream> {
  using base = resource_adaptor<traced_layer<Upstream>, Upstream>;

 public:
  /// @throws file_error  the file cannot be created
  traced_layer(Upstream upstream, traced const& options)
      : base(std::move(upstream)), file_(options.file), owned_(options.file == nullptr) {
    if (owned_ && options.path == nullptr)
      throw detail::at(options.where, file_error("(null)", "the trace needs a path or an open file", 0));
    if (owned_) file_ = std::fopen(options.path, "w");
    if (file_ == nullptr)
      throw detail::at(options.where,
                       file_error(options.path, "the trace cannot be written; check the path", errno));
    put("# a <id> <bytes> <stream> | f <id>\n");
  }
  ~traced_layer() {
    (void)flush();
    std::FILE* file = nullptr;
    {
      detail::scoped_lock const guard(mutex_);  // another thread may fork
      file = detail::exchange(file_, nullptr);
    }
    if (file != nullptr && owned_ && std::fclose(file) != 0) complain();
  }

  void* around_allocate(request const& r, auto const& next) {
    void* const p = next.allocate(r);
    if (p == nullptr) return p;
    try {
      note_allocation(address_of(p), r.bytes, key_of(r.stream));
    } catch (...) {
      next.deallocate(r, p);
      throw;
    }
    return p;
  }
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    note_free(address_of(p));
    next.deallocate(r, p);
  }

  /// Writes that the block was freed and allocated again, longer.
  [[nodiscard]] bool around_extend(request const& r, void* p, std::size_t more, auto const& next) {
    std::uint64_t const key = key_of(r.stream);
    {
      detail::scoped_lock const guard(mutex_);
      (void)number_of(key);  // so that what follows needs no host memory
    }
    if (!next.extend(r, p, more)) return false;
    detail::scoped_lock const guard(mutex_);
    std::uintptr_t const address = address_of(p);
    if (live_.find(address) != 0) begin(address, r.bytes + more, number_of(key));
    return true;
  }

  /// Writes what is buffered; returns false if that failed, now or before.
  bool flush() noexcept {
    detail::scoped_lock const guard(mutex_);
    if (file_ != nullptr && std::fflush(file_) != 0) complain();
    return file_ != nullptr;
  }

 private:
  static constexpr std::uint64_t default_key = 0;

  [[nodiscard]] std::uintptr_t address_of(void* p) noexcept {
    return reinterpret_cast<std::uintptr_t>(detail::block_address_of(this->upstream(), p));
  }
  /// The stream's identity, or its handle if the driver does not report one.
  [[nodiscard]] std::uint64_t key_of(stream_ref stream) const noexcept {
    stream_id id = stream.id();
    if (stream.handle() == nullptr && id == stream_ref::unknown_id) return default_key;
    if (id == stream_ref::unknown_id && !detail::identify_beside_captures(this->driver(), stream, id).ok()) {
      id = reinterpret_cast<std::uintptr_t>(stream.handle());
    }
    stream_id null_id = 0;
    return this->driver().identify(stream_ref{}, null_id).ok() && null_id == id ? default_key : id;
  }

  /// @throws std::bad_alloc, nothing is recorded
  void note_allocation(std::uintptr_t address, std::size_t bytes, std::uint64_t key) {
    detail::scoped_lock const guard(mutex_);
    std::uint32_t const stream = number_of(key);
    live_.make_room(1);
    begin(address, bytes, stream);  // handed out again without a free through this layer: it was freed below
  }
  /// Writes the free of what was live at the address, if anything was, and the block.
  void begin(std::uintptr_t address, std::size_t bytes, std::uint32_t stream) noexcept {
    end(address);
    live_.insert(address, next_id_);
    put(format_trace_line({trace_event_kind::allocate, next_id_, bytes, stream}).view());
    ++next_id_;
  }
  void note_free(std::uintptr_t address) noexcept {
    detail::scoped_lock const guard(mutex_);
    end(address);  // the layers below report misuse
  }
  /// Writes the free of a live block.
  void end(std::uintptr_t address) noexcept {
    if (std::uint64_t const id = live_.erase(address); id != 0)
      put(format_trace_line({trace_event_kind::free, id, 0, 0}).view());
  }
  /// Streams are numbered from 1 in the order of their first call. The last number of the format stands for
  /// all later streams: a program may create more streams than can be replayed. @throws std::bad_alloc
  [[nodiscard]] std::uint32_t number_of(std::uint64_t key) {
    if (key == default_key) return 0;
    if (std::uint32_t const known = streams_.find(key); known != 0) return known;
    constexpr std::uint32_t last = most_trace_streams - 1;
    if (streams_.size() == last - 1) {
      if (!detail::exchange(streams_are_shared_, true)) put("# all further streams share the last number\n");
      return last;
    }
    streams_.make_room(1);
    auto const number = static_cast<std::uint32_t>(streams_.size() + 1);
    streams_.insert(key, number);
    return number;
  }
  void put(std::string_view text) noexcept {
    if (file_ != nullptr && std::fwrite(text.data(), 1, text.size(), file_) != text.size()) complain();
  }
  void complain() noexcept {
    std::fputs("tarn: writing the trace failed; recording stopped\n", stderr);
    if (owned_ && file_ != nullptr) (void)std::fclose(file_);
    file_ = nullptr;
  }

  /// A child has copies of the buffer and of the place in the file. Does not wait for another user of the
  /// file.
  static bool write_before_fork(void* self) noexcept {
    std::FILE* const file = static_cast<traced_layer*>(self)->file_;
    if (file == nullptr) return true;
    if (::ftrylockfile(file) != 0) return false;
    (void)std::fflush(file);
    ::funlockfile(file);
    return true;
  }
  static void end_in_child(void* self, detail::fork_side side) noexcept {
    if (side == detail::fork_side::child) static_cast<traced_layer*>(self)->file_ = nullptr;
  }

  detail::fork_mutex mutex_;
  std::FILE* file_;
  bool owned_;
  bool streams_are_shared_ = false;  ///< written to the trace once
  std::uint64_t next_id_ = 1;
  detail::address_map<std::uint64_t> live_;     ///< the id of each live block
  detail::address_map<std::uint32_t> streams_;  ///< the number of each stream except the default one
  detail::at_fork member_{this, &write_before_fork, &end_in_child};
};

}  // namespace TARN_NAMESPACE
