#pragma once

#include <string>

#include "base/status.h"
#include "model/gguf/gguf_file.h"

namespace penstock {

// What sentence-transformers' files say of a model with ARCHITECTURE.pooling_type: modules.json, a
// transformer, a pooling and a normalisation, which llama.cpp does as well; and 1_Pooling's
// config.json. NOT_FOUND without such a key, or if it says that nothing is pooled; INVALID_ARGUMENT
// names it for a type that is not known.
absl::StatusOr<std::string> GgufModulesJson(const GgufFile& file);
absl::StatusOr<std::string> GgufPoolingJson(const GgufFile& file);

}  // namespace penstock
