#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/gguf/file/gguf_file.h"

namespace penstock {

// The text of the config.json that `file` was converted from, as far as the forward pass needs it:
// architectures of gguf_family.cc; llama is Llama and Mistral (as LlamaForCausalLM), and Mixtral.
// `file` must have the tensors of all parts of a split model. INVALID_ARGUMENT names the key or the
// tensor and what is allowed; every key of the architecture that is not understood is refused.
absl::StatusOr<std::string> GgufConfigJson(const GgufFile& file);

// general.architecture; INVALID_ARGUMENT unless it is one of these.
absl::StatusOr<std::string> GgufArchitecture(const GgufFile& file);

// True for the markers of a turn of Gemma. Some files have them as ordinary tokens; in all of
// Gemma's tokenizers they are special ones.
bool IsTurnMarker(std::string_view spelling);

// The tokens that end an answer: tokenizer.ggml.eos_token_id, eot_token_id and eom_token_id, and
// control tokens that are spelled as models of these families spell them ("<|im_end|>"): files name
// one of them only. In ascending order.
absl::StatusOr<std::vector<int64_t>> GgufEndTokens(const GgufFile& file);

}  // namespace penstock
