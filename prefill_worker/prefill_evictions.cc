// PrefillEngine: prompts whose KV is evicted before it is sent.

#include <utility>

#include "prefill_worker/prefill_engine.h"

namespace penstock {

void PrefillEngine::SetCuts(const PrefillJob& job, const PromptEviction& eviction,
                            PrefillScheduler::Prompt& scheduled) {
  scheduled.cut = eviction.prompt_tokens();
  scheduled.whole = eviction.observed();
  if (!job.eviction->EvictsAnswer()) return;
  const auto prompt = static_cast<uint32_t>(job.prompt_tokens);
  scheduled.next_cut = static_cast<int32_t>(job.eviction->NextCompaction(prompt, prompt));
  scheduled.cut_tokens = static_cast<int32_t>(job.eviction->slack_tokens);
}

bool PrefillEngine::Observes(const PrefillChunk& chunk) const {
  const PromptEviction* eviction = prompts_.at(chunk.prompt).eviction.get();
  return eviction != nullptr && eviction->Observes(chunk.begin + chunk.tokens);
}

// The rows of the step whose queries ObserveLayer takes.
std::vector<RowRange> PrefillEngine::ObservedRows(std::span<const PrefillChunk> chunks) const {
  std::vector<RowRange> observed;
  int64_t row = 0;
  for (const PrefillChunk& chunk : chunks) {
    row += chunk.tokens - BlendedRows(chunk);
    if (!Observes(chunk)) continue;
    const int32_t count =
        prompts_.at(chunk.prompt).eviction->ObservedOf(chunk.begin + chunk.tokens, chunk.tokens);
    observed.push_back({.first = row - count, .count = count});
  }
  return observed;
}

// `queries` are those of the step's tokens, in the order of its chunks.
void PrefillEngine::ObserveLayer(std::span<const PrefillChunk> chunks, int32_t layer,
                                 View<const float, 2> queries) {
  int64_t row = 0;
  for (const PrefillChunk& chunk : chunks) {
    const int64_t first = std::exchange(row, row + chunk.tokens - BlendedRows(chunk));
    if (!Observes(chunk)) continue;
    Prompt& prompt = prompts_.at(chunk.prompt);
    prompt.eviction->Observe(*attention_, pool_.view(),
                             {.layer = layer,
                              .end = chunk.begin + chunk.tokens,
                              .whole = prompt.table,
                              .kept = prompt.eviction->table(),
                              .queries = {queries.row(first), {chunk.tokens, queries.dim(1)}}});
  }
}

// True if the answer so far is compacted: no slot is final before the last token.
bool PrefillEngine::Compacts(const Prompt& prompt) {
  const PromptEviction& eviction = *prompt.eviction;
  return eviction.EvictedAt(static_cast<int32_t>(prompt.job.tokens.size())) > eviction.evicted();
}

// Compacts the sequence where its schedule says so. Behind the last token, sends what is left.
void PrefillEngine::Compact(const PrefillChunk& chunk) {
  Prompt& prompt = prompts_.at(chunk.prompt);
  if (prompt.eviction == nullptr) return;
  PromptEviction& eviction = *prompt.eviction;
  const int32_t end = chunk.begin + chunk.tokens;
  if (eviction.CompactsAt(end)) eviction.Compact(*attention_, pool_.view(), end);
  if (!EndsPrompt(chunk) || !Compacts(prompt)) return;
  const KvLayout& layout = pool_.view().layout;
  const int32_t held = end - eviction.EvictedAt(end);
  sender_.SendLayers(
      prompt.job.key,
      {.first_layer = 0,
       .last_layer = layout.layers,
       .first_token = 0,
       .last_token = static_cast<uint32_t>(held),
       .blocks = eviction.blocks().first(static_cast<size_t>(layout.BlocksFor(held)))});
}

// Sends what an eviction left, and what was computed behind it.
void PrefillEngine::SendEvicted(const PrefillChunk& chunk, int32_t first_layer,
                                int32_t last_layer) {
  const Prompt& prompt = prompts_.at(chunk.prompt);
  const PromptEviction& eviction = *prompt.eviction;
  const int32_t end = chunk.begin + chunk.tokens;
  if (end < eviction.prompt_tokens() || Compacts(prompt)) return;
  const bool first = end == eviction.prompt_tokens();
  sender_.SendLayers(
      prompt.job.key,
      {.first_layer = first_layer,
       .last_layer = last_layer,
       .first_token = first ? 0 : static_cast<uint32_t>(chunk.begin - eviction.evicted()),
       .last_token = static_cast<uint32_t>(end - eviction.evicted()),
       .blocks = eviction.blocks()});
}

}  // namespace penstock
