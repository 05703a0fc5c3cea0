#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "proto/inference.pb.h"
#include "router/request/served_model.h"

namespace penstock {

struct AnswerSpec;

// The embedding that a request wants of its prompt.
struct EmbeddingSpec {
  uint32_t hidden = 0;      // dimensions of the model's hidden states
  uint32_t dimensions = 0;  // of the embedding: the first of `hidden`
  Pooling pooling = Pooling::kLastToken;
  bool normalise = false;
};

// Sets answer.embedding if the request wants one. `answer` is a result of ValidateAnswer.
// INVALID_ARGUMENT names the field; FAILED_PRECONDITION if the model's checkpoint does not say how
// embeddings are made. Pure.
absl::Status TakeEmbedding(const v1::GenerateRequest& request, const ServedModel& model,
                           AnswerSpec& answer);

// The embedding from the pooled hidden state, which has spec.hidden elements. Pure.
std::vector<float> MakeEmbedding(std::span<const float> hidden, const EmbeddingSpec& spec);

}  // namespace penstock
