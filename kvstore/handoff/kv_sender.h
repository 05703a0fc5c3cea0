#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvstore/cache/block_pool.h"
#include "kvstore/codec/codec_calibration.h"
#include "kvstore/codec/link_codecs.h"
#include "kvstore/handoff/handoff_channel.h"
#include "kvstore/handoff/handoff_sender.h"
#include "kvstore/handoff/slab_memory.h"
#include "kvstore/wire/wire.h"

namespace penstock {

struct KvSenderOptions {
  HandoffTiming timing;
  SlabSizes slabs;
  // Of slabs for peers that take it. One that it does not make smaller goes as it is.
  KvCodecSpec codec = {};
  // Not empty: instead of `codec`, whichever of these or raw takes least time over each link.
  std::vector<KvCodecRates> choices = {};
  const KvCalibration* calibration = nullptr;  // for codecs that need one; outlives the sender
  // Packed slabs in the host's memory that the peer does not have yet.
  size_t staging_bytes = size_t{32} << 20;
  // Where slabs are packed for lanes that take them from there; outlives the sender. Null: nowhere.
  SlabMemory* device_slabs = nullptr;
  size_t handoffs_max = 4096;
  Duration connect_timeout = std::chrono::seconds(1);
  Duration put_timeout = std::chrono::seconds(10);  // a lane whose Put takes longer is closed
  Duration lane_idle = std::chrono::seconds(60);    // an unused lane is closed after this
  // Called for every slab that has gone over, on the sender's thread and without locks.
  std::function<void(const KvSlabReport&)> on_slab = {};
  // Called at "offered", "credited", "streaming", "landed" and "committed", on the sender's thread
  // and without locks. For fault injection; may end the process.
  std::function<void(std::string_view step)> on_step;
};

struct KvSendStats {
  uint64_t kv_bytes = 0;    // of pages that went over, each slab once
  uint64_t wire_bytes = 0;  // what they were on the wire
  uint32_t slabs = 0;
  uint32_t layers = 0;  // of the model
  // Layers whose last slab was with the wire before the last layer of the last step was computed.
  uint32_t layers_overlapped = 0;
  Duration exposed{};     // from the end of compute to Committed
  Duration first_slab{};  // from the first pages that were ready to the first slab being over
  std::string transport;
  std::vector<KvCodecSpec> codecs;  // that slabs went as, each once
};

// Pages that one handoff keeps from being used for anything else.
struct KvHeld {
  int64_t blocks = 0;
  Duration age{};  // since the first of them was ready
};

// All callbacks run on the sender's own thread, without locks, and must not block.
struct KvSendArgs {
  HandoffKey key;
  uint32_t tokens = 0;         // whose KV goes over: >= 1
  std::string prompt_id = {};  // names them, see HandoffOffer; empty: the peer holds none of it
  // Codecs that the request allows besides the exact ones, from fine to coarse.
  std::vector<KvCodecSpec> lossy = {};
  std::shared_ptr<HandoffSenderChannel> channel;
  // Exactly one of the two is called, once, also after Cancel.
  std::function<void(const KvSendStats&)> on_committed;
  // RetryElsewhere(status) says whether another plan may help.
  std::function<void(absl::Status)> on_failed;
  // Then, once: the sender reads no page any more and has let go of all. May be empty.
  std::function<void()> on_released = {};
  // At most once, before the others: the peer has set the blocks aside, see credited(). May be
  // empty.
  std::function<void()> on_credited = {};
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
  // Ends every handoff with UNAVAILABLE, closes the lanes and joins the thread.
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

  // Ends every handoff with UNAVAILABLE, closes the lanes and joins the thread; afterwards calls
  // are ignored. The destructor does it, too.
  void Stop() EXCLUDES(mutex_);

  // Whether the peer has set the blocks aside: what is computed for it can leave, so that its pages
  // come free without waiting for anybody else's.
  bool credited(const HandoffKey& key) const EXCLUDES(mutex_);
  size_t handoffs() const EXCLUDES(mutex_);           // open, or still holding pages
  size_t staging_used() const;                        // bytes, of the host and of a GPU
  std::vector<KvHeld> held() const EXCLUDES(mutex_);  // of handoffs that hold any

  // One pass of the sender's thread; false when there was nothing to do. Only for a caller that
  // takes that thread's place (the simulator) and does not Launch.
  bool Poll() EXCLUDES(mutex_);

