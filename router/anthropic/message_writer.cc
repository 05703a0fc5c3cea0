#include "router/anthropic/message_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "router/anthropic/error.h"
#include "router/api/cache_control.h"
#include "router/request/json.h"

namespace penstock {
namespace {

std::string JsonString(std::string_view text) {
  std::string out;
  AppendJsonString(text, out);
  return out;
}

void AppendEvent(std::string_view name, std::string_view data, std::string& out) {
  out += fmt::format("event: {}\ndata: {}\n\n", name, data);
}

constexpr char kToolUse[] = "tool_use";

// Anthropic's ids begin otherwise; those that a template demands stay as they are.
std::string UseIdOf(std::string_view id) {
  constexpr std::string_view kCall = "call_";
  if (!id.starts_with(kCall)) return std::string(id);
  return "toolu_" + std::string(id.substr(kCall.size()));
}

// The arguments as a value. Those that max_tokens has cut are no JSON, and the input is empty then.
std::string InputOf(const v1::ToolCall& call) {
  return Json::accept(call.arguments()) ? call.arguments() : "{}";
}

std::vector<std::string> BlocksOf(const v1::Choice& choice) {
  std::vector<std::string> blocks;
  if (!choice.reasoning().empty()) {
    blocks.push_back(fmt::format(R"({{"type":"thinking","thinking":{},"signature":""}})",
                                 JsonString(choice.reasoning())));
  }
  if (!choice.text().empty()) {
    blocks.push_back(fmt::format(R"({{"type":"text","text":{}}})", JsonString(choice.text())));
  }
  for (const v1::ToolCall& call : choice.tool_calls()) {
    blocks.push_back(fmt::format(R"({{"type":"tool_use","id":{},"name":{},"input":{}}})",
                                 JsonString(UseIdOf(call.id())), JsonString(call.name()),
                                 InputOf(call)));
  }
  return blocks;
}

}  // namespace

std::string MessageUsageJson(const v1::Usage& usage, uint32_t output_tokens,
                             std::optional<int64_t> ttl_s) {
  const uint32_t read = usage.cached_tokens();
  const uint32_t written = std::max(usage.pinned_tokens(), read) - read;
  std::string of_lifetimes = "null";  // unknown where breakpoints have two lifetimes
  if (written == 0 || ttl_s) {
    const bool is_long = ttl_s == kLongTtlSeconds;
    of_lifetimes =
        fmt::format(R"({{"ephemeral_5m_input_tokens":{},"ephemeral_1h_input_tokens":{}}})",
                    is_long ? 0 : written, is_long ? written : 0);
  }
  return fmt::format(
      R"({{"input_tokens":{},"cache_creation_input_tokens":{},"cache_read_input_tokens":{},)"
      R"("cache_creation":{},"output_tokens":{}}})",
      usage.prompt_tokens() - read - written, written, read, of_lifetimes, output_tokens);
}

void MessageWriter::BeginMessage(std::string& out) const {
  out += fmt::format(R"({{"id":{},"type":"message","role":"assistant","model":{},)",
                     JsonString(style_.id), JsonString(style_.model));
}

template <class Ending>
std::string MessageWriter::StopFields(const Ending& ending, uint32_t output_tokens) const {
  if (ending.has_matched_stop_string()) {
    return fmt::format(R"("stop_reason":"stop_sequence","stop_sequence":{})",
                       JsonString(ending.matched_stop_string()));
  }
  const char* reason = ending.finish_reason() == v1::STOP         ? "end_turn"
                       : ending.finish_reason() == v1::TOOL_CALLS ? kToolUse
                       : output_tokens < style_.max_tokens        ? "model_context_window_exceeded"
                                                                  : "max_tokens";
  return fmt::format(R"("stop_reason":"{}","stop_sequence":null)", reason);
}

void MessageWriter::Start(const v1::Usage& usage, uint32_t output_tokens, std::string& out) {
  if (started_) return;
  started_ = true;
  std::string data = R"({"type":"message_start","message":)";
  BeginMessage(data);
  data += fmt::format(R"("content":[],"stop_reason":null,"stop_sequence":null,"usage":{}}}}})",
                      MessageUsageJson(usage, output_tokens, style_.ttl_s));
  AppendEvent("message_start", data, out);
}

void MessageWriter::AppendChunk(const v1::Chunk& chunk, std::string& out) {
  Start(chunk.prompt_usage(), 1, out);
  if (!chunk.reasoning().empty()) {
    OpenBlock("thinking", R"("thinking":"","signature":"")", out);
    AppendDelta("thinking_delta", "thinking", chunk.reasoning(), out);
  }
  if (!chunk.text().empty()) {
    OpenBlock("text", R"("text":"")", out);
    AppendDelta("text_delta", "text", chunk.text(), out);
  }
  for (const v1::ToolCallPiece& piece : chunk.tool_calls()) AppendCall(piece, out);
}

void MessageWriter::AppendCall(const v1::ToolCallPiece& piece, std::string& out) {
  if (!piece.id().empty()) {
    CloseBlock(out);
    OpenBlock(kToolUse,
              fmt::format(R"("id":{},"name":{},"input":{{}})", JsonString(UseIdOf(piece.id())),
                          JsonString(piece.name())),
              out);
  }
  if (!piece.arguments().empty()) {
    AppendDelta("input_json_delta", "partial_json", piece.arguments(), out);
  }
}

void MessageWriter::OpenBlock(std::string_view type, std::string_view fields, std::string& out) {
  if (block_ == type) return;
  CloseBlock(out);
  block_ = type;
  AppendEvent("content_block_start",
              fmt::format(R"({{"type":"content_block_start","index":{},"content_block":)"
                          R"({{"type":"{}",{}}}}})",
                          blocks_++, type, fields),
              out);
}

void MessageWriter::CloseBlock(std::string& out) {
  if (block_.empty()) return;
  // Clients send the signature back; nothing is signed here.
  if (block_ == "thinking") AppendDelta("signature_delta", "signature", "", out);
  block_.clear();
  AppendEvent("content_block_stop",
              fmt::format(R"({{"type":"content_block_stop","index":{}}})", blocks_ - 1), out);
}

void MessageWriter::AppendDelta(std::string_view type, std::string_view key, std::string_view text,
                                std::string& out) const {
  AppendEvent("content_block_delta",
              fmt::format(R"({{"type":"content_block_delta","index":{},"delta":)"
                          R"({{"type":"{}","{}":{}}}}})",
                          blocks_ - 1, type, key, JsonString(text)),
              out);
}

void MessageWriter::AppendFinal(const v1::Final& ending, std::string& out) {
  ending_ = ending;
  CloseBlock(out);
}

void MessageWriter::AppendEnd(const v1::Usage& usage, std::string& out) {
  const uint32_t tokens = usage.completion_tokens();
  Start(usage, 0, out);
  AppendEvent(
      "message_delta",
      fmt::format(R"({{"type":"message_delta","delta":{{{}}},"usage":{}}})",
                  StopFields(ending_, tokens), MessageUsageJson(usage, tokens, style_.ttl_s)),
      out);
  AppendEvent("message_stop", R"({"type":"message_stop"})", out);
}

void MessageWriter::AppendError(const absl::Status& status, std::string& out) {
  AppendEvent("error", MessageErrorJson(status, style_.request_id), out);
}

std::string MessageWriter::Whole(const v1::GenerateUnaryResponse& answer) {
  const v1::Choice& choice = answer.choices(0);
  const uint32_t tokens = answer.usage().completion_tokens();
  std::string out;
  BeginMessage(out);
  out += fmt::format(R"("content":[{}])", fmt::join(BlocksOf(choice), ","));
  out += fmt::format(R"(,{},"usage":{}}})", StopFields(choice, tokens),
                     MessageUsageJson(answer.usage(), tokens, style_.ttl_s));
  return out;
}

}  // namespace penstock
