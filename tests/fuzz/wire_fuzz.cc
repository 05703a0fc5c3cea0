#include <algorithm>
#include <string>

#include "base/check.h"
#include "kvstore/wire/net/address.h"
#include "kvstore/wire/net/packet_socket.h"
#include "kvstore/wire/wire.h"

// A stranger's two ways to reach a wire: the address given to Connect, and packets at its socket.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto address = ParseWireAddress(text); address.ok()) {
    PENSTOCK_CHECK_EQ(FormatWireAddress(*address), text);
  }
  AddressPieces pieces;
  const auto input = std::as_bytes(std::span(data, size));
  for (size_t at = 0; at < size; at += sizeof(WirePacket)) {
    const auto packet = ParseWirePacket(input.subspan(at, std::min(size - at, sizeof(WirePacket))));
    if (!packet.ok()) continue;
    PENSTOCK_CHECK_LE(packet->Text().size(), packet->text.size());
    PENSTOCK_CHECK_LE(packet->size, kWirePayloadMax);
    const bool grown = pieces.Add(*packet).ok();
    PENSTOCK_CHECK(!grown || pieces.address().size() <= packet->size);
  }
  return 0;
}
