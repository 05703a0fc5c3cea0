#pragma once

#include "model/checkpoint/json_fields.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

inline constexpr int64_t kMaxModelLayers = 1024;

// Reads the parts of config.json in which a model's layers differ: windows, rotations and experts.
// Errors go to `fields`.
void ReadLayers(JsonFields& fields, const ModelFamily& family, ModelConfig* config);

}  // namespace penstock
