// SPDX-License-Identifier: Apache-2.0
// The bytes are a trace file, plain or gzip. It is read completely or refused with its file and line. A file
// that is read meets the replay's requirements and has the events of its lines; compressing it changes
// nothing.

#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/promise.hpp"
#include "replay/trace_reader.hpp"
#include "tarn/policy/traced.hpp"

using namespace tarn::bench;
using tarn_fuzz::promise;

namespace {

/// A file in memory that can be opened by its path.
class memory_file {
 public:
  explicit memory_file(std::string_view bytes) : fd_(memfd_create("trace", 0)) {
    promise(fd_ >= 0 && write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
            "the test can create a file");
  }
  memory_file(memory_file const&) = delete;
  memory_file& operator=(memory_file const&) = delete;
  ~memory_file() { (void)close(fd_); }
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

std::string compressed(std::string_view bytes) {
  z_stream z{};
  promise(deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK, "zlib compresses");
  std::string out(deflateBound(&z, bytes.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  z.avail_in = static_cast<uInt>(bytes.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  promise(deflate(&z, Z_FINISH) == Z_STREAM_END, "zlib compresses to the end");
  out.resize(z.total_out);
  (void)deflateEnd(&z);
  return out;
}

struct outcome {
  trace read;
  std::string refusal;  ///< without the file's name
  std::uint64_t line = 0;
};

outcome read(std::string_view bytes) {
  memory_file const file(bytes);
  outcome o;
  try {
    o.read = read_trace(file.path());
  } catch (trace_error const& error) {
    o.refusal = error.what();
    promise(o.refusal.starts_with(file.path() + ":" + std::to_string(error.line()) + ": "),
            "a refusal begins with file and line", o.refusal);
    for (char const c : o.refusal) promise(c >= ' ' && c <= '~', "a refusal can be printed", o.refusal);
    o.refusal.erase(0, file.path().size());
    o.line = error.line();
  }
  return o;
}

/// What run.hpp assumes without checking.
void check_replayable(trace const& t) {
  std::vector<event const*> live(t.slots, nullptr);
  std::uint64_t bytes = 0, peak = 0, allocations = 0;
  for (event const& e : t.events) {
    promise(e.slot < t.slots, "a slot is within the table");
    promise(e.stream < t.stream_numbers.size(), "a stream has its number");
    if (e.what == operation::allocate) {
      promise(live[e.slot] == nullptr, "a slot is free when it is used");
      live[e.slot] = &e;
      ++allocations;
      bytes += e.bytes;
      peak = bytes > peak ? bytes : peak;
    } else {
      promise(live[e.slot] != nullptr, "only live blocks are freed");
      promise(live[e.slot]->bytes == e.bytes && live[e.slot]->stream == e.stream,
              "a free has the bytes and stream of its allocation");
      live[e.slot] = nullptr;
      bytes -= e.bytes;
    }
  }
  promise(t.peak_live == peak && t.allocations == allocations, "peak and count are those of the events");
}

/// The events are those of the lines.
void check_agreement(std::string_view text, trace const& t) {
  std::size_t at = 0;
  for (std::uint64_t line = 1; !text.empty(); ++line) {
    std::size_t const end = text.find('\n');
    std::string_view const one = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    tarn::trace_event const e = tarn::parse_trace_line(one, line);
    if (e.kind == tarn::trace_event_kind::comment) continue;
    promise(at < t.events.size(), "no event is left out");
    event const& other = t.events[at++];
    bool const allocates = e.kind == tarn::trace_event_kind::allocate;
    promise(allocates == (other.what == operation::allocate), "an event has its kind");
    promise(!allocates || (e.bytes == other.bytes && e.stream == t.stream_numbers[other.stream]),
            "an event has its bytes and stream");
  }
  promise(at == t.events.size(), "no event is added");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::string_view const bytes(reinterpret_cast<char const*>(data), size);
  outcome const plain = read(bytes);
  if (plain.refusal.empty()) check_replayable(plain.read);
  bool const is_gzip = bytes.starts_with("\x1f\x8b");
  if (is_gzip) return 0;
  if (plain.refusal.empty()) check_agreement(bytes, plain.read);
  // Two concatenated gzip files are also one.
  std::size_t const half = bytes.size() / 2;
  outcome const unpacked = read(compressed(bytes.substr(0, half)) + compressed(bytes.substr(half)));
  promise(plain.refusal == unpacked.refusal && plain.line == unpacked.line,
          "a compressed trace is refused where the plain one is", plain.refusal + unpacked.refusal);
  promise(plain.read.events.size() == unpacked.read.events.size() &&
              plain.read.peak_live == unpacked.read.peak_live,
          "a compressed trace is the same trace");
  return 0;
}
