#include "kvstore/tiers/nvme/segment_format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "base/crc32c.h"
#include "kvstore/cache/block_table.h"
#include "kvstore/tiers/disk/store_directory.h"
#include "kvstore/tiers/nvme/nvme_index.h"
#include "tests/kvstore/tiers/store_fixture.h"

namespace penstock {
namespace {

using Page = std::array<std::byte, kSegmentPage>;

const SegmentFormat kFormat = {.model_fingerprint = 0x1234567890abcdef,
                               .layout = {.layers = 2, .kv_heads = 2, .head_dim = 16}};

BlockRecord Record(uint32_t n) {
  return {.name = ChainName(n),
          .page = 2 + n,
          .pages = 1,
          .crc = n * 77 + 1,
          .uses = 3,
          .partial = n % 3 == 1};
}

GroupHeader Group() {
  GroupHeader group{.nonce = 5, .format = kFormat.Fingerprint(), .page = 1, .pages = 64};
  for (uint32_t n = 0; n < kGroupRecordsMax; ++n) group.records.push_back(Record(n));
  return group;
}

TEST(SegmentFormat, HeadersComeBack) {
  Page page;
  const SegmentHeader header{.format = kFormat, .nonce = 7, .sequence = 8, .writer = 9};
  EncodeSegmentHeader(header, page);
  const auto decoded = DecodeSegmentHeader(page);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, header);
  for (const auto field : {&KvLayout::window, &KvLayout::latent_rope_dim}) {
    SegmentHeader other = header;
    other.format.layout.*field = 8;
    EncodeSegmentHeader(other, page);
    const auto decoded_other = DecodeSegmentHeader(page);
    ASSERT_TRUE(decoded_other.ok()) << decoded_other.status();
    EXPECT_EQ(*decoded_other, other);
    EXPECT_EQ(decoded_other->format.Fingerprint(), other.format.Fingerprint());
  }

  const SegmentTrailer trailer{.nonce = 1, .format = 2, .footer_page = 3, .records = 4};
  EncodeTrailer(trailer, page);
  const auto decoded_trailer = DecodeTrailer(page);
  ASSERT_TRUE(decoded_trailer.ok());
  EXPECT_EQ(*decoded_trailer, trailer);
  EXPECT_FALSE(DecodeSegmentHeader(page).ok());

  EncodeGroupHeader(Group(), page);
  const auto group = DecodeGroupHeader(page);
  ASSERT_TRUE(group.ok());
  EXPECT_EQ(group->records, Group().records);
  EXPECT_EQ(group->pages, 64u);
  EXPECT_EQ(group->damaged, 0u);

