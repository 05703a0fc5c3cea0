#include "kvstore/handoff/kv_receiver.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

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

void KvReceiver::SetGpuSlabs(const GpuSlabMemories& slabs) {
  MutexLock lock(mutex_);
  PENSTOCK_CHECK(device_slabs_ == nullptr);
  device_slabs_ = slabs.device.get();
  mirrored_slabs_ = slabs.mirrored.get();
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
    refused = ResourceExhausted("{} handoffs are open, the limit is {}", sessions_.size(),
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
      load.quarantined_blocks += std::count_if(session.pages.begin(), session.pages.end(),
                                               [](const BlockRef& page) { return bool{page}; });
    } else if (session.machine.state() != HandoffState::kCommitted) {
      ++load.handoffs;
    }
  }
  return load;
}

// Handoffs.

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
