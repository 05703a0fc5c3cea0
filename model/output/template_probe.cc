#include "model/output/template_probe.h"

#include "model/output/output_parser.h"

namespace penstock {
namespace {

constexpr char kTool[] = "probe";
constexpr char kId[] = "abcdefghi";
constexpr char kArguments[] = R"({"text": "a \"b\" {c}", "n": 1})";

ChatJson Tools(const CallStyle& style) {
  ChatJson tools = ChatJson::parse(R"([{"type": "function", "function": {"name": "probe",
      "parameters": {"type": "object", "properties": {"text": {"type": "string"},
                                                      "n": {"type": "integer"}}}}}])");
  if (style.describes) tools[0]["function"]["description"] = "";
  return tools;
}

absl::StatusOr<std::string> Rendered(const ChatTemplate& chat_template, const CallStyle& style,
                                     const std::string& bos, const std::string& eos) {
  ASSIGN_OR_RETURN(const ChatJson call, CallJson(style, kId, kTool, kArguments));
  ChatInput input;
  input.messages.push_back({{"role", "user"}, {"content", "Hi"}});
  ChatJson answer = {
      {"role", "assistant"}, {"content", ""}, {"tool_calls", ChatJson::array({call})}};
  if (style.content_null) answer["content"] = nullptr;
  input.messages.push_back(answer);
  input.messages.push_back(
      {{"role", "tool"}, {"content", "done"}, {"tool_call_id", kId}, {"name", kTool}});
  input.tools = Tools(style);
  input.bos_token = bos;
  input.eos_token = eos;
  return chat_template.Render(input);
}

// True if the last call in `text` is the one of Rendered.
bool HasCall(const std::string& text, const CallNotation& notation) {
  OutputParser parser({.calls = &notation, .tools = {{.name = kTool, .texts = {"text"}}}});
  std::vector<OutputPiece> pieces = parser.Feed(text);
  const std::vector<OutputPiece> more = parser.Flush();
  pieces.insert(pieces.end(), more.begin(), more.end());
  std::string arguments;
  for (const OutputPiece& piece : pieces) {
    if (piece.kind == OutputPiece::Kind::kCall) arguments.clear();
    if (piece.kind == OutputPiece::Kind::kArguments) arguments += piece.text;
  }
  const ChatJson found = ChatJson::parse(arguments, nullptr, /*allow_exceptions=*/false);
  return found == ChatJson::parse(kArguments);
}

// The notation in which templates show earlier calls, where it is another one.
CallNotation Shown(CallNotation notation) {
  if (notation.shown_begin.empty()) return notation;
  notation.call_begin = notation.shown_begin;
  notation.name_end = notation.shown_name_end;
  return notation;
}

}  // namespace

absl::StatusOr<ChatJson> CallJson(const CallStyle& style, std::string_view id,
                                  std::string_view name, std::string_view arguments) {
  ChatJson json = ChatJson::parse(arguments, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument("is not a JSON object");
  if (style.arguments_as_text) json = std::string(arguments);
  return ChatJson{{"id", id},
                  {"type", "function"},
                  {"function", {{"name", name}, {"arguments", std::move(json)}}}};
}

absl::StatusOr<CallStyle> ProbeTemplate(const ChatTemplate& chat_template,
                                        const CallNotation& notation, const std::string& bos_token,
                                        const std::string& eos_token) {
  std::string failure;
  for (unsigned bits = 0; bits < 8; ++bits) {
    const CallStyle style{.arguments_as_text = (bits & 4) != 0,
                          .content_null = (bits & 1) == 0,
                          .describes = (bits & 2) != 0};
    const auto rendered = Rendered(chat_template, style, bos_token, eos_token);
    if (rendered.ok() && (HasCall(*rendered, notation) || HasCall(*rendered, Shown(notation)))) {
      return style;
    }
    failure = rendered.ok() ? fmt::format("it writes an earlier call in another notation than {}",
                                          notation.name)
                            : std::string(Message(rendered.status()));
  }
  return FailedPrecondition("the chat template cannot show earlier tool calls: {}", failure);
}

}  // namespace penstock
