#include "kvstore/tiers/nvme/nvme_index.h"

#include <algorithm>

#include "base/check.h"
#include "kvstore/tiers/nvme/extent_codec.h"

namespace penstock {
namespace {

// The codecs that records may have; few enough for two bits.
constexpr uint8_t kCodecs[] = {kStoredRaw, static_cast<uint8_t>(KvCodec::kLx16),
                               static_cast<uint8_t>(KvCodec::kLxr)};

}  // namespace

uint32_t NvmeIndex::Records::Add() {
  if (!free_.empty()) {
    const uint32_t record = free_.back();
    free_.pop_back();
    return record;
  }
  if (next_ % kPiece == 0) pieces_.emplace_back(kPiece);
  return next_++;
}

void NvmeIndex::Records::Free(uint32_t record) {
  (*this)[record].alive = 0;
  free_.push_back(record);
}

void NvmeIndex::Records::Clear() {
  pieces_.clear();
  free_.clear();
  next_ = 0;
}

size_t NvmeIndex::Records::memory_bytes() const {
  return pieces_.size() * kPiece * sizeof(Slot) + free_.capacity() * sizeof(uint32_t);
}

NvmeIndex::Entry NvmeIndex::Unpack(const Slot& slot) {
  return {.record = {.name = slot.name,
                     .page = slot.page,
                     .pages = slot.pages,
                     .crc = slot.crc,
                     .codec = kCodecs[slot.codec],
                     .uses = static_cast<uint8_t>(slot.uses),
                     .partial = slot.partial != 0},
          .segment = slot.segment,
          .used = slot.used != 0};
}

void NvmeIndex::Pack(uint32_t segment, const BlockRecord& record, uint32_t number) {
  PENSTOCK_CHECK_LT(record.pages, 1u << 19);
  const auto* codec = std::find(std::begin(kCodecs), std::end(kCodecs), record.codec);
  PENSTOCK_CHECK(codec != std::end(kCodecs));
  Slot& slot = records_[number];
  slot.name = record.name;
  slot.segment = segment;
  slot.page = record.page;
  slot.crc = record.crc;
  slot.pages = record.pages & ((1u << 19) - 1);
  slot.partial = record.partial ? 1 : 0;
  slot.codec = static_cast<uint32_t>(codec - std::begin(kCodecs)) & 3;
  slot.uses = record.uses;
  slot.used = 0;
  slot.alive = 1;
  if (members_.size() <= segment) members_.resize(size_t{segment} + 1);
  members_[segment].push_back(number);
}

bool NvmeIndex::Insert(uint32_t segment, const BlockRecord& record) {
  MutexLock lock(mutex_);
  if (table_.Find(record.name.id)) return false;
  const uint32_t number = records_.Add();
  Pack(segment, record, number);
  table_.Insert(record.name.id, number);
  return true;
}

void NvmeIndex::Move(uint32_t segment, const BlockRecord& record) {
  MutexLock lock(mutex_);
  const auto number = table_.Find(record.name.id);
  PENSTOCK_CHECK(number.has_value());
  Pack(segment, record, *number);
}

std::optional<NvmeIndex::Entry> NvmeIndex::Find(const BlockId& id) const {
  MutexLock lock(mutex_);
  const auto number = table_.Find(id);
  if (!number) return std::nullopt;
  return Unpack(records_[*number]);
}

bool NvmeIndex::Contains(const BlockId& id) const {
  MutexLock lock(mutex_);
  return table_.Find(id).has_value();
}

void NvmeIndex::Use(const BlockId& id) {
  MutexLock lock(mutex_);
  const auto number = table_.Find(id);
  if (!number) return;
  Slot& slot = records_[*number];
  slot.used = 1;
  if (slot.uses < 255) ++slot.uses;
}

bool NvmeIndex::Erase(const BlockId& id) {
  MutexLock lock(mutex_);
  const auto number = table_.Find(id);
  if (!number) return false;
  table_.Erase(id);
  records_.Free(*number);
  return true;
}

std::vector<NvmeIndex::Entry> NvmeIndex::InSegment(uint32_t segment) const {
  std::vector<Entry> entries;
  MutexLock lock(mutex_);
  if (segment >= members_.size()) return entries;
  // A record that was freed and reused by the same segment is listed twice.
  std::vector<uint32_t> numbers = members_[segment];
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  for (const uint32_t number : numbers) {
    const Slot& slot = records_[number];
    if (slot.alive && slot.segment == segment) entries.push_back(Unpack(slot));
  }
  return entries;
}

void NvmeIndex::Forget(uint32_t segment) {
  MutexLock lock(mutex_);
  if (segment < members_.size()) members_[segment] = {};
}

void NvmeIndex::Clear() {
  MutexLock lock(mutex_);
  table_.Clear();
  records_.Clear();
  members_.clear();
}

size_t NvmeIndex::CountLeading(std::span<const BlockId> ids) const {
  constexpr size_t kFar = 24;
  constexpr size_t kNear = 12;
  MutexLock lock(mutex_);
  for (size_t i = 0; i < std::min(kFar, ids.size()); ++i) table_.Prefetch(ids[i]);
  for (size_t i = 0; i < std::min(kNear, ids.size()); ++i) table_.PrefetchRecord(ids[i]);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i + kFar < ids.size()) table_.Prefetch(ids[i + kFar]);
    if (i + kNear < ids.size()) table_.PrefetchRecord(ids[i + kNear]);
    if (!table_.Find(ids[i])) return i;
  }
  return ids.size();
}

std::vector<bool> NvmeIndex::Whole(std::span<const BlockId> ids) const {
  std::vector<bool> whole;
  whole.reserve(ids.size());
  MutexLock lock(mutex_);
  for (const BlockId& id : ids) {
    const auto number = table_.Find(id);
    whole.push_back(number && records_[*number].partial == 0);
  }
  return whole;
}

std::vector<BlockName> NvmeIndex::Names() const {
  std::vector<BlockName> names;
  MutexLock lock(mutex_);
  names.reserve(table_.size());
  for (size_t segment = 0; segment < members_.size(); ++segment) {
    for (const uint32_t number : members_[segment]) {
      const Slot& slot = records_[number];
      if (slot.alive && slot.segment == segment) names.push_back(slot.name);
    }
  }
  return names;
}

size_t NvmeIndex::blocks() const {
  MutexLock lock(mutex_);
  return table_.size();
}

size_t NvmeIndex::memory_bytes() const {
  MutexLock lock(mutex_);
  size_t bytes = records_.memory_bytes() + table_.memory_bytes();
  for (const auto& members : members_) bytes += members.capacity() * sizeof(uint32_t);
  return bytes;
}

}  // namespace penstock
