#pragma once

#include <string>

#include "router/api/answer_format.h"
#include "router/embeddings/request.h"

namespace penstock {

// Writes embeddings as OpenAI's clients expect them: one object for each input, in order. They are
// never streamed.
class EmbeddingWriter final : public AnswerFormat {
 public:
  EmbeddingWriter(std::string model, EmbeddingEncoding encoding)
      : model_(std::move(model)), encoding_(encoding) {}

  void AppendChunk(const v1::Chunk& chunk, std::string& out) override;
  void AppendFinal(const v1::Final& ending, std::string& out) override;
  void AppendEnd(const v1::Usage& usage, std::string& out) override;
  void AppendError(const absl::Status& status, std::string& out) override;
  std::string Whole(const v1::GenerateUnaryResponse& answer) override;

 private:
  const std::string model_;
  const EmbeddingEncoding encoding_;
};

}  // namespace penstock
