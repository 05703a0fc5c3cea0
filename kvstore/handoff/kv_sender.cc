#include "kvstore/handoff/kv_sender.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "kvstore/handoff/handoff_slabs.h"

namespace penstock {
namespace {

// The thread's sleep without a wake-up; leases and heartbeats need no shorter one.
constexpr Duration kPause = std::chrono::milliseconds(20);
// The thread's sleep while a slab waits for a retry.
constexpr Duration kPauseRetrying = std::chrono::milliseconds(1);
// After a handoff is cancelled, its Puts may end by themselves for this time. Then the lane is
// closed, which also ends other handoffs' Puts on it; they are retried.
constexpr Duration kGraceOfPuts = std::chrono::seconds(1);

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
  const KvRange range{
      .first_layer = static_cast<uint32_t>(ready.first_layer),
      .last_layer = static_cast<uint32_t>(ready.last_layer),
      .first_block = ready.first_token / block_tokens,
      .last_block = last_step ? static_cast<uint32_t>(format_.layout.BlocksFor(tokens))
                              : ready.last_token / block_tokens,
  };
  if (range.first_block >= range.last_block) return;
  PENSTOCK_CHECK_LE(range.last_block, ready.blocks.size());
  while (handoff->blocks.size() < range.last_block) {
    handoff->blocks.push_back(ready.blocks[handoff->blocks.size()].Share());
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
    held.push_back(
        {.blocks = static_cast<int64_t>(handoff.blocks.size()), .age = now - handoff.ready_at});
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

// Keeps one lane to each peer as long as handoffs need it.
bool KvSender::ConnectLanes() {
  std::set<std::string> missing;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, handoff] : handoffs_) {
      if (handoff.machine.over() || handoff.wire_address.empty()) continue;
      if (!lanes_.contains(handoff.wire_address)) missing.insert(handoff.wire_address);
    }
  }
  const int64_t timeout_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.connect_timeout).count();
  for (const std::string& address : missing) {
    auto wire = wire_.Connect(address, timeout_ms);
    if (wire.ok()) {
      lanes_[address] = Lane{.wire = *std::move(wire), .used_at = clock_.Now()};
      continue;
    }
    const absl::Status why =
        Unavailable("no lane to the decode worker: {}", Message(wire.status()));
    MutexLock lock(mutex_);
    for (auto& [key, handoff] : handoffs_) {
      if (handoff.wire_address == address) Perform(handoff, handoff.machine.Cancel(why));
    }
  }
  return !missing.empty();
}

bool KvSender::PutRefused() {
  std::deque<OutgoingRef> again;
  again.swap(refused_);
  const size_t before = again.size();
  for (OutgoingRef& slab : again) Put(std::move(slab));
  return refused_.size() < before;
}

// Packs and puts one slab.
bool KvSender::SendNext() {
  if (!refused_.empty()) return false;  // The wire's budget is used up.
  OutgoingRef slab = unpacked_ ? std::move(unpacked_) : NextSlab();
  if (!slab) return false;
  slab->memory = &MemoryFor(*slab);
  slab->buffer = slab->memory->Acquire(slab->header.payload_bytes);
  if (!slab->buffer) {
    unpacked_ = std::move(slab);  // Kept until a Put ends; its data stay in the pages.
    return false;
  }
  if (Pack(*slab)) Put(std::move(slab));
  return true;
}

// Round robin over the handoffs, so that a long one does not delay the others.
KvSender::OutgoingRef KvSender::NextSlab() {
  MutexLock lock(mutex_);
  auto next = handoffs_.upper_bound(last_served_);
  for (size_t i = 0; i < handoffs_.size(); ++i, ++next) {
    if (next == handoffs_.end()) next = handoffs_.begin();
    auto& [key, handoff] = *next;
    if (!lanes_.contains(handoff.wire_address)) continue;
    const auto header = handoff.machine.NextSlab(clock_.Now());
    if (!header) continue;
    last_served_ = key;
    auto slab = std::make_unique<Outgoing>();
    slab->key = key;
    slab->address = handoff.wire_address;
    slab->header = *header;
    return slab;
  }
  return nullptr;
}

// A GPU's memory when the lane can send from there and that memory can pack this slab; else the
// host's.
SlabMemory& KvSender::MemoryFor(Outgoing& slab) {
  SlabMemory* const device = options_.device_slabs;
  const auto lane = lanes_.find(slab.address);
  if (device == nullptr || lane == lanes_.end() || !lane->second.wire->TakesDeviceMemory() ||
      !device->Fits(slab.header.raw_bytes)) {
    return *host_slabs_;
  }
  MutexLock lock(mutex_);
  Handoff& handoff = handoffs_.at(slab.key);
  if (handoff.machine.over()) return *host_slabs_;
  slab.report.started = clock_.Now();
  ChooseCodec(handoff, slab);
  return device->Takes(slab.report.codec, slab.header.raw_bytes) ? *device : *host_slabs_;
}

