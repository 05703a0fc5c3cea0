// PrefillEngine: prompts with parts whose KV is re-used. Their parts are taken from the cache, or
// computed as prompts of their own that the cache keeps, one after the other. Then the prompt has
// its turn (docs/adr/0059-blended-prompts.md).

#include <algorithm>
#include <utility>

#include "prefill_worker/prefill_engine.h"

namespace penstock {

// Only the first prompt of blends_ holds parts. If it does not get blocks and others wait, it gives
// its parts back and goes behind them: their decode workers may be the ones that are ready.
void PrefillEngine::AdvanceBlends() {
  for (size_t tries = blends_.size(); tries > 0 && !blends_.empty(); --tries) {
    const bool refused = std::exchange(refused_, false);
    while (!blends_.empty() && AdvanceBlend(blends_.front())) {
    }
    const bool stopped = std::exchange(refused_, refused_ || refused);
    if (!stopped || blends_.size() < 2) return;
    Prompt& first = prompts_.at(blends_.front());
    first.blend->Release();
    first.part_admission.reset();
    blends_.push_back(blends_.front());
    blends_.pop_front();
  }
}

// True if the prompt, or the one behind it, can be advanced further now.
bool PrefillEngine::AdvanceBlend(uint64_t id) {
  Prompt& prompt = prompts_.at(id);
  if (prompt.computes_part) return false;
  const BlendPart* const part = prompt.blend->next();
  if (part == nullptr) {
    if (!AdmitBlended(prompt)) return false;
    scheduler_.Add(ScheduledOf(id, prompt));
    blends_.pop_front();
    return true;
  }
  if (!AdmitPart(prompt, *part)) return false;
  if (prompt.part_admission->held.size() < part->prompt.ids.size()) {
    ComputePart(id, *part);
    return false;
  }
  prompt.blend->Take(std::move(std::exchange(prompt.part_admission, std::nullopt)->held), 0);
  return true;
}

bool PrefillEngine::AdmitPart(Prompt& prompt, const BlendPart& part) {
  if (!prompt.part_admission) {
    const auto blocks = std::ssize(part.prompt.ids);
    const bool credited = sender_.credited(prompt.job.key);
    prompt.part_admission =
        cache_.Admit(part.prompt, {.held_max = blocks,
                                   .blocks = blocks,
                                   .left = credited ? 0 : options_.blocks_kept_for_credited,
                                   .on_restored = Waker()});
    if (prompt.begun == TimePoint()) prompt.begun = clock_.Now();
  }
  if (prompt.part_admission && !cache_.FinishRestore(part.prompt, prompt.part_admission)) {
    return false;
  }
  if (!prompt.part_admission) refused_ = true;
  return prompt.part_admission.has_value();
}

// All parts are held. With the prompt's own blocks it needs nothing more.
bool PrefillEngine::AdmitBlended(Prompt& prompt) {
  if (!prompt.job.admission && !Admit(prompt)) return false;
  if (!cache_.FinishRestore(prompt.job.prompt, prompt.job.admission)) return false;
  if (!prompt.job.admission) refused_ = true;
  return prompt.job.admission.has_value();
}

void PrefillEngine::ComputePart(uint64_t id, const BlendPart& part) {
  Prompt& whole = prompts_.at(id);
  whole.computes_part = true;
  PrefillJob job{.key = {},
                 .name = whole.job.name,
                 .trace = whole.job.trace,
                 .tokens = whole.blend->TokensOf(part, whole.job.tokens),
                 .prompt = part.prompt,
                 .pins = {},
                 .sampling = {},
                 .stop = {},
                 .arrival = whole.job.arrival,
                 .deadline = whole.job.deadline,
                 .sink = nullptr};
  job.prompt_tokens = job.tokens.size();
  job.stop.tokens_max = 1;  // no decode worker gets its KV
  job.admission = std::exchange(whole.part_admission, std::nullopt);
  const uint64_t part_id = next_id_++;
  Prompt& computed =
      prompts_.emplace(part_id, Prompt{.job = std::move(job), .blocks = {}, .table = {}})
          .first->second;
  computed.part_of = id;
  scheduler_.Add(ScheduledOf(part_id, computed));
}

void PrefillEngine::TakePart(uint64_t id) {
  Prompt& part = prompts_.at(id);
  Prompt& whole = prompts_.at(*part.part_of);
  const int32_t filled = static_cast<int32_t>(part.job.tokens.size()) - part.cached;
  whole.blend->Take(std::move(part.blocks), filled);
  whole.compute += part.compute;
  whole.computes_part = false;
  blend_filled_tokens_ += filled;
  Forget(id);
}

// The prompt ends: nothing is computed for it any more.
void PrefillEngine::DropParts(uint64_t id) {
  std::erase(blends_, id);
  std::vector<uint64_t> parts;
  for (const auto& [part, prompt] : prompts_) {
    if (prompt.part_of == id) parts.push_back(part);
  }
  for (const uint64_t part : parts) Forget(part);
}

void PrefillEngine::ReportBlend(const Prompt& prompt, v1::FirstTokens& first) {
  const PromptBlend::Sum sum = prompt.blend->Total();
  v1::BlendResult& result = *first.mutable_blend();
  result.set_reused_tokens(static_cast<uint32_t>(sum.reused));
  result.set_recomputed_tokens(static_cast<uint32_t>(sum.recomputed));
  result.set_fallback_tokens(static_cast<uint32_t>(sum.fallback));
  result.set_filled_tokens(static_cast<uint32_t>(prompt.blend->filled()));
  result.set_deviation(sum.deviation);
  blend_reused_tokens_ += sum.reused;
  blend_recomputed_tokens_ += sum.recomputed;
  blend_fallback_tokens_ += sum.fallback;
}

// The chunk's pieces, which a runner wants behind all other parts of a step.
void PrefillEngine::AddBlended(const PrefillChunk& chunk, std::vector<SequenceStep>& steps) {
  Prompt& prompt = prompts_.at(chunk.prompt);
  if (prompt.blend == nullptr) return;
  for (BlendPiece& piece : prompt.blend->pieces()) {
    if (piece.begin < chunk.begin || piece.end > chunk.begin + chunk.tokens) continue;
    steps.push_back({.tokens = std::span(prompt.job.tokens)
                                   .subspan(static_cast<size_t>(piece.begin),
                                            static_cast<size_t>(piece.end - piece.begin)),
                     .position = piece.begin,
                     .blocks = prompt.table,
                     .prompt = true,
                     .blended = &piece.blended});
  }
}

// The runs of the chunk's tokens that are in no piece.
std::vector<PrefillChunk> PrefillEngine::PlainRuns(const PrefillChunk& chunk) const {
  const PromptBlend& blend = *prompts_.at(chunk.prompt).blend;
  std::vector<PrefillChunk> runs;
  int32_t begin = chunk.begin;
  const auto add = [&](int32_t end) {
    if (end > begin)
      runs.push_back({.prompt = chunk.prompt, .begin = begin, .tokens = end - begin});
  };
  for (const BlendPiece& piece : blend.pieces()) {
    if (piece.begin < chunk.begin || piece.end > chunk.begin + chunk.tokens) continue;
    add(piece.begin);
    begin = piece.end;
  }
  add(chunk.begin + chunk.tokens);
  return runs;
}

int32_t PrefillEngine::BlendedRows(const PrefillChunk& chunk) const {
  if (prompts_.at(chunk.prompt).blend == nullptr) return 0;
  int32_t rows = chunk.tokens;
  for (const PrefillChunk& run : PlainRuns(chunk)) rows -= run.tokens;
  return rows;
}

// Tokens of prompts that wait for their parts.
int64_t PrefillEngine::BlendsWaiting() const {
  int64_t tokens = 0;
  for (const uint64_t id : blends_) tokens += std::ssize(prompts_.at(id).job.tokens);
  return tokens;
}

}  // namespace penstock
