#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "proto/worker.pb.h"
#include "router/index/prefix_index.h"
#include "router/placement/placement.h"

namespace penstock {

// The router's view of the workers' caches: the prefix index, fed by the workers' event streams and
// by the prompts that this router has just sent them, and the probability that each worker still
// has its blocks. Any thread; Find and HoldersOf are lock-free.
class PrefixView {
 public:
  explicit PrefixView(const Clock& clock);

  // A worker's number in the index; nullopt when all kIndexWorkersMax are taken.
  std::optional<uint32_t> Join();
  // Removes a worker. Its stream must have ended.
  void Leave(uint32_t worker);

  // A stream of events has been opened. The worker's blocks stay, with a decaying hit probability,
  // until the first batch, which begins a snapshot.
  void OnStreamStarted(uint32_t worker);
  // INVALID_ARGUMENT (a malformed batch) or OUT_OF_RANGE (a gap in the sequence): the caller must
  // reopen the stream.
  absl::Status OnEvents(uint32_t worker, const v1::BlockEvents& batch);
  void OnStreamEnded(uint32_t worker);
  // The worker's process has restarted. The previous process's blocks are removed, unless events of
  // the new one have arrived already.
  void OnRestarted(uint32_t worker, uint64_t incarnation) EXCLUDES(restart_mutex_, mutex_);

  void Find(std::span<const BlockId> prompt, PrefixMatches& matches) const {
    index_.Find(prompt, matches);
  }
  std::vector<PrefixIndex::Holder> HoldersOf(const BlockId& id, size_t max) const {
    return index_.HoldersOf(id, max);
  }
  // The cached prefix of a prompt with `prompt_tokens` tokens on this worker, from `matches`.
  CachedPrefix CachedOn(uint32_t worker, const PrefixMatches& matches, uint32_t prompt_tokens,
                        uint32_t block_tokens) const;

  // A prompt with these blocks has been sent to the worker: it will soon have them.
  void Expect(uint32_t worker, std::span<const BlockId> ids);
  // A request found that the worker has only the first `count` of these blocks. Used only while the
  // worker's event stream is stale: otherwise its events are more recent than this finding.
  void OnMissing(uint32_t worker, std::span<const BlockId> ids, size_t count);
  // Removes expected blocks that no event has confirmed within kExpectFor.
  void Sweep();

  struct Figures {
    uint64_t blocks = 0;
    uint64_t dropped = 0;
    uint64_t stale_workers = 0;  // workers without an event for longer than kFreshFor
    uint64_t events = 0;         // since the start
    uint64_t gaps = 0;
    uint64_t missing = 0;  // blocks
  };
  Figures figures() const;

  static constexpr Duration kFreshFor = std::chrono::seconds(2);
  static constexpr Duration kHalfLife = std::chrono::seconds(10);
  static constexpr Duration kExpectFor = std::chrono::seconds(30);

 private:
  struct Worker {
    bool joined = false;
    bool streaming = false;
    bool heard = false;  // a batch has arrived, on any stream
    uint64_t next_sequence = 0;
    uint64_t incarnation = 0;  // the process of the last snapshot or restart
    TimePoint last_heard;
  };
  struct Expectation {
    TimePoint until;
    uint32_t worker;
    std::vector<BlockId> ids;
  };

  double HitProbability(uint32_t worker) const EXCLUDES(mutex_);
  void Apply(uint32_t worker, const v1::BlockEvent& event);

  const Clock& clock_;
  PrefixIndex index_;
  Mutex restart_mutex_;  // locked before mutex_; serializes the clearing of workers
  mutable Mutex mutex_;
  std::vector<Worker> workers_ GUARDED_BY(mutex_);
  std::deque<Expectation> expectations_ GUARDED_BY(mutex_);  // the oldest first
  Figures figures_ GUARDED_BY(mutex_);
};

// The block ids in `bytes`; INVALID_ARGUMENT when its size is no multiple of an id's.
absl::StatusOr<std::vector<BlockId>> BlockIdsOf(const std::string& bytes);

}  // namespace penstock
