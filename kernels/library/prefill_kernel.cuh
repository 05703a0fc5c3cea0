#pragma once

// The first one takes the place of a header that the others include.
// clang-format off
#include "kernels/library/fast_div.h"

#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>
// clang-format on

#include "kernels/library/prefill.h"

namespace penstock::cuda::library {

// FlashInfer's kernel for one size of heads, with or without a sliding window.
template <int kDim, bool kWindow>
struct Prefill {
  using Element = cutlass::bfloat16_t;
  using Params = flashinfer::BatchPrefillPagedParams<Element, Element, Element, int32_t>;
  using Traits =
      flashinfer::AttentionKernelTraits</*TMA for keys*/ false, kDim, kDim, PrefillTileRows(kDim),
                                        kPrefillTileKeys, /*stages*/ 2, Element, Element, Element,
                                        int32_t, flashinfer::StandardAttention>;
  static_assert(sizeof(typename Traits::SharedStorage) <= 232448);

  static Element* Elements(const void* p) {
    return const_cast<Element*>(static_cast<const Element*>(p));
  }

  static Params ParamsOf(const PrefillCall& call) {
    const auto field = [&](PrefillField f) {
      return const_cast<int32_t*>(call.plan) + PrefillFieldAt(f, call.items, call.shape.processors);
    };
    const PrefillStrides strides = StridesOf(call.kv);
    return {.q_ptr = Elements(call.queries),
            .k_ptr = Elements(strides.keys),
            .v_ptr = Elements(strides.values),
            .o_ptr = Elements(call.output),
            .lse_ptr = nullptr,
            .qo_tile_indices = field(PrefillField::kTile),
            .qo_indptr = field(PrefillField::kFirstRow),
            .kv_indptr = field(PrefillField::kTableAt),
            .kv_indices = reinterpret_cast<int32_t*>(const_cast<uint32_t*>(call.tables)),
            .qo_lens = field(PrefillField::kRows),
            .kv_lens = field(PrefillField::kLength),
            .head_indices = field(PrefillField::kHead),
            .work_indptr = const_cast<int32_t*>(call.plan),
            .batch_indices = field(PrefillField::kSequence),
            .additional_params = {.logits_soft_cap = 0,
                                  .sm_scale = call.scale,
                                  .maybe_prefix_len_ptr = nullptr,
                                  .maybe_token_pos_in_items_ptr = nullptr,
                                  .token_pos_in_items_len = 0,
                                  .maybe_max_item_len_ptr = nullptr},
            .q_stride_n = call.query_stride,
            .k_stride_n = strides.token,
            .v_stride_n = strides.token,
            .o_stride_n = call.output_stride,
            .q_stride_h = kDim,
            .k_stride_h = strides.head,
            .v_stride_h = strides.head,
            .o_stride_h = kDim,
            .nnz_qo = call.rows,
            .k_page_stride = strides.page,
            .v_page_stride = strides.page,
            .num_qo_heads = call.shape.heads,
            .num_kv_heads = call.kv.kv_heads,
            .group_size = call.shape.heads / call.kv.kv_heads,
            .page_size = 1 << call.kv.page_log2,
            .window_left = call.shape.window > 0 ? call.shape.window - 1 : -1,
            .causal = true};
  }

  // An error stays for TakeError().
  static void Run(const PrefillCall& call, cudaStream_t stream) {
    Params params = ParamsOf(call);
    flashinfer::BatchPrefillWithPagedKVCacheKernelTraitsDispatched<
        Traits, kWindow, /*causal*/ true, /*the same schedule for all heads*/ false>(params,
                                                                                     stream);
  }
};

// Defined by one file each (prefill_*.cu), which take long to compile.
template <int kDim, bool kWindow>
void RunPrefill(const PrefillCall& call, void* stream) {
  Prefill<kDim, kWindow>::Run(call, static_cast<cudaStream_t>(stream));
}

}  // namespace penstock::cuda::library
