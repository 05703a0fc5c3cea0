#include "router/anthropic/conversation.h"

#include <array>

#include "router/api/error_parts.h"
#include "router/api/json_text.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

constexpr size_t kMaxMessages = 4096;
constexpr size_t kMaxBlocks = 4096;

std::string_view TextAt(std::string_view json, std::string_view key) {
  const std::array<std::string_view, 1> keys = {key};
  return JsonTextAt(json, keys).value_or("");
}

// A value and its text in the body.
struct Written {
  const Json& json;
  std::string_view text;
};

class ConversationReader {
 public:
  ConversationReader(Breakpoints& breakpoints, v1::ChatPrompt& chat)
      : breakpoints_(breakpoints), chat_(chat) {}

  absl::Status ReadSystem(const Json& system) {
    v1::Message& message = *chat_.add_messages();
    message.set_role("system");
    return ReadTexts("system", system, message);
  }

  absl::Status ReadMessages(const Written& messages) {
    if (messages.json.empty() || messages.json.size() > kMaxMessages) {
      return BadField("messages", "has {} messages; it must have 1 to {}", messages.json.size(),
                      kMaxMessages);
    }
    const auto texts = JsonTextsIn(messages.text);
    for (size_t i = 0; i < messages.json.size(); ++i) {
      const std::string_view text = i < texts.size() ? texts[i] : "";
      RETURN_IF_ERROR(ReadMessage(fmt::format("messages[{}]", i), {messages.json[i], text}));
    }
    if (role_ != "assistant") return absl::OkStatus();
    return UnsupportedField("messages",
                            "end with a message of the assistant; to continue it is not supported "
                            "by this server");
  }

 private:
  absl::Status ReadMessage(const std::string& path, const Written& written) {
    const Json& json = written.json;
    if (!json.is_object()) return BadField(path, "must be an object, not {}", KindOf(json));
    FieldReader reader(json, path + ".");
    const std::string* role = reader.String("role");
    const Json* content = reader.Any("content");
    RETURN_IF_ERROR(reader.status());
    if (role == nullptr || (*role != "user" && *role != "assistant")) {
      return BadField(path + ".role", "must be \"user\" or \"assistant\"");
    }
    if (content == nullptr) {
      return BadField(path + ".content", "is needed: a string or a list of blocks");
    }
    // Consecutive messages of one role are one message, as in Anthropic's API.
    if (role_ == *role && LastIsOurs() && !chat_.messages().rbegin()->content().empty()) {
      Last().add_content()->set_text("\n");
    }
    role_ = *role;
    return ReadContent(path + ".content", {*content, TextAt(written.text, "content")});
  }

  bool LastIsOurs() const {
    return !chat_.messages().empty() && chat_.messages().rbegin()->role() == role_;
  }
  // The message of the present turn, which begins here unless there is one.
  v1::Message& Last() {
    if (!LastIsOurs()) chat_.add_messages()->set_role(role_);
    return *chat_.mutable_messages(chat_.messages_size() - 1);
  }

