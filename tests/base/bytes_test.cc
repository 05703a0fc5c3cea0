#include "base/bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using ::testing::HasSubstr;

TEST(Bytes, ParsesEveryUnit) {
  EXPECT_EQ(ParseBytes("512MiB").value(), uint64_t{512} << 20);
  EXPECT_EQ(ParseBytes("1.5GiB").value(), uint64_t{1536} << 20);
  EXPECT_EQ(ParseBytes("8 GiB").value(), uint64_t{8} << 30);
  EXPECT_EQ(ParseBytes("16Gi").value(), uint64_t{16} << 30);
  EXPECT_EQ(ParseBytes("64KB").value(), 64'000u);
  EXPECT_EQ(ParseBytes("2TiB").value(), uint64_t{2} << 40);
  EXPECT_EQ(ParseBytes("37B").value(), 37u);
  EXPECT_EQ(ParseBytes("0B").value(), 0u);
}

TEST(Bytes, RefusesWhatIsAmbiguous) {
  for (const char* text : {"", "MiB", "512", "512M", "512mib", "-1MiB", "1e3MiB", "1MiBx", "inf B",
                           "nan B", "9000000TiB", "0x10B"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseBytes(text).status())) << text;
  }
  EXPECT_THAT(Message(ParseBytes("512").status()), HasSubstr("write 512MiB"));
  EXPECT_THAT(Message(ParseBytes("512M").status()), HasSubstr("MiB"));
}

TEST(Bytes, FormatsForPeople) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(37), "37 B");
  EXPECT_EQ(FormatBytes(uint64_t{512} << 20), "512 MiB");
  EXPECT_EQ(FormatBytes(uint64_t{1536} << 20), "1.5 GiB");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "16777216 TiB");
}

}  // namespace
}  // namespace penstock
