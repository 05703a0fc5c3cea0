#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "router/api/answer_format.h"
#include "router/responses/response_json.h"

namespace penstock {

// The settings and fields that are the same for every object of one answer.
struct ResponseStyle {
  std::string id;       // 16 hexadecimal digits, which the ids of the response and its items have
  std::string model;    // the served name
  int64_t created = 0;  // Unix seconds
  std::string request = {};  // EchoMembers of the request
};

// Writes an answer as OpenAI's Responses API has it: reasoning, a message and calls, in this order,
// or a message without text for an empty answer. An answer that is cut has what was there. Sources:
// https://platform.openai.com/docs/api-reference/responses/object and .../responses-streaming
class ResponseWriter final : public AnswerFormat {
 public:
  explicit ResponseWriter(ResponseStyle style) : style_(std::move(style)) {}

  // Each appends events, "event: NAME\ndata: {...}\n\n". response.created comes with the first
  // token.
  void AppendChunk(const v1::Chunk& chunk, std::string& out) override;
  void AppendFinal(const v1::Final& ending, std::string& out) override;
  void AppendEnd(const v1::Usage& usage, std::string& out) override;
  void AppendError(const absl::Status& status, std::string& out) override;

  std::string Whole(const v1::GenerateUnaryResponse& answer) override;

 private:
  using Kind = OutputItem::Kind;

  // A response object. `error` and `usage` are JSON; the usage is null until the answer is
  // complete.
  std::string Object(std::string_view status, std::string_view error, std::string_view usage) const;

  void Begin(std::string& out);
  // One item is open at a time. Open closes one that is of another kind, and opens one unless it is
  // open; Close does nothing if none is open.
  void Open(Kind kind, std::string& out);
  void Start(OutputItem item, std::string& out);
  void Close(std::string_view status, std::string& out);
  // Adds to the open item's text.
  void Extend(std::string_view text, std::string& out);
  void AppendCall(const v1::ToolCallPiece& piece, std::string& out);

  // `index` is the item's place in the output.
  OutputItem NewItem(Kind kind, size_t index) const;
  std::vector<OutputItem> ItemsOf(const v1::Choice& choice) const;
  // The members of an event that say which item it is about.
  std::string Place() const;
  void AppendEvent(std::string_view name, std::string_view members, std::string& out);

  const ResponseStyle style_;
  bool begun_ = false;
  uint64_t sequence_ = 0;            // number of the next event
  std::vector<std::string> output_;  // JSON of the items that are complete
  bool answers_ = false;             // an item is a message or a call
  std::optional<OutputItem> open_;   // the item that is being written
  v1::FinishReason reason_ = v1::FINISH_REASON_UNSPECIFIED;
};

}  // namespace penstock
