#include "worker/engine/page_selection.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(PageSelectionTest, TokensBecomeWholePages) {
  EXPECT_EQ(PageSelectionOf(std::nullopt, 16, 500).pages, 0);
  const PageSelection selection = PageSelectionOf(KvSelection{.tokens = 107}, 16, 500);
  EXPECT_EQ(selection.pages, 6);
  EXPECT_EQ(selection.from, 500);
  EXPECT_EQ(PageSelectionOf(KvSelection{.tokens = 64}, 64, 500).pages, kSelectedPagesMin);
}

TEST(PageSelectionTest, ATokenSelectsBehindThePromptAndTheBudget) {
  const PageSelection selection{.pages = 6, .from = 40};
  EXPECT_EQ(selection.Exact(16), 96);
  EXPECT_FALSE(selection.Selects(95, 16));
  EXPECT_TRUE(selection.Selects(96, 16));
  EXPECT_EQ(selection.Attended(96, 16), 5 * 16 + 1);
  EXPECT_EQ(selection.Attended(111, 16), 6 * 16);
  EXPECT_EQ((PageSelection{.pages = 6, .from = 500}).Exact(16), 500);
  EXPECT_FALSE(PageSelection().Selects(1000, 16));
}

PromptBlocks Named(size_t blocks, bool tokens) {
  PromptBlocks prompt;
  prompt.ids.resize(blocks);
  if (tokens) prompt.tokens.resize(blocks * 16);
  return prompt;
}

TEST(PageSelectionTest, OnlyExactBlocksKeepTheirNames) {
  PromptBlocks prompt = Named(20, true);
  DropSelectedNames(prompt, {}, 16);
  EXPECT_EQ(prompt.ids.size(), 20u) << "all of it is exact";
  DropSelectedNames(prompt, {.pages = 6, .from = 200}, 16);
  EXPECT_EQ(prompt.ids.size(), 12u) << "the block of the first token that selects has none";
  EXPECT_EQ(prompt.tokens.size(), 12u * 16);
  DropSelectedNames(prompt, {.pages = 6, .from = 10}, 16);
  EXPECT_EQ(prompt.ids.size(), 6u);
  prompt = Named(3, false);
  DropSelectedNames(prompt, {.pages = 6, .from = 10}, 16);
  EXPECT_EQ(prompt.ids.size(), 3u);
}

}  // namespace
}  // namespace penstock
