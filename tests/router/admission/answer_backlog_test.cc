#include "router/admission/answer_backlog.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

v1::GenerateResponse Chunk(uint32_t index, uint64_t sequence, const std::string& text) {
  v1::GenerateResponse response;
  response.mutable_chunk()->set_index(index);
  response.mutable_chunk()->set_sequence(sequence);
  response.mutable_chunk()->set_text(text);
  response.mutable_chunk()->add_token_ids(static_cast<uint32_t>(sequence));
  return response;
}

v1::GenerateResponse Final(uint32_t index) {
  v1::GenerateResponse response;
  response.mutable_final()->set_index(index);
  response.mutable_final()->set_finish_reason(v1::LENGTH);
  return response;
}

TEST(AnswerBacklog, StaysWithinTwoMessagesAChoice) {
  AnswerBacklog backlog;
  for (uint64_t i = 0; i < 10'000; ++i) backlog.Add(Chunk(i % 3, i, "x"));
  for (uint32_t choice = 0; choice < 3; ++choice) backlog.Add(Final(choice));
  EXPECT_EQ(backlog.size(), 6u);
  const auto first = backlog.Take();
  EXPECT_EQ(first->chunk().index(), 0u);
  EXPECT_EQ(first->chunk().sequence(), 0u);
  EXPECT_EQ(first->chunk().token_ids_size(), 3334);
  EXPECT_EQ(first->chunk().token_ids(1), 3u);
  EXPECT_EQ(first->chunk().text().size(), 3334u);
}

TEST(AnswerBacklog, NeverPutsAFinalBeforeItsText) {
  AnswerBacklog backlog;
  backlog.Add(Chunk(0, 0, "a"));
  backlog.Add(Chunk(1, 0, "b"));
  backlog.Add(Chunk(0, 1, "c"));
  backlog.Add(Final(0));
  EXPECT_EQ(backlog.Take()->chunk().text(), "ac");
  EXPECT_EQ(backlog.Take()->chunk().text(), "b");
  EXPECT_TRUE(backlog.Take()->has_final());
  EXPECT_FALSE(backlog.Take().has_value());
}

TEST(AnswerCollector, GathersAWholeAnswer) {
  AnswerCollector collector(2);
  collector.Add(Chunk(1, 0, "b"));
  collector.Add(Chunk(0, 0, "a"));
  collector.Add(Chunk(1, 1, "B"));
  collector.Add(Final(1));
  v1::GenerateResponse last = Final(0);
  last.mutable_final()->mutable_usage()->set_completion_tokens(3);
  last.mutable_final()->set_matched_stop_string("!");
  collector.Add(last);
  const v1::GenerateUnaryResponse answer = collector.Take();
  EXPECT_EQ(answer.choices(0).text(), "a");
  EXPECT_EQ(answer.choices(0).matched_stop_string(), "!");
  EXPECT_EQ(answer.choices(1).text(), "bB");
  EXPECT_EQ(answer.choices(1).token_ids_size(), 2);
  EXPECT_EQ(answer.usage().completion_tokens(), 3u);
}

}  // namespace
}  // namespace penstock
