#include "router/responses/response_json.h"

#include <fmt/format.h>

#include <algorithm>

namespace penstock {
namespace {

std::string Quoted(std::string_view text) {
  std::string out;
  AppendJsonString(text, out);
  return out;
}

// A field of requests that responses repeat.
struct EchoField {
  std::string_view name;
  std::string_view absent;  // its value where the request does not have it
};

// The longest ones come last: they are the first that do not fit.
constexpr EchoField kEchoed[] = {
    {"max_output_tokens", "null"},
    {"max_tool_calls", "null"},
    {"parallel_tool_calls", "true"},
    {"temperature", "1.0"},
    {"top_p", "1.0"},
    {"prompt_cache_key", "null"},
    {"safety_identifier", "null"},
    {"user", "null"},
    {"reasoning", R"({"effort":null,"summary":null})"},
    {"tool_choice", R"("auto")"},
    {"metadata", "{}"},
    {"text", R"({"format":{"type":"text"}})"},
    {"tools", "[]"},
    {"instructions", "null"},
};

}  // namespace

std::string PartJson(OutputItem::Kind kind, std::string_view text) {
  if (kind == OutputItem::Kind::kReasoning) {
    return fmt::format(R"({{"type":"reasoning_text","text":{}}})", Quoted(text));
  }
  return fmt::format(R"({{"type":"output_text","text":{},"annotations":[],"logprobs":[]}})",
                     Quoted(text));
}

std::string ItemJson(const OutputItem& item, std::string_view status) {
  const std::string begin = fmt::format(R"({{"id":{},"status":"{}",)", Quoted(item.id), status);
  if (item.kind == OutputItem::Kind::kCall) {
    return begin + fmt::format(R"("type":"function_call","call_id":{},"name":{},"arguments":{}}})",
                               Quoted(item.call_id), Quoted(item.name),
                               Quoted(status == kInProgress ? "" : item.text));
  }
  const std::string part = status == kInProgress ? "" : PartJson(item.kind, item.text);
  if (item.kind == OutputItem::Kind::kReasoning) {
    return begin + fmt::format(R"("type":"reasoning","summary":[],"content":[{}]}})", part);
  }
  return begin + fmt::format(R"("type":"message","role":"assistant","content":[{}]}})", part);
}

std::string ResponseUsageJson(const v1::Usage& usage) {
  const uint32_t cached = usage.cached_tokens();
  return fmt::format(
      R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{},"cache_write_tokens":{}}})"
      R"(,"output_tokens":{},"output_tokens_details":{{"reasoning_tokens":{}}})"
      R"(,"total_tokens":{}}})",
      usage.prompt_tokens(), cached, std::max(usage.pinned_tokens(), cached) - cached,
      usage.completion_tokens(), usage.reasoning_tokens(),
      usage.prompt_tokens() + usage.completion_tokens());
}

std::string EchoMembers(const Json& body) {
  std::string members;
  size_t left = kEchoBytesMax;
  for (const auto& [name, absent] : kEchoed) {
    std::string value(absent);
    if (const auto found = body.find(name); found != body.end() && !found->is_null()) {
      std::string asked = found->dump(-1, ' ', false, Json::error_handler_t::replace);
      if (asked.size() <= left) value = std::move(asked);
    }
    left -= std::min(left, value.size());
    members += fmt::format(R"("{}":{},)", name, value);
  }
  // Nothing is stored, dropped from the input, or run in the background.
  return members + R"("background":false,"previous_response_id":null,"service_tier":"default",)"
                   R"("store":false,"top_logprobs":0,"truncation":"disabled")";
}

}  // namespace penstock
