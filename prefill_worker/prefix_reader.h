#pragma once

#include <functional>
#include <memory>
#include <set>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvstore/handoff/kv_receiver.h"
#include "kvstore/manager/kv_cache_manager.h"
#include "prefill_worker/prefill_job.h"
#include "proto/worker.pb.h"
#include "worker/handoff/peer_channels.h"
#include "worker/handoff/peer_metrics.h"

namespace penstock {

// A prompt that waits for a part of its prefix to come from another worker's store. Lives until
// that has ended, whoever lets go of it.
class PrefixRead {
 public:
  virtual ~PrefixRead() = default;
  // The prompt is not wanted any more: it is dropped without a word.
  virtual void Cancel() = 0;
};

// Reads prefixes of prompts from other workers' stores into this worker's pages and cache
// (proto/peer_store.proto). Whatever goes wrong, the prompt goes on and is computed. Any thread.
class PrefixReader {
 public:
  struct Parts {  // all that is referred to outlives the reader
    KvCacheManager& cache;
    KvReceiver& receiver;
    const Clock& clock;
    PeerReadMetrics& metrics;
    std::shared_ptr<grpc::ChannelCredentials> credentials;  // of calls to other workers
    KvLayout layout;
    int64_t blocks_left = 0;  // of the pool, that waiting prompts leave to others
    size_t reads_max = 256;   // at once; further prompts are computed
  };
  // Gets the prompt back, with what came of it in `job.peer`, and in `job.admission` its blocks if
  // it has them. On any thread, perhaps within Start; must not block.
  using OnEnded = std::function<void(PrefillJob job)>;

  explicit PrefixReader(Parts parts);
  ~PrefixReader();  // Stop()s.

  // `on_ended` is called exactly once, or never after Cancel.
  std::shared_ptr<PrefixRead> Start(PrefillJob job, const v1::PeerPrefix& peer, OnEnded on_ended);
  // Gives every prompt back as it is, and every further one at once. Waits for the calls' ends.
  void Stop() EXCLUDES(mutex_);
  size_t reads() const EXCLUDES(mutex_);

 private:
  class Read;
  bool Insert(const std::shared_ptr<Read>& read) EXCLUDES(mutex_);
  void Erase(const std::shared_ptr<Read>& read) EXCLUDES(mutex_);

  const Parts parts_;
  PeerChannels channels_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::set<std::shared_ptr<Read>> reads_ GUARDED_BY(mutex_);  // at most reads_max
  bool stopping_ GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
