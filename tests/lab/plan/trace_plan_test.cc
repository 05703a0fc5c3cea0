#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lab/plan/plan_report.h"
#include "lab/plan/trace_traffic.h"
#include "tests/lab/plan/plan_models.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

// Two users who ask by turns, each with a prompt that grows by a block a turn: 1, 2, 3 ... blocks.
SimTrace TwoUsers(uint32_t turns) {
  SimTrace trace;
  std::vector<uint32_t> blocks[2];
  for (uint32_t turn = 0; turn < turns; ++turn) {
    for (auto& user : blocks) {
      user.push_back(trace.unique_blocks++);
      trace.requests.push_back({.arrival_s = 0.5 * static_cast<double>(trace.requests.size()),
                                .prompt_tokens = static_cast<uint32_t>(user.size()) * 512,
                                .answer_tokens = 100 * (turn + 1),
                                .blocks = user});
    }
  }
  return trace;
}

TEST(TraceTraffic, HasTheMeansOfItsRequests) {
  const TraceTraffic trace = TraceTraffic::Of(TwoUsers(3), {}).value();
  const Traffic traffic = trace.At(0).value();
  EXPECT_EQ(traffic.requests_per_s, 6 / 2.5);
  EXPECT_EQ(traffic.prompt_tokens, 1024);
  EXPECT_EQ(traffic.answer_tokens, 200);
  EXPECT_EQ(traffic.longest_tokens, 3 * 512 + 300);
  EXPECT_EQ(traffic.longest_prompt_tokens, 3 * 512);
  EXPECT_EQ(traffic.hit_ratio, 0);
  ASSERT_EQ(traffic.prompts.size(), 6u);
  EXPECT_EQ(traffic.prompts[4].tokens, 3 * 512);
  // Weighted by the steps of each: long answers come behind long prompts.
  EXPECT_EQ(traffic.Context(), (100 * 562 + 200 * 1124 + 300 * 1686) / 600.0);
  EXPECT_EQ(traffic.Held(), (100 * 612 + 200 * 1224 + 300 * 1836) / 600.0);
  EXPECT_EQ(TraceTraffic::Of(TwoUsers(3), 7)->At(0)->requests_per_s, 7);
}

// A prompt finds what the same user's last one left, if there was room for both users' prompts.
TEST(TraceTraffic, HitsWhatTheCacheHolds) {
  const TraceTraffic trace = TraceTraffic::Of(TwoUsers(4), {}).value();
  const Traffic all = trace.Unlimited().value();
  // 0, 1, 2 and 3 of 1, 2, 3 and 4 blocks.
  EXPECT_EQ(all.hit_ratio, 6.0 / 10);
  EXPECT_EQ(all.prompts[7].cached, 3 * 512);
  EXPECT_EQ(trace.At(8 * 512)->hit_ratio, all.hit_ratio);
  const double half = trace.At(3 * 512)->hit_ratio;
  EXPECT_GT(half, 0);
  EXPECT_LT(half, all.hit_ratio);
  EXPECT_EQ(trace.At(511)->hit_ratio, 0);
}

TEST(TraceTraffic, OneTokenIsAlwaysComputed) {
  SimTrace same;
  same.unique_blocks = 1;
  for (int i = 0; i < 3; ++i) {
    same.requests.push_back({.arrival_s = 1.0 * i, .prompt_tokens = 512, .blocks = {0}});
  }
  EXPECT_EQ(TraceTraffic::Of(same, {})->Unlimited()->prompts[2].cached, 511);
}

TEST(TraceTraffic, RefusesBlocksOfAnotherSize) {
  SimTrace trace = TwoUsers(3);
  trace.block_tokens = 16;
  EXPECT_THAT(Message(TraceTraffic::Of(trace, {}).status()), HasSubstr("--trace-block-tokens"));
  SimTrace burst = TwoUsers(1);
  for (SimRequest& request : burst.requests) request.arrival_s = 0;
  EXPECT_THAT(Message(TraceTraffic::Of(burst, {}).status()), HasSubstr("set --rate"));
}

class TracePlanTest : public ::testing::Test {
 protected:
  // A rate at which caches of some workers hold what those of one do not.
  TracePlan Plan(uint64_t kv_memory = uint64_t{24} << 30, uint64_t dram_memory = 0) {
    PlanRequest request = Llama8bOnH200();
    request.kv_memory_bytes = kv_memory;
    request.dram_memory_bytes = dram_memory;
    request.gpu_hour_price = 3;
    request.contexts = {4096};
    auto plan = PlanForTrace(std::move(request), trace_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }
  const TraceTraffic trace_ =
      TraceTraffic::Of(MakeTrace({.requests = 1500}), /*requests_per_s=*/60).value();
};

TEST_F(TracePlanTest, HasTheFewestWorkersWhoseCachesAreEnough) {
  const TracePlan planned = Plan();
  const CapacityPlan& plan = planned.plan;
  const auto needed_with = [&](int64_t workers) {
    PlanRequest request = planned.request;
    request.prefill_workers_min = 1;
    request.traffic = trace_.At(workers * plan.prefill_cache_tokens).value();
    return MakePlan(request)->prefill.workers;
  };
  EXPECT_GT(plan.prefill.workers, 2);
  EXPECT_LE(needed_with(plan.prefill.workers), plan.prefill.workers);
  EXPECT_GT(needed_with(plan.prefill.workers - 1), plan.prefill.workers - 1);
  EXPECT_EQ(planned.request.traffic.hit_ratio,
            trace_.At(plan.prefill.workers * plan.prefill_cache_tokens)->hit_ratio);
  EXPECT_LT(planned.request.traffic.hit_ratio, plan.hit_ratio_max);
}

TEST_F(TracePlanTest, SaysWhatTheCacheSaves) {
  const TracePlan planned = Plan();
  PlanRequest request = planned.request;
  request.prefill_workers_min = 1;
  request.traffic = trace_.At(0).value();
  const CapacityPlan without = MakePlan(request).value();
  EXPECT_EQ(planned.plan.without_cache.prefill_workers, without.prefill.workers);
  EXPECT_NEAR(planned.plan.without_cache.million_tokens_price, without.million_tokens_price, 1e-9);
  const auto json = nlohmann::json::parse(PlanJson(planned.request, planned.plan));
  EXPECT_EQ(json["cache_saves_devices"], without.prefill.workers - planned.plan.prefill.workers);
  EXPECT_GT(json["cache_saves_devices"], 0);
  EXPECT_EQ(json["traffic"]["trace_requests"], 1500);
  EXPECT_THAT(PlanText(planned.request, planned.plan), HasSubstr("with unlimited caches"));
}

TEST_F(TracePlanTest, LargerCachesNeedFewerWorkers) {
  const TracePlan small = Plan(uint64_t{18} << 30), large = Plan(uint64_t{90} << 30);
  EXPECT_GT(large.request.traffic.hit_ratio, small.request.traffic.hit_ratio);
  EXPECT_LT(large.plan.prefill.workers, small.plan.prefill.workers);
  // Host memory is as good as memory of the GPU.
  const TracePlan tier = Plan(uint64_t{18} << 30, uint64_t{72} << 30);
  EXPECT_EQ(tier.plan.prefill.workers, large.plan.prefill.workers);
  EXPECT_EQ(tier.request.traffic.hit_ratio, large.request.traffic.hit_ratio);
}

}  // namespace
}  // namespace penstock
