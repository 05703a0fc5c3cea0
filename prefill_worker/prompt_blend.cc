#include "prefill_worker/prompt_blend.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

// A long part is divided into pieces of almost equal size.
void AddPieces(const BlendPart& part, const KvBlend& blend, float deviation_max,
               std::vector<BlendPiece>& pieces) {
  const auto most = static_cast<int32_t>(kBlendedTokensMax);
  const int32_t count = (part.tokens + most - 1) / most;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t begin = part.tokens * i / count, end = part.tokens * (i + 1) / count;
    const uint32_t recompute = blend.Recomputed(static_cast<uint32_t>(end - begin));
    pieces.push_back({.begin = part.begin + begin,
                      .end = part.begin + end,
                      .blended = {.recompute = static_cast<int32_t>(recompute),
                                  .deviation_max = deviation_max}});
  }
}

absl::Status CheckBounds(std::span<const uint32_t> bounds, size_t prompt_tokens) {
  if (bounds.size() < 2 || bounds.size() > kBlendPartsMax + 1) {
    return InvalidArgument("blend_parts has {} entries; it must have 2 to {}", bounds.size(),
                           kBlendPartsMax + 1);
  }
  for (size_t i = 0; i < bounds.size(); ++i) {
    const uint32_t least = i == 0 ? 0 : bounds[i - 1] + 1;
    if (bounds[i] >= least && bounds[i] <= prompt_tokens) continue;
    return InvalidArgument(
        "blend_parts[{}] is {}; entries must ascend, up to the {} tokens of the prompt", i,
        bounds[i], prompt_tokens);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PromptParts> PartsOf(std::span<const uint32_t> bounds, size_t prompt_tokens,
                                    int32_t block_tokens) {
  RETURN_IF_ERROR(CheckBounds(bounds, prompt_tokens));
  const auto leading = static_cast<int32_t>(bounds[0]);
  PromptParts parts{
      .blend = {}, .leading = leading, .exact = static_cast<int32_t>(bounds[1]), .parts = {}};
  for (size_t i = 1; i + 1 < bounds.size(); ++i) {
    const auto begin = static_cast<int32_t>(bounds[i]);
    const int32_t all = static_cast<int32_t>(bounds[i + 1]) - begin;
    const int32_t held = (leading + all) / block_tokens * block_tokens - leading;
    // The prompt's last token is computed, because its logits are needed.
    const int32_t reused = std::min(held, static_cast<int32_t>(prompt_tokens) - 1 - begin);
    if (reused < 1) continue;
    parts.parts.push_back({.begin = begin, .tokens = reused, .held = held, .prompt = {}});
  }
  return parts;
}

absl::StatusOr<PromptParts> NameParts(const KvCacheManager& cache, std::string_view cache_salt,
                                      std::span<const uint32_t> tokens, size_t prompt_tokens,
                                      std::span<const uint32_t> bounds, int32_t block_tokens) {
  ASSIGN_OR_RETURN(PromptParts parts, PartsOf(bounds, prompt_tokens, block_tokens));
  const PromptBlocks before = cache.NameBlocks(cache_salt, tokens.first(bounds[0]));
  const std::span<const uint32_t> tail =
      tokens.first(bounds[0]).last(bounds[0] % static_cast<uint32_t>(block_tokens));
  for (BlendPart& part : parts.parts) {
    std::vector<uint32_t> behind(tail.begin(), tail.end());
    behind.insert(behind.end(), tokens.begin() + part.begin,
                  tokens.begin() + part.begin + part.held);
    part.prompt = before;
    cache.Extend(part.prompt, behind);
  }
  return parts;
}

void DropBlendedNames(PromptBlocks& prompt, const PromptParts& parts, int32_t block_tokens) {
  const auto exact = static_cast<size_t>(parts.exact / block_tokens);
  if (prompt.ids.size() <= exact) return;
  prompt.ids.resize(exact);
  if (!prompt.tokens.empty()) prompt.tokens.resize(exact * static_cast<size_t>(block_tokens));
}

std::vector<BlendPiece> PiecesOf(const PromptParts& parts) {
  std::vector<BlendPiece> pieces;
  for (const BlendPart& part : parts.parts) {
    AddPieces(part, parts.blend, parts.deviation_max, pieces);
  }
  return pieces;
}

void MovePart(const KeyRotations& rotations, const PagedKv& kv, const PromptParts& parts,
              const BlendPart& part, std::span<const uint32_t> from, std::span<const uint32_t> to) {
  MoveTokens(rotations, {.kv = kv,
                         .from = from,
                         .to = to,
                         .from_position = parts.leading,
                         .to_position = part.begin,
                         .tokens = part.tokens});
}

PromptBlend::PromptBlend(PromptParts parts) : parts_(std::move(parts)), pieces_(PiecesOf(parts_)) {}

const BlendPart* PromptBlend::next() const {
  return held_.size() == parts_.parts.size() ? nullptr : &parts_.parts[held_.size()];
}

std::vector<uint32_t> PromptBlend::TokensOf(const BlendPart& part,
                                            std::span<const uint32_t> prompt) const {
  std::vector<uint32_t> tokens(prompt.begin(), prompt.begin() + parts_.leading);
  tokens.insert(tokens.end(), prompt.begin() + part.begin, prompt.begin() + part.begin + part.held);
  return tokens;
}

void PromptBlend::Take(std::vector<BlockRef> blocks, int32_t filled) {
  PENSTOCK_CHECK(next() != nullptr);
  held_.push_back(std::move(blocks));
  filled_ += filled;
}

void PromptBlend::Release() { held_.clear(); }

void PromptBlend::Move(const KeyRotations& rotations, const PagedKv& kv,
                       std::span<const uint32_t> table) {
  PENSTOCK_CHECK(next() == nullptr);
  for (size_t i = 0; i < held_.size(); ++i) {
    std::vector<uint32_t> from;
    for (const BlockRef& block : held_[i]) from.push_back(block.id());
    MovePart(rotations, kv, parts_, parts_.parts[i], from, table);
  }
  Release();
}

PromptBlend::Sum PromptBlend::Total() const {
  Sum sum;
  for (const BlendPiece& piece : pieces_) {
    const BlendedTokens& blended = piece.blended;
    sum.reused += piece.end - piece.begin;
    sum.recomputed += blended.recomputed;
    if (!(blended.deviation <= blended.deviation_max)) sum.fallback += blended.recomputed;
    sum.deviation = std::max(sum.deviation, blended.deviation);
  }
  return sum;
}

}  // namespace penstock
