// The part of LaneConnection that handles GPU memory.

#include <utility>

#include "base/log/log.h"
#include "kvstore/wire/host/lane_connection.h"

namespace penstock {

WirePacket::Memory LaneConnection::MemoryHere() const {
  return shared_.links.TakesDeviceMemory() ? WirePacket::Memory::kDevice
                                           : WirePacket::Memory::kHostProbed;
}

// Called on a lane as soon as it is open; nothing waits for the result. The probe goes from the
// memory that slabs will be sent from to the memory that they will land in.
void LaneConnection::StartProbe(WirePacket::Memory peer) {
  using Memory = WirePacket::Memory;
  const bool wanted = peer == Memory::kDevice || MemoryHere() == Memory::kDevice;
  if (peer == Memory::kHost || !wanted) return;
  const auto packet = std::make_shared<const WirePacket>(
      WirePacket{.kind = WirePacket::Kind::kProbe, .size = DeviceProbe::kBytes});
  link_->Send(std::as_bytes(std::span(packet.get(), 1)), shared_.probe.source(),
              [this, packet](const absl::Status& status) {
                if (!status.ok() && !closing_) EndProbe(status);
              });
}

// Called on a peer's connection.
bool LaneConnection::OnProbe(const WireLink::Arrival& arrival) {
  if (is_lane_ || arrival.rendezvous == 0 || arrival.size != DeviceProbe::kBytes) {
    return false;
  }
  if (std::exchange(probed_, true)) return false;
  shared_.probe.Await(this, [this, arrival](const WireTarget& target) {
    link_->Receive(arrival, target,
                   [this](const absl::Status& status) { OnProbeReceived(status); });
  });
  return true;
}

void LaneConnection::OnProbeReceived(const absl::Status& status) {
  if (closing_) return;  // Close has called Finish.
  const absl::Status whole = status.ok() ? shared_.probe.Check() : status;
  shared_.probe.Finish(this);
  WirePacket packet{.kind = WirePacket::Kind::kProbed};
  packet.SetStatus(whole);
  SendPacket(packet);
  EndProbe(whole);
}

bool LaneConnection::OnProbed(const WirePacket& packet) {
  if (!is_lane_ || std::exchange(probed_, true)) return false;
  EndProbe(packet.Status());
  return true;
}

void LaneConnection::EndProbe(const absl::Status& whole) {
  if (whole.ok()) {
    device_ready_ = shared_.links.TakesDeviceMemory();
    return;
  }
  LogWarning("gpu_memory_not_used", "a lane over {} uses host memory at both ends: {}", transport(),
             Message(whole));
}

}  // namespace penstock
