#include "lab/plan/capacity_plan.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"

namespace penstock {
namespace {

constexpr double kSlabBytes = 256 << 10;  // least that travels together

absl::StatusOr<uint64_t> KvMemory(const PlanRequest& request, const ModelCost& cost) {
  if (request.kv_memory_bytes) return *request.kv_memory_bytes;
  const auto usable = static_cast<uint64_t>(static_cast<double>(request.hardware.memory_bytes) *
                                            request.memory_share);
  if (usable < cost.weight_bytes + cost.layout.BlockStride()) {
    return InvalidArgument(
        "{}: {} of its {} may be used, and the weights take {}; choose hardware with more memory",
        request.hardware.name, FormatBytes(usable), FormatBytes(request.hardware.memory_bytes),
        FormatBytes(cost.weight_bytes));
  }
  return usable - cost.weight_bytes;
}

double BytesPerToken(const ModelCost& cost) {
  return static_cast<double>(cost.layout.PayloadBytes()) / cost.layout.block_tokens;
}

double PrefillSeconds(const PlanRequest& request, const ModelCost& cost, double tokens,
                      double cached) {
  const Hardware& hardware = request.hardware;
  const double compute =
      cost.PrefillFlops(tokens, cached) / (hardware.flops_per_s * hardware.prefill_efficiency);
  const double weights = static_cast<double>(cost.step_bytes) /
                         (hardware.read_bytes_per_s * hardware.decode_efficiency);
  return std::max(compute, weights);
}

double StepSeconds(const PlanRequest& request, const ModelCost& cost, double batch,
                   double context) {
  const Hardware& hardware = request.hardware;
  const double seen = cost.window > 0 ? std::min<double>(context, cost.window) : context;
  const double bytes = static_cast<double>(cost.step_bytes) + batch * context * BytesPerToken(cost);
  const double flops =
      batch * (cost.flops_per_token + cost.head_flops + seen * cost.attention_flops_a_pair);
  return std::max(bytes / (hardware.read_bytes_per_s * hardware.decode_efficiency),
                  flops / (hardware.flops_per_s * hardware.prefill_efficiency));
}

// The part of a transfer that remains once the prompt is computed: at least the last group of
// layers, since groups leave while later ones are computed.
double ExposedSeconds(double transfer_s, double prefill_s, double kv_bytes, int32_t layers) {
  const double slabs = std::floor(kv_bytes / kSlabBytes);
  const double groups = std::clamp(slabs, 2.0, std::max(2.0, static_cast<double>(layers)));
  return std::max(transfer_s / groups, transfer_s - prefill_s * (1 - 1 / groups));
}

void AddCapacity(const PlanRequest& request, CapacityPlan& plan) {
  for (const int64_t tokens : request.contexts) {
    const int64_t blocks = plan.cost.layout.BlocksFor(tokens);
    plan.contexts.push_back(
        {.context_tokens = tokens, .blocks = blocks, .sequences = plan.blocks / blocks});
  }
}

// Batches 1, 2, 4 ... and the largest.
std::vector<int32_t> Batches(int32_t max) {
  std::vector<int32_t> batches;
  for (int32_t batch = 1; batch < max; batch *= 2) batches.push_back(batch);
  batches.push_back(max);
  return batches;
}

absl::Status ChooseBatch(const PlanRequest& request, CapacityPlan& plan) {
  const Traffic& traffic = request.traffic;
  const double context = traffic.prompt_tokens + traffic.answer_tokens / 2;
  const auto longest =
      static_cast<int64_t>(std::ceil(traffic.prompt_tokens + traffic.answer_tokens));
  const int64_t blocks_each = plan.cost.layout.BlocksFor(longest);
  const int64_t fit = plan.blocks / blocks_each;
  if (fit < 1) {
    return InvalidArgument(
        "a sequence of {} tokens takes {} blocks and a worker has {}: give it more kv_memory",
        longest, blocks_each, plan.blocks);
  }
  const auto max = static_cast<int32_t>(std::min<int64_t>(request.batch_max, fit));
  for (const int32_t batch : Batches(max)) {
    const double step = StepSeconds(request, plan.cost, batch, context);
    plan.decode.push_back({.batch = batch, .step_s = step, .tokens_per_s = batch / step});
  }
  plan.batch = max;
  plan.batch_limit = fit < request.batch_max ? "kv_memory" : "max_batch";
  while (plan.batch > 0 &&
         StepSeconds(request, plan.cost, plan.batch, context) > request.targets.token_s) {
    --plan.batch;
    plan.batch_limit = "the target between tokens";
  }
  if (plan.batch == 0) {
    return InvalidArgument(
        "{} takes {:.1f} ms a token even for one sequence; the target is {:.1f} ms",
        request.hardware.name, plan.decode.front().step_s * 1e3, request.targets.token_s * 1e3);
  }
  plan.token_s = StepSeconds(request, plan.cost, plan.batch, context);
  return absl::OkStatus();
}

void CountWorkers(const PlanRequest& request, CapacityPlan& plan) {
  const Traffic& traffic = request.traffic;
  const double share = request.targets.utilisation;
  const double prefill = traffic.requests_per_s * plan.first_token_s / share;
  // The prefill worker has sampled the first token.
  const double decoded = std::max(0.0, traffic.answer_tokens - 1);
  const double decode = traffic.requests_per_s * decoded * plan.token_s / plan.batch / share;
  plan.prefill_workers = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(prefill)));
  plan.decode_workers = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(decode)));
  plan.prefill_per_decode = decode > 0 ? prefill / decode : 0;
}

