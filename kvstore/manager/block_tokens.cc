#include "kvstore/manager/block_tokens.h"

#include "base/check.h"

namespace penstock {

BlockTokens::BlockTokens(int32_t block_tokens, size_t retired_max)
    : block_tokens_(block_tokens), retired_max_(retired_max) {}

void BlockTokens::Keep(const BlockId& root, std::span<const BlockId> ids,
                       std::span<const uint32_t> tokens) {
  const auto count = static_cast<size_t>(block_tokens_);
  PENSTOCK_CHECK_GE(tokens.size(), ids.size() * count);
  MutexLock lock(mutex_);
  for (size_t i = ids.size(); i-- > 0;) {
    const auto [it, fresh] = blocks_.try_emplace(ids[i]);
    Entry& entry = it->second;
    // A block on the device has its parents there, too.
    if (!fresh && entry.on_device) return;
    entry.on_device = true;
    entry.retired = 0;
    if (!fresh) continue;
    const auto own = tokens.subspan(i * count, count);
    entry.content = {
        .tokens = {own.begin(), own.end()}, .parent = i == 0 ? root : ids[i - 1], .first = i == 0};
  }
}

void BlockTokens::LeaveDevice(std::span<const BlockId> ids) {
  MutexLock lock(mutex_);
  for (const BlockId& id : ids) {
    const auto found = blocks_.find(id);
    if (found == blocks_.end()) continue;
    found->second.on_device = false;
    RetireUnserved(id, found->second);
  }
}

void BlockTokens::ServeBelow(const BlockId& id, bool served) {
  MutexLock lock(mutex_);
  const auto found = blocks_.find(id);
  if (found == blocks_.end()) return;
  found->second.below = served;
  if (served) {
    found->second.retired = 0;
  } else {
    RetireUnserved(id, found->second);
  }
}

// Erases the earliest retirement beyond the limit, unless its block came back meanwhile.
void BlockTokens::RetireUnserved(const BlockId& id, Entry& entry) {
  if (entry.on_device || entry.below || entry.retired > 0) return;
  entry.retired = ++retirements_;
  retired_.push_back({.id = id, .number = entry.retired});
  if (retired_.size() <= retired_max_) return;
  const Retired oldest = retired_.front();
  retired_.pop_front();
  const auto found = blocks_.find(oldest.id);
  if (found != blocks_.end() && found->second.retired == oldest.number) blocks_.erase(found);
}

std::vector<std::optional<BlockTokens::Content>> BlockTokens::Find(
    std::span<const BlockId> ids) const {
  std::vector<std::optional<Content>> contents(ids.size());
  MutexLock lock(mutex_);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (const auto found = blocks_.find(ids[i]); found != blocks_.end()) {
      contents[i] = found->second.content;
    }
  }
  return contents;
}

size_t BlockTokens::size() const {
  MutexLock lock(mutex_);
  return blocks_.size();
}

}  // namespace penstock
