#include "kvstore/handoff/handoff_sender.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

// A refused slab (the peer's staging is full, or the lane broke) is retried with exponential
// backoff: after 2, 4, ... 100 ms, for about a second in all, well within a lease.
constexpr int kFailuresMax = 16;
constexpr Duration kRetryFirst = std::chrono::milliseconds(2);
constexpr Duration kRetryMax = std::chrono::milliseconds(100);

Duration RetryPause(int failures) {
  return std::min(kRetryMax, kRetryFirst * (1 << std::min(failures - 1, 10)));
}

uint32_t Blocks(const HandoffFormat& format, uint32_t tokens) {
  return static_cast<uint32_t>(format.layout.BlocksFor(tokens));
}

KvRange BlocksBetween(const HandoffFormat& format, uint32_t first, uint32_t last) {
  return {.first_layer = 0,
          .last_layer = static_cast<uint32_t>(format.layout.layers),
          .first_block = first,
          .last_block = last};
}

}  // namespace

HandoffSender::HandoffSender(Args args)
    : args_(std::move(args)),
      held_blocks_(FirstBlock(args_.format, args_.tokens)),
      announced_(args_.format.layout.layers, Blocks(args_.format, args_.tokens)),
      handed_(announced_),
      plan_(args_.slabs,
            std::max(args_.format.layout.LayerBytes(), args_.format.layout.RecentBytes())) {
  PENSTOCK_CHECK_GE(args_.tokens, 1u);
  const KvLayout& layout = args_.format.layout;
  const KvRange all = BlocksBetween(args_.format, 0, Blocks(args_.format, args_.tokens));
  for (const KvRange& range : UnsentRanges(layout, args_.tokens, all)) announced_.Add(range);
  if (held_blocks_ > 0) announced_.Add(BlocksBetween(args_.format, 0, held_blocks_));
  handed_ = announced_;
}

HandoffSender::Actions HandoffSender::Start(TimePoint now) {
  received_at_ = sent_at_ = now;
  auto message = NewMessage();
  v1::HandoffOffer* offer = message.mutable_offer();
  offer->set_model_fingerprint(args_.format.model_fingerprint);
  offer->set_layout_fingerprint(args_.format.layout.Fingerprint());
  offer->set_tokens(args_.tokens);
  offer->set_prompt_id(args_.prompt_id);
  return {Send{std::move(message)}, Reached{HandoffState::kOffered}};
}

HandoffSender::Actions HandoffSender::OnMessage(TimePoint now,
                                                const v1::HandoffReceiverMessage& message) {
  Actions actions;
  if (over() || HandoffKeyOf(message.key()) != args_.key) return actions;
  received_at_ = now;
  if (message.has_credit()) {
    OnCredit(now, message.credit(), &actions);
  } else if (message.has_opened()) {
    if (state_ == HandoffState::kCredited && open_sent_) state_ = HandoffState::kStreaming;
  } else if (message.has_committed()) {
    OnCommitted(&actions);
  } else if (message.has_abort()) {
    Fail(StatusOfAbort(message.abort()), /*tell_peer=*/false, &actions);
  }
  return actions;
}

HandoffSender::Actions HandoffSender::OnPeerGone(const absl::Status& why) {
  Actions actions;
  Fail(Unavailable("the decode worker's control stream has ended in state {}: {}",
                   HandoffStateName(state_), Message(why)),
       /*tell_peer=*/false, &actions);
  return actions;
}

HandoffSender::Actions HandoffSender::Cancel(const absl::Status& why) {
  Actions actions;
  Fail(why, /*tell_peer=*/true, &actions);
  return actions;
}

HandoffSender::Actions HandoffSender::Tick(TimePoint now) {
  Actions actions;
  if (over()) return actions;
  if (now - received_at_ > args_.timing.lease) {
    Fail(Unavailable("the decode worker has been silent for {:.0f} ms in state {}, its lease is "
                     "{:.0f} ms",
                     Milliseconds(now - received_at_), HandoffStateName(state_),
                     Milliseconds(args_.timing.lease)),
         /*tell_peer=*/true, &actions);
  } else if (now - sent_at_ >= args_.timing.lease / 3) {
    sent_at_ = now;
    auto message = NewMessage();
    message.mutable_heartbeat();
    actions.push_back(Send{std::move(message)});
  }
  return actions;
}

