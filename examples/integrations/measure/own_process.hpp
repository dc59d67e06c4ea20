// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs this program again with other arguments, so that each measurement has a process and a CUDA context of
// its own.

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

namespace tarn_clients {

/// How a run ended, and the last line that it printed to stdout and to stderr.
struct ended_run {
  int status = -1;  ///< the exit status, or 128 and the signal
  std::string out;
  std::string error;
};

namespace detail {
inline std::string last_line(std::string const& text) {
  std::size_t const end = text.find_last_not_of('\n');
  if (end == std::string::npos) return {};
  std::size_t const begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1,
                     end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}
inline std::string read_all(std::FILE* file) {
  std::string text;
  std::array<char, 4096> part{};
  std::rewind(file);
  while (std::size_t const n = std::fread(part.data(), 1, part.size(), file)) text.append(part.data(), n);
  return text;
}
}  // namespace detail

/// Runs the program with these arguments and waits; after `seconds` it is killed (status 137).
[[nodiscard]] inline ended_run run_self(std::vector<std::string> arguments, unsigned seconds) {
  std::FILE* const out = std::tmpfile();
  std::FILE* const error = std::tmpfile();
  if (out == nullptr || error == nullptr) throw std::runtime_error("no temporary files");
  pid_t const child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    dup2(fileno(out), STDOUT_FILENO);
    dup2(fileno(error), STDERR_FILENO);
    std::vector<char*> words{const_cast<char*>("self")};
    for (std::string& a : arguments) words.push_back(a.data());
    words.push_back(nullptr);
    execv("/proc/self/exe", words.data());
    _exit(127);
  }
  ended_run r;
  int status = 0;
  for (unsigned waited = 0; waitpid(child, &status, WNOHANG) == 0; ++waited) {
    if (waited >= seconds * 100) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
    usleep(10'000);
  }
  r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  r.out = detail::last_line(detail::read_all(out));
  r.error = detail::last_line(detail::read_all(error));
  std::fclose(out);
  std::fclose(error);
  return r;
}

}  // namespace tarn_clients
