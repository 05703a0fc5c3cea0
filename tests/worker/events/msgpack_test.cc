// Bytes as github.com/msgpack/msgpack, spec.md, has them.
#include "worker/events/msgpack.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

std::string Hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[static_cast<uint8_t>(byte) >> 4];
    text += kDigits[static_cast<uint8_t>(byte) & 15];
  }
  return text;
}

template <class Write>
std::string Written(Write write) {
  MsgpackWriter out;
  write(out);
  return Hex(out.Take());
}

std::string Uint(uint64_t value) {
  return Written([&](MsgpackWriter& out) { out.Uint(value); });
}

TEST(MsgpackTest, UnsignedIntegersAreAsShortAsTheyCanBe) {
  EXPECT_EQ(Uint(0), "00");
  EXPECT_EQ(Uint(127), "7f");
  EXPECT_EQ(Uint(128), "cc80");
  EXPECT_EQ(Uint(255), "ccff");
  EXPECT_EQ(Uint(256), "cd0100");
  EXPECT_EQ(Uint(65535), "cdffff");
  EXPECT_EQ(Uint(65536), "ce00010000");
  EXPECT_EQ(Uint(UINT32_MAX), "ceffffffff");
  EXPECT_EQ(Uint(uint64_t{1} << 32), "cf0000000100000000");
  EXPECT_EQ(Uint(UINT64_MAX), "cfffffffffffffffff");
}

TEST(MsgpackTest, HashesAlwaysHaveTheLongForm) {
  EXPECT_EQ(Written([](MsgpackWriter& out) { out.Uint64(5); }), "cf0000000000000005");
}

TEST(MsgpackTest, NilAndDoubles) {
  EXPECT_EQ(Written([](MsgpackWriter& out) { out.Nil(); }), "c0");
  EXPECT_EQ(Written([](MsgpackWriter& out) { out.Double(1.5); }), "cb3ff8000000000000");
}

TEST(MsgpackTest, TextHasThreeForms) {
  EXPECT_EQ(Written([](MsgpackWriter& out) { out.Text("GPU"); }), "a3475055");
  const auto header = [](size_t size) {
    return Written([&](MsgpackWriter& out) { out.Text(std::string(size, 'x')); }).substr(0, 6);
  };
  EXPECT_EQ(header(31), "bf7878");
  EXPECT_EQ(header(32), "d92078");
  EXPECT_EQ(header(255), "d9ff78");
  EXPECT_EQ(header(256), "da0100");
}

TEST(MsgpackTest, ArraysAndMapsSayHowManyElementsFollow) {
  EXPECT_EQ(Written([](MsgpackWriter& out) { out.Array(15); }), "9f");
  EXPECT_EQ(Written([](MsgpackWriter& out) { out.Array(16); }), "dc0010");
  EXPECT_EQ(Written([](MsgpackWriter& out) { out.Array(65535); }), "dcffff");
  EXPECT_EQ(Written([](MsgpackWriter& out) { out.Array(65536); }), "dd00010000");
  EXPECT_EQ(Written([](MsgpackWriter& out) { out.Map(8); }), "88");
}

}  // namespace
}  // namespace penstock
