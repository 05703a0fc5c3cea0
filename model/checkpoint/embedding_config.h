#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace penstock {

// The hidden state that an embedding is made of.
enum class Pooling {
  kLastToken,
  kMean,  // of all tokens
};

// How a checkpoint makes the embedding of a text from the last hidden states of its tokens. Plain
// data.
struct EmbeddingConfig {
  int32_t dimensions = 0;
  Pooling pooling = Pooling::kLastToken;
  bool normalise = false;  // to length 1
};

// Reads modules.json, and the config.json of the pooling that it names, as the library
// sentence-transformers writes them: a transformer, then a pooling, then perhaps a normalisation.
// `hidden` is the model's hidden size. Returns NOT_FOUND without modules.json, which most
// checkpoints lack, and INVALID_ARGUMENT that names the file and the field for other modules and
// for any pooling but that of the last token and the mean of all.
absl::StatusOr<EmbeddingConfig> LoadEmbeddingConfig(const std::string& model, int32_t hidden);

}  // namespace penstock
