// SPDX-License-Identifier: Apache-2.0
#pragma once
// What PyTorch reserved for the traces recorded from its runs: data only.
// Source: replay of the same requests through PyTorch 2.11.0+cu130's CUDACachingAllocator, called from C++,
// on one NVIDIA H200 (driver 580, CUDA 13.0), 2026-11-20; the real runs reported the same within 0.1 %
// (except gcn_sampled: under memory pressure its run freed its cache 26 times and held 113,482 MiB). Those of
// amrex_regrid and cupy_flow_cg are from bench/results/replay_torch*.jsonl, one NVIDIA H100. Times are not
// included: they are comparable only within one run.

#include <string_view>

namespace tarn::bench {

/// Peak reserved bytes of one trace, in MiB.
struct pytorch_held {
  std::string_view trace;
  double by_default;
  double expandable;  ///< PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
};

inline constexpr pytorch_held held_by_pytorch[] = {
    {"amrex_regrid", 11988, 11470}, {"cupy_flow_cg", 1422, 830},        {"bert_recompute", 7874, 7436},
    {"demucs_train", 7290, 6462},   {"gcn_sampled", 127362, 30038},     {"gpt2_train_varlen", 27052, 21192},
    {"llama_generate", 2124, 1772}, {"maskrcnn_varsize", 23020, 17112}, {"prefetch_two_streams", 5832, 5326},
    {"resnet50_train", 6360, 4526},
};

}  // namespace tarn::bench
