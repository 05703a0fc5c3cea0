#include "lab/plan/role_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lab/plan/plan_report.h"
#include "tests/lab/plan/plan_models.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

WorkerModel Worker(const ModelConfig& model, const char* hardware, int32_t degree) {
  return {.cost = CostOf(model, WeightsOf(model),
                         KvLayoutOf(model, 16, {.dtype = KvDtype::kBf16}).value()),
          .hardware = FindHardware(hardware).value(),
          .degree = degree};
}

// The embedding and the output matrix are on the first GPU in whole, all else in parts.
TEST(WorkerModel, DividesWeightsAndPages) {
  const WorkerModel one = Worker(Llama70b(), "h200", 1), four = Worker(Llama70b(), "h200", 4);
  const double tables = 2.0 * 2 * 128256 * 8192;
  const double vectors = 4.0 * (2 * 80 + 1) * 8192;
  const auto whole = static_cast<double>(one.DeviceWeightBytes());
  EXPECT_NEAR(whole, 2 * 70.55e9, 1e8);
  EXPECT_NEAR(static_cast<double>(four.DeviceWeightBytes()),
              (whole - tables - vectors) / 4 + tables + vectors, 8);
  EXPECT_EQ(four.DeviceLayout().BlockStride(), one.DeviceLayout().BlockStride() / 4);
}

// Every GPU has whole pages of latents and the matrices that project to them, and reads all of
// both.
TEST(WorkerModel, DividesWhatReadsLatents) {
  const WorkerModel one = Worker(V2Lite(), "h200", 1), four = Worker(V2Lite(), "h200", 4);
  EXPECT_EQ(four.DeviceLayout(), one.DeviceLayout());
  const double whole =
      2.0 * 2 * 102400 * 2048 + 2.0 * 27 * 576 * 2048 + one.cost.weights.vectors.bytes;
  EXPECT_NEAR(static_cast<double>(four.DeviceWeightBytes()),
              (static_cast<double>(one.DeviceWeightBytes()) - whole) / 4 + whole, 8);
  const auto seconds_of_tokens = [](const WorkerModel& worker) {
    return worker.StepSeconds(64, 8192) - worker.StepSeconds(64, 4096);
  };
  EXPECT_NEAR(seconds_of_tokens(four), seconds_of_tokens(one), 1e-9);
  // A prompt's projections to latents are computed by all, and the attention by each for its heads.
  WorkerModel prefill = four;
  prefill.chunk_tokens = 8192;  // computing takes longer than reading
  const double projected = 2.0 * 8192 * 27 * 576 * 2048;
  const double rest = one.cost.PrefillFlops(8192, 0) - one.cost.head_flops - projected;
  const double flops = one.hardware.flops_per_s * one.hardware.prefill_efficiency;
  EXPECT_NEAR(prefill.PrefillSeconds(8192, 0) - prefill.PrefillExchangeSeconds(8192, 0),
              (one.cost.head_flops + projected + rest / 4) / flops, 1e-9);
}

// docs/adr/0025: twice a layer, each GPU receives the f32 parts of all others.
TEST(WorkerModel, AnExchangeTakesTheInterconnect) {
  const WorkerModel four = Worker(Llama70b(), "h200", 4);
  const double bytes = 3.0 * 64 * 8192 * 4;
  EXPECT_NEAR(four.ExchangeSeconds(64), 160 * (15e-6 + bytes / (450e9 * 0.8)), 1e-9);
  EXPECT_EQ(Worker(Llama70b(), "h200", 1).ExchangeSeconds(64), 0);
  WorkerModel slow = four;
  slow.hardware.interconnect_bytes_per_s = 32e9;
  EXPECT_GT(slow.StepSeconds(64, 2048), four.StepSeconds(64, 2048));
  EXPECT_GT(slow.PrefillSeconds(2048, 0), four.PrefillSeconds(2048, 0));
}

// Each device receives the parts of all others, so that from some degree on the exchange of a
// prompt takes longer than computing it.
TEST(WorkerModel, MoreDevicesAreFasterUntilTheExchangeIsNot) {
  double step = 1e9;
  for (const int32_t degree : {1, 2, 4, 8}) {
    const double faster = Worker(Llama70b(), "h200", degree).StepSeconds(1, 2048);
    EXPECT_LT(faster, step) << degree;
    step = faster;
  }
  const auto prefill = [](int32_t degree) {
    return Worker(Llama70b(), "h200", degree).PrefillSeconds(2048, 0);
  };
  EXPECT_LT(prefill(2), prefill(1));
  EXPECT_LT(prefill(4), prefill(2));
  EXPECT_GT(prefill(8), prefill(4));
}

