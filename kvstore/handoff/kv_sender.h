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
#include "kvstore/handoff/handoff_claims.h"
#include "kvstore/handoff/handoff_sender.h"
#include "kvstore/handoff/slab_memory.h"
#include "kvstore/wire/wire.h"

namespace penstock {

// This room hands a prompt's KV from a prefill worker to a decode worker: the protocol's two state
// machines, their drivers KvSender and KvReceiver, and the memory that slabs pass through. It knows
// pool, codecs and the Wire interface, but no particular wire, no gRPC, no engine and no cache.

// The options of KvSender.
struct KvSenderOptions {
  HandoffTiming timing;
  SlabSizes slabs;
  // Codec of slabs whose peer decodes it. A slab that it does not make smaller is sent raw.
  KvCodecSpec codec = {};
  // If not empty, the fastest of these and raw is chosen for each link, instead of `codec`.
  std::vector<KvCodecRates> choices = {};
  // For codecs that need one; outlives the sender.
  const KvCalibration* calibration = nullptr;
  // Limit for packed slabs in host memory that the peer has not received.
  size_t staging_bytes = size_t{32} << 20;
  // GPU memory in which slabs are packed when the lane can send from there; outlives the sender.
  // Null: host memory only.
  SlabMemory* device_slabs = nullptr;
  // Page-locked memory in which the GPU packs slabs for all other lanes (GpuSlabMemories); outlives
  // the sender. Null: the CPU packs them.
  SlabMemory* mirrored_slabs = nullptr;
  size_t puts_max = 4;  // limit of a handoff's pending slabs
  size_t handoffs_max = 4096;
  Duration connect_timeout = std::chrono::seconds(1);
  Duration put_timeout = std::chrono::seconds(10);  // a lane whose Put takes longer is closed
  Duration lane_idle = std::chrono::seconds(60);    // an unused lane is closed after this time
  // Called for every delivered slab, on the sender's thread and without locks.
  std::function<void(const KvSlabReport&)> on_slab = {};
  // Called at "offered", "credited", "streaming", "landed" and "committed", on the sender's thread
  // and without locks. For fault injection; may end the process.
  std::function<void(std::string_view step)> on_step;
};

struct KvSendStats {
  uint64_t kv_bytes = 0;    // bytes of delivered pages, each slab once
  uint64_t wire_bytes = 0;  // bytes of the same on the wire
  uint32_t slabs = 0;
  uint32_t layers = 0;  // of the model
  // Layers whose last slab was with the wire before the last layer of the last step was computed.
  uint32_t layers_overlapped = 0;
  Duration exposed{};     // from the end of compute to Committed
  Duration first_slab{};  // from the first ready pages to the first slab's delivery
  std::string transport;
  std::vector<KvCodecSpec> codecs;  // codecs of the slabs, each once
};

// The pages that one handoff keeps allocated.
struct KvHeld {
  int64_t blocks = 0;
  Duration age{};  // time since the first of them was ready
};

// All callbacks run on the sender's own thread, without locks, and must not block.
struct KvSendArgs {
  HandoffKey key;
  uint32_t tokens = 0;         // tokens whose KV is handed over: >= 1
  std::string prompt_id = {};  // names these tokens, see HandoffOffer; empty: the peer has none
  // Codecs that the request allows besides the exact ones, from fine to coarse.
  std::vector<KvCodecSpec> lossy = {};
  std::shared_ptr<HandoffSenderChannel> channel;
  // Exactly one of the two is called, once, also after Cancel.
  std::function<void(const KvSendStats&)> on_committed;
  // RetryElsewhere(status) tells whether replanning may help.
  std::function<void(absl::Status)> on_failed;
  // Called once afterwards: the sender no longer reads any page and has dropped its references. May
  // be empty.
  std::function<void()> on_released = {};
  // At most once, before the others: the peer has set the blocks aside, see credited(). May be
  // empty.
  std::function<void()> on_credited = {};
};

// The engine has computed layers [first_layer, last_layer) of tokens [first_token, last_token), and
// their KV is in the pages.
struct KvLayersReady {
  int32_t first_layer = 0;
  int32_t last_layer = 0;
  uint32_t first_token = 0;
  uint32_t last_token = 0;
  // The sequence's block table, at least up to last_token. References to blocks before FirstBlock
  // of all tokens may be empty: they are not sent. The sender takes its own references.
  std::span<const BlockRef> blocks;
};

// The prefill worker's side of all handoffs: packs pages into slabs, sends them while later layers
// are computed, and releases the pages only after Committed or the handoff's end.
//
// Public calls may come from any thread, are short and never wait for the peer. The sender's own
// thread (Launch) packs, connects, puts, and calls channels and callbacks; the wire's thread only
// records results. Lanes, one to each peer, belong to the sender's thread.
//
// Calls for one key: Claim; Start when the job is accepted, so that the offer is sent early;
// SendLayers for every (step, group of layers) in order of computation; Finish after the last step.
// A block's layers are sent once, by the step that completes the block or by the last step. A
// cached prefix is announced first: layers [0, all) of tokens [0, prefix).
class KvSender {
 public:
  // All references outlive the sender. `pages` are the pool's pages of the announced blocks.
  KvSender(KvSenderOptions options, HandoffFormat format, const Clock& clock, Wire& wire,
           PagedKv pages);
  // Ends every handoff with UNAVAILABLE, closes the lanes and joins the thread.
  ~KvSender();

