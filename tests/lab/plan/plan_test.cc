#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lab/plan/plan_report.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ModelConfig Llama8b() {
  return {.architecture = "LlamaForCausalLM",
          .layers = 32,
          .hidden = 4096,
          .intermediate = 14336,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .vocab = 128256,
          .max_position = 131072};
}

PlanRequest Request() {
  return {.model = Llama8b(),
          .hardware = FindHardware("H200").value(),
          .link_bytes_per_s = 50e9,
          .contexts = {4096, 131072},
          .traffic = {.requests_per_s = 20, .prompt_tokens = 2048, .answer_tokens = 256}};
}

TEST(ModelCost, CountsAKnownModel) {
  const ModelCost cost = CostOf(Llama8b(), 16);
  EXPECT_EQ(cost.parameters, 8030261248u);  // as its card says
  EXPECT_EQ(cost.layout.BlockStride(), size_t{2} << 20);
  EXPECT_EQ(KvFormsOf(cost).front().bytes_per_token, 131072);
  // 28.6 TFLOP of matrices and 1.1 of attention.
  EXPECT_NEAR(cost.PrefillFlops(2048, 0) / 1e12, 29.7, 0.2);
  EXPECT_NEAR(cost.PrefillFlops(2048, 2047) / 1e9, 16.1, 0.5);
}

TEST(ModelCost, CountsTheNormsOfAFamily) {
  ModelConfig config = Llama8b();
  const uint64_t llama = CostOf(config, 16).parameters;
  config.names = FindModelFamily("Glm4ForCausalLM")->names;  // two more norms in a layer
  EXPECT_EQ(CostOf(config, 16).parameters, llama + 32u * 2 * 4096);
  config.names = FindModelFamily("Olmo2ForCausalLM")->names;
  config.qk_norm = FindModelFamily("Olmo2ForCausalLM")->qk_norm;
  EXPECT_EQ(CostOf(config, 16).parameters, llama + 32u * (4096 + 1024));
}

// Qwen3-30B-A3B: 30.5 billion parameters, of which a token uses 3.3 billion.
TEST(ModelCost, CountsExpertsAndThoseThatATokenUses) {
  const ModelConfig config{.architecture = "Qwen3MoeForCausalLM",
                           .layers = 48,
                           .hidden = 2048,
                           .intermediate = 6144,
                           .heads = 32,
                           .kv_heads = 4,
                           .head_dim = 128,
                           .vocab = 151936,
                           .max_position = 40960,
                           .qk_norm = QkNorm::kHead,
                           .experts = {.count = 128, .per_token = 8, .intermediate = 768}};
  const ModelCost cost = CostOf(config, 16);
  EXPECT_NEAR(static_cast<double>(cost.parameters) / 1e9, 30.53, 0.01);
  EXPECT_NEAR(static_cast<double>(cost.step_bytes) / 2e9, 3.35 - 0.31, 0.01);
  EXPECT_NEAR(cost.flops_per_token / 2e9, 3.35 - 0.62, 0.01);
}

TEST(ModelCost, ASlidingWindowBoundsAttention) {
  ModelConfig config = Llama8b();
  const double all = CostOf(config, 16).PrefillFlops(32768, 0);
  config.sliding_window = {0, 1024};
  EXPECT_LT(CostOf(config, 16).PrefillFlops(32768, 0), all);
}

// An 8B model at 20 requests/s of 2,000 tokens makes 5.2 GB/s of KV, for links of 1.25 GB/s.
TEST(LinkNeed, SaysThatLinksAreTooSlowAndWhatCuresIt) {
  PlanRequest request = Request();
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
  const auto workers = static_cast<double>(std::min(plan.prefill_workers, plan.decode_workers));
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
  PlanRequest request = Request();
  EXPECT_THAT(PlanText(request, MakePlan(request).value()), Not(HasSubstr("price")));
  request.gpu_hour_price = 3;
  request.traffic.requests_per_s = 200;
  request.traffic.hit_ratio = 0.5;
  const CapacityPlan plan = MakePlan(request).value();
  const double workers = static_cast<double>(plan.prefill_workers + plan.decode_workers);
  EXPECT_NEAR(plan.million_tokens_price, 3 * workers / (200 * 2304 * 3600 / 1e6), 1e-9);
  request.traffic.hit_ratio = 0;
  EXPECT_EQ(plan.uncached_million_tokens_price, MakePlan(request)->million_tokens_price);
  EXPECT_GT(plan.uncached_million_tokens_price, plan.million_tokens_price);
}

