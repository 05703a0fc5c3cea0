#include "router/placement/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "router/request/error_detail.h"

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
  input.prefill[0].queue_ms = 500;
  input.prefill[1].queue_ms = 20;
  input.prefill[2].queue_ms = 400;
  EXPECT_EQ(Place(input)->workers.prefill, 1u);
}

TEST(Place, TakesTheDecodeWorkerWithTheFewestRequests) {
  PlacementInput input = Input(1, 3);
  input.decode[0].requests = 4;
  input.decode[1].requests = 3;
  input.decode[2].requests = 5;
  EXPECT_EQ(Place(input)->workers.decode, 1u);
}

TEST(Place, PrefersADecodeWorkerWithRoomAtOnceToAnIdlerOne) {
  PlacementInput input = Input(1, 2);
  input.decode[0].blocks_taken = 995;
  input.decode[1].requests = 50;
  EXPECT_EQ(Place(input)->workers.decode, 1u);
}

TEST(Place, PrefersMoreFreeBlocksAmongEquals) {
  PlacementInput input = Input(1, 2);
  input.decode[0].blocks_taken = 100;
  EXPECT_EQ(Place(input)->workers.decode, 1u);
}

TEST(Place, ALongPromptDoesNotHideWhichDecodeWorkerIsIdler) {
  PlacementInput input = Input(1, 8);
  input.need.prompt_tokens = 2000;
  input.prefill[0].prefill = {.base_ms = 5, .ms_per_token = 10};
  for (Candidate& decode : input.decode) decode.requests = 20;
  input.decode[5].requests = 19;
  for (input.random = 0; input.random < 16; ++input.random) {
    EXPECT_EQ(Place(input)->workers.decode, 5u);
  }
}

TEST(Place, WhatADecodeWorkerHasNeedNotMove) {
  PlacementInput input = Input(1, 3);
  input.need.prompt_tokens = 1000;
  for (Candidate& decode : input.decode) decode.link = {.latency_ms = 1, .ms_per_token = 0.01};
  input.decode[1].cached.tokens = 900;
  const auto placement = Place(input);
  EXPECT_EQ(placement->workers.decode, 1u);
  EXPECT_EQ(placement->held_tokens, 900u);
  EXPECT_NEAR(placement->terms.transfer_discount_ms, -9, 1e-9);
  input.decode[1].requests = 10;  // each of which would wait longer at every step
  EXPECT_NE(Place(input)->workers.decode, 1u);
}

TEST(Place, BreaksTiesByTheNumberGiven) {
  PlacementInput input = Input(4, 4);
  std::set<std::pair<size_t, size_t>> seen;
  for (uint64_t i = 0; i < 16; ++i) {
    input.random = i | (i / 4) << 32;
    const auto pair = Place(input);
    ASSERT_TRUE(pair.ok());
    seen.insert({pair->workers.prefill, pair->workers.decode});
  }
  EXPECT_EQ(seen.size(), 16u);
}

TEST(Place, AvoidsWorkersThatFailedThisSessionButTakesThemWhereThereIsNoOther) {
  PlacementInput input = Input(2, 1);
  input.prefill[0].failures = 2;
  input.prefill[1].queue_ms = 100'000;
  input.decode[0].failures = 1;
  EXPECT_EQ(Place(input)->workers.prefill, 1u);
  EXPECT_EQ(Place(input)->workers.decode, 0u);
}

TEST(Place, PairsOnlyWorkersOfOneFormat) {
  PlacementInput input = Input(2, 2);
  input.prefill[0].format = kOther;  // no partner
  input.decode[1].waiting = 3;
  input.decode[1].requests = 3;
  const auto pair = Place(input);
  ASSERT_TRUE(pair.ok());
  EXPECT_EQ(pair->workers.prefill, 1u);
  for (Candidate& decode : input.decode) decode.format.block_tokens = 32;
  EXPECT_EQ(Place(input).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(Place(input).status()), HasSubstr("same model and KV format"));
}

TEST(Place, KeepsASessionOnItsFormat) {
  PlacementInput input = Input(2, 2);
  input.prefill[1].format = input.decode[1].format = kOther;
  input.prefill[1].queue_ms = 1000;
  input.need.format = kOther;
  EXPECT_EQ(Place(input)->workers.prefill, 1u);
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
  EXPECT_THAT(Message(status), HasSubstr("queue of every worker is full"));
}

