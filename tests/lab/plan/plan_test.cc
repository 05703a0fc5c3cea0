#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lab/plan/plan_report.h"
#include "tests/lab/plan/plan_models.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// An 8B model at 20 requests/s of 2,000 tokens makes 5.2 GB/s of KV, for links of 1.25 GB/s.
TEST(LinkNeed, SaysThatLinksAreTooSlowAndWhatCuresIt) {
  PlanRequest request = Llama8bOnH200();
  request.link_bytes_per_s = 1.25e9;
  request.traffic.prompt_tokens = 2000;
  const CapacityPlan plan = MakePlan(request).value();
  EXPECT_NEAR(plan.link.bytes_per_s / 1e9, 5.24, 0.01);
  EXPECT_TRUE(plan.link.overloaded);
  EXPECT_EQ(plan.link.links, 6);  // at 70 % of each
  const std::string text = PlanText(request, plan);
  EXPECT_THAT(text, HasSubstr("WARNING: the links are too slow"));
  EXPECT_THAT(text, HasSubstr("6 workers of each role"));
  // Each cure that it names is one.
  const auto workers = static_cast<double>(std::min(plan.prefill.workers, plan.decode.workers));
  for (const KvForm& form : plan.forms) {
    const double use = 40'000 * form.bytes_per_token / workers / 1.25e9;
    EXPECT_EQ(use <= 0.7 && !form.resident, std::ranges::count(plan.link.codecs, form.name) == 1)
        << form.name;
  }
  EXPECT_FALSE(plan.link.codecs.empty());
  request.link_bytes_per_s = plan.link.bytes_per_link * 1.001;
  EXPECT_FALSE(MakePlan(request)->link.overloaded);
  EXPECT_THAT(PlanText(request, MakePlan(request).value()), Not(HasSubstr("WARNING")));
}

TEST(CapacityPlan, PricesAMillionTokensAndTheCache) {
  PlanRequest request = Llama8bOnH200();
  EXPECT_THAT(PlanText(request, MakePlan(request).value()), Not(HasSubstr("price")));
  request.gpu_hour_price = 3;
  request.traffic.requests_per_s = 200;
  request.traffic.hit_ratio = 0.5;
  const CapacityPlan plan = MakePlan(request).value();
  const double workers = static_cast<double>(plan.prefill.workers + plan.decode.workers);
  EXPECT_NEAR(plan.million_tokens_price, 3 * workers / (200 * 2304 * 3600 / 1e6), 1e-9);
  request.traffic.hit_ratio = 0;
  EXPECT_EQ(plan.without_cache.million_tokens_price, MakePlan(request)->million_tokens_price);
  EXPECT_GT(plan.without_cache.million_tokens_price, plan.million_tokens_price);
}

// As Gemma 3: every sixth layer sees all tokens.
TEST(CapacityPlan, LayersWithAWindowHaveMemoryForTheirWindow) {
  ModelConfig model = Llama8b();
  for (int32_t layer = 0; layer < model.layers; ++layer) {
    model.sliding_window.push_back(layer % 6 == 5 ? 0 : 1024);
  }
  PlanRequest request = RequestFor(model, "H200");
  request.degrees = {2, 2};  // each GPU has its heads of rows, too
  const CapacityPlan several = MakePlan(request).value();
  const KvLayout own = several.decode.worker.DeviceLayout();
  EXPECT_LE(static_cast<uint64_t>(several.decode.blocks) * own.FullStride() +
                static_cast<uint64_t>(several.decode.rows) * own.RowStride(),
            several.decode.kv_memory_bytes);
  EXPECT_THAT(PlanText(request, several), HasSubstr("may have rows"));
  request.degrees = {1, 1};
  const CapacityPlan plan = MakePlan(request).value();
  EXPECT_GT(several.decode.rows, 2 * plan.decode.rows);
  const KvLayout layout = plan.cost.layout;
  const auto undivided = static_cast<int64_t>(plan.decode.kv_memory_bytes / layout.BlockStride());
  EXPECT_EQ(layout.group.size(), 27);
  EXPECT_LE(static_cast<uint64_t>(plan.decode.blocks) * layout.FullStride() +
                static_cast<uint64_t>(plan.decode.rows) * layout.RowStride(),
            plan.decode.kv_memory_bytes);
  EXPECT_GT(plan.contexts[1].sequences, 3 * (undivided / layout.BlocksFor(131072)));
  EXPECT_EQ(plan.contexts[1].rows, layout.RowsAtOnce(131072, 1));
  EXPECT_LE(plan.contexts[0].sequences * plan.contexts[0].rows, plan.decode.rows);
  EXPECT_THAT(PlanText(request, plan),
              HasSubstr("memory for the 27 layers with a window of 1024 tokens"));
  EXPECT_EQ(nlohmann::json::parse(PlanJson(request, plan))["rows"], plan.decode.rows);
  // 27 layers send 1,024 of 2,048 tokens.
  const double all = 20.0 * 2048 * layout.PayloadBytes() / 16;
  EXPECT_NEAR(plan.link.bytes_per_s, all * (5 + 27 * 0.5) / 32, all / 1000);
}

