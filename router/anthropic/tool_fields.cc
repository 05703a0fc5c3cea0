#include "router/anthropic/tool_fields.h"

#include <array>

#include "router/api/error_parts.h"
#include "router/api/json_text.h"
#include "router/request/error_detail.h"
#include "router/request/tools.h"

namespace penstock {
namespace {

absl::Status ReadTool(const std::string& path, const Json& json, std::string_view text,
                      Breakpoints& breakpoints, v1::Tool& tool) {
  if (!json.is_object()) return BadField(path, "must be an object, not {}", KindOf(json));
  FieldReader reader(json, path + ".");
  const std::string* type = reader.String("type");
  const std::string* name = reader.String("name");
  const std::string* description = reader.String("description");
  const Json* schema = reader.Object("input_schema");
  const Json* control = reader.Any("cache_control");
  tool.set_strict(reader.Bool("strict").value_or(false));
  RETURN_IF_ERROR(reader.status());
  if (type != nullptr && *type != "custom") {
    return UnsupportedField(path + ".type",
                            fmt::format("is `{}`; this server runs no tools", ShownText(*type)));
  }
  if (name == nullptr) return BadField(path + ".name", "is needed");
  if (schema == nullptr) return BadField(path + ".input_schema", "is needed: a JSON schema");
  tool.set_name(*name);
  if (description != nullptr) tool.set_description(*description);
  constexpr std::array<std::string_view, 1> kKeys = {"input_schema"};
  const auto found = JsonTextAt(text, kKeys);
  if (!found) {
    return BadField(path, "has a key with an escape, which is not supported here");
  }
  if (!schema->empty()) tool.set_parameters(std::string(*found));
  if (control == nullptr) return absl::OkStatus();
  return breakpoints.Read(path + ".cache_control", *control, *tool.mutable_breakpoint());
}

absl::Status ReadTools(const Json& tools, std::string_view text, Breakpoints& breakpoints,
                       v1::ChatPrompt& chat) {
  if (tools.size() > static_cast<size_t>(kMaxTools)) {
    return BadField("tools", "has {} tools; the limit is {}", tools.size(), kMaxTools);
  }
  constexpr std::array<std::string_view, 1> kKeys = {"tools"};
  const auto texts = JsonTextsIn(JsonTextAt(text, kKeys).value_or("[]"));
  if (texts.size() != tools.size()) {
    return BadField("tools", "has a key with an escape, which is not supported here");
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    RETURN_IF_ERROR(
        ReadTool(fmt::format("tools[{}]", i), tools[i], texts[i], breakpoints, *chat.add_tools()));
  }
  return absl::OkStatus();
}

absl::Status ReadChoice(const Json& json, v1::ToolChoice& choice) {
  FieldReader reader(json, "tool_choice.");
  const std::string* type = reader.String("type");
  const std::string* name = reader.String("name");
  choice.set_single(reader.Bool("disable_parallel_tool_use").value_or(false));
  RETURN_IF_ERROR(reader.status());
  if (type == nullptr) return BadField("tool_choice.type", "is needed");
  if (*type == "auto") {
    choice.set_mode(v1::ToolChoice::AUTO);
  } else if (*type == "none") {
    choice.set_mode(v1::ToolChoice::NONE);
  } else if (*type == "any") {
    choice.set_mode(v1::ToolChoice::REQUIRED);
  } else if (*type == "tool") {
    if (name == nullptr) return BadField("tool_choice.name", "is needed");
    choice.set_mode(v1::ToolChoice::REQUIRED);
    choice.add_names(*name);
    choice.set_single(true);
  } else {
    return BadField("tool_choice.type", "is `{}`; it must be auto, any, tool or none",
                    ShownText(*type));
  }
  return absl::OkStatus();
}

// A budget is no limit here: max_tokens is.
absl::Status ReadThinking(const Json& json, v1::ChatPrompt& chat) {
  FieldReader reader(json, "thinking.");
  const std::string* type = reader.String("type");
  RETURN_IF_ERROR(reader.status());
  if (type == nullptr) return BadField("thinking.type", "is needed");
  if (*type != "enabled" && *type != "adaptive" && *type != "disabled") {
    return BadField("thinking.type", "is `{}`; it must be enabled, adaptive or disabled",
                    ShownText(*type));
  }
  chat.set_reasoning_effort(*type == "disabled" ? "none" : "medium");
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadMessageTools(const Json& body, std::string_view text, Breakpoints& breakpoints,
                              v1::ChatPrompt& chat) {
  FieldReader reader(body, "");
  const Json* tools = reader.Array("tools");
  const Json* choice = reader.Object("tool_choice");
  const Json* thinking = reader.Object("thinking");
  RETURN_IF_ERROR(reader.status());
  if (tools != nullptr) RETURN_IF_ERROR(ReadTools(*tools, text, breakpoints, chat));
  if (choice != nullptr) RETURN_IF_ERROR(ReadChoice(*choice, *chat.mutable_tool_choice()));
  if (thinking != nullptr) RETURN_IF_ERROR(ReadThinking(*thinking, chat));
  return absl::OkStatus();
}

}  // namespace penstock
