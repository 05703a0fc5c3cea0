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
#include "kvstore/handoff/handoff_receiver.h"
#include "kvstore/handoff/slab_memory.h"
#include "kvstore/wire/wire.h"

namespace penstock {

// KV that is here, whole and verified.
struct ReceivedKv {
  std::vector<BlockRef> blocks;  // KvLayout::BlocksFor(tokens), in the sequence's order
  BlockCredit credit;            // what Expect set aside beyond those: room for the answer
  uint32_t tokens = 0;
  std::vector<v1::TokenOut> first;  // of each choice, as the prefill worker sampled them
};

// What a decode session is given when it is admitted.
struct KvAdmission {
  std::vector<BlockRef> held;  // pages of leading blocks whose KV is here already; less than all
  BlockCredit credit;          // for the rest, and for the answer
};

// A decode session waits for its KV. Callbacks run on whatever thread brought the event (perhaps
// within Expect), one at a time for the whole receiver, without locks, and must not block.
struct KvExpectation {
  RequestName name = {};  // for log lines
  HandoffKey key;
  uint32_t tokens = 0;         // whose KV will come: >= 1
  std::string prompt_id = {};  // names them, see HandoffOffer
  int64_t blocks = 0;          // to set aside: at least BlocksFor(tokens), more for the answer
  std::vector<KvCodecSpec> lossy = {};  // codecs that the sender may use besides the exact ones
  // Decides when it is first in line, again and again until it gives something; short, and with the
  // receiver's lock held. Empty: `blocks` of the pool.
  std::function<std::optional<KvAdmission>()> admit = {};
  std::function<void()> on_admitted;  // the blocks are set aside
  // Not empty: no KV will come. The blocks are handed out when it is admitted, and that was all: of
  // the other callbacks only on_failed may be called, and only before.
  std::function<void(KvAdmission)> on_blocks = {};
  // Exactly one of the two is called, once, also after Cancel.
  std::function<void(ReceivedKv)> on_committed;
  // RetryElsewhere(status) says whether another plan may help.
  std::function<void(absl::Status)> on_failed;
};

struct KvReceiverOptions {
  HandoffTiming timing;
  // Slabs that are landing in the host's memory; more are refused, and retried.
  size_t staging_bytes = size_t{64} << 20;
  size_t waiting_max = 256;  // decode sessions that wait for blocks
  size_t handoffs_max = 4096;
  // Encoded slabs that senders may always bring: exact ones.
  std::vector<KvCodecSpec> codecs = {{KvCodec::kLx16}, {KvCodec::kLxr}};
  const KvCalibration* calibration = nullptr;  // for those that need one; outlives the receiver
  // Called at "offered", "credited", "streaming", "landed" and "committed", as the callbacks are.
  std::function<void(std::string_view step)> on_step;
  SlabWriter writer;  // of slabs in the host's memory; empty: copied at once, on the wire's thread
};

struct KvReceiverLoad {
  size_t handoffs = 0;             // open
  size_t waiting = 0;              // for blocks
  int64_t quarantined_blocks = 0;  // of ended handoffs that a write may still touch
  size_t staging_used = 0;         // bytes, of the host and of a GPU
  // Slabs that have landed, since the start.
  uint64_t landed_in_host = 0;
  uint64_t landed_in_device = 0;
};

// The decode worker's half of every handoff: admits by credit, binds pages late, verifies slabs and
// makes the pages visible only when all of them are here.
//
// Threads: every call comes from any thread and is short; slabs are verified and copied on the
// wire's thread, those in a GPU's memory by the GPU. It has no thread of its own: somebody calls
// Tick at least every lease / 6.
class KvReceiver final : public WireReceiver {
 public:
  // All outlive the receiver.
  KvReceiver(KvReceiverOptions options, HandoffFormat format, const Clock& clock, BlockPool& pool);
  // The wire is gone or delivers nothing any more. Fails what is open with UNAVAILABLE.
  ~KvReceiver() override;

  // The address that credits name. Before the first message: the wire is made with a receiver, so
  // it can only be told afterwards.
  void SetWireAddress(std::string address) EXCLUDES(mutex_);
  // Where slabs land that the wire can bring there and that it takes; outlives the receiver.
  // Likewise, once.
  void SetDeviceSlabs(SlabMemory& slabs) EXCLUDES(mutex_);

  // Sets blocks aside, or waits in line for them. INVALID_ARGUMENT, ALREADY_EXISTS, UNAVAILABLE
  // (the handoff has ended before this call), FAILED_PRECONDITION (a newer epoch of the session is
  // here) or RESOURCE_EXHAUSTED (more than the pool has, or the line is full): then no callback is
  // called. Older epochs of the session are aborted.
  absl::Status Expect(KvExpectation expectation) EXCLUDES(mutex_);
  void Cancel(const HandoffKey& key, const absl::Status& why) EXCLUDES(mutex_);