// Every chunk of a prompt reads the weights: at 16 tokens a chunk that takes longer than computing.
TEST(WorkerModel, SmallChunksReadTheWeightsOftener) {
  WorkerModel worker = Worker(Llama8b(), "h200", 1);
  const double whole = worker.PrefillSeconds(4096, 0);
  worker.chunk_tokens = 16;
  EXPECT_NEAR(worker.PrefillSeconds(4096, 0), 256 * worker.StepSeconds(1, 0), 1e-3);
  EXPECT_GT(worker.PrefillSeconds(4096, 0), 5 * whole);
}

TEST(TensorParallel, TheFewestGpusThatFitAreChosen) {
  const CapacityPlan small = MakePlan(Llama8bOnH200()).value();
  EXPECT_EQ(small.prefill.worker.degree, 1);
  EXPECT_EQ(small.devices(), small.prefill.workers + small.decode.workers);
  PlanRequest request = RequestFor(Llama70b(), "h200");
  const CapacityPlan plan = MakePlan(request).value();
  EXPECT_EQ(plan.prefill.worker.degree, 2);
  EXPECT_EQ(plan.decode.worker.degree, 2);
  EXPECT_EQ(plan.devices(), 2 * (plan.prefill.workers + plan.decode.workers));
  const auto usable = static_cast<uint64_t>(static_cast<double>(uint64_t{139} << 30) * 0.9);
  EXPECT_EQ(plan.decode.kv_memory_bytes,
            usable - plan.decode.worker.DeviceWeightBytes() - (uint64_t{256} << 20));
  // A page of 16 tokens has 2.5 MiB on each of two GPUs.
  EXPECT_EQ(plan.decode.blocks, static_cast<int64_t>(plan.decode.kv_memory_bytes / (5 << 19)));
  request.gpu_hour_price = 2;
  const double tokens_per_hour = 3600 * 20 * 2304.0;
  EXPECT_NEAR(MakePlan(request)->million_tokens_price,
              2 * static_cast<double>(plan.devices()) / tokens_per_hour * 1e6, 1e-9);
}

TEST(RoleFit, AnglesOfCentredKeysLeaveLessForBlocks) {
  for (const bool gpu : {false, true}) {
    PlanRequest request = Llama8bOnH200();
    request.contexts = {4096};
    request.hardware.gpu = gpu;
    request.kv_format = {.dtype = KvDtype::kK3v3, .span = 128};
    const CapacityPlan plain = MakePlan(request).value();
    request.kv_format.centred = true;
    const CapacityPlan centred = MakePlan(request).value();
    EXPECT_EQ(plain.decode.kv_memory_bytes - centred.decode.kv_memory_bytes, 131072u * 2 * 128);
  }
}

TEST(TensorParallel, RolesMayDiffer) {
  PlanRequest request = RequestFor(Llama70b(), "h200");
  request.degrees = {.prefill = 4, .decode = 8};
  const CapacityPlan plan = MakePlan(request).value();
  EXPECT_EQ(plan.devices(), 4 * plan.prefill.workers + 8 * plan.decode.workers);
  const auto json = nlohmann::json::parse(PlanJson(request, plan));
  EXPECT_EQ(json["devices"], plan.devices());
  EXPECT_EQ(json["roles"]["prefill"]["tensor_parallel"], 4);
  EXPECT_EQ(json["roles"]["decode"]["devices"], plan.decode.devices());
  EXPECT_GT(json["roles"]["decode"]["exchange_share"], 0);
  const std::string text = PlanText(request, plan);
  EXPECT_THAT(text, HasSubstr("4 GPUs a worker"));
  EXPECT_THAT(text, HasSubstr("8 GPUs a worker"));
  EXPECT_THAT(text, HasSubstr("NVLink 4"));
}

