#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"
#include "kvstore/wire/slab.h"
#include "kvstore/wire/wire.h"

// Whatever decodes must encode to the same bytes and stay within the limits; the checksum is made
// right first, so that the fuzzer gets behind it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock;
  const auto input = std::as_bytes(std::span(data, size));
  if (size != kSlabHeaderBytes) {
    PENSTOCK_CHECK(!DecodeSlabHeader(input).ok());
    return 0;
  }
  SlabHeaderBytes bytes;
  std::memcpy(bytes.data(), data, bytes.size());
  const uint32_t crc = Crc32c(input.first(60));
  PENSTOCK_CHECK_EQ(crc, Crc32cPortable(input.first(60)));
  std::memcpy(bytes.data() + 60, &crc, sizeof(crc));
  if (const auto header = DecodeSlabHeader(bytes); header.ok()) {
    PENSTOCK_CHECK(EncodeSlabHeader(*header) == bytes);
    PENSTOCK_CHECK_LE(header->payload_bytes, kWirePayloadMax);
    PENSTOCK_CHECK_GE(header->first_block + header->blocks, header->first_block);
  }
  return 0;
}
