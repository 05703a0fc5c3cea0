#include "kvstore/kv_receiver.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "kvstore/handoff_slabs.h"

namespace penstock {
namespace {

// Of ended handoffs that are remembered: an offer may come after its Decode call was cancelled.
constexpr size_t kEndedMax = 1024;

// Decoders load whole vectors.
size_t AlignedUp(size_t bytes) { return (bytes + 63) / 64 * 64; }

KvReceiverOptions Completed(KvReceiverOptions options, const PagedKv& pages) {
  if (!options.writer) {
    options.writer = [pages](const SlabWrite& write, const std::function<void()>& written) {
      ScatterSlab(pages, write.header, write.blocks, write.payload);
      written();
    };
  }
  // The codecs are of bf16; other pages are small already.
  if (pages.layout.dtype != KvDtype::kBf16) options.codecs.clear();
  return options;
}

}  // namespace

KvReceiver::KvReceiver(KvReceiverOptions options, HandoffFormat format, const Clock& clock,
                       BlockPool& pool)
    : options_(Completed(std::move(options), pool.view())),
      format_(format),
      clock_(clock),
      pool_(pool),
      staging_(options_.staging_bytes) {}

KvReceiver::~KvReceiver() {
  {
    MutexLock lock(mutex_);
    for (auto& [key, session] : sessions_) {
      Perform(session, session.machine.Cancel(Unavailable("the decode worker is stopping")));
      PENSTOCK_CHECK_EQ(session.machine.writes(), 0);
    }
  }
  RunDeferred();
}

void KvReceiver::SetWireAddress(std::string address) {
  MutexLock lock(mutex_);
  wire_address_ = std::move(address);
}

// Admission.

absl::Status KvReceiver::Expect(KvExpectation expectation) {
  absl::Status refused;
  {
    MutexLock lock(mutex_);
    const HandoffKey key = expectation.key;
    RETURN_IF_ERROR(CheckExpectation(expectation));
    AbortOlderEpochs(key);
    const auto held = sessions_.find(key);  // An offer may be here already.
    const bool fresh = held == sessions_.end();
    Session& session = fresh ? NewSession(key) : held->second;
    session.expectation = std::move(expectation);
    refused = Enqueue(session);
    if (!refused.ok()) {
      session.expectation.reset();  // No callback: the caller is told here.
      Perform(session, session.machine.Cancel(Unavailable("{}", Message(refused))));
    }
    ForgetEnded();
  }
  RunDeferred();
  return refused;
}

absl::Status KvReceiver::CheckExpectation(const KvExpectation& expectation) const {
  const HandoffKey& key = expectation.key;
  const int64_t least = format_.layout.BlocksFor(expectation.tokens);
  if (expectation.tokens < 1 || expectation.blocks < least) {
    return InvalidArgument("handoff {}: {} tokens and {} blocks; the least are 1 and {}",
                           HandoffKeyText(key), expectation.tokens, expectation.blocks, least);
  }
  if (expectation.blocks > pool_.blocks_total()) {
    return ResourceExhausted("handoff {} needs {} KV blocks, and this worker has {}",
                             HandoffKeyText(key), expectation.blocks, pool_.blocks_total());
  }
  const auto same = sessions_.find(key);
  if (same != sessions_.end() && same->second.expectation) {
    return absl::AlreadyExistsError(
        fmt::format("handoff {} is expected already", HandoffKeyText(key)));
  }
  if (const absl::Status* why = EndedLately(key)) {
    return Unavailable("handoff {} has ended before its Decode call: {}", HandoffKeyText(key),
                       Message(*why));
  }
  if (NewerEpochIsHere(key)) {
    return FailedPrecondition("handoff {}: a newer epoch of the session is here",
                              HandoffKeyText(key));
  }
  if (same == sessions_.end() && sessions_.size() >= options_.handoffs_max) {
    return ResourceExhausted("{} handoffs are open, the limit is {}", sessions_.size(),
                             options_.handoffs_max);
  }
  return absl::OkStatus();
}

KvReceiver::Session& KvReceiver::NewSession(const HandoffKey& key) {
  HandoffReceiver machine(
      {.key = key,
       .format = format_,
       .timing = options_.timing,
       .wire_address = wire_address_,
       .codecs = options_.codecs,
       .kv_calibration = options_.calibration == nullptr ? 0 : options_.calibration->id()},
      clock_.Now());
  Session session{.machine = std::move(machine)};
  return sessions_.emplace(key, std::move(session)).first->second;
}

// The router has made a new plan: whatever is left of an older one only holds blocks.
void KvReceiver::AbortOlderEpochs(const HandoffKey& key) {
  for (auto& [other, session] : sessions_) {
    if (other.session != key.session || other.epoch >= key.epoch) continue;
    Perform(session, session.machine.Cancel(
                         Cancelled("epoch {} of the session takes its place", key.epoch)));
  }
}

void KvReceiver::Remember(const HandoffKey& key, const absl::Status& why) {
  ended_.push_back({key, why});
  if (ended_.size() > kEndedMax) ended_.pop_front();
}

const absl::Status* KvReceiver::EndedLately(const HandoffKey& key) const {
  const auto found = std::find_if(ended_.begin(), ended_.end(),
                                  [&](const Ended& ended) { return ended.key == key; });
  return found == ended_.end() ? nullptr : &found->why;
}

bool KvReceiver::NewerEpochIsHere(const HandoffKey& key) const {
  return std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    return entry.first.session == key.session && entry.first.epoch > key.epoch;
  });
}