TEST(Place, KnowsTheLengthOfEachQueue) {
  PlacementInput input = Input(2, 1);
  input.prefill[0].waiting = input.prefill[1].waiting = 64;
  input.prefill[0].waiting_max = 64;
  input.prefill[1].waiting_max = 65;
  EXPECT_EQ(Place(input)->workers.prefill, 1u);
  input.prefill[1].waiting = 65;
  EXPECT_EQ(Place(input).status().code(), absl::StatusCode::kResourceExhausted);
  input.prefill[1].waiting = kMaxWaitingPerWorker;
  input.prefill[1].waiting_max = kMaxWaitingPerWorker + 1;
  EXPECT_EQ(Place(input)->workers.prefill, 1u) << "as the operator asked";
}

TEST(Place, RefusesWhatNoPoolCanEverHold) {
  PlacementInput input = Input(1, 2);
  input.decode[0].blocks_total = 4;
  input.decode[1].blocks_total = 7;
  const absl::Status status = Place(input).status();  // 100 tokens are 7 blocks, and one to answer
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(status), HasSubstr("a prompt of 100 tokens"));
  input.decode[1].blocks_total = 8;
  EXPECT_EQ(Place(input)->workers.decode, 1u);
}

TEST(BlocksNeeded, SharesThePromptAmongChoices) {
  EXPECT_EQ(
      BlocksNeeded({.prompt_tokens = 17, .answer_tokens = 16, .choices = 3}, {.block_tokens = 16}),
      5u);
}

// A window of 1,000 tokens and the ends of two blocks are 65 blocks.
TEST(BlocksNeeded, OfAWindowForEachChoiceAtMost) {
  const KvFormat format{.block_tokens = 16, .window = 1000};
  EXPECT_EQ(BlocksNeeded({.prompt_tokens = 100, .answer_tokens = 16, .choices = 2}, format), 9u);
  EXPECT_EQ(BlocksNeeded({.prompt_tokens = 6000, .answer_tokens = 2000}, format), 65u);
  EXPECT_EQ(BlocksNeeded({.prompt_tokens = 6000, .answer_tokens = 16, .choices = 3}, format), 68u);
  EXPECT_EQ(BlocksNeeded({.prompt_tokens = 6000, .answer_tokens = 2000, .choices = 3}, format),
            195u);
}

TEST(BlocksNeeded, OfAnEvictedAnswerItsLimit) {
  const KvFormat format{.block_tokens = 16};
  PlacementNeed need{.prompt_tokens = 6000, .evicted_tokens = 5900, .held_max = 130};
  need.answer_tokens = 16;
  EXPECT_EQ(BlocksNeeded(need, format), 8u);
  need.answer_tokens = 5000;
  EXPECT_EQ(BlocksNeeded(need, format), 9u);
  need.choices = 3;
  EXPECT_EQ(BlocksNeeded(need, format), 27u);
}

// ---------------------------------------------------------------- milliseconds

PlacementInput LongPrompt(size_t prefill) {
  PlacementInput input = Input(prefill, 1);
  input.need.prompt_tokens = 1000;
  for (Candidate& worker : input.prefill) worker.prefill = {.base_ms = 5, .ms_per_token = 1};
  return input;
}

TEST(PlaceInTime, APrefixIsWorthWhatItSaves) {
  PlacementInput input = LongPrompt(3);
  input.prefill[1].cached.tokens = 800;
  input.prefill[1].queue_ms = 500;  // 500 + 205 against 1005
  const auto placement = Place(input);
  ASSERT_TRUE(placement.ok());
  EXPECT_EQ(placement->workers.prefill, 1u);
  EXPECT_EQ(placement->cached_tokens, 800u);
  EXPECT_NEAR(placement->terms.ttft_ms(), 705, 1e-6);
}

TEST(PlaceInTime, AHotPrefixIsComputedAgainWhenItsQueueIsTooLong) {
  PlacementInput input = LongPrompt(3);
  input.policy.hot_spot_ms = 1e9;
  input.prefill[1].cached.tokens = 800;
  input.prefill[1].queue_ms = 5500;
  EXPECT_NE(Place(input)->workers.prefill, 1u);
  input.prefill[0].queue_ms = input.prefill[2].queue_ms = 5000;
  EXPECT_EQ(Place(input)->workers.prefill, 1u) << "the others have to wait as well";
}