// The target between tokens may need more GPUs than memory does.
TEST(TensorParallel, DecodeWorkersGetAsManyAsTheTargetNeeds) {
  PlanRequest request = RequestFor(Llama70b(), "h200");
  request.targets.token_s = 0.018;
  const CapacityPlan plan = MakePlan(request).value();
  EXPECT_EQ(plan.prefill.worker.degree, 2);
  EXPECT_EQ(plan.decode.worker.degree, 4);
  EXPECT_LE(plan.batch.token_s, 0.018);
  request.degrees.decode = 2;
  EXPECT_THAT(Message(MakePlan(request).status()), HasSubstr("the target is 18.0 ms"));
}

TEST(TensorParallel, ARefusalNamesTheLimit) {
  PlanRequest request = RequestFor(Llama70b(), "h200");
  request.degrees = {.prefill = 1, .decode = 1};
  EXPECT_THAT(Message(MakePlan(request).status()),
              HasSubstr("with tensor_parallel=1 the weights (bf16) take"));
  request.model.kv_heads = 4;
  request.degrees = {.prefill = 8, .decode = 8};
  EXPECT_THAT(Message(MakePlan(request).status()), HasSubstr("does not divide the model's 4 KV"));
  request = RequestFor(V2Lite(), "h200");
  request.model.heads = 12;
  request.degrees = {.prefill = 8, .decode = 8};
  EXPECT_THAT(Message(MakePlan(request).status()),
              HasSubstr("does not divide the model's 12 attention heads"));
  request = RequestFor(Llama8b(), "h200");
  request.hardware.gpu = false;
  request.degrees.decode = 2;
  EXPECT_THAT(Message(MakePlan(request).status()), HasSubstr("needs GPUs"));
  // Eight are the most that there are, and these are too small.
  request = RequestFor(Llama70b(), "l4");
  request.hardware.memory_bytes = uint64_t{16} << 30;
  EXPECT_THAT(Message(MakePlan(request).status()), HasSubstr("with tensor_parallel=8"));
  request = RequestFor(Llama8b(), "h200");
  request.kv_memory_bytes = uint64_t{1600} << 30;
  EXPECT_THAT(Message(MakePlan(request).status()), HasSubstr("and kv_memory 200 GiB"));
}

TEST(KvFormat, SmallerPagesHoldMoreAndAreReadFaster) {
  PlanRequest request = Llama8bOnH200();
  const CapacityPlan plain = MakePlan(request).value();
  request.kv_format = {.dtype = KvDtype::kI4r};
  const CapacityPlan small = MakePlan(request).value();
  EXPECT_NEAR(static_cast<double>(small.decode.blocks) / static_cast<double>(plain.decode.blocks),
              16 / 4.25, 0.01);
  EXPECT_LT(small.batch.token_s, plain.batch.token_s);
  EXPECT_NEAR(small.link.bytes_per_s / plain.link.bytes_per_s, 4.25 / 16, 1e-9);
  EXPECT_EQ(small.wire.name, "i4r");
  const auto json = nlohmann::json::parse(PlanJson(request, small));
  EXPECT_EQ(json["kv_format"], "i4r");
  request.wire_codec = "lx16";
  EXPECT_THAT(Message(MakePlan(request).status()), HasSubstr("--kv-format is i4r"));
  request.kv_format = {.dtype = KvDtype::kBf16};
  EXPECT_NEAR(MakePlan(request)->link.bytes_per_s / plain.link.bytes_per_s, 0.75, 1e-9);
}

// The second copies take memory for two of the longest sequences at least; what is read and sent
// is the format's.
TEST(KvFormat, SpansTakeRows) {
  PlanRequest request = Llama8bOnH200();
  request.hardware.gpu = false;
  request.kv_format = {.dtype = KvDtype::kK3v3};
  const CapacityPlan plain = MakePlan(request).value();
  request.kv_format.span = 128;
  const CapacityPlan plan = MakePlan(request).value();
  const KvLayout& layout = plan.cost.layout;
  EXPECT_EQ(plan.cost.kv_bytes_per_token(), plain.cost.kv_bytes_per_token());
  EXPECT_GE(plan.decode.rows,
            2 * layout.RowsAtOnce(request.model.max_position, request.chunk_tokens));
  EXPECT_LE(static_cast<uint64_t>(plan.decode.blocks) * layout.FullStride() +
                static_cast<uint64_t>(plan.decode.rows) * layout.RowStride(),
            plan.decode.kv_memory_bytes);
  EXPECT_LT(plan.decode.blocks, plain.decode.blocks);
  EXPECT_GT(plan.decode.blocks, plain.decode.blocks / 2);
}

