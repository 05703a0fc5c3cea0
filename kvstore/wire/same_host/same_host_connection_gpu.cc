// The part of SameHostConnection that handles GPU memory.

#include <utility>

#include "base/log/log.h"
#include "kvstore/wire/same_host/same_host_connection.h"

namespace penstock {

// False when the packet breaks the protocol.
bool SameHostConnection::OnGpuPacket(const WirePacket& packet) {
  if (!imports_) return false;
  if (packet.kind == WirePacket::Kind::kExport) {
    const absl::Status added = imports_->Add(packet);
    if (absl::IsDataLoss(added)) return false;
    if (!added.ok()) FailGpu(added);
    return true;
  }
  if (packet.kind != WirePacket::Kind::kProbe || packet.size != DeviceProbe::kBytes ||
      std::exchange(probed_, true)) {
    return false;
  }
  shared_.probe->Await(this,
                       [this, packet](const WireTarget& target) { StartProbe(packet, target); });
  return true;
}

void SameHostConnection::StartProbe(const WirePacket& packet, const WireTarget& target) {
  const auto source = imports_->Find(packet);
  if (!source.ok()) return EndProbe(source.status());
  StartCopy({.packet = packet, .target = target, .on_gpu = *source, .probe = true});
}

void SameHostConnection::EndProbe(const absl::Status& status) {
  shared_.probe->Finish(this);
  if (!status.ok()) return FailGpu(status);
  WirePacket packet{.kind = WirePacket::Kind::kProbed};
  packet.SetStatus(status);
  socket_.Send(packet);
}

// False when the copy could not be started; the peer has been told then.
bool SameHostConnection::StartCopy(const Landing& landing) {
  const auto copy = shared_.copies->Start(landing.target.data, landing.on_gpu, landing.packet.size);
  if (copy.ok()) {
    copying_.push_back({.landing = landing, .copy = *copy});
    return true;
  }
  if (landing.probe) {
    EndProbe(copy.status());
  } else {
    FailGpu(copy.status());
    SendEnded(landing.packet.id, copy.status());
  }
  return false;
}

// Takes the copies that are complete. False when the connection broke.
bool SameHostConnection::TakeCopied() {
  while (!copying_.empty()) {
    const auto ended = shared_.copies->Ended(copying_.front().copy);
    if (ended.ok() && !*ended) return true;
    if (!ended.ok()) FailGpu(ended.status());
    // As in CopyChunk: the peer closes its end before it reuses the memory.
    if (!ended.ok() || socket_.HungUp()) {
      Break();
      return false;
    }
    const Copying copied = copying_.front();
    copying_.pop_front();
    shared_.copies->Forget(copied.copy);
    if (copied.landing.probe) {
      EndProbe(shared_.probe->Check());
    } else {
      Finish(copied.landing);
    }
  }
  return true;
}

// The peer sends from host memory from now on.
void SameHostConnection::FailGpu(const absl::Status& status) {
  if (std::exchange(gpu_failed_, true)) return;
  LogWarning("gpu_memory_not_used", "a lane from process {} uses host memory at both ends: {}",
             pid_, Message(status));
  WirePacket packet{.kind = WirePacket::Kind::kProbed};
  packet.SetStatus(status);
  socket_.Send(packet);
}

}  // namespace penstock