  const auto footer = EncodeFooter(Group().records, 6);
  EXPECT_EQ(footer.size(), kSegmentPage);
  const auto records = DecodeFooter(footer, kGroupRecordsMax, 6);
  ASSERT_TRUE(records.ok());
  EXPECT_EQ(*records, Group().records);
  EXPECT_FALSE(DecodeFooter(footer, kGroupRecordsMax, 7).ok());
}

// Every bit of a header page: never another value than the one written.
TEST(SegmentFormat, NoFlippedBitIsBelieved) {
  Page page;
  EncodeSegmentHeader({.format = kFormat, .nonce = 7, .sequence = 8, .writer = 9}, page);
  for (size_t bit = 0; bit < kSegmentPage * 8; ++bit) {
    page[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(DecodeSegmentHeader(page).ok()) << bit;
    page[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  EncodeGroupHeader(Group(), page);
  for (size_t bit = 0; bit < kSegmentPage * 8; ++bit) {
    page[bit / 8] ^= std::byte{1} << (bit % 8);
    const auto group = DecodeGroupHeader(page);
    if (bit < 64 * 8) {
      EXPECT_FALSE(group.ok()) << bit;
    } else {
      ASSERT_TRUE(group.ok()) << bit;
      EXPECT_EQ(group->damaged, 1u) << bit;
      EXPECT_EQ(group->records.size(), kGroupRecordsMax - 1) << bit;
    }
    page[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

// A header as a build with that version of the format writes it.
absl::Status DecodeVersion(uint32_t version) {
  Page page;
  EncodeSegmentHeader({.format = kFormat, .nonce = 7, .sequence = 8, .writer = 9}, page);
  std::memcpy(page.data() + 4, &version, sizeof(version));
  const uint32_t crc = Crc32c(std::span(page).first(kSegmentPage - 4));
  std::memcpy(page.data() + kSegmentPage - 4, &crc, sizeof(crc));
  return DecodeSegmentHeader(page).status();
}

TEST(SegmentFormat, ReadsTheVersionBeforeAndRefusesOthers) {
  EXPECT_TRUE(DecodeVersion(2).ok());
  EXPECT_TRUE(DecodeVersion(1).ok());
  for (const uint32_t version : {0u, 3u, 0xffffffffu}) {
    const absl::Status status = DecodeVersion(version);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(Message(status),
              fmt::format("segment header: version is {}, this build reads 1 to 2", version));
  }
}

TEST(SegmentFormat, FormatsDiffer) {
  SegmentFormat other = kFormat;
  ++other.model_fingerprint;
  EXPECT_NE(other.Fingerprint(), kFormat.Fingerprint());
  other = kFormat;
  other.layout.block_tokens = 32;
  EXPECT_NE(other.Fingerprint(), kFormat.Fingerprint());
}

TEST(StoreDirectory, NamesComeBack) {
  const SegmentName name{.writer = 7, .sequence = 0x1234};
  EXPECT_EQ(SegmentFileName(name), "07-00001234.seg");
  EXPECT_EQ(ParseSegmentFileName("07-00001234.seg"), name);
  EXPECT_EQ(ParseLockFileName("42.lock"), 42u);
  for (const char* other :
       {"", "07.lock2", "7-1.seg", "07-.seg", "07-xyz.seg", "ab-00000001.seg"}) {
    EXPECT_FALSE(ParseSegmentFileName(other)) << other;
    EXPECT_FALSE(ParseLockFileName(other)) << other;
  }
}

struct Ids {
  std::vector<BlockId> ids;
  const BlockId& id(uint32_t record) const { return ids[record]; }
};

// Against a map, with ids that share their low bits, so that they crowd in one place.
TEST(BlockTable, AgreesWithAMap) {
  std::mt19937 random(5);
  Ids records;
  BlockTable<Ids> table(records);
  std::map<BlockId, uint32_t> map;
  for (int i = 0; i < 50'000; ++i) {
    BlockId id;
    id.bytes[0] = static_cast<uint8_t>(random() % 4);
    id.bytes[4] = static_cast<uint8_t>(random() % 50);
    id.bytes[9] = static_cast<uint8_t>(random() % 10);
    const auto known = map.find(id);
    ASSERT_EQ(table.Find(id).has_value(), known != map.end());
    if (known != map.end()) {
      ASSERT_EQ(*table.Find(id), known->second);
      if (random() % 2 == 0) {
        table.Erase(id);
        map.erase(known);
      }
    } else {
      const auto record = static_cast<uint32_t>(records.ids.size());
      records.ids.push_back(id);
      table.Insert(id, record);
      map[id] = record;
    }
    ASSERT_EQ(table.size(), map.size());
  }
}

TEST(NvmeIndex, KnowsWhatLiesWhere) {
  NvmeIndex index;
  for (uint32_t n = 0; n < 10'000; ++n) EXPECT_TRUE(index.Insert(n / 1000, Record(n)));
  EXPECT_FALSE(index.Insert(3, Record(5)));
  EXPECT_EQ(index.InSegment(3).size(), 1000u);
  index.Move(4, Record(3000));
  EXPECT_EQ(index.InSegment(3).size(), 999u);
  EXPECT_EQ(index.InSegment(4).size(), 1001u);
  EXPECT_EQ(index.Find(ChainName(3000).id)->segment, 4u);
  EXPECT_EQ(index.CountLeading(ChainIds(0, 10'001)), 10'000u);
  EXPECT_TRUE(index.Erase(ChainName(700).id));
  EXPECT_FALSE(index.Erase(ChainName(700).id));
  EXPECT_EQ(index.CountLeading(ChainIds(0, 10'000)), 700u);
  EXPECT_EQ(index.InSegment(0).size(), 999u);
  EXPECT_TRUE(index.Insert(0, Record(700)));  // takes the freed record, which 0 names already
  EXPECT_EQ(index.InSegment(0).size(), 1000u);
  EXPECT_EQ(index.blocks(), 10'000u);
  // Names and all. Fewer than 64 beside the 32 of the names.
  EXPECT_LT(static_cast<double>(index.memory_bytes()) / 10'000, 32 + 64);
}

}  // namespace
}  // namespace penstock
