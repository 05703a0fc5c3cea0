#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "kvstore/names/block_hash.h"
#include "proto/worker.pb.h"

namespace penstock {

// Builders of the messages of WorkerStatus.WatchBlocks.
v1::BlockEvent StoredEvent(const BlockId& parent, std::span<const BlockId> ids, v1::KvTier tier);
v1::BlockEvent RemovedEvent(std::span<const BlockId> ids);
v1::BlockEvent MovedEvent(std::span<const BlockId> ids, v1::KvTier tier);

// The unread block events of one reader: first the snapshot, then at most kPendingMax blocks of
// changes. A slower reader is marked lost, because it would miss changes, and must subscribe again.
// Any thread.
class BlockSubscriber {
 public:
  static constexpr size_t kPendingMax = 65536;  // blocks; 1 MiB of ids
  static constexpr size_t kBatchMax = 16384;    // blocks in one message

  struct Batch {
    bool snapshot = false;
    std::vector<v1::BlockEvent> events;
  };

  explicit BlockSubscriber(std::vector<v1::BlockEvent> snapshot);

  void Add(const v1::BlockEvent& event) EXCLUDES(mutex_);
  // The next events in order; empty when there are none. A batch never mixes snapshot and changes.
  Batch Take() EXCLUDES(mutex_);
  bool lost() const EXCLUDES(mutex_);
  bool in_snapshot() const EXCLUDES(mutex_);  // part of the snapshot is unread

 private:
  mutable Mutex mutex_;
  std::deque<v1::BlockEvent> snapshot_ GUARDED_BY(mutex_);
  std::deque<v1::BlockEvent> changes_ GUARDED_BY(mutex_);
  size_t pending_ GUARDED_BY(mutex_) = 0;  // blocks in changes_
  bool lost_ GUARDED_BY(mutex_) = false;
};

// Publishes every change to every reader. Not thread-safe: the caller holds one lock over Subscribe
// and Publish, so that a reader's snapshot and its later changes fit together.
class BlockFeed {
 public:
  std::shared_ptr<BlockSubscriber> Subscribe(std::vector<v1::BlockEvent> snapshot);
  // False when there are no readers, so the event need not be built.
  bool wanted();
  void Publish(const v1::BlockEvent& event);

 private:
  std::vector<std::weak_ptr<BlockSubscriber>> subscribers_;
};

}  // namespace penstock
