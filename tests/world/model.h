#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/paged_kv.h"
#include "lab/world/model_host.h"

namespace penstock::world {

// The world's model: the KV of a token is a hash of the token, its position, its layer and the KV
// before it, and the logits are a hash of every byte of KV that the step reads. So a block that is
// wrong, stale, swapped or torn changes the tokens behind it.
inline constexpr int32_t kLayers = 4;
inline constexpr int32_t kHeadDim = 32;  // of the one KV head: the least that lossy codecs take
inline constexpr int32_t kBlockTokens = 16;
inline constexpr int32_t kVocab = 258;  // as the test model's: bytes, then two special tokens
inline constexpr uint32_t kRoleToken = 256;
inline constexpr uint32_t kEndToken = 257;
inline constexpr int32_t kMaxPosition = 512;

// The KV of one token in all layers.
struct TokenKv {
  uint64_t keys[kLayers] = {};
  uint64_t values[kLayers] = {};
};

// `before` is the KV of the previous position; all zero for the first.
TokenKv KvOf(uint64_t model, uint32_t token, int32_t position, const TokenKv& before);
// Adds a position to a digest of the whole context.
uint64_t Digest(uint64_t digest, const TokenKv& kv);
// The logits behind a context with this digest: letters and, rarely, the end of the answer.
void FillLogits(uint64_t digest, std::span<float> logits);

// The number that a checkpoint's name stands for.
uint64_t ModelNumber(const std::string& name);
SimModel OpenHashModel(const std::string& name);
// The same with pages like those of a busy GPU: some writes into them take a while.
SimModel OpenSlowModel(const std::string& name);

}  // namespace penstock::world