// Every prompt's KV is sent, as if decode workers had none of it cached.
void AddLink(const PlanRequest& request, CapacityPlan& plan) {
  const Traffic& traffic = request.traffic;
  plan.link = NeedOf({.kv_tokens_per_s = traffic.requests_per_s * traffic.prompt_tokens,
                      .link_bytes_per_s = request.link_bytes_per_s,
                      .use_max = request.targets.utilisation,
                      .prefill_workers = plan.prefill_workers,
                      .decode_workers = plan.decode_workers},
                     plan.forms);
}

double MillionTokensPrice(const PlanRequest& request, int64_t workers) {
  const Traffic& traffic = request.traffic;
  const double tokens_per_hour =
      3600 * traffic.requests_per_s * (traffic.prompt_tokens + traffic.answer_tokens);
  return request.gpu_hour_price * static_cast<double>(workers) / tokens_per_hour * 1e6;
}

void AddPrices(const PlanRequest& request, CapacityPlan& plan) {
  plan.million_tokens_price =
      MillionTokensPrice(request, plan.prefill_workers + plan.decode_workers);
  const double uncached_s =
      PrefillSeconds(request, plan.cost, request.traffic.prompt_tokens, /*cached=*/0);
  const double prefill = request.traffic.requests_per_s * uncached_s / request.targets.utilisation;
  const auto workers = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(prefill)));
  plan.uncached_million_tokens_price = MillionTokensPrice(request, workers + plan.decode_workers);
}

void AddTiers(const PlanRequest& request, CapacityPlan& plan) {
  const Traffic& traffic = request.traffic;
  const double fresh = traffic.prompt_tokens * (1 - traffic.hit_ratio) + traffic.answer_tokens;
  const double tokens = traffic.requests_per_s * request.targets.keep_s * fresh;
  for (const KvForm& form : plan.forms) {
    plan.tiers.push_back({form.name, static_cast<uint64_t>(tokens * form.bytes_per_token)});
  }
}

}  // namespace

absl::StatusOr<CapacityPlan> MakePlan(const PlanRequest& request) {
  CapacityPlan plan;
  plan.cost = CostOf(request.model, request.block_tokens);
  plan.forms = KvFormsOf(plan.cost);
  ASSIGN_OR_RETURN(plan.kv_memory_bytes, KvMemory(request, plan.cost));
  plan.blocks = static_cast<int64_t>(plan.kv_memory_bytes / plan.cost.layout.BlockStride());
  if (plan.blocks < 1) {
    return InvalidArgument("kv_memory is {}; one block of this model takes {}",
                           FormatBytes(plan.kv_memory_bytes),
                           FormatBytes(plan.cost.layout.BlockStride()));
  }
  AddCapacity(request, plan);
  const Traffic& traffic = request.traffic;
  const double kv_bytes = traffic.prompt_tokens * BytesPerToken(plan.cost);
  plan.first_token_s = PrefillSeconds(request, plan.cost, traffic.prompt_tokens,
                                      traffic.prompt_tokens * traffic.hit_ratio);
  plan.transfer_s = kv_bytes / request.link_bytes_per_s;
  plan.exposed_s =
      ExposedSeconds(plan.transfer_s, plan.first_token_s, kv_bytes, request.model.layers);
  RETURN_IF_ERROR(ChooseBatch(request, plan));
  CountWorkers(request, plan);
  AddLink(request, plan);
  AddPrices(request, plan);
  AddTiers(request, plan);
  return plan;
}

}  // namespace penstock
