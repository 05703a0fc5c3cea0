#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log/log.h"
#include "base/mutex.h"
#include "kvstore/cache/block_pool.h"
#include "kvstore/codec/codec_calibration.h"
#include "kvstore/handoff/handoff_channel.h"
#include "kvstore/handoff/handoff_claims.h"
#include "kvstore/handoff/handoff_receiver.h"
#include "kvstore/handoff/slab_memory.h"
#include "kvstore/wire/wire.h"

namespace penstock {

// Received KV, complete and verified.
struct ReceivedKv {
  // KvLayout::BlocksFor(tokens), in the sequence's order; empty references to those before
  // FirstBlock, which did not come.
  std::vector<BlockRef> blocks;
  BlockCredit credit;  // blocks that Expect reserved beyond those, for the answer
  uint32_t tokens = 0;
  std::vector<v1::TokenOut> first;  // of each choice, as sampled by the prefill worker
};

// The blocks granted to a decode session at admission.
struct KvAdmission {
  // Pages of leading blocks whose KV is present; fewer than all. References to those that the
  // window has passed are empty.
  std::vector<BlockRef> held;
  BlockCredit credit;  // for the other blocks and the answer
};

// A decode session that waits for its KV. Callbacks run on the thread that brought the event
// (possibly within Expect), one at a time for the whole receiver, without locks, and must not
// block.
struct KvExpectation {
  RequestName name = {};  // for log lines
  HandoffKey key;
  uint32_t tokens = 0;         // tokens whose KV will arrive: >= 1
  std::string prompt_id = {};  // names these tokens, see HandoffOffer
  // To reserve: at least BlocksFor(tokens), less FirstBlock, plus room for the answer.
  int64_t blocks = 0;
  // Codecs besides the exact ones that the sender may use.
  std::vector<KvCodecSpec> lossy = {};
  FirstTokensRule first = {};
  // Called when the session is first in the queue, repeatedly until it returns an admission; must
  // be short, because the receiver's lock is held. Empty: takes `blocks` blocks of the pool.
  std::function<std::optional<KvAdmission>()> admit = {};
  std::function<void()> on_admitted;  // the blocks are reserved
  // If set, no KV will arrive: the blocks are handed out at admission, which ends the expectation.
  // The only other callback that may be called is on_failed, and only before that.
  std::function<void(KvAdmission)> on_blocks = {};
  // Exactly one of the two is called, once, also after Cancel.
  std::function<void(ReceivedKv)> on_committed;
  // RetryElsewhere(status) tells whether replanning may help.
  std::function<void(absl::Status)> on_failed;
};

struct KvReceiverOptions {
  HandoffTiming timing;
  // Limit for slabs that land in host memory. Further slabs are refused and retried by the sender.
  size_t staging_bytes = size_t{64} << 20;
  size_t waiting_max = 256;  // decode sessions queued for blocks
  size_t handoffs_max = 4096;
  // Exact codecs that senders may always use.
  std::vector<KvCodecSpec> codecs = {{KvCodec::kLx16}, {KvCodec::kLxr}};
  // For codecs that need one; outlives the receiver. Null: such codecs are not accepted.
  const KvCalibration* calibration = nullptr;
  // Called at "offered", "credited", "streaming", "landed" and "committed", like the callbacks.
  std::function<void(std::string_view step)> on_step;
  // Writes slabs from host memory into pages; empty: copied at once, on the wire's thread.
  SlabWriter writer;
};

struct KvReceiverLoad {
  size_t handoffs = 0;             // open
  size_t waiting = 0;              // queued for blocks
  int64_t quarantined_blocks = 0;  // of ended handoffs with pending writes
  size_t staging_used = 0;         // bytes, in host and GPU memory
  // Slabs landed since the start.
  uint64_t landed_in_host = 0;
  uint64_t landed_in_device = 0;
};

// The decode worker's side of all handoffs: admits by credit, binds pages late, verifies slabs, and
// makes the pages visible only when all slabs are present.
//
// Any thread may make any call; calls are short. Slabs are verified and copied on the wire's
// thread, or by the GPU when they are in its memory. The receiver has no thread of its own: its
// owner calls Tick at least every lease / 6.
class KvReceiver final : public WireReceiver {
 public:
  // All references outlive the receiver.
  KvReceiver(KvReceiverOptions options, HandoffFormat format, const Clock& clock, BlockPool& pool);
  // The wire must have been destroyed or stopped. Open handoffs fail with UNAVAILABLE.
  ~KvReceiver() override;

