#pragma once

#include "kernels/cuda/row_params.h"

namespace penstock::cuda {

// Enqueues the operations of row_params.h on `stream`. Errors are reported by TakeError()
// (runtime.h).
void Embedding(const EmbeddingParams& params, int rows, void* stream);
void AddNorm(const NormParams& params, int rows, void* stream);
void SiluGate(const SiluGateParams& params, int rows, void* stream);
void Gelu(const GeluParams& params, int rows, void* stream);
void WideHeadNorm(const WideHeadNormParams& params, int rows, void* stream);
// Requires SupportsKv(params.kv) (attention.h).
void RopeAppend(const RopeAppendParams& params, void* stream);
void SumSlices(const SumSlicesParams& params, int rows, void* stream);
void GatherRows(const GatherRowsParams& params, int rows, void* stream);

}  // namespace penstock::cuda
