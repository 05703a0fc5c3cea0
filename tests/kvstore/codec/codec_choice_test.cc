#include "kvstore/codec/codec_choice.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

constexpr KvCodecSpec kRaw{KvCodec::kRaw}, kLx16{KvCodec::kLx16}, kLxr{KvCodec::kLxr};
const std::vector<KvCodecRates> kRates = {
    {.spec = kLx16, .encode_bytes_per_s = 8e9, .decode_bytes_per_s = 9e9, .ratio = 1.33},
    {.spec = kLxr, .encode_bytes_per_s = 2e9, .decode_bytes_per_s = 2e9, .ratio = 1.47}};
const std::vector<KvCodecSpec> kExact = {kLx16, kLxr};

KvCodecSpec Best(double link_bytes_per_s, const std::vector<KvCodecSpec>& allowed = kExact) {
  KvCodecChoice choice(kRates);
  return choice.Choose(link_bytes_per_s, allowed);
}

TEST(KvCodecChoice, TheSlowerTheLinkTheMoreACodecMayCost) {
  EXPECT_EQ(Best(20e9), kRaw);
  EXPECT_EQ(Best(3e9), kRaw) << "about as fast as the codec";
  EXPECT_EQ(Best(0.2e9, {kLx16}), kLx16);
  EXPECT_EQ(Best(0.05e9), kLxr);
}

TEST(KvCodecChoice, OnlyWhatIsAllowed) {
  EXPECT_EQ(Best(0.05e9, {kLx16}), kLx16);
  EXPECT_EQ(Best(0.05e9, {}), kRaw);
}

TEST(KvCodecChoice, RawUntilTheLinkIsKnown) {
  KvCodecChoice choice(kRates);
  EXPECT_EQ(choice.Choose(std::nullopt, kExact), kRaw);
}

// The least of all candidates' times, whatever the link: within the hysteresis.
TEST(KvCodecChoice, IsNeverFarAboveTheBest) {
  KvCodecChoice choice(kRates);
  for (double link = 1e7; link < 1e11; link *= 1.1) {
    KvCodecSpec chosen = choice.Choose(link, kExact);
    if (chosen == kRaw) chosen = choice.Choose(link, kExact);  // the first was a look at raw
    double min = INFINITY, taken = INFINITY;
    for (const KvCodecRates& rates : choice.candidates()) {
      const double seconds = KvCodecChoice::SecondsPerByte(rates, link);
      min = std::min(min, seconds);
      if (rates.spec == chosen) taken = seconds;
    }
    ASSERT_LT(taken, INFINITY) << "what was chosen is no candidate";
    EXPECT_LE(taken, min / (0.955 * 0.945)) << link;
  }
}

TEST(KvCodecChoice, DoesNotSwitchBackAndForth) {
  KvCodecChoice choice(kRates);
  // The link rate at which raw and lx16 take the same time, and a little to either side.
  double even = 1e9;
  while (KvCodecChoice::SecondsPerByte(kRates[0], even) < 0.97 / even) even *= 1.01;
  const KvCodecSpec first = choice.Choose(even, {kExact.data(), 1});
  for (int i = 0; i < 20; ++i) {
    const double link = even * (i % 2 == 0 ? 1.015 : 0.985);
    EXPECT_EQ(choice.Choose(link, {kExact.data(), 1}), first) << i;
  }
}

TEST(KvCodecChoice, LearnsThatDataDoesNotShrink) {
  KvCodecChoice choice(kRates);
  EXPECT_EQ(choice.Choose(0.05e9, kExact), kLxr);
  for (int i = 0; i < 20; ++i) {
    choice.OnEncoded(kLxr, 1 << 20, 1 << 20, std::chrono::milliseconds(1));
    choice.OnEncoded(kLx16, 1 << 20, 1 << 20, std::chrono::milliseconds(1));
  }
  EXPECT_EQ(choice.Choose(0.1e9, kExact), kRaw);
}

// A codec that takes longer than arithmetic says is left, and tried again after a while.
TEST(KvCodecChoice, LearnsThatACodecTakesLonger) {
  using std::chrono::milliseconds;
  KvCodecChoice choice(kRates);
  EXPECT_EQ(choice.Choose(0.2e9, {&kLx16, 1}), kLx16);
  for (int i = 0; i < 3; ++i) {
    choice.OnDelivered(kRaw, milliseconds(10), milliseconds(10));
    choice.OnDelivered(kLx16, milliseconds(10), milliseconds(20));
  }
  EXPECT_EQ(choice.Choose(0.2e9, {&kLx16, 1}), kRaw);
  int slabs = 0;
  while (choice.Choose(0.2e9, {&kLx16, 1}) == kRaw && slabs < 1000) {
    choice.OnDelivered(kRaw, milliseconds(10), milliseconds(10));
    ++slabs;
  }
  EXPECT_GT(slabs, 20);
  EXPECT_LT(slabs, 200);
}

