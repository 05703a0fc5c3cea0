#include "lab/plan/plan_warnings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/bytes.h"
#include "model/cuda/cuda_model_check.h"

namespace penstock {
namespace {

// Of a step's time, from which on the exchange is worth a warning.
constexpr double kExchangeShareMax = 1.0 / 3;

void WarnOfLink(const PlanRequest& request, const CapacityPlan& plan,
                std::vector<std::string>& warnings) {
  const LinkNeed& link = plan.link;
  if (!link.overloaded) return;
  const std::string codecs =
      link.codecs.empty() ? "no --wire-codec makes KV small enough"
                          : fmt::format("one of the codecs {} (i8 and those behind it are lossy)",
                                        fmt::join(link.codecs, ", "));
  warnings.push_back(fmt::format(
      "the links are too slow for this traffic, so second tokens would wait: the busiest one is "
      "used at {:.0f} %, and {:.0f} % are allowed. Links of {:.3g} GB/s for these workers, or {} "
      "workers of each role with a link each are enough; {}",
      link.use * 100, request.targets.utilisation * 100, link.bytes_per_link / 1e9, link.links,
      codecs));
}

void WarnOfGpus(const PlanRequest& request, const CapacityPlan& plan,
                std::vector<std::string>& warnings) {
  if (!request.hardware.gpu) return;
  const int degree = std::max(plan.prefill.worker.degree, plan.decode.worker.degree);
  if (const absl::Status status = CheckCudaModel(request.model, degree); !status.ok()) {
    warnings.push_back("workers refuse to start on this hardware: " + Message(status));
  }
  if (request.weights.form != "bf16") {
    warnings.push_back(
        fmt::format("GPUs read quantised weights ({}) slower than their bytes, and steps of more "
                    "than 16 sequences are slower than with 16-bit weights: this plan's decode "
                    "rates are too high (docs/performance.md has measured ones)",
                    request.weights.form));
  }
  if (!request.weights.expanded_forms.empty()) {
    warnings.push_back(
        fmt::format("GPUs hold weights in {} with 16 bits each, which this plan counts",
                    fmt::join(request.weights.expanded_forms, " and ")));
  }
}

void WarnOfExperts(const CapacityPlan& plan, std::vector<std::string>& warnings) {
  const double all = plan.cost.weights.experts.bytes, held = plan.cost.expert_bytes;
  if (held >= all) return;
  warnings.push_back(fmt::format(
      "{} of {} of experts are in memory; the file in expert_dir takes {}. The times of this plan "
      "are those of experts in memory: add what a worker shows as "
      "penstock_expert_wait_seconds_total",
      FormatBytes(static_cast<uint64_t>(held)), FormatBytes(static_cast<uint64_t>(all)),
      FormatBytes(static_cast<uint64_t>(all))));
}

void WarnOfContexts(const CapacityPlan& plan, std::vector<std::string>& warnings) {
  for (const ContextCapacity& row : plan.contexts) {
    if (row.sequences > 0) continue;
    warnings.push_back(fmt::format(
        "a sequence of {} tokens takes {} blocks, and a decode worker has {}, so requests above {} "
        "tokens are refused",
        row.context_tokens, row.blocks, plan.decode.blocks,
        plan.decode.blocks * plan.cost.layout.block_tokens));
    return;
  }
}

void WarnOfExchange(const RolePlan& role, double share, const char* what,
                    std::vector<std::string>& warnings) {
  if (share <= kExchangeShareMax) return;
  warnings.push_back(fmt::format(
      "the exchange among {} devices over {} ({:.3g} GB/s) takes {:.0f} % of the time of {}; a "
      "smaller --tensor-parallel uses the devices better",
      role.worker.degree, role.worker.hardware.interconnect,
      role.worker.hardware.interconnect_bytes_per_s / 1e9, share * 100, what));
}

}  // namespace

std::vector<std::string> WarningsOf(const PlanRequest& request, const CapacityPlan& plan) {
  std::vector<std::string> warnings;
  WarnOfGpus(request, plan, warnings);
  WarnOfExperts(plan, warnings);
  WarnOfContexts(plan, warnings);
  WarnOfExchange(plan.prefill, plan.prefill_exchange_share, "a prompt", warnings);
  WarnOfExchange(plan.decode, plan.decode_exchange_share, "a decode step", warnings);
  WarnOfLink(request, plan, warnings);
  return warnings;
}

}  // namespace penstock
