// Blocks that are kept by an exact codec: the same bits come back, from fewer pages, whatever the
// next worker is told to write, and damage is a miss.

#include <fcntl.h>
#include <unistd.h>

#include <random>

#include "kvstore/tiers/nvme/extent_codec.h"
#include "kvstore/tiers/nvme/segment_load.h"
#include "kvstore/tiers/store_admin.h"
#include "kvstore/tiers/tiered_store.h"
#include "tests/kvstore/tiers/store_fixture.h"

namespace penstock {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr KvLayout kLayout{.layers = 4, .kv_heads = 4, .head_dim = 64};  // 16 pages a block
constexpr KvCodecSpec kLx16{KvCodec::kLx16}, kLxr{KvCodec::kLxr};

// Values as a model has them; those of block `n`, with some that no codec likes.
std::vector<Bf16> ValuesOf(uint32_t n) {
  std::vector<Bf16> values(kLayout.PayloadBytes() / 2);
  std::mt19937 engine(n + 1);
  std::normal_distribution<float> normal;
  for (Bf16& value : values) value = ToBf16(normal(engine));
  values[n % values.size()].bits = 0x7f81;  // a NaN with a payload
  values[7 * n % values.size()].bits = 0x8000;
  // Every eighth block does not shrink at all.
  if (n % 8 == 7) {
    for (Bf16& value : values) value.bits = static_cast<uint16_t>(engine());
  }
  return values;
}

class EncodedExtentsTest : public testing::Test {
 protected:
  TieredStore::Options Options(KvCodecSpec codec, uint64_t bytes = 64 * kMiB) const {
    TieredStore::Options options{.dram_bytes = 2 * pages_.stride()};
    options.nvme.directory = directory_.path();
    options.nvme.bytes = bytes;
    options.nvme.format.model_fingerprint = 77;
    options.nvme.codec = codec;
    options.nvme_uses_min = 1;
    options.io = IoBackend::kThreads;
    return options;
  }
  void Open(const TieredStore::Options& options) {
    store_.reset();
    auto store = TieredStore::Open(options, pages_.view(), events_.Callback());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    store_->Start();
    store_->WaitUntilQuiet();
  }
  void Spill(uint32_t first, uint32_t count) {
    for (uint32_t n = first; n < first + count; ++n) {
      std::vector<BlockRef> page = pages_.Take(1);
      const std::vector<Bf16> values = ValuesOf(n);
      std::memcpy(pages_.view().Block(page[0].id()), values.data(), kLayout.PayloadBytes());
      ASSERT_TRUE(store_->Spill({.name = ChainName(n), .page = std::move(page[0]), .uses = 1}));
      store_->WaitUntilQuiet();
    }
  }
  // How many blocks of [first, first + count) come back, every bit of them as it was.
  size_t Restored(uint32_t first, uint32_t count) {
    size_t whole = 0;
    for (uint32_t n = first; n < first + count; ++n) {
      RestoreAnswer answer;
      store_->Restore(ChainIds(n, 1), pages_.Take(1), answer.Callback());
      const RestoreResult result = answer.Wait();
      if (result.whole == 0) continue;
      ++whole;
      const std::vector<Bf16> values = ValuesOf(n);
      EXPECT_EQ(std::memcmp(pages_.view().Block(result.pages[0].id()), values.data(),
                            kLayout.PayloadBytes()),
                0)
          << n;
    }
    return whole;
  }
  std::map<std::string, uint64_t> Codecs() {
    const auto report = InspectStore(directory_.path());
    EXPECT_TRUE(report.ok()) << report.status();
    return report->Sum().codecs;
  }

