// PrefillEngine: prompts of a model whose attention has a window. A prompt holds the blocks that
// its next chunk sees, and those of the chunk (docs/adr/0053-windows-that-free.md). Where only some
// layers have a window, it holds all blocks, and rows for those blocks
// (docs/adr/0060-window-rows.md).

#include <algorithm>
#include <utility>

#include "kvstore/cache/passed_blocks.h"
#include "prefill_worker/prefill_engine.h"

namespace penstock {

bool PrefillEngine::Exchanges(const Prompt& prompt) const {
  return prompt.job.Exchanges(pool_.view().layout, options_.chunk_tokens);
}

// Takes the blocks of `tokens` tokens behind the first `begin`, or of as many as there is room for.
int32_t PrefillEngine::MakeRoom(uint64_t id, int32_t begin, int32_t tokens) {
  Prompt& prompt = prompts_.at(id);
  const KvLayout layout = pool_.view().layout;
  if (!Exchanges(prompt)) {
    if (layout.group.empty()) return tokens;
    prompt.credit.MoveWindow(prompt.blocks, layout.FirstGroupBlock(begin),
                             layout.BlocksFor(begin + tokens));
    return tokens;
  }
  const int64_t wanted = layout.BlocksFor(begin + tokens) - std::ssize(prompt.blocks);
  if (wanted > prompt.credit.blocks()) Exchange(prompt, {});
  for (BlockRef& block :
       prompt.credit.Take(std::clamp<int64_t>(wanted, 0, prompt.credit.blocks()))) {
    prompt.table.push_back(block.id());
    prompt.blocks.push_back(std::move(block));
  }
  const int64_t room = std::ssize(prompt.blocks) * layout.block_tokens - begin;
  refused_ |= room <= 0;
  return static_cast<int32_t>(std::clamp<int64_t>(room, 0, tokens));
}

// Gives up the blocks that no token behind the chunk sees.
void PrefillEngine::PassWindow(const PrefillChunk& chunk) {
  Prompt& prompt = prompts_.at(chunk.prompt);
  if (!Exchanges(prompt)) return;
  const auto first =
      static_cast<size_t>(pool_.view().layout.FirstBlock(chunk.begin + chunk.tokens));
  if (first <= prompt.passed) return;
  prompt.passed = first;
  Exchange(prompt, TakePassed(prompt.blocks, prompt.table, first));
}

// Gives up the rows that neither a token behind the chunk sees, nor a later prompt that finds its
// full blocks.
void PrefillEngine::PassRows(const PrefillChunk& chunk) {
  Prompt& prompt = prompts_.at(chunk.prompt);
  const KvLayout layout = pool_.view().layout;
  const int32_t end = chunk.begin + chunk.tokens;
  const int32_t full = (end - 1) / layout.block_tokens * layout.block_tokens;
  prompt.credit.MoveWindow(prompt.blocks, layout.FirstGroupBlock(full), layout.BlocksFor(end));
}

void PrefillEngine::Exchange(Prompt& prompt, std::vector<BlockRef> passed) {
  const auto held = static_cast<int64_t>(prompt.blocks.size() - prompt.passed);
  const int64_t all = prompt.job.Blocks(pool_.view().layout, options_.chunk_tokens);
  cache_.Exchange(std::move(passed), all - held, prompt.credit, prompt.owed);
}

}  // namespace penstock
