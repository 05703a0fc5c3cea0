// Speculator: the target's layer for multi-token prediction. Every step of a sequence computes the
// layer's keys and values of its new tokens, also where no guess pays, so that its pages are whole
// for later guesses, here or on another worker: that takes two products of one layer.

#include "base/log/log.h"
#include "decode_worker/engine/speculator.h"

namespace penstock {

DraftPlan Speculator::PlanWithMtp(const Batch& batch, std::span<DraftOffers> offers) {
  if (mtp_ == nullptr) return Choose(offers, {.target = cost_});
  if (steps_ < kFirstSteps) {
    for (DraftOffers& offer : offers) offer.mtp = {};
  }
  const StepCost cost = mtp_->CostOf(cost_);
  DraftPlan plan = Choose(offers, {.target = cost_, .mtp = &cost});
  GuessByMtp(batch, plan.choices);
  return plan;
}

// A guess is computed only for as many tokens as there is room for, because its keys and values
// take the places of theirs in the target's pages.
void Speculator::GuessByMtp(const Batch& batch, std::span<const DraftChoice> choices) {
  std::vector<MtpAsk> asks;
  for (size_t i = 0; i < batch.ids.size(); ++i) {
    DecodeSequence& sequence = batch.sequences.at(batch.ids[i]);
    if (sequence.mtp == nullptr) continue;
    const int32_t wanted = choices[i].drafter == Drafter::kMtp ? choices[i].tokens : 0;
    int32_t room = 0;
    while (room < wanted && batch.grow(sequence, room + 2)) ++room;
    asks.push_back({.context = sequence.mtp.get(),
                    .position = sequence.position(),
                    .blocks = sequence.table,
                    .draws = DrawsOf(sequence.sampler, room)});
  }
  if (asks.empty()) return;
  Beat();
  if (const absl::Status status = mtp_->Run(asks); !status.ok()) StopMtp(batch.sequences, status);
}

// Goes on without the layer: answers do not depend on it.
void Speculator::StopMtp(Sequences& sequences, const absl::Status& status) {
  LogError("mtp_failed", "{}; the worker goes on without guesses of the MTP layer",
           Message(status));
  mtp_ = nullptr;
  for (auto& [id, sequence] : sequences) sequence.mtp.reset();
}

}  // namespace penstock
