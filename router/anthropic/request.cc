#include "router/anthropic/request.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "router/api/cache_control.h"
#include "router/api/json_text.h"
#include "router/request/answer_spec.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

constexpr size_t kMaxMessages = 4096;
constexpr size_t kMaxBlocks = 4096;
constexpr size_t kMaxStopSequences = 16;

constexpr std::array<std::string_view, 4> kOfPrompt = {"cache_control", "messages", "model",
                                                       "system"};
constexpr std::array<std::string_view, 7> kOfAnswer = {
    "max_tokens", "output_config", "stop_sequences", "stream", "temperature", "top_k", "top_p"};
constexpr std::array<std::string_view, 4> kIgnored = {"inference_geo", "metadata", "service_tier",
                                                      "speed"};

struct NeutralField {
  std::string_view name;
  std::string_view neutral;  // JSON: the value that asks for nothing
};
constexpr std::array<NeutralField, 3> kNeutral = {
    NeutralField{"thinking", R"({"type": "disabled"})"}, NeutralField{"tools", "[]"},
    NeutralField{"tool_choice", R"({"type": "none"})"}};

bool AsksForNothing(std::string_view name, const Json& value) {
  const auto found = std::find_if(kNeutral.begin(), kNeutral.end(),
                                  [&](const NeutralField& field) { return field.name == name; });
  return value.is_null() || (found != kNeutral.end() && value == Json::parse(found->neutral));
}

absl::Status Unsupported(std::string_view field, std::string_view why) {
  return WithDetail(BadField(field, "{}", why), {.reason = "unsupported_parameter"});
}

// Refuses the fields of `body` that are in none of `known`.
template <size_t kCount>
absl::Status RefuseOthers(const Json& body, const std::array<std::string_view, kCount>& more) {
  for (const auto& [name, value] : body.items()) {
    const auto is = [&name = name](const auto& names) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    if (is(kOfPrompt) || is(kIgnored) || is(more) || AsksForNothing(name, value)) continue;
    if (name == "thread") {
      return Unsupported("thread", "is not supported by this server; send the whole conversation");
    }
    return Unsupported(ShownText(name), "is not supported by this server");
  }
  return absl::OkStatus();
}

// Collects the lifetimes of breakpoints in the order of the prompt.
class Breakpoints {
 public:
  absl::Status Read(const std::string& path, const Json& control, v1::CacheBreakpoint& breakpoint) {
    RETURN_IF_ERROR(ReadCacheControl(path, control, breakpoint));
    const int64_t ttl_s = breakpoint.ttl().seconds();
    if (ttl_s > kShortTtlSeconds && ttls_.contains(kShortTtlSeconds)) {
      return BadField(path + ".ttl", "is 1h after a breakpoint of 5m; longer ones come first");
    }
    ttls_.insert(ttl_s);
    return absl::OkStatus();
  }
  bool any() const { return !ttls_.empty(); }
  std::optional<int64_t> ttl_s() const {
    if (ttls_.size() != 1) return std::nullopt;
    return *ttls_.begin();
  }

 private:
  std::set<int64_t> ttls_;
};

// Reads the conversation of a body: system, then messages.
class ConversationReader {
 public:
  ConversationReader(const Json& body, Breakpoints& breakpoints)
      : body_(body), breakpoints_(breakpoints) {}

  absl::Status Read(v1::ChatPrompt& chat) {
    FieldReader reader(body_, "");
    const Json* system = reader.Any("system");
    const Json* messages = reader.Array("messages");
    RETURN_IF_ERROR(reader.status());
    if (system != nullptr) {
      v1::Message& message = *chat.add_messages();
      message.set_role("system");
      RETURN_IF_ERROR(ReadContent("system", *system, message));
    }
    if (messages == nullptr) return BadField("messages", "is needed: a list of messages");
    return ReadMessages(*messages, chat);
  }

 private:
  absl::Status ReadMessages(const Json& messages, v1::ChatPrompt& chat) {
    if (messages.empty() || messages.size() > kMaxMessages) {
      return BadField("messages", "has {} messages; it must have 1 to {}", messages.size(),
                      kMaxMessages);
    }
    for (size_t i = 0; i < messages.size(); ++i) {
      RETURN_IF_ERROR(ReadMessage(fmt::format("messages[{}]", i), messages[i], chat));
    }
    if (chat.messages().rbegin()->role() != "assistant") return absl::OkStatus();
    return Unsupported("messages",
                       "end with a message of the assistant; to continue it is not supported by "
                       "this server");
  }

