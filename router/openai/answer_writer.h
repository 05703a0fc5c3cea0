#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "router/api/answer_format.h"

namespace penstock {

// The settings and fields that are the same for every object of one answer.
struct AnswerStyle {
  bool chat = false;
  std::string id;       // "chatcmpl-..." or "cmpl-..."
  std::string model;    // the served name
  int64_t created = 0;  // Unix seconds
  uint32_t choices = 1;
  uint32_t prompt_tokens = 0;
  bool logprobs = false;
  uint32_t top_logprobs = 0;
  bool prompt_logprobs = false;  // of completions in every choice, of chats beside the choices
  bool return_token_ids = false;
  bool include_usage = false;     // a last chunk has the usage; the others have null
  bool continuous_usage = false;  // every chunk has the usage so far
};

// Writes an answer as JSON objects of the OpenAI API.
class AnswerWriter final : public AnswerFormat {
 public:
  explicit AnswerWriter(AnswerStyle style);

  // Each appends one or more server-sent events, "data: {...}\n\n". Before the first chunk of a
  // chat's choice comes one with the role.
  void AppendChunk(const v1::Chunk& chunk, std::string& out) override;
  void AppendFinal(const v1::Final& ending, std::string& out) override;
  void AppendEnd(const v1::Usage& usage, std::string& out) override;
  void AppendError(const absl::Status& status, std::string& out) override;

  std::string Whole(const v1::GenerateUnaryResponse& answer) override;

 private:
  struct ChoiceState {
    bool begun = false;
    uint64_t text_offset = 0;  // Unicode characters before the next token
  };

  void AppendUsage(const v1::Usage& usage, std::string& out) const;
  void BeginObject(std::string& out) const;
  void EndChunk(std::string& out) const;
  void AppendRole(uint32_t index, const v1::Chunk& first, std::string& out);
  void AppendEvent(const v1::Chunk& chunk, const std::string& fields, std::string& out);
  void AppendLogprobs(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& logprobs,
                      ChoiceState& choice, std::string& out);
  void AppendChoice(const v1::Choice& choice, std::string& out);

  const AnswerStyle style_;
  std::vector<ChoiceState> choices_;
  uint32_t answer_tokens_ = 0;  // counted from the chunks' token ids
};

// {"prompt_tokens": ..., "prompt_tokens_details": {"cached_tokens": ...}, ...}
std::string UsageJson(const v1::Usage& usage);

}  // namespace penstock