  TempFolder directory_;
  Pages pages_{32, kLayout};
  EventLog events_;
  std::unique_ptr<TieredStore> store_;
};

TEST_F(EncodedExtentsTest, TheSameBitsComeBackFromFewerPages) {
  for (const KvCodecSpec& codec : {kLx16, kLxr}) {
    const std::string name = KvCodecName(codec);
    Open(Options(codec));
    store_->Clear([] {});
    store_->WaitUntilQuiet();
    Spill(0, 34);
    EXPECT_EQ(Restored(0, 34), 34u) << name;
    const uint64_t written = store_->stats().nvme.bytes_written;
    EXPECT_LT(written, 34 * (pages_.stride() + kSegmentPage) * 88 / 100) << name;
    store_.reset();
    EXPECT_EQ(Codecs().at(name), 30u);
    EXPECT_EQ(Codecs().at("raw"), 4u) << "what does not shrink";
    const auto verified = VerifyStore(directory_.path());
    EXPECT_EQ(verified->Sum().verified, 34u);
  }
}

// A restart finds what was kept however it was kept, and another flag changes only what comes.
TEST_F(EncodedExtentsTest, ReadsWhatAnyFlagHasWritten) {
  uint32_t first = 0;
  for (const KvCodecSpec& codec : {kLx16, KvCodecSpec{}, kLxr, KvCodecSpec{}}) {
    Open(Options(codec));
    EXPECT_EQ(Restored(0, first), first) << KvCodecName(codec);
    Spill(first, 10);
    first += 10;
    EXPECT_EQ(Restored(0, first), first) << KvCodecName(codec);
  }
  store_.reset();
  const auto codecs = Codecs();
  EXPECT_GE(codecs.at("lx16"), 8u);
  EXPECT_GE(codecs.at("lxr"), 8u);
  EXPECT_GE(codecs.at("raw"), 18u);
}

TEST_F(EncodedExtentsTest, DamageIsAMiss) {
  Open(Options(kLxr));
  Spill(0, 9);
  store_.reset();
  const auto report = InspectStore(directory_.path());
  const std::string path = directory_.path() + "/" + report->segments.at(0).name;
  StoreFiles files;
  const auto segment = LoadSegment(files, path, /*write=*/false);
  ASSERT_TRUE(segment.ok()) << segment.status();
  // One bit of every other block.
  const int fd = open(path.c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  size_t damaged = 0;
  for (size_t i = 0; i < segment->records.size(); i += 2, ++damaged) {
    const auto at = static_cast<off_t>(segment->records[i].page * kSegmentPage + 100 + 333 * i);
    char byte = 0;
    ASSERT_EQ(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    ASSERT_EQ(pwrite(fd, &byte, 1, at), 1);
  }
  close(fd);
  Open(Options(kLxr));
  EXPECT_EQ(Restored(0, 9), 9 - damaged);
}

// With the choice left to arithmetic, a full disk wants the smallest there is.
TEST_F(EncodedExtentsTest, AFullDiskIsWorthTheSmallest) {
  const std::vector<KvCodecRates> slow = {
      {.spec = kLx16, .encode_bytes_per_s = 1, .decode_bytes_per_s = 1, .ratio = 1.3},
      {.spec = kLxr, .encode_bytes_per_s = 1, .decode_bytes_per_s = 1, .ratio = 1.4}};
  TieredStore::Options options = Options({}, 4 * kMiB);
  options.nvme.segment_bytes = kMiB;
  options.nvme.codec_choices = slow;
  Open(options);
  Spill(0, 20);
  EXPECT_EQ(store_->stats().nvme.tier.evictions[static_cast<size_t>(EvictionReason::kReclaim)], 0u);
  Spill(20, 80);
  EXPECT_GT(store_->stats().nvme.tier.evictions[static_cast<size_t>(EvictionReason::kReclaim)], 0u);
  EXPECT_GT(Restored(20, 80), 20u);
  store_.reset();
  const auto codecs = Codecs();
  EXPECT_GT(codecs.at("lxr"), 10u);
  EXPECT_FALSE(codecs.contains("lx16"));
}

TEST(ExtentCodecTest, RefusesWhatIsNoBlock) {
  ExtentCodec codec({.layout = kLayout, .codec = kLx16});
  const std::vector<Bf16> values = ValuesOf(0);
  std::vector<std::byte> page(kLayout.BlockStride()), back(kLayout.BlockStride());
  std::memcpy(page.data(), values.data(), kLayout.PayloadBytes());
  const ExtentCodec::Stored stored = codec.Encode(page);
  ASSERT_EQ(stored.codec, static_cast<uint8_t>(KvCodec::kLx16));
  ASSERT_TRUE(codec.Decode(stored.codec, stored.bytes, back).ok());
  EXPECT_EQ(std::memcmp(page.data(), back.data(), kLayout.PayloadBytes()), 0);
  const auto lxr = static_cast<uint8_t>(KvCodec::kLxr);
  EXPECT_TRUE(absl::IsDataLoss(codec.Decode(lxr, stored.bytes, back)));
  EXPECT_TRUE(absl::IsDataLoss(codec.Decode(stored.codec, stored.bytes.first(40), back)));
  EXPECT_TRUE(absl::IsDataLoss(codec.Decode(stored.codec, stored.bytes.first(4096), back)));
  KvLayout other = kLayout;
  other.layers = 3;
  EXPECT_TRUE(
      absl::IsDataLoss(ExtentCodec({.layout = other}).Decode(stored.codec, stored.bytes, back)));
  other = kLayout;
  other.dtype = KvDtype::kI8;
  EXPECT_TRUE(
      absl::IsDataLoss(ExtentCodec({.layout = other}).Decode(stored.codec, stored.bytes, back)));
  EXPECT_FALSE(IsExtentCodec(static_cast<uint8_t>(KvCodec::kI8)));
}

}  // namespace
}  // namespace penstock