  // Consecutive messages of one role are one message, as in Anthropic's API.
  absl::Status ReadMessage(const std::string& path, const Json& json, v1::ChatPrompt& chat) {
    if (!json.is_object()) return BadField(path, "must be an object, not {}", KindOf(json));
    FieldReader reader(json, path + ".");
    const std::string* role = reader.String("role");
    const Json* content = reader.Any("content");
    RETURN_IF_ERROR(reader.status());
    if (role == nullptr || (*role != "user" && *role != "assistant")) {
      return BadField(path + ".role", "must be \"user\" or \"assistant\"");
    }
    if (content == nullptr) {
      return BadField(path + ".content", "is needed: a string or a list of text blocks");
    }
    const bool joins = !chat.messages().empty() && chat.messages().rbegin()->role() == *role;
    v1::Message& message =
        joins ? *chat.mutable_messages(chat.messages_size() - 1) : *chat.add_messages();
    if (joins) message.add_content()->set_text("\n");
    message.set_role(*role);
    return ReadContent(path + ".content", *content, message);
  }

  absl::Status ReadContent(const std::string& path, const Json& content, v1::Message& message) {
    if (content.is_string()) {
      message.add_content()->set_text(content.get<std::string>());
      return absl::OkStatus();
    }
    if (!content.is_array()) {
      return BadField(path, "must be a string or a list of blocks, not {}", KindOf(content));
    }
    if (content.size() > kMaxBlocks) {
      return BadField(path, "has {} blocks; the limit is {}", content.size(), kMaxBlocks);
    }
    for (size_t i = 0; i < content.size(); ++i) {
      RETURN_IF_ERROR(ReadBlock(fmt::format("{}[{}]", path, i), content[i], message));
    }
    return absl::OkStatus();
  }

  absl::Status ReadBlock(const std::string& path, const Json& block, v1::Message& message) {
    if (!block.is_object()) return BadField(path, "must be an object, not {}", KindOf(block));
    FieldReader reader(block, path + ".");
    const std::string* type = reader.String("type");
    const std::string* text = reader.String("text");
    const Json* control = reader.Any("cache_control");
    RETURN_IF_ERROR(reader.status());
    if (type == nullptr) return BadField(path + ".type", "is needed");
    if (*type != "text") {
      return WithDetail(
          BadField(path + ".type", "is `{}`; only text is supported", ShownText(*type)),
          {.reason = "unsupported_content"});
    }
    if (text == nullptr) return BadField(path + ".text", "is needed");
    v1::ContentPart& part = *message.add_content();
    part.set_text(*text);
    if (control == nullptr) return absl::OkStatus();
    return breakpoints_.Read(path + ".cache_control", *control, *part.mutable_breakpoint());
  }

  const Json& body_;
  Breakpoints& breakpoints_;
};

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
      return Unsupported("output_config." + ShownText(name), "is not supported by this server");
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

absl::Status CheckObject(const Json& body) {
  if (body.is_object()) return absl::OkStatus();
  return WithDetail(InvalidArgument("the body must be a JSON object, not {}", KindOf(body)),
                    {.reason = "invalid_type"});
}

absl::StatusOr<std::string> ReadModel(FieldReader& reader) {
  const std::string* model = reader.String("model");
  RETURN_IF_ERROR(reader.status());
  if (model == nullptr || model->empty()) return BadField("model", "is needed");
  return *model;
}

}  // namespace

absl::StatusOr<MessageRequest> ParseMessageRequest(const Json& body, std::string_view text) {
  RETURN_IF_ERROR(CheckObject(body));
  RETURN_IF_ERROR(RefuseOthers(body, kOfAnswer));
  MessageRequest request;
  FieldReader reader(body, "");
  ASSIGN_OR_RETURN(*request.generate.mutable_model(), ReadModel(reader));
  RETURN_IF_ERROR(ReadAnswerFields(reader, request));
  RETURN_IF_ERROR(ReadOutputConfig(reader, text, request.generate));
  Breakpoints breakpoints;
  RETURN_IF_ERROR(ConversationReader(body, breakpoints).Read(*request.generate.mutable_chat()));
  if (const Json* control = reader.Any("cache_control")) {
    RETURN_IF_ERROR(breakpoints.Read("cache_control", *control,
                                     *request.generate.mutable_cache()->mutable_prompt()));
  }
  request.has_breakpoints = breakpoints.any();
  request.ttl_s = breakpoints.ttl_s();
  return request;
}

absl::StatusOr<v1::TokenizeRequest> ParseCountRequest(const Json& body) {
  RETURN_IF_ERROR(CheckObject(body));
  RETURN_IF_ERROR(RefuseOthers(body, std::array<std::string_view, 1>{"output_config"}));
  v1::TokenizeRequest request;
  FieldReader reader(body, "");
  ASSIGN_OR_RETURN(*request.mutable_model(), ReadModel(reader));
  Breakpoints breakpoints;
  RETURN_IF_ERROR(ConversationReader(body, breakpoints).Read(*request.mutable_chat()));
  return request;
}

}  // namespace penstock
