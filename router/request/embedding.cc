#include "router/request/embedding.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "router/request/answer_spec.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

constexpr double kLeastLength = 1e-12;  // as torch.nn.functional.normalize

absl::Status CheckOnlyEmbedding(const v1::GenerateRequest& request, const AnswerSpec& answer) {
  if (!answer.prompt_only) {
    return BadField("output.embedding", "needs stop.max_tokens to be 0: there is no answer");
  }
  if (answer.sampling.choices() != 1) {
    return BadField("output.embedding", "is one for each prompt; n and best_of must be 1");
  }
  if (answer.echo || answer.prompt_logprobs || request.sampling().has_beam_search() ||
      !answer.sampling.grammar().empty()) {
    return BadField("output.embedding",
                    "cannot be combined with echo, prompt_logprobs, beam_search or structured "
                    "output");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TakeEmbedding(const v1::GenerateRequest& request, const ServedModel& model,
                           AnswerSpec& answer) {
  if (!request.output().has_embedding()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckOnlyEmbedding(request, answer));
  if (!model.embedding.ok()) {
    return WithDetail(FailedPrecondition("{} gives no embeddings: {}", model.name,
                                         Message(model.embedding.status())),
                      {.field = "output.embedding"});
  }
  const auto hidden = static_cast<uint32_t>(model.embedding->dimensions);
  const v1::EmbeddingOptions& asked = request.output().embedding();
  const uint32_t dimensions = asked.has_dimensions() ? asked.dimensions() : hidden;
  if (dimensions < 1 || dimensions > hidden) {
    return BadField("output.embedding.dimensions", "is {}; it must be in [1, {}]", dimensions,
                    hidden);
  }
  answer.embedding = EmbeddingSpec{.hidden = hidden,
                                   .dimensions = dimensions,
                                   .pooling = model.embedding->pooling,
                                   .normalise = model.embedding->normalise};
  return absl::OkStatus();
}

std::vector<float> MakeEmbedding(std::span<const float> hidden, const EmbeddingSpec& spec) {
  PENSTOCK_CHECK_EQ(hidden.size(), spec.hidden);
  std::vector<float> embedding(hidden.begin(), hidden.begin() + spec.dimensions);
  if (!spec.normalise) return embedding;
  double squares = 0;
  for (const float value : embedding) squares += double{value} * value;
  const double length = std::max(std::sqrt(squares), kLeastLength);
  for (float& value : embedding) value = static_cast<float>(value / length);
  return embedding;
}

}  // namespace penstock
