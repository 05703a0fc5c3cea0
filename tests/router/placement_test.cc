#include "router/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace penstock {
namespace {

using ::testing::HasSubstr;

constexpr KvFormat kFormat{.model_fingerprint = 1, .layout_fingerprint = 2, .block_tokens = 16};
constexpr KvFormat kOther{.model_fingerprint = 9, .layout_fingerprint = 2, .block_tokens = 16};

Candidate Worker() { return {.format = kFormat, .max_model_len = 2048, .blocks_total = 1000}; }

PlacementInput Input(size_t prefill, size_t decode) {
  return {.prefill = std::vector<Candidate>(prefill, Worker()),
          .decode = std::vector<Candidate>(decode, Worker()),
          .prefill_known = prefill,
          .decode_known = decode,
          .need = {.prompt_tokens = 100, .answer_tokens = 100}};
}

TEST(Place, TakesThePrefillWorkerWithTheFewestTokensWaiting) {
  PlacementInput input = Input(3, 1);
  input.prefill[0].waiting_tokens = 500;
  input.prefill[1].waiting_tokens = 20;
  input.prefill[2].waiting_tokens = 400;
  EXPECT_EQ(Place(input)->prefill, 1u);
}

TEST(Place, TakesTheDecodeWorkerWithTheFewestRequests) {
  PlacementInput input = Input(1, 3);
  input.decode[0].requests = 4;
  input.decode[1].requests = 3;
  input.decode[2].requests = 5;
  EXPECT_EQ(Place(input)->decode, 1u);
}

TEST(Place, PrefersADecodeWorkerWithRoomAtOnceToAnIdlerOne) {
  PlacementInput input = Input(1, 2);
  input.decode[0].blocks_taken = 995;
  input.decode[1].requests = 50;
  EXPECT_EQ(Place(input)->decode, 1u);
}

TEST(Place, PrefersMoreFreeBlocksAmongEquals) {
  PlacementInput input = Input(1, 2);
  input.decode[0].blocks_taken = 100;
  EXPECT_EQ(Place(input)->decode, 1u);
}

TEST(Place, BreaksTiesByTheNumberGiven) {
  PlacementInput input = Input(4, 4);
  std::set<std::pair<size_t, size_t>> seen;
  for (uint64_t i = 0; i < 16; ++i) {
    input.random = i | (i / 4) << 32;
    const auto pair = Place(input);
    ASSERT_TRUE(pair.ok());
    seen.insert({pair->prefill, pair->decode});
  }
  EXPECT_EQ(seen.size(), 16u);
}

TEST(Place, AvoidsWorkersThatFailedThisSessionButTakesThemWhereThereIsNoOther) {
  PlacementInput input = Input(2, 1);
  input.prefill[0].failures = 2;
  input.prefill[1].waiting_tokens = 100'000;
  input.decode[0].failures = 1;
  EXPECT_EQ(Place(input)->prefill, 1u);
  EXPECT_EQ(Place(input)->decode, 0u);
}

TEST(Place, PairsOnlyWorkersOfOneFormat) {
  PlacementInput input = Input(2, 2);
  input.prefill[0].format = kOther;  // no partner
  input.decode[1].waiting = 3;
  input.decode[1].requests = 3;
  const auto pair = Place(input);
  ASSERT_TRUE(pair.ok());
  EXPECT_EQ(pair->prefill, 1u);
  for (Candidate& decode : input.decode) decode.format.block_tokens = 32;
  EXPECT_EQ(Place(input).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(Place(input).status()), HasSubstr("same model and KV format"));
}

TEST(Place, KeepsASessionOnItsFormat) {
  PlacementInput input = Input(2, 2);
  input.prefill[1].format = input.decode[1].format = kOther;
  input.prefill[1].waiting_tokens = 1000;
  input.need.format = kOther;
  EXPECT_EQ(Place(input)->prefill, 1u);
  input.need.format = KvFormat{5, 5, 16};
  EXPECT_EQ(Place(input).status().code(), absl::StatusCode::kUnavailable);
}

TEST(Place, SaysWhichRoleIsMissing) {
  PlacementInput input = Input(0, 1);
  input.prefill_known = 2;
  EXPECT_EQ(Place(input).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(Place(input).status()), HasSubstr("no prefill worker is ready (2 known)"));
  EXPECT_THAT(Message(Place(Input(1, 0)).status()),
              HasSubstr("no decode worker is ready (0 known)"));
}

TEST(Place, RefusesWhenEveryQueueIsFull) {
  PlacementInput input = Input(2, 2);
  for (Candidate& prefill : input.prefill) prefill.waiting = kMaxWaitingPerWorker;
  const absl::Status status = Place(input).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(status), HasSubstr("256 requests waiting"));
}

TEST(Place, RefusesWhatNoPoolCanEverHold) {
  PlacementInput input = Input(1, 2);
  input.decode[0].blocks_total = 4;
  input.decode[1].blocks_total = 7;
  const absl::Status status = Place(input).status();  // 100 tokens are 7 blocks, and one to answer
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(status), HasSubstr("a prompt of 100 tokens"));
  input.decode[1].blocks_total = 8;
  EXPECT_EQ(Place(input)->decode, 1u);
}

TEST(BlocksNeeded, SharesThePromptAmongChoices) {
  EXPECT_EQ(BlocksNeeded({.prompt_tokens = 17, .answer_tokens = 16, .choices = 3}, 16), 5u);
}

}  // namespace
}  // namespace penstock
