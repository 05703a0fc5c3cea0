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

// A prompt that waits for a part of its prefix from another worker's store. The reader keeps it
// alive until the read has ended.
class PrefixRead {
 public:
  virtual ~PrefixRead() = default;
  // Drops the prompt; OnEnded is not called.
  virtual void Cancel() = 0;
};

// Reads prefixes of prompts from other workers' stores into this worker's pages and cache
// (proto/peer_store.proto). If a read fails, the prompt is computed instead. Any thread.
class PrefixReader {
 public:
  struct Parts {  // everything referred to outlives the reader
    KvCacheManager& cache;
    KvReceiver& receiver;
    const Clock& clock;
    PeerReadMetrics& metrics;
    std::shared_ptr<grpc::ChannelCredentials> credentials;  // of calls to other workers
    KvLayout layout;                                        // without a window
    int64_t blocks_left = 0;                                // of the pool, left to others
    int64_t rows_left = 0;                                  // likewise, in a window group's pool
    int32_t chunk_tokens = 0;                               // of the engine's steps
    size_t reads_max = 256;                                 // at once; further prompts are computed
  };
  // Receives the job again, with the outcome in `job.peer` and the blocks, if any, in
  // `job.admission`. Called on any thread, perhaps within Start; must not block.
  using OnEnded = std::function<void(PrefillJob job)>;

  explicit PrefixReader(Parts parts);
  ~PrefixReader();  // Stop()s.

  // `on_ended` is called exactly once, or never after Cancel.
  std::shared_ptr<PrefixRead> Start(PrefillJob job, const v1::PeerPrefix& peer, OnEnded on_ended);
  // Ends every read, so that jobs go back as they are, and refuses others. Waits for the calls.
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
