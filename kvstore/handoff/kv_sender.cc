#include "kvstore/handoff/kv_sender.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

// The thread's sleep without a wake-up; leases and heartbeats need no shorter one.
constexpr Duration kPause = std::chrono::milliseconds(20);
// The thread's sleep while a slab waits for a retry.
constexpr Duration kPauseRetrying = std::chrono::milliseconds(1);

}  // namespace

KvSender::KvSender(KvSenderOptions options, HandoffFormat format, const Clock& clock, Wire& wire,
                   PagedKv pages)
    : options_(std::move(options)),
      format_(format),
      clock_(clock),
      wire_(wire),
      host_slabs_(MakeHostSlabs(
          pages, {.budget_bytes = options_.staging_bytes, .calibration = options_.calibration})),
      links_(options_.codec, options_.choices) {}

KvSender::~KvSender() { Stop(); }

void KvSender::Launch() {
  PENSTOCK_CHECK(!thread_.joinable());
  thread_ = std::thread([this] { Run(); });
}

void KvSender::Stop() {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    Wake();
  }
  if (thread_.joinable()) thread_.join();
  {
    MutexLock lock(mutex_);
    for (auto& [key, handoff] : handoffs_) {
      Perform(handoff, handoff.machine.Cancel(Unavailable("the prefill worker is stopping")));
    }
  }
  RunDeferred();                                             // Peers are told first.
  while (!lanes_.empty()) CloseLane(lanes_.begin()->first);  // Ends every Put.
  {
    MutexLock lock(mutex_);
    PENSTOCK_CHECK(puts_.empty());
    for (const OutgoingRef& slab : refused_) GiveBack(*slab, Cancelled("stopping"));
    if (unpacked_) GiveBack(*unpacked_, Cancelled("stopping"));
  }
  refused_.clear();
  unpacked_.reset();
  RunDeferred();
  MutexLock lock(mutex_);
  PENSTOCK_CHECK(handoffs_.empty());
}

// Calls of the worker.

absl::Status KvSender::Start(KvSendArgs args) {
  if (args.tokens < 1) {
    return InvalidArgument("handoff {}: {} tokens; at least 1 is required",
                           HandoffKeyText(args.key), args.tokens);
  }
  MutexLock lock(mutex_);
  if (stopping_) return Unavailable("the prefill worker is stopping");
  if (handoffs_.contains(args.key)) {
    return absl::AlreadyExistsError(
        fmt::format("handoff {} is open already", HandoffKeyText(args.key)));
  }
  if (handoffs_.size() >= options_.handoffs_max) {
    return ResourceExhausted("{} handoffs are open, the limit is {}", handoffs_.size(),
                             options_.handoffs_max);
  }
  const HandoffKey key = args.key;
  HandoffSender machine(
      {.key = key,
       .format = format_,
       .tokens = args.tokens,
       .prompt_id = args.prompt_id,
       .timing = options_.timing,
       .slabs = options_.slabs,
       .puts_max = options_.puts_max,
       .kv_calibration = options_.calibration == nullptr ? 0 : options_.calibration->id()});
  Handoff made{.args = std::move(args), .machine = std::move(machine)};
  Handoff& handoff = handoffs_.emplace(key, std::move(made)).first->second;
  Perform(handoff, handoff.machine.Start(clock_.Now()));
  return absl::OkStatus();
}

void KvSender::SendLayers(const HandoffKey& key, const KvLayersReady& ready) {
  MutexLock lock(mutex_);
  Handoff* handoff = Find(key);
  if (handoff == nullptr || handoff->machine.over()) return;
  const uint32_t tokens = handoff->args.tokens;
  PENSTOCK_CHECK_LE(ready.last_token, tokens);
  const auto block_tokens = static_cast<uint32_t>(format_.layout.block_tokens);
  const bool last_step = ready.last_token == tokens;
  // The blocks that this step completes. A partial block is sent by the step that fills it, or by
  // the last step.
  const uint32_t first = FirstBlock(format_, tokens);
  const KvRange range{
      .first_layer = static_cast<uint32_t>(ready.first_layer),
      .last_layer = static_cast<uint32_t>(ready.last_layer),
      .first_block = std::max(first, ready.first_token / block_tokens),
      .last_block = last_step ? static_cast<uint32_t>(format_.layout.BlocksFor(tokens))
                              : ready.last_token / block_tokens,
  };
  if (range.first_block >= range.last_block) return;
  PENSTOCK_CHECK_LE(range.last_block, ready.blocks.size());
  if (handoff->blocks.size() < first) handoff->blocks.resize(first);
  const auto with_rows = static_cast<size_t>(format_.layout.FirstGroupBlock(tokens));
  while (handoff->blocks.size() < range.last_block) {
    const BlockRef& block = ready.blocks[handoff->blocks.size()];
    const bool passed = handoff->blocks.size() < with_rows;
    handoff->blocks.push_back(passed ? block.ShareWithoutRow() : block.Share());
  }
  const TimePoint now = clock_.Now();
  if (handoff->ready_at == TimePoint()) handoff->ready_at = now;
  if (last_step && ready.last_layer == format_.layout.layers) handoff->computed_at = now;
  Perform(*handoff, handoff->machine.OnLayersReady(now, range));
  Wake();
}

