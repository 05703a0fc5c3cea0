#pragma once

#include <string>

namespace penstock {

// Writes a small random model with experts (Qwen3-MoE, one dense layer among sparse ones) and the
// bundled model's tokenizer to `folder`.
void WriteExpertModel(const std::string& folder);

}  // namespace penstock
