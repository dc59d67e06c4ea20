// SPDX-License-Identifier: Apache-2.0
// A source with state: host memory that lies in files of a folder, for more of it than there is RAM. The
// calls that take and give a block are const members, which read the state. Sources of one type free each
// other's blocks; if yours cannot, keep the state in a member `options` that has an operator ==.

#include <sys/mman.h>
#include <unistd.h>
#include <tarn/tarn.hpp>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>

struct file_calls {
  using properties = tarn::property_set<tarn::host_accessible>;
  static constexpr char const* backend = "files";

  std::string folder;  ///< copied with the source

  tarn::status take(tarn::no_driver const&, std::size_t bytes, std::size_t, void*& p) const noexcept {
    char name[256];
    if (folder.size() + 8 > sizeof(name))
      return {tarn::failure::other, ENAMETOOLONG, "ENAMETOOLONG", "mkstemp"};
    folder.copy(name, folder.size());
    std::char_traits<char>::copy(name + folder.size(), "/XXXXXX", 8);
    int const file = ::mkstemp(name);
    if (file < 0) return {tarn::failure::other, errno, "errno", "mkstemp"};
    (void)::unlink(name);  // the file ends with its mapping
    int const no_room = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
    void* const made =
        no_room == 0 ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    (void)::close(file);
    if (made == MAP_FAILED) return {tarn::failure::out_of_memory, no_room, "ENOSPC", "posix_fallocate"};
    p = made;
    return {};
  }
  tarn::status give(tarn::no_driver const&, void* p, std::size_t bytes, std::size_t) const noexcept {
    return ::munmap(p, bytes) == 0 ? tarn::status{}
                                   : tarn::status{tarn::failure::other, errno, "EINVAL", "munmap"};
  }
};
using file_memory = tarn::block_source<tarn::no_driver, file_calls>;
static_assert(tarn::resource<file_memory>);

int main() {
  std::string const folder = std::filesystem::temp_directory_path().string();
  auto memory = file_memory{tarn::no_driver{}, file_calls{folder}} | tarn::pooled{} | tarn::tracked{};
  auto numbers = tarn::make_device_buffer<int>(memory, 1'000'000, tarn::stream_ref{});
  for (int& number : numbers.span()) number = 1;
  std::cout << tarn::allocator_backend(memory) << ": " << tarn::memory_allocated(memory)
            << " bytes live, the last is " << numbers.span().back() << '\n';
  try {
    auto huge = tarn::make_device_buffer<std::byte>(memory, std::size_t{1} << 60, tarn::stream_ref{});
  } catch (tarn::out_of_memory const&) {
    std::cout << "1 EiB is refused\n";
  }
}