HandoffSender::Actions HandoffSender::OnLayersReady(TimePoint now, const KvRange& range) {
  Actions actions;
  if (over()) return actions;
  PENSTOCK_CHECK_GE(range.first_block, FirstBlock(args_.format, args_.tokens));
  const std::vector<KvRange> sent = SentRanges(args_.format.layout, args_.tokens, range);
  for (const KvRange& part : sent) announced_.Add(part);  // CHECKs that no cell is announced twice.
  const uint32_t layers = static_cast<uint32_t>(args_.format.layout.layers);
  if (range.last_layer == layers && range.last_block == Blocks(args_.format, args_.tokens)) {
    computed_ = true;
    layers_overlapped_ = handed_.complete_layers();
  }
  something_ready_ = true;
  for (KvRange wanted : sent) {
    wanted.first_block = std::max(wanted.first_block, held_blocks_);
    if (wanted.first_block < wanted.last_block) plan_.Add(wanted);
  }
  OpenWhenReady(now, &actions);
  return actions;
}

HandoffSender::Actions HandoffSender::OnFinish(TimePoint now, std::vector<v1::TokenOut> first) {
  Actions actions;
  if (over()) return actions;
  PENSTOCK_CHECK(announced_.complete(), "Finish before every layer of every block was announced");
  finished_ = true;
  first_ = std::move(first);
  CommitWhenSent(now, &actions);
  return actions;
}

std::optional<SlabHeader> HandoffSender::NextSlab(TimePoint now) {
  if (state_ != HandoffState::kStreaming || puts_ >= args_.puts_max) return std::nullopt;
  Slab* slab = SlabToRetry(now);
  if (slab == nullptr) {
    // While the wire is busy, small ranges wait to be merged with their neighbours.
    const auto range = plan_.Next(/*may_wait=*/puts_ > 0 && !computed_);
    if (!range) return std::nullopt;
    slab = NewSlab(*range);
  }
  slab->out = true;
  ++puts_;
  return slab->header;
}

HandoffSender::Actions HandoffSender::OnSlabPacked(uint32_t sequence, uint32_t payload_crc) {
  Actions actions;
  Slab& slab = slabs_.at(sequence);
  if (slab.packed && slab.header.payload_crc != payload_crc) {
    Fail(Internal("slab {} had checksum {:08x} and now has {:08x}: its pages have changed",
                  sequence, slab.header.payload_crc, payload_crc),
         /*tell_peer=*/true, &actions);
  }
  slab.packed = true;
  slab.header.payload_crc = payload_crc;
  return actions;
}

HandoffSender::Actions HandoffSender::OnSlabHanded(uint32_t sequence) {
  Actions actions;
  if (!over()) MarkHanded(&slabs_.at(sequence), &actions);
  return actions;
}

HandoffSender::Actions HandoffSender::OnSlabSent(TimePoint now, uint32_t sequence,
                                                 const absl::Status& status) {
  Actions actions;
  Slab& slab = slabs_.at(sequence);
  PENSTOCK_CHECK(slab.out);
  slab.out = false;
  --puts_;
  if (over()) {
    ReleaseWhenIdle(&actions);
  } else if (status.ok()) {
    MarkHanded(&slab, &actions);
    slab.sent = true;
    ++sent_;
    CommitWhenSent(now, &actions);
  } else if (++slab.failures > kFailuresMax) {
    Fail(Unavailable("slab {} could not be sent in {} attempts: {}", sequence, slab.failures,
                     Message(status)),
         /*tell_peer=*/true, &actions);
  } else {
    slab.retry_at = now + RetryPause(slab.failures);
    ++retries_waiting_;
  }
  return actions;
}

v1::HandoffSenderMessage HandoffSender::NewMessage() const {
  v1::HandoffSenderMessage message;
  SetSessionKey(args_.key, message.mutable_key());
  return message;
}

void HandoffSender::Fail(const absl::Status& why, bool tell_peer, Actions* actions) {
  if (over()) return;
  state_ = HandoffState::kAborted;
  if (tell_peer) {
    auto message = NewMessage();
    SetAbort(why, message.mutable_abort());
    actions->push_back(Send{std::move(message)});
  }
  actions->push_back(Failed{why});
  ReleaseWhenIdle(actions);
}

