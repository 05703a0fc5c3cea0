#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace penstock {

// An expert and the number of a step's tokens that chose it.
struct ExpertUse {
  int32_t expert = 0;
  int64_t tokens = 0;
};

// Decides which experts are in the slots of a cache. It moves nothing.
//
// The expert that leaves is the one with the lowest count of tokens that chose it, in which a token
// counts half as much for every `half_life` tokens since (LRFU: Lee et al., IEEE Transactions on
// Computers 50(12), 2001). The counts of experts that are not in memory go on, so one that was
// hot before is hot as soon as it is back.
class ExpertSlots {
 public:
  // `half_life` in tokens, each counted in every layer that it passes.
  ExpertSlots(int32_t experts, int32_t slots, double half_life);

  // A layer begins: it needs these experts, in this order, until Release. Those of the layer
  // before, which may have failed, are needed no more.
  void Begin(std::span<const ExpertUse> uses, int64_t tokens);
  void Release(int32_t expert);

  // The slot of an expert that is in memory or on its way; nullopt: neither.
  std::optional<int32_t> SlotOf(int32_t expert) const;

  // Gives `expert`, which has no slot, that of another one, and locks it until Unlock.
  //  TakeAhead: before the expert's turn. Never the slot of an expert that the layer needs.
  //  TakeNow: in its turn. If need be, the slot of the expert that the layer needs last.
  // Nullopt: all slots that it may take are locked.
  std::optional<int32_t> TakeAhead(int32_t expert);
  std::optional<int32_t> TakeNow(int32_t expert);
  void Unlock(int32_t slot);
  void Clear(int32_t slot);  // it has no expert; also unlocks it

 private:
  static constexpr int32_t kNone = -1;
  struct Slot {
    int32_t expert = kNone;
    bool locked = false;
  };
  struct Expert {
    int32_t slot = kNone;
    int32_t turn = kNone;  // in the layer that needs it
    double heat = 0;       // log2 of the count, with the unit of a token at time 0
  };

  bool Better(const Slot& a, const Slot& b) const;
  std::optional<int32_t> Take(int32_t expert, bool ahead);

  const double half_life_;
  double now_ = 0;  // in half-lives
  std::vector<Slot> slots_;
  std::vector<Expert> experts_;
  std::vector<int32_t> needed_;
};

}  // namespace penstock