// Each of several GPUs has its heads of both copies, so that two hold twice as much in equal
// memory.
TEST(KvFormat, SpansAreDividedAmongGpus) {
  PlanRequest request = Llama8bOnH200();
  request.kv_format = {.dtype = KvDtype::kK3v3, .span = 128};
  request.kv_memory_bytes = uint64_t{16} << 30;
  request.degrees = {.prefill = 1, .decode = 2};
  const CapacityPlan plan = MakePlan(request).value();
  const KvLayout whole = plan.cost.layout, own = plan.decode.worker.DeviceLayout();
  EXPECT_EQ(2 * own.LayerBytes(), whole.LayerBytes());
  EXPECT_EQ(2 * own.RecentBytes(), whole.RecentBytes());
  EXPECT_EQ(plan.decode.kv_memory_bytes, uint64_t{8} << 30);  // of each GPU
  EXPECT_NEAR(static_cast<double>(plan.decode.blocks), static_cast<double>(plan.prefill.blocks),
              0.01 * static_cast<double>(plan.prefill.blocks));
  EXPECT_NEAR(static_cast<double>(plan.decode.rows), static_cast<double>(plan.prefill.rows),
              0.01 * static_cast<double>(plan.prefill.rows));
  EXPECT_LE(static_cast<uint64_t>(plan.decode.blocks) * own.FullStride() +
                static_cast<uint64_t>(plan.decode.rows) * own.RowStride(),
            plan.decode.kv_memory_bytes);
  EXPECT_GT(plan.decode.rows, 0);
}

TEST(Weights, FewerBitsAreReadFasterAndWarnedOfOnGpus) {
  PlanRequest request = Llama8bOnH200();
  const CapacityPlan plain = MakePlan(request).value();
  EXPECT_THAT(PlanText(request, plain), Not(HasSubstr("WARNING")));
  request.weights = WeightsOf(Llama8b(), WeightPolicy::kInt4);
  const CapacityPlan small = MakePlan(request).value();
  EXPECT_GT(small.decode.blocks, plain.decode.blocks);
  // 5 bits of 7.0 and 8.25 of 0.5 billion weights, and the KV of one sequence.
  EXPECT_NEAR(small.steps.front().step_s * 1e3, (4.36 + 0.54 + 0.285) / 4.3 / 0.8, 0.02);
  EXPECT_THAT(PlanText(request, small), HasSubstr("WARNING: GPUs read quantised weights"));
  request.hardware.gpu = false;
  EXPECT_THAT(PlanText(request, MakePlan(request).value()), Not(HasSubstr("WARNING")));
  // A 70B model in 4 bits fits one GPU.
  request = RequestFor(Llama70b(), "h200");
  request.weights = WeightsOf(Llama70b(), WeightPolicy::kInt4);
  EXPECT_EQ(MakePlan(request)->decode.worker.degree, 1);
}

TEST(Warnings, NameModelsAndContextsThatWorkersRefuse) {
  PlanRequest request = Llama8bOnH200();
  request.model.experts = {.count = 4, .biases = true};
  EXPECT_THAT(PlanText(request, MakePlan(request).value()),
              HasSubstr("WARNING: workers refuse to start on this hardware: LlamaForCausalLM has "
                        "experts with biases"));
  request.weights.expanded_forms = {"fp8 g16"};
  EXPECT_THAT(PlanText(request, MakePlan(request).value()),
              HasSubstr("GPUs hold weights in fp8 g16 with 16 bits each"));
  request = Llama8bOnH200();
  request.kv_memory_bytes = uint64_t{4} << 30;  // 2,048 blocks
  EXPECT_THAT(PlanText(request, MakePlan(request).value()),
              HasSubstr("requests above 32768 tokens are refused"));
  request = RequestFor(Llama70b(), "h200");
  request.degrees = {.prefill = 8, .decode = 2};
  EXPECT_THAT(PlanText(request, MakePlan(request).value()),
              HasSubstr("the exchange among 8 devices over NVLink 4"));
}

}  // namespace
}  // namespace penstock
