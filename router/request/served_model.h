#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/checkpoint/embedding_config.h"
#include "model/tokenizer/tokenizer.h"
#include "router/request/output_support.h"

namespace penstock {

// The served model without its weights. Immutable; any thread.
struct ServedModel {
  std::string name;                  // the name in answers and metrics
  std::vector<std::string> aliases;  // further names that clients may request
  std::unique_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // nullptr: the checkpoint has none
  uint32_t vocab = 0;                                 // token ids are below this
  uint32_t max_model_len = 0;                         // tokens of prompt and answer together
  std::vector<uint32_t> eos_token_ids;
  size_t longest_token_bytes = 1;  // bytes of the vocabulary's longest token
  OutputSupport output;            // tool calls and reasoning
  // How embeddings are made, or why not.
  absl::StatusOr<EmbeddingConfig> embedding =
      NotFound("its checkpoint has no modules.json, which says how they are made");
};

// What an operator may set of a model.
struct ServedModelOptions {
  std::string directory;             // of the checkpoint, or a GGUF file
  std::string name;                  // empty: DefaultModelName
  std::vector<std::string> aliases;  // neither empty nor twice
  uint32_t max_model_len = 0;        // at most the model's; 0: the model's
  std::string tool_format = "auto";  // FindOutputSupport
};

// Reads a checkpoint's directory or a GGUF file. Errors name the file, or the option, and the
// field.
absl::StatusOr<ServedModel> LoadServedModel(const ServedModelOptions& options);

// Makes a model from loaded parts (tests).
ServedModel MakeServedModel(std::string name, std::unique_ptr<const Tokenizer> tokenizer,
                            std::shared_ptr<const ChatTemplate> chat_template,
                            uint32_t max_model_len);

}  // namespace penstock
