#pragma once

#include "kernels/cuda/decode_params.h"
#include "kernels/cuda/prefill_params.h"

namespace penstock::cuda {

// Whether the attention kernels take these planes: head_dim 64 or 128, pages of 16 to 1,024 tokens,
// codes bf16, f8, i8 or i4 for both, or i8 keys with i4 values.
bool SupportsKv(const KvPlanes& kv);

// softmax(q k^T * scale) v of one query per sequence, at its last position. `items` are in
// params.items, and max_splits and split_counts are of the same plan. A row's bits depend on its
// own tokens alone, not on the batch, the plan's order or the page size. SupportsKv(params.kv).
void DecodeAttention(const DecodeParams& params, int items, int sequences, void* stream);

// The same for many queries of a sequence, each at its own position (causal). Other bits than
// DecodeAttention's, the same whatever the chunk. SupportsKv(params.kv).
void PrefillAttention(const PrefillParams& params, int tiles, void* stream);

}  // namespace penstock::cuda