// It waited for something else, or the link had just become another.
TEST(KvCodecChoice, OneSlowRowIsNotHeldAgainstACodec) {
  using std::chrono::milliseconds;
  KvCodecChoice choice(kRates);
  EXPECT_EQ(choice.Choose(0.2e9, {&kLx16, 1}), kLx16);
  for (int i = 0; i < 3; ++i) choice.OnDelivered(kRaw, milliseconds(10), milliseconds(10));
  choice.OnDelivered(kLx16, milliseconds(10), milliseconds(40));
  EXPECT_EQ(choice.Choose(0.2e9, {&kLx16, 1}), kLx16);
  choice.OnDelivered(kLx16, milliseconds(10), milliseconds(40));
  EXPECT_EQ(choice.Choose(0.2e9, {&kLx16, 1}), kRaw) << "two are";
}

// So that it is known again what the link does; less and less often.
TEST(KvCodecChoice, LooksAtRawWhereThatIsNotFarBehind) {
  KvCodecChoice choice(kRates);
  std::vector<int> looks;
  for (int i = 1; i <= 100; ++i) {
    if (choice.Choose(0.5e9, {&kLx16, 1}) == kRaw) looks.push_back(i);
  }
  EXPECT_EQ(looks, (std::vector<int>{4, 12, 28, 60}));
}

// A codec that is predicted to be a little worse may be better; only its use shows that.
TEST(KvCodecChoice, TakesACodecThatIsBetterThanPredicted) {
  using std::chrono::milliseconds;
  KvCodecChoice choice(kRates);
  EXPECT_EQ(choice.Choose(0.5e9, kExact), kLx16);
  int better = 0;
  for (int i = 0; i < 60; ++i) {
    const KvCodecSpec used = choice.Choose(0.5e9, kExact);
    choice.OnDelivered(used, milliseconds(10), milliseconds(used == kLxr ? 6 : 10));
    better += i >= 30 && used == kLxr ? 1 : 0;
  }
  EXPECT_GE(better, 27);
}

TEST(KvCodecChoice, LooksAtRawFurtherBehindWhereTheLinkMayBeFaster) {
  for (const bool at_least : {false, true}) {
    KvCodecChoice choice(kRates);
    int looks = 0;
    for (int i = 1; i <= 100; ++i) {
      looks += choice.Choose(0.01e9, {&kLxr, 1}, at_least) == kRaw ? 1 : 0;
    }
    EXPECT_EQ(looks, at_least ? 5 : 0);
  }
}

// If the estimate of the link is wrong, the predictions of all codecs are wrong together.
TEST(KvCodecChoice, ALinkThatIsTakenForFasterIsNotHeldAgainstOneCodec) {
  using std::chrono::milliseconds;
  KvCodecChoice choice(kRates);
  EXPECT_EQ(choice.Choose(0.2e9, {&kLx16, 1}), kLx16);
  for (int i = 0; i < 10; ++i) {
    choice.OnDelivered(kRaw, milliseconds(10), milliseconds(20));
    choice.OnDelivered(kLx16, milliseconds(10), milliseconds(20));
  }
  EXPECT_EQ(choice.Choose(0.2e9, {&kLx16, 1}), kLx16);
}

TEST(MeasureKvCodecs, GivesRatesAndRatiosOfEveryExactCodec) {
  const std::vector<KvCodecRates> rates = MeasureKvCodecs(kExact);
  ASSERT_EQ(rates.size(), 2u);
  for (const KvCodecRates& one : rates) {
    EXPECT_GT(one.encode_bytes_per_s, 1e6) << KvCodecName(one.spec);
    EXPECT_GT(one.decode_bytes_per_s, 1e6) << KvCodecName(one.spec);
    EXPECT_GT(one.ratio, 1.25) << KvCodecName(one.spec);
    EXPECT_LT(one.ratio, 1.6) << KvCodecName(one.spec);
  }
}

}  // namespace
}  // namespace penstock