  // Sets the address that credits name, before the first message. A separate call, because a wire
  // is made with its receiver.
  void SetWireAddress(std::string address) EXCLUDES(mutex_);
  // Sets the memories in which slabs land that the GPU can verify and write. Called at most once,
  // before the first message; they outlive the receiver.
  void SetGpuSlabs(const GpuSlabMemories& slabs) EXCLUDES(mutex_);

  // Claims a handoff's key for one session, which keeps the claim until nothing acts for it any
  // more. ALREADY_EXISTS while another one has the key.
  absl::StatusOr<HandoffClaims::Claim> Claim(const HandoffKey& key) { return claims_.Take(key); }

  // Reserves blocks or queues for them, and aborts older epochs of the session. On an error no
  // callback is called: INVALID_ARGUMENT, ALREADY_EXISTS, UNAVAILABLE (the handoff ended before
  // this call), FAILED_PRECONDITION (a newer epoch of the session exists) or RESOURCE_EXHAUSTED
  // (more than the pool has, or the queue is full).
  absl::Status Expect(KvExpectation expectation) EXCLUDES(mutex_);
  void Cancel(const HandoffKey& key, const absl::Status& why) EXCLUDES(mutex_);

  // A message that arrived on `channel`, where answers are sent. An offer may arrive before its
  // Expect.
  void OnControl(const std::shared_ptr<HandoffReceiverChannel>& channel,
                 const v1::HandoffSenderMessage& message) EXCLUDES(mutex_);
  // The stream has ended; `channel` is no longer used.
  void OnControlClosed(const HandoffReceiverChannel* channel) EXCLUDES(mutex_);

  // Handles leases, offers without a session, and the queue for blocks.
  void Tick() EXCLUDES(mutex_);
  // Blocks of the pool were freed, so the first session in the queue may be admitted. Optional,
  // because Tick checks, too.
  void OnBlocksFreed() EXCLUDES(mutex_);

  KvReceiverLoad load() const EXCLUDES(mutex_);

  // WireReceiver.
  absl::StatusOr<std::byte*> OnAnnounced(std::span<const std::byte> header,
                                         size_t payload_size) override EXCLUDES(mutex_);
  absl::StatusOr<WireTarget> OnAnnouncedAnywhere(std::span<const std::byte> header,
                                                 size_t payload_size) override EXCLUDES(mutex_);
  void OnLanded(std::span<const std::byte> header, std::span<std::byte> payload) override
      EXCLUDES(mutex_);
  void OnLost(std::span<const std::byte> header, std::byte* target) override EXCLUDES(mutex_);

 private:
  struct Session {
    HandoffReceiver machine;
    // Set while an offered handoff's stream is open.
    std::shared_ptr<HandoffReceiverChannel> channel{};
    std::optional<KvExpectation> expectation{};  // set once expected
    BlockCredit credit{};
    // Once admitted the held ones, once bound all; empty references before FirstBlock.
    std::vector<BlockRef> pages{};
    bool handed_out = false;  // its blocks were handed out; nothing is left to do
  };
  // A slab between OnAnnounced and OnLanded or OnLost.
  struct Incoming {
    LandedSlab slab;
    SlabMemory& memory;
    StagingBuffer buffer;
  };
  using IncomingRef = std::shared_ptr<Incoming>;
  struct Ended {
    HandoffKey key;
    absl::Status why;  // OK: committed
  };
  using Sessions = std::map<HandoffKey, Session, HandoffKeyLess>;