TEST(CapacityPlan, BlocksOfASpanHaveMemoryInBf16) {
  PlanRequest request = RequestFor(Llama8b(), "H200");
  request.kv_format = {.dtype = KvDtype::kK3v3, .span = 128};
  const CapacityPlan plan = MakePlan(request).value();
  const KvLayout layout = plan.cost.layout;
  EXPECT_LE(static_cast<uint64_t>(plan.decode.blocks) * layout.FullStride() +
                static_cast<uint64_t>(plan.decode.rows) * layout.RowStride(),
            plan.decode.kv_memory_bytes);
  EXPECT_LT(plan.decode.rows, plan.decode.blocks);
  EXPECT_THAT(PlanText(request, plan), HasSubstr("memory for a span of 128 tokens in bf16"));
}

TEST(CapacityPlan, DividesMemoryIntoBlocks) {
  PlanRequest request = Llama8bOnH200();
  const CapacityPlan plan = MakePlan(request).value();
  const auto usable = static_cast<uint64_t>(static_cast<double>(uint64_t{139} << 30) * 0.9);
  const uint64_t reserve = uint64_t{256} << 20;
  EXPECT_EQ(plan.decode.kv_memory_bytes, usable - reserve - plan.cost.weight_bytes());
  EXPECT_NEAR(static_cast<double>(plan.cost.weight_bytes()), 2 * 8030261248.0, 1e6);
  EXPECT_EQ(plan.decode.blocks, static_cast<int64_t>(plan.decode.kv_memory_bytes >> 21));
  EXPECT_EQ(plan.contexts[0].blocks, 256);
  EXPECT_EQ(plan.contexts[0].sequences, plan.decode.blocks / 256);
  EXPECT_EQ(plan.contexts[1].sequences, plan.decode.blocks / 8192);
  request.kv_memory_bytes = (uint64_t{100} << 21) + 5;
  request.traffic.prompt_tokens = 512;
  EXPECT_EQ(MakePlan(request).value().decode.blocks, 100);
}

TEST(CapacityPlan, ReadsWeightsAndKvEveryStep) {
  const CapacityPlan plan = MakePlan(Llama8bOnH200()).value();
  // 15 GB of weights, and 128 KiB a token of context, at 0.8 of 4.3 TB/s.
  EXPECT_NEAR(plan.steps.front().step_s * 1e3, (15.01 + 0.285) / 4.3 / 0.8, 0.05);
  EXPECT_NEAR(plan.first_token_s * 1e3, 29.7 / 790 / 0.8 * 1e3, 1);
  EXPECT_EQ(plan.batch.batch, 64);
  EXPECT_EQ(plan.batch.limit, "max_batch");
}

