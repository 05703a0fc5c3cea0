#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kvstore/codec/codec.h"
#include "kvstore/handoff/handoff_slab_plan.h"
#include "kvstore/handoff/handoff_types.h"

namespace penstock {

// The prefill worker's side of one handoff, as a pure state machine: events in, actions out. No
// I/O, no clock, no lock; one thread at a time. KvSender performs the actions; HandoffReceiver's
// comment describes the protocol.
class HandoffSender {
 public:
  struct Args {
    HandoffKey key;
    HandoffFormat format;
    uint32_t tokens = 0;         // >= 1
    std::string prompt_id = {};  // 16 bytes; empty: the peer cannot hold any of its blocks
    HandoffTiming timing;
    SlabSizes slabs;
    size_t puts_max = 4;  // maximum number of pending slabs
    // The id of the sender's calibration. Codecs that need one require the same id at the peer.
    uint64_t kv_calibration = 0;
  };

  // The actions, to be performed in this order.
  struct Send {
    v1::HandoffSenderMessage message;
  };
  struct OpenLane {
    std::string wire_address;
  };
  // For fault injection and logs. kStreaming is reached when the wire has the first slab.
  struct Reached {
    HandoffState state;
  };
  struct Committed {};
  struct Failed {
    absl::Status status;
  };
  // Last action: the handoff is over and no Put is pending, so the pages may be freed.
  struct Release {};
  using Action = std::variant<Send, OpenLane, Reached, Committed, Failed, Release>;
  using Actions = std::vector<Action>;

  explicit HandoffSender(Args args);

  Actions Start(TimePoint now);
  // Ignores messages with another key.
  Actions OnMessage(TimePoint now, const v1::HandoffReceiverMessage& message);
  Actions OnPeerGone(const absl::Status& why);
  Actions Cancel(const absl::Status& why);
  Actions Tick(TimePoint now);

  // The KV of `range` is in the pages. Each cell is announced once.
  Actions OnLayersReady(TimePoint now, const KvRange& range);
  // Everything has been announced; `first` has the first token of each choice.
  Actions OnFinish(TimePoint now, std::vector<v1::TokenOut> first);

  // The next slab to pack and put, or nullopt for now. Each returned slab needs one OnSlabSent. A
  // slab whose Put failed is returned again, unchanged, after a pause.
  std::optional<SlabHeader> NextSlab(TimePoint now);
  // The slab is packed and has this checksum. The handoff fails if the slab was packed before with
  // another checksum, because the pages have changed; it is then over() and the slab must not be
  // put.
  Actions OnSlabPacked(uint32_t sequence, uint32_t payload_crc);
  // The wire has accepted the slab. OnSlabSent may come first.
  Actions OnSlabHanded(uint32_t sequence);
  // The Put has ended, or was never made.
  Actions OnSlabSent(TimePoint now, uint32_t sequence, const absl::Status& status);

  HandoffState state() const { return state_; }
  bool over() const { return state_ == HandoffState::kCommitted || aborted(); }
  size_t puts() const { return puts_; }  // slabs returned by NextSlab without OnSlabSent
  bool retrying() const { return retries_waiting_ > 0; }
  const HandoffKey& key() const { return args_.key; }
  uint32_t slabs() const { return static_cast<uint32_t>(slabs_.size()); }
  uint64_t kv_bytes() const { return kv_bytes_; }
  uint32_t layers_overlapped() const { return layers_overlapped_; }
  // The codecs besides raw that the peer decodes; set once credited.
  const std::vector<KvCodecSpec>& peer_codecs() const { return peer_codecs_; }

 private:
  struct Slab {
    SlabHeader header;  // payload_crc is valid once packed
    bool packed = false;
    bool handed = false;
    bool sent = false;
    bool out = false;  // returned by NextSlab, without OnSlabSent yet
    int failures = 0;
    TimePoint retry_at{};  // of a slab with failures
  };

  bool aborted() const { return state_ == HandoffState::kAborted; }
  v1::HandoffSenderMessage NewMessage() const;
  void Fail(const absl::Status& why, bool tell_peer, Actions* actions);
  void OnCredit(TimePoint now, const v1::HandoffCredit& credit, Actions* actions);
  void OnCommitted(Actions* actions);
  void OpenWhenReady(TimePoint now, Actions* actions);
  void CommitWhenSent(TimePoint now, Actions* actions);
  void ReleaseWhenIdle(Actions* actions);
  Slab* SlabToRetry(TimePoint now);
  Slab* NewSlab(const KvRange& range);
  void MarkHanded(Slab* slab, Actions* actions);

  const Args args_;
  HandoffState state_ = HandoffState::kOffered;
  TimePoint received_at_{};
  TimePoint sent_at_{};
  // Leading blocks that the peer does not want: its first token does not see them, or, once
  // credited, it has them.
  uint32_t held_blocks_;
  std::vector<KvCodecSpec> peer_codecs_;
  bool something_ready_ = false;
  bool open_sent_ = false;
  bool streaming_reported_ = false;
  bool computed_ = false;  // the last layer of the last step is announced
  bool finished_ = false;
  bool released_ = false;
  HandoffCoverage announced_;
  HandoffCoverage handed_;
  HandoffSlabPlan plan_;
  std::map<uint32_t, Slab> slabs_;  // by sequence; at most one for each cell
  size_t puts_ = 0;
  size_t sent_ = 0;
  size_t retries_waiting_ = 0;
  uint64_t kv_bytes_ = 0;
  uint32_t layers_overlapped_ = 0;
  std::vector<v1::TokenOut> first_;
};

}  // namespace penstock
