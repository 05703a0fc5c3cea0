#pragma once

#include <string>

#include "http/http_message.h"
#include "proto/inference.pb.h"

namespace penstock {

// Interface: writes one answer as an HTTP API has it. One thread at a time.
class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;

  // Each appends server-sent events.
  virtual void AppendChunk(const v1::Chunk& chunk, std::string& out) = 0;
  virtual void AppendFinal(const v1::Final& ending, std::string& out) = 0;
  // The end of a complete stream. `usage` is the sum over all prompts.
  virtual void AppendEnd(const v1::Usage& usage, std::string& out) = 0;
  // The last event of a stream that failed after its first token.
  virtual void AppendError(const absl::Status& status, std::string& out) = 0;

  // The whole answer as one JSON object.
  virtual std::string Whole(const v1::GenerateUnaryResponse& answer) = 0;
};

}  // namespace penstock
