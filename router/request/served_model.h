#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/tokenizer/tokenizer.h"

namespace penstock {

class ChatTemplate;

// What the router knows of the model it serves: everything but the weights. Immutable; any thread.
struct ServedModel {
  std::string name;  // that clients ask for
  std::unique_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: the checkpoint has none
  uint32_t vocab = 0;                                 // token ids are below this
  uint32_t max_model_len = 0;                         // tokens of prompt and answer together
  std::vector<uint32_t> eos_token_ids;
  size_t longest_token_bytes = 1;  // of any one token
};

// Reads a checkpoint's directory. `name` may be empty: then the directory's own name. Errors name
// the file and the field.
absl::StatusOr<ServedModel> LoadServedModel(const std::string& directory, const std::string& name);

// The same from parts that are already there (tests).
ServedModel MakeServedModel(std::string name, std::unique_ptr<const Tokenizer> tokenizer,
                            std::shared_ptr<const ChatTemplate> chat_template,
                            uint32_t max_model_len);

}  // namespace penstock
