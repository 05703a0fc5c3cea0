// Speculator: the draft model. It computes its own KV of a sequence beside the steps of the target,
// and guesses tokens where that pays.

#include <algorithm>
#include <utility>

#include "base/log/log.h"
#include "decode_worker/engine/speculator.h"

namespace penstock {
namespace {

// The draft model's KV of a sequence is expected to save this many times its cost: the answer may
// end soon, and the times are estimates.
constexpr double kMargin = 3;
// The time of a part of that computation, in steps of the target.
constexpr double kCatchUpSteps = 2;
// An answer of which nothing is known goes on for this many tokens. Later it is expected to become
// twice as long as it is.
constexpr int32_t kTokensToCome = 64;

}  // namespace

std::vector<DrawSpec> Speculator::DrawsOf(const Sampler& sampler, int32_t count) {
  std::vector<DrawSpec> draws;
  for (int32_t ahead = 0; ahead < count; ++ahead) draws.push_back(sampler.GuessDraw(ahead));
  return draws;
}

// Guesses of the draft model are computed here, if they pay.
DraftPlan Speculator::PlanWithModel(const Batch& batch, std::vector<DraftOffers> offers) {
  const StepCost model = draft_->CostOf(cost_);
  if (steps_ >= kFirstSteps) CatchUpOne(batch, offers, model);
  for (size_t i = 0; i < batch.ids.size(); ++i) {
    const auto& context = batch.sequences.at(batch.ids[i]).context;
    const bool ready = context != nullptr && DraftModel::Ready(*context);
    if (!ready || steps_ < kFirstSteps) offers[i].model = {};
  }
  DraftPlan plan = Choose(offers, {.target = cost_, .model = &model});
  if (draft_ != nullptr) GuessByModel(batch, plan.choices);
  return plan;
}

// Computes some tokens of a sequence whose guesses are going to pay, once the draft model has its
// KV.
void Speculator::CatchUpOne(const Batch& batch, std::span<const DraftOffers> offers,
                            const StepCost& model) {
  const double step = cost_.Seconds(static_cast<int64_t>(batch.ids.size()));
  const Wishes all = WishesOf(batch, Choose(offers, {.target = cost_, .model = &model}), step);
  for (const size_t i : trial_.Order(all.wishes, options_.random || draft_->acceptance_known())) {
    DecodeSequence& sequence = *all.sequences[i];
    if (!BeginCatchUp(batch, sequence)) continue;
    if (DraftModel::Ready(*sequence.context)) continue;
    trial_.Spend(all.wishes[i]);
    return CatchUp(batch, *sequence.context, kCatchUpSteps * step);
  }
}

// The sequences that `plan` gives guesses of the draft model. `step`: the seconds of a step.
Speculator::Wishes Speculator::WishesOf(const Batch& batch, const DraftPlan& plan,
                                        double step) const {
  Wishes all;
  const double saved = plan.saved / static_cast<double>(batch.ids.size());
  for (size_t i = 0; i < batch.ids.size(); ++i) {
    DecodeSequence& sequence = batch.sequences.at(batch.ids[i]);
    if (plan.choices[i].drafter != Drafter::kModel) continue;
    const bool ready = DraftModel::Ready(*sequence.context);
    if (!ready && !options_.random && !CatchUpPays(sequence, saved, step)) continue;
    all.sequences.push_back(&sequence);
    all.wishes.push_back({.cost = draft_->CatchUpSeconds(*sequence.context, cost_) / step,
                          .begun = sequence.context->computed() > 0,
                          .ready = ready});
  }
  return all;
}

void Speculator::CatchUp(const Batch& batch, DraftContext& context, double seconds) {
  Beat();
  const absl::Status status = draft_->CatchUp(context, seconds, cost_);
  if (!status.ok()) StopModel(batch.sequences, status);
}

// `saved`: the expected share of the time of each of its tokens. `step`: the seconds of a step.
bool Speculator::CatchUpPays(const DecodeSequence& sequence, double saved, double step) const {
  const double cost = draft_->CatchUpSeconds(*sequence.context, cost_);
  const double tokens = TokensToCome(sequence) - cost / (kCatchUpSteps * step);
  return saved * tokens * step >= kMargin * cost;
}

double Speculator::TokensToCome(const DecodeSequence& sequence) {
  const int32_t so_far = sequence.sampler.output_tokens();
  return std::min(sequence.session->stop.tokens_max - so_far, std::max(kTokensToCome, so_far));
}

// The choices of a session share the KV of their prompt. False: the pool has no room.
bool Speculator::BeginCatchUp(const Batch& batch, DecodeSequence& sequence) {
  if (sequence.context->computed() > 0) return true;
  if (!draft_->HasRoom(*sequence.context)) return false;
  const DraftContext* longest = sequence.context.get();
  for (const auto& [id, other] : batch.sequences) {
    if (other.session != sequence.session) continue;
    if (other.context->computed() > longest->computed()) longest = other.context.get();
  }
  if (longest->computed() > 0) draft_->SharePrompt(*sequence.context, *longest);
  return true;
}

void Speculator::GuessByModel(const Batch& batch, std::span<const DraftChoice> choices) {
  std::vector<DraftAsk> asks;
  for (size_t i = 0; i < batch.ids.size(); ++i) {
    const DecodeSequence& sequence = batch.sequences.at(batch.ids[i]);
    if (sequence.context == nullptr) continue;
    if (choices[i].drafter == Drafter::kModel) {
      asks.push_back({.context = sequence.context.get(),
                      .draws = DrawsOf(sequence.sampler, choices[i].tokens)});
    } else {
      sequence.context->SkipGuess();
    }
  }
  if (asks.empty()) return draft_->SkipGuesses();
  Beat();
  if (const absl::Status status = draft_->Guess(asks); !status.ok())
    StopModel(batch.sequences, status);
}

void Speculator::Beat() const {
  if (options_.progress != nullptr) options_.progress->Beat();
}

// Goes on without the draft model: answers do not depend on it.
void Speculator::StopModel(Sequences& sequences, const absl::Status& status) {
  LogError("draft_model_failed", "{}; the worker goes on without it", Message(status));
  draft_ = nullptr;
  for (auto& [id, sequence] : sequences) {
    if (sequence.context != nullptr) sequence.context->Release();
  }
}

}  // namespace penstock
