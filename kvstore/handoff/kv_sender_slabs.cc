#include <algorithm>
#include <iterator>
#include <utility>

#include "kvstore/handoff/handoff_slabs.h"
#include "kvstore/handoff/kv_sender.h"

// KvSender's slabs: choosing the next one, packing it, and giving it to its lane.

namespace penstock {

bool KvSender::PutRefused() {
  std::deque<OutgoingRef> again;
  again.swap(refused_);
  const size_t before = again.size();
  for (OutgoingRef& slab : again) Put(std::move(slab));
  return refused_.size() < before;
}

// Packs and puts slabs.
bool KvSender::SendNext() {
  if (!refused_.empty()) return false;  // The wire's budget is used up.
  std::vector<OutgoingRef> slabs = NextSlabs();
  if (slabs.empty()) return false;
  PackAll(slabs);
  for (OutgoingRef& slab : slabs) Put(std::move(slab));
  return true;
}

// The slabs that are ready, as many as one memory packs at a time, with their buffers.
std::vector<KvSender::OutgoingRef> KvSender::NextSlabs() {
  std::vector<OutgoingRef> slabs;
  while (slabs.empty() || slabs.size() < slabs.front()->memory->packed_at_once()) {
    OutgoingRef slab = unpacked_ ? std::move(unpacked_) : NextSlab();
    if (!slab) break;
    slab->memory = &MemoryFor(*slab);
    if (slabs.empty() || slab->memory == slabs.front()->memory) {
      slab->buffer = slab->memory->Acquire(slab->header.payload_bytes);
    }
    if (!slab->buffer) {
      unpacked_ = std::move(slab);  // Its data stay in the pages, until a Put ends or for a turn.
      break;
    }
    slabs.push_back(std::move(slab));
  }
  return slabs;
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

// The memory that a GPU packs for this lane if it can pack this slab; else the host's.
SlabMemory& KvSender::MemoryFor(Outgoing& slab) {
  const auto lane = lanes_.find(slab.address);
  if (lane == lanes_.end()) return *host_slabs_;
  SlabMemory* const by_gpu = lane->second.wire->TakesDeviceMemory() && options_.device_slabs
                                 ? options_.device_slabs
                                 : options_.mirrored_slabs;
  if (by_gpu == nullptr || !by_gpu->Fits(slab.header.raw_bytes)) return *host_slabs_;
  MutexLock lock(mutex_);
  Handoff& handoff = handoffs_.at(slab.key);
  if (handoff.machine.over()) return *host_slabs_;
  slab.report.started = clock_.Now();
  ChooseCodec(handoff, slab);
  return by_gpu->Takes(slab.report.codec, slab.header.raw_bytes) ? *by_gpu : *host_slabs_;
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

// Drops the slabs that are no longer needed.
void KvSender::PackAll(std::vector<OutgoingRef>& slabs) {
  std::erase_if(slabs, [this](const OutgoingRef& slab) { return !BeginPacking(*slab); });
  if (slabs.empty()) return;
  std::vector<SlabPacking> packings;
  for (const OutgoingRef& slab : slabs) {
    packings.push_back({.codec = slab->report.codec,
                        .source = {.blocks = slab->pages, .sequence_blocks = slab->sequence_blocks},
                        .slab = {slab->buffer.data(), slab->header.raw_bytes},
                        .header = &slab->header});
  }
  const TimePoint began = clock_.Now();
  // Outside the lock. The pages stay, because the slabs were returned by NextSlab and count as
  // Puts.
  slabs.front()->memory->Pack(packings);
  const Duration took = (clock_.Now() - began) / static_cast<int64_t>(slabs.size());
  std::erase_if(slabs, [&](const OutgoingRef& slab) { return !EndPacking(*slab, took); });
}

// False when the slab is no longer needed; the same for EndPacking.
bool KvSender::BeginPacking(Outgoing& slab) {
  MutexLock lock(mutex_);
  Handoff& handoff = handoffs_.at(slab.key);
  if (handoff.machine.over()) {
    GiveBack(slab, Cancelled("the handoff has ended"));
    return false;
  }
  slab.report.started = clock_.Now();
  ChooseCodec(handoff, slab);
  slab.sequence_blocks = static_cast<uint32_t>(format_.layout.BlocksFor(handoff.args.tokens));
  slab.pages.clear();
  for (uint32_t i = 0; i < slab.header.blocks; ++i) {
    slab.pages.push_back(handoff.blocks[slab.header.first_block + i].id());
  }
  return true;
}

bool KvSender::EndPacking(Outgoing& slab, Duration took) {
  slab.report.wire_bytes = slab.header.payload_bytes;
  slab.report.encode = took;
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

}  // namespace penstock
