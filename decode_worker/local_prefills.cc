#include "decode_worker/local_prefills.h"

#include <algorithm>
#include <utility>

namespace penstock {

void LocalPrefills::Add(DecodeJob job) {
  Prompt prompt{.job = std::move(job), .table = {}};
  prompt.computed = prompt.job.prefill->cached;
  for (const BlockRef& block : prompt.job.blocks) prompt.table.push_back(block.id());
  prompts_.push_back(std::move(prompt));
}

int32_t LocalPrefills::Tokens(const Prompt& prompt) const {
  return std::min(chunk_tokens_, static_cast<int32_t>(prompt.job.tokens.size()) - prompt.computed);
}

SequenceStep LocalPrefills::Next() {
  Prompt& prompt = prompts_.front();
  if (!prompt.begun) prompt.begun = clock_.Now();
  const auto count = static_cast<size_t>(Tokens(prompt));
  const auto from = static_cast<size_t>(prompt.computed);
  return {.tokens = std::span<const uint32_t>(prompt.job.tokens).subspan(from, count),
          .position = prompt.computed,
          .blocks = prompt.table,
          .wants_logits = from + count == prompt.job.tokens.size()};
}

std::optional<LocalPrefills::Whole> LocalPrefills::Advance(std::span<const float> logits) {
  Prompt& front = prompts_.front();
  front.computed += Tokens(front);
  if (front.computed < static_cast<int32_t>(front.job.tokens.size())) return std::nullopt;
  Prompt prompt = std::move(front);
  prompts_.pop_front();
  DecodeJob& job = prompt.job;
  const LocalPrefill local = *std::exchange(job.prefill, std::nullopt);
  absl::StatusOr<v1::FirstTokens> first = MakeFirstTokens({.sampling = job.sampling,
                                                           .stop = job.stop,
                                                           .tokens = job.tokens,
                                                           .prompt_tokens = job.prompt_tokens,
                                                           .first_choice = local.first_choice,
                                                           .choices = local.choices},
                                                          {.arrival = local.arrival,
                                                           .begun = *prompt.begun,
                                                           .end = clock_.Now(),
                                                           .cached = local.cached},
                                                          logits);
  if (!first.ok()) {
    const std::shared_ptr<DecodeSink> sink = job.sink;
    prompt = {};  // Blocks are free before anybody hears of it.
    sink->OnEnd(first.status());
    return std::nullopt;
  }
  job.first = {first->tokens().begin(), first->tokens().end()};
  return Whole{.job = std::move(job), .first = *std::move(first)};
}

void LocalPrefills::Drop(const HandoffKey& key) {
  std::erase_if(prompts_, [&](const Prompt& prompt) { return prompt.job.key == key; });
}

std::vector<DecodeJob> LocalPrefills::TakeAll() {
  std::vector<DecodeJob> jobs;
  for (Prompt& prompt : prompts_) jobs.push_back(std::move(prompt.job));
  prompts_.clear();
  return jobs;
}

}  // namespace penstock