// Admits at once when nobody waits and there is room, else puts it into the line.
absl::Status KvReceiver::Enqueue(Session& session) {
  const KvExpectation& expectation = *session.expectation;
  std::optional<KvAdmission> admission;
  if (line_.empty()) admission = TryAdmit(expectation);
  if (!admission && line_.size() >= options_.waiting_max) {
    return ResourceExhausted("{} requests wait for KV blocks, the limit is {}", line_.size(),
                             options_.waiting_max);
  }
  // The codecs are of bf16; other pages are small already.
  const bool bf16 = format_.layout.dtype == KvDtype::kBf16;
  const auto lossy = bf16 ? std::span(expectation.lossy) : std::span<const KvCodecSpec>();
  Perform(session, session.machine.OnExpected(expectation.tokens, expectation.prompt_id, lossy));
  if (session.machine.aborted()) return absl::OkStatus();  // on_failed is told.
  if (admission) {
    Admit(session, *std::move(admission));
  } else {
    line_.push_back(session.machine.key());
  }
  return absl::OkStatus();
}

std::optional<KvAdmission> KvReceiver::TryAdmit(const KvExpectation& expectation) {
  if (expectation.admit) return expectation.admit();
  absl::StatusOr<BlockCredit> credit = pool_.Reserve(expectation.blocks);
  if (!credit.ok()) return std::nullopt;
  return KvAdmission{.held = {}, .credit = *std::move(credit)};
}

void KvReceiver::Admit(Session& session, KvAdmission admission) {
  if (session.expectation->on_blocks) {
    Defer([on_blocks = session.expectation->on_blocks,
           given = std::make_shared<KvAdmission>(std::move(admission))] {
      on_blocks(std::move(*given));
    });
    session.handed_out = true;
    return;
  }
  const auto held = static_cast<uint32_t>(admission.held.size());
  session.pages = std::move(admission.held);
  session.credit = std::move(admission.credit);
  if (session.expectation->on_admitted) Defer(session.expectation->on_admitted);
  Perform(session, session.machine.OnAdmitted(clock_.Now(), held));
}

// First come, first served: a large request is not overtaken for ever by small ones.
void KvReceiver::AdmitWaiting() {
  while (!line_.empty()) {
    Session& first = sessions_.at(line_.front());
    auto admission = TryAdmit(*first.expectation);
    if (!admission) return;
    line_.pop_front();
    Admit(first, *std::move(admission));
  }
}

