#include "kvstore/handoff/kv_receiver.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log/log.h"
#include "kvstore/handoff/handoff_slabs.h"

namespace penstock {
namespace {

// Number of ended handoffs that are remembered, because an offer may arrive after its decode
// session was cancelled.
constexpr size_t kEndedMax = 1024;

KvReceiverOptions Completed(KvReceiverOptions options, const PagedKv& pages) {
  // The codecs encode bf16; pages of other formats are compact already.
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
      host_slabs_(MakeHostSlabs(pool.view(), {.budget_bytes = options_.staging_bytes,
                                              .calibration = options_.calibration,
                                              .writer = options_.writer})) {}

KvReceiver::~KvReceiver() {
  SlabMemory* device_slabs = nullptr;
  {
    MutexLock lock(mutex_);
    device_slabs = device_slabs_;
  }
  if (device_slabs != nullptr) device_slabs->Drain();
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

void KvReceiver::SetDeviceSlabs(SlabMemory& slabs) {
  MutexLock lock(mutex_);
  PENSTOCK_CHECK(device_slabs_ == nullptr);
  device_slabs_ = &slabs;
}

// Admission.

absl::Status KvReceiver::Expect(KvExpectation expectation) {
  absl::Status refused;
  {
    MutexLock lock(mutex_);
    const HandoffKey key = expectation.key;
    RETURN_IF_ERROR(CheckExpectation(expectation));
    AbortOlderEpochs(key);
    const auto held = sessions_.find(key);  // An offer may have arrived already.
    const bool fresh = held == sessions_.end();
    Session& session = fresh ? NewSession(key) : held->second;
    session.expectation = std::move(expectation);
    refused = Enqueue(session);
    if (!refused.ok()) {
      session.expectation.reset();  // No callback: the return value tells the caller.
      Perform(session, session.machine.Cancel(Unavailable("{}", Message(refused))));
    }
    ForgetEnded();
  }
  RunDeferred();
  return refused;
}

absl::Status KvReceiver::CheckExpectation(const KvExpectation& expectation) const {
  const HandoffKey& key = expectation.key;
  const int64_t min = format_.layout.BlocksFor(expectation.tokens);
  if (expectation.tokens < 1 || expectation.blocks < min) {
    return InvalidArgument("handoff {}: {} tokens and {} blocks; at least 1 and {} are required",
                           HandoffKeyText(key), expectation.tokens, expectation.blocks, min);
  }
  if (expectation.blocks > pool_.blocks_total()) {
    return ResourceExhausted("handoff {} needs {} KV blocks, and this worker has {}",
                             HandoffKeyText(key), expectation.blocks, pool_.blocks_total());
  }
  const auto same = sessions_.find(key);
  if (same != sessions_.end() && same->second.expectation) {
    return absl::AlreadyExistsError(
        fmt::format("handoff {} is already expected", HandoffKeyText(key)));
  }
  if (const absl::Status* why = FindEnded(key)) {
    return Unavailable("handoff {} has ended before its decode session: {}", HandoffKeyText(key),
                       Message(*why));
  }
  if (HasNewerEpoch(key)) {
    return FailedPrecondition("handoff {}: the session has a newer epoch", HandoffKeyText(key));
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

// The router has replanned: older attempts of the session only hold blocks.
void KvReceiver::AbortOlderEpochs(const HandoffKey& key) {
  for (auto& [other, session] : sessions_) {
    if (other.session != key.session || other.epoch >= key.epoch) continue;
    Perform(session,
            session.machine.Cancel(Cancelled("replaced by epoch {} of the session", key.epoch)));
  }
}

void KvReceiver::RememberEnded(const HandoffKey& key, const absl::Status& why) {
  ended_.push_back({key, why});
  if (ended_.size() > kEndedMax) ended_.pop_front();
}

const absl::Status* KvReceiver::FindEnded(const HandoffKey& key) const {
  const auto found = std::find_if(ended_.begin(), ended_.end(),
                                  [&](const Ended& ended) { return ended.key == key; });
  return found == ended_.end() ? nullptr : &found->why;
}

bool KvReceiver::HasNewerEpoch(const HandoffKey& key) const {
  return std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    return entry.first.session == key.session && entry.first.epoch > key.epoch;
  });
}

// Admits at once when the queue is empty and there is room; otherwise queues the session.
absl::Status KvReceiver::Enqueue(Session& session) {
  const KvExpectation& expectation = *session.expectation;
  std::optional<KvAdmission> admission;
  if (admission_queue_.empty()) admission = TryAdmit(expectation);
  if (!admission && admission_queue_.size() >= options_.waiting_max) {
    return ResourceExhausted("{} requests wait for KV blocks, the limit is {}",
                             admission_queue_.size(), options_.waiting_max);
  }
  // The codecs encode bf16; pages of other formats are compact already.
  const bool bf16 = format_.layout.dtype == KvDtype::kBf16;
  const auto lossy = bf16 ? std::span(expectation.lossy) : std::span<const KvCodecSpec>();
  Perform(session, session.machine.OnExpected(expectation.tokens, expectation.prompt_id, lossy,
                                              expectation.first));
  if (session.machine.aborted()) return absl::OkStatus();  // on_failed is called.
  if (admission) {
    Admit(session, *std::move(admission));
  } else {
    admission_queue_.push_back(session.machine.key());
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

// First come, first served, so that small requests cannot starve a large one.
void KvReceiver::AdmitWaiting() {
  while (!admission_queue_.empty()) {
    Session& first = sessions_.at(admission_queue_.front());
    auto admission = TryAdmit(*first.expectation);
    if (!admission) return;
    admission_queue_.pop_front();
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

// Control messages.

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
  if (const absl::Status* why = FindEnded(key)) {
    Refuse(channel, key, why->ok() ? FailedPrecondition("it was already committed") : *why);
    return nullptr;
  }
  if (!message.has_offer()) {
    Refuse(channel, key, Unavailable("handoff {} is not open on this worker", HandoffKeyText(key)));
    return nullptr;
  }
  if (found != sessions_.end()) {
    found->second.channel = channel;
    return &found->second;
  }
  absl::Status refused;
  if (HasNewerEpoch(key)) {
    refused = Cancelled("the session has a newer epoch");
  } else if (sessions_.size() >= options_.handoffs_max) {
    refused = Unavailable("{} handoffs are open, the limit is {}", sessions_.size(),
                          options_.handoffs_max);
  }
  if (!refused.ok()) {
    Refuse(channel, key, refused);
    RememberEnded(key, refused);  // Its decode session may still arrive.
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
  load.staging_used = host_slabs_->used();
  MutexLock lock(mutex_);
  if (device_slabs_ != nullptr) load.staging_used += device_slabs_->used();
  load.landed_in_host = landed_in_host_;
  load.landed_in_device = landed_in_device_;
  load.waiting = admission_queue_.size();
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
  ASSIGN_OR_RETURN(const WireTarget target, Announce(header, payload_size, /*anywhere=*/false));
  return target.data;
}

absl::StatusOr<WireTarget> KvReceiver::OnAnnouncedAnywhere(std::span<const std::byte> header,
                                                           size_t payload_size) {
  return Announce(header, payload_size, /*anywhere=*/true);
}

absl::StatusOr<WireTarget> KvReceiver::Announce(std::span<const std::byte> header,
                                                size_t payload_size, bool anywhere) {
  ASSIGN_OR_RETURN(const SlabHeader slab, DecodeSlabHeader(header));
  if (payload_size != slab.payload_bytes) {
    return DataLoss("slab.payload_bytes is {}, the message has {}", slab.payload_bytes,
                    payload_size);
  }
  MutexLock lock(mutex_);
  const auto found = sessions_.find(slab.key);
  if (found == sessions_.end()) {
    return NotFound("handoff {} is not open on this worker", HandoffKeyText(slab.key));
  }
  const Session& session = found->second;
  RETURN_IF_ERROR(session.machine.CheckSlab(slab));
  SlabMemory& memory = MemoryFor(slab, session, anywhere);
  StagingBuffer buffer = memory.Acquire(SlabMemory::BytesToLand(slab));
  if (!buffer) {
    return ResourceExhausted("{} bytes of slabs are landing, the limit is {}", memory.used(),
                             memory.budget());
  }
  std::byte* target = buffer.data();
  LandedSlab landed{.header = slab, .data = target};
  if (slab.codec != SlabCodec::kRaw) {
    landed.codecs = session.machine.codecs();
    landed.sequence_blocks =
        static_cast<uint32_t>(format_.layout.BlocksFor(session.expectation->tokens));
  }
  incoming_.emplace(target, std::make_shared<Incoming>(Incoming{
                                .slab = landed, .memory = memory, .buffer = std::move(buffer)}));
  return WireTarget{.data = target, .memory = memory.kind()};
}

// A GPU's memory when the wire, the slab and all codecs that it may use support it.
SlabMemory& KvReceiver::MemoryFor(const SlabHeader& slab, const Session& session, bool anywhere) {
  if (!anywhere || device_slabs_ == nullptr) return *host_slabs_;
  const std::vector<KvCodecSpec>& codecs = session.machine.codecs();
  const bool takes =
      slab.codec == SlabCodec::kRaw ||
      std::all_of(codecs.begin(), codecs.end(), [&](const KvCodecSpec& codec) REQUIRES(mutex_) {
        return device_slabs_->Takes(codec, slab.raw_bytes);
      });
  return takes && device_slabs_->Fits(SlabMemory::BytesToLand(slab)) ? *device_slabs_
                                                                     : *host_slabs_;
}

KvReceiver::IncomingRef KvReceiver::TakeIncoming(std::byte* target) {
  MutexLock lock(mutex_);
  const auto landed = incoming_.find(target);
  PENSTOCK_CHECK(landed != incoming_.end(), "a slab landed that was not announced");
  IncomingRef incoming = std::move(landed->second);
  incoming_.erase(landed);
  ++(incoming->memory.kind() == MemoryKind::kDevice ? landed_in_device_ : landed_in_host_);
  return incoming;
}

void KvReceiver::OnLanded(std::span<const std::byte>, std::span<std::byte> payload) {
  const IncomingRef incoming = TakeIncoming(payload.data());
  // Outside the lock: one or two passes over up to some MiB. The buffer belongs to this call.
  incoming->memory.Verify(incoming->slab,
                          [this, incoming](const absl::StatusOr<std::span<const std::byte>>& raw) {
                            OnVerified(incoming, raw);
                          });
}

void KvReceiver::OnVerified(const IncomingRef& incoming,
                            const absl::StatusOr<std::span<const std::byte>>& raw) {
  bool write = false;
  RequestName name;
  SlabWrite slab{.header = incoming->slab.header};
  if (raw.ok()) slab.raw = *raw;
  {
    MutexLock lock(mutex_);
    if (const auto found = sessions_.find(slab.header.key); found != sessions_.end()) {
      Session& session = found->second;
      auto landing = session.machine.OnSlabLanded(slab.header, raw.ok());
      if (session.expectation) name = session.expectation->name;
      write = landing.write;
      for (uint32_t i = 0; write && i < slab.header.blocks; ++i) {
        slab.blocks.push_back(session.pages[slab.header.first_block + i].id());
      }
      Perform(session, std::move(landing.actions));
      ForgetEnded();
    }
  }
  if (!raw.ok()) {
    LogRequest(LogLevel::kWarning, name.tag(), "slab_damaged",
               {{"handoff", HandoffKeyText(slab.header.key)},
                {"slab", slab.header.sequence},
                {"error", Message(raw.status())}});
  }
  if (write) {
    // The state machine counts this write, so the session and its pages stay until OnWritten.
    incoming->memory.Write(
        slab, [this, incoming, key = slab.header.key, sequence = slab.header.sequence] {
          incoming->buffer = StagingBuffer();
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
  std::erase(admission_queue_, session.machine.key());
  if (session.channel) Defer([channel = session.channel] { channel->Close(); });
  if (!session.expectation) return;
  Defer([why = failed.status, on_failed = session.expectation->on_failed] { on_failed(why); });
}

void KvReceiver::Do(Session& session, HandoffReceiver::Release&) {
  session.pages.clear();
  session.credit = BlockCredit();
}

// Runs after events: deletes ended sessions and admits the next one that waits for blocks.
void KvReceiver::ForgetEnded() {
  const TimePoint now = clock_.Now();
  std::erase_if(sessions_, [&](const auto& entry) REQUIRES(mutex_) {
    if (!entry.second.handed_out && !entry.second.machine.over(now)) return false;
    RememberEnded(entry.first, entry.second.machine.why());
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
