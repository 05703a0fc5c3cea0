#include "cli/operate/turn_progress.h"

#include <fmt/format.h>

#include <algorithm>

namespace penstock {

std::string Bar(uint64_t done, uint64_t all) {
  constexpr uint64_t kWidth = 20;
  const uint64_t full = all == 0 ? kWidth : std::min(done, all) * kWidth / all;
  return "[" + std::string(full, '#') + std::string(kWidth - full, '.') + "]";
}

void TurnProgress::Show(const v1::WorkerState& state) {
  if (state.turning_to() == v1::WorkerState::ROLE_UNSPECIFIED) return;
  const uint64_t open = uint64_t{state.running()} + state.waiting() + state.handoffs();
  open_most_ = std::max(open_most_, open);
  progress_.Status(fmt::format("draining {} {}: {} of {} requests open, {} moved to other workers",
                               worker_, Bar(open_most_ - open, open_most_), open, open_most_,
                               state.sequences_moved()));
}

void TurnProgress::Turned() {
  progress_.Status("");
  progress_.Done(fmt::format("{} is a {} worker now", worker_, role_));
}

void TurnProgress::Left() {
  progress_.Status("");
  progress_.Line(fmt::format("{} continues to turn; `penstock admin workers` shows it", worker_));
}

}  // namespace penstock