void KvReceiver::Cancel(const HandoffKey& key, const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(key);
    if (found == sessions_.end() || found->second.handed_out) return;
    Perform(found->second, found->second.machine.Cancel(why));
    ForgetEnded();
  }
  RunDeferred();
}

// Control.

void KvReceiver::OnControl(const std::shared_ptr<HandoffReceiverChannel>& channel,
                           const v1::HandoffSenderMessage& message) {
  {
    MutexLock lock(mutex_);
    if (Session* session = SessionFor(channel, message)) {
      Perform(*session, session->machine.OnMessage(clock_.Now(), message));
    }
    ForgetEnded();
  }
  RunDeferred();
}

KvReceiver::Session* KvReceiver::SessionFor(const std::shared_ptr<HandoffReceiverChannel>& channel,
                                            const v1::HandoffSenderMessage& message) {
  const HandoffKey key = HandoffKeyOf(message.key());
  const auto found = sessions_.find(key);
  if (found != sessions_.end() && found->second.channel == channel) return &found->second;
  if (message.has_abort()) return nullptr;  // It has ended on both sides.
  if (found != sessions_.end() && found->second.channel != nullptr) {
    Refuse(channel, key, FailedPrecondition("another stream has this handoff"));
    return nullptr;
  }
  if (const absl::Status* why = EndedLately(key)) {
    Refuse(channel, key, why->ok() ? FailedPrecondition("it was committed before") : *why);
    return nullptr;
  }
  if (!message.has_offer()) {
    Refuse(channel, key, Unavailable("handoff {} is not open here", HandoffKeyText(key)));
    return nullptr;
  }
  if (found != sessions_.end()) {
    found->second.channel = channel;
    return &found->second;
  }
  absl::Status refused;
  if (NewerEpochIsHere(key)) {
    refused = Cancelled("a newer epoch of the session is here");
  } else if (sessions_.size() >= options_.handoffs_max) {
    refused = Unavailable("{} handoffs are open, the limit is {}", sessions_.size(),
                          options_.handoffs_max);
  }
  if (!refused.ok()) {
    Refuse(channel, key, refused);
    Remember(key, refused);  // Its Decode call may still be on the way.
    return nullptr;
  }
  Session& session = NewSession(key);
  session.channel = channel;
  return &session;
}

void KvReceiver::Refuse(const std::shared_ptr<HandoffReceiverChannel>& channel,
                        const HandoffKey& key, const absl::Status& why) {
  v1::HandoffReceiverMessage message;
  SetSessionKey(key, message.mutable_key());
  SetAbort(why, message.mutable_abort());
  Defer([channel, message] {
    channel->Send(message);
    channel->Close();
  });
}

void KvReceiver::OnControlClosed(const HandoffReceiverChannel* channel) {
  {
    MutexLock lock(mutex_);
    for (auto& [key, session] : sessions_) {
      if (session.channel.get() != channel) continue;
      session.channel.reset();
      Perform(session, session.machine.OnPeerGone(Unavailable("the stream is closed")));
    }
    ForgetEnded();
  }
  RunDeferred();
}

void KvReceiver::Tick() {
  {
    MutexLock lock(mutex_);
    const TimePoint now = clock_.Now();
    for (auto& [key, session] : sessions_) Perform(session, session.machine.Tick(now));
    ForgetEnded();
  }
  RunDeferred();
}

void KvReceiver::OnBlocksFreed() {
  {
    MutexLock lock(mutex_);
    AdmitWaiting();
  }
  RunDeferred();
}

KvReceiverLoad KvReceiver::load() const {
  KvReceiverLoad load;
  load.staging_used = staging_.used();
  MutexLock lock(mutex_);
  load.waiting = line_.size();
  for (const auto& [key, session] : sessions_) {
    if (session.machine.aborted()) {
      load.quarantined_blocks += static_cast<int64_t>(session.pages.size());
    } else if (session.machine.state() != HandoffState::kCommitted) {
      ++load.handoffs;
    }
  }
  return load;
}