void KvSender::Finish(const HandoffKey& key, std::vector<v1::TokenOut> first) {
  MutexLock lock(mutex_);
  if (Handoff* handoff = Find(key)) {
    Perform(*handoff, handoff->machine.OnFinish(clock_.Now(), std::move(first)));
    Wake();
  }
}

void KvSender::OnControl(const HandoffKey& key, const v1::HandoffReceiverMessage& message) {
  MutexLock lock(mutex_);
  if (Handoff* handoff = Find(key)) {
    Perform(*handoff, handoff->machine.OnMessage(clock_.Now(), message));
    Wake();
  }
}

void KvSender::OnControlClosed(const HandoffKey& key, const absl::Status& why) {
  MutexLock lock(mutex_);
  if (Handoff* handoff = Find(key)) {
    handoff->peer_gone = true;
    Perform(*handoff, handoff->machine.OnPeerGone(why));
    Wake();
  }
}

void KvSender::Cancel(const HandoffKey& key, const absl::Status& why) {
  MutexLock lock(mutex_);
  if (Handoff* handoff = Find(key)) {
    Perform(*handoff, handoff->machine.Cancel(why));
    Wake();
  }
}

bool KvSender::credited(const HandoffKey& key) const {
  MutexLock lock(mutex_);
  const auto found = handoffs_.find(key);
  if (found == handoffs_.end()) return false;
  const HandoffState state = found->second.machine.state();
  return state != HandoffState::kOffered && state != HandoffState::kAborted;
}

std::vector<KvHeld> KvSender::held() const {
  std::vector<KvHeld> held;
  const TimePoint now = clock_.Now();
  MutexLock lock(mutex_);
  for (const auto& [key, handoff] : handoffs_) {
    if (handoff.blocks.empty()) continue;
    const auto first = static_cast<int64_t>(FirstBlock(format_, handoff.args.tokens));
    held.push_back({.blocks = std::ssize(handoff.blocks) - first, .age = now - handoff.ready_at});
  }
  return held;
}

size_t KvSender::staging_used() const {
  const size_t device = options_.device_slabs == nullptr ? 0 : options_.device_slabs->used();
  return host_slabs_->used() + device;
}

size_t KvSender::handoffs() const {
  MutexLock lock(mutex_);
  return handoffs_.size();
}

// The sender's thread.

void KvSender::Run() {
  while (true) {
    const bool worked = Poll();
    MutexLock lock(mutex_);
    if (stopping_) return;
    const bool retrying = !refused_.empty() || unpacked_ ||
                          std::any_of(handoffs_.begin(), handoffs_.end(), [](const auto& entry) {
                            return entry.second.machine.retrying();
                          });
    if (!worked && !wake_) changed_.WaitFor(mutex_, retrying ? kPauseRetrying : kPause);
    wake_ = false;
  }
}

void KvSender::Wake() {
  wake_ = true;
  changed_.NotifyOne();
}

bool KvSender::Poll() {
  TickAll();
  bool worked = RunDeferred();
  worked |= ConnectLanes();
  worked |= PutRefused();
  worked |= SendNext();
  worked |= CloseLanes();
  return worked;
}

void KvSender::TickAll() {
  MutexLock lock(mutex_);
  const TimePoint now = clock_.Now();
  for (auto& [key, handoff] : handoffs_) {
    if (handoff.machine.over()) continue;
    Perform(handoff, handoff.machine.Tick(now));
    handoff.peer_gone |= handoff.machine.over();  // Silent for longer than its lease.
  }
}

// Makes the deferred calls, then deletes the handoffs that are over.
bool KvSender::RunDeferred() {
  std::deque<std::function<void()>> calls;
  {
    MutexLock lock(mutex_);
    calls.swap(outbox_);
    std::erase_if(handoffs_, [](const auto& entry) { return entry.second.released; });
  }
  for (const auto& call : calls) call();
  return !calls.empty();
}

KvSender::Handoff* KvSender::Find(const HandoffKey& key) {
  const auto found = handoffs_.find(key);
  return found == handoffs_.end() ? nullptr : &found->second;
}

}  // namespace penstock
