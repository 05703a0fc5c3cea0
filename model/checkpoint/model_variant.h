#pragma once

#include "model/checkpoint/json_fields.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

// Reads the fields that choose among the variants of one architecture: whether attention and MLP
// have the same input, and Falcon's heads of keys and norms. Refuses values that change the model
// in ways that the forward pass does not have. `config` has its number of heads.
void ReadVariant(JsonFields& fields, const ModelFamily& family, ModelConfig* config);

}  // namespace penstock
