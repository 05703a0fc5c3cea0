#pragma once

#include "kernels/cuda/decode_params.h"
#include "kernels/cuda/prefill_params.h"

namespace penstock::cuda {

// True if the attention kernels support these planes: head_dim 64 or 128, pages of 16 to 1,024
// tokens, and codes bf16, f8, i8 or i4 for both planes, or i8 keys with i4 values.
bool SupportsKv(const KvPlanes& kv);

// softmax(scale * q k^T) v for one query per sequence, at the last position of the sequence.
// params.items holds `items` entries; max_splits and split_counts must come from the same plan. The
// bits of a row depend on the tokens of its sequence only, not on the batch, the order of the plan
// or the page size. Requires SupportsKv(params.kv).
void DecodeAttention(const DecodeParams& params, int items, int sequences, void* stream);

// Causal attention for many queries per sequence, each at its own position. Its bits differ from
// those of DecodeAttention, but do not depend on the prefill chunk. Requires SupportsKv(params.kv).
void PrefillAttention(const PrefillParams& params, int tiles, void* stream);

}  // namespace penstock::cuda