  // A message that came in on `channel`; answers go out there. An offer may come before its Expect.
  void OnControl(const std::shared_ptr<HandoffReceiverChannel>& channel,
                 const v1::HandoffSenderMessage& message) EXCLUDES(mutex_);
  // The stream has ended; `channel` is not used any more.
  void OnControlClosed(const HandoffReceiverChannel* channel) EXCLUDES(mutex_);

  // Leases, held offers, and the line for blocks.
  void Tick() EXCLUDES(mutex_);
  // Blocks of the pool have come free: whoever is first in line may go on. Optional: Tick looks,
  // too.
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
    std::shared_ptr<HandoffReceiverChannel> channel{};  // once offered, while it is open
    std::optional<KvExpectation> expectation{};         // once expected
    BlockCredit credit{};
    std::vector<BlockRef> pages{};  // once admitted those held, once bound all
    bool handed_out = false;        // its blocks; nothing is left to do
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

  absl::Status CheckExpectation(const KvExpectation& expectation) const REQUIRES(mutex_);
  Session& NewSession(const HandoffKey& key) REQUIRES(mutex_);
  void AbortOlderEpochs(const HandoffKey& key) REQUIRES(mutex_);
  void Remember(const HandoffKey& key, const absl::Status& why) REQUIRES(mutex_);
  const absl::Status* EndedLately(const HandoffKey& key) const REQUIRES(mutex_);
  bool NewerEpochIsHere(const HandoffKey& key) const REQUIRES(mutex_);
  absl::Status Enqueue(Session& session) REQUIRES(mutex_);
  std::optional<KvAdmission> TryAdmit(const KvExpectation& expectation) REQUIRES(mutex_);
  void Admit(Session& session, KvAdmission admission) REQUIRES(mutex_);
  void AdmitWaiting() REQUIRES(mutex_);
  void Refuse(const std::shared_ptr<HandoffReceiverChannel>& channel, const HandoffKey& key,
              const absl::Status& why) REQUIRES(mutex_);
  Session* SessionFor(const std::shared_ptr<HandoffReceiverChannel>& channel,
                      const v1::HandoffSenderMessage& message) REQUIRES(mutex_);
  void Perform(Session& session, HandoffReceiver::Actions actions) REQUIRES(mutex_);
  void Defer(std::function<void()> call) REQUIRES(mutex_) { outbox_.push_back(std::move(call)); }
  void Do(Session& session, HandoffReceiver::Send& send) REQUIRES(mutex_);
  void Do(Session& session, HandoffReceiver::Bind& bind) REQUIRES(mutex_);
  void Do(Session& session, HandoffReceiver::Reached& reached) REQUIRES(mutex_);
  void Do(Session& session, HandoffReceiver::Committed& committed) REQUIRES(mutex_);
  void Do(Session& session, HandoffReceiver::Failed& failed) REQUIRES(mutex_);
  void Do(Session& session, HandoffReceiver::Release& release) REQUIRES(mutex_);
  void ForgetEnded() REQUIRES(mutex_);
  void OnWritten(const HandoffKey& key, uint32_t sequence) EXCLUDES(mutex_);
  // Makes the deferred calls, in order, without the lock. One thread at a time does it for all.
  void RunDeferred() EXCLUDES(mutex_);
  absl::StatusOr<WireTarget> Announce(std::span<const std::byte> header, size_t payload_size,
                                      bool anywhere) EXCLUDES(mutex_);
  SlabMemory& MemoryFor(const SlabHeader& slab, const Session& session, bool anywhere)
      REQUIRES(mutex_);
  IncomingRef TakeIncoming(std::byte* target) EXCLUDES(mutex_);
  void OnVerified(const IncomingRef& incoming,
                  const absl::StatusOr<std::span<const std::byte>>& raw) EXCLUDES(mutex_);

  const KvReceiverOptions options_;
  const HandoffFormat format_;
  const Clock& clock_;
  BlockPool& pool_;
  const std::unique_ptr<SlabMemory> host_slabs_;

  mutable Mutex mutex_;
  std::string wire_address_ GUARDED_BY(mutex_);
  SlabMemory* device_slabs_ GUARDED_BY(mutex_) = nullptr;
  uint64_t landed_in_host_ GUARDED_BY(mutex_) = 0;
  uint64_t landed_in_device_ GUARDED_BY(mutex_) = 0;
  std::deque<Ended> ended_ GUARDED_BY(mutex_);      // lately; at most kEndedMax
  Sessions sessions_ GUARDED_BY(mutex_);            // at most handoffs_max
  std::deque<HandoffKey> line_ GUARDED_BY(mutex_);  // for blocks; at most waiting_max
  std::map<std::byte*, IncomingRef> incoming_ GUARDED_BY(mutex_);  // by target; bounded by memory
  std::deque<std::function<void()>> outbox_ GUARDED_BY(mutex_);
  bool running_deferred_ GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
