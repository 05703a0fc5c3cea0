#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "base/bytes.h"
#include "base/lifecycle.h"
#include "lab/cli/commands.h"
#include "lab/micro/machine_rates.h"
#include "lab/plan/plan_report.h"
#include "lab/plan/trace_traffic.h"
#include "lab/plot/plot.h"
#include "worker/main/step_defaults.h"

namespace penstock {
namespace {

// The share of the measured limits that the forward pass reaches; figures: docs/performance.md.
constexpr double kCpuDecodeEfficiency = 0.9;
constexpr double kCpuPrefillEfficiency = 0.8;

Hardware MeasureThisMachine() {
  const MachineRates rates = MeasureMachine();
  return {.name = "cpu",
          .gpu = false,
          .memory_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                          static_cast<uint64_t>(sysconf(_SC_PAGESIZE)),
          .read_bytes_per_s = rates.read_bytes_per_s,
          .flops_per_s = rates.flops_per_s,
          .decode_efficiency = kCpuDecodeEfficiency,
          .prefill_efficiency = kCpuPrefillEfficiency,
          .source = "measured now",
          .interconnect = "none"};
}

absl::StatusOr<Hardware> ChooseHardware(const PlanOptions& options) {
  Hardware hardware;
  if (options.hardware == "cpu") {
    hardware = MeasureThisMachine();
  } else {
    ASSIGN_OR_RETURN(hardware, FindHardware(options.hardware));
  }
  if (options.read_gbps) hardware.read_bytes_per_s = *options.read_gbps * 1e9;
  if (options.tflops) hardware.flops_per_s = *options.tflops * 1e12;
  if (options.read_gbps || options.tflops) hardware.source = "as given";
  if (options.interconnect_gbps) {
    hardware.interconnect_bytes_per_s = *options.interconnect_gbps * 1e9;
    hardware.interconnect = "as given";
  }
  if (!options.memory.empty()) {
    ASSIGN_OR_RETURN(hardware.memory_bytes, ParseBytes(options.memory));
  }
  return hardware;
}

absl::Status CheckMtp(const ModelConfig& model) {
  if (model.mtp_layers > 0) return absl::OkStatus();
  return InvalidArgument("--mtp: a {} has no layer for multi-token prediction; leave --mtp out",
                         model.architecture);
}

absl::Status CheckExperts(const PlanRequest& request, const std::string& expert_memory) {
  if (request.model.experts.count == 0) {
    return InvalidArgument("--expert-memory: a {} has no experts; leave it out",
                           request.model.architecture);
  }
  if (!request.hardware.gpu) return absl::OkStatus();
  return InvalidArgument(
      "--expert-memory={}: workers on GPUs ({}) have all experts in memory; leave it out",
      expert_memory, request.hardware.name);
}

// 0 for "auto".
int32_t DegreeOf(const std::string& role, const std::string& both) {
  const std::string& degree = role.empty() ? both : role;
  return degree == "auto" ? 0 : std::stoi(degree);
}

absl::StatusOr<PlanRequest> RequestOf(const PlanOptions& options) {
  PlanRequest request;
  ASSIGN_OR_RETURN(request.model, LoadModelConfig(options.model));
  request.model.use_mtp = options.mtp;
  ASSIGN_OR_RETURN(request.weights,
                   MeasureModel(options.model, request.model, *WeightPolicyOf(options.weights)));
  ASSIGN_OR_RETURN(request.hardware, ChooseHardware(options));
  if (options.mtp) RETURN_IF_ERROR(CheckMtp(request.model));
  request.degrees = {.prefill = DegreeOf(options.prefill_tensor_parallel, options.tensor_parallel),
                     .decode = DegreeOf(options.decode_tensor_parallel, options.tensor_parallel)};
  request.block_tokens = static_cast<int32_t>(options.block_tokens);
  request.kv_format = *KvPageFormatOf(options.kv_format);
  request.wire_codec = options.wire_codec;
  if (!options.kv_memory.empty()) {
    ASSIGN_OR_RETURN(request.kv_memory_bytes, ParseBytes(options.kv_memory));
  }
  if (!options.expert_memory.empty()) {
    RETURN_IF_ERROR(CheckExperts(request, options.expert_memory));
    ASSIGN_OR_RETURN(request.expert_memory_bytes, ParseBytes(options.expert_memory));
  }
  if (!options.dram_memory.empty()) {
    ASSIGN_OR_RETURN(request.dram_memory_bytes, ParseBytes(options.dram_memory));
  }
  request.link_bytes_per_s = options.link_gbps * 1e9;
  request.gpu_hour_price = options.gpu_hour_price;
  const StepDefaults steps = StepDefaultsOn(request.hardware.gpu);
  request.chunk_tokens = static_cast<int32_t>(options.chunk_tokens.value_or(steps.chunk_tokens));
  request.batch_max = static_cast<int32_t>(options.max_batch.value_or(steps.max_batch));
  request.step_tokens = static_cast<int32_t>(
      StepTokensMax({.chunk_tokens = static_cast<uint32_t>(request.chunk_tokens),
                     .max_batch = static_cast<uint32_t>(request.batch_max),
                     .prefill_chunk = steps.prefill_chunk,
                     .draft_rows = options.mtp ? kDraftRows : 0}));
  request.contexts = options.contexts;
  if (request.contexts.empty()) {
    for (int64_t tokens = 512; tokens < request.model.max_position; tokens *= 4) {
      request.contexts.push_back(tokens);
    }
    request.contexts.push_back(request.model.max_position);
  }
  request.traffic = {.requests_per_s = options.rate.value_or(1),
                     .prompt_tokens = options.prompt_tokens,
                     .answer_tokens = options.answer_tokens,
                     .hit_ratio = options.hit_ratio};
  request.targets = {.token_s = options.token_ms / 1e3,
                     .utilisation = options.utilisation,
                     .keep_s = options.keep_s};
  return request;
}

absl::StatusOr<TracePlan> PlanOf(const PlanOptions& options) {
  ASSIGN_OR_RETURN(PlanRequest request, RequestOf(options));
  if (options.trace.empty()) {
    ASSIGN_OR_RETURN(CapacityPlan plan, MakePlan(request));
    return TracePlan{std::move(request), std::move(plan)};
  }
  ASSIGN_OR_RETURN(SimTrace requests, LoadTrace(options.trace, /*copies=*/1, /*seed=*/0));
  requests.block_tokens = options.trace_block_tokens;
  ASSIGN_OR_RETURN(const TraceTraffic trace, TraceTraffic::Of(std::move(requests), options.rate));
  return PlanForTrace(std::move(request), trace);
}

absl::Status PrintPlan(const PlanOptions& options) {
  ASSIGN_OR_RETURN(const TracePlan planned, PlanOf(options));
  const auto& [request, plan] = planned;
  if (!options.plot.empty()) RETURN_IF_ERROR(WritePlot(PlanSvg(request, plan), options.plot));
  fmt::print("{}", options.json ? PlanJson(request, plan) : PlanText(request, plan));
  return absl::OkStatus();
}

}  // namespace

int Run(const PlanOptions& options) {
  const absl::Status status = PrintPlan(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "penstock plan: {}\n", Message(status));
  return static_cast<int>(ExitCodeFor(status));
}

}  // namespace penstock
