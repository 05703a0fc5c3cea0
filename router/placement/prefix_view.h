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

// What the router believes of the workers' caches: the index, fed by their event streams and by
// what this router has just sent them, and how far each worker can be believed. Any thread; looking
// something up waits for nobody.
class PrefixView {
 public:
  explicit PrefixView(const Clock& clock);

  // A worker's number in the index; nullopt when all kIndexWorkersMax are taken.
  std::optional<uint32_t> Join();
  // The worker is not known any more. Its stream has ended.
  void Leave(uint32_t worker);

  // A stream of events has been opened. What was known stays, for what it is worth, until the first
  // batch, which begins a snapshot.
  void OnStreamStarted(uint32_t worker);
  // INVALID_ARGUMENT or OUT_OF_RANGE (a gap): the stream is to be opened anew.
  absl::Status OnEvents(uint32_t worker, const v1::BlockEvents& batch);
  void OnStreamEnded(uint32_t worker);
  // Another process is there: what the one before had is forgotten, unless events of this one have
  // come already.
  void OnRestarted(uint32_t worker, uint64_t incarnation) EXCLUDES(restart_mutex_, mutex_);

  void Find(std::span<const BlockId> prompt, PrefixMatches& matches) const {
    index_.Find(prompt, matches);
  }
  std::vector<PrefixIndex::Holder> HoldersOf(const BlockId& id, size_t max) const {
    return index_.HoldersOf(id, max);
  }
  // What `matches` says of a prompt of so many tokens on this worker.
  CachedPrefix CachedOn(uint32_t worker, const PrefixMatches& matches, uint32_t prompt_tokens,
                        uint32_t block_tokens) const;

  // A prompt with these blocks has been sent there.
  void Expect(uint32_t worker, std::span<const BlockId> ids);
  // The worker had only the first `count` of what was believed: a negative event, where it is no
  // worker that says so itself.
  void OnMissing(uint32_t worker, std::span<const BlockId> ids, size_t count);
  // Takes back expectations that no event has confirmed within kExpectFor.
  void Sweep();

  struct Figures {
    uint64_t blocks = 0;
    uint64_t dropped = 0;
    uint64_t stale_workers = 0;  // silent for longer than kBelieve
    uint64_t events = 0;         // since the start
    uint64_t gaps = 0;
    uint64_t missing = 0;  // blocks
  };
  Figures figures() const;

  static constexpr Duration kBelieve = std::chrono::seconds(2);
  static constexpr Duration kHalfLife = std::chrono::seconds(10);
  static constexpr Duration kExpectFor = std::chrono::seconds(30);

 private:
  struct Worker {
    bool joined = false;
    bool streaming = false;
    bool heard = false;  // a batch, ever
    uint64_t next_sequence = 0;
    uint64_t incarnation = 0;  // of the last snapshot, or of a restart since
    TimePoint last_heard;
  };
  struct Expectation {
    TimePoint until;
    uint32_t worker;
    std::vector<BlockId> ids;
  };

  double TrustIn(uint32_t worker) const EXCLUDES(mutex_);
  void Apply(uint32_t worker, const v1::BlockEvent& event);

  const Clock& clock_;
  PrefixIndex index_;
  Mutex restart_mutex_;  // before mutex_: one who empties a worker's part at a time
  mutable Mutex mutex_;
  std::vector<Worker> workers_ GUARDED_BY(mutex_);
  std::deque<Expectation> expectations_ GUARDED_BY(mutex_);  // the oldest first
  Figures figures_ GUARDED_BY(mutex_);
};

// The ids in `bytes`; INVALID_ARGUMENT when it is not whole ids.
absl::StatusOr<std::vector<BlockId>> BlockIdsOf(const std::string& bytes);

}  // namespace penstock
