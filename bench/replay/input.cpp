// SPDX-License-Identifier: Apache-2.0
#include "replay/input.hpp"

#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace tarn::bench {

struct input::state {
  std::FILE* file = nullptr;
  bool compressed = false;
  bool inside_member = false;  // between a gzip header and its checksum
  z_stream inflater{};
  std::array<unsigned char, 1 << 16> raw{};
  std::size_t begin = 0, end = 0;  // the part of `raw` that is not used yet
  std::string failed;              // reported at the next read, after the bytes decoded before the error

  // Reads more raw bytes; returns false at the end of the file.
  bool refill() {
    if (begin == end) begin = end = 0;
    std::size_t const n = std::fread(raw.data() + end, 1, raw.size() - end, file);
    if (n == 0 && std::ferror(file) != 0) {
      throw input_error(std::string("cannot be read: ") + std::strerror(errno));
    }
    end += n;
    return n != 0;
  }
  std::size_t read_plain(std::span<char> to) {
    std::size_t done = 0;
    while (done < to.size()) {
      if (begin == end && !refill()) break;
      std::size_t const n = std::min(to.size() - done, end - begin);
      std::memcpy(to.data() + done, raw.data() + begin, n);
      begin += n;
      done += n;
    }
    return done;
  }
  std::size_t read_gzip(std::span<char> to) {
    if (!failed.empty()) throw input_error(failed);
    inflater.next_out = reinterpret_cast<Bytef*>(to.data());
    inflater.avail_out = static_cast<uInt>(to.size());
    while (inflater.avail_out != 0) {
      if (begin == end && !refill()) {
        if (inside_member) failed = "the gzip data is truncated";
        break;
      }
      inside_member = true;
      inflater.next_in = raw.data() + begin;
      inflater.avail_in = static_cast<uInt>(end - begin);
      int const outcome = inflate(&inflater, Z_NO_FLUSH);
      begin = end - inflater.avail_in;
      if (outcome == Z_STREAM_END) {  // another member may follow: `cat a.gz b.gz` is gzip too
        inside_member = false;
        inflateReset(&inflater);
      } else if (outcome != Z_OK && outcome != Z_BUF_ERROR) {
        failed =
            std::string("the gzip data is corrupt: ") + (inflater.msg != nullptr ? inflater.msg : "not gzip");
        break;
      }
    }
    std::size_t const done = to.size() - inflater.avail_out;
    if (done == 0 && !failed.empty()) throw input_error(failed);
    return done;
  }
};

input::input(std::string const& path) : state_(std::make_unique<state>()) {
  state& s = *state_;
  s.file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (s.file == nullptr) throw input_error(std::string("cannot be opened: ") + std::strerror(errno));
  try {
    while (s.end < 2 && s.refill()) {
    }
    s.compressed = s.end >= 2 && s.raw[0] == 0x1f && s.raw[1] == 0x8b;
    constexpr int gzip_only = 15 + 16;  // zlib.h: window bits, + 16 for a gzip header and checksum
    if (s.compressed && inflateInit2(&s.inflater, gzip_only) != Z_OK)
      throw input_error("zlib cannot be initialised");
  } catch (...) {
    if (s.file != stdin) std::fclose(s.file);
    throw;
  }
}

input::~input() {
  if (state_->compressed) inflateEnd(&state_->inflater);
  if (state_->file != stdin) std::fclose(state_->file);
}

std::size_t input::read(std::span<char> to) {
  return state_->compressed ? state_->read_gzip(to) : state_->read_plain(to);
}

}  // namespace tarn::bench