void KvSender::ChooseCodec(Handoff& handoff, Outgoing& slab) {
  slab.report.raw_bytes = slab.header.raw_bytes;
  // The codecs encode bf16; pages of other formats are compact already.
  if (format_.layout.dtype != KvDtype::kBf16) return;
  // A lossy codec is used only if both requests allow it: the peer names it only if its request
  // does.
  std::vector<KvCodecSpec> codecs, lossy;
  const std::vector<KvCodecSpec>& taken = handoff.machine.peer_codecs();
  std::copy_if(taken.begin(), taken.end(), std::back_inserter(codecs), IsLossless);
  for (const KvCodecSpec& codec : handoff.args.lossy) {
    if (std::find(taken.begin(), taken.end(), codec) != taken.end()) lossy.push_back(codec);
  }
  codecs.insert(codecs.end(), lossy.begin(), lossy.end());
  if (codecs.empty()) return;
  const auto [known, fresh] = handoff.codecs.try_emplace(slab.header.sequence);
  if (fresh) {
    links_.Choose(slab.address, {.codecs = codecs, .lossy = lossy}, slab.report);
    known->second = slab.report.codec;
  } else {
    slab.report.codec = known->second;
  }
}

// False when the slab is no longer needed.
bool KvSender::Pack(Outgoing& slab) {
  std::vector<uint32_t> blocks;
  uint32_t sequence_blocks = 0;
  {
    MutexLock lock(mutex_);
    Handoff& handoff = handoffs_.at(slab.key);
    if (handoff.machine.over()) {
      GiveBack(slab, Cancelled("the handoff has ended"));
      return false;
    }
    slab.report.started = clock_.Now();
    ChooseCodec(handoff, slab);
    sequence_blocks = static_cast<uint32_t>(format_.layout.BlocksFor(handoff.args.tokens));
    for (uint32_t i = 0; i < slab.header.blocks; ++i) {
      blocks.push_back(handoff.blocks[slab.header.first_block + i].id());
    }
  }
  // Outside the lock. The pages stay, because the slab was returned by NextSlab and counts as a
  // Put.
  slab.memory->Pack(slab.report.codec, {.blocks = blocks, .sequence_blocks = sequence_blocks},
                    {slab.buffer.data(), slab.header.raw_bytes}, slab.header);
  slab.report.wire_bytes = slab.header.payload_bytes;
  slab.report.encode = clock_.Now() - slab.report.started;
  slab.header_bytes = EncodeSlabHeader(slab.header);
  MutexLock lock(mutex_);
  links_.OnEncoded(slab.address, slab.report);
  Handoff& handoff = handoffs_.at(slab.key);
  const KvCodecSpec went = slab.header.codec == SlabCodec::kRaw ? KvCodecSpec{} : slab.report.codec;
  if (std::find(handoff.used.begin(), handoff.used.end(), went) == handoff.used.end()) {
    handoff.used.push_back(went);
  }
  Perform(handoff, handoff.machine.OnSlabPacked(slab.header.sequence, slab.header.payload_crc));
  if (!handoff.machine.over()) return true;
  GiveBack(slab, Cancelled("the handoff has ended"));
  return false;
}

void KvSender::Put(OutgoingRef slab) {
  const auto lane = lanes_.find(slab->address);
  {
    MutexLock lock(mutex_);
    if (lane == lanes_.end() || handoffs_.at(slab->key).machine.over()) {
      GiveBack(*slab, Unavailable("the lane or the handoff is closed"));
      return;
    }
  }
  lane->second.used_at = clock_.Now();
  slab->put_at = clock_.Now();
  Outgoing& sent = *slab;  // Its address is stable until OnPutEnded.
  const HandoffKey key = sent.key;
  const uint32_t sequence = sent.header.sequence;
  const uint32_t wire_bytes = sent.header.payload_bytes;
  uint64_t id = 0;
  {
    MutexLock lock(mutex_);
    links_.OnPut(sent.address, sent.put_at);
    id = next_put_++;
    puts_[id] = std::move(slab);
  }
  WireLane& wire = *lane->second.wire;
  const auto done = [this, id](const absl::Status& end) { OnPutEnded(id, end); };
  const bool from_device = sent.memory->kind() == MemoryKind::kDevice;
  const absl::Status status = from_device
                                  ? wire.PutFromDevice(sent.header_bytes, sent.payload(), done)
                                  : wire.Put(sent.header_bytes, sent.payload(), done);
  // After a successful Put, `sent` may have been destroyed.
  if (status.ok()) {
    MutexLock lock(mutex_);
    Handoff& handoff = handoffs_.at(key);  // Only this thread erases.
    handoff.wire_bytes += wire_bytes;
    if (handoff.transport.empty()) handoff.transport = lane->second.wire->transport();
    handoff.from_device |= from_device;
    Perform(handoff, handoff.machine.OnSlabHanded(sequence));
  } else if (absl::IsResourceExhausted(status)) {
    MutexLock lock(mutex_);
    links_.OnEnded(sent.address, clock_.Now(), false, sent.report);
    refused_.push_back(std::move(puts_.extract(id).mapped()));
  } else {
    broken_.insert(sent.address);
    OnPutEnded(id, status);
  }
}

