#include "model/gguf/gguf_embedding.h"

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "model/gguf/file/gguf_fields.h"
#include "model/gguf/gguf_config.h"

namespace penstock {
namespace {

// By the value of the key. Source: llama.cpp's enum llama_pooling_type.
constexpr std::array<std::string_view, 5> kModes = {"", "mean", "cls", "lasttoken", "rank"};

// The mode of pooling, as sentence-transformers names it.
absl::StatusOr<std::string_view> PoolingMode(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::string architecture, GgufArchitecture(file));
  GgufFields fields(file);
  const int64_t type = fields.Int(architecture + ".pooling_type", 0, kModes.size() - 1, 0);
  RETURN_IF_ERROR(fields.status());
  if (type == 0) return NotFound("{} does not say how embeddings are made", file.name);
  return kModes[static_cast<size_t>(type)];
}

}  // namespace

absl::StatusOr<std::string> GgufModulesJson(const GgufFile& file) {
  RETURN_IF_ERROR(PoolingMode(file).status());
  return nlohmann::json{{{"type", "Transformer"}, {"path", ""}},
                        {{"type", "Pooling"}, {"path", "1_Pooling"}},
                        {{"type", "Normalize"}, {"path", "2_Normalize"}}}
      .dump();
}

absl::StatusOr<std::string> GgufPoolingJson(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::string_view mode, PoolingMode(file));
  ASSIGN_OR_RETURN(const std::string architecture, GgufArchitecture(file));
  GgufFields fields(file);
  const int64_t hidden = fields.Int(architecture + ".embedding_length", 1, INT32_MAX);
  RETURN_IF_ERROR(fields.status());
  return nlohmann::json{{"embedding_dimension", hidden}, {"pooling_mode", mode}}.dump();
}

}  // namespace penstock