  // Starts the thread. Called at most once.
  void Launch();

  // Claims a handoff's key for one call, which keeps the claim until nothing acts for it any more.
  // ALREADY_EXISTS while another one has the key.
  absl::StatusOr<HandoffClaims::Claim> Claim(const HandoffKey& key) { return claims_.Take(key); }

  // On an error no callback is called: ALREADY_EXISTS, or RESOURCE_EXHAUSTED beyond handoffs_max.
  absl::Status Start(KvSendArgs args) EXCLUDES(mutex_);
  // Called by the engine's thread: records the range and returns. Here and below, unknown keys are
  // ignored, because the handoff may have ended.
  void SendLayers(const HandoffKey& key, const KvLayersReady& ready) EXCLUDES(mutex_);
  // Called after the SendLayers of the last step. `first` has the first token of each choice.
  void Finish(const HandoffKey& key, std::vector<v1::TokenOut> first) EXCLUDES(mutex_);
  // The peer's messages in order, then the end of the stream.
  void OnControl(const HandoffKey& key, const v1::HandoffReceiverMessage& message) EXCLUDES(mutex_);
  void OnControlClosed(const HandoffKey& key, const absl::Status& why) EXCLUDES(mutex_);
  // Ends the handoff and tells the peer; on_failed receives `why`.
  void Cancel(const HandoffKey& key, const absl::Status& why) EXCLUDES(mutex_);

  // Ends every handoff with UNAVAILABLE, closes the lanes and joins the thread. Later calls are
  // ignored. The destructor calls it, too.
  void Stop() EXCLUDES(mutex_);

  // True when the peer has reserved the blocks. The KV computed for it can then be sent, and its
  // pages become free without waiting for other requests.
  bool credited(const HandoffKey& key) const EXCLUDES(mutex_);
  size_t handoffs() const EXCLUDES(mutex_);           // open, or still holding pages
  size_t staging_used() const;                        // bytes, in host and GPU memory
  std::vector<KvHeld> held() const EXCLUDES(mutex_);  // of handoffs that hold pages

  // Runs one pass of the sender's thread; false when there was nothing to do. Only for a caller
  // that replaces that thread (the simulator) and does not call Launch.
  bool Poll() EXCLUDES(mutex_);

 private:
  struct Handoff {
    KvSendArgs args;
    HandoffSender machine;
    std::vector<BlockRef> blocks{};  // of the sequence, as far as computed; empty before FirstBlock
    std::string wire_address{};      // set once credited
    std::string transport{};
    bool from_device = false;  // some slabs were sent from GPU memory
    uint64_t wire_bytes = 0;
    std::vector<KvCodecSpec> used{};           // each codec once
    std::map<uint32_t, KvCodecSpec> codecs{};  // by slab: a repeated slab keeps its codec
    TimePoint ready_at{};                      // first pages ready
    TimePoint first_slab_at{};                 // first slab delivered
    TimePoint computed_at{};                   // last layer of the last step computed
    TimePoint over_at{};                       // set once the machine is over
    bool peer_gone = false;
    bool released = false;
  };
  // A slab that its state machine returned.
  struct Outgoing {
    HandoffKey key;
    std::string address;
    SlabHeader header;
    SlabHeaderBytes header_bytes{};
    std::vector<uint32_t> pages{};  // of the header's blocks
    uint32_t sequence_blocks = 0;   // of the whole sequence
    SlabMemory* memory = nullptr;   // of `buffer`
    StagingBuffer buffer;
    TimePoint put_at{};
    KvSlabReport report{};

