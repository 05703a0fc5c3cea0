#include "lab/plan/capacity_plan.h"

#include <algorithm>
#include <cmath>

#include "lab/plan/plan_warnings.h"

namespace penstock {
namespace {

constexpr double kSlabBytes = 256 << 10;  // least that travels together
// Prompts whose blocks a prefill worker holds beside its cache: one computes, one leaves.
constexpr int64_t kPromptsAtOnce = 2;

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
        {.context_tokens = tokens,
         .blocks = blocks,
         .rows = plan.decode.rows == 0 ? 0 : plan.cost.layout.RowsAtOnce(tokens, 1),
         .sequences = SequencesThatFit(plan.decode, tokens)});
  }
  const auto mean = static_cast<int64_t>(std::ceil(request.traffic.prompt_tokens));
  const int64_t running = kPromptsAtOnce * plan.cost.layout.BlocksFor(mean);
  const auto tier = static_cast<int64_t>(request.dram_memory_bytes /
                                         plan.cost.layout.FirstCopies().BlockStride());
  plan.prefill_cache_tokens =
      (std::max<int64_t>(0, plan.prefill.blocks - running) + tier) * plan.cost.layout.block_tokens;
}

// Batches 1, 2, 4 ... up to what fits.
void AddSteps(const PlanRequest& request, CapacityPlan& plan) {
  const int32_t max = BatchThatFits(request, plan.decode);
  std::vector<int32_t> batches;
  for (int32_t batch = 1; batch < max; batch *= 2) batches.push_back(batch);
  batches.push_back(max);
  for (const int32_t batch : batches) {
    const double step = plan.decode.worker.StepSeconds(batch, request.traffic.Context());
    plan.steps.push_back({.batch = batch, .step_s = step, .tokens_per_s = batch / step});
  }
}

absl::StatusOr<KvForm> WireForm(const PlanRequest& request, const std::vector<KvForm>& forms) {
  if (request.wire_codec == "raw") return forms.front();
  for (const KvForm& form : forms) {
    if (!form.resident && form.name == request.wire_codec) return form;
  }
  return InvalidArgument(
      "--wire-codec={} encodes pages in bf16, and --kv-format is {}, whose pages travel as they "
      "are; use raw",
      request.wire_codec, KvPageFormatName(request.kv_format));
}

// The mean prompt's tokens whose KV is sent, in the mean of the layers: a layer with a window sends
// that of its window only.
double SentTokens(const ModelCost& cost, const Traffic& traffic) {
  return cost.AttendedTokens(traffic.prompt_tokens) / cost.layers;
}

void AddTimes(const PlanRequest& request, CapacityPlan& plan) {
  const Traffic& traffic = request.traffic;
  const double cached = traffic.prompt_tokens * traffic.hit_ratio;
  const double kv_bytes = SentTokens(plan.cost, traffic) * plan.wire.bytes_per_token;
  const WorkerModel& prefill = plan.prefill.worker;
  plan.first_token_s = prefill.PrefillSeconds(traffic.prompt_tokens, cached);
  plan.transfer_s = kv_bytes / request.link_bytes_per_s;
  plan.exposed_s =
      ExposedSeconds(plan.transfer_s, plan.first_token_s, kv_bytes, request.model.layers);
  plan.prefill_exchange_share =
      prefill.PrefillExchangeSeconds(traffic.prompt_tokens, cached) / plan.first_token_s;
  plan.decode_exchange_share =
      plan.decode.worker.ExchangeSeconds(plan.batch.batch) / plan.batch.token_s;
}

// Seconds that one request takes of a prefill worker, in the mean.
double PrefillWork(const Traffic& traffic, const WorkerModel& worker, bool cached) {
  if (traffic.prompts.empty()) {
    return worker.PrefillSeconds(traffic.prompt_tokens,
                                 cached ? traffic.prompt_tokens * traffic.hit_ratio : 0);
  }
  double sum = 0;
  for (const PromptSample& prompt : traffic.prompts) {
    sum += worker.PrefillSeconds(prompt.tokens, cached ? prompt.cached : 0);
  }
  return sum / static_cast<double>(traffic.prompts.size());
}

