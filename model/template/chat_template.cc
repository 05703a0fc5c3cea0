#include "model/template/chat_template.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "model/template/jinja_interpreter.h"
#include "model/template/jinja_parser.h"

namespace penstock {
namespace {

absl::Status ToStatus(const jinja::Error& error) {
  if (error.line <= 0) return absl::Status(error.code, error.message);
  return absl::Status(error.code, fmt::format("line {}: {}", error.line, error.message));
}

jinja::Dict Variables(const ChatInput& input) {
  jinja::Dict variables;
  const auto set = [&](std::string_view name, const ChatJson& value) {
    jinja::SetEntry(variables, name, jinja::FromJson(value));
  };
  set("messages", input.messages);
  set("tools", input.tools);
  set("add_generation_prompt", input.add_generation_prompt);
  if (!input.bos_token.empty()) set("bos_token", input.bos_token);
  if (!input.eos_token.empty()) set("eos_token", input.eos_token);
  for (const auto& [name, value] : input.extra.items()) set(name, value);
  return variables;
}

}  // namespace

struct ChatTemplate::Program {
  jinja::Block block;
  std::string source;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Program> program) : program_(std::move(program)) {}
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<const ChatTemplate>> ChatTemplate::Parse(std::string_view text) {
  if (text.size() > kMaxTemplateBytes) {
    return InvalidArgument("the chat template has {} bytes, the limit is {}", text.size(),
                           kMaxTemplateBytes);
  }
  const size_t invalid = FirstInvalidUtf8(text);
  if (invalid != std::string_view::npos) {
    return InvalidArgument("the chat template is not valid UTF-8 at byte {}", invalid);
  }
  try {
    auto program = std::make_unique<const Program>(Program{jinja::Parse(text), std::string(text)});
    return std::unique_ptr<const ChatTemplate>(new ChatTemplate(std::move(program)));
  } catch (const jinja::Error& error) {
    return ToStatus(error);
  }
}

absl::StatusOr<std::string> ChatTemplate::Render(const ChatInput& input) const {
  if (!input.extra.is_object()) return InvalidArgument("the extra variables are not an object");
  try {
    jinja::Interpreter interpreter(program_->block, Variables(input), input.now_unix_s);
    return interpreter.Run();
  } catch (const jinja::Error& error) {
    return ToStatus(error);
  }
}

const std::string& ChatTemplate::source() const { return program_->source; }

bool ChatTemplate::Quotes(std::string_view word) const {
  return std::ranges::any_of(std::string_view("'\""), [&](char quote) {
    return program_->source.find(fmt::format("{0}{1}{0}", quote, word)) != std::string::npos;
  });
}

}  // namespace penstock