 private:
  struct Handoff {
    KvSendArgs args;
    HandoffSender machine;
    std::vector<BlockRef> blocks{};  // of the sequence, as far as it is computed
    std::string wire_address{};      // once credited
    std::string transport{};
    bool from_device = false;  // some slabs went from a GPU's memory
    uint64_t wire_bytes = 0;
    std::vector<KvCodecSpec> used{};           // each once
    std::map<uint32_t, KvCodecSpec> codecs{};  // of slabs: one that is put again is the same
    TimePoint ready_at{};                      // the first pages
    TimePoint first_slab_at{};                 // with the peer
    TimePoint computed_at{};                   // the last layer of the last step
    TimePoint over_at{};                       // once the machine is over
    bool peer_gone = false;
    bool released = false;
  };
  // A slab given out by its machine.
  struct Outgoing {
    HandoffKey key;
    std::string address;
    SlabHeader header;
    SlabHeaderBytes header_bytes{};
    SlabMemory* memory = nullptr;  // of `buffer`
    StagingBuffer buffer;
    TimePoint put_at{};
    KvSlabReport report{};

    std::span<const std::byte> payload() const { return {buffer.data(), header.payload_bytes}; }
  };
  using OutgoingRef = std::unique_ptr<Outgoing>;
  // The sender's thread's own.
  struct Lane {
    std::unique_ptr<WireLane> wire;
    TimePoint used_at{};
  };

  void Run() EXCLUDES(mutex_);
  void Wake() REQUIRES(mutex_);
  // What the passes of the thread consist of; each returns whether it did anything.
  void TickAll() EXCLUDES(mutex_);
  bool RunDeferred() EXCLUDES(mutex_);
  bool ConnectLanes() EXCLUDES(mutex_);
  bool PutRefused() EXCLUDES(mutex_);
  bool SendNext() EXCLUDES(mutex_);
  bool CloseLanes() EXCLUDES(mutex_);

  OutgoingRef NextSlab() EXCLUDES(mutex_);
  SlabMemory& MemoryFor(Outgoing& slab) EXCLUDES(mutex_);
  void ChooseCodec(Handoff& handoff, Outgoing& slab) REQUIRES(mutex_);
  bool Pack(Outgoing& slab) EXCLUDES(mutex_);
  void Put(OutgoingRef slab) EXCLUDES(mutex_);
  void OnPutEnded(uint64_t id, const absl::Status& status) EXCLUDES(mutex_);
  void GiveBack(const Outgoing& slab, const absl::Status& status) REQUIRES(mutex_);
  std::vector<std::string> LanesToClose() EXCLUDES(mutex_);
  void CloseLane(std::string address) EXCLUDES(mutex_);

  Handoff* Find(const HandoffKey& key) REQUIRES(mutex_);
  void Perform(Handoff& handoff, HandoffSender::Actions actions) REQUIRES(mutex_);
  void Do(Handoff& handoff, HandoffSender::Send& send) REQUIRES(mutex_);
  void Do(Handoff& handoff, HandoffSender::OpenLane& open) REQUIRES(mutex_);
  void Do(Handoff& handoff, HandoffSender::Reached& reached) REQUIRES(mutex_);
  void Do(Handoff& handoff, HandoffSender::Committed& committed) REQUIRES(mutex_);
  void Do(Handoff& handoff, HandoffSender::Failed& failed) REQUIRES(mutex_);
  void Do(Handoff& handoff, HandoffSender::Release& release) REQUIRES(mutex_);
  void Defer(std::function<void()> call) REQUIRES(mutex_) { outbox_.push_back(std::move(call)); }

  const KvSenderOptions options_;
  const HandoffFormat format_;
  const Clock& clock_;
  Wire& wire_;
  const std::unique_ptr<SlabMemory> host_slabs_;
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool wake_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::map<HandoffKey, Handoff, HandoffKeyLess> handoffs_ GUARDED_BY(mutex_);  // <= handoffs_max
  std::deque<std::function<void()>> outbox_ GUARDED_BY(mutex_);
  std::map<uint64_t, OutgoingRef> puts_ GUARDED_BY(mutex_);  // with the wire; bounded by memory
  uint64_t next_put_ GUARDED_BY(mutex_) = 0;
  LinkCodecs links_ GUARDED_BY(mutex_);  // of each lane

  // Of the sender's thread only.
  std::map<std::string, Lane> lanes_;  // by wire address
  std::set<std::string> broken_;       // lanes whose Put said so
  std::deque<OutgoingRef> refused_;    // packed; the wire had too much under way
  OutgoingRef unpacked_;               // given out, but staging is full
  HandoffKey last_served_;             // for fairness
};

}  // namespace penstock
