#include "router/responses/response_writer.h"

#include <fmt/format.h>

#include <utility>

#include "router/openai/error.h"

namespace penstock {
namespace {

std::string QuotedText(std::string_view text) {
  std::string out;
  AppendJsonString(text, out);
  return out;
}

constexpr std::string_view PrefixOf(OutputItem::Kind kind) {
  switch (kind) {
    case OutputItem::Kind::kReasoning:
      return "rs";
    case OutputItem::Kind::kMessage:
      return "msg";
    case OutputItem::Kind::kCall:
      return "fc";
  }
  return "";
}

// The name of the events of an item's text, before ".delta" and ".done".
constexpr std::string_view TextEventOf(OutputItem::Kind kind) {
  switch (kind) {
    case OutputItem::Kind::kReasoning:
      return "response.reasoning_text";
    case OutputItem::Kind::kMessage:
      return "response.output_text";
    case OutputItem::Kind::kCall:
      return "response.function_call_arguments";
  }
  return "";
}

// The last member of the events of an item's text.
constexpr std::string_view TextEventEnd(OutputItem::Kind kind) {
  return kind == OutputItem::Kind::kMessage ? R"(,"logprobs":[])" : "";
}

std::string_view StatusOf(v1::FinishReason reason) {
  return reason == v1::LENGTH ? kIncomplete : kCompleted;
}

}  // namespace

std::string ResponseWriter::Object(std::string_view status, std::string_view error,
                                   std::string_view usage) const {
  const std::string_view details =
      status == kIncomplete ? R"({"reason":"max_output_tokens"})" : "null";
  return fmt::format(
      R"({{"id":"resp_{}","object":"response","created_at":{},"status":"{}","error":{},)"
      R"("incomplete_details":{},"model":{},"output":[{}],"usage":{},{}}})",
      style_.id, style_.created, status, error, details, QuotedText(style_.model),
      fmt::join(output_, ","), usage, style_.request);
}

void ResponseWriter::AppendEvent(std::string_view name, std::string_view members,
                                 std::string& out) {
  out += fmt::format("event: {0}\ndata: {{\"type\":\"{0}\",\"sequence_number\":{1},{2}}}\n\n", name,
                     sequence_++, members);
}

void ResponseWriter::Begin(std::string& out) {
  if (std::exchange(begun_, true)) return;
  const std::string members = R"("response":)" + Object(kInProgress, "null", "null");
  AppendEvent("response.created", members, out);
  AppendEvent("response.in_progress", members, out);
}

OutputItem ResponseWriter::NewItem(Kind kind, size_t index) const {
  return {.kind = kind, .id = fmt::format("{}_{}{:02x}", PrefixOf(kind), style_.id, index)};
}

std::string ResponseWriter::Place() const {
  std::string place = fmt::format(R"("item_id":"{}","output_index":{})", open_->id, output_.size());
  if (open_->kind != Kind::kCall) place += R"(,"content_index":0)";
  return place;
}

void ResponseWriter::Open(Kind kind, std::string& out) {
  if (open_ && open_->kind == kind) return;
  Close(kCompleted, out);
  Start(NewItem(kind, output_.size()), out);
}

void ResponseWriter::Start(OutputItem item, std::string& out) {
  open_ = std::move(item);
  answers_ |= open_->kind != Kind::kReasoning;
  AppendEvent(
      "response.output_item.added",
      fmt::format(R"("output_index":{},"item":{})", output_.size(), ItemJson(*open_, kInProgress)),
      out);
  if (open_->kind == Kind::kCall) return;
  AppendEvent("response.content_part.added",
              fmt::format(R"({},"part":{})", Place(), PartJson(open_->kind, "")), out);
}

void ResponseWriter::Extend(std::string_view text, std::string& out) {
  open_->text += text;
  AppendEvent(
      fmt::format("{}.delta", TextEventOf(open_->kind)),
      fmt::format(R"({},"delta":{}{})", Place(), QuotedText(text), TextEventEnd(open_->kind)), out);
}

void ResponseWriter::Close(std::string_view status, std::string& out) {
  if (!open_) return;
  const bool call = open_->kind == Kind::kCall;
  const std::string text = QuotedText(open_->text);
  AppendEvent(
      fmt::format("{}.done", TextEventOf(open_->kind)),
      call ? fmt::format(R"({},"name":{},"arguments":{})", Place(), QuotedText(open_->name), text)
           : fmt::format(R"({},"text":{}{})", Place(), text, TextEventEnd(open_->kind)),
      out);
  if (!call) {
    AppendEvent("response.content_part.done",
                fmt::format(R"({},"part":{})", Place(), PartJson(open_->kind, open_->text)), out);
  }
  const std::string item = ItemJson(*open_, status);
  AppendEvent("response.output_item.done",
              fmt::format(R"("output_index":{},"item":{})", output_.size(), item), out);
  output_.push_back(item);
  open_.reset();
}

void ResponseWriter::AppendChunk(const v1::Chunk& chunk, std::string& out) {
  Begin(out);
  if (!chunk.reasoning().empty()) {
    Open(Kind::kReasoning, out);
    Extend(chunk.reasoning(), out);
  }
  if (!chunk.text().empty()) {
    Open(Kind::kMessage, out);
    Extend(chunk.text(), out);
  }
  for (const v1::ToolCallPiece& piece : chunk.tool_calls()) AppendCall(piece, out);
}

void ResponseWriter::AppendCall(const v1::ToolCallPiece& piece, std::string& out) {
  if (!piece.id().empty()) {
    Close(kCompleted, out);
    OutputItem item = NewItem(Kind::kCall, output_.size());
    item.call_id = piece.id();
    item.name = piece.name();
    Start(std::move(item), out);
  }
  if (!piece.arguments().empty()) Extend(piece.arguments(), out);
}

void ResponseWriter::AppendFinal(const v1::Final& ending, std::string& out) {
  Begin(out);
  reason_ = ending.finish_reason();
  if (!answers_ && reason_ != v1::LENGTH) Open(Kind::kMessage, out);
  Close(StatusOf(reason_), out);
}

void ResponseWriter::AppendEnd(const v1::Usage& usage, std::string& out) {
  Begin(out);
  const std::string_view status = StatusOf(reason_);
  AppendEvent(fmt::format("response.{}", status),
              R"("response":)" + Object(status, "null", ResponseUsageJson(usage)), out);
}

void ResponseWriter::AppendError(const absl::Status& status, std::string& out) {
  Begin(out);
  if (open_) output_.push_back(ItemJson(*open_, kIncomplete));
  const std::string error =
      fmt::format(R"({{"code":"server_error","message":{}}})", QuotedText(ErrorText(status)));
  AppendEvent("response.failed", R"("response":)" + Object(kFailed, error, "null"), out);
}

std::vector<OutputItem> ResponseWriter::ItemsOf(const v1::Choice& choice) const {
  std::vector<OutputItem> items;
  const auto add = [&](Kind kind, const std::string& text) {
    items.push_back(NewItem(kind, items.size()));
    items.back().text = text;
  };
  if (!choice.reasoning().empty()) add(Kind::kReasoning, choice.reasoning());
  const bool empty = choice.tool_calls().empty() && choice.finish_reason() != v1::LENGTH;
  if (!choice.text().empty() || empty) add(Kind::kMessage, choice.text());
  for (const v1::ToolCall& call : choice.tool_calls()) {
    add(Kind::kCall, call.arguments());
    items.back().call_id = call.id();
    items.back().name = call.name();
  }
  return items;
}

std::string ResponseWriter::Whole(const v1::GenerateUnaryResponse& answer) {
  const v1::Choice& choice = answer.choices(0);
  const std::string_view status = StatusOf(choice.finish_reason());
  const std::vector<OutputItem> items = ItemsOf(choice);
  for (size_t i = 0; i < items.size(); ++i) {
    output_.push_back(ItemJson(items[i], i + 1 < items.size() ? kCompleted : status));
  }
  return Object(status, "null", ResponseUsageJson(answer.usage()));
}

}  // namespace penstock
