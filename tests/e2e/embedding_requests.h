#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lab/fake/temp_folder.h"
#include "proto/inference.pb.h"
#include "router/request/embedding.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/support/environment.h"

namespace penstock {

inline constexpr const char* kModules =
    R"([{"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
        {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}])";

// The bundled model, as if it had been trained to embed.
class EmbeddingModel {
 public:
  explicit EmbeddingModel(const std::string& mode = "lasttoken") {
    for (const auto& file : std::filesystem::directory_iterator(ModelFolder())) {
      std::filesystem::create_symlink(file.path(),
                                      folder_.path() + "/" + file.path().filename().string());
    }
    std::filesystem::create_directory(folder_.path() + "/1_Pooling");
    folder_.Write("modules.json", kModules);
    const size_t width = LocalGenerator(ModelFolder()).HiddenState(std::vector<uint32_t>{1}).size();
    folder_.Write(
        "1_Pooling/config.json",
        fmt::format(R"({{"word_embedding_dimension": {}, "pooling_mode_{}": true}})", width, mode));
  }
  const std::string& path() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

inline v1::GenerateRequest EmbeddingOf(const std::vector<uint32_t>& prompt) {
  v1::GenerateRequest request;
  request.mutable_tokens()->mutable_ids()->Assign(prompt.begin(), prompt.end());
  request.mutable_stop()->set_max_tokens(0);
  request.mutable_output()->mutable_embedding();
  return request;
}

// The embedding that the model's folder asks for, of a hidden state.
inline std::vector<float> NormalisedEmbedding(const std::vector<float>& hidden) {
  const auto width = static_cast<uint32_t>(hidden.size());
  return MakeEmbedding(hidden, {.hidden = width, .dimensions = width, .normalise = true});
}

}  // namespace penstock