  absl::Status ReadContent(const std::string& path, const Written& content) {
    if (content.json.is_string()) {
      Last().add_content()->set_text(content.json.get<std::string>());
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(CheckBlocks(path, content.json));
    const auto texts = JsonTextsIn(content.text);
    for (size_t i = 0; i < content.json.size(); ++i) {
      const std::string_view text = i < texts.size() ? texts[i] : "";
      RETURN_IF_ERROR(ReadBlock(fmt::format("{}[{}]", path, i), {content.json[i], text}));
    }
    return absl::OkStatus();
  }

  static absl::Status CheckBlocks(const std::string& path, const Json& content) {
    if (!content.is_array()) {
      return BadField(path, "must be a string or a list of blocks, not {}", KindOf(content));
    }
    if (content.size() <= kMaxBlocks) return absl::OkStatus();
    return BadField(path, "has {} blocks; the limit is {}", content.size(), kMaxBlocks);
  }

  absl::Status ReadBlock(const std::string& path, const Written& block) {
    if (!block.json.is_object()) {
      return BadField(path, "must be an object, not {}", KindOf(block.json));
    }
    FieldReader reader(block.json, path + ".");
    const std::string* type = reader.String("type");
    RETURN_IF_ERROR(reader.status());
    if (type == nullptr) return BadField(path + ".type", "is needed");
    if (*type == "tool_use" && role_ == "assistant") return ReadCall(path, block);
    if (*type == "tool_result" && role_ == "user") return ReadResult(path, block.json);
    if (*type == "thinking" && role_ == "assistant") return ReadThinking(path, block.json);
    if (*type == "redacted_thinking" && role_ == "assistant") return absl::OkStatus();
    return ReadText(path, block.json, Last());
  }

  absl::Status ReadCall(const std::string& path, const Written& block) {
    FieldReader reader(block.json, path + ".");
    const std::string* id = reader.String("id");
    const std::string* name = reader.String("name");
    const Json* input = reader.Object("input");
    RETURN_IF_ERROR(reader.status());
    if (id == nullptr) return BadField(path + ".id", "is needed");
    if (name == nullptr) return BadField(path + ".name", "is needed");
    v1::ToolCall& call = *Last().add_tool_calls();
    call.set_id(*id);
    call.set_name(*name);
    if (input == nullptr) return absl::OkStatus();
    const std::string_view text = TextAt(block.text, "input");
    call.set_arguments(text.empty() ? input->dump() : std::string(text));
    return absl::OkStatus();
  }

  absl::Status ReadResult(const std::string& path, const Json& block) {
    FieldReader reader(block, path + ".");
    const std::string* id = reader.String("tool_use_id");
    const Json* content = reader.Any("content");
    const bool failed = reader.Bool("is_error").value_or(false);
    const Json* control = reader.Any("cache_control");
    RETURN_IF_ERROR(reader.status());
    if (id == nullptr) return BadField(path + ".tool_use_id", "is needed");
    v1::Message& message = *chat_.add_messages();
    message.set_role("tool");
    message.set_tool_call_id(*id);
    if (content != nullptr) {
      RETURN_IF_ERROR(ReadTexts(path + ".content", *content, message));
    }
    // Templates have no place for the flag.
    if (message.content().empty()) message.add_content()->set_text(failed ? "error" : "");
    if (control == nullptr) return absl::OkStatus();
    return breakpoints_.Read(path + ".cache_control", *control,
                             *message.mutable_content()->rbegin()->mutable_breakpoint());
  }

  absl::Status ReadThinking(const std::string& path, const Json& block) {
    FieldReader reader(block, path + ".");
    const std::string* thinking = reader.String("thinking");
    RETURN_IF_ERROR(reader.status());
    if (thinking == nullptr) return BadField(path + ".thinking", "is needed");
    Last().mutable_reasoning()->append(*thinking);
    return absl::OkStatus();
  }

  absl::Status ReadTexts(const std::string& path, const Json& content, v1::Message& message) {
    if (content.is_string()) {
      message.add_content()->set_text(content.get<std::string>());
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(CheckBlocks(path, content));
    for (size_t i = 0; i < content.size(); ++i) {
      RETURN_IF_ERROR(ReadText(fmt::format("{}[{}]", path, i), content[i], message));
    }
    return absl::OkStatus();
  }

  absl::Status ReadText(const std::string& path, const Json& block, v1::Message& message) {
    if (!block.is_object()) return BadField(path, "must be an object, not {}", KindOf(block));
    FieldReader reader(block, path + ".");
    const std::string* type = reader.String("type");
    const std::string* text = reader.String("text");
    const Json* control = reader.Any("cache_control");
    RETURN_IF_ERROR(reader.status());
    if (type == nullptr) return BadField(path + ".type", "is needed");
    if (*type != "text") {
      return WithDetail(
          BadField(path + ".type", "is `{}`; only text is supported here", ShownText(*type)),
          {.reason = "unsupported_content"});
    }
    if (text == nullptr) return BadField(path + ".text", "is needed");
    v1::ContentPart& part = *message.add_content();
    part.set_text(*text);
    if (control == nullptr) return absl::OkStatus();
    return breakpoints_.Read(path + ".cache_control", *control, *part.mutable_breakpoint());
  }

  Breakpoints& breakpoints_;
  v1::ChatPrompt& chat_;
  std::string role_;  // of the message that is read
};

}  // namespace

absl::Status ReadConversation(const Json& body, std::string_view text, Breakpoints& breakpoints,
                              v1::ChatPrompt& chat) {
  FieldReader reader(body, "");
  const Json* system = reader.Any("system");
  const Json* messages = reader.Array("messages");
  RETURN_IF_ERROR(reader.status());
  ConversationReader conversation(breakpoints, chat);
  if (system != nullptr) RETURN_IF_ERROR(conversation.ReadSystem(*system));
  if (messages == nullptr) return BadField("messages", "is needed: a list of messages");
  return conversation.ReadMessages({*messages, TextAt(text, "messages")});
}

}  // namespace penstock
