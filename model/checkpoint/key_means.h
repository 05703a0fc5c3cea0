#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

// The mean of each channel of a model's keys before RoPE, which pages with centred keys leave out
// (KvPageFormat::centred). Measured once (`penstock calibrate`) and kept beside the model, in
// key_means.safetensors, or in FILE.gguf.key_means.safetensors beside a GGUF file: a tensor
// `layers.N`, F32 [kv_heads, head_dim], for each layer.
struct KeyMeans {
  std::vector<std::vector<float>> layers;  // [kv_heads * head_dim]

  // NOT_FOUND tells how to create the file. INVALID_ARGUMENT names the file, and the tensor that is
  // missing, or has another type or shape than the model implies, or a value that is not finite.
  static absl::StatusOr<KeyMeans> Load(const std::string& model, const ModelConfig& config);
  absl::Status Save(const std::string& model, const ModelConfig& config) const;

  uint64_t Hash() const;  // XXH3-64 of all values
};

}  // namespace penstock
