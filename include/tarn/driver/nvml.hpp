// SPDX-License-Identifier: Apache-2.0
#pragma once
// NVML, NVIDIA's management library, which reports a device's memory by process. It is loaded at run time if
// present, never linked. The few calls needed are declared here, from the documented ABI. Uses no CUDA names.

#if defined(__linux__)
#include <dlfcn.h>
#endif

#include <cstddef>
#include <new>
#include <string_view>
#include <type_traits>

#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/driver/driver.hpp"

namespace TARN_NAMESPACE::detail {

/// nvmlMemory_t. `total` includes memory reserved by driver and firmware.
struct nvml_memory {
  unsigned long long total, free, used;
};
/// nvmlMemory_v2_t, which reports that reserved memory separately.
struct nvml_memory_v2 {
  unsigned version;  ///< input: size and version of the structure
  unsigned long long total, reserved, free, used;
};
/// nvmlProcessInfo_v2_t, the element of versions 2 and 3 of the process lists.
struct nvml_process {
  unsigned pid;
  unsigned long long used;  ///< all ones: not available
  unsigned gpu_instance, compute_instance;
};
static_assert(sizeof(nvml_memory) == 24 && sizeof(nvml_memory_v2) == 40 && sizeof(nvml_process) == 24);

/// The calls of one loaded library; null if it lacks one. All of them are thread-safe.
struct nvml_calls {
  using device = void*;
  using list_call = int (*)(device, unsigned* count, nvml_process*);
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*device_by_uuid)(char const*, device*) = nullptr;
  int (*device_by_pci_bus_id)(char const*, device*) = nullptr;
  int (*mig_mode)(device, unsigned* current, unsigned* pending) = nullptr;
  int (*memory)(device, nvml_memory*) = nullptr;
  int (*memory_v2)(device, nvml_memory_v2*) = nullptr;
  list_call compute_processes = nullptr;
  list_call graphics_processes = nullptr;
  list_call mps_processes = nullptr;  ///< compute processes that run under the multi-process service

  [[nodiscard]] bool is_there() const noexcept { return init != nullptr && shutdown != nullptr; }
};

inline constexpr int nvml_insufficient_size = 7;

struct nvml_error {
  int code;
  char const* name;
};
inline constexpr nvml_error nvml_errors[] = {
    {1, "NVML_ERROR_UNINITIALIZED"},
    {2, "NVML_ERROR_INVALID_ARGUMENT"},
    {3, "NVML_ERROR_NOT_SUPPORTED"},
    {4, "NVML_ERROR_NO_PERMISSION"},
    {6, "NVML_ERROR_NOT_FOUND"},
    {nvml_insufficient_size, "NVML_ERROR_INSUFFICIENT_SIZE"},
    {9, "NVML_ERROR_DRIVER_NOT_LOADED"},
    {12, "NVML_ERROR_LIBRARY_NOT_FOUND"},
    {13, "NVML_ERROR_FUNCTION_NOT_FOUND"},
    {15, "NVML_ERROR_GPU_IS_LOST"},
    {18, "NVML_ERROR_LIB_RM_VERSION_MISMATCH"},
};

/// Returns nvml.h's name for the codes expected here.
[[nodiscard]] constexpr char const* nvml_name(int code) noexcept {
  for (nvml_error const& e : nvml_errors) {
    if (e.code == code) return e.name;
  }
  return "an NVML error";
}
[[nodiscard]] constexpr status nvml_failed(int code, char const* call) noexcept {
  return {failure::unsupported, code, nvml_name(code), call};
}

