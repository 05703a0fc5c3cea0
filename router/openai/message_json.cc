#include "router/openai/message_json.h"

#include <fmt/format.h>

#include "router/request/json.h"

namespace penstock {
namespace {

void AppendText(std::string_view name, std::string_view value, std::string& out) {
  out += fmt::format("\"{}\":", name);
  AppendJsonString(value, out);
}

// DeepSeek's and SGLang's name, and vLLM's and Ollama's.
void AppendReasoning(std::string_view reasoning, std::string& out) {
  AppendText("reasoning_content", reasoning, out);
  out += ',';
  AppendText("reasoning", reasoning, out);
}

std::string TextDelta(const v1::Chunk& chunk) {
  std::string delta = "{";
  if (!chunk.reasoning().empty()) AppendReasoning(chunk.reasoning(), delta);
  if (!chunk.text().empty() || chunk.reasoning().empty()) {
    if (delta.size() > 1) delta += ',';
    AppendText("content", chunk.text(), delta);
  }
  return delta + "}";
}

std::string NameDelta(const v1::ToolCallPiece& piece) {
  std::string delta = fmt::format(R"({{"tool_calls":[{{"index":{},)", piece.index());
  AppendText("id", piece.id(), delta);
  delta += R"(,"type":"function","function":{)";
  AppendText("name", piece.name(), delta);
  return delta + R"(,"arguments":""}}]})";
}

std::string ArgumentsDelta(const v1::ToolCallPiece& piece) {
  std::string delta = fmt::format(R"({{"tool_calls":[{{"index":{},"function":{{)", piece.index());
  AppendText("arguments", piece.arguments(), delta);
  return delta + "}}]}";
}

}  // namespace

std::vector<std::string> DeltasOf(const v1::Chunk& chunk) {
  std::vector<std::string> deltas;
  const bool text = !chunk.text().empty() || !chunk.reasoning().empty();
  if (text || chunk.tool_calls().empty()) deltas.push_back(TextDelta(chunk));
  for (const v1::ToolCallPiece& piece : chunk.tool_calls()) {
    if (!piece.id().empty()) deltas.push_back(NameDelta(piece));
    if (!piece.arguments().empty()) deltas.push_back(ArgumentsDelta(piece));
  }
  return deltas;
}

bool BeginsWithText(const v1::Chunk& chunk) {
  return !chunk.text().empty() || (chunk.reasoning().empty() && chunk.tool_calls().empty());
}

void AppendMessage(const v1::Choice& choice, std::string& out) {
  out += R"("message":{"role":"assistant",)";
  const bool null = choice.text().empty() && !choice.tool_calls().empty();
  if (null) {
    out += R"("content":null)";
  } else {
    AppendText("content", choice.text(), out);
  }
  if (!choice.reasoning().empty()) {
    out += ',';
    AppendReasoning(choice.reasoning(), out);
  }
  for (int i = 0; i < choice.tool_calls_size(); ++i) {
    const v1::ToolCall& call = choice.tool_calls(i);
    out += i == 0 ? R"(,"tool_calls":[{)" : ",{";
    AppendText("id", call.id(), out);
    out += R"(,"type":"function","function":{)";
    AppendText("name", call.name(), out);
    out += ',';
    AppendText("arguments", call.arguments(), out);
    out += "}}";
  }
  if (!choice.tool_calls().empty()) out += ']';
  out += R"(,"refusal":null})";
}

}  // namespace penstock