void KvSender::OnPutEnded(uint64_t id, const absl::Status& status) {
  MutexLock lock(mutex_);
  const OutgoingRef slab = std::move(puts_.extract(id).mapped());
  KvSlabReport& report = slab->report;
  links_.OnEnded(slab->address, clock_.Now(), status.ok(), report);
  if (status.ok() && options_.on_slab) Defer([this, report] { options_.on_slab(report); });
  Handoff& handoff = handoffs_.at(slab->key);  // kept alive by the pending slab
  if (status.ok() && handoff.first_slab_at == TimePoint()) handoff.first_slab_at = clock_.Now();
  GiveBack(*slab, status);
  Wake();
}

void KvSender::GiveBack(const Outgoing& slab, const absl::Status& status) {
  // A pending slab keeps its handoff alive.
  Handoff& handoff = handoffs_.at(slab.key);
  Perform(handoff, handoff.machine.OnSlabSent(clock_.Now(), slab.header.sequence, status));
}

bool KvSender::CloseLanes() {
  const std::vector<std::string> addresses = LanesToClose();
  for (const std::string& address : addresses) CloseLane(address);
  return !addresses.empty();
}

// The lanes that are broken, idle, or have a Put that does not end.
std::vector<std::string> KvSender::LanesToClose() {
  const TimePoint now = clock_.Now();
  std::set<std::string> busy;
  std::set<std::string> stuck = std::exchange(broken_, {});
  MutexLock lock(mutex_);
  for (const auto& [id, slab] : puts_) {
    busy.insert(slab->address);
    const Handoff& handoff = handoffs_.at(slab->key);
    const bool given_up =
        handoff.machine.over() && (handoff.peer_gone || now - handoff.over_at > kGraceOfPuts);
    if (given_up || now - slab->put_at > options_.put_timeout) stuck.insert(slab->address);
  }
  for (const auto& [address, lane] : lanes_) {
    if (!busy.contains(address) && now - lane.used_at > options_.lane_idle) stuck.insert(address);
  }
  std::vector<std::string> addresses;
  for (const std::string& address : stuck) {
    if (lanes_.contains(address)) addresses.push_back(address);
  }
  return addresses;
}

// By value: the argument may be the key of the lane that is erased here.
void KvSender::CloseLane(std::string address) {  // NOLINT(performance-unnecessary-value-param)
  // Without the lock: every Put ends here, and OnPutEnded takes the lock.
  { const Lane closed = std::move(lanes_.extract(address).mapped()); }
  MutexLock lock(mutex_);
  links_.Forget(address);
}

// Actions.

KvSender::Handoff* KvSender::Find(const HandoffKey& key) {
  const auto found = handoffs_.find(key);
  return found == handoffs_.end() ? nullptr : &found->second;
}

void KvSender::Perform(Handoff& handoff, HandoffSender::Actions actions) {
  for (auto& action : actions) {
    std::visit([&](auto& one) REQUIRES(mutex_) { Do(handoff, one); }, action);
  }
  if (!actions.empty()) Wake();
}

void KvSender::Do(Handoff& handoff, HandoffSender::Send& send) {
  Defer([channel = handoff.args.channel, message = std::move(send.message)] {
    channel->Send(message);
  });
}

void KvSender::Do(Handoff& handoff, HandoffSender::OpenLane& open) {
  handoff.wire_address = std::move(open.wire_address);
}

void KvSender::Do(Handoff& handoff, HandoffSender::Reached& reached) {
  if (reached.state == HandoffState::kCredited && handoff.args.on_credited) {
    Defer(handoff.args.on_credited);
  }
  if (!options_.on_step) return;
  Defer([this, state = reached.state] { options_.on_step(HandoffStateName(state)); });
}

void KvSender::Do(Handoff& handoff, HandoffSender::Committed&) {
  // The peer's Committed may arrive before the wire reports the slab's end.
  if (handoff.first_slab_at == TimePoint()) handoff.first_slab_at = clock_.Now();
  const KvSendStats stats{
      .kv_bytes = handoff.machine.kv_bytes(),
      .wire_bytes = handoff.wire_bytes,
      .slabs = handoff.machine.slabs(),
      .layers = static_cast<uint32_t>(format_.layout.layers),
      .layers_overlapped = handoff.machine.layers_overlapped(),
      .exposed = clock_.Now() - handoff.computed_at,
      .first_slab = handoff.first_slab_at - handoff.ready_at,
      .transport = handoff.transport + (handoff.from_device ? ", from GPU memory" : ""),
      .codecs = handoff.used,
  };
  handoff.over_at = clock_.Now();
  Defer([channel = handoff.args.channel, on_committed = handoff.args.on_committed, stats] {
    channel->Close();
    on_committed(stats);
  });
}

void KvSender::Do(Handoff& handoff, HandoffSender::Failed& failed) {
  handoff.over_at = clock_.Now();
  Defer([channel = handoff.args.channel, on_failed = handoff.args.on_failed, why = failed.status] {
    channel->Close();
    on_failed(why);
  });
}

void KvSender::Do(Handoff& handoff, HandoffSender::Release&) {
  handoff.blocks.clear();
  handoff.released = true;
  if (handoff.args.on_released) Defer(handoff.args.on_released);
}

}  // namespace penstock
