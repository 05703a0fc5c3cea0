#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "kvstore/names/block_hash.h"
#include "proto/worker.pb.h"

namespace penstock {

// The messages of WorkerStatus.WatchBlocks.
v1::BlockEvent StoredEvent(const BlockId& parent, std::span<const BlockId> ids, v1::KvTier tier);
v1::BlockEvent RemovedEvent(std::span<const BlockId> ids);
v1::BlockEvent MovedEvent(std::span<const BlockId> ids, v1::KvTier tier);

// What one reader of a worker's block events has not read yet: the snapshot it began with, then at
// most kPendingMax blocks of changes. A reader that is slower is lost: it would miss changes. Any
// thread.
class BlockSubscriber {
 public:
  static constexpr size_t kPendingMax = 65536;  // blocks: a megabyte of ids
  static constexpr size_t kBatchMax = 16384;    // blocks in a message

  struct Batch {
    bool snapshot = false;
    std::vector<v1::BlockEvent> events;
  };

  explicit BlockSubscriber(std::vector<v1::BlockEvent> snapshot);

  void Add(const v1::BlockEvent& event) EXCLUDES(mutex_);
  // The next events, in order; none when there are none. Never a mix of snapshot and changes.
  Batch Take() EXCLUDES(mutex_);
  bool lost() const EXCLUDES(mutex_);
  bool in_snapshot() const EXCLUDES(mutex_);  // some of it is not taken yet

 private:
  mutable Mutex mutex_;
  std::deque<v1::BlockEvent> snapshot_ GUARDED_BY(mutex_);
  std::deque<v1::BlockEvent> changes_ GUARDED_BY(mutex_);
  size_t pending_ GUARDED_BY(mutex_) = 0;  // blocks in changes_
  bool lost_ GUARDED_BY(mutex_) = false;
};

// Hands every change to every reader. Whoever publishes and subscribes holds the lock that makes a
// snapshot and the changes behind it one whole.
class BlockFeed {
 public:
  std::shared_ptr<BlockSubscriber> Subscribe(std::vector<v1::BlockEvent> snapshot);
  // False when nobody listens: the event need not be made.
  bool wanted();
  void Publish(const v1::BlockEvent& event);

 private:
  std::vector<std::weak_ptr<BlockSubscriber>> subscribers_;
};

}  // namespace penstock
