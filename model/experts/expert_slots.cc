#include "model/experts/expert_slots.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace penstock {
namespace {

constexpr double kCold = -std::numeric_limits<double>::infinity();

// log2(2^a + 2^b)
double AddLogs(double a, double b) {
  const auto [low, high] = std::minmax(a, b);
  return low == kCold ? high : high + std::log2(1 + std::exp2(low - high));
}

}  // namespace

ExpertSlots::ExpertSlots(int32_t experts, int32_t slots, double half_life)
    : half_life_(half_life),
      slots_(static_cast<size_t>(slots)),
      experts_(static_cast<size_t>(experts), {.heat = kCold}) {
  PENSTOCK_CHECK_GE(slots, 1);
}

// Time passes for the weight of new tokens only: they count twice as much after every half-life, so
// that the order of the experts that are not chosen stays.
void ExpertSlots::Begin(std::span<const ExpertUse> uses, int64_t tokens) {
  for (const int32_t expert : needed_) experts_[static_cast<size_t>(expert)].turn = kNone;
  needed_.clear();
  for (const ExpertUse& use : uses) {
    Expert& expert = experts_[static_cast<size_t>(use.expert)];
    expert.turn = static_cast<int32_t>(needed_.size());
    expert.heat = AddLogs(expert.heat, std::log2(static_cast<double>(use.tokens)) + now_);
    needed_.push_back(use.expert);
  }
  now_ += static_cast<double>(tokens) / half_life_;
}

void ExpertSlots::Release(int32_t expert) { experts_[static_cast<size_t>(expert)].turn = kNone; }

std::optional<int32_t> ExpertSlots::SlotOf(int32_t expert) const {
  const int32_t slot = experts_[static_cast<size_t>(expert)].slot;
  return slot == kNone ? std::nullopt : std::optional(slot);
}

std::optional<int32_t> ExpertSlots::TakeAhead(int32_t expert) { return Take(expert, true); }
std::optional<int32_t> ExpertSlots::TakeNow(int32_t expert) { return Take(expert, false); }

// True if `a` is to be taken before `b`: empty ones first, then experts that the layer does not
// need, the coldest first, then those that it needs, the last one first.
bool ExpertSlots::Better(const Slot& a, const Slot& b) const {
  if (a.expert == kNone || b.expert == kNone) return b.expert != kNone;
  const Expert& of_a = experts_[static_cast<size_t>(a.expert)];
  const Expert& of_b = experts_[static_cast<size_t>(b.expert)];
  if (of_a.turn == kNone && of_b.turn == kNone) return of_a.heat < of_b.heat;
  if (of_a.turn == kNone || of_b.turn == kNone) return of_a.turn == kNone;
  return of_a.turn > of_b.turn;
}

std::optional<int32_t> ExpertSlots::Take(int32_t expert, bool ahead) {
  PENSTOCK_CHECK_EQ(experts_[static_cast<size_t>(expert)].slot, kNone);
  Slot* best = nullptr;
  for (Slot& slot : slots_) {
    if (slot.locked) continue;
    const bool needed =
        slot.expert != kNone && experts_[static_cast<size_t>(slot.expert)].turn != kNone;
    if (ahead && needed) continue;
    if (best == nullptr || Better(slot, *best)) best = &slot;
  }
  if (best == nullptr) return std::nullopt;
  if (best->expert != kNone) experts_[static_cast<size_t>(best->expert)].slot = kNone;
  *best = {.expert = expert, .locked = true};
  const auto index = static_cast<int32_t>(best - slots_.data());
  experts_[static_cast<size_t>(expert)].slot = index;
  return index;
}

void ExpertSlots::Unlock(int32_t slot) { slots_[static_cast<size_t>(slot)].locked = false; }

void ExpertSlots::Clear(int32_t slot) {
  Slot& cleared = slots_[static_cast<size_t>(slot)];
  if (cleared.expert != kNone) experts_[static_cast<size_t>(cleared.expert)].slot = kNone;
  cleared = {};
}

}  // namespace penstock
