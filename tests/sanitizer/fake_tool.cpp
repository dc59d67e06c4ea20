// SPDX-License-Identifier: Apache-2.0
// A tool for nvtx_memory_calls.cpp, loaded by NVTX: it receives the memory extension's calls and prints each.

#include <nvtx3/nvToolsExtMem.h>

#include <cstdio>

namespace {

nvtxMemVirtualRangeDesc_t const& range_of(void const* p) {
  return *static_cast<nvtxMemVirtualRangeDesc_t const*>(p);
}
nvtxMemHeapHandle_t heap_register(nvtxDomainHandle_t, nvtxMemHeapDesc_t const* d) {
  bool const sound = d->extCompatID == NVTX_EXT_COMPATID_MEM && d->structSize == sizeof *d &&
                     d->usage == NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR &&
                     d->type == NVTX_MEM_TYPE_VIRTUAL_ADDRESS &&
                     d->typeSpecificDescSize == sizeof(nvtxMemVirtualRangeDesc_t);
  auto const& range = range_of(d->typeSpecificDesc);
  std::printf("heap %p %zu %s\n", range.ptr, range.size, sound ? "sound" : "UNSOUND");
  return reinterpret_cast<nvtxMemHeapHandle_t>(const_cast<void*>(range.ptr));
}
void heap_unregister(nvtxDomainHandle_t, nvtxMemHeapHandle_t heap) {
  std::printf("heap ends %p\n", static_cast<void*>(heap));
}
void heap_reset(nvtxDomainHandle_t, nvtxMemHeapHandle_t heap) {
  std::printf("heap reset %p\n", static_cast<void*>(heap));
}
void regions_register(nvtxDomainHandle_t, nvtxMemRegionsRegisterBatch_t const* d) {
  bool const sound = d->extCompatID == NVTX_EXT_COMPATID_MEM && d->structSize == sizeof *d &&
                     d->regionType == NVTX_MEM_TYPE_VIRTUAL_ADDRESS && d->regionCount == 1 &&
                     d->regionDescElementSize == sizeof(nvtxMemVirtualRangeDesc_t);
  auto const& range = range_of(d->regionDescElements);
  std::printf("region %p %zu of %p %s\n", range.ptr, range.size, static_cast<void*>(d->heap),
              sound ? "sound" : "UNSOUND");
}
void regions_unregister(nvtxDomainHandle_t, nvtxMemRegionsUnregisterBatch_t const* d) {
  bool const sound = d->extCompatID == NVTX_EXT_COMPATID_MEM && d->structSize == sizeof *d &&
                     d->refType == NVTX_MEM_REGION_REF_TYPE_POINTER && d->refCount == 1 &&
                     d->refElementSize == sizeof(nvtxMemRegionRef_t);
  std::printf("region ends %p %s\n", d->refElements->pointer, sound ? "sound" : "UNSOUND");
}
nvtxMemPermissionsHandle_t permissions_create(nvtxDomainHandle_t, int32_t) {
  return reinterpret_cast<nvtxMemPermissionsHandle_t>(16);
}
void permissions_destroy(nvtxDomainHandle_t, nvtxMemPermissionsHandle_t) {}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtxExtension(
    nvtxExtModuleInfo_t* module) {
  if (module->moduleId != NVTX_EXT_MODULEID_MEM) return 0;
  intptr_t* const slots = module->segments[0].functionSlots;
  slots[NVTX3EXT_CBID_nvtxMemHeapRegister] = reinterpret_cast<intptr_t>(&heap_register);
  slots[NVTX3EXT_CBID_nvtxMemHeapUnregister] = reinterpret_cast<intptr_t>(&heap_unregister);
  slots[NVTX3EXT_CBID_nvtxMemHeapReset] = reinterpret_cast<intptr_t>(&heap_reset);
  slots[NVTX3EXT_CBID_nvtxMemRegionsRegister] = reinterpret_cast<intptr_t>(&regions_register);
  slots[NVTX3EXT_CBID_nvtxMemRegionsUnregister] = reinterpret_cast<intptr_t>(&regions_unregister);
  slots[NVTX3EXT_CBID_nvtxMemPermissionsCreate] = reinterpret_cast<intptr_t>(&permissions_create);
  slots[NVTX3EXT_CBID_nvtxMemPermissionsDestroy] = reinterpret_cast<intptr_t>(&permissions_destroy);
  return 1;
}
