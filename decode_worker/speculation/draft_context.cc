#include "decode_worker/speculation/draft_context.h"

#include <algorithm>

#include "base/check.h"

namespace penstock {

DraftContext::DraftContext(std::vector<uint32_t> tokens, size_t common)
    : tokens_(std::move(tokens)), common_(common), largest_token_(std::ranges::max(tokens_)) {}

void DraftContext::Observe(uint32_t token) {
  tokens_.push_back(token);
  largest_token_ = std::max(largest_token_, token);
  if (record_.Observe(token)) ++computed_;  // It computed every token of the guess but the last.
}

void DraftContext::SharePrompt(const DraftContext& other, int32_t block_tokens) {
  PENSTOCK_CHECK_EQ(computed_, 0u);
  const auto size = static_cast<size_t>(block_tokens);
  // At least one token is left to compute: its logits give the first guess.
  const size_t full = std::min({common_, other.computed_, tokens_.size() - 1}) / size;
  blocks_.clear();
  table_.clear();
  for (size_t i = 0; i < full; ++i) {
    blocks_.push_back(other.blocks_[i].Share());
    table_.push_back(blocks_.back().id());
  }
  computed_ = full * size;
}

void DraftContext::Release() {
  blocks_.clear();
  table_.clear();
  record_.Begin();
  computed_ = 0;
}

bool DraftContext::Reserve(size_t tokens, BlockPool& pool) {
  const auto wanted =
      static_cast<size_t>(pool.view().layout.BlocksFor(static_cast<int64_t>(tokens)));
  if (wanted <= blocks_.size()) return true;
  auto credit = pool.Reserve(static_cast<int64_t>(wanted - blocks_.size()));
  if (!credit.ok()) return false;
  for (BlockRef& block : credit->Take(credit->blocks())) {
    table_.push_back(block.id());
    blocks_.push_back(std::move(block));
  }
  return true;
}

}  // namespace penstock
