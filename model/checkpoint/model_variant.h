#pragma once

#include "model/checkpoint/json_fields.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

// Reads the fields that choose among the variants of one architecture: whether attention and MLP
// have the same input, and Falcon's heads of keys and norms. Refuses values that change the model
// in ways that the forward pass does not have. `config` has its number of heads.
void ReadVariant(JsonFields& fields, const ModelFamily& family, ModelConfig* config);

// Reads the fields of multi-head latent attention, and sets heads and their size as the cache has
// them.
void ReadLatents(JsonFields& fields, ModelConfig* config);
// Sets what the rotation and the scores of latent attention differ in. `config` has its rotation as
// for heads.
void SetLatentRope(JsonFields& fields, ModelConfig* config);

}  // namespace penstock
