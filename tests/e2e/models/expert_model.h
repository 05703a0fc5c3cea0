#pragma once

#include <cstdint>
#include <string>

namespace penstock {

// Writes a small random model with experts (Qwen3-MoE, one dense layer among sparse ones) and the
// bundled model's tokenizer to `folder`. It has 4 heads of queries, and `kv_heads` of KV.
void WriteExpertModel(const std::string& folder, int64_t kv_heads = 2);

// The same for gpt-oss: a short window in every second layer, sinks, biases, YaRN and experts in
// MXFP4.
void WriteGptOssModel(const std::string& folder);

// The same for GLM-4.5, with a layer for multi-token prediction, whose guesses are random.
void WriteGlmMtpModel(const std::string& folder);

}  // namespace penstock
