// SPDX-License-Identifier: Apache-2.0
#include "context.hpp"

#include <array>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <thread>

namespace tarn::bench {

namespace {

std::string from_environment(char const* name) {
  char const* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

/// Returns the version of the kernel module, if available: "NVRM version: NVIDIA UNIX x86_64 Kernel Module
/// 580.1 ...".
std::string driver_of_kernel() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (!word.empty() && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return {};
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string name = "unknown processor";
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    name = line.substr(std::min(line.size(), line.find(':') + 2));
    break;
  }
  return name + ", " + std::to_string(std::thread::hardware_concurrency()) + " cores";
}

std::string now() {
  std::time_t const seconds = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%MZ", &parts);
  return text.data();
}

}  // namespace

context find_context(found_cuda const& gpu) {
  context c;
  c.gpu = gpu.found ? gpu.name : "none";
  c.driver = from_environment("TARN_DRIVER");
  if (c.driver.empty()) c.driver = driver_of_kernel();
  if (c.driver.empty()) c.driver = gpu.found ? "for CUDA " + gpu.cuda : "none";
  c.cpu = processor();
  c.date = now();
  c.commit = from_environment("TARN_COMMIT");
  if (c.commit.empty()) c.commit = "unknown";
  return c;
}

}  // namespace tarn::bench
