#include "router/session/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::TokenOut Token(uint32_t choice, uint32_t position, uint32_t id,
                   v1::TokenOut::Finish finish = v1::TokenOut::GOING_ON) {
  v1::TokenOut token;
  token.set_choice(choice);
  token.set_position(position);
  token.set_token(id);
  token.set_finish(finish);
  return token;
}

std::vector<uint32_t> Ids(const absl::StatusOr<std::vector<v1::TokenOut>>& tokens) {
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  std::vector<uint32_t> ids;
  for (const v1::TokenOut& token : *tokens) ids.push_back(token.token());
  return ids;
}

TEST(Journal, HoldsEarlyTokensUntilTheFirstIsThere) {
  Journal journal(1, 10);
  EXPECT_THAT(Ids(journal.Accept(Token(0, 2, 12))), IsEmpty());
  EXPECT_THAT(Ids(journal.Accept(Token(0, 1, 11))), IsEmpty());
  EXPECT_THAT(Ids(journal.Accept(Token(0, 0, 10))), ElementsAre(10, 11, 12));
  EXPECT_THAT(Ids(journal.Accept(Token(0, 3, 13))), ElementsAre(13));
}

TEST(Journal, GivesEachTokenOnce) {
  Journal journal(1, 10);
  EXPECT_THAT(Ids(journal.Accept(Token(0, 0, 10))), ElementsAre(10));
  EXPECT_THAT(Ids(journal.Accept(Token(0, 0, 10))), IsEmpty());
}

TEST(Journal, RefusesAnotherTokenAtAnAnsweredPosition) {
  Journal journal(1, 10);
  (void)journal.Accept(Token(0, 0, 10));
  EXPECT_EQ(journal.Accept(Token(0, 0, 11)).status().code(), absl::StatusCode::kDataLoss);
}

TEST(Journal, RefusesWhatWasNotAskedFor) {
  Journal journal(2, 10);
  EXPECT_EQ(journal.Accept(Token(2, 0, 1)).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(journal.Accept(Token(1, 10, 1)).status().code(), absl::StatusCode::kDataLoss);
}

TEST(Journal, EndsAChoiceWithItsFinishAndTakesNoMore) {
  Journal journal(2, 10);
  (void)journal.Accept(Token(0, 0, 10, v1::TokenOut::STOP));
  EXPECT_TRUE(journal.ended(0));
  EXPECT_FALSE(journal.all_ended(0, 2));
  EXPECT_THAT(Ids(journal.Accept(Token(0, 1, 11))), IsEmpty());
  journal.End(1);
  EXPECT_TRUE(journal.all_ended(0, 2));
}

TEST(Journal, GroupsNeighboursThatHaveAnsweredTheSame) {
  Journal journal(6, 10);
  for (const uint32_t choice : {0, 1, 3, 4}) (void)journal.Accept(Token(choice, 0, 10));
  (void)journal.Accept(Token(4, 1, 20));
  journal.End(3);
  const auto groups = journal.OpenGroups(0, 6);
  ASSERT_EQ(groups.size(), 4u);  // {0, 1} {2} {4} {5}
  EXPECT_EQ(groups[0].first, 0u);
  EXPECT_EQ(groups[0].count, 2u);
  EXPECT_THAT(groups[0].answered, ElementsAre(10));
  EXPECT_THAT(groups[1].answered, IsEmpty());
  EXPECT_EQ(groups[2].first, 4u);
  EXPECT_THAT(groups[2].answered, ElementsAre(10, 20));
  EXPECT_EQ(groups[3].first, 5u);
}

TEST(Journal, ForgetsWhatCameEarlyFromAFailedPlan) {
  Journal journal(1, 10);
  (void)journal.Accept(Token(0, 1, 99));
  journal.DropEarly(0, 1);
  EXPECT_THAT(Ids(journal.Accept(Token(0, 0, 10))), ElementsAre(10));
}

}  // namespace
}  // namespace penstock
