#include "router/request/chat_json.h"

#include <algorithm>
#include <array>

#include "router/request/error_detail.h"

namespace penstock {
namespace {

constexpr int kMaxCalls = 128;
constexpr size_t kMaxOptionBytes = 4096;
constexpr std::array<std::string_view, 6> kOwn = {"messages",  "tools",     "add_generation_prompt",
                                                  "bos_token", "eos_token", "documents"};
constexpr std::array<std::string_view, 6> kEfforts = {"none",   "minimal", "low",
                                                      "medium", "high",    "xhigh"};
// The names that templates have for the switch of reasoning.
constexpr std::array<const char*, 2> kSwitches = {"enable_thinking", "thinking"};

absl::StatusOr<ChatJson> CallsJson(const v1::Message& message, const std::string& field,
                                   const ServedModel& model) {
  if (message.tool_calls_size() > kMaxCalls) {
    return BadField(field, "has {} calls; the limit is {}", message.tool_calls_size(), kMaxCalls);
  }
  if (model.output.calls == nullptr) {
    return WithDetail(
        BadField(field, "are not supported by {}: {}", model.name, model.output.why_no_calls),
        {.reason = "unsupported_parameter"});
  }
  if (!model.output.calls->parallel && message.tool_calls_size() > 1) {
    return BadField(field, "has {} calls; the chat template of {} shows one in a message",
                    message.tool_calls_size(), model.name);
  }
  ChatJson calls = ChatJson::array();
  for (int i = 0; i < message.tool_calls_size(); ++i) {
    const v1::ToolCall& call = message.tool_calls(i);
    const std::string arguments = call.arguments().empty() ? "{}" : call.arguments();
    auto json = CallJson(model.output.call_style, call.id(), call.name(), arguments);
    if (!json.ok()) {
      return BadField(fmt::format("{}[{}].arguments", field, i), "{}", Message(json.status()));
    }
    calls.push_back(*std::move(json));
  }
  return calls;
}

void ShowReasoning(const v1::Message& message, const ServedModel& model, ChatJson& json) {
  if (message.reasoning().empty()) return;
  json["reasoning_content"] = message.reasoning();
  const ReasoningNotation* notation = model.output.reasoning;
  if (notation == nullptr || notation->shown_in.empty()) return;
  const bool has_content =
      json["content"].is_string() && !json["content"].get_ref<const std::string&>().empty();
  if (message.tool_calls().empty() || !has_content) json[notation->shown_in] = message.reasoning();
}

bool IsWordChar(char c) { return isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// True if the template has the name as a whole word.
bool Names(const ServedModel& model, std::string_view variable) {
  const std::string_view source = model.chat_template->source();
  for (size_t at = source.find(variable); at != std::string_view::npos;
       at = source.find(variable, at + 1)) {
    const size_t end = at + variable.size();
    const bool begins = at == 0 || !IsWordChar(source[at - 1]);
    if (begins && (end == source.size() || !IsWordChar(source[end]))) return true;
  }
  return false;
}

absl::Status ReadEffort(const v1::ChatPrompt& chat, const ServedModel& model, ChatJson& variables) {
  constexpr char kField[] = "chat.reasoning_effort";
  const std::string& effort = chat.reasoning_effort();
  if (effort.empty()) return absl::OkStatus();
  if (std::ranges::find(kEfforts, effort) == kEfforts.end()) {
    return BadField(kField, "is `{}`; it must be one of {}", ShownText(effort),
                    fmt::join(kEfforts, ", "));
  }
  const bool on = effort != "none";
  bool switched = false;
  for (const char* name : kSwitches) {
    if (variables.contains(name) || !Names(model, name)) continue;
    variables[name] = on;
    switched = true;
  }
  if (Names(model, "reasoning_effort")) {
    variables["reasoning_effort"] = effort;
    switched = true;
  }
  const bool reasons = model.output.reasoning != nullptr;
  // A model that always reasons does so at any effort, and one that never does at none.
  if (switched || on == reasons) return absl::OkStatus();
  return WithDetail(
      BadField(kField, "is `{}`, but {} {}", effort, model.name,
               on ? "does not reason" : "always reasons: its chat template has no switch for it"),
      {.reason = "unsupported_parameter"});
}

}  // namespace

absl::StatusOr<ChatJson> MessageJson(const v1::Message& message, int index,
                                     const ServedModel& model) {
  const std::string field = fmt::format("chat.messages[{}]", index);
  std::string content;
  for (int i = 0; i < message.content_size(); ++i) {
    if (!message.content(i).has_text()) {
      return BadField(fmt::format("{}.content[{}]", field, i), "has no text");
    }
    content += message.content(i).text();
  }
  ChatJson json = {{"role", message.role()}, {"content", content}};
  if (!message.tool_calls().empty()) {
    if (content.empty() && model.output.call_style.content_null) json["content"] = nullptr;
    ASSIGN_OR_RETURN(json["tool_calls"], CallsJson(message, field + ".tool_calls", model));
  }
  if (!message.tool_call_id().empty()) json["tool_call_id"] = message.tool_call_id();
  ShowReasoning(message, model, json);
  if (!message.name().empty()) json["name"] = message.name();
  return json;
}

absl::StatusOr<ChatJson> TemplateVariables(const v1::ChatPrompt& chat, const ServedModel& model) {
  constexpr char kField[] = "chat.template_options";
  ChatJson variables = ChatJson::object();
  if (chat.template_options().size() > kMaxOptionBytes) {
    return BadField(kField, "has {} bytes; the limit is {}", chat.template_options().size(),
                    kMaxOptionBytes);
  }
  if (!chat.template_options().empty()) {
    variables = ChatJson::parse(chat.template_options(), nullptr, /*allow_exceptions=*/false);
    if (!variables.is_object()) return BadField(kField, "is not a JSON object");
  }
  for (const auto& [name, value] : variables.items()) {
    const std::string field = fmt::format("{}.{}", kField, ShownText(name));
    if (!value.is_primitive() || value.is_null()) {
      return BadField(field, "must be a text, a number or a boolean");
    }
    if (std::ranges::find(kOwn, name) != kOwn.end()) {
      return BadField(field, "is set by the router");
    }
    if (!Names(model, name)) {
      return BadField(field, "has no effect: the chat template of {} does not name it", model.name);
    }
  }
  RETURN_IF_ERROR(ReadEffort(chat, model, variables));
  return variables;
}

}  // namespace penstock
