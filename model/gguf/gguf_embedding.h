#pragma once

#include <string>

#include "base/status.h"
#include "model/gguf/file/gguf_file.h"

namespace penstock {

// The text of modules.json, and of 1_Pooling's config.json, that sentence-transformers would have
// for a model with the key ARCHITECTURE.pooling_type: a transformer, a pooling and a normalisation,
// as llama.cpp computes it. NOT_FOUND if the key is absent or says that nothing is pooled;
// INVALID_ARGUMENT names the key if its value is not known.
absl::StatusOr<std::string> GgufModulesJson(const GgufFile& file);
absl::StatusOr<std::string> GgufPoolingJson(const GgufFile& file);

}  // namespace penstock