TEST(PlaceInTime, OneMoreCopyOfWhatMostWorkersHaveIsNoWaste) {
  PlacementInput input = LongPrompt(10);
  input.policy.hot_spot_ms = 1e9;
  for (Candidate& worker : input.prefill) worker.queue_ms = 2000;
  input.prefill[0].queue_ms = 0;
  input.prefill[1].cached.tokens = 800;
  EXPECT_EQ(Place(input)->workers.prefill, 1u) << "a second copy is dearer than the queue";
  for (size_t i = 2; i < 10; ++i) input.prefill[i].cached.tokens = 800;
  EXPECT_EQ(Place(input)->workers.prefill, 0u) << "a tenth one is not";
}

TEST(PlaceInTime, ADoubtfulPrefixIsWorthLess) {
  PlacementInput input = LongPrompt(2);
  input.prefill[0].cached = {.tokens = 900, .hit_probability = 0.2};
  input.prefill[1].cached = {.tokens = 500, .hit_probability = 1};
  EXPECT_EQ(Place(input)->workers.prefill, 1u);
}

TEST(PlaceInTime, ASlowTierCostsWhatItTakesToRestore) {
  PlacementInput input = LongPrompt(2);
  for (Candidate& worker : input.prefill) worker.nvme = {.latency_ms = 1, .ms_per_token = 0.9};
  input.prefill[0].cached = {.tokens = 900, .nvme_tokens = 900};
  input.prefill[1].cached = {.tokens = 600};
  EXPECT_EQ(Place(input)->workers.prefill, 1u);
}

TEST(PlaceInTime, FetchesFromWhoHasMoreWhereThatIsPossible) {
  PlacementInput input = LongPrompt(2);
  input.prefill[0].cached.tokens = 900;
  input.prefill[0].queue_ms = 400;
  input.sources = {{.format = input.prefill[0].format, .cached = {.tokens = 900}}};
  EXPECT_FALSE(Place(input)->fetch.has_value()) << "it cannot read from others";
  input.prefill[1].pull = MoveModel{.latency_ms = 1, .ms_per_token = 0.01};
  input.explain = 4;
  const auto placement = Place(input);
  EXPECT_EQ(placement->workers.prefill, 1u);
  ASSERT_TRUE(placement->fetch.has_value());
  EXPECT_EQ(placement->fetch->source, 0u);
  EXPECT_EQ(placement->fetch->tokens, 900u);
  EXPECT_NEAR(placement->fetch->computed_ms, 900, 1e-6);
  EXPECT_EQ(placement->cached_tokens, 900u);
  EXPECT_NEAR(placement->terms.fetch_ms, 10, 1e-6);
  EXPECT_NEAR(placement->terms.ttft_ms(), 10 + 105, 1e-6);
  EXPECT_EQ(placement->scored[0].fetch->tokens, 900u);
  EXPECT_FALSE(placement->scored[1].fetch.has_value());
}

// One prefill worker without a cache, and one source, which need not take prompts itself.
PlacementInput WithSource(const PrefixSource& source) {
  PlacementInput input = LongPrompt(1);
  input.prefill[0].pull = MoveModel{.latency_ms = 2, .ms_per_token = 0.1};
  input.sources = {source};
  input.sources[0].format = input.prefill[0].format;
  return input;
}

TEST(PlaceInTime, WhatIsThereAlreadyIsNotFetched) {
  PlacementInput input = WithSource({.cached = {.tokens = 800}});
  input.prefill[0].cached.tokens = 480;
  EXPECT_EQ(Place(input)->fetch->tokens, 320u);
  EXPECT_NEAR(Place(input)->terms.fetch_ms, 2 + 32, 1e-6);
  input.prefill[0].cached.tokens = 800;
  EXPECT_FALSE(Place(input)->fetch.has_value());
}

TEST(PlaceInTime, FetchesOnlyWhatIsDearerToCompute) {
  PlacementInput input = WithSource({.cached = {.tokens = 800}});
  EXPECT_TRUE(Place(input)->fetch.has_value());
  input.prefill[0].pull->ms_per_token = 1.01;  // a slow link
  EXPECT_FALSE(Place(input)->fetch.has_value());
  // The owner has to restore it first.
  input = WithSource({.cached = {.tokens = 800, .nvme_tokens = 800}, .nvme = {50, 0.8}});
  EXPECT_TRUE(Place(input)->fetch.has_value());
  EXPECT_NEAR(Place(input)->terms.fetch_ms, 2 + 80 + 50 + 640, 1e-6);
  input.sources[0].nvme.ms_per_token = 0.9;
  EXPECT_FALSE(Place(input)->fetch.has_value());
}