  // kv_receiver.cc: control messages, and the open and ended handoffs.
  Session* SessionFor(const std::shared_ptr<HandoffReceiverChannel>& channel,
                      const v1::HandoffSenderMessage& message) REQUIRES(mutex_);
  void Refuse(const std::shared_ptr<HandoffReceiverChannel>& channel, const HandoffKey& key,
              const absl::Status& why) REQUIRES(mutex_);
  Session& NewSession(const HandoffKey& key) REQUIRES(mutex_);
  void AbortOlderEpochs(const HandoffKey& key) REQUIRES(mutex_);
  void RememberEnded(const HandoffKey& key, const absl::Status& why) REQUIRES(mutex_);
  const absl::Status* FindEnded(const HandoffKey& key) const REQUIRES(mutex_);
  bool HasNewerEpoch(const HandoffKey& key) const REQUIRES(mutex_);
  void ForgetEnded() REQUIRES(mutex_);
  void Defer(std::function<void()> call) REQUIRES(mutex_) { outbox_.push_back(std::move(call)); }
  // Makes the deferred calls in order, without the lock. One thread at a time does this for all
  // threads.
  void RunDeferred() EXCLUDES(mutex_);

  // kv_receiver_admission.cc: decode sessions and the queue for blocks.
  absl::Status CheckExpectation(const KvExpectation& expectation) const REQUIRES(mutex_);
  absl::Status Enqueue(Session& session) REQUIRES(mutex_);
  std::optional<KvAdmission> TryAdmit(const KvExpectation& expectation) REQUIRES(mutex_);
  void Admit(Session& session, KvAdmission admission) REQUIRES(mutex_);
  void AdmitWaiting() REQUIRES(mutex_);

  // kv_receiver_slabs.cc: slabs from their announcement to the pages.
  absl::StatusOr<WireTarget> Announce(std::span<const std::byte> header, size_t payload_size,
                                      bool anywhere) EXCLUDES(mutex_);
  SlabMemory& MemoryFor(const SlabHeader& slab, const Session& session, bool anywhere)
      REQUIRES(mutex_);
  IncomingRef TakeIncoming(std::byte* target) EXCLUDES(mutex_);
  void OnVerified(const IncomingRef& incoming,
                  const absl::StatusOr<std::span<const std::byte>>& raw) EXCLUDES(mutex_);
  void OnWritten(const HandoffKey& key, uint32_t sequence) EXCLUDES(mutex_);

  // kv_receiver_actions.cc: the actions of the state machines.
  void Perform(Session& session, HandoffReceiver::Actions actions) REQUIRES(mutex_);
  void Do(Session& session, HandoffReceiver::Send& send) REQUIRES(mutex_);
  void Do(Session& session, HandoffReceiver::Bind& bind) REQUIRES(mutex_);
  void Do(Session& session, HandoffReceiver::Reached& reached) REQUIRES(mutex_);
  void Do(Session& session, HandoffReceiver::Committed& committed) REQUIRES(mutex_);
  void Do(Session& session, HandoffReceiver::Failed& failed) REQUIRES(mutex_);
  void Do(Session& session, HandoffReceiver::Release& release) REQUIRES(mutex_);

  const KvReceiverOptions options_;
  const HandoffFormat format_;
  const Clock& clock_;
  BlockPool& pool_;
  const std::unique_ptr<SlabMemory> host_slabs_;
  HandoffClaims claims_;

  mutable Mutex mutex_;
  std::string wire_address_ GUARDED_BY(mutex_);
  SlabMemory* device_slabs_ GUARDED_BY(mutex_) = nullptr;    // in GPU memory
  SlabMemory* mirrored_slabs_ GUARDED_BY(mutex_) = nullptr;  // beside it, in host memory
  uint64_t landed_in_host_ GUARDED_BY(mutex_) = 0;
  uint64_t landed_in_device_ GUARDED_BY(mutex_) = 0;
  std::deque<Ended> ended_ GUARDED_BY(mutex_);  // recently ended; at most kEndedMax
  Sessions sessions_ GUARDED_BY(mutex_);        // at most handoffs_max
  std::deque<HandoffKey> admission_queue_
      GUARDED_BY(mutex_);  // queue for blocks; at most waiting_max
  std::map<std::byte*, IncomingRef> incoming_ GUARDED_BY(mutex_);  // by target; bounded by memory
  std::deque<std::function<void()>> outbox_ GUARDED_BY(mutex_);
  bool running_deferred_ GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
