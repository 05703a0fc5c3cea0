#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// A model is a directory in Hugging Face's format, or a file whose name ends in ".gguf".
bool IsGgufPath(std::string_view model);

// The name by which clients know a model unless another is set: the directory's name, or the name
// of the GGUF file without ".gguf" and without the number of a part.
std::string DefaultModelName(const std::string& model);

// NOT_FOUND unless `model` is a directory or a GGUF file; the message says that models are not
// downloaded, for names of a hub.
absl::Status CheckModelExists(const std::string& model);

// The text of a file of a directory: config.json, generation_config.json, tokenizer.json,
// tokenizer_config.json, chat_template.jinja, modules.json or 1_Pooling/config.json, or what the
// metadata of a GGUF file say in its place (there the chat template is in tokenizer_config.json).
// NOT_FOUND if the model has no such text; other errors name file, key and limit.
absl::StatusOr<std::string> ReadModelText(const std::string& model, std::string_view name);

}  // namespace penstock
