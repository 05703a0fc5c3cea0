#include "router/openai/chat_messages.h"

#include <algorithm>
#include <array>

#include "router/api/cache_control.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

constexpr size_t kMaxParts = 4096;
constexpr size_t kMaxCalls = 128;
constexpr std::array<std::string_view, 1> kTextTypes = {"text"};

absl::Status ReadPart(const std::string& path, const Json& part,
                      std::span<const std::string_view> types, v1::Message& message) {
  if (!part.is_object()) return BadField(path, "must be an object, not {}", KindOf(part));
  FieldReader reader(part, path + ".");
  const std::string* type = reader.String("type");
  if (type != nullptr && std::ranges::find(types, *type) == types.end()) {
    return WithDetail(BadField(path + ".type", "is `{}`; only text is supported", ShownText(*type)),
                      {.reason = "unsupported_content"});
  }
  const std::string* text = reader.String("text");
  if (text == nullptr && reader.status().ok()) return BadField(path + ".text", "is needed");
  RETURN_IF_ERROR(reader.status());
  v1::ContentPart& content = *message.add_content();
  content.set_text(*text);
  const Json* control = reader.Any("cache_control");
  if (control == nullptr) return absl::OkStatus();
  return ReadCacheControl(path + ".cache_control", *control, *content.mutable_breakpoint());
}

absl::Status ReadCall(const std::string& path, const Json& json, v1::ToolCall& call) {
  if (!json.is_object()) return BadField(path, "must be an object, not {}", KindOf(json));
  FieldReader reader(json, path + ".");
  const std::string* id = reader.String("id");
  const std::string* type = reader.String("type");
  const Json* function = reader.Object("function");
  RETURN_IF_ERROR(reader.status());
  if (id == nullptr) return BadField(path + ".id", "is needed");
  if (type != nullptr && *type != "function") {
    return WithDetail(
        BadField(path + ".type", "is `{}`; only function is supported", ShownText(*type)),
        {.reason = "unsupported_content"});
  }
  if (function == nullptr) return BadField(path + ".function", "is needed");
  FieldReader inner(*function, path + ".function.");
  const std::string* name = inner.String("name");
  const std::string* arguments = inner.String("arguments");
  RETURN_IF_ERROR(inner.status());
  if (name == nullptr) return BadField(inner.PathOf("name"), "is needed");
  call.set_id(*id);
  call.set_name(*name);
  if (arguments != nullptr) call.set_arguments(*arguments);
  return absl::OkStatus();
}

absl::Status ReadCalls(const std::string& path, FieldReader& reader, v1::Message& message) {
  const Json* calls = reader.Array("tool_calls");
  RETURN_IF_ERROR(reader.status());
  if (calls == nullptr) return absl::OkStatus();
  if (calls->size() > kMaxCalls) {
    return BadField(path, "has {} calls; the limit is {}", calls->size(), kMaxCalls);
  }
  for (size_t i = 0; i < calls->size(); ++i) {
    RETURN_IF_ERROR(
        ReadCall(fmt::format("{}[{}]", path, i), (*calls)[i], *message.add_tool_calls()));
  }
  return absl::OkStatus();
}

// The fields of an assistant's message beside its content.
absl::Status ReadAssistant(FieldReader& reader, v1::Message& message) {
  RETURN_IF_ERROR(ReadCalls(reader.PathOf("tool_calls"), reader, message));
  for (const char* name : {"reasoning_content", "reasoning"}) {
    const std::string* reasoning = reader.String(name);
    if (reasoning != nullptr && message.reasoning().empty()) message.set_reasoning(*reasoning);
  }
  return reader.status();
}

absl::Status ReadToolResult(FieldReader& reader, v1::Message& message) {
  const std::string* id = reader.String("tool_call_id");
  const std::string* name = reader.String("name");
  RETURN_IF_ERROR(reader.status());
  if (id == nullptr) return BadField(reader.PathOf("tool_call_id"), "is needed");
  message.set_tool_call_id(*id);
  if (name != nullptr) message.set_name(*name);
  return absl::OkStatus();
}

absl::Status ReadMessage(size_t index, const Json& json, v1::Message& message) {
  const std::string path = fmt::format("messages[{}]", index);
  if (!json.is_object()) return BadField(path, "must be an object, not {}", KindOf(json));
  FieldReader reader(json, path + ".");
  const std::string* role = reader.String("role");
  RETURN_IF_ERROR(reader.status());
  if (role == nullptr) return BadField(path + ".role", "is needed");
  // OpenAI's newer name of the role "system", which templates use.
  message.set_role(*role == "developer" ? "system" : *role);
  const Json* call = reader.Any("function_call");
  if (call != nullptr && !call->empty()) {
    return WithDetail(
        BadField(reader.PathOf("function_call"), "is not supported by this server; use tool_calls"),
        {.reason = "unsupported_parameter"});
  }
  if (*role == "assistant") RETURN_IF_ERROR(ReadAssistant(reader, message));
  if (*role == "tool") RETURN_IF_ERROR(ReadToolResult(reader, message));
  const Json* content = reader.Any("content");
  if (content == nullptr && !message.tool_calls().empty()) return absl::OkStatus();
  return ReadContent(path + ".content", content, kTextTypes, message);
}

}  // namespace

absl::Status ReadContent(const std::string& path, const Json* content,
                         std::span<const std::string_view> types, v1::Message& message) {
  if (content == nullptr) return BadField(path, "is needed: a string or a list of text parts");
  if (content->is_string()) {
    message.add_content()->set_text(content->get<std::string>());
    return absl::OkStatus();
  }
  if (!content->is_array()) {
    return BadField(path, "must be a string or a list of parts, not {}", KindOf(*content));
  }
  if (content->size() > kMaxParts) {
    return BadField(path, "has {} parts; the limit is {}", content->size(), kMaxParts);
  }
  for (size_t i = 0; i < content->size(); ++i) {
    RETURN_IF_ERROR(ReadPart(fmt::format("{}[{}]", path, i), (*content)[i], types, message));
  }
  return absl::OkStatus();
}

absl::Status ReadMessages(const Json& body, v1::ChatPrompt& chat) {
  FieldReader reader(body, "");
  const Json* messages = reader.Array("messages");
  RETURN_IF_ERROR(reader.status());
  if (messages == nullptr) return BadField("messages", "is needed: a list of messages");
  if (messages->empty() || messages->size() > kMaxMessages) {
    return BadField("messages", "has {} messages; it must have 1 to {}", messages->size(),
                    kMaxMessages);
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    RETURN_IF_ERROR(ReadMessage(i, (*messages)[i], *chat.add_messages()));
  }
  if (const auto prompt = reader.Bool("add_generation_prompt")) {
    chat.set_add_generation_prompt(*prompt);
  }
  return reader.status();
}

}  // namespace penstock
