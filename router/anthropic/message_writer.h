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

// Writes an answer as Anthropic's Messages API has it: blocks of thinking, text and tool use, or
// none for an empty answer. Sources: https://docs.anthropic.com/en/api/messages and
// .../messages-streaming
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
  // One block is open at a time. Each begins one, unless it is open, or ends the open one.
  void OpenBlock(std::string_view type, std::string_view fields, std::string& out);
  void CloseBlock(std::string& out);
  // A delta of the open block: {"type":`type`,`key`:`text`}.
  void AppendDelta(std::string_view type, std::string_view key, std::string_view text,
                   std::string& out) const;
  void AppendCall(const v1::ToolCallPiece& piece, std::string& out);
  // "stop_reason":...,"stop_sequence":...
  template <class Ending>
  std::string StopFields(const Ending& ending, uint32_t output_tokens) const;

  const MessageStyle style_;
  bool started_ = false;
  std::string block_;    // the type of the open block; empty: none is open
  uint32_t blocks_ = 0;  // begun so far
  v1::Final ending_;     // the last one
};

// The usage of a request with these figures. The three kinds of input tokens sum to the prompt's:
// read from the cache, written to it by breakpoints, and others.
std::string MessageUsageJson(const v1::Usage& usage, uint32_t output_tokens,
                             std::optional<int64_t> ttl_s);

}  // namespace penstock