TEST(CapacityPlan, MoreTrafficTakesMoreWorkersAndCachedPromptsFewer) {
  PlanRequest request = Llama8bOnH200();
  const CapacityPlan once = MakePlan(request).value();
  request.traffic.requests_per_s *= 4;
  const CapacityPlan more = MakePlan(request).value();
  EXPECT_GT(more.prefill.workers, once.prefill.workers);
  EXPECT_NEAR(more.prefill_per_decode, once.prefill_per_decode, 1e-9);
  EXPECT_EQ(more.tiers[0].bytes, 4 * once.tiers[0].bytes);
  request.traffic.hit_ratio = 0.9;
  const CapacityPlan cached = MakePlan(request).value();
  EXPECT_LT(cached.prefill.workers, more.prefill.workers);
  EXPECT_EQ(cached.decode.workers, more.decode.workers);
}

TEST(CapacityPlan, KeepsTheTargetBetweenTokens) {
  PlanRequest request = Llama8bOnH200();
  request.targets.token_s = 0.006;
  const CapacityPlan plan = MakePlan(request).value();
  EXPECT_LT(plan.batch.batch, 64);
  EXPECT_LE(plan.batch.token_s, 0.006);
  EXPECT_THAT(plan.batch.limit, HasSubstr("target"));
  request.targets.token_s = 0.001;
  const absl::Status status = MakePlan(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("the target is 1.0 ms"));
}

TEST(CapacityPlan, SaysWhatDoesNotFit) {
  PlanRequest request = Llama8bOnH200();
  request.hardware = FindHardware("l4").value();
  request.hardware.memory_bytes = uint64_t{12} << 30;
  request.degrees = {.prefill = 1, .decode = 1};
  EXPECT_THAT(Message(MakePlan(request).status()), HasSubstr("the weights (bf16) take"));
  request = Llama8bOnH200();
  request.kv_memory_bytes = uint64_t{130} << 21;
  EXPECT_THAT(Message(MakePlan(request).status()),
              HasSubstr("a sequence of 2304 tokens takes 144 blocks"));
  request.kv_memory_bytes = uint64_t{64} << 21;
  EXPECT_THAT(Message(MakePlan(request).status()),
              HasSubstr("a prompt of 2048 tokens takes 128 blocks"));
  request.kv_memory_bytes = 4096;
  EXPECT_THAT(Message(MakePlan(request).status()), HasSubstr("one block"));
}

// The largest numbers that the command takes.
TEST(CapacityPlan, CountsHaveALimit) {
  PlanRequest request = Llama8bOnH200();
  request.traffic.requests_per_s = 1e15;
  request.link_bytes_per_s = 1;
  const CapacityPlan plan = MakePlan(request).value();
  EXPECT_EQ(plan.link.links, 1'000'000'000'000'000);
  EXPECT_EQ(plan.tiers[0].bytes, 1'000'000'000'000'000'000u);
}

TEST(CapacityPlan, ATransferIsHiddenButForItsLastGroup) {
  PlanRequest request = Llama8bOnH200();
  const CapacityPlan plan = MakePlan(request).value();
  EXPECT_NEAR(plan.transfer_s, 2048 * 131072 / 50e9, 1e-9);
  EXPECT_NEAR(plan.exposed_s, plan.transfer_s / 32, 1e-9);
  request.link_bytes_per_s = 1e9;  // slower than compute
  const CapacityPlan slow = MakePlan(request).value();
  EXPECT_GT(slow.exposed_s, slow.transfer_s - slow.first_token_s);
}

TEST(PlanReport, SaysTheSameInEveryForm) {
  const PlanRequest request = Llama8bOnH200();
  const CapacityPlan plan = MakePlan(request).value();
  const auto json = nlohmann::json::parse(PlanJson(request, plan));
  EXPECT_EQ(json["blocks"], plan.decode.blocks);
  EXPECT_EQ(json["prefill_workers"], plan.prefill.workers);
  EXPECT_THAT(PlanText(request, plan), HasSubstr(std::to_string(plan.decode.blocks) + " blocks"));
  const std::string svg = PlanSvg(request, plan);
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("ms between tokens"));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST(Hardware, AnUnknownNameListsWhatThereIs) {
  const absl::Status status = FindHardware("abacus").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(status), HasSubstr("h100-sxm"));
}

}  // namespace
}  // namespace penstock
