// Plans against the simulator: the real router and workers, with the planned model's times.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>

#include "lab/plan/trace_traffic.h"
#include "lab/simulate/sim_options.h"
#include "tests/lab/plan/plan_models.h"
#include "tests/lab/trace_file.h"

namespace penstock {
namespace {

constexpr uint32_t kBlock = 512;  // of traces and of the simulator

// The simulated cluster that the plan describes. The steps of its models are linear, as long as
// arithmetic limits prefill and memory limits decode.
SimOptions ClusterOf(const TracePlan& planned) {
  const CapacityPlan& plan = planned.plan;
  const WorkerModel& prefill = plan.prefill.worker;
  const WorkerModel& decode = plan.decode.worker;
  const auto prefill_ms = [&](double tokens) { return prefill.PrefillSeconds(tokens, 0) * 1e3; };
  const auto step_ms = [&](double batch, double context) {
    return decode.StepSeconds(batch, context) * 1e3;
  };
  // Through three points of a parabola: a chunk, 8 and 16 of them.
  const double one = prefill_ms(kBlock), eight = prefill_ms(8 * kBlock),
               sixteen = prefill_ms(16 * kBlock);
  const double c8 = (eight - one) / 7, c16 = (sixteen - one) / 15;
  const double square = (c16 - c8) / 8 / (kBlock * kBlock);
  const double token = (c8 - 9 * square * kBlock * kBlock) / kBlock;
  SimOptions options{.workers = static_cast<uint32_t>(plan.prefill.workers),
                     .decode_workers = static_cast<uint32_t>(plan.decode.workers),
                     .speed = 1,
                     .chunk_tokens = kBlock};
  options.cache_blocks = static_cast<uint64_t>(plan.prefill.workers * plan.prefill.blocks *
                                               plan.cost.layout.block_tokens / kBlock);
  options.prefill = {.base_ms = 0, .ms_per_token = token, .ms_per_square = square};
  options.kv_ms_per_token = plan.wire.bytes_per_token / planned.request.link_bytes_per_s * 1e3;
  options.step = {.base_ms = step_ms(1, 0),
                  .ms_per_sequence = step_ms(2, 0) - step_ms(1, 0),
                  .ms_per_context_token = (step_ms(1, 4096) - step_ms(1, 0)) / 4096};
  options.decode_context_max =
      static_cast<double>(plan.decode.blocks * plan.cost.layout.block_tokens);
  options.tpot_limit_ms = planned.request.targets.token_s * 1e3;
  return options;
}

// Chats: a request adds one to four blocks and an answer to what its user has sent before, and
// comes about ten seconds after the user's last one. `requests_per_s` of all users together.
SimTrace Chats(uint32_t requests, double requests_per_s) {
  std::mt19937_64 random(5);
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  const auto users = static_cast<size_t>(10 * requests_per_s);
  std::vector<std::vector<uint32_t>> chats(users);
  SimTrace trace;
  for (double at = 0; trace.requests.size() < requests;
       at -= std::log(1 - uniform()) / requests_per_s) {
    std::vector<uint32_t>& chat = chats[random() % users];
    if (chat.size() > 8) chat.clear();
    for (uint64_t more = 1 + random() % 4; more > 0; --more) chat.push_back(trace.unique_blocks++);
    trace.requests.push_back({.arrival_s = at,
                              .prompt_tokens = static_cast<uint32_t>(chat.size()) * kBlock,
                              .answer_tokens = 100 + static_cast<uint32_t>(random() % 200),
                              .blocks = chat});
  }
  return trace;
}

// A fleet of GPUs that is planned for chats, and its simulations.
class PlanAgreement : public ::testing::Test {
 protected:
  static constexpr double kUtilisation = 0.75;

  void Plan(const ModelConfig& model, KvDtype kv_format, double requests_per_s, double token_s) {
    file_ = std::make_unique<TraceFile>(Chats(2000, requests_per_s));
    PlanRequest request = RequestFor(model, "h200");
    request.kv_format = {.dtype = kv_format};
    request.batch_max = 512;  // the simulator's
    request.targets = {.token_s = token_s, .utilisation = kUtilisation};
    auto trace = TraceTraffic::Of(LoadSource(file_->source()).value(), {});
    ASSERT_TRUE(trace.ok()) << trace.status();
    auto planned = PlanForTrace(request, *trace);
    ASSERT_TRUE(planned.ok()) << planned.status();
    planned_ = *std::move(planned);
    ASSERT_GT(planned_.plan.prefill.workers, 1);
    ASSERT_GT(planned_.plan.decode.workers, 1);
  }

  SimResult RunWithFewer(uint32_t prefill, uint32_t decode) const {
    SimOptions options = ClusterOf(planned_);
    options.cache_blocks -= options.cache_blocks / options.workers * prefill;
    options.workers -= prefill;
    options.decode_workers -= decode;
    auto result = Simulate({file_->source(), options});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : SimResult();
  }

  // The simulated fleet is used as planned and keeps the targets.
  void ExpectKept() const {
    const SimResult result = RunWithFewer(0, 0);
    const CapacityPlan& plan = planned_.plan;
    const double token_ms = planned_.request.targets.token_s * 1e3;
    EXPECT_EQ(result.failed, 0);
    EXPECT_NEAR(result.token_hit, planned_.request.traffic.hit_ratio, 0.02);
    EXPECT_NEAR(result.prefill_use, plan.prefill_use, 0.05);
    EXPECT_LE(result.prefill_use, kUtilisation);
    EXPECT_LE(result.decode_sequences, kUtilisation * plan.batch.batch);
    EXPECT_LE(result.tpot_p99_ms, token_ms);
    const double step_s =
        plan.decode.worker.StepSeconds(result.decode_sequences, planned_.request.traffic.Context());
    EXPECT_NEAR(result.tpot_p50_ms / (step_s * 1e3), 1, 0.1);
  }
  void ExpectMissedByOneLess() const {
    EXPECT_GT(RunWithFewer(1, 0).prefill_use, kUtilisation);
    EXPECT_GT(RunWithFewer(0, 1).tpot_p99_ms, planned_.request.targets.token_s * 1e3);
  }

  std::unique_ptr<TraceFile> file_;
  TracePlan planned_;
};

TEST_F(PlanAgreement, AnEightBillionModel) {
  Plan(Llama8b(), KvDtype::kBf16, 60, 0.012);
  ExpectKept();
  ExpectMissedByOneLess();
}

TEST_F(PlanAgreement, PagesOfEightBits) {
  Plan(Llama8b(), KvDtype::kI8, 60, 0.012);
  ExpectKept();
  ExpectMissedByOneLess();
}

TEST_F(PlanAgreement, TwoGpusAWorker) {
  Plan(Llama70b(), KvDtype::kBf16, 12, 0.040);
  EXPECT_EQ(planned_.plan.decode.worker.degree, 2);
  ExpectKept();
  ExpectMissedByOneLess();
}

}  // namespace
}  // namespace penstock
