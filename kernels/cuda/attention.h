#pragma once

#include "kernels/cuda/attention_params.h"

namespace penstock::cuda {

// True if the attention kernels support these planes: head_dim 64 or 128, pages of 16 to 1,024
// tokens, and codes bf16, f8, i8, i4 or l3 for both planes, or i8 keys with i4 values, or l3 keys
// with l2 values.
bool SupportsKv(const KvPlanes& kv);

// softmax(scale * q k^T) v, causal, for any number of queries of each sequence, each at its own
// position. The bits of a row depend on the tokens of its sequence and on its position only: not on
// the batch, the prefill chunk, the width of its tile, the plan or the page size. Codes of
// quantised pages are converted to bf16; sums of rotated values (levels) are rotated back.
// Requires SupportsKv(params.kv).
void Attention(const AttentionParams& params, const AttentionCounts& counts, void* stream);

}  // namespace penstock::cuda
