#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kvstore/codec/codec.h"
#include "kvstore/handoff/handoff_coverage.h"
#include "kvstore/handoff/handoff_types.h"

namespace penstock {

// The decode worker's side of one handoff, as a pure state machine: events in, actions out. No I/O,
// no clock, no lock; one thread at a time. KvReceiver acts for it.
class HandoffReceiver {
 public:
  struct Args {
    HandoffKey key;
    HandoffFormat format;
    HandoffTiming timing;
    std::string wire_address;
    std::vector<KvCodecSpec> codecs = {};  // that the sender may use besides raw
    uint64_t kv_calibration = 0;           // the id of ours
  };

  // What to do, in this order.
  struct Send {
    v1::HandoffReceiverMessage message;
  };
  // Take this many pages from the credit, for the blocks that are not held.
  struct Bind {
    int64_t blocks;
  };
  struct Reached {
    HandoffState state;
  };
  // The pages may be seen.
  struct Committed {
    std::vector<v1::TokenOut> first;
  };
  struct Failed {
    absl::Status status;
  };
  // It has failed and no write into its pages is under way: they may go. Last action of all.
  struct Release {};
  using Action = std::variant<Send, Bind, Reached, Committed, Failed, Release>;
  using Actions = std::vector<Action>;

  HandoffReceiver(Args args, TimePoint now);

  // The decode session is here and will take this many tokens' KV. `prompt_id` (16 bytes, or none)
  // names them: the offer's must be the same. `lossy`: codecs that the sender may use, too.
  Actions OnExpected(uint32_t tokens, std::string prompt_id = {},
                     std::span<const KvCodecSpec> lossy = {});
  // Its blocks are set aside. Of the leading `held_blocks` (less than all) the KV is here already.
  Actions OnAdmitted(TimePoint now, uint32_t held_blocks = 0);
  // A message of another key is ignored.
  Actions OnMessage(TimePoint now, const v1::HandoffSenderMessage& message);
  Actions OnPeerGone(const absl::Status& why);
  Actions Cancel(const absl::Status& why);
  Actions Tick(TimePoint now);

  // Whether a slab may land in staging: its key, its place, its lengths.
  absl::Status CheckSlab(const SlabHeader& header) const;
  // A slab is in staging, and `intact` says whether its checksum is right. When `write` comes back
  // true, it must be written into the pages, and OnSlabWritten follows.
  struct Landing {
    bool write = false;
    Actions actions;
  };
  Landing OnSlabLanded(const SlabHeader& header, bool intact);
  Actions OnSlabWritten(TimePoint now, uint32_t sequence);

  HandoffState state() const { return state_; }
  bool aborted() const { return state_ == HandoffState::kAborted; }
  const absl::Status& why() const { return why_; }  // it has failed; else OK
  bool expected() const { return tokens_ > 0; }
  int64_t writes() const { return writes_; }  // into its pages, under way
  // Nothing is left to do or to answer: forget it.
  bool over(TimePoint now) const;
  const HandoffKey& key() const { return args_.key; }
  // That the sender may use besides raw; once expected, lossy ones too.
  const std::vector<KvCodecSpec>& codecs() const { return codecs_; }

 private:
  struct Slab {
    SlabHeader header;
    bool written = false;  // into its pages
  };

  bool offered() const { return offered_tokens_ > 0; }
  v1::HandoffReceiverMessage NewMessage() const;
  void Fail(const absl::Status& why, bool tell_peer, Actions* actions);
  void ReleaseWhenQuiet(Actions* actions);
  void OnOffer(TimePoint now, const v1::HandoffOffer& offer, Actions* actions);
  absl::Status CheckOffer(const v1::HandoffOffer& offer) const;
  absl::Status CheckTokens() const;
  void CreditWhenAdmitted(TimePoint now, Actions* actions);
  void SendCredit(TimePoint now, Actions* actions);
  void OnOpen(TimePoint now, Actions* actions);
  void OnCommit(TimePoint now, const v1::HandoffCommit& commit, Actions* actions);
  void CommitWhenWhole(TimePoint now, Actions* actions);
  absl::Status CheckCommit() const;
  void SendCommitted(Actions* actions);

  const Args args_;
  HandoffState state_ = HandoffState::kOffered;
  const TimePoint created_;
  TimePoint heard_{};
  TimePoint said_{};
  uint32_t tokens_ = 0;          // 0: no decode session yet
  uint32_t offered_tokens_ = 0;  // 0: no offer yet
  std::string prompt_id_, offered_prompt_id_;
  std::vector<KvCodecSpec> codecs_;
  bool admitted_ = false;
  uint32_t held_blocks_ = 0;
  bool released_ = false;
  bool peer_gone_ = false;
  std::optional<HandoffCoverage> landed_;  // once expected
  std::map<uint32_t, Slab> slabs_;         // by sequence; they do not overlap
  int64_t writes_ = 0;
  size_t written_ = 0;  // slabs
  bool commit_received_ = false;
  v1::HandoffCommit commit_;
  TimePoint commit_at_{};
  absl::Status why_;
  TimePoint over_at_{};
};

}  // namespace penstock