void CountWorkers(const PlanRequest& request, CapacityPlan& plan) {
  const Traffic& traffic = request.traffic;
  const double share = request.targets.utilisation;
  const WorkerModel& worker = plan.prefill.worker;
  const double prefill = traffic.requests_per_s * PrefillWork(traffic, worker, /*cached=*/true);
  const double whole = traffic.requests_per_s * PrefillWork(traffic, worker, /*cached=*/false);
  // The prefill worker has sampled the first token.
  const double decoded = std::max(0.0, traffic.answer_tokens - 1);
  const double decode = traffic.requests_per_s * decoded * plan.batch.token_s / plan.batch.batch;
  plan.prefill.workers = std::max(CountOf(prefill / share), request.prefill_workers_min);
  plan.decode.workers = CountOf(decode / share);
  plan.without_cache.prefill_workers = CountOf(whole / share);
  plan.prefill_use = prefill / static_cast<double>(plan.prefill.workers);
  plan.decode_use = decode / static_cast<double>(plan.decode.workers);
  plan.prefill_per_decode = decode > 0 ? prefill / decode : 0;
}

// Every prompt's KV is sent, as if decode workers had none of it cached.
void AddLink(const PlanRequest& request, CapacityPlan& plan) {
  const Traffic& traffic = request.traffic;
  plan.link = NeedOf({.kv_tokens_per_s = traffic.requests_per_s * SentTokens(plan.cost, traffic),
                      .bytes_per_token = plan.wire.bytes_per_token,
                      .link_bytes_per_s = request.link_bytes_per_s,
                      .use_max = request.targets.utilisation,
                      .prefill_workers = plan.prefill.workers,
                      .decode_workers = plan.decode.workers},
                     plan.forms);
}

double MillionTokensPrice(const PlanRequest& request, int64_t devices) {
  const Traffic& traffic = request.traffic;
  const double tokens_per_hour =
      3600 * traffic.requests_per_s * (traffic.prompt_tokens + traffic.answer_tokens);
  return request.gpu_hour_price * static_cast<double>(devices) / tokens_per_hour * 1e6;
}

void AddPrices(const PlanRequest& request, CapacityPlan& plan) {
  plan.million_tokens_price = MillionTokensPrice(request, plan.devices());
  const int64_t uncached = plan.without_cache.prefill_workers * plan.prefill.worker.degree;
  plan.without_cache.million_tokens_price =
      MillionTokensPrice(request, uncached + plan.decode.devices());
}

void AddTiers(const PlanRequest& request, CapacityPlan& plan) {
  const Traffic& traffic = request.traffic;
  const double fresh = traffic.prompt_tokens * (1 - traffic.hit_ratio) + traffic.answer_tokens;
  const double tokens = traffic.requests_per_s * request.targets.keep_s * fresh;
  for (const KvForm& form : plan.forms) {
    plan.tiers.push_back(
        {form.name, static_cast<uint64_t>(std::min(tokens * form.bytes_per_token, 1e18))});
  }
}

}  // namespace

absl::StatusOr<CapacityPlan> MakePlan(const PlanRequest& request) {
  CapacityPlan plan;
  ASSIGN_OR_RETURN(const KvLayout layout,
                   KvLayoutOf(request.model, request.block_tokens, request.kv_format));
  plan.cost = CostOf(request.model,
                     request.hardware.gpu ? request.weights.OnGpu() : request.weights, layout);
  if (request.expert_memory_bytes) {
    const auto limit = static_cast<double>(*request.expert_memory_bytes);
    plan.cost.expert_bytes = std::min(plan.cost.expert_bytes, limit);
  }
  plan.forms = KvFormsOf(plan.cost);
  ASSIGN_OR_RETURN(plan.wire, WireForm(request, plan.forms));
  ASSIGN_OR_RETURN(plan.prefill, FitPrefill(request, plan.cost));
  ASSIGN_OR_RETURN(plan.decode, FitDecode(request, plan.cost));
  ASSIGN_OR_RETURN(plan.batch, ChooseBatch(request, plan.decode));
  AddCapacity(request, plan);
  AddSteps(request, plan);
  AddTimes(request, plan);
  CountWorkers(request, plan);
  AddLink(request, plan);
  AddPrices(request, plan);
  AddTiers(request, plan);
  plan.warnings = WarningsOf(request, plan);
  return plan;
}

}  // namespace penstock
