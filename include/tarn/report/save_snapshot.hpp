// SPDX-License-Identifier: Apache-2.0
#pragma once
// save_snapshot: writes a snapshot to a file whose extension selects the format.

#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tarn/core/error.hpp"
#include "tarn/core/text.hpp"
#include "tarn/report/perfetto.hpp"
#include "tarn/report/pickle.hpp"
#include "tarn/report/snapshot.hpp"
#include "tarn/report/snapshot_json.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/report/write_file.hpp"

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
