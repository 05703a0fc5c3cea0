#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// Objects keep the order of their keys, which `tojson` shows.
using ChatJson = nlohmann::ordered_json;

struct ChatInput {
  ChatJson messages = ChatJson::array();  // objects with "role", "content" and what else there is
  ChatJson tools;                         // an array, or null for none
  bool add_generation_prompt = true;
  std::string bos_token;                // empty: undefined in the template
  std::string eos_token;                // likewise
  ChatJson extra = ChatJson::object();  // more variables, such as {"enable_thinking": false}
  int64_t now_unix_s = 0;               // for strftime_now(), in UTC
};

// A checkpoint's chat template: a bounded subset of Jinja2, rendered as Hugging Face does
// (trim_blocks, lstrip_blocks, loop controls). Constructs outside the subset are refused by Parse,
// not at the first request. All const methods may be called from any thread at once.
class ChatTemplate {
 public:
  static constexpr size_t kMaxTemplateBytes = 256 << 10;
  static constexpr int kMaxNesting = 96;                // of expressions, blocks, and macro calls
  static constexpr int64_t kMaxSteps = 4'000'000;       // evaluated nodes and touched items
  static constexpr size_t kMaxOutputBytes = 16u << 20;  // of the result and of any string in it

  // INVALID_ARGUMENT "line N: filter 'x' is not supported".
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> Parse(std::string_view text);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // INVALID_ARGUMENT for what the template refuses (its raise_exception message), or for types it
  // cannot work with; RESOURCE_EXHAUSTED past a bound above.
  absl::StatusOr<std::string> Render(const ChatInput& input) const;

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<const Program> program);

  std::unique_ptr<const Program> program_;
};

// chat_template.jinja, else chat_template of tokenizer_config.json (of a list, the one named
// "default"). NOT_FOUND where the checkpoint has none.
absl::StatusOr<std::unique_ptr<const ChatTemplate>> LoadChatTemplate(const std::string& directory);

}  // namespace penstock
