// The index against a search of the whole sequence, and how guesses are judged.

#include "decode_worker/speculation/ngram_index.h"

#include <gtest/gtest.h>

#include <random>

#include "decode_worker/speculation/sequence_draft.h"

namespace penstock {
namespace {

using Tokens = std::vector<uint32_t>;

size_t SuffixAt(const Tokens& tokens, size_t end) {
  size_t length = 0;
  while (length < std::min<size_t>(end, NgramIndex::kMatchMax) &&
         tokens[end - 1 - length] == tokens[tokens.size() - 1 - length]) {
    ++length;
  }
  return length;
}

// The longest common suffix of the end and an earlier place.
size_t LongestSuffix(const Tokens& tokens) {
  size_t best = 0;
  for (size_t end = 1; end < tokens.size(); ++end) best = std::max(best, SuffixAt(tokens, end));
  return best;
}

TEST(NgramIndex, ContinuesTheLongestSuffix) {
  const Tokens text = {1, 2, 3, 4, 5, 9, 2, 3, 4, 6, 8, 1, 2, 3, 4};
  NgramIndex index(100);
  for (const uint32_t token : text) index.Append(token);
  Tokens next;
  EXPECT_EQ(index.Continue(3, next), 4u);  // 1 2 3 4, not the later 2 3 4
  EXPECT_EQ(next, Tokens({5, 9, 2}));
}

TEST(NgramIndex, ACycleContinuesWithoutEnd) {
  NgramIndex index(100);
  for (uint32_t i = 0; i < 10; ++i) index.Append(i % 4);
  Tokens next;
  EXPECT_GT(index.Continue(9, next), 0u);
  EXPECT_EQ(next, Tokens({2, 3, 0, 1, 2, 3, 0, 1, 2}));
}

TEST(NgramIndex, NothingFollowsWhatIsNew) {
  NgramIndex index(100);
  Tokens next = {7};
  for (uint32_t i = 0; i < 50; ++i) {
    index.Append(i);
    EXPECT_EQ(index.Continue(4, next), 0u);
    EXPECT_TRUE(next.empty());
  }
}

// Texts of few tokens, shorter and longer than the ring: every match is one, no token comes from
// outside the text, and a match is found where few candidates share the last tokens.
TEST(NgramIndex, FindsWhatASearchFinds) {
  std::mt19937 random(5);
  int found = 0;
  for (int round = 0; round < 200; ++round) {
    const uint32_t vocab = 2 + random() % 40;
    const size_t length = 1 + random() % 300;
    NgramIndex index(round % 2 == 0 ? length : length / 4);
    Tokens text, next;
    for (size_t i = 0; i < length; ++i) {
      text.push_back(static_cast<uint32_t>(random() % vocab));
      index.Append(text.back());
      const uint32_t match = index.Continue(1, next);
      ASSERT_EQ(next.size(), match > 0 ? 1u : 0u);
      if (match == 0) continue;
      ++found;
      ASSERT_GE(match, NgramIndex::kGram);
      ASSERT_LE(match, LongestSuffix(text));
      bool follows = false;
      for (size_t end = 1; end < text.size(); ++end) {
        follows |= SuffixAt(text, end) >= match && text[end] == next[0];
      }
      ASSERT_TRUE(follows) << "round " << round << " at " << i;
    }
    if (round % 2 == 0 && vocab > 20 && LongestSuffix(text) >= NgramIndex::kGram) {
      EXPECT_EQ(index.Continue(1, next), LongestSuffix(text));
    }
  }
  EXPECT_GT(found, 1000);
}

TEST(NgramIndex, ForgetsWhatIsLongAgo) {
  NgramIndex index(NgramIndex::kRemembered * 4);
  Tokens next;
  for (uint32_t i = 0; i < 3 * NgramIndex::kRemembered; ++i) index.Append(i);
  for (uint32_t i = 0; i < 8; ++i) index.Append(i);
  EXPECT_EQ(index.Continue(4, next), 0u);
  for (uint32_t i = 0; i < 8; ++i) index.Append(2 * NgramIndex::kRemembered + 100 + i);
  EXPECT_EQ(index.Continue(2, next), 8u);
  EXPECT_EQ(next[0], 2 * NgramIndex::kRemembered + 108);
}

TEST(SequenceDraft, EveryGuessIsJudgedUntilOneIsWrong) {
  const Tokens text = {1, 2, 3, 4, 5, 6, 7, 1, 2, 3};
  SequenceDraft draft(text, 100);
  draft.Guess(4);
  ASSERT_EQ(draft.guess().size(), 4u);
  const double before = draft.acceptance();
  draft.Observe(4);
  draft.Observe(5);
  EXPECT_GT(draft.acceptance(), before);
  const double after = draft.acceptance();
  draft.Observe(9);  // instead of 6
  EXPECT_LT(draft.acceptance(), after);
  const double wrong = draft.acceptance();
  draft.Observe(7);  // right, but behind a wrong one
  EXPECT_EQ(draft.acceptance(), wrong);
}

TEST(SequenceDraft, LongMatchesHaveARateOfTheirOwn) {
  SequenceDraft draft(Tokens{}, 1000);
  for (uint32_t i = 0; i < 40; ++i) draft.Observe(i);
  for (uint32_t i = 0; i < 3; ++i) draft.Observe(i);
  draft.Guess(1);
  const double shorter = draft.acceptance();
  draft.Observe(999);
  for (uint32_t i = 10; i < 35; ++i) draft.Observe(i);
  draft.Guess(1);
  EXPECT_EQ(draft.guess()[0], 35u);
  EXPECT_EQ(draft.acceptance(), shorter);
}

}  // namespace
}  // namespace penstock
