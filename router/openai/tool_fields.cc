#include "router/openai/tool_fields.h"

#include <array>

#include "router/api/json_text.h"
#include "router/request/error_detail.h"
#include "router/request/tools.h"

namespace penstock {
namespace {

absl::Status Unsupported(const std::string& field, const std::string& type) {
  return WithDetail(BadField(field, "is `{}`; only function is supported", ShownText(type)),
                    {.reason = "unsupported_parameter"});
}

struct Function {
  const Json& json;  // has the name
  std::string path;  // of `json` in the body, for errors
};

absl::StatusOr<Function> FunctionOf(const std::string& path, const Json& json, ToolForm form) {
  if (!json.is_object()) return BadField(path, "must be an object, not {}", KindOf(json));
  FieldReader reader(json, path + ".");
  const std::string* type = reader.String("type");
  RETURN_IF_ERROR(reader.status());
  if (type == nullptr) return BadField(path + ".type", "is needed");
  if (*type != "function") return Unsupported(path + ".type", *type);
  if (form == ToolForm::kFlat) return Function{json, path};
  const Json* function = reader.Object("function");
  RETURN_IF_ERROR(reader.status());
  if (function == nullptr) return BadField(path + ".function", "is needed");
  return Function{*function, path + ".function"};
}

// The text of the schema in `text`, the text of a tool.
std::optional<std::string_view> SchemaText(std::string_view text, ToolForm form) {
  constexpr std::array<std::string_view, 2> kKeys = {"function", "parameters"};
  return JsonTextAt(text, std::span(kKeys).subspan(form == ToolForm::kFlat ? 1 : 0));
}

absl::Status ReadTool(const std::string& path, const Json& json, std::string_view text,
                      ToolForm form, v1::Tool& tool) {
  ASSIGN_OR_RETURN(const Function function, FunctionOf(path, json, form));
  FieldReader reader(function.json, function.path + ".");
  const std::string* name = reader.String("name");
  const std::string* description = reader.String("description");
  const Json* parameters = reader.Object("parameters");
  tool.set_strict(reader.Bool("strict").value_or(false));
  RETURN_IF_ERROR(reader.status());
  if (name == nullptr) return BadField(reader.PathOf("name"), "is needed");
  tool.set_name(*name);
  if (description != nullptr) tool.set_description(*description);
  if (parameters == nullptr || parameters->empty()) return absl::OkStatus();
  const auto schema = SchemaText(text, form);
  if (!schema) {
    return BadField(reader.PathOf("parameters"),
                    "has a key with an escape, which is not supported here");
  }
  tool.set_parameters(std::string(*schema));
  return absl::OkStatus();
}

absl::Status ReadList(const Json& list, std::string_view text, ToolForm form,
                      v1::ChatPrompt& chat) {
  if (list.size() > static_cast<size_t>(kMaxTools)) {
    return BadField("tools", "has {} tools; the limit is {}", list.size(), kMaxTools);
  }
  constexpr std::array<std::string_view, 1> kKeys = {"tools"};
  const auto found = JsonTextAt(text, kKeys);
  const auto texts = JsonTextsIn(found.value_or("[]"));
  if (texts.size() != list.size()) {
    return BadField("tools", "has a key with an escape, which is not supported here");
  }
  for (size_t i = 0; i < list.size(); ++i) {
    RETURN_IF_ERROR(
        ReadTool(fmt::format("tools[{}]", i), list[i], texts[i], form, *chat.add_tools()));
  }
  return absl::OkStatus();
}

absl::Status ReadMode(const std::string& field, const std::string& mode, v1::ToolChoice& choice) {
  if (mode == "auto") {
    choice.set_mode(v1::ToolChoice::AUTO);
  } else if (mode == "required") {
    choice.set_mode(v1::ToolChoice::REQUIRED);
  } else if (mode == "none") {
    choice.set_mode(v1::ToolChoice::NONE);
  } else {
    return BadField(field, "is `{}`; it must be none, auto, required, or an object",
                    ShownText(mode));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> NameIn(const std::string& path, const Json& json, ToolForm form) {
  ASSIGN_OR_RETURN(const Function function, FunctionOf(path, json, form));
  FieldReader reader(function.json, function.path + ".");
  const std::string* name = reader.String("name");
  RETURN_IF_ERROR(reader.status());
  if (name == nullptr) return BadField(reader.PathOf("name"), "is needed");
  return *name;
}

// Reads {"mode": ..., "tools": [...]}, which `reader` reads.
absl::Status ReadAllowed(FieldReader& reader, ToolForm form, v1::ToolChoice& choice) {
  const std::string* mode = reader.String("mode");
  const Json* tools = reader.Array("tools");
  RETURN_IF_ERROR(reader.status());
  if (mode == nullptr || (*mode != "auto" && *mode != "required")) {
    return BadField(reader.PathOf("mode"), "must be auto or required");
  }
  RETURN_IF_ERROR(ReadMode(reader.PathOf("mode"), *mode, choice));
  if (tools == nullptr || tools->empty()) {
    return BadField(reader.PathOf("tools"), "is needed: a list of tools");
  }
  for (size_t i = 0; i < tools->size(); ++i) {
    ASSIGN_OR_RETURN(std::string name,
                     NameIn(fmt::format("{}[{}]", reader.PathOf("tools"), i), (*tools)[i], form));
    choice.add_names(std::move(name));
  }
  return absl::OkStatus();
}

// {"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}
absl::Status ReadNestedAllowed(FieldReader& reader, v1::ToolChoice& choice) {
  const Json* allowed = reader.Object("allowed_tools");
  RETURN_IF_ERROR(reader.status());
  if (allowed == nullptr) return BadField("tool_choice.allowed_tools", "is needed");
  FieldReader inner(*allowed, "tool_choice.allowed_tools.");
  return ReadAllowed(inner, ToolForm::kNested, choice);
}

absl::Status ReadChoice(const Json& value, ToolForm form, v1::ToolChoice& choice) {
  if (value.is_string()) return ReadMode("tool_choice", value.get<std::string>(), choice);
  if (!value.is_object()) {
    return BadField("tool_choice", "must be none, auto, required, or an object, not {}",
                    KindOf(value));
  }
  FieldReader reader(value, "tool_choice.");
  const std::string* type = reader.String("type");
  RETURN_IF_ERROR(reader.status());
  if (type != nullptr && *type == "allowed_tools") {
    return form == ToolForm::kFlat ? ReadAllowed(reader, form, choice)
                                   : ReadNestedAllowed(reader, choice);
  }
  ASSIGN_OR_RETURN(std::string name, NameIn("tool_choice", value, form));
  choice.set_mode(v1::ToolChoice::REQUIRED);
  choice.add_names(std::move(name));
  choice.set_single(true);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadTools(const Json& body, std::string_view text, ToolForm form,
                       v1::ChatPrompt& chat) {
  FieldReader reader(body, "");
  const Json* tools = reader.Array("tools");
  const Json* choice = reader.Any("tool_choice");
  const auto parallel = reader.Bool("parallel_tool_calls");
  RETURN_IF_ERROR(reader.status());
  if (tools != nullptr) RETURN_IF_ERROR(ReadList(*tools, text, form, chat));
  if (choice != nullptr) RETURN_IF_ERROR(ReadChoice(*choice, form, *chat.mutable_tool_choice()));
  if (parallel == false) chat.mutable_tool_choice()->set_single(true);
  return absl::OkStatus();
}

absl::Status ReadTemplateFields(const Json& body, v1::ChatPrompt& chat) {
  FieldReader reader(body, "");
  const Json* options = reader.Object("chat_template_kwargs");
  const std::string* effort = reader.String("reasoning_effort");
  RETURN_IF_ERROR(reader.status());
  if (options != nullptr && !options->empty()) {
    for (const auto& [name, value] : options->items()) {
      if (value.is_primitive() && !value.is_null()) continue;
      return BadField("chat_template_kwargs." + ShownText(name),
                      "must be a text, a number or a boolean, not {}", KindOf(value));
    }
    chat.set_template_options(options->dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  if (effort != nullptr) chat.set_reasoning_effort(*effort);
  return absl::OkStatus();
}

absl::StatusOr<v1::ReasoningUse> ReadReasoningUse(const Json& body) {
  FieldReader reader(body, "");
  const bool include = reader.Bool("include_reasoning").value_or(true);
  const bool separate = reader.Bool("separate_reasoning").value_or(true);
  RETURN_IF_ERROR(reader.status());
  if (!include) return v1::REASONING_OMITTED;
  return separate ? v1::REASONING_APART : v1::REASONING_IN_TEXT;
}

}  // namespace penstock
