#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvstore/block_pool.h"
#include "kvstore/handoff_channel.h"
#include "kvstore/handoff_sender.h"
#include "kvstore/handoff_staging.h"
#include "kvstore/wire.h"

namespace penstock {

struct KvSenderOptions {
  HandoffTiming timing;
  SlabSizes slabs;
  size_t staging_bytes = size_t{32} << 20;  // packed slabs that the peer does not have yet
  size_t handoffs_max = 4096;
  Duration connect_timeout = std::chrono::seconds(1);
  Duration put_timeout = std::chrono::seconds(10);  // a lane whose Put takes longer is closed
  Duration lane_idle = std::chrono::seconds(60);    // an unused lane is closed after this
  // Called at "offered", "credited", "streaming", "landed" and "committed", on the sender's thread
  // and without locks. For fault injection; may end the process.
  std::function<void(std::string_view step)> on_step;
};

struct KvSendStats {
  uint64_t kv_bytes = 0;  // payload handed to the wire, each slab once
  uint32_t slabs = 0;
  uint32_t layers = 0;  // of the model
  // Layers whose last slab was with the wire before the last layer of the last step was computed.
  uint32_t layers_overlapped = 0;
  Duration exposed{};  // from the end of compute to Committed
  std::string transport;
};

// All callbacks run on the sender's own thread, without locks, and must not block.
struct KvSendArgs {
  HandoffKey key;
  uint32_t tokens = 0;  // whose KV goes over: >= 1
  std::shared_ptr<HandoffSenderChannel> channel;
  // Exactly one of the two is called, once, also after Cancel.
  std::function<void(const KvSendStats&)> on_committed;
  // RetryElsewhere(status) says whether another plan may help.
  std::function<void(absl::Status)> on_failed;
};

// "The engine has computed layers [first_layer, last_layer) of tokens [first_token, last_token),
// and their KV is in the pages."
struct KvLayersReady {
  int32_t first_layer = 0;
  int32_t last_layer = 0;
  uint32_t first_token = 0;
  uint32_t last_token = 0;
  // The sequence's block table, at least up to last_token. The sender takes references of its own.
  std::span<const BlockRef> blocks;
};

// The prefill worker's half of every handoff: packs pages into slabs, pushes them over the wire
// while later layers compute, and lets go of the pages only after Committed or the end.
//
// Threads: the public calls come from any thread, are short and never wait for the peer. One thread
// of the sender's own (Launch) packs, connects, puts, calls the channels and the callbacks; the
// wire's thread only leaves a note. Lanes, one to a peer, belong to that thread.
//
// Order of calls for one key: Start (when the job is accepted, so that the offer goes out early),
// SendLayers for every (step, group of layers) in order of computation, Finish after the last step.
// A block's layers are sent once: by the step that completes the block, or by the final step. With
// a cached prefix, announce it first: layers [0, all) of tokens [0, prefix).
class KvSender {
 public:
  // All outlive the sender. `pages` are those of the pool whose blocks will be announced.
  KvSender(KvSenderOptions options, HandoffFormat format, const Clock& clock, Wire& wire,
           PagedKv pages);
  // Ends every handoff with CANCELLED, closes the lanes and joins the thread.
  ~KvSender();

  // Starts the thread. Once.
  void Launch();

  // ALREADY_EXISTS, or RESOURCE_EXHAUSTED beyond handoffs_max: then no callback is called.
  absl::Status Start(KvSendArgs args) EXCLUDES(mutex_);
  // For the engine's thread: notes what is ready and returns. Unknown keys (the handoff has ended
  // meanwhile) are ignored, here and below.
  void SendLayers(const HandoffKey& key, const KvLayersReady& ready) EXCLUDES(mutex_);
  // After the SendLayers of the final step. `first`: the first token of each choice.
  void Finish(const HandoffKey& key, std::vector<v1::TokenOut> first) EXCLUDES(mutex_);
  // The peer's messages, in order, then the end of the stream.
  void OnControl(const HandoffKey& key, const v1::HandoffReceiverMessage& message) EXCLUDES(mutex_);
  void OnControlClosed(const HandoffKey& key, const absl::Status& why) EXCLUDES(mutex_);
  // Ends the handoff and tells the peer; on_failed gets `why`.
  void Cancel(const HandoffKey& key, const absl::Status& why) EXCLUDES(mutex_);

  size_t handoffs() const EXCLUDES(mutex_);      // open, or still holding pages
  size_t staging_used() const EXCLUDES(mutex_);  // bytes

  // One pass of the sender's thread: returns whether anything was done. Only for a caller that
  // takes the place of that thread (the simulator), instead of Launch.
  bool Poll() EXCLUDES(mutex_);
  // Releases everything as the destructor does; afterwards calls are ignored.
  void Stop() EXCLUDES(mutex_);

 private:
  struct Lane;
  struct Handoff;
};

}  // namespace penstock
