#include "worker/events/kv_event_source.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace penstock {
namespace {

// The number of blocks whose tokens are looked up under one lock, which engines need, too.
constexpr size_t kLookUpAtOnce = 64;

std::vector<BlockId> IdsIn(const std::string& bytes) {
  std::vector<BlockId> ids(bytes.size() / sizeof(BlockId));
  std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(BlockId));
  return ids;
}

KvMedium MediumOf(v1::KvTier tier) {
  switch (tier) {
    case v1::DRAM:
      return KvMedium::kCpu;
    case v1::NVME:
      return KvMedium::kDisk;
    default:
      return KvMedium::kGpu;
  }
}

}  // namespace

KvEventSource::KvEventSource(std::function<std::shared_ptr<BlockSubscriber>()> subscribe,
                             const BlockTokens& tokens)
    : subscribe_(std::move(subscribe)), tokens_(tokens) {}

std::vector<KvEvent> KvEventSource::Take() {
  if (subscriber_ == nullptr || subscriber_->lost()) {
    subscriber_ = subscribe_();
    Forget();
  }
  for (const v1::BlockEvent& event : subscriber_->Take().events) Apply(event);
  FlushLeft();
  return std::exchange(events_, {});
}

void KvEventSource::Apply(const v1::BlockEvent& event) {
  if (event.has_stored()) {
    Store(IdsIn(event.stored().ids()), MediumOf(event.stored().tier()));
  } else if (event.has_moved()) {
    Store(IdsIn(event.moved().ids()), MediumOf(event.moved().tier()));
  } else if (event.has_removed()) {
    Remove(IdsIn(event.removed().ids()));
  } else if (event.has_cleared()) {
    Forget();
  }
}

void KvEventSource::Forget() {
  media_.clear();
  held_.clear();
  parents_of_held_.clear();
  left_.clear();
  events_.emplace_back(KvBlocksCleared());
}

void KvEventSource::Store(std::span<const BlockId> ids, KvMedium medium) {
  while (!ids.empty()) {
    const auto some = ids.first(std::min(ids.size(), kLookUpAtOnce));
    const auto contents = tokens_.Find(some);
    for (size_t i = 0; i < some.size(); ++i) StoreOne(some[i], contents[i], medium);
    ids = ids.subspan(some.size());
  }
}

void KvEventSource::StoreOne(const BlockId& id, const std::optional<BlockTokens::Content>& content,
                             KvMedium medium) {
  ForgetHeld(id);
  if (content && !content->first && !media_.contains(content->parent)) {
    return Hold(id, content->parent, medium);
  }
  Announce(id, content, medium);
  AnnounceChildrenOf(id);
}

void KvEventSource::Announce(const BlockId& id, const std::optional<BlockTokens::Content>& content,
                             KvMedium medium) {
  const auto [known, fresh] = media_.try_emplace(id, medium);
  const KvMedium before = std::exchange(known->second, medium);
  if (!fresh && before == medium) return;
  if (medium != storing_) FlushLeft();
  storing_ = medium;
  KvBlocksStored& stored = StoredFor(content, medium);
  stored.hashes.push_back(ShortHash(id));
  if (content) {
    stored.tokens.insert(stored.tokens.end(), content->tokens.begin(), content->tokens.end());
    last_ = id;
  }
  if (!fresh) left_.push_back({.hash = ShortHash(id), .medium = before});
}

void KvEventSource::AnnounceChildrenOf(const BlockId& id) {
  std::vector<BlockId> parents = {id};
  while (!parents.empty()) {
    const auto waiting = held_.extract(parents.back());
    parents.pop_back();
    if (waiting.empty()) continue;
    for (const Held& child : waiting.mapped()) {
      parents_of_held_.erase(child.id);
      Announce(child.id, tokens_.Find({&child.id, 1}).front(), child.medium);
      parents.push_back(child.id);
    }
  }
}

// A block that was announced, and has moved since its parent went, is taken back.
void KvEventSource::Hold(const BlockId& id, const BlockId& parent, KvMedium medium) {
  if (const auto known = media_.find(id); known != media_.end()) {
    left_.push_back({.hash = ShortHash(id), .medium = known->second});
    media_.erase(known);
  }
  held_[parent].push_back({.id = id, .medium = medium});
  parents_of_held_[id] = parent;
}

void KvEventSource::ForgetHeld(const BlockId& id) {
  const auto found = parents_of_held_.find(id);
  if (found == parents_of_held_.end()) return;
  const auto siblings = held_.find(found->second);
  std::erase_if(siblings->second, [&](const Held& held) { return held.id == id; });
  if (siblings->second.empty()) held_.erase(siblings);
  parents_of_held_.erase(found);
}

// The last event if the block continues it, else a new one.
KvBlocksStored& KvEventSource::StoredFor(const std::optional<BlockTokens::Content>& content,
                                         KvMedium medium) {
  auto* const open = events_.empty() ? nullptr : std::get_if<KvBlocksStored>(&events_.back());
  if (open != nullptr && open->medium == medium && open->hashes.size() < kBlocksMax) {
    const bool follows = content ? !content->first && content->parent == last_ : true;
    if (follows && open->tokens.empty() == !content) return *open;
  }
  KvBlocksStored stored{.medium = medium};
  if (content && !content->first) stored.parent = ShortHash(content->parent);
  return std::get<KvBlocksStored>(events_.emplace_back(std::move(stored)));
}

void KvEventSource::Remove(std::span<const BlockId> ids) {
  FlushLeft();
  for (const BlockId& id : ids) {
    ForgetHeld(id);
    const auto known = media_.find(id);
    if (known == media_.end()) continue;
    AddRemoved({.hash = ShortHash(id), .medium = known->second});
    media_.erase(known);
  }
}

void KvEventSource::AddRemoved(const Left& left) {
  auto* open = events_.empty() ? nullptr : std::get_if<KvBlocksRemoved>(&events_.back());
  if (open == nullptr || open->medium != left.medium || open->hashes.size() >= kBlocksMax) {
    open = &std::get<KvBlocksRemoved>(events_.emplace_back(KvBlocksRemoved{.medium = left.medium}));
  }
  open->hashes.push_back(left.hash);
}

void KvEventSource::FlushLeft() {
  for (const Left& left : std::exchange(left_, {})) AddRemoved(left);
}

}  // namespace penstock
