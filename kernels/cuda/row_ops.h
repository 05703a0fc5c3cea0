#pragma once

#include "kernels/cuda/row_params.h"

namespace penstock::cuda {

void Embedding(const EmbeddingParams& params, int rows, void* stream);
void AddRmsNorm(const NormParams& params, int rows, void* stream);
void SiluGate(const SiluGateParams& params, int rows, void* stream);
// SupportsKv(params.kv) (attention.h).
void RopeAppend(const RopeAppendParams& params, void* stream);
void SumSlices(const SumSlicesParams& params, int rows, void* stream);
void GatherRows(const GatherRowsParams& params, int rows, void* stream);

}  // namespace penstock::cuda
