#include "worker/engine/page_selection.h"

#include <algorithm>

namespace penstock {

PageSelection PageSelectionOf(const std::optional<KvSelection>& selection, int32_t block_tokens,
                              uint32_t prompt_tokens) {
  if (!selection) return {};
  return {
      .pages = std::max(kSelectedPagesMin, static_cast<int32_t>(selection->tokens) / block_tokens),
      .from = static_cast<int32_t>(prompt_tokens)};
}

void DropSelectedNames(PromptBlocks& prompt, const PageSelection& selection, int32_t block_tokens) {
  if (selection.pages == 0) return;
  const auto exact = static_cast<size_t>(selection.Exact(block_tokens) / block_tokens);
  if (prompt.ids.size() <= exact) return;
  prompt.ids.resize(exact);
  if (!prompt.tokens.empty()) prompt.tokens.resize(exact * static_cast<size_t>(block_tokens));
}

}  // namespace penstock
