#include "decode_worker/engine/local_prefills.h"

#include <algorithm>
#include <utility>

#include "kvstore/cache/passed_blocks.h"

namespace penstock {

void LocalPrefills::Add(DecodeJob job) {
  Prompt prompt{.job = std::move(job), .table = {}};
  prompt.computed = prompt.job.prefill->cached;
  for (const BlockRef& block : prompt.job.blocks) prompt.table.push_back(block.id());
  prompt.passed = CountPassed(prompt.job.blocks);
  prompt.job.hidden.assign(options_.mtp_hidden, 0);
  if (prompt.passed > 0) TakePassed(prompt.job.blocks, prompt.table, prompt.passed);
  prompts_.push_back(std::move(prompt));
}

bool LocalPrefills::MakeRoom() {
  Prompt& prompt = prompts_.front();
  const KvLayout& layout = options_.layout;
  if (!layout.group.empty()) {
    prompt.job.growth.MoveWindow(prompt.job.blocks, layout.FirstGroupBlock(prompt.computed),
                                 layout.BlocksFor(prompt.computed + Tokens(prompt)));
  }
  if (prompt.job.exchanges == 0) return true;
  const int64_t wanted =
      layout.BlocksFor(prompt.computed + Tokens(prompt)) - std::ssize(prompt.job.blocks);
  if (wanted > prompt.job.growth.blocks()) Exchange(prompt, {});
  if (wanted > prompt.job.growth.blocks()) return false;
  for (BlockRef& block : prompt.job.growth.Take(std::max<int64_t>(0, wanted))) {
    prompt.table.push_back(block.id());
    prompt.job.blocks.push_back(std::move(block));
  }
  return true;
}

// Gives up the blocks that no token behind the computed ones sees. The cache gets them first.
void LocalPrefills::PassWindow(Prompt& prompt) {
  if (prompt.job.exchanges == 0) return;
  const auto first = static_cast<size_t>(options_.layout.FirstBlock(prompt.computed));
  if (first <= prompt.passed) return;
  const auto full = static_cast<size_t>(prompt.computed / options_.layout.block_tokens);
  cache_.Insert(prompt.job.access, prompt.job.prompt, std::span(prompt.job.blocks).first(full));
  prompt.passed = first;
  Exchange(prompt, TakePassed(prompt.job.blocks, prompt.table, first));
}

void LocalPrefills::Exchange(Prompt& prompt, std::vector<BlockRef> passed) {
  const auto held = static_cast<int64_t>(prompt.job.blocks.size() - prompt.passed);
  cache_.Exchange(std::move(passed), prompt.job.exchanges - held, prompt.job.growth, prompt.owed);
}

int32_t LocalPrefills::Tokens(const Prompt& prompt) const {
  return std::min(options_.chunk_tokens,
                  static_cast<int32_t>(prompt.job.tokens.size()) - prompt.computed);
}

SequenceStep LocalPrefills::Next() {
  Prompt& prompt = prompts_.front();
  if (!prompt.begun) prompt.begun = clock_.Now();
  const auto count = static_cast<size_t>(Tokens(prompt));
  const auto from = static_cast<size_t>(prompt.computed);
  PageSelection selection = prompt.job.selection;
  selection.checked = prompt.computed + static_cast<int32_t>(count);
  return {.tokens = std::span<const uint32_t>(prompt.job.tokens).subspan(from, count),
          .position = prompt.computed,
          .blocks = prompt.table,
          .selection = selection,
          .prompt = true,
          .hidden = prompt.job.hidden,
          .fills_mtp = options_.mtp_hidden > 0,
          .before = prompt.job.hidden};
}

bool LocalPrefills::NextIsLast() const {
  const Prompt& prompt = prompts_.front();
  return prompt.computed + Tokens(prompt) == static_cast<int32_t>(prompt.job.tokens.size());
}

std::vector<DrawSpec> LocalPrefills::Draws() const { return FirstDraws(FirstOf(prompts_.front())); }

FirstTokensArgs LocalPrefills::FirstOf(const Prompt& prompt) {
  const DecodeJob& job = prompt.job;
  return {.sampling = job.sampling,
          .stop = job.stop,
          .tokens = job.tokens,
          .prompt_tokens = job.prompt_tokens,
          .first_choice = job.prefill->first_choice,
          .choices = job.prefill->choices,
          .candidates = job.beams ? static_cast<uint32_t>(job.beams->candidates()) : 0};
}

std::optional<FinishedPrefill> LocalPrefills::Advance(const StepOutput& output) {
  Prompt& front = prompts_.front();
  front.computed += Tokens(front);
  PassWindow(front);
  if (front.computed < static_cast<int32_t>(front.job.tokens.size())) return std::nullopt;
  absl::StatusOr<v1::FirstTokens> first = MakeFirstTokens(FirstOf(front),
                                                          {.arrival = front.job.prefill->arrival,
                                                           .begun = *front.begun,
                                                           .end = clock_.Now(),
                                                           .cached = front.job.prefill->cached},
                                                          output);
  if (!first.ok()) {
    Fail(first.status());
    return std::nullopt;
  }
  DecodeJob job = std::move(front.job);
  prompts_.pop_front();
  job.prefill.reset();
  job.first = {first->tokens().begin(), first->tokens().end()};
  return FinishedPrefill{.job = std::move(job), .first = *std::move(first)};
}

void LocalPrefills::Fail(const absl::Status& status) {
  const std::shared_ptr<DecodeSink> sink = prompts_.front().job.sink;
  prompts_.pop_front();  // Blocks are free before the sink is called.
  sink->OnEnd(status);
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
