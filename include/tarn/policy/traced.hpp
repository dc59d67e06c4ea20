// SPDX-License-Identifier: Apache-2.0
#pragma once
// traced: writes every call to a file, a trace with which tarn_replay measures any pool. `tracked` counts
// calls, `logged` passes them to a hook, `tagged` names them.

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "tarn/core/address_map.hpp"
#include "tarn/core/at_fork.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"
#include "tarn/policy/trace_format.hpp"

namespace TARN_NAMESPACE {

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
/// error and end the recording, never the program. Up to 65,533 streams besides the default one have numbers
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
    if (file_ != nullptr && owned_ && std::fclose(std::exchange(file_, nullptr)) != 0) complain();
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
    if (id == stream_ref::unknown_id && !this->driver().identify(stream, id).ok()) {
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
      if (!std::exchange(streams_are_shared_, true)) put("# all further streams share the last number\n");
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

  detail::fork_mutex mutex_;
  std::FILE* file_;
  bool owned_;
  bool streams_are_shared_ = false;  ///< written to the trace once
  std::uint64_t next_id_ = 1;
  detail::address_map<std::uint64_t> live_;     ///< the id of each live block
  detail::address_map<std::uint32_t> streams_;  ///< the number of each stream except the default one
};

}  // namespace TARN_NAMESPACE
