#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/crc32c.h"
#include "kvstore/wire/slab.h"
#include "kvstore/wire/wire.h"

namespace penstock {
namespace {

SlabHeader Sample() {
  return SlabHeader{.key = {.session = 0x1122334455667788, .epoch = 7, .nonce = 0x99aabbccddeeff00},
                    .codec = SlabCodec::kRaw,
                    .sequence = 42,
                    .first_layer = 8,
                    .layers = 4,
                    .first_block = 100,
                    .blocks = 16,
                    .raw_bytes = 1 << 20,
                    .payload_bytes = 1 << 20,
                    .payload_crc = 0xdeadbeef};
}

// Writes `value` at `offset` and makes the header's checksum right again.
template <class T>
SlabHeaderBytes Forge(size_t offset, T value) {
  SlabHeaderBytes bytes = EncodeSlabHeader(Sample());
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
  const uint32_t crc = Crc32c(std::span(bytes).first(60));
  std::memcpy(bytes.data() + 60, &crc, sizeof(crc));
  return bytes;
}

void ExpectLoss(const SlabHeaderBytes& bytes, const std::string& field) {
  const auto decoded = DecodeSlabHeader(bytes);
  ASSERT_FALSE(decoded.ok()) << field;
  EXPECT_EQ(decoded.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(decoded.status()), testing::HasSubstr(field));
}

TEST(SlabHeader, ComesBackAsItWas) {
  const auto decoded = DecodeSlabHeader(EncodeSlabHeader(Sample()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, Sample());
  EXPECT_EQ(*DecodeSlabHeader(EncodeSlabHeader(SlabHeader{})), SlabHeader{});
}

// Peers of other builds and machines read these bytes: the layout must never move.
TEST(SlabHeader, LiesOnTheWireAsWritten) {
  const SlabHeaderBytes bytes = EncodeSlabHeader(Sample());
  const uint8_t expected[60] = {
      'P',  'S',  'S',  'B',  1,    0,    0,    0,    0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22,
      0x11, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99, 7,    0,    0,    0,    42,   0,
      0,    0,    8,    0,    4,    0,    100,  0,    0,    0,    16,   0,    0,    0,    0,
      0,    16,   0,    0,    0,    16,   0,    0xef, 0xbe, 0xad, 0xde, 0,    0,    0,    0};
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof(expected)), 0);
}

TEST(SlabHeader, RefusesEverySingleFlippedBit) {
  for (size_t bit = 0; bit < 8 * kSlabHeaderBytes; ++bit) {
    SlabHeaderBytes bytes = EncodeSlabHeader(Sample());
    bytes[bit / 8] ^= std::byte{static_cast<uint8_t>(1u << (bit % 8))};
    EXPECT_FALSE(DecodeSlabHeader(bytes).ok()) << bit;
  }
}

TEST(SlabHeader, NamesTheFieldThatIsWrong) {
  ExpectLoss(Forge<uint32_t>(0, 0x12345678), "magic");
  ExpectLoss(Forge<uint8_t>(4, 2), "version is 2");
  ExpectLoss(Forge<uint8_t>(5, 2), "codec 2");
  ExpectLoss(Forge<uint8_t>(5, 1), "lengths: encoded");
  ExpectLoss(Forge<uint16_t>(6, 1), "reserved");
  ExpectLoss(Forge<uint32_t>(56, 0x10000), "reserved");
  ExpectLoss(Forge<uint16_t>(34, 0xffff), "lengths: layers");
  ExpectLoss(Forge<uint32_t>(40, 0xffffffff), "lengths: blocks");
  ExpectLoss(Forge<uint32_t>(44, 5), "lengths: codec raw");
  ExpectLoss(Forge<uint32_t>(48, kWirePayloadMax + 1), "lengths");
  SlabHeaderBytes torn = EncodeSlabHeader(Sample());
  torn[63] ^= std::byte{1};
  ExpectLoss(torn, "checksum");
}

TEST(SlabHeader, RefusesOtherSizes) {
  const SlabHeaderBytes bytes = EncodeSlabHeader(Sample());
  EXPECT_FALSE(DecodeSlabHeader(std::span(bytes).first(63)).ok());
  EXPECT_FALSE(DecodeSlabHeader({}).ok());
  std::array<std::byte, 65> longer{};
  std::memcpy(longer.data(), bytes.data(), bytes.size());
  EXPECT_FALSE(DecodeSlabHeader(longer).ok());
}

}  // namespace
}  // namespace penstock
