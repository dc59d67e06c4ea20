// SPDX-License-Identifier: Apache-2.0
// A library with NVML's symbols and one device with fixed values. The loader must find its symbols by name.

#include <cstring>

extern "C" {

int nvmlInit_v2() {
  return 0;
}
int nvmlShutdown() {
  return 0;
}
int nvmlDeviceGetHandleByUUID(char const* uuid, void** device) {
  static int the_one = 0;
  if (std::strcmp(uuid, "GPU-01020304-0506-0708-090a-0b0c0d0e0f10") != 0) return 6;
  *device = &the_one;
  return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void*, void* out) {
  unsigned version = 0;
  std::memcpy(&version, out, sizeof version);
  if (version != (40U | 2U << 24)) return 25;
  unsigned long long const reported[] = {1000, 60, 700, 240};
  std::memcpy(static_cast<char*>(out) + 8, reported, sizeof reported);
  return 0;
}
// Only the second version, as in older drivers.
int nvmlDeviceGetComputeRunningProcesses_v2(void*, unsigned* count, void* out) {
  if (*count < 2) return 7;
  *count = 2;
  unsigned const pids[] = {42, 7};
  unsigned long long const used[] = {100, 30};
  for (int i = 0; i < 2; ++i) {
    std::memcpy(static_cast<char*>(out) + 24 * i, &pids[i], sizeof pids[i]);
    std::memcpy(static_cast<char*>(out) + 24 * i + 8, &used[i], sizeof used[i]);
  }
  return 0;
}

}  // extern "C"