TEST(PlaceInTime, ADoubtfulSourceIsWorthLess) {
  PlacementInput input = WithSource({.cached = {.tokens = 800, .hit_probability = 0.5}});
  const auto placement = Place(input);
  ASSERT_TRUE(placement->fetch.has_value());
  EXPECT_NEAR(placement->terms.prefill_ms, 0.5 * 205 + 0.5 * 1005, 1e-6);
  input.sources[0].cached.hit_probability =
      0.05;  // the way there costs more than that is likely to save
  EXPECT_FALSE(Place(input)->fetch.has_value());
}

TEST(PlaceInTime, FetchesFromTheFastestOfThoseWhoHaveMost) {
  PlacementInput input =
      WithSource({.cached = {.tokens = 800, .dram_tokens = 800}, .dram = {1, 0.1}});
  input.sources.push_back(input.sources[0]);
  input.sources.back().cached.dram_tokens = 0;
  input.sources.push_back(input.sources[0]);
  input.sources.back().cached = {.tokens = 480};
  input.sources.push_back(input.sources[1]);
  input.sources.back().cached.tokens = 900;
  input.sources.back().format.model_fingerprint = 77;  // of another model
  EXPECT_EQ(Place(input)->fetch->source, 1u);
}

TEST(PlaceInTime, RefusesWhatCannotBeInTimeAndSaysWhenToTryAgain) {
  PlacementInput input = LongPrompt(2);
  input.prefill[0].queue_ms = 3000;
  input.prefill[1].queue_ms = 2000;
  input.need.ttft_limit_ms = 2500;
  const absl::Status status = Place(input).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(DetailOf(status).retry_after.has_value());
  EXPECT_NEAR(Milliseconds(*DetailOf(status).retry_after), 2000 + 1005 - 2500, 1);
  input.need.ttft_limit_ms = 3100;
  EXPECT_EQ(Place(input)->workers.prefill, 1u);
  // No waiting helps a prompt that is too long for its limit.
  input.need.ttft_limit_ms = 500;
  const ErrorDetail never = DetailOf(Place(input).status());
  EXPECT_EQ(never.reason, kReasonTooSlow);
  EXPECT_FALSE(never.retry_after.has_value());
}

TEST(PlaceInTime, AWorkerInTimeIsTakenBeforeACheaperOneThatIsLate) {
  PlacementInput input = LongPrompt(2);
  input.policy.hot_spot_ms = 1e9;
  input.prefill[0].cached.tokens = 900;
  input.prefill[0].queue_ms = 1500;
  EXPECT_EQ(Place(input)->workers.prefill, 0u);
  input.need.ttft_limit_ms = 1200;
  EXPECT_EQ(Place(input)->workers.prefill, 1u);
}

TEST(PlaceInTime, ExplainsTheChosenPairAndTheOthersByCost) {
  PlacementInput input = LongPrompt(3);
  input.explain = 16;
  input.prefill[2].cached.tokens = 500;
  input.prefill[0].queue_ms = 300;
  const auto placement = Place(input);
  ASSERT_EQ(placement->scored.size(), 3u);
  EXPECT_EQ(placement->scored[0].workers.prefill, 2u);
  EXPECT_EQ(placement->scored[0].verdict, ScoredPair::Verdict::kChosen);
  EXPECT_EQ(placement->scored[1].workers.prefill, 1u);
  EXPECT_EQ(placement->scored[2].workers.prefill, 0u);
  EXPECT_EQ(placement->scored[2].verdict, ScoredPair::Verdict::kHigherCost);
}

// A second turn: the first decode worker has all of the prompt but its end.
PlacementInput SecondTurn(uint32_t rest) {
  PlacementInput input = Input(2, 2);
  input.need.prompt_tokens = 1000;
  input.need.may_prefill_locally = true;
  for (Candidate& worker : input.prefill) worker.link = {.latency_ms = 2, .ms_per_token = 0.02};
  for (Candidate& worker : input.decode) {
    worker.local_prefill_max_tokens = 256;
    worker.prefill_chunk = 64;
    worker.step = {.base_ms = 1};
    worker.link = input.prefill[0].link;
  }
  for (Candidate* worker : {&input.prefill[0], &input.decode[0]}) {
    worker->cached.tokens = 1000 - rest;
  }
  return input;
}

