#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "kvstore/cache/block_pool.h"
#include "kvstore/manager/kv_cache_manager.h"
#include "kvstore/names/kv_policy.h"
#include "model/forward/model_runner.h"

namespace penstock {

// A part of a prompt whose KV is re-used: that of the part behind the prompt's leading tokens, as
// far as it fills blocks. The tokens of the last, partly filled one are computed in their place.
struct BlendPart {
  int32_t begin = 0;    // its first token in the prompt
  int32_t tokens = 0;   // from there on, whose KV is re-used; at least one
  int32_t held = 0;     // tokens whose KV its blocks have; `tokens`, or more in the last part
  PromptBlocks prompt;  // the names of the leading tokens' blocks, and of the part's behind them
};

// What a request asks to blend. Its first part follows the leading tokens in the prompt too, so it
// is exact and none of `parts`.
struct PromptParts {
  KvBlend blend;
  float deviation_max = 0;
  int32_t leading = 0;  // tokens before the first part
  int32_t exact = 0;    // tokens before the second part, with which the first differing KV begins
  std::vector<BlendPart> parts;
};

// The parts that begin at `bounds`, of which the last is the end of the last part (PrefillRequest::
// blend_parts), without names. INVALID_ARGUMENT if they are none, too many, not ascending, or not
// in the `prompt_tokens` tokens of the prompt.
absl::StatusOr<PromptParts> PartsOf(std::span<const uint32_t> bounds, size_t prompt_tokens,
                                    int32_t block_tokens);
// The same, with the names of their blocks. The prompt is the `prompt_tokens` first of `tokens`.
// Hashes tokens, so the engine's thread must not call it.
absl::StatusOr<PromptParts> NameParts(const KvCacheManager& cache, std::string_view cache_salt,
                                      std::span<const uint32_t> tokens, size_t prompt_tokens,
                                      std::span<const uint32_t> bounds, int32_t block_tokens);

// Removes the names of the blocks whose KV is blended, or computed behind blended KV: exact KV of
// the same tokens has these names. All that is left may be in a cache.
void DropBlendedNames(PromptBlocks& prompt, const PromptParts& parts, int32_t block_tokens);

// Tokens that are blended together, in one step.
struct BlendPiece {
  int32_t begin = 0;
  int32_t end = 0;
  BlendedTokens blended;
};
// The pieces of all parts, ascending.
std::vector<BlendPiece> PiecesOf(const PromptParts& parts);

// Moves the KV of a part from the blocks that it was computed in, behind the leading tokens, to the
// prompt's.
void MovePart(const KeyRotations& rotations, const PagedKv& kv, const PromptParts& parts,
              const BlendPart& part, std::span<const uint32_t> from, std::span<const uint32_t> to);

// The blend of one prompt. Parts are taken from the cache, or computed, one after the other; then
// their KV is moved to where the prompt has them. Used by the engine thread only.
class PromptBlend {
 public:
  explicit PromptBlend(PromptParts parts);

  // The part that is needed next; nullptr: all are held.
  const BlendPart* next() const;
  // The leading tokens, and those of the part whose KV its blocks have.
  std::vector<uint32_t> TokensOf(const BlendPart& part, std::span<const uint32_t> prompt) const;
  // The blocks of the next part. `filled` of its tokens were computed.
  void Take(std::vector<BlockRef> blocks, int32_t filled);
  // Gives the parts' blocks back; they are needed again, in the same order.
  void Release();
  // Moves all parts to the prompt's blocks, and gives theirs back.
  void Move(const KeyRotations& rotations, const PagedKv& kv, std::span<const uint32_t> table);

  const PromptParts& parts() const { return parts_; }
  std::span<BlendPiece> pieces() { return pieces_; }
  std::span<const BlendPiece> pieces() const { return pieces_; }
  int32_t filled() const { return filled_; }  // tokens that were computed for parts
  // What the prompt's steps have blended, when all are done.
  struct Sum {
    int32_t reused = 0, recomputed = 0, fallback = 0;
    float deviation = 0;
  };
  Sum Total() const;

 private:
  const PromptParts parts_;
  std::vector<std::vector<BlockRef>> held_;  // of the first parts
  std::vector<BlendPiece> pieces_;           // of all parts, ascending
  int32_t filled_ = 0;
};

}  // namespace penstock
