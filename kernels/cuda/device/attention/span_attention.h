#pragma once

#include "kernels/cuda/attention_params.h"

namespace penstock::cuda {

// Enqueues the tiles of a plan over pages with a span; narrow ones of several splits are merged
// afterwards, as those of pages without one.
void SpanAttention(const AttentionParams& params, const AttentionCounts& counts, void* stream);
// The same of pages with centred keys.
void CentredAttention(const AttentionParams& params, const AttentionCounts& counts, void* stream);

}  // namespace penstock::cuda
