#include "kvstore/wire/net/wire_packet.h"

#include <algorithm>
#include <cstring>

#include "kvstore/wire/wire.h"

namespace penstock {
namespace {

constexpr size_t kPacketAddressMax = 4096;

}  // namespace

void WirePacket::SetText(std::string_view value) {
  text_size = static_cast<uint32_t>(std::min(value.size(), text.size()));
  std::copy_n(value.begin(), text_size, text.begin());
}

void WirePacket::SetStatus(const absl::Status& status) {
  code = static_cast<uint32_t>(status.code());
  SetText(Message(status));
}

absl::Status WirePacket::Status() const {
  return absl::Status(static_cast<absl::StatusCode>(code), std::string(Text()));
}

absl::StatusOr<WirePacket> ParseWirePacket(std::span<const std::byte> bytes) {
  WirePacket packet;
  if (bytes.size() != sizeof(packet)) {
    return DataLoss("wire packet: {} bytes, must be {}", bytes.size(), sizeof(packet));
  }
  std::memcpy(&packet, bytes.data(), sizeof(packet));
  const auto kind = static_cast<uint32_t>(packet.kind);
  if (packet.magic != WirePacket::kMagic || kind < 1 || kind > 11) {
    return DataLoss("wire packet: magic {:#x}, kind {}", packet.magic, kind);
  }
  if (packet.text_size > packet.text.size() || packet.size > kWirePayloadMax) {
    return DataLoss("wire packet: text of {} bytes, payload of {}", packet.text_size, packet.size);
  }
  if (packet.kind == WirePacket::Kind::kAnnounce && packet.text_size > kWireHeaderMax) {
    return DataLoss("wire packet: header of {} bytes, the limit is {}", packet.text_size,
                    kWireHeaderMax);
  }
  return packet;
}

std::vector<WirePacket> SplitAddress(std::string_view address) {
  std::vector<WirePacket> pieces;
  for (size_t at = 0; at < address.size(); at += pieces.back().text_size) {
    WirePacket& piece = pieces.emplace_back();
    piece.kind = WirePacket::Kind::kAddress;
    piece.id = at;
    piece.size = address.size();
    piece.SetText(address.substr(at));
  }
  return pieces;
}

absl::Status AddressPieces::Add(const WirePacket& piece) {
  if (complete_ || piece.size > kPacketAddressMax || piece.id != address_.size() ||
      piece.text_size == 0 || piece.id + piece.text_size > piece.size) {
    return DataLoss("wire packet: a piece of {} bytes at {} of an address of {}", piece.text_size,
                    piece.id, piece.size);
  }
  address_ += piece.Text();
  complete_ = address_.size() == piece.size;
  return absl::OkStatus();
}

}  // namespace penstock
