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

KvReceiverOptions WithWriter(KvReceiverOptions options, const PagedKv& pages) {
  if (!options.writer) {
    options.writer = [pages](const SlabWrite& write, const std::function<void()>& written) {
      ScatterSlab(pages, write.header, write.blocks, write.payload);
      written();
    };
  }
  return options;
}

}  // namespace

KvReceiver::KvReceiver(KvReceiverOptions options, HandoffFormat format, const Clock& clock,
                       BlockPool& pool)
    : options_(WithWriter(std::move(options), pool.view())),
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
      {.key = key, .format = format_, .timing = options_.timing, .wire_address = wire_address_},
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
  absl::StatusOr<BlockCredit> credit = absl::UnavailableError("");
  if (line_.empty()) credit = pool_.Reserve(expectation.blocks);
  if (!credit.ok() && line_.size() >= options_.waiting_max) {
    return ResourceExhausted("{} requests wait for KV blocks, the limit is {}", line_.size(),
                             options_.waiting_max);
  }
  Perform(session, session.machine.OnExpected(expectation.tokens));
  if (session.machine.aborted()) return absl::OkStatus();  // on_failed is told.
  if (credit.ok()) {
    Admit(session, *std::move(credit));
  } else {
    line_.push_back(session.machine.key());
  }
  return absl::OkStatus();
}

void KvReceiver::Admit(Session& session, BlockCredit credit) {
  session.credit = std::move(credit);
  if (session.expectation->on_admitted) Defer(session.expectation->on_admitted);
  Perform(session, session.machine.OnAdmitted(clock_.Now()));
}

// First come, first served: a large request is not overtaken for ever by small ones.
void KvReceiver::AdmitWaiting() {
  while (!line_.empty()) {
    Session& first = sessions_.at(line_.front());
    auto credit = pool_.Reserve(first.expectation->blocks);
    if (!credit.ok()) return;
    line_.pop_front();
    Admit(first, *std::move(credit));
  }
}

void KvReceiver::Cancel(const HandoffKey& key, const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(key);
    if (found == sessions_.end()) return;
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
  StagingBuffer buffer = staging_.Acquire(payload_size);
  if (!buffer) {
    return ResourceExhausted("{} bytes of slabs are landing, the limit is {}", staging_.used(),
                             options_.staging_bytes);
  }
  std::byte* target = buffer.data();
  incoming_.emplace(target, Incoming{.header = slab, .buffer = std::move(buffer)});
  return target;
}

// Decodes an encoded payload into `raw`, which then is the write's. False when it is damaged.
bool KvReceiver::Unpack(std::span<const std::byte> header, uint32_t crc, SlabWrite& slab,
                        std::shared_ptr<std::vector<std::byte>>& raw) const {
  const auto decoded = DecodeSlabHeader(header);
  if (!decoded.ok() || crc != decoded->payload_crc) return false;
  if (decoded->codec == SlabCodec::kRaw) return true;
  raw = std::make_shared<std::vector<std::byte>>(decoded->raw_bytes);
  const absl::Status status = DecodeSlab(format_.layout, *decoded, slab.payload, *raw);
  if (!status.ok()) LogWarning("slab of {}: {}", HandoffKeyText(decoded->key), Message(status));
  slab.payload = *raw;
  return status.ok();
}

void KvReceiver::OnLanded(std::span<const std::byte> header, std::span<std::byte> payload) {
  // Outside the lock: one pass over up to some MiB. Nobody else touches the buffer.
  const uint32_t crc = Crc32c(payload);
  bool write = false;
  SlabWrite slab{.payload = payload};
  std::shared_ptr<StagingBuffer> buffer;        // Shared with `written`, which must be copyable.
  std::shared_ptr<std::vector<std::byte>> raw;  // The same, of an encoded slab.
  const bool intact = Unpack(header, crc, slab, raw);
  {
    MutexLock lock(mutex_);
    const auto landed = incoming_.find(payload.data());
    PENSTOCK_CHECK(landed != incoming_.end(), "a slab landed that was not announced");
    slab.header = landed->second.header;
    buffer = std::make_shared<StagingBuffer>(std::move(landed->second.buffer));
    incoming_.erase(landed);
    if (const auto found = sessions_.find(slab.header.key); found != sessions_.end()) {
      Session& session = found->second;
      auto landing = session.machine.OnSlabLanded(slab.header, intact);
      write = landing.write;
      for (uint32_t i = 0; write && i < slab.header.blocks; ++i) {
        slab.blocks.push_back(session.pages[slab.header.first_block + i].id());
      }
      Perform(session, std::move(landing.actions));
      ForgetEnded();
    }
  }
  if (write) {
    // The machine counts this write, so the session and its pages stay until OnWritten.
    options_.writer(slab,
                    [this, buffer, raw, key = slab.header.key, sequence = slab.header.sequence] {
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
  session.pages = session.credit.Take(bind.blocks);
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
    if (!entry.second.machine.over(now)) return false;
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