void HandoffSender::OnCredit(TimePoint now, const v1::HandoffCredit& credit, Actions* actions) {
  if (state_ != HandoffState::kOffered) return;
  const uint32_t blocks = Blocks(args_.format, args_.tokens);
  if (credit.held_blocks() < held_blocks_) {
    Fail(DataLoss("the decode worker wants block {}, and its first token sees none before {}",
                  credit.held_blocks(), held_blocks_),
         /*tell_peer=*/true, actions);
    return;
  }
  // At least the last block is computed anew, so there is always something to send.
  const uint32_t passed = std::exchange(held_blocks_, credit.held_blocks());
  if (held_blocks_ > passed && (args_.prompt_id.empty() || held_blocks_ >= blocks)) {
    Fail(DataLoss("the decode worker says that it holds {} of {} blocks of a prompt {}",
                  held_blocks_, blocks,
                  args_.prompt_id.empty() ? "that was not named" : "of which it needs one"),
         /*tell_peer=*/true, actions);
    return;
  }
  for (const std::string& name : credit.codecs()) {
    const auto codec = ParseKvCodec(name);
    if (!codec.ok()) continue;
    const bool same_tables =
        args_.kv_calibration != 0 && args_.kv_calibration == credit.kv_calibration();
    if (same_tables || !NeedsCalibration(*codec)) peer_codecs_.push_back(*codec);
  }
  if (held_blocks_ > passed) {
    plan_.DropBlocksBefore(held_blocks_);
    const KvRange held = BlocksBetween(args_.format, passed, held_blocks_);
    for (const KvRange& range : SentRanges(args_.format.layout, args_.tokens, held)) {
      handed_.Add(range);
    }
  }
  state_ = HandoffState::kCredited;
  actions->push_back(Reached{state_});
  actions->push_back(OpenLane{credit.wire_address()});
  OpenWhenReady(now, actions);
}

void HandoffSender::OnCommitted(Actions* actions) {
  if (state_ != HandoffState::kLanded) {
    Fail(DataLoss("the decode worker committed in state {}, before every slab was sent",
                  HandoffStateName(state_)),
         /*tell_peer=*/true, actions);
    return;
  }
  state_ = HandoffState::kCommitted;
  actions->push_back(Reached{state_});
  actions->push_back(Committed{});
  ReleaseWhenIdle(actions);
}

// Late binding: the peer allocates pages only when there is something to write into them.
void HandoffSender::OpenWhenReady(TimePoint now, Actions* actions) {
  if (state_ != HandoffState::kCredited || open_sent_ || !something_ready_) return;
  open_sent_ = true;
  sent_at_ = now;
  auto message = NewMessage();
  message.mutable_open();
  actions->push_back(Send{std::move(message)});
}

// The second phase of the commit: all slabs are with the receiver, so Commit can name their number
// and digest. See HandoffReceiver.
void HandoffSender::CommitWhenSent(TimePoint now, Actions* actions) {
  if (state_ != HandoffState::kStreaming || !finished_ || !plan_.empty()) return;
  if (sent_ < slabs_.size()) return;
  state_ = HandoffState::kLanded;
  actions->push_back(Reached{state_});
  sent_at_ = now;
  auto message = NewMessage();
  v1::HandoffCommit* commit = message.mutable_commit();
  uint64_t digest = kDigestStart;
  for (const auto& [sequence, slab] : slabs_) digest = DigestSlab(digest, slab.header);
  commit->set_slabs(slabs());
  commit->set_digest(digest);
  for (const v1::TokenOut& token : first_) *commit->add_first() = token;
  actions->push_back(Send{std::move(message)});
}

void HandoffSender::ReleaseWhenIdle(Actions* actions) {
  if (!over() || puts_ > 0 || released_) return;
  released_ = true;
  actions->push_back(Release{});
}

HandoffSender::Slab* HandoffSender::SlabToRetry(TimePoint now) {
  if (retries_waiting_ == 0) return nullptr;
  for (auto& [sequence, slab] : slabs_) {
    if (slab.failures == 0 || slab.sent || slab.out || slab.retry_at > now) continue;
    --retries_waiting_;
    return &slab;
  }
  return nullptr;
}

HandoffSender::Slab* HandoffSender::NewSlab(const KvRange& range) {
  const auto bytes = static_cast<uint32_t>(BytesOf(args_.format.layout, range));
  const uint32_t sequence = slabs();
  Slab& slab = slabs_[sequence];
  slab.header = {.key = args_.key,
                 .sequence = sequence,
                 .first_layer = static_cast<uint16_t>(range.first_layer),
                 .layers = static_cast<uint16_t>(range.layers()),
                 .first_block = range.first_block,
                 .blocks = range.blocks(),
                 .raw_bytes = bytes,
                 .payload_bytes = bytes};
  return &slab;
}

void HandoffSender::MarkHanded(Slab* slab, Actions* actions) {
  if (slab->handed) return;
  slab->handed = true;
  if (!std::exchange(streaming_reported_, true)) {
    actions->push_back(Reached{HandoffState::kStreaming});
  }
  handed_.Add(RangeOf(slab->header));
  kv_bytes_ += slab->header.payload_bytes;
}

}  // namespace penstock
