#include "router/anthropic/request.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "router/anthropic/breakpoints.h"
#include "router/anthropic/conversation.h"
#include "router/anthropic/tool_fields.h"
#include "router/api/error_parts.h"
#include "router/api/http_fields.h"
#include "router/api/json_text.h"
#include "router/request/answer_spec.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

constexpr size_t kMaxStopSequences = 16;

constexpr std::array<std::string_view, 7> kOfPrompt = {
    "cache_control", "messages", "model", "system", "thinking", "tool_choice", "tools"};
constexpr std::array<std::string_view, 7> kOfAnswer = {
    "max_tokens", "output_config", "stop_sequences", "stream", "temperature", "top_k", "top_p"};
constexpr std::array<std::string_view, 4> kIgnored = {"inference_geo", "metadata", "service_tier",
                                                      "speed"};

// Refuses the fields of `body` that are in none of `known`.
template <size_t kCount>
absl::Status RefuseOthers(const Json& body, const std::array<std::string_view, kCount>& more) {
  for (const auto& [name, value] : body.items()) {
    const auto is = [&name = name](const auto& names) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    if (is(kOfPrompt) || is(kIgnored) || is(more) || value.is_null()) continue;
    if (name == "thread") {
      return UnsupportedField("thread",
                              "is not supported by this server; send the whole conversation");
    }
    return UnsupportedField(ShownText(name), "is not supported by this server");
  }
  return absl::OkStatus();
}

absl::Status ReadStopSequences(FieldReader& reader, v1::StopConditions& stop) {
  const Json* sequences = reader.Array("stop_sequences");
  RETURN_IF_ERROR(reader.status());
  if (sequences == nullptr) return absl::OkStatus();
  if (sequences->size() > kMaxStopSequences) {
    return BadField("stop_sequences", "has {} strings; the limit is {}", sequences->size(),
                    kMaxStopSequences);
  }
  for (size_t i = 0; i < sequences->size(); ++i) {
    const Json& text = (*sequences)[i];
    if (!text.is_string()) {
      return BadField(fmt::format("stop_sequences[{}]", i), "must be a string, not {}",
                      KindOf(text));
    }
    stop.add_stop(text.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadAnswerFields(FieldReader& reader, MessageRequest& request) {
  v1::SamplingParams& sampling = *request.generate.mutable_sampling();
  const auto max_tokens = reader.Integer("max_tokens", 1, kMostMaxTokens);
  if (const auto value = reader.Number("temperature")) {
    sampling.set_temperature(static_cast<float>(*value));
  }
  if (const auto value = reader.Number("top_p")) sampling.set_top_p(static_cast<float>(*value));
  if (const auto value = reader.Integer("top_k", 0, kMostMaxTokens)) {
    sampling.set_top_k(static_cast<uint32_t>(*value));
  }
  request.stream = reader.Bool("stream").value_or(false);
  RETURN_IF_ERROR(reader.status());
  if (!max_tokens) return BadField("max_tokens", "is needed");
  request.generate.mutable_stop()->set_max_tokens(static_cast<uint32_t>(*max_tokens));
  return ReadStopSequences(reader, *request.generate.mutable_stop());
}

// output_config.format is the schema of the answer.
absl::Status ReadOutputConfig(FieldReader& reader, std::string_view text,
                              v1::GenerateRequest& generate) {
  const Json* config = reader.Object("output_config");
  RETURN_IF_ERROR(reader.status());
  if (config == nullptr) return absl::OkStatus();
  for (const auto& [name, value] : config->items()) {
    if (name != "format" && !value.is_null())
      return UnsupportedField("output_config." + ShownText(name),
                              "is not supported by this server");
  }
  FieldReader inner(*config, "output_config.");
  const Json* format = inner.Object("format");
  RETURN_IF_ERROR(inner.status());
  if (format == nullptr) return absl::OkStatus();
  FieldReader parts(*format, "output_config.format.");
  const std::string* type = parts.String("type");
  const Json* schema = parts.Object("schema");
  RETURN_IF_ERROR(parts.status());
  if (type == nullptr || *type != "json_schema")
    return BadField("output_config.format.type", "must be \"json_schema\"");
  constexpr std::array<std::string_view, 3> kKeys = {"output_config", "format", "schema"};
  const auto found = schema == nullptr ? std::nullopt : JsonTextAt(text, kKeys);
  if (!found) return BadField(kMessageSchemaField, "is needed: a JSON schema");
  generate.mutable_structured()->set_json_schema(std::string(*found));
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadModel(FieldReader& reader) {
  const std::string* model = reader.String("model");
  RETURN_IF_ERROR(reader.status());
  if (model == nullptr || model->empty()) return BadField("model", "is needed");
  return *model;
}

}  // namespace

absl::StatusOr<MessageRequest> ParseMessageRequest(const Json& body, std::string_view text) {
  RETURN_IF_ERROR(NeedObject(body));
  RETURN_IF_ERROR(RefuseOthers(body, kOfAnswer));
  MessageRequest request;
  FieldReader reader(body, "");
  ASSIGN_OR_RETURN(*request.generate.mutable_model(), ReadModel(reader));
  RETURN_IF_ERROR(ReadAnswerFields(reader, request));
  RETURN_IF_ERROR(ReadOutputConfig(reader, text, request.generate));
  Breakpoints breakpoints;
  v1::ChatPrompt& chat = *request.generate.mutable_chat();
  RETURN_IF_ERROR(ReadMessageTools(body, text, breakpoints, chat));
  RETURN_IF_ERROR(ReadConversation(body, text, breakpoints, chat));
  if (const Json* control = reader.Any("cache_control")) {
    RETURN_IF_ERROR(breakpoints.Read("cache_control", *control,
                                     *request.generate.mutable_cache()->mutable_prompt()));
  }
  request.has_breakpoints = breakpoints.any();
  request.ttl_s = breakpoints.ttl_s();
  return request;
}

absl::StatusOr<v1::TokenizeRequest> ParseCountRequest(const Json& body, std::string_view text) {
  RETURN_IF_ERROR(NeedObject(body));
  RETURN_IF_ERROR(RefuseOthers(body, std::array<std::string_view, 1>{"output_config"}));
  v1::TokenizeRequest request;
  FieldReader reader(body, "");
  ASSIGN_OR_RETURN(*request.mutable_model(), ReadModel(reader));
  Breakpoints breakpoints;
  RETURN_IF_ERROR(ReadMessageTools(body, text, breakpoints, *request.mutable_chat()));
  RETURN_IF_ERROR(ReadConversation(body, text, breakpoints, *request.mutable_chat()));
  return request;
}

}  // namespace penstock
