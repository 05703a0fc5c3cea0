#include "kvstore/names/block_hash.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace penstock {
namespace {

std::vector<uint32_t> Tokens(uint32_t count, uint32_t first = 0) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Ids are stored and compared between machines and versions: the values are part of the protocol.
// From Python's hmac and hashlib.
TEST(BlockHashTest, ValuesAreStable) {
  const BlockNamespace space{.model_fingerprint = 0x0123456789abcdef,
                             .kv_format = "bf16",
                             .tenant_salt = "salt",
                             .provenance = ""};
  const BlockId root = RootBlockId(space);
  EXPECT_EQ(root.Hex(), "ee2b6de82b35285d31b96913a8f52d5b");
  const std::vector<BlockId> ids = HashBlocks(root, Tokens(8, 1), 4);
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_EQ(ids[0].Hex(), "f18cb9691cc40a561e3b0b717532beb5");
  EXPECT_EQ(ids[1].Hex(), "59a818890675b75c8b08e772e96497a2");
}

TEST(BlockHashTest, EveryPartOfTheNamespaceSeparates) {
  const BlockNamespace base{1, "bf16", "tenant", "exact"};
  std::set<BlockId> roots{RootBlockId(base)};
  roots.insert(RootBlockId({2, "bf16", "tenant", "exact"}));
  roots.insert(RootBlockId({1, "fp8", "tenant", "exact"}));
  roots.insert(RootBlockId({1, "bf16", "other", "exact"}));
  roots.insert(RootBlockId({1, "bf16", "", "exact"}));
  roots.insert(RootBlockId({1, "bf16", "tenant", "kv2"}));
  // The border between two fields counts, too.
  roots.insert(RootBlockId({1, "bf16e", "tenant", "xact"}));
  EXPECT_EQ(roots.size(), 7u);
  EXPECT_EQ(RootBlockId(base), RootBlockId({1, "bf16", "tenant", "exact"}));
}

TEST(BlockHashTest, AnIdNamesAllThatCameBefore) {
  const BlockId root = RootBlockId({});
  const auto a = HashBlocks(root, Tokens(64), 16);
  auto tokens = Tokens(64);
  tokens[20] = 1000;
  const auto b = HashBlocks(root, tokens, 16);
  ASSERT_EQ(a.size(), 4u);
  ASSERT_EQ(b.size(), 4u);
  EXPECT_EQ(a[0], b[0]);
  for (size_t i = 1; i < 4; ++i) EXPECT_NE(a[i], b[i]);
  // The same tokens at another place are another block.
  const std::vector<uint32_t> same(32, 5);
  const auto twice = HashBlocks(root, same, 16);
  EXPECT_NE(twice[0], twice[1]);
}

TEST(BlockHashTest, OnlyFullBlocksHaveIds) {
  const BlockId root = RootBlockId({});
  EXPECT_TRUE(HashBlocks(root, {}, 16).empty());
  EXPECT_TRUE(HashBlocks(root, Tokens(15), 16).empty());
  EXPECT_EQ(HashBlocks(root, Tokens(16), 16).size(), 1u);
  const auto longer = HashBlocks(root, Tokens(47), 16);
  EXPECT_EQ(longer.size(), 2u);
  EXPECT_EQ(longer, HashBlocks(root, Tokens(32), 16));
}

TEST(BlockHashTest, ChildrenChainFromTheRoot) {
  const BlockId root = RootBlockId({});
  const auto tokens = Tokens(32);
  const auto ids = HashBlocks(root, tokens, 16);
  EXPECT_EQ(ids[0], ChildBlockId(root, std::span(tokens).first(16)));
  EXPECT_EQ(ids[1], ChildBlockId(ids[0], std::span(tokens).last(16)));
  EXPECT_EQ(ids[0].Hex().size(), 32u);
}

}  // namespace
}  // namespace penstock