TEST(CapacityPlan, DividesMemoryIntoBlocks) {
  PlanRequest request = Request();
  const CapacityPlan plan = MakePlan(request).value();
  const auto usable = static_cast<uint64_t>(static_cast<double>(uint64_t{139} << 30) * 0.9);
  EXPECT_EQ(plan.kv_memory_bytes, usable - 2 * 8030261248u);
  EXPECT_EQ(plan.blocks, static_cast<int64_t>(plan.kv_memory_bytes >> 21));
  EXPECT_EQ(plan.contexts[0].blocks, 256);
  EXPECT_EQ(plan.contexts[0].sequences, plan.blocks / 256);
  EXPECT_EQ(plan.contexts[1].sequences, plan.blocks / 8192);
  request.kv_memory_bytes = (uint64_t{100} << 21) + 5;
  request.traffic.prompt_tokens = 512;
  EXPECT_EQ(MakePlan(request).value().blocks, 100);
}

TEST(CapacityPlan, ReadsWeightsAndKvEveryStep) {
  const CapacityPlan plan = MakePlan(Request()).value();
  // 15 GB of weights, and 128 KiB a token of context, at 0.8 of 4.3 TB/s.
  EXPECT_NEAR(plan.decode.front().step_s * 1e3, (15.01 + 0.285) / 4.3 / 0.8, 0.05);
  EXPECT_NEAR(plan.first_token_s * 1e3, 29.7 / 790 / 0.8 * 1e3, 1);
  EXPECT_EQ(plan.batch, 64);
  EXPECT_EQ(plan.batch_limit, "max_batch");
}

TEST(CapacityPlan, MoreTrafficTakesMoreWorkersAndCachedPromptsFewer) {
  PlanRequest request = Request();
  const CapacityPlan once = MakePlan(request).value();
  request.traffic.requests_per_s *= 4;
  const CapacityPlan more = MakePlan(request).value();
  EXPECT_GT(more.prefill_workers, once.prefill_workers);
  EXPECT_NEAR(more.prefill_per_decode, once.prefill_per_decode, 1e-9);
  EXPECT_EQ(more.tiers[0].bytes, 4 * once.tiers[0].bytes);
  request.traffic.hit_ratio = 0.9;
  const CapacityPlan cached = MakePlan(request).value();
  EXPECT_LT(cached.prefill_workers, more.prefill_workers);
  EXPECT_EQ(cached.decode_workers, more.decode_workers);
}

TEST(CapacityPlan, KeepsTheTargetBetweenTokens) {
  PlanRequest request = Request();
  request.targets.token_s = 0.006;
  const CapacityPlan plan = MakePlan(request).value();
  EXPECT_LT(plan.batch, 64);
  EXPECT_LE(plan.token_s, 0.006);
  EXPECT_THAT(plan.batch_limit, HasSubstr("target"));
  request.targets.token_s = 0.001;
  const absl::Status status = MakePlan(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("the target is 1.0 ms"));
}

TEST(CapacityPlan, SaysWhatDoesNotFit) {
  PlanRequest request = Request();
  request.hardware = FindHardware("l4").value();
  request.hardware.memory_bytes = uint64_t{12} << 30;
  EXPECT_THAT(Message(MakePlan(request).status()), HasSubstr("weights take"));
  request = Request();
  request.kv_memory_bytes = uint64_t{64} << 21;
  EXPECT_THAT(Message(MakePlan(request).status()), HasSubstr("144 blocks"));
  request.kv_memory_bytes = 4096;
  EXPECT_THAT(Message(MakePlan(request).status()), HasSubstr("one block"));
}

TEST(CapacityPlan, ATransferIsHiddenButForItsLastGroup) {
  PlanRequest request = Request();
  const CapacityPlan plan = MakePlan(request).value();
  EXPECT_NEAR(plan.transfer_s, 2048 * 131072 / 50e9, 1e-9);
  EXPECT_NEAR(plan.exposed_s, plan.transfer_s / 32, 1e-9);
  request.link_bytes_per_s = 1e9;  // slower than compute
  const CapacityPlan slow = MakePlan(request).value();
  EXPECT_GT(slow.exposed_s, slow.transfer_s - slow.first_token_s);
}

TEST(PlanReport, SaysTheSameInEveryForm) {
  const PlanRequest request = Request();
  const CapacityPlan plan = MakePlan(request).value();
  const auto json = nlohmann::json::parse(PlanJson(request, plan));
  EXPECT_EQ(json["blocks"], plan.blocks);
  EXPECT_EQ(json["prefill_workers"], plan.prefill_workers);
  EXPECT_THAT(PlanText(request, plan), HasSubstr(std::to_string(plan.blocks) + " blocks"));
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