// Slabs.

absl::StatusOr<std::byte*> KvReceiver::OnAnnounced(std::span<const std::byte> header,
                                                   size_t payload_size) {
  ASSIGN_OR_RETURN(const SlabHeader slab, DecodeSlabHeader(header));
  if (payload_size != slab.payload_bytes) {
    return DataLoss("slab.payload_bytes is {}, the message has {}", slab.payload_bytes,
                    payload_size);
  }
  MutexLock lock(mutex_);
  const auto found = sessions_.find(slab.key);
  if (found == sessions_.end()) {
    return NotFound("handoff {} is not open here", HandoffKeyText(slab.key));
  }
  RETURN_IF_ERROR(found->second.machine.CheckSlab(slab));
  const size_t raw_at = slab.codec == SlabCodec::kRaw ? 0 : AlignedUp(payload_size);
  const size_t needed = raw_at == 0 ? payload_size : raw_at + slab.raw_bytes;
  StagingBuffer buffer = staging_.Acquire(needed);
  if (!buffer) {
    return ResourceExhausted("{} bytes of slabs are landing, the limit is {}", staging_.used(),
                             options_.staging_bytes);
  }
  std::byte* target = buffer.data();
  Incoming incoming{.header = slab, .buffer = std::move(buffer)};
  if (raw_at > 0) {
    const Session& session = found->second;
    incoming.raw = {target + raw_at, slab.raw_bytes};
    incoming.codecs = session.machine.codecs();
    incoming.sequence_blocks =
        static_cast<uint32_t>(format_.layout.BlocksFor(session.expectation->tokens));
  }
  incoming_.emplace(target, std::move(incoming));
  return target;
}

KvReceiver::Incoming KvReceiver::TakeIncoming(std::byte* target) {
  MutexLock lock(mutex_);
  const auto landed = incoming_.find(target);
  PENSTOCK_CHECK(landed != incoming_.end(), "a slab landed that was not announced");
  Incoming incoming = std::move(landed->second);
  incoming_.erase(landed);
  return incoming;
}

// The slab's raw bytes; DATA_LOSS when they are damaged.
absl::StatusOr<std::span<const std::byte>> KvReceiver::Verified(
    const Incoming& incoming, std::span<const std::byte> payload) const {
  const SlabHeader& header = incoming.header;
  if (const uint32_t crc = Crc32c(payload); crc != header.payload_crc) {
    return DataLoss("its checksum is {:08x}, not {:08x}", crc, header.payload_crc);
  }
  if (header.codec == SlabCodec::kRaw) return payload;
  const absl::Status status = DecodeSlab({.layout = format_.layout,
                                          .allowed = incoming.codecs,
                                          .sequence_blocks = incoming.sequence_blocks,
                                          .calibration = options_.calibration},
                                         header, payload, incoming.raw);
  if (!status.ok()) return status;
  return incoming.raw;
}

void KvReceiver::OnLanded(std::span<const std::byte>, std::span<std::byte> payload) {
  Incoming incoming = TakeIncoming(payload.data());
  // Outside the lock: a pass or two over up to some MiB. Nobody else touches the buffer.
  const auto verified = Verified(incoming, payload);
  bool write = false;
  RequestName name;
  SlabWrite slab{.header = incoming.header, .payload = verified.ok() ? *verified : payload};
  // Shared with `written`, which must be copyable.
  auto buffer = std::make_shared<StagingBuffer>(std::move(incoming.buffer));
  {
    MutexLock lock(mutex_);
    if (const auto found = sessions_.find(slab.header.key); found != sessions_.end()) {
      Session& session = found->second;
      auto landing = session.machine.OnSlabLanded(slab.header, verified.ok());
      if (session.expectation) name = session.expectation->name;
      write = landing.write;
      for (uint32_t i = 0; write && i < slab.header.blocks; ++i) {
        slab.blocks.push_back(session.pages[slab.header.first_block + i].id());
      }
      Perform(session, std::move(landing.actions));
      ForgetEnded();
    }
  }
  if (!verified.ok()) {
    LogRequest(LogLevel::kWarning, name.tag(), "slab_damaged",
               {{"handoff", HandoffKeyText(slab.header.key)},
                {"slab", slab.header.sequence},
                {"error", Message(verified.status())}});
  }
  if (write) {
    // The machine counts this write, so the session and its pages stay until OnWritten.
    options_.writer(slab, [this, buffer, key = slab.header.key, sequence = slab.header.sequence] {
      *buffer = StagingBuffer();
      OnWritten(key, sequence);
    });
  }
  RunDeferred();
}

