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
// no clock, no lock; one thread at a time. KvReceiver performs the actions.
//
// The handoff is a commit in two phases (Gray, "Notes on Data Base Operating Systems", 1978) under
// leases (Gray and Cheriton, SOSP 1989). First the sender streams slabs into pages that no sequence
// can see. Then its Commit names the number and digest of all slabs; the receiver compares them
// with what has landed, makes the pages visible at once, and answers Committed. Until then each
// side can abort alone, and silence beyond the lease aborts.
//
// Credit comes before pages: OnAdmitted reserves blocks by count, and Bind allocates pages only
// when the sender has something to send.
class HandoffReceiver {
 public:
  struct Args {
    HandoffKey key;
    HandoffFormat format;
    HandoffTiming timing;
    std::string wire_address;
    std::vector<KvCodecSpec> codecs = {};  // codecs besides raw that the sender may use
    // The id of the receiver's calibration; 0 without one.
    uint64_t kv_calibration = 0;
  };

  // The actions, to be performed in this order.
  struct Send {
    v1::HandoffReceiverMessage message;
  };
  // Allocate `blocks` pages from the credit, for the blocks that are not held.
  struct Bind {
    int64_t blocks;
  };
  struct Reached {
    HandoffState state;
  };
  // The pages may become visible.
  struct Committed {
    std::vector<v1::TokenOut> first;
  };
  struct Failed {
    absl::Status status;
  };
  // Last action: the handoff has failed and no write into its pages is pending, so they may be
  // freed.
  struct Release {};
  using Action = std::variant<Send, Bind, Reached, Committed, Failed, Release>;
  using Actions = std::vector<Action>;

  HandoffReceiver(Args args, TimePoint now);

  // The decode session has arrived and expects the KV of `tokens` tokens. `prompt_id` (16 bytes or
  // empty) names these tokens; the offer's must be equal. `lossy` are further codecs that the
  // sender may use. `first` is the rule for the first tokens of the Commit.
  Actions OnExpected(uint32_t tokens, std::string prompt_id = {},
                     std::span<const KvCodecSpec> lossy = {}, const FirstTokensRule& first = {});
  // Blocks are reserved. The KV of the first `held_blocks` blocks (fewer than all) is present
  // already, or no later token sees it: FirstBlock of the tokens at least.
  Actions OnAdmitted(TimePoint now, uint32_t held_blocks = 0);
  // Ignores messages with another key.
  Actions OnMessage(TimePoint now, const v1::HandoffSenderMessage& message);
  Actions OnPeerGone(const absl::Status& why);
  Actions Cancel(const absl::Status& why);
  Actions Tick(TimePoint now);

  // OK when a slab may land in staging: its key, place and lengths are valid.
  absl::Status CheckSlab(const SlabHeader& header) const;
  // A slab is in staging; `intact` means that its checksum is right. When `write` is true, the
  // caller writes the slab into the pages and then calls OnSlabWritten.
  struct Landing {
    bool write = false;
    Actions actions;
  };
  Landing OnSlabLanded(const SlabHeader& header, bool intact);
  Actions OnSlabWritten(TimePoint now, uint32_t sequence);

  HandoffState state() const { return state_; }
  bool aborted() const { return state_ == HandoffState::kAborted; }
  const absl::Status& why() const { return why_; }  // OK unless it has failed
  bool expected() const { return tokens_ > 0; }
  int64_t writes() const { return writes_; }  // pending writes into its pages
  // True when nothing is left to do or answer, so the handoff can be deleted.
  bool over(TimePoint now) const;
  const HandoffKey& key() const { return args_.key; }
  // Codecs besides raw that the sender may use; once expected, including the lossy ones.
  const std::vector<KvCodecSpec>& codecs() const { return codecs_; }

 private:
  struct Slab {
    SlabHeader header;
    bool written = false;  // into the pages
  };

  bool offered() const { return offered_tokens_ > 0; }
  v1::HandoffReceiverMessage NewMessage() const;
  void Fail(const absl::Status& why, bool tell_peer, Actions* actions);
  void ReleaseWhenQuiet(Actions* actions);
  void AddPresent(uint32_t first_block, uint32_t last_block);
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
  TimePoint received_at_{};
  TimePoint sent_at_{};
  uint32_t tokens_ = 0;          // 0: the decode session has not arrived
  uint32_t offered_tokens_ = 0;  // 0: no offer yet
  std::string prompt_id_, offered_prompt_id_;
  std::vector<KvCodecSpec> codecs_;
  FirstTokensRule first_rule_;
  bool admitted_ = false;
  uint32_t held_blocks_ = 0;
  bool released_ = false;
  bool peer_gone_ = false;
  std::optional<HandoffCoverage> landed_;  // set once expected
  std::map<uint32_t, Slab> slabs_;         // by sequence; they do not overlap
  int64_t writes_ = 0;
  size_t written_ = 0;  // number of slabs
  bool commit_received_ = false;
  v1::HandoffCommit commit_;
  TimePoint commit_at_{};
  absl::Status why_;
  TimePoint over_at_{};
};

}  // namespace penstock
