#include "kvstore/wire/same_host/gpu_imports.h"

#include <algorithm>

#include "kvstore/wire/same_host/gpu_exports.h"

namespace penstock {

GpuImports::~GpuImports() {
  for (const Memory& memory : memories_) {
    if (memory.data != nullptr) gpu_->Release(memory.data, memory.bytes);
  }
}

absl::Status GpuImports::Add(const WirePacket& packet) {
  ExportName name{};
  if (packet.code != memories_.size() + 1 || packet.code > kExportsMax || packet.address == 0 ||
      packet.text_size != name.size()) {
    return DataLoss("wire packet: GPU memory {} of {} bytes with a name of {} bytes", packet.code,
                    packet.address, packet.text_size);
  }
  std::ranges::copy(packet.Text(), name.begin());
  Memory& memory = memories_.emplace_back();
  memory.bytes = packet.address;
  const auto imported = gpu_->Import(name, memory.bytes);
  memory.status = imported.status();
  if (imported.ok()) memory.data = *imported;
  return memory.status;
}

absl::StatusOr<const std::byte*> GpuImports::Find(const WirePacket& packet) const {
  if (packet.code == 0 || packet.code > memories_.size()) {
    return DataLoss("wire packet: a payload in GPU memory {} of {}", packet.code, memories_.size());
  }
  const Memory& memory = memories_[packet.code - 1];
  if (packet.size > memory.bytes || packet.address > memory.bytes - packet.size) {
    return DataLoss("wire packet: {} bytes at {} of a GPU memory of {} bytes", packet.size,
                    packet.address, memory.bytes);
  }
  RETURN_IF_ERROR(memory.status);
  return memory.data + packet.address;
}

}  // namespace penstock
