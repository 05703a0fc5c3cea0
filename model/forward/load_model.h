#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "model/checkpoint/checkpoint.h"
#include "model/forward/weights.h"

namespace penstock {

struct LoadedModel {
  Weights weights;  // with its config
  // XXH3-64 of config.json, the files' names, sizes and headers, and every weight byte that was
  // used: workers with equal fingerprints run the same model, and KV blocks of different ones never
  // share an id.
  uint64_t fingerprint = 0;
};

// Opens the checkpoint in `directory`, packs its weights and unmaps it again: pages of the files
// are let go of tensor by tensor, so the peak is the weights once and one tensor. INVALID_ARGUMENT
// and NOT_FOUND name file, tensor, the shape found and the shape that config.json implies. A tensor
// that the model has no place for is an error too: ignoring it would give other logits.
absl::StatusOr<LoadedModel> LoadModel(const std::string& directory);

}  // namespace penstock