void KvReceiver::OnWritten(const HandoffKey& key, uint32_t sequence) {
  {
    MutexLock lock(mutex_);
    Session& session = sessions_.at(key);
    Perform(session, session.machine.OnSlabWritten(clock_.Now(), sequence));
    ForgetEnded();
  }
  RunDeferred();
}

void KvReceiver::OnLost(std::span<const std::byte>, std::byte* target) {
  MutexLock lock(mutex_);
  incoming_.erase(target);
}

// Actions.

void KvReceiver::Perform(Session& session, HandoffReceiver::Actions actions) {
  for (auto& action : actions) {
    std::visit([&](auto& one) REQUIRES(mutex_) { Do(session, one); }, action);
  }
}

void KvReceiver::Do(Session& session, HandoffReceiver::Send& send) {
  if (!session.channel) return;
  Defer([channel = session.channel, message = std::move(send.message)] { channel->Send(message); });
}

void KvReceiver::Do(Session& session, HandoffReceiver::Bind& bind) {
  for (BlockRef& page : session.credit.Take(bind.blocks)) {
    session.pages.push_back(std::move(page));
  }
}

void KvReceiver::Do(Session&, HandoffReceiver::Reached& reached) {
  if (!options_.on_step) return;
  Defer([this, state = reached.state] { options_.on_step(HandoffStateName(state)); });
}

void KvReceiver::Do(Session& session, HandoffReceiver::Committed& committed) {
  // Shared only because a std::function must be copyable.
  auto received = std::make_shared<ReceivedKv>();
  received->blocks = std::move(session.pages);
  received->credit = std::move(session.credit);
  received->tokens = session.expectation->tokens;
  received->first = std::move(committed.first);
  Defer([received, on_committed = session.expectation->on_committed] {
    on_committed(std::move(*received));
  });
}

void KvReceiver::Do(Session& session, HandoffReceiver::Failed& failed) {
  std::erase(line_, session.machine.key());
  if (session.channel) Defer([channel = session.channel] { channel->Close(); });
  if (!session.expectation) return;
  Defer([why = failed.status, on_failed = session.expectation->on_failed] { on_failed(why); });
}

void KvReceiver::Do(Session& session, HandoffReceiver::Release&) {
  session.pages.clear();
  session.credit = BlockCredit();
}

// After events: what has ended goes, and whoever waits for its blocks is next.
void KvReceiver::ForgetEnded() {
  const TimePoint now = clock_.Now();
  std::erase_if(sessions_, [&](const auto& entry) REQUIRES(mutex_) {
    if (!entry.second.handed_out && !entry.second.machine.over(now)) return false;
    Remember(entry.first, entry.second.machine.why());
    return true;
  });
  AdmitWaiting();
}

void KvReceiver::RunDeferred() {
  {
    MutexLock lock(mutex_);
    if (running_deferred_) return;
    running_deferred_ = true;
  }
  while (true) {
    std::deque<std::function<void()>> calls;
    {
      MutexLock lock(mutex_);
      if (outbox_.empty()) {
        running_deferred_ = false;
        return;
      }
      calls.swap(outbox_);
    }
    for (const auto& call : calls) call();
  }
}

}  // namespace penstock
