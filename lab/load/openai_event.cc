#include "lab/load/openai_event.h"

#include <limits>
#include <nlohmann/json.hpp>

namespace penstock {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxKindBytes = 64;
constexpr size_t kMaxMessageBytes = 500;

const Json* Member(const Json* object, const char* name) {
  if (object == nullptr || !object->is_object()) return nullptr;
  const auto found = object->find(name);
  return found == object->end() ? nullptr : &*found;
}

std::string Text(const Json* value, size_t max) {
  if (value == nullptr || !value->is_string()) return "";
  return value->get_ref<const std::string&>().substr(0, max);
}

uint32_t Count(const Json* value) {
  if (value == nullptr || !value->is_number_unsigned()) return 0;
  return static_cast<uint32_t>(
      std::min<uint64_t>(value->get<uint64_t>(), std::numeric_limits<uint32_t>::max()));
}

bool HasText(const Json* value) {
  return value != nullptr && value->is_string() && !value->get_ref<const std::string&>().empty();
}

void ReadChoice(const Json& choice, OpenAiEvent& event) {
  const Json* delta = Member(&choice, "delta");
  for (const Json* text : {Member(&choice, "text"), Member(delta, "content"),
                           Member(delta, "reasoning_content"), Member(delta, "reasoning")}) {
    event.has_text = event.has_text || HasText(text);
  }
  const Json* ids = Member(&choice, "token_ids");
  if (ids != nullptr && ids->is_array()) {
    event.tokens = event.tokens.value_or(0) + static_cast<uint32_t>(ids->size());
  }
  const std::string reason = Text(Member(&choice, "finish_reason"), kMaxKindBytes);
  if (!reason.empty()) event.finish_reason = reason;
}

OpenAiError ErrorOf(const std::string& prefix, const Json* error) {
  const Json* code = Member(error, "code");
  std::string name = Text(code, kMaxKindBytes);
  if (name.empty() && code != nullptr && code->is_number()) name = code->dump();
  if (name.empty()) name = Text(Member(error, "type"), kMaxKindBytes);
  return {.kind = name.empty() ? prefix : fmt::format("{} {}", prefix, name),
          .message = Text(Member(error, "message"), kMaxMessageBytes)};
}

}  // namespace

absl::StatusOr<OpenAiEvent> ParseOpenAiEvent(std::string_view data) {
  if (data == "[DONE]") return OpenAiEvent{.done = true};
  const Json json = Json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return DataLoss("an event is no JSON object");
  OpenAiEvent event;
  if (const Json* error = Member(&json, "error"); error != nullptr && !error->is_null()) {
    const OpenAiError found = ErrorOf("stream", error);
    event.error = found.kind;
    event.error_message = found.message;
    return event;
  }
  const Json* choices = Member(&json, "choices");
  if (choices != nullptr && choices->is_array()) {
    for (const Json& choice : *choices) ReadChoice(choice, event);
  }
  const Json* usage = Member(&json, "usage");
  if (usage == nullptr || !usage->is_object()) return event;
  event.usage = {
      .prompt_tokens = Count(Member(usage, "prompt_tokens")),
      .cached_tokens = Count(Member(Member(usage, "prompt_tokens_details"), "cached_tokens")),
      .output_tokens = Count(Member(usage, "completion_tokens"))};
  return event;
}

OpenAiError ParseOpenAiError(int status, std::string_view body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  return ErrorOf(std::to_string(status), Member(&json, "error"));
}

}  // namespace penstock
