#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log/log.h"
#include "kvstore/handoff/handoff_slabs.h"
#include "kvstore/handoff/kv_receiver.h"

// KvReceiver's slabs: from the announcement to the written pages.

namespace penstock {

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

// A memory that the GPU verifies, in its own memory if the wire reaches that, when it supports the
// slab and all codecs that the slab may use.
SlabMemory& KvReceiver::MemoryFor(const SlabHeader& slab, const Session& session, bool anywhere) {
  SlabMemory* const by_gpu = anywhere ? device_slabs_ : mirrored_slabs_;
  if (by_gpu == nullptr) return *host_slabs_;
  const std::vector<KvCodecSpec>& codecs = session.machine.codecs();
  const bool takes = slab.codec == SlabCodec::kRaw ||
                     std::all_of(codecs.begin(), codecs.end(), [&](const KvCodecSpec& codec) {
                       return by_gpu->Takes(codec, slab.raw_bytes);
                     });
  return takes && by_gpu->Fits(SlabMemory::BytesToLand(slab)) ? *by_gpu : *host_slabs_;
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

}  // namespace penstock
