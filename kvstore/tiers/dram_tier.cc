#include "kvstore/tiers/dram_tier.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace penstock {

DramTier::DramTier(std::unique_ptr<SlotArena> arena, std::unique_ptr<EvictionOrder> order)
    : arena_(std::move(arena)), order_(std::move(order)), records_(arena_->slots()) {
  index_.reserve(slots());
  free_.reserve(slots());
  // The lowest slots are at the end and taken first, because they are made resident first.
  for (uint32_t slot = slots(); slot-- > 0;) free_.push_back(slot);
}

std::optional<uint32_t> DramTier::Take() {
  if (free_.empty()) return std::nullopt;
  const uint32_t slot = free_.back();
  free_.pop_back();
  records_[slot].state = State::kTaken;
  return slot;
}

void DramTier::GiveBack(uint32_t slot) {
  PENSTOCK_CHECK(records_[slot].state == State::kTaken);
  records_[slot] = {};
  free_.push_back(slot);
}

void DramTier::Publish(uint32_t slot, const BlockName& name, uint32_t uses, bool partial) {
  PENSTOCK_CHECK(records_[slot].state == State::kTaken);
  PENSTOCK_CHECK(index_.emplace(name.id, slot).second, "the block is here already");
  records_[slot] = {
      .name = name, .uses = uses, .pins = 0, .state = State::kBlock, .partial = partial};
  order_->Insert(slot);
}

void DramTier::Withdraw(uint32_t slot) {
  Record& record = records_[slot];
  PENSTOCK_CHECK(record.state == State::kBlock);
  PENSTOCK_CHECK_EQ(record.pins, 0);
  index_.erase(record.name.id);
  order_->Remove(slot);
  record = {.state = State::kTaken};
}

std::optional<uint32_t> DramTier::Find(const BlockId& id) const {
  const auto found = index_.find(id);
  if (found == index_.end()) return std::nullopt;
  return found->second;
}

void DramTier::Touch(uint32_t slot, uint32_t uses) {
  Record& record = records_[slot];
  PENSTOCK_CHECK(record.state == State::kBlock);
  record.uses += std::min(uses, std::numeric_limits<uint32_t>::max() - record.uses);
  order_->Touch(slot);
}

void DramTier::Unpin(uint32_t slot) {
  PENSTOCK_CHECK_GT(records_[slot].pins, 0);
  --records_[slot].pins;
}

std::optional<uint32_t> DramTier::Victim() const {
  return order_->Victim([this](uint32_t slot) { return !pinned(slot); });
}

std::vector<uint32_t> DramTier::Blocks() const {
  std::vector<uint32_t> slots;
  order_->Victim([&](uint32_t slot) {
    slots.push_back(slot);
    return false;
  });
  std::reverse(slots.begin(), slots.end());
  return slots;
}

std::vector<BlockName> DramTier::Names() const {
  std::vector<BlockName> names;
  names.reserve(index_.size());
  for (const auto& [id, slot] : index_) names.push_back(records_[slot].name);
  return names;
}

}  // namespace penstock
