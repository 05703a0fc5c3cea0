#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "router/api/answer_format.h"

namespace penstock {

// What is the same for every object of one answer.
struct MessageStyle {
  std::string id;          // "msg_..."
  std::string model;       // the served name
  std::string request_id;  // for errors
  uint32_t max_tokens = 0;
  // The lifetime of the request's breakpoints, in seconds; nullopt: they have two, or there are
  // none.
  std::optional<int64_t> ttl_s;
};

// Writes an answer as Anthropic's Messages API has it: one text block, or none for an empty answer.
// Sources: https://docs.anthropic.com/en/api/messages and .../messages-streaming
class MessageWriter final : public AnswerFormat {
 public:
  explicit MessageWriter(MessageStyle style) : style_(std::move(style)) {}

  // Each appends events, "event: NAME\ndata: {...}\n\n". message_start comes with the first token.
  void AppendChunk(const v1::Chunk& chunk, std::string& out) override;
  void AppendFinal(const v1::Final& ending, std::string& out) override;
  void AppendEnd(const v1::Usage& usage, std::string& out) override;
  void AppendError(const absl::Status& status, std::string& out) override;

  std::string Whole(const v1::GenerateUnaryResponse& answer) override;

 private:
  // The fields of a message before its content.
  void BeginMessage(std::string& out) const;
  void Start(const v1::Usage& usage, uint32_t output_tokens, std::string& out);
  // "stop_reason":...,"stop_sequence":...
  template <class Ending>
  std::string StopFields(const Ending& ending, uint32_t output_tokens) const;

  const MessageStyle style_;
  bool started_ = false;
  bool in_block_ = false;
  v1::Final ending_;  // the last one
};

// The usage of a request with these figures. The three kinds of input tokens sum to the prompt's:
// read from the cache, written to it by breakpoints, and others.
std::string MessageUsageJson(const v1::Usage& usage, uint32_t output_tokens,
                             std::optional<int64_t> ttl_s);

}  // namespace penstock