/// Loads a library and never unloads it; all calls are null if it cannot be loaded.
[[nodiscard]] inline nvml_calls find_nvml([[maybe_unused]] char const* library) noexcept {
  nvml_calls found;
#if defined(__linux__)
  void* const handle = ::dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return found;
  auto const find = [&](auto& call, char const* name, char const* before = nullptr) {
    void* p = ::dlsym(handle, name);
    if (p == nullptr && before != nullptr) p = ::dlsym(handle, before);
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(p);
  };
  find(found.init, "nvmlInit_v2");
  find(found.shutdown, "nvmlShutdown");
  find(found.device_by_uuid, "nvmlDeviceGetHandleByUUID");
  find(found.device_by_pci_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
  find(found.mig_mode, "nvmlDeviceGetMigMode");
  find(found.memory, "nvmlDeviceGetMemoryInfo");
  find(found.memory_v2, "nvmlDeviceGetMemoryInfo_v2");
  // _v2 first: _v3 is the same except in drivers 535.43 to 535.86, whose elements have 32 bytes
  // (nvitop, pull requests 79 to 94).
  find(found.compute_processes, "nvmlDeviceGetComputeRunningProcesses_v2",
       "nvmlDeviceGetComputeRunningProcesses_v3");
  find(found.graphics_processes, "nvmlDeviceGetGraphicsRunningProcesses_v2",
       "nvmlDeviceGetGraphicsRunningProcesses_v3");
  find(found.mps_processes, "nvmlDeviceGetMPSComputeRunningProcesses_v2",
       "nvmlDeviceGetMPSComputeRunningProcesses_v3");
#endif
  return found;
}
/// Returns the process's library, loaded at the first call.
[[nodiscard]] inline nvml_calls const& nvml() noexcept {
  static nvml_calls const found = find_nvml("libnvidia-ml.so.1");
  return found;
}

/// CUDA's identifiers of a device, and the process to report on.
struct nvml_question {
  unsigned char uuid[16]{};  ///< of the MIG instance if the device is one; all zero: not known
  char pci_bus_id[32]{};     ///< empty: not known
  unsigned pid = 0;          ///< this process
};

/// Formats a UUID with its prefix "GPU-" or "MIG-", as NVML expects it.
[[nodiscard]] inline message<48> nvml_uuid(std::string_view prefix,
                                           unsigned char const (&uuid)[16]) noexcept {
  message<48> text;
  text.add(prefix);
  for (std::size_t i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text.add("-");
    constexpr std::string_view digits = "0123456789abcdef";
    text.add(digits.substr(uuid[i] >> 4, 1)).add(digits.substr(uuid[i] & 15U, 1));
  }
  return text;
}

/// Finds NVML's handle of the device. Fails rather than report a whole card in place of its MIG instance.
[[nodiscard]] inline status find_nvml_device(nvml_calls const& calls, nvml_question const& asked,
                                             nvml_calls::device& device, device_account& account) noexcept {
  unsigned char any = 0;
  for (unsigned char const byte : asked.uuid) any |= byte;
  account.source = "NVML";
  bool const by_uuid = any != 0 && calls.device_by_uuid != nullptr;
  if (by_uuid && calls.device_by_uuid(nvml_uuid("MIG-", asked.uuid).c_str(), &device) == 0) {
    account.source = "NVML (this MIG instance)";
    return {};
  }
  if (!by_uuid || calls.device_by_uuid(nvml_uuid("GPU-", asked.uuid).c_str(), &device) != 0) {
    if (asked.pci_bus_id[0] == '\0' || calls.device_by_pci_bus_id == nullptr) {
      return nvml_failed(6, "nvmlDeviceGetHandleByUUID");
    }
    int const code = calls.device_by_pci_bus_id(asked.pci_bus_id, &device);
    if (code != 0) return nvml_failed(code, "nvmlDeviceGetHandleByPciBusId_v2");
  }
  unsigned current = 0;
  unsigned pending = 0;
  bool const in_parts =
      calls.mig_mode != nullptr && calls.mig_mode(device, &current, &pending) == 0 && current != 0;
  return in_parts ? nvml_failed(6, "nvmlDeviceGetHandleByUUID of a MIG instance") : status{};
}

/// NVML's value for a process whose memory use is not available.
inline constexpr unsigned long long nvml_not_available = ~0ULL;

/// Adds one of the process lists; a process that does both compute and graphics is in two lists and counts
/// once.
/// @return NVML's code
[[nodiscard]] inline int add_nvml_processes(nvml_calls::list_call list, nvml_calls::device device,
                                            sequence<nvml_process>& all) {
  if (list == nullptr) return 13;
  sequence<nvml_process> here;
  here.resize(64);
  unsigned count = 64;
  for (int attempt = 0;; ++attempt) {
    int const code = list(device, &count, here.begin());
    if (code == 0) break;
    if (code != nvml_insufficient_size || attempt == 8) return code;
    here.resize(max_of<std::size_t>(here.size() * 2, count));  // processes may start between the calls
    count = static_cast<unsigned>(here.size());
  }
  auto const listed = min_of<std::size_t>(here.size(), count);
  for (std::size_t i = 0; i < listed; ++i) {
    nvml_process const& p = here[i];
    nvml_process* known = nullptr;
    for (nvml_process& q : all) {
      if (q.pid == p.pid && q.gpu_instance == p.gpu_instance && q.compute_instance == p.compute_instance) {
        known = &q;
      }
    }
    if (known == nullptr) {
      all.push_back(p);
    } else {
      bool const is_known = known->used != nvml_not_available;
      if (!is_known || p.used != nvml_not_available)
        known->used = is_known ? max_of(known->used, p.used) : p.used;
    }
  }
  return 0;
}

/// Sums up the processes, or sets the reason why they are unknown.
inline void count_nvml_processes(sequence<nvml_process> const& all, unsigned pid,
                                 device_account& account) noexcept {
  std::size_t mine = 0;
  std::size_t others = 0;
  bool listed = false;
  bool own_known = true;
  bool others_known = true;
  for (nvml_process const& p : all) {
    bool& known = p.pid == pid ? own_known : others_known;
    std::size_t& sum = p.pid == pid ? mine : others;
    listed = listed || p.pid == pid;
    if (p.used == nvml_not_available) {
      known = false;
    } else {
      sum += static_cast<std::size_t>(p.used);
    }
  }
  if (!listed) {  // this process has a context, so it is listed under a process id that it does not know
    account.gap =
        "NVML's list does not contain this process: process ids in a container differ from the host's";
    return;
  }
  if (own_known) account.this_process = mine;
  if (others_known) account.other_processes = others;
  if (!own_known) {
    account.gap = "NVML does not report the memory of this process (no permission, or not supported)";
  } else if (!others_known) {
    account.gap = "NVML does not report the memory of another process (no permission, or not supported)";
  }
}

/// Queries one library about one device on which this process has a CUDA context. Initialises and shuts down
/// NVML: 10 to 100 ms.
/// @return unsupported: NVML is missing or does not know the device; `account` is unchanged
[[nodiscard]] inline status nvml_account(nvml_calls const& calls, nvml_question const& asked,
                                         device_account& account) noexcept {
  if (!calls.is_there()) {
    return {failure::unsupported, 12, "libnvidia-ml.so.1 was not found", "nvmlInit_v2"};
  }
  if (int const code = calls.init(); code != 0) return nvml_failed(code, "nvmlInit_v2");
  struct session {
    nvml_calls const& calls;
    ~session() { (void)calls.shutdown(); }
  } const open{calls};
  device_account reported;
  nvml_calls::device device = nullptr;
  status const found = find_nvml_device(calls, asked, device, reported);
  if (!found.ok()) return found;
  nvml_memory_v2 v2{static_cast<unsigned>(sizeof(nvml_memory_v2)) | 2U << 24, 0, 0, 0, 0};
  nvml_memory v1{};
  if (calls.memory_v2 != nullptr && calls.memory_v2(device, &v2) == 0) {
    reported.total = static_cast<std::size_t>(v2.total);
    reported.free = static_cast<std::size_t>(v2.free);
    reported.set_aside = static_cast<std::size_t>(v2.reserved);
  } else if (calls.memory != nullptr && calls.memory(device, &v1) == 0) {
    reported.total = static_cast<std::size_t>(v1.total);
    reported.free = static_cast<std::size_t>(v1.free);
  }
  try {
    sequence<nvml_process> all;
    if (add_nvml_processes(calls.compute_processes, device, all) != 0) {
      reported.gap = "NVML does not list the processes of this device";
    } else {
      (void)add_nvml_processes(calls.graphics_processes, device, all);  // not available on every device
      (void)add_nvml_processes(calls.mps_processes, device, all);
      count_nvml_processes(all, asked.pid, reported);
    }
  } catch (std::bad_alloc const&) {
    reported.gap = "not enough host memory for NVML's list of processes";
  }
  account = reported;
  return {};
}

}  // namespace TARN_NAMESPACE::detail
