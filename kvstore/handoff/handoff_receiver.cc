#include "kvstore/handoff/handoff_receiver.h"

#include <utility>

#include "base/check.h"

namespace penstock {

HandoffReceiver::HandoffReceiver(Args args, TimePoint now)
    : args_(std::move(args)), created_(now), codecs_(args_.codecs) {}

HandoffReceiver::Actions HandoffReceiver::OnExpected(uint32_t tokens, std::string prompt_id,
                                                     std::span<const KvCodecSpec> lossy,
                                                     const FirstTokensRule& first) {
  PENSTOCK_CHECK_GE(tokens, 1u);
  PENSTOCK_CHECK(!expected());
  Actions actions;
  if (aborted()) return actions;
  tokens_ = tokens;
  prompt_id_ = std::move(prompt_id);
  first_rule_ = first;
  codecs_.insert(codecs_.end(), lossy.begin(), lossy.end());
  landed_.emplace(args_.format.layout.layers,
                  static_cast<uint32_t>(args_.format.layout.BlocksFor(tokens)));
  AddPresent(0, FirstBlock(args_.format, tokens));
  const KvRange all{.first_layer = 0,
                    .last_layer = static_cast<uint32_t>(args_.format.layout.layers),
                    .first_block = 0,
                    .last_block = static_cast<uint32_t>(args_.format.layout.BlocksFor(tokens))};
  for (const KvRange& range : UnsentRanges(args_.format.layout, tokens, all)) landed_->Add(range);
  if (absl::Status match = CheckTokens(); !match.ok()) Fail(match, /*tell_peer=*/true, &actions);
  return actions;
}

HandoffReceiver::Actions HandoffReceiver::OnAdmitted(TimePoint now, uint32_t held_blocks) {
  Actions actions;
  if (aborted()) return actions;
  PENSTOCK_CHECK(expected());
  PENSTOCK_CHECK_LT(held_blocks, args_.format.layout.BlocksFor(tokens_));
  const uint32_t first = FirstBlock(args_.format, tokens_);
  PENSTOCK_CHECK_GE(held_blocks, first);
  PENSTOCK_CHECK(held_blocks == first || !prompt_id_.empty());
  admitted_ = true;
  held_blocks_ = held_blocks;
  AddPresent(first, held_blocks);
  CreditWhenAdmitted(now, &actions);
  return actions;
}

void HandoffReceiver::AddPresent(uint32_t first_block, uint32_t last_block) {
  if (first_block == last_block) return;
  const KvRange present{.first_layer = 0,
                        .last_layer = static_cast<uint32_t>(args_.format.layout.layers),
                        .first_block = first_block,
                        .last_block = last_block};
  for (const KvRange& range : SentRanges(args_.format.layout, tokens_, present)) {
    landed_->Add(range);
  }
}

HandoffReceiver::Actions HandoffReceiver::OnMessage(TimePoint now,
                                                    const v1::HandoffSenderMessage& message) {
  Actions actions;
  if (aborted() || HandoffKeyOf(message.key()) != args_.key) return actions;
  received_at_ = now;
  if (state_ == HandoffState::kCommitted) {
    if (message.has_commit()) SendCommitted(&actions);
  } else if (message.has_offer()) {
    OnOffer(now, message.offer(), &actions);
  } else if (message.has_open()) {
    OnOpen(now, &actions);
  } else if (message.has_commit()) {
    OnCommit(now, message.commit(), &actions);
  } else if (message.has_abort()) {
    Fail(StatusOfAbort(message.abort()), /*tell_peer=*/false, &actions);
  }
  return actions;
}

HandoffReceiver::Actions HandoffReceiver::OnPeerGone(const absl::Status& why) {
  Actions actions;
  peer_gone_ = true;
  Fail(Unavailable("the prefill worker's control stream has ended in state {}: {}",
                   HandoffStateName(state_), Message(why)),
       /*tell_peer=*/false, &actions);
  return actions;
}

HandoffReceiver::Actions HandoffReceiver::Cancel(const absl::Status& why) {
  Actions actions;
  Fail(why, /*tell_peer=*/true, &actions);
  return actions;
}

HandoffReceiver::Actions HandoffReceiver::Tick(TimePoint now) {
  Actions actions;
  if (aborted() || state_ == HandoffState::kCommitted || !offered()) return actions;
  const double lease_ms = Milliseconds(args_.timing.lease);
  if (now - received_at_ > args_.timing.lease) {
    Fail(Unavailable("the prefill worker has been silent for {:.0f} ms in state {}, its lease is "
                     "{:.0f} ms",
                     Milliseconds(now - received_at_), HandoffStateName(state_), lease_ms),
         /*tell_peer=*/true, &actions);
  } else if (!expected() && now - created_ > args_.timing.offer_hold) {
    Fail(Unavailable("no decode session for this offer arrived within {:.0f} ms",
                     Milliseconds(args_.timing.offer_hold)),
         /*tell_peer=*/true, &actions);
  } else if (commit_received_ && now - commit_at_ > args_.timing.lease) {
    Fail(DataLoss("{} of {} slabs have arrived {:.0f} ms after Commit", written_, commit_.slabs(),
                  Milliseconds(now - commit_at_)),
         /*tell_peer=*/true, &actions);
  } else if (now - sent_at_ >= args_.timing.lease / 3) {
    sent_at_ = now;
    auto message = NewMessage();
    message.mutable_heartbeat();
    actions.push_back(Send{std::move(message)});
  }
  return actions;
}

absl::Status HandoffReceiver::CheckSlab(const SlabHeader& header) const {
  if (header.key != args_.key) {
    return FailedPrecondition("slab.key is {}, this handoff is {}", HandoffKeyText(header.key),
                              HandoffKeyText(args_.key));
  }
  if (state_ != HandoffState::kStreaming) {
    return FailedPrecondition("a slab arrived in state {}, slabs are allowed in state streaming",
                              HandoffStateName(state_));
  }
  const KvRange range = RangeOf(header);
  if (!landed_->Contains(range)) {
    return OutOfRange(
        "slab covers layers [{}, {}) of blocks [{}, {}); there are {} layers and {} "
        "blocks",
        range.first_layer, range.last_layer, range.first_block, range.last_block,
        args_.format.layout.layers, args_.format.layout.BlocksFor(tokens_));
  }
  const uint64_t bytes = BytesOf(args_.format.layout, range);
  const bool fits = header.codec == SlabCodec::kRaw ? header.payload_bytes == bytes
                                                    : header.payload_bytes < bytes;
  if (header.raw_bytes != bytes || !fits) {
    return InvalidArgument("slab.raw_bytes is {} and slab.payload_bytes {}; its range has {}",
                           header.raw_bytes, header.payload_bytes, bytes);
  }
  if (header.codec != SlabCodec::kRaw && codecs_.empty()) {
    return FailedPrecondition("slab.codec is {}; this worker accepts raw slabs only",
                              static_cast<int>(header.codec));
  }
  const auto slabs_max = static_cast<uint64_t>(args_.format.layout.layers) *
                         static_cast<uint64_t>(args_.format.layout.BlocksFor(tokens_));
  if (header.sequence >= slabs_max) {
    return OutOfRange("slab.sequence is {}, the limit is {}", header.sequence, slabs_max - 1);
  }
  return absl::OkStatus();
}

HandoffReceiver::Landing HandoffReceiver::OnSlabLanded(const SlabHeader& header, bool intact) {
  Landing landing;
  if (!CheckSlab(header).ok()) return landing;  // The handoff ended while the slab was in flight.
  if (!intact) {
    Fail(DataLoss("slab {} is damaged: its checksum is not {:08x}", header.sequence,
                  header.payload_crc),
         /*tell_peer=*/true, &landing.actions);
    return landing;
  }
  if (const auto same = slabs_.find(header.sequence); same != slabs_.end()) {
    if (same->second.header != header) {
      Fail(DataLoss("two different slabs have sequence {}", header.sequence), /*tell_peer=*/true,
           &landing.actions);
    }
    return landing;  // A duplicate: repeated because the sender did not see the end of its Put.
  }
  if (landed_->Overlaps(RangeOf(header))) {
    Fail(DataLoss("slab {} overlaps an earlier slab", header.sequence),
         /*tell_peer=*/true, &landing.actions);
    return landing;
  }
  slabs_[header.sequence].header = header;
  landed_->Add(RangeOf(header));
  ++writes_;
  landing.write = true;
  return landing;
}

HandoffReceiver::Actions HandoffReceiver::OnSlabWritten(TimePoint now, uint32_t sequence) {
  Actions actions;
  Slab& slab = slabs_.at(sequence);
  PENSTOCK_CHECK(!slab.written);
  slab.written = true;
  ++written_;
  --writes_;
  if (aborted()) {
    ReleaseWhenQuiet(&actions);
  } else {
    CommitWhenWhole(now, &actions);
  }
  return actions;
}

bool HandoffReceiver::over(TimePoint now) const {
  if (aborted()) return released_;
  // A committed handoff stays for a while to answer a repeated Commit.
  return state_ == HandoffState::kCommitted && (peer_gone_ || now > over_at_);
}

v1::HandoffReceiverMessage HandoffReceiver::NewMessage() const {
  v1::HandoffReceiverMessage message;
  SetSessionKey(args_.key, message.mutable_key());
  return message;
}

void HandoffReceiver::Fail(const absl::Status& why, bool tell_peer, Actions* actions) {
  if (aborted() || state_ == HandoffState::kCommitted) return;
  state_ = HandoffState::kAborted;
  why_ = why;
  if (tell_peer) {
    auto message = NewMessage();
    SetAbort(why, message.mutable_abort());
    actions->push_back(Send{std::move(message)});
  }
  actions->push_back(Failed{why});
  ReleaseWhenQuiet(actions);
}

// Quarantine: a failed handoff keeps its pages until no write into them is pending.
void HandoffReceiver::ReleaseWhenQuiet(Actions* actions) {
  if (writes_ > 0 || released_) return;
  released_ = true;
  actions->push_back(Release{});
}

void HandoffReceiver::OnOffer(TimePoint now, const v1::HandoffOffer& offer, Actions* actions) {
  if (offered()) {
    if (state_ != HandoffState::kOffered) SendCredit(now, actions);
    return;
  }
  sent_at_ = now;
  offered_tokens_ = offer.tokens();
  offered_prompt_id_ = offer.prompt_id();
  absl::Status match = CheckOffer(offer);
  if (match.ok()) match = CheckTokens();
  if (!match.ok()) {
    Fail(match, /*tell_peer=*/true, actions);
    return;
  }
  actions->push_back(Reached{HandoffState::kOffered});
  CreditWhenAdmitted(now, actions);
}

absl::Status HandoffReceiver::CheckOffer(const v1::HandoffOffer& offer) const {
  if (offer.tokens() == 0) return FailedPrecondition("offer.tokens is 0, at least 1 is required");
  if (offer.model_fingerprint() != args_.format.model_fingerprint) {
    return FailedPrecondition(
        "the prefill worker has model {:016x} and the decode worker {:016x}; start both with the "
        "same checkpoint, and both or neither with speculation=mtp",
        offer.model_fingerprint(), args_.format.model_fingerprint);
  }
  const uint64_t layout = args_.format.layout.Fingerprint();
  if (offer.layout_fingerprint() != layout) {
    return FailedPrecondition(
        "the prefill worker has KV layout {:016x} and the decode worker {:016x}; start both with "
        "the same block size and KV type, and both or neither with speculation=mtp",
        offer.layout_fingerprint(), layout);
  }
  return absl::OkStatus();
}

absl::Status HandoffReceiver::CheckTokens() const {
  if (!offered() || !expected()) return absl::OkStatus();
  if (offered_tokens_ != tokens_) {
    return FailedPrecondition("the offer has {} tokens and the decode session {}", offered_tokens_,
                              tokens_);
  }
  if (offered_prompt_id_ != prompt_id_) {
    return FailedPrecondition("the offer and the decode session have different tokens or tenants");
  }
  return absl::OkStatus();
}

void HandoffReceiver::CreditWhenAdmitted(TimePoint now, Actions* actions) {
  if (state_ != HandoffState::kOffered || !offered() || !admitted_) return;
  state_ = HandoffState::kCredited;
  actions->push_back(Reached{state_});
  SendCredit(now, actions);
}

void HandoffReceiver::SendCredit(TimePoint now, Actions* actions) {
  sent_at_ = now;
  auto message = NewMessage();
  message.mutable_credit()->set_wire_address(args_.wire_address);
  message.mutable_credit()->set_held_blocks(held_blocks_);
  for (const KvCodecSpec& codec : codecs_) {
    message.mutable_credit()->add_codecs(KvCodecName(codec));
  }
  message.mutable_credit()->set_kv_calibration(args_.kv_calibration);
  actions->push_back(Send{std::move(message)});
}

void HandoffReceiver::OnOpen(TimePoint now, Actions* actions) {
  if (state_ == HandoffState::kOffered) {
    Fail(DataLoss("Open arrived before Credit was sent"), /*tell_peer=*/true, actions);
    return;
  }
  if (state_ == HandoffState::kCredited) {
    state_ = HandoffState::kStreaming;
    actions->push_back(Bind{args_.format.layout.BlocksFor(tokens_) - held_blocks_});
    actions->push_back(Reached{state_});
  }
  sent_at_ = now;
  auto message = NewMessage();
  message.mutable_opened();
  actions->push_back(Send{std::move(message)});
}

void HandoffReceiver::OnCommit(TimePoint now, const v1::HandoffCommit& commit, Actions* actions) {
  if (state_ != HandoffState::kStreaming) {
    Fail(DataLoss("Commit arrived in state {}, it is allowed in state streaming",
                  HandoffStateName(state_)),
         /*tell_peer=*/true, actions);
    return;
  }
  if (commit_received_) return;
  commit_received_ = true;
  commit_at_ = now;
  commit_ = commit;
  CommitWhenWhole(now, actions);
}

// The second phase of the commit, see the class comment. Control and data use separate connections,
// so the last slab may arrive after Commit.
void HandoffReceiver::CommitWhenWhole(TimePoint now, Actions* actions) {
  if (!commit_received_ || writes_ > 0 || written_ < commit_.slabs()) return;
  if (absl::Status match = CheckCommit(); !match.ok()) {
    Fail(match, /*tell_peer=*/true, actions);
    return;
  }
  state_ = HandoffState::kLanded;
  actions->push_back(Reached{state_});
  state_ = HandoffState::kCommitted;
  over_at_ = now + args_.timing.lease;
  SendCommitted(actions);
  actions->push_back(Reached{state_});
  actions->push_back(
      Committed{std::vector<v1::TokenOut>(commit_.first().begin(), commit_.first().end())});
}

absl::Status HandoffReceiver::CheckCommit() const {
  RETURN_IF_ERROR(CheckFirstTokens(commit_, first_rule_));
  if (slabs_.size() != commit_.slabs() || !landed_->complete()) {
    return DataLoss("{} slabs with {} layers of blocks have arrived; Commit names {} slabs",
                    slabs_.size(), landed_->cells(), commit_.slabs());
  }
  uint64_t digest = kDigestStart;
  for (const auto& [sequence, slab] : slabs_) digest = DigestSlab(digest, slab.header);
  if (digest != commit_.digest()) {
    return DataLoss("the digest of the slabs is {:016x}, Commit names {:016x}", digest,
                    commit_.digest());
  }
  return absl::OkStatus();
}

void HandoffReceiver::SendCommitted(Actions* actions) {
  auto message = NewMessage();
  message.mutable_committed();
  actions->push_back(Send{std::move(message)});
}

}  // namespace penstock
