#include "decode_worker/engine/preemption.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace penstock {

int64_t Preemption::GrowthAhead() const {
  return (static_cast<int64_t>(parts_.running.size()) + 1) / 2;
}

void Preemption::PreemptYoungest() {
  if (parts_.pool.blocks_leaving() > 0) return;
  const RunningSequences::Map& running = parts_.running.all();
  const auto youngest = std::find_if(running.rbegin(), running.rend(), [](const auto& entry) {
    const DecodeSession& session = *entry.second.session;
    return session.swap && session.choices_frozen == 0;
  });
  if (youngest == running.rend()) return;
  const std::shared_ptr<DecodeSession> session = youngest->second.session;
  if (running.begin()->second.session == session) return;
  if (session->beams != nullptr) session->beams->DropOffers();  // they are computed again
  std::vector<DecodeSequence> choices = parts_.running.Take(*session);
  auto swapped = SwappedSession::SwapOut(choices, parts_.pool, parts_.store);
  if (!swapped.ok()) {  // No slot is free now.
    refused_ = true;
    return parts_.running.Enter(std::move(choices));
  }
  session->growth.GiveBackBlocks();
  for (const auto& choice : (*swapped)->choices()) {
    if (choice.context != nullptr) choice.context->Release();  // for the sequences that run
  }
  ++preemptions_;
  const uint64_t first_id = (*swapped)->first_id();
  sessions_.emplace(first_id, *std::move(swapped));
}

void Preemption::ResumeOldest() {
  if (sessions_.empty()) return;
  const auto coming = std::find_if(sessions_.begin(), sessions_.end(),
                                   [](const auto& entry) { return entry.second->swapping_in(); });
  if (coming == sessions_.end()) return BeginSwapIn(*sessions_.begin()->second);
  if (!coming->second->arrived()) return;
  const std::unique_ptr<SwappedSession> taken = std::move(coming->second);
  sessions_.erase(coming);
  absl::StatusOr<std::vector<DecodeSequence>> choices = taken->TakeChoices();
  if (!choices.ok()) return taken->session().sink->OnEnd(choices.status());
  parts_.running.Enter(*std::move(choices));
}

void Preemption::BeginSwapIn(SwappedSession& session) {
  // Its rows are its quota's until the last of them is copied.
  if (!session.session().growth.HoldsNoRows()) return;
  const int64_t wanted = session.blocks() + session.growth();
  // Otherwise the session would be preempted again with the next block that another one needs.
  const int64_t others = GrowthAhead();
  if (parts_.pool.blocks_free() + parts_.pool.blocks_cached() < wanted + others) return;
  std::optional<BlockCredit> credit = parts_.cache.Reserve(wanted, others);
  if (!credit) return;
  std::vector<BlockRef> pages = credit->Take(session.blocks());
  session.GiveGrowth(*std::move(credit));
  session.SwapIn(std::move(pages), parts_.store, parts_.wake);
}

void Preemption::Drop(const HandoffKey& key) {
  std::erase_if(sessions_, [&](const auto& entry) { return entry.second->session().key == key; });
}

std::vector<DecodeSequence> Preemption::TakeAll() {
  std::vector<DecodeSequence> taken;
  for (auto& [first_id, session] : sessions_) {
    for (DecodeSequence& choice : session->Abandon()) taken.push_back(std::move(choice));
  }
  sessions_.clear();
  return taken;
}

int64_t Preemption::choices_open() const {
  int64_t open = 0;
  for (const auto& [id, session] : sessions_) open += session->session().choices_open;
  return open;
}

bool Preemption::Has(const HandoffKey& key) const {
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [&](const auto& entry) { return entry.second->session().key == key; });
}

}  // namespace penstock
