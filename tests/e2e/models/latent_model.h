#pragma once

#include <cstdint>
#include <string>

namespace penstock {

// The bytes that the cache of WriteLatentModel's model has of a token: 3 layers with a latent of 64
// and a key of 16, in bf16.
inline constexpr uint64_t kLatentTokenBytes = 3 * (64 + 16) * 2;

// Writes a small random model with multi-head latent attention and groups of experts (DeepSeek-V3,
// whose first layer is dense, with yarn) and the bundled model's tokenizer to `folder`.
void WriteLatentModel(const std::string& folder);

// The same with latents and keys of the sizes of DeepSeek's own models (512 and 64), which GPUs
// take.
void WriteLargeLatentModel(const std::string& folder);

// Writes one with 7 layers and a layer for multi-token prediction, most of whose guesses are right.
void WriteMtpModel(const std::string& folder);

// The same with 2 layers and latents that GPUs take.
void WriteLargeMtpModel(const std::string& folder);

}  // namespace penstock
