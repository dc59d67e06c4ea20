// SPDX-License-Identifier: Apache-2.0
// A profiler for nvtx_calls.cpp, loaded by NVTX: it receives tarn's calls and prints each.

#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCudaRt.h>

#include <cstdint>
#include <cstdio>
#include <string>

namespace {

// A handle is the address of its text.
nvtxDomainHandle_t domain_create(char const* name) {
  std::printf("domain %s\n", name);
  return reinterpret_cast<nvtxDomainHandle_t>(new std::string(name));
}
nvtxStringHandle_t register_string(nvtxDomainHandle_t, char const* text) {
  return reinterpret_cast<nvtxStringHandle_t>(new std::string(text));
}
void print(char const* what, nvtxDomainHandle_t domain, nvtxEventAttributes_t const* a) {
  bool const sound = a->version == NVTX_VERSION && a->size == sizeof *a &&
                     a->messageType == NVTX_MESSAGE_TYPE_REGISTERED &&
                     a->payloadType == NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  std::printf("%s %s [%s] %llu in %u%s\n", what, reinterpret_cast<std::string const*>(domain)->c_str(),
              reinterpret_cast<std::string const*>(a->message.registered)->c_str(),
              static_cast<unsigned long long>(a->payload.ullValue), a->category, sound ? "" : " UNSOUND");
}
int push(nvtxDomainHandle_t domain, nvtxEventAttributes_t const* a) {
  print("push", domain, a);
  return 0;
}
int pop(nvtxDomainHandle_t) {
  std::printf("pop\n");
  return 0;
}
void mark(nvtxDomainHandle_t domain, nvtxEventAttributes_t const* a) {
  print("mark", domain, a);
}
void name_category(nvtxDomainHandle_t, std::uint32_t category, char const* name) {
  std::printf("category %u %s\n", category, name);
}
void name_stream(cudaStream_t stream, char const* name) {
  std::printf("stream %p %s\n", static_cast<void*>(stream), name);
}

template <class F>
void set(NvtxFunctionTable table, unsigned int id, F* function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t export_table) {
  auto const* const callbacks =
      static_cast<NvtxExportTableCallbacks const*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  set(table, NVTX_CBID_CORE2_DomainCreateA, &domain_create);
  set(table, NVTX_CBID_CORE2_DomainRegisterStringA, &register_string);
  set(table, NVTX_CBID_CORE2_DomainRangePushEx, &push);
  set(table, NVTX_CBID_CORE2_DomainRangePop, &pop);
  set(table, NVTX_CBID_CORE2_DomainMarkEx, &mark);
  set(table, NVTX_CBID_CORE2_DomainNameCategoryA, &name_category);
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CUDART, &table, &size) == 0) return 0;
  set(table, NVTX_CBID_CUDART_NameCudaStreamA, &name_stream);
  return 1;
}
