#include "router/responses/input_items.h"

#include <array>

#include "router/openai/chat_messages.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

// Types of the parts that are text.
constexpr std::array<std::string_view, 3> kMessageParts = {"input_text", "output_text", "text"};
constexpr std::array<std::string_view, 2> kReasoningParts = {"reasoning_text", "text"};

// What an item adds to the assistant's message, in the order in which a message has them.
enum class TurnPart : uint8_t { kReasoning, kText, kCall };

class InputReader {
 public:
  InputReader(v1::ChatPrompt& chat, std::vector<FieldName>& names) : chat_(chat), names_(names) {}

  void AddText(const std::string& path, const std::string& role, const std::string& text) {
    Add(path, role).add_content()->set_text(text);
  }

  absl::Status ReadItem(const std::string& path, const Json& item) {
    if (!item.is_object()) return BadField(path, "must be an object, not {}", KindOf(item));
    FieldReader reader(item, path + ".");
    const std::string* type = reader.String("type");
    RETURN_IF_ERROR(reader.status());
    if (type == nullptr || *type == "message") return ReadMessage(path, item);
    if (*type == "function_call") return ReadCall(path, item);
    if (*type == "function_call_output") return ReadOutput(path, item);
    if (*type == "reasoning") return ReadReasoning(path, item);
    if (*type == "item_reference") {
      return Unsupported(path, "is `item_reference`, which needs stored state; send the item");
    }
    return Unsupported(path, fmt::format("is `{}`; this server has message, function_call, "
                                         "function_call_output and reasoning",
                                         ShownText(*type)));
  }

 private:
  static absl::Status Unsupported(const std::string& path, std::string_view why) {
    return WithDetail(BadField(path + ".type", "{}", why), {.reason = "unsupported_content"});
  }

  std::string LastName() const {
    return fmt::format("chat.messages[{}]", chat_.messages_size() - 1);
  }

  v1::Message& Add(const std::string& path, const std::string& role) {
    v1::Message& message = *chat_.add_messages();
    message.set_role(role);
    names_.push_back({LastName(), path});
    return message;
  }

  // The message of the assistant that `part` belongs to: the last one, unless a later part has
  // ended it.
  v1::Message& Turn(const std::string& path, TurnPart part) {
    const bool open = !chat_.messages().empty() && chat_.messages().rbegin()->role() == "assistant";
    const bool repeats = part == part_ && part != TurnPart::kText;
    const bool fits = open && (part > part_ || repeats);
    part_ = part;
    return fits ? *chat_.mutable_messages()->rbegin() : Add(path, "assistant");
  }

  absl::Status ReadMessage(const std::string& path, const Json& item) {
    FieldReader reader(item, path + ".");
    const std::string* role = reader.String("role");
    const Json* content = reader.Any("content");
    RETURN_IF_ERROR(reader.status());
    if (role == nullptr) return BadField(path + ".role", "is needed");
    v1::Message& message = *role == "assistant"
                               ? Turn(path, TurnPart::kText)
                               : Add(path, *role == "developer" ? "system" : *role);
    return ReadContent(path + ".content", content, kMessageParts, message);
  }

  absl::Status ReadCall(const std::string& path, const Json& item) {
    FieldReader reader(item, path + ".");
    const std::string* id = reader.String("call_id");
    const std::string* name = reader.String("name");
    const std::string* arguments = reader.String("arguments");
    RETURN_IF_ERROR(reader.status());
    if (id == nullptr) return BadField(path + ".call_id", "is needed");
    if (name == nullptr) return BadField(path + ".name", "is needed");
    v1::Message& message = Turn(path, TurnPart::kCall);
    names_.push_back(
        {fmt::format("{}.tool_calls[{}]", LastName(), message.tool_calls_size()), path});
    v1::ToolCall& call = *message.add_tool_calls();
    call.set_id(*id);
    call.set_name(*name);
    if (arguments != nullptr) call.set_arguments(*arguments);
    return absl::OkStatus();
  }

  absl::Status ReadOutput(const std::string& path, const Json& item) {
    FieldReader reader(item, path + ".");
    const std::string* id = reader.String("call_id");
    const Json* output = reader.Any("output");
    RETURN_IF_ERROR(reader.status());
    if (id == nullptr) return BadField(path + ".call_id", "is needed");
    v1::Message& message = Add(path, "tool");
    message.set_tool_call_id(*id);
    return ReadContent(path + ".output", output, kMessageParts, message);
  }

  // A summary is not what the model thought, and the encrypted content of another server cannot be
  // read.
  absl::Status ReadReasoning(const std::string& path, const Json& item) {
    FieldReader reader(item, path + ".");
    const Json* content = reader.Array("content");
    RETURN_IF_ERROR(reader.status());
    if (content == nullptr) return absl::OkStatus();
    v1::Message thought;
    RETURN_IF_ERROR(ReadContent(path + ".content", content, kReasoningParts, thought));
    if (thought.content().empty()) return absl::OkStatus();
    std::string& reasoning = *Turn(path, TurnPart::kReasoning).mutable_reasoning();
    for (const v1::ContentPart& part : thought.content()) reasoning += part.text();
    return absl::OkStatus();
  }

  v1::ChatPrompt& chat_;
  std::vector<FieldName>& names_;
  TurnPart part_ = TurnPart::kReasoning;  // of the last message, where it is the assistant's
};

}  // namespace

absl::Status ReadInput(const Json& body, v1::ChatPrompt& chat, std::vector<FieldName>& names) {
  FieldReader reader(body, "");
  const std::string* instructions = reader.String("instructions");
  const Json* input = reader.Any("input");
  RETURN_IF_ERROR(reader.status());
  InputReader items(chat, names);
  if (instructions != nullptr && !instructions->empty()) {
    items.AddText("instructions", "system", *instructions);
  }
  if (input == nullptr) return BadField("input", "is needed: a text or a list of items");
  if (input->is_string()) {
    items.AddText("input", "user", input->get<std::string>());
    return absl::OkStatus();
  }
  if (!input->is_array()) {
    return BadField("input", "must be a text or a list of items, not {}", KindOf(*input));
  }
  if (input->empty() || input->size() > kMaxMessages) {
    return BadField("input", "has {} items; it must have 1 to {}", input->size(), kMaxMessages);
  }
  for (size_t i = 0; i < input->size(); ++i) {
    RETURN_IF_ERROR(items.ReadItem(fmt::format("input[{}]", i), (*input)[i]));
  }
  return absl::OkStatus();
}

}  // namespace penstock
