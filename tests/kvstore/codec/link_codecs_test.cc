#include "kvstore/codec/link_codecs.h"

#include <gtest/gtest.h>

#include <cmath>

namespace penstock {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr KvCodecSpec kRaw{KvCodec::kRaw}, kLx16{KvCodec::kLx16}, kI8{KvCodec::kI8};
constexpr size_t kSlab = size_t{1} << 20;
const std::vector<KvCodecRates> kRates = {
    {.spec = kLx16, .encode_bytes_per_s = 8e9, .decode_bytes_per_s = 8e9, .ratio = 1.33},
    {.spec = kI8, .encode_bytes_per_s = 8e9, .decode_bytes_per_s = 8e9, .ratio = 1.9}};
const std::vector<KvCodecSpec> kExact = {kLx16};
const std::vector<KvCodecSpec> kNear = {kLx16, kI8};

// Coding takes longer than the link where that is not slow.
constexpr KvCodecSpec kCgx3{KvCodec::kCgx, 3};
const std::vector<KvCodecRates> kHeavyRates = {
    {.spec = kCgx3, .encode_bytes_per_s = 1e9, .decode_bytes_per_s = 1e9, .ratio = 4}};

Duration TimeOf(double bytes, double bytes_per_s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(bytes / bytes_per_s));
}

// A link that takes `latency` once and then `bytes_per_s`, and one handoff after another over it.
struct World {
  explicit World(std::vector<KvCodecRates> known = kRates) : rates(std::move(known)) {}

  // Sends `slabs` slabs one after the other; returns the codec of the first.
  KvCodecSpec Send(int slabs, std::span<const KvCodecSpec> allowed, Duration latency,
                   double bytes_per_s) {
    std::vector<KvSlabReport> reports;
    for (int i = 0; i < slabs; ++i) {
      KvSlabReport report{.raw_bytes = kSlab, .started = now};
      links.Choose("a", {.codecs = allowed}, report);
      const KvCodecRates used = RatesOf(report.codec);
      report.wire_bytes = static_cast<size_t>(kSlab / used.ratio);
      report.encode = TimeOf(kSlab, used.encode_bytes_per_s);
      now += report.encode;
      links.OnEncoded("a", report);
      links.OnPut("a", now);
      reports.push_back(report);
    }
    now += latency;
    for (KvSlabReport& report : reports) {
      now += TimeOf(static_cast<double>(report.wire_bytes), bytes_per_s) +
             TimeOf(kSlab, RatesOf(report.codec).decode_bytes_per_s);
      links.OnEnded("a", now, true, report);
      EXPECT_TRUE(slabs > 8 || report.codec == reports[0].codec) << "one row, one codec";
    }
    now += milliseconds(50);
    return reports[0].codec;
  }

  KvCodecRates RatesOf(const KvCodecSpec& codec) const {
    for (const KvCodecRates& one : rates) {
      if (one.spec == codec) return one;
    }
    return {.spec = kRaw, .encode_bytes_per_s = INFINITY, .decode_bytes_per_s = INFINITY};
  }

  const std::vector<KvCodecRates> rates;
  LinkCodecs links{{}, rates};
  TimePoint now = TimePoint() + milliseconds(1000);
};

TEST(LinkCodecsTest, LatencyIsNotTakenForASlowLink) {
  World world;
  int raw = 0;
  for (int i = 0; i < 100; ++i) {
    raw += world.Send(2, kExact, milliseconds(2), 4e9) == kRaw ? 1 : 0;
  }
  EXPECT_GE(raw, 90);
}

TEST(LinkCodecsTest, ASlowLinkIsCodedWhateverItsLatency) {
  World world;
  int coded = 0;
  for (int i = 0; i < 100; ++i) {
    coded += world.Send(2, kExact, milliseconds(2), 5e7) == kLx16 ? 1 : 0;
  }
  EXPECT_GE(coded, 95);
}

// In a long handoff the second row is packed while the first is on its way. Its codec does not
// cause that wait, which must not count against it beside raw's times in short handoffs.
TEST(LinkCodecsTest, LongHandoffsAreCodedLikeShortOnes) {
  World world;
  constexpr double kBytesPerS = 4e8;
  for (int i = 0; i < 4; ++i) world.Send(2, {}, microseconds(100), kBytesPerS);  // raw alone
  int coded = 0;
  for (int i = 0; i < 40; ++i) {
    coded += world.Send(48, kExact, microseconds(100), kBytesPerS) == kLx16 ? 1 : 0;
  }
  EXPECT_GE(coded, 36);
}

// PredictionErrors from when the link was taken for a fast one does not stick to the codec that was
// used.
TEST(LinkCodecsTest, FollowsALinkThatChanges) {
  World world;
  for (int i = 0; i < 10; ++i) world.Send(2, kNear, microseconds(100), 4e9);
  for (int i = 0; i < 6; ++i) world.Send(2, kNear, microseconds(100), 2e7);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(world.Send(2, kNear, microseconds(100), 2e7), kI8) << i;
  for (int i = 0; i < 10; ++i) world.Send(2, kNear, microseconds(100), 20e9);
  int raw = 0;
  for (int i = 0; i < 20; ++i) raw += world.Send(2, kNear, microseconds(100), 20e9) == kRaw ? 1 : 0;
  EXPECT_GE(raw, 18);
}

// While both ends are busy coding, what goes over the link does not tell how fast it is.
TEST(LinkCodecsTest, ACodecThatHoldsTheLinkUpDoesNotHideThatItIsFast) {
  const std::vector<KvCodecSpec> heavy = {kCgx3};
  World world(kHeavyRates);
  int coded = 0;
  for (int i = 0; i < 40; ++i) {
    coded += world.Send(8, heavy, microseconds(100), 2e8) == kCgx3 ? 1 : 0;
  }
  EXPECT_GE(coded, 36);
  for (int i = 0; i < 40; ++i) world.Send(8, heavy, microseconds(100), 4e9);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(world.Send(8, heavy, microseconds(100), 4e9), kRaw) << i;
}

TEST(LinkCodecsTest, EveryRequestGetsWhatItAllows) {
  World world;
  for (int i = 0; i < 10; ++i) world.Send(2, kNear, microseconds(100), 2e7);
  EXPECT_EQ(world.Send(2, kNear, microseconds(100), 2e7), kI8);
  EXPECT_EQ(world.Send(2, kExact, microseconds(100), 2e7), kLx16);
  EXPECT_EQ(world.Send(2, {}, microseconds(100), 2e7), kRaw);
  // And so does one in the middle of another's row.
  KvSlabReport near{.raw_bytes = kSlab, .started = world.now}, exact = near;
  world.links.Choose("a", {.codecs = kNear}, near);
  world.links.Choose("a", {.codecs = kExact}, exact);
  EXPECT_EQ(near.codec, kI8);
  EXPECT_EQ(exact.codec, kLx16);
}

TEST(LinkCodecsTest, AFixedCodecGivesWayToTheOneARequestNames) {
  LinkCodecs links(kLx16, {});
  KvSlabReport report{.raw_bytes = kSlab};
  links.Choose("a", {.codecs = kNear}, report);
  EXPECT_EQ(report.codec, kLx16);
  links.Choose("a", {.codecs = kNear, .lossy = {&kI8, 1}}, report);
  EXPECT_EQ(report.codec, kI8);
  links.Choose("a", {.codecs = {&kI8, 1}}, report);
  EXPECT_EQ(report.codec, kRaw);
}

}  // namespace
}  // namespace penstock
