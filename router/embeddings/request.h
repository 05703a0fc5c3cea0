#pragma once

#include <vector>

#include "base/status.h"
#include "proto/inference.pb.h"
#include "router/request/json.h"

namespace penstock {

inline constexpr size_t kMaxEmbeddingInputs = 1024;  // in one request

// The form of the numbers in an answer.
enum class EmbeddingEncoding {
  kFloat,   // a list of numbers
  kBase64,  // the bytes of little-endian float32 numbers in base64
};

// A parsed request of the Embeddings API.
struct EmbeddingRequest {
  std::vector<v1::GenerateRequest> prompts;  // one for each input
  EmbeddingEncoding encoding = EmbeddingEncoding::kFloat;
};

// Parses a request. INVALID_ARGUMENT names the field and its allowed values. Fields that would
// change the embeddings and are not supported are refused; other unknown fields are ignored. Pure.
absl::StatusOr<EmbeddingRequest> ParseEmbeddingRequest(const Json& body);

}  // namespace penstock
