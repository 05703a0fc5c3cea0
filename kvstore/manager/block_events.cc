#include "kvstore/manager/block_events.h"

#include <algorithm>
#include <string>
#include <utility>

namespace penstock {
namespace {

std::string Bytes(std::span<const BlockId> ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size_bytes()};
}

size_t BlocksIn(const v1::BlockEvent& event) {
  const size_t bytes = event.has_stored()    ? event.stored().ids().size()
                       : event.has_removed() ? event.removed().ids().size()
                       : event.has_moved()   ? event.moved().ids().size()
                                             : sizeof(BlockId);
  return bytes / sizeof(BlockId);
}

}  // namespace

static_assert(sizeof(BlockId) == 16);

v1::BlockEvent StoredEvent(const BlockId& parent, std::span<const BlockId> ids, v1::KvTier tier) {
  v1::BlockEvent event;
  event.mutable_stored()->set_parent(Bytes({&parent, 1}));
  event.mutable_stored()->set_ids(Bytes(ids));
  event.mutable_stored()->set_tier(tier);
  return event;
}

v1::BlockEvent RemovedEvent(std::span<const BlockId> ids) {
  v1::BlockEvent event;
  event.mutable_removed()->set_ids(Bytes(ids));
  return event;
}

v1::BlockEvent MovedEvent(std::span<const BlockId> ids, v1::KvTier tier) {
  v1::BlockEvent event;
  event.mutable_moved()->set_ids(Bytes(ids));
  event.mutable_moved()->set_tier(tier);
  return event;
}

BlockSubscriber::BlockSubscriber(std::vector<v1::BlockEvent> snapshot)
    : snapshot_(std::make_move_iterator(snapshot.begin()),
                std::make_move_iterator(snapshot.end())) {}

void BlockSubscriber::Add(const v1::BlockEvent& event) {
  MutexLock lock(mutex_);
  if (lost_) return;
  pending_ += BlocksIn(event);
  if (pending_ > kPendingMax) {
    lost_ = true;
    changes_.clear();
    snapshot_.clear();
    return;
  }
  changes_.push_back(event);
}

BlockSubscriber::Batch BlockSubscriber::Take() {
  MutexLock lock(mutex_);
  Batch batch{.snapshot = !snapshot_.empty(), .events = {}};
  std::deque<v1::BlockEvent>& from = batch.snapshot ? snapshot_ : changes_;
  size_t blocks = 0;
  while (!from.empty() && (blocks == 0 || blocks + BlocksIn(from.front()) <= kBatchMax)) {
    blocks += BlocksIn(from.front());
    batch.events.push_back(std::move(from.front()));
    from.pop_front();
  }
  if (!batch.snapshot) pending_ -= blocks;
  return batch;
}

bool BlockSubscriber::lost() const {
  MutexLock lock(mutex_);
  return lost_;
}

bool BlockSubscriber::in_snapshot() const {
  MutexLock lock(mutex_);
  return !snapshot_.empty();
}

std::shared_ptr<BlockSubscriber> BlockFeed::Subscribe(std::vector<v1::BlockEvent> snapshot) {
  auto subscriber = std::make_shared<BlockSubscriber>(std::move(snapshot));
  subscribers_.push_back(subscriber);
  return subscriber;
}

bool BlockFeed::wanted() {
  std::erase_if(subscribers_, [](const auto& subscriber) { return subscriber.expired(); });
  return !subscribers_.empty();
}

void BlockFeed::Publish(const v1::BlockEvent& event) {
  for (const auto& weak : subscribers_) {
    if (const auto subscriber = weak.lock()) subscriber->Add(event);
  }
}

}  // namespace penstock
