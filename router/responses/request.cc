#include "router/responses/request.h"

#include <algorithm>
#include <array>

#include "router/api/error_parts.h"
#include "router/api/http_fields.h"
#include "router/openai/request_fields.h"
#include "router/openai/sampling_fields.h"
#include "router/openai/structured_fields.h"
#include "router/openai/tool_fields.h"
#include "router/request/answer_spec.h"
#include "router/request/error_detail.h"
#include "router/request/structured.h"
#include "router/responses/input_items.h"

namespace penstock {
namespace {

constexpr size_t kMaxMetadata = 16;
constexpr size_t kMaxKeyBytes = 64;
constexpr size_t kMaxValueBytes = 512;

// Refuses the members of `object` that are neither in `known` nor null. `path` ends with a dot.
template <size_t kCount>
void RefuseMembers(const std::string& path, const Json& object,
                   const std::array<std::string_view, kCount>& known, FieldReader& reader) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_null() || std::ranges::find(known, name) != known.end()) continue;
    reader.Note(UnsupportedField(path + ShownText(name), "is not supported by this server"));
  }
}

// Refuses a value that asks for something else than `only`, the value that asks for nothing.
void AllowOnly(FieldReader& inner, const char* name, std::string_view only) {
  const std::string* value = inner.String(name);
  if (value == nullptr || *value == only) return;
  inner.Note(UnsupportedField(inner.PathOf(name), fmt::format("is `{}`; this server has only `{}`",
                                                              ShownText(*value), only)));
}

// The members of `text` beside its format.
void ReadTextOptions(FieldReader& reader) {
  const Json* options = reader.Object("text");
  if (options == nullptr) return;
  RefuseMembers("text.", *options, std::array<std::string_view, 2>{"format", "verbosity"}, reader);
  FieldReader inner(*options, "text.");
  AllowOnly(inner, "verbosity", "medium");
  reader.Note(inner.status());
}

// A summary is additional output, and the answer has the whole reasoning instead.
void ReadReasoning(FieldReader& reader, v1::ChatPrompt& chat) {
  const Json* options = reader.Object("reasoning");
  if (options == nullptr) return;
  constexpr std::array<std::string_view, 5> kKnown = {"context", "effort", "generate_summary",
                                                      "mode", "summary"};
  RefuseMembers("reasoning.", *options, kKnown, reader);
  FieldReader inner(*options, "reasoning.");
  if (const std::string* effort = inner.String("effort")) chat.set_reasoning_effort(*effort);
  AllowOnly(inner, "context", "auto");
  AllowOnly(inner, "mode", "standard");
  reader.Note(inner.status());
}

// The answer has its reasoning in the open, so nothing is encrypted for the client to send back,
// and the other values are about tools that the server runs.
void ReadInclude(FieldReader& reader) {
  const Json* include = reader.Array("include");
  if (include == nullptr) return;
  for (size_t i = 0; i < include->size(); ++i) {
    if ((*include)[i] != "message.output_text.logprobs") continue;
    reader.Note(
        UnsupportedField(fmt::format("include[{}]", i),
                         "is message.output_text.logprobs, which /v1/responses does not give"));
  }
}

void ReadMetadata(FieldReader& reader) {
  const Json* metadata = reader.Object("metadata");
  if (metadata == nullptr) return;
  if (metadata->size() > kMaxMetadata) {
    reader.Note(
        BadField("metadata", "has {} pairs; the limit is {}", metadata->size(), kMaxMetadata));
  }
  for (const auto& [name, value] : metadata->items()) {
    const std::string field = "metadata." + ShownText(name);
    if (name.size() > kMaxKeyBytes) {
      reader.Note(
          BadField(field, "has a key of {} bytes; the limit is {}", name.size(), kMaxKeyBytes));
    } else if (!value.is_string()) {
      reader.Note(BadField(field, "must be a string, not {}", KindOf(value)));
    } else if (value.get_ref<const std::string&>().size() > kMaxValueBytes) {
      reader.Note(BadField(field, "has {} bytes; the limit is {}",
                           value.get_ref<const std::string&>().size(), kMaxValueBytes));
    }
  }
}

void ReadMaxOutput(FieldReader& reader, v1::StopConditions& stop) {
  if (const auto max = reader.Integer("max_output_tokens", 1, kMostMaxTokens)) {
    stop.set_max_tokens(static_cast<uint32_t>(*max));
  }
}

}  // namespace

absl::StatusOr<ResponseRequest> ParseResponseRequest(const Json& body, std::string_view text) {
  RETURN_IF_ERROR(NeedObject(body));
  ResponseRequest request;
  v1::GenerateRequest& generate = request.generate;
  v1::ChatPrompt& chat = *generate.mutable_chat();
  FieldReader reader(body, "");
  RefuseUnsupported(body, BodyKind::kResponse, reader);
  ReadSharedFields(reader, generate);
  request.stream = reader.Bool("stream").value_or(false);
  ReadMaxOutput(reader, *generate.mutable_stop());
  const std::string structured =
      ReadStructured(reader, text, FormatPlace::kTextFormat, *generate.mutable_structured());
  ReadTextOptions(reader);
  ReadInclude(reader);
  ReadMetadata(reader);
  RETURN_IF_ERROR(reader.status());
  request.names = {{kStructuredField, structured},
                   {"stop.max_tokens", "max_output_tokens"},
                   {"chat", "input"},
                   {"chat.messages", "input"},
                   {"chat.reasoning_effort", "reasoning.effort"},
                   {"chat.template_options", "chat_template_kwargs"},
                   {"chat.tool_choice", "tool_choice"},
                   {"chat.tools", "tools"}};
  RETURN_IF_ERROR(ReadInput(body, chat, request.prompt_names));
  RETURN_IF_ERROR(ReadTools(body, text, ToolForm::kFlat, chat));
  RETURN_IF_ERROR(ReadTemplateFields(body, chat));
  ReadReasoning(reader, chat);
  RETURN_IF_ERROR(reader.status());
  ASSIGN_OR_RETURN(const v1::ReasoningUse reasoning, ReadReasoningUse(body));
  generate.set_reasoning(reasoning);
  return request;
}

}  // namespace penstock
