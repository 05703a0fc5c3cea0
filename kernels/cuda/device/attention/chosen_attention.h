#pragma once

#include "kernels/cuda/attention_params.h"

namespace penstock::cuda {

// Enqueues the narrow tiles of a plan whose KV heads have tables of their own
// (AttentionParams::head_table_stride); those of several splits are merged afterwards, as others.
void ChosenAttention(const AttentionParams& params, const AttentionCounts& counts, void* stream);

}  // namespace penstock::cuda
