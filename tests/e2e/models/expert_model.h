#pragma once

#include <string>

namespace penstock {

// Writes a small random model with experts (Qwen3-MoE, one dense layer among sparse ones) and the
// bundled model's tokenizer to `folder`.
void WriteExpertModel(const std::string& folder);

// The same for gpt-oss: a short window in every second layer, sinks, biases, YaRN and experts in
// MXFP4.
void WriteGptOssModel(const std::string& folder);

}  // namespace penstock
