#pragma once

#include "base/status.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

// Returns FAILED_PRECONDITION that names the first part of `config` that the CUDA kernels do not
// implement on `ranks` GPUs. They run the dense families of docs/models.md.
absl::Status CheckCudaModel(const ModelConfig& config, int ranks = 1);

}  // namespace penstock
