#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"
#include "model/gguf/file/gguf_fields.h"

namespace penstock {

// The value of config.json's rope_scaling, null for none, from the keys "ARCHITECTURE.rope.*" and
// from the factors of rope_freqs.weight. INVALID_ARGUMENT names the key or the tensor; `fields`
// keeps errors of keys.
absl::StatusOr<nlohmann::json> GgufRopeScaling(const GgufFile& file,
                                               const std::string& architecture, double theta,
                                               int64_t head_dim, GgufFields& fields);

}  // namespace penstock
