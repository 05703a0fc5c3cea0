#include "kvstore/wire/same_host/gpu_exports.h"

#include "base/check.h"

namespace penstock {

absl::Status GpuExports::Place(std::span<const std::byte> payload, WirePacket& packet) {
  if (payload.empty()) return absl::OkStatus();  // as from host memory: nothing is read
  ASSIGN_OR_RETURN(const ExportedMemory exported, gpu_->Export(payload.data()));
  const auto offset = static_cast<size_t>(payload.data() - exported.data);
  PENSTOCK_CHECK_LE(offset + payload.size(), exported.bytes);
  const auto known = numbers_.find(exported.number);
  packet.code =
      known == numbers_.end() ? static_cast<uint32_t>(numbers_.size()) + 1 : known->second;
  packet.address = offset;
  if (known != numbers_.end()) return absl::OkStatus();
  if (packet.code > kExportsMax) {
    return ResourceExhausted("the lane has named {} allocations of GPU memory, the limit",
                             kExportsMax);
  }
  numbers_.emplace(exported.number, packet.code);
  WirePacket name{
      .kind = WirePacket::Kind::kExport, .address = exported.bytes, .code = packet.code};
  name.SetText({exported.name.data(), exported.name.size()});
  send_(name);
  return absl::OkStatus();
}

}  // namespace penstock
