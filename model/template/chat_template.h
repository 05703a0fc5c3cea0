#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// JSON whose objects keep the order of their keys, because `tojson` shows it.
using ChatJson = nlohmann::ordered_json;

// The input of a template: a conversation and its variables.
struct ChatInput {
  ChatJson messages = ChatJson::array();  // objects with "role", "content" and any other fields
  ChatJson tools;                         // an array, or null for none
  bool add_generation_prompt = true;
  std::string bos_token;                // empty: undefined in the template
  std::string eos_token;                // empty: undefined in the template
  ChatJson extra = ChatJson::object();  // more variables, e.g. {"enable_thinking": false}
  int64_t now_unix_s = 0;               // for strftime_now(), in UTC
};

// A checkpoint's chat template: a bounded subset of Jinja2, rendered as Hugging Face does
// (trim_blocks, lstrip_blocks, loop controls). Parse refuses constructs outside the subset, so that
// no request fails on them later. Immutable: any thread may call the const methods concurrently.
//
// This room, model/template, renders a conversation to the prompt text that a model expects. It may
// use base/, model/gguf and model/tokenizer only. It does not know requests, the network or the
// forward pass.
class ChatTemplate {
 public:
  static constexpr size_t kMaxTemplateBytes = 256 << 10;
  static constexpr int kMaxNesting = 96;                // of expressions, blocks and macro calls
  static constexpr int64_t kMaxSteps = 4'000'000;       // evaluated nodes and visited items
  static constexpr size_t kMaxOutputBytes = 16u << 20;  // of the result and of any string in it

  // Returns INVALID_ARGUMENT, e.g. "line N: filter 'x' is not supported".
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> Parse(std::string_view text);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // Returns INVALID_ARGUMENT if the template refuses the input (with its raise_exception message)
  // or a value has an unsuitable type, and RESOURCE_EXHAUSTED beyond one of the limits above.
  absl::StatusOr<std::string> Render(const ChatInput& input) const;

  // True if the source has `word` as a string literal, as templates that compare roles have them.
  bool Quotes(std::string_view word) const;
  const std::string& source() const;

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<const Program> program);

  std::unique_ptr<const Program> program_;
};

// Loads chat_template.jinja, or else chat_template of tokenizer_config.json (if it is a list, the
// entry named "default"), of a directory, or tokenizer.chat_template of a GGUF file. Returns
// NOT_FOUND if the checkpoint has neither.
absl::StatusOr<std::unique_ptr<const ChatTemplate>> LoadChatTemplate(const std::string& model);

}  // namespace penstock