TEST(PlaceToStay, ADecodeWorkerThatHasAlmostAllComputesTheRest) {
  PlacementInput input = SecondTurn(40);
  input.explain = 16;
  const auto placement = Place(input);
  EXPECT_EQ(placement->workers.prefill, WorkerPair::kNone);
  EXPECT_EQ(placement->workers.decode, 0u);
  EXPECT_EQ(placement->cached_tokens, 960u);
  EXPECT_FALSE(placement->fetch.has_value());
  EXPECT_EQ(placement->terms.transfer_ms, 0);
  EXPECT_EQ(placement->scored.size(), 5u) << "four pairs and itself";
}

TEST(PlaceToStay, NotWhatIsTooMuchOrNotWanted) {
  EXPECT_NE(Place(SecondTurn(257))->workers.prefill, WorkerPair::kNone);
  PlacementInput input = SecondTurn(40);
  input.need.may_prefill_locally = false;
  EXPECT_NE(Place(input)->workers.prefill, WorkerPair::kNone);
  input = SecondTurn(40);
  input.decode[0].cached.tokens = 0;
  EXPECT_NE(Place(input)->workers.prefill, WorkerPair::kNone);
}

PlacementInput WithoutPrefillWorkers() {
  PlacementInput input = SecondTurn(1000);  // nothing is cached
  input.prefill.clear();
  input.need.may_skip_prefill = true;
  for (Candidate& worker : input.decode) worker.serves_alone = true;
  return input;
}

TEST(PlaceAlone, ADecodeWorkerComputesAllWhileNoPrefillWorkerIsReady) {
  PlacementInput input = WithoutPrefillWorkers();
  input.decode[0].requests = 50;
  const auto placement = Place(input);
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_TRUE(placement->alone);
  EXPECT_EQ(placement->workers.prefill, WorkerPair::kNone);
  EXPECT_EQ(placement->workers.decode, 1u);
  EXPECT_EQ(placement->cached_tokens, 0u);
}

TEST(PlaceAlone, OnlyThenAndOnlyWhereItMay) {
  EXPECT_FALSE(Place(SecondTurn(40))->alone) << "a local prefill beside prefill workers";
  PlacementInput input = WithoutPrefillWorkers();
  input.need.may_skip_prefill = false;
  EXPECT_THAT(std::string(Place(input).status().message()),
              HasSubstr("no prefill worker is ready"));
  input = WithoutPrefillWorkers();
  for (Candidate& worker : input.decode) worker.serves_alone = false;
  EXPECT_EQ(Place(input).status().code(), absl::StatusCode::kUnavailable);
  input = WithoutPrefillWorkers();
  input.need.format = KvFormat{.model_fingerprint = 4711};
  EXPECT_EQ(Place(input).status().code(), absl::StatusCode::kUnavailable);
}

TEST(PlaceToStay, ManyWhoWouldWaitForItWeighMore) {
  PlacementInput input = SecondTurn(200);
  input.policy.fullness_ms = 0;
  EXPECT_EQ(Place(input)->workers.prefill, WorkerPair::kNone);
  input.decode[0].requests = 200;
  EXPECT_NE(Place(input)->workers.prefill, WorkerPair::kNone);
}

TEST(PlaceToStay, NotOnAWorkerThatHasFailed) {
  PlacementInput input = SecondTurn(40);
  input.decode[0].failures = 1;
  EXPECT_EQ(Place(input)->workers.decode, 1u);
  EXPECT_NE(Place(input)->workers.prefill, WorkerPair::kNone);
}

TEST(PlaceInTime, TakesTheBestOfALargeFleet) {
  PlacementInput input = LongPrompt(500);
  input.policy.tie_fraction = 0;
  input.decode.resize(300, input.decode[0]);
  for (size_t i = 0; i < 500; ++i)
    input.prefill[i].queue_ms = 10 + static_cast<double>(i * 7 % 500);
  for (size_t i = 0; i < 300; ++i)
    input.decode[i].requests = 1 + static_cast<uint32_t>(i * 7 % 300);
  const auto placement = Place(input);
  EXPECT_EQ(placement->workers.prefill, 0u);
  EXPECT_EQ(placement->workers.decode, 0u);
}

}  // namespace
}  // namespace penstock
