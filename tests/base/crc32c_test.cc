#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

namespace penstock {
namespace {

std::span<const std::byte> Bytes(std::span<const uint8_t> data) { return std::as_bytes(data); }

// RFC 3720, appendix B.4.
TEST(Crc32c, AgreesWithTheVectorsOfRfc3720) {
  const std::vector<uint8_t> zeros(32, 0);
  const std::vector<uint8_t> ones(32, 0xff);
  std::vector<uint8_t> up(32);
  std::iota(up.begin(), up.end(), 0);
  const std::vector<uint8_t> down(up.rbegin(), up.rend());
  const std::vector<uint8_t> read_command = {
      0x01, 0xc0, 0, 0,    0, 0, 0, 0,    0,    0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 4, 0,
      0,    0,    0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(Crc32c(Bytes(zeros)), 0x8a9136aau);
  EXPECT_EQ(Crc32c(Bytes(ones)), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(Bytes(up)), 0x46dd794eu);
  EXPECT_EQ(Crc32c(Bytes(down)), 0x113fdb5cu);
  EXPECT_EQ(Crc32c(Bytes(read_command)), 0xd9963a56u);
  const std::string_view digits = "123456789";
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(digits))), 0xe3069283u);
  EXPECT_EQ(Crc32c({}), 0u);
}

TEST(Crc32c, PortableAndFastAgreeOnEverySizeAlignmentAndSplit) {
  std::vector<uint8_t> data(70'000);
  std::mt19937 random(1);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  std::vector<size_t> sizes(1600);
  std::iota(sizes.begin(), sizes.end(), 0);
  for (size_t size : {4095, 4096, 12287, 12288, 12289, 24576, 25344, 65535, 69'000}) {
    sizes.push_back(size);
  }
  for (const size_t size : sizes) {
    const auto whole = Bytes(data).subspan(size % 9, size);
    const uint32_t expected = Crc32cPortable(whole);
    ASSERT_EQ(Crc32c(whole), expected) << size;
    const size_t split = size / 3;
    ASSERT_EQ(Crc32c(whole.subspan(split), Crc32c(whole.first(split))), expected) << size;
  }
}

TEST(Crc32c, ChangesWithEveryBit) {
  std::vector<uint8_t> data(13'000, 0x5a);
  const uint32_t before = Crc32c(Bytes(data));
  for (size_t i = 0; i < data.size(); i += 7) {
    data[i] ^= static_cast<uint8_t>(1u << (i % 8));
    ASSERT_NE(Crc32c(Bytes(data)), before) << i;
    data[i] ^= static_cast<uint8_t>(1u << (i % 8));
  }
}

}  // namespace
}  // namespace penstock