    std::span<const std::byte> payload() const { return {buffer.data(), header.payload_bytes}; }
  };
  using OutgoingRef = std::unique_ptr<Outgoing>;
  // Used by the sender's thread only.
  struct Lane {
    std::unique_ptr<WireLane> wire;
    TimePoint used_at{};
  };

  // kv_sender.cc: the worker's calls and the thread. RunDeferred, and the other parts of a pass of
  // the thread below, return true when they did anything.
  void Run() EXCLUDES(mutex_);
  void Wake() REQUIRES(mutex_);
  void TickAll() EXCLUDES(mutex_);
  bool RunDeferred() EXCLUDES(mutex_);
  Handoff* Find(const HandoffKey& key) REQUIRES(mutex_);
  void Defer(std::function<void()> call) REQUIRES(mutex_) { outbox_.push_back(std::move(call)); }

  // kv_sender_lanes.cc: opening and closing lanes.
  bool ConnectLanes() EXCLUDES(mutex_);
  bool CloseLanes() EXCLUDES(mutex_);
  std::vector<std::string> LanesToClose() EXCLUDES(mutex_);
  void CloseLane(std::string address) EXCLUDES(mutex_);

  // kv_sender_slabs.cc: packing and putting slabs.
  bool PutRefused() EXCLUDES(mutex_);
  bool SendNext() EXCLUDES(mutex_);
  std::vector<OutgoingRef> NextSlabs() EXCLUDES(mutex_);
  OutgoingRef NextSlab() EXCLUDES(mutex_);
  SlabMemory& MemoryFor(Outgoing& slab) EXCLUDES(mutex_);
  void ChooseCodec(Handoff& handoff, Outgoing& slab) REQUIRES(mutex_);
  void PackAll(std::vector<OutgoingRef>& slabs) EXCLUDES(mutex_);
  bool BeginPacking(Outgoing& slab) EXCLUDES(mutex_);
  bool EndPacking(Outgoing& slab, Duration took) EXCLUDES(mutex_);
  void Put(OutgoingRef slab) EXCLUDES(mutex_);
  void OnPutEnded(uint64_t id, const absl::Status& status) EXCLUDES(mutex_);
  void GiveBack(const Outgoing& slab, const absl::Status& status) REQUIRES(mutex_);

  // kv_sender_actions.cc: the actions of the state machines.
  void Perform(Handoff& handoff, HandoffSender::Actions actions) REQUIRES(mutex_);
  void Do(Handoff& handoff, HandoffSender::Send& send) REQUIRES(mutex_);
  void Do(Handoff& handoff, HandoffSender::OpenLane& open) REQUIRES(mutex_);
  void Do(Handoff& handoff, HandoffSender::Reached& reached) REQUIRES(mutex_);
  void Do(Handoff& handoff, HandoffSender::Committed& committed) REQUIRES(mutex_);
  void Do(Handoff& handoff, HandoffSender::Failed& failed) REQUIRES(mutex_);
  void Do(Handoff& handoff, HandoffSender::Release& release) REQUIRES(mutex_);

  const KvSenderOptions options_;
  const HandoffFormat format_;
  const Clock& clock_;
  Wire& wire_;
  const std::unique_ptr<SlabMemory> host_slabs_;
  HandoffClaims claims_;
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool wake_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::map<HandoffKey, Handoff, HandoffKeyLess> handoffs_ GUARDED_BY(mutex_);  // <= handoffs_max
  std::deque<std::function<void()>> outbox_ GUARDED_BY(mutex_);
  std::map<uint64_t, OutgoingRef> puts_ GUARDED_BY(mutex_);  // pending; bounded by memory
  uint64_t next_put_ GUARDED_BY(mutex_) = 0;
  LinkCodecs links_ GUARDED_BY(mutex_);  // by lane

  // Used by the sender's thread only.
  std::map<std::string, Lane> lanes_;  // by wire address
  std::set<std::string> broken_;       // lanes with a failed Put
  std::deque<OutgoingRef> refused_;    // packed; the wire's budget was used up
  // Not packed because staging is full, or because those before it are in another memory.
  OutgoingRef unpacked_;
  HandoffKey last_served_;  // for fairness
};

}  // namespace penstock
