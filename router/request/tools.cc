#include "router/request/tools.h"

#include <algorithm>
#include <set>

#include "model/grammar/schema_grammar.h"
#include "model/output/xml_arguments.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr size_t kMaxSchemaBytes = 64 << 10;
constexpr size_t kMaxSchemasBytes = 256 << 10;  // of all tools of a request
constexpr char kNoArguments[] = "root ::= \"{}\"\n";

std::string FieldOf(int index) { return fmt::format("{}[{}]", kToolsField, index); }

bool IsToolName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::ranges::all_of(name, [](unsigned char c) {
           return isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
         });
}

absl::Status CheckNames(const v1::ChatPrompt& chat) {
  std::set<std::string> names;
  for (int i = 0; i < chat.tools_size(); ++i) {
    const std::string& name = chat.tools(i).name();
    if (!IsToolName(name)) {
      return BadField(FieldOf(i) + ".name",
                      "must have 1 to {} letters, digits, underscores, hyphens and dots",
                      kMaxNameBytes);
    }
    if (!names.insert(name).second) {
      return BadField(FieldOf(i) + ".name", "is `{}`, as that of an earlier tool", name);
    }
  }
  for (const std::string& name : chat.tool_choice().names()) {
    if (names.contains(name)) continue;
    return BadField(kToolChoiceField, "names `{}`, which is not in the list of tools",
                    ShownText(name));
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const v1::ChatPrompt& chat) {
  size_t bytes = 0;
  for (int i = 0; i < chat.tools_size(); ++i) {
    const size_t size = chat.tools(i).parameters().size();
    bytes += size;
    if (size <= kMaxSchemaBytes) continue;
    return BadField(FieldOf(i) + ".parameters", "has {} bytes; the limit is {}", size,
                    kMaxSchemaBytes);
  }
  if (bytes <= kMaxSchemasBytes) return absl::OkStatus();
  return BadField(kToolsField, "have schemas of {} bytes together; the limit is {}", bytes,
                  kMaxSchemasBytes);
}

absl::StatusOr<ChatJson> ParametersJson(const v1::Tool& tool, const std::string& field) {
  if (tool.parameters().empty()) {
    return ChatJson{{"type", "object"}, {"properties", ChatJson::object()}};
  }
  ChatJson json = ChatJson::parse(tool.parameters(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return BadField(field + ".parameters", "is not a JSON Schema object");
  const auto type = json.find("type");
  if (type == json.end() || *type == "object") return json;
  return BadField(field + ".parameters", "must be the schema of an object: its type is {}",
                  ShownText(type->dump(-1, ' ', false, ChatJson::error_handler_t::replace)));
}

bool HasNoProperties(const ChatJson& schema) {
  const auto properties = schema.find("properties");
  return properties != schema.end() && properties->is_object() && properties->empty();
}

// A schema is of an object even if it does not say so.
std::string ObjectSchema(const v1::Tool& tool, ChatJson schema) {
  if (tool.parameters().empty()) return schema.dump();
  if (schema.contains("type") || schema.contains("$ref") || schema.contains("anyOf") ||
      schema.contains("oneOf") || schema.contains("allOf")) {
    return tool.parameters();
  }
  schema["type"] = "object";
  return schema.dump(-1, ' ', false, ChatJson::error_handler_t::replace);
}

// Models write calls with the white space of ", " and ": " alone, as templates show them.
absl::StatusOr<std::string> JsonArguments(const std::string& schema, bool enforced) {
  auto grammar = SchemaGrammar(schema, /*compact=*/true);
  if (grammar.ok() || enforced) return grammar;
  return SchemaGrammar(R"({"type":"object"})", /*compact=*/true);
}

absl::StatusOr<CallableTool> CallableOf(const v1::Tool& tool, const std::string& field,
                                        const CallNotation& notation, bool enforced) {
  ASSIGN_OR_RETURN(const ChatJson schema, ParametersJson(tool, field));
  CallableTool callable{.name = tool.name()};
  absl::Status status;
  if (!notation.key_begin.empty()) {
    auto arguments = XmlArgumentsOf(ObjectSchema(tool, schema), notation, enforced);
    status = arguments.status();
    if (status.ok()) {
      callable.arguments = std::move(arguments->grammar);
      callable.texts = std::move(arguments->texts);
    }
  } else if (HasNoProperties(schema)) {
    callable.arguments = kNoArguments;
  } else {
    auto grammar = JsonArguments(ObjectSchema(tool, schema), enforced);
    status = grammar.status();
    if (status.ok()) callable.arguments = *std::move(grammar);
  }
  if (status.ok()) return callable;
  return BadField(field + ".parameters", "of `{}` is not supported: {}", tool.name(),
                  ShownText(Message(status), 512));
}

OutputRules::Calls CallsOf(const v1::ToolChoice& choice) {
  switch (choice.mode()) {
    case v1::ToolChoice::NONE:
      return OutputRules::Calls::kForbidden;
    case v1::ToolChoice::REQUIRED:
      return OutputRules::Calls::kRequired;
    default:
      return OutputRules::Calls::kAllowed;
  }
}

}  // namespace

absl::Status CheckTools(const v1::ChatPrompt& chat, const ServedModel& model) {
  if (chat.tools().empty()) {
    const bool asks = chat.tool_choice().mode() == v1::ToolChoice::REQUIRED ||
                      !chat.tool_choice().names().empty();
    return asks ? BadField(kToolChoiceField, "needs a list of tools") : absl::OkStatus();
  }
  if (model.output.calls == nullptr) {
    return WithDetail(
        BadField(kToolsField, "are not supported by {}: {}", model.name, model.output.why_no_calls),
        {.reason = "unsupported_parameter"});
  }
  if (chat.tools_size() > kMaxTools) {
    return BadField(kToolsField, "has {} tools; the limit is {}", chat.tools_size(), kMaxTools);
  }
  RETURN_IF_ERROR(CheckNames(chat));
  return CheckSizes(chat);
}

absl::StatusOr<ChatJson> ToolsJson(const v1::ChatPrompt& chat, const ServedModel& model) {
  ChatJson tools;
  for (int i = 0; i < chat.tools_size(); ++i) {
    const v1::Tool& tool = chat.tools(i);
    ChatJson function = {{"name", tool.name()}};
    if (!tool.description().empty() || model.output.call_style.describes) {
      function["description"] = tool.description();
    }
    ASSIGN_OR_RETURN(function["parameters"], ParametersJson(tool, FieldOf(i)));
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

absl::Status AddToolRules(const v1::ChatPrompt& chat, const ServedModel& model,
                          OutputRules& rules) {
  if (chat.tools().empty()) return absl::OkStatus();
  const v1::ToolChoice& choice = chat.tool_choice();
  rules.calls = CallsOf(choice);
  rules.notation = model.output.calls;
  rules.single = choice.single();
  if (rules.calls == OutputRules::Calls::kForbidden) return absl::OkStatus();
  const bool required = rules.calls == OutputRules::Calls::kRequired;
  for (int i = 0; i < chat.tools_size(); ++i) {
    const v1::Tool& tool = chat.tools(i);
    if (!choice.names().empty() && std::ranges::count(choice.names(), tool.name()) == 0) continue;
    ASSIGN_OR_RETURN(CallableTool callable,
                     CallableOf(tool, FieldOf(i), *rules.notation, required || tool.strict()));
    rules.tools.push_back(std::move(callable));
  }
  return absl::OkStatus();
}

}  // namespace penstock
