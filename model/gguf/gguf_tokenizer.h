#pragma once

#include <string>

#include "base/status.h"
#include "model/gguf/file/gguf_file.h"

namespace penstock {

// The text of the tokenizer.json that `file` was converted from. Byte-level BPE
// (tokenizer.ggml.model "gpt2"): tokenizer.ggml.pre names the split, and unknown names are refused.
// SentencePiece BPE with byte fallback ("llama"): merges follow from the scores. NOT_FOUND if the
// file has no tokenizer; INVALID_ARGUMENT names the key and what is allowed.
absl::StatusOr<std::string> GgufTokenizerJson(const GgufFile& file);

// The text of tokenizer_config.json: the spellings of special tokens, and the chat template if the
// file has one.
absl::StatusOr<std::string> GgufTokenizerConfigJson(const GgufFile& file);

}  // namespace penstock
