#pragma once

#include "base/status.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

// Returns FAILED_PRECONDITION that names the first part of `config` that the CUDA kernels do not
// implement. They run models of the shape of Llama, Mistral, Qwen2 and Qwen3.
absl::Status CheckCudaModel(const ModelConfig& config);

}  // namespace penstock
