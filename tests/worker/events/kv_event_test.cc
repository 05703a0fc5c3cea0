#include "worker/events/kv_event.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace penstock {
namespace {

using Json = nlohmann::json;

// Read by another library than the one that wrote it.
Json Decoded(const std::vector<KvEvent>& events, KvEventForm form) {
  const std::string bytes = EncodeKvEvents(events, 12.5, 16, form);
  return Json::from_msgpack(bytes.begin(), bytes.end());
}

KvBlocksStored Stored() {
  KvBlocksStored stored{.hashes = {7, UINT64_MAX}, .parent = 9, .medium = KvMedium::kGpu};
  for (uint32_t token = 0; token < 32; ++token) stored.tokens.push_back(token * 5000);
  return stored;
}

TEST(KvEventTest, ABatchIsAnArrayOfTimeEventsAndRank) {
  EXPECT_EQ(Decoded({}, KvEventForm::kArray), Json({12.5, Json::array(), 0}));
}

TEST(KvEventTest, FieldsAreInTheOrderOfVllmsClasses) {
  const KvBlocksStored stored = Stored();
  EXPECT_EQ(Decoded({stored}, KvEventForm::kArray)[1][0],
            Json({"BlockStored", {7, UINT64_MAX}, 9, stored.tokens, 16, nullptr, "GPU", nullptr}));
  EXPECT_EQ(Decoded({KvBlocksRemoved{.hashes = {1, 2}, .medium = KvMedium::kDisk}},
                    KvEventForm::kArray)[1][0],
            Json({"BlockRemoved", {1, 2}, "DISK"}));
  EXPECT_EQ(Decoded({KvBlocksCleared()}, KvEventForm::kArray)[1][0],
            Json::array({"AllBlocksCleared"}));
}

TEST(KvEventTest, AMapNamesTheFields) {
  const KvBlocksStored stored = Stored();
  const Json batch =
      Decoded({stored, KvBlocksRemoved{.hashes = {3}, .medium = KvMedium::kCpu}, KvBlocksCleared()},
              KvEventForm::kMap);
  EXPECT_TRUE(batch.is_array());
  EXPECT_EQ(batch[1][0], Json({{"type", "BlockStored"},
                               {"block_hashes", {7, UINT64_MAX}},
                               {"parent_block_hash", 9},
                               {"token_ids", stored.tokens},
                               {"block_size", 16},
                               {"lora_id", nullptr},
                               {"medium", "GPU"},
                               {"lora_name", nullptr}}));
  EXPECT_EQ(batch[1][1],
            Json({{"type", "BlockRemoved"}, {"block_hashes", {3}}, {"medium", "CPU"}}));
  EXPECT_EQ(batch[1][2], Json({{"type", "AllBlocksCleared"}}));
}

TEST(KvEventTest, ABlockWithoutAParentSaysNil) {
  EXPECT_TRUE(Decoded({KvBlocksStored{.hashes = {1}}}, KvEventForm::kArray)[1][0][2].is_null());
}

TEST(KvEventTest, AShortHashIsTheEndOfTheId) {
  BlockId id;
  for (uint8_t i = 0; i < 16; ++i) id.bytes[i] = i;
  EXPECT_EQ(ShortHash(id), 0x08090a0b0c0d0e0fu);
}

// For whoever reads the bytes by hand: fixarray, float 64, fixarray, fixarray, fixstr.
TEST(KvEventTest, TheBytesOfASmallBatch) {
  const std::string bytes = EncodeKvEvents({{KvBlocksCleared()}}, 1.0, 16, KvEventForm::kArray);
  EXPECT_EQ(bytes, std::string("\x93\xcb\x3f\xf0\0\0\0\0\0\0\x91\x91\xb0"
                               "AllBlocksCleared\0",
                               30));
}

}  // namespace
}  // namespace penstock
