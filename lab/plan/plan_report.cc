#include "lab/plan/plan_report.h"

#include <fmt/format.h>

#include <iterator>

#include "base/bytes.h"

namespace penstock {
namespace {

using Out = std::back_insert_iterator<std::string>;

std::string Devices(const PlanRequest& request, int64_t count) {
  const char* const unit = request.hardware.gpu ? "GPU" : "machine";
  return fmt::format("{} {}{}", count, unit, count == 1 ? "" : "s");
}

void WriteRole(Out out, const char* name, const PlanRequest& request, const RolePlan& role) {
  const KvLayout& layout = role.worker.cost.layout;
  fmt::format_to(
      out, "{:<12}{} a worker; on each, {} of weights and {} of KV: {} blocks of {} tokens\n", name,
      Devices(request, role.worker.degree), FormatBytes(role.worker.DeviceWeightBytes()),
      FormatBytes(role.kv_memory_bytes), role.blocks, layout.block_tokens);
  if (role.rows == 0) return;
  fmt::format_to(out, "            of these {} may have rows, memory for {}\n", role.rows,
                 layout.span > 0 ? fmt::format("a span of {} tokens in bf16", layout.span)
                                 : fmt::format("the {} layers with a window of {} tokens",
                                               layout.group.size(), layout.group.window));
}

void WriteMemory(Out out, const PlanRequest& request, const CapacityPlan& plan) {
  const Hardware& hardware = request.hardware;
  fmt::format_to(out, "model       {:.4g} M parameters, {} in {}\n",
                 static_cast<double>(plan.cost.weights.elements()) / 1e6,
                 FormatBytes(plan.cost.weight_bytes()), plan.cost.weights.form);
  fmt::format_to(out, "hardware    {}: {}, {:.4g} GB/s, {:.4g} TFLOP/s ({})\n", hardware.name,
                 FormatBytes(hardware.memory_bytes), hardware.read_bytes_per_s / 1e9,
                 hardware.flops_per_s / 1e12, hardware.source);
  if (plan.prefill.worker.degree * plan.decode.worker.degree > 1) {
    fmt::format_to(out, "            {:.4g} GB/s between devices ({})\n",
                   hardware.interconnect_bytes_per_s / 1e9, hardware.interconnect);
  }
  if (plan.prefill.worker.degree == plan.decode.worker.degree) {
    WriteRole(out, "workers", request, plan.decode);
  } else {
    WriteRole(out, "prefill", request, plan.prefill);
    WriteRole(out, "decode", request, plan.decode);
  }
  fmt::format_to(out, "\nKV a token\n");
  for (const KvForm& form : plan.forms) {
    fmt::format_to(out, "  {:<6} {:>12.1f} B  {}\n", form.name, form.bytes_per_token,
                   form.resident ? "resident" : "wire and tiers, nominal");
  }
  const bool rows = plan.decode.rows > 0;
  fmt::format_to(out, "\n{:>10} {:>10}{} {:>22}\n", "context", "blocks",
                 rows ? fmt::format(" {:>10}", "rows") : "", "sequences at once");
  for (const ContextCapacity& row : plan.contexts) {
    fmt::format_to(out, "{:>10} {:>10}{} {:>22}\n", row.context_tokens, row.blocks,
                   rows ? fmt::format(" {:>10}", row.rows) : "", row.sequences);
  }
}

// ", of which 12 % are the exchange", or nothing.
std::string ExchangeNote(double share) {
  return share > 0 ? fmt::format("; {:.0f} % of it is tensor parallelism's exchange", share * 100)
                   : "";
}

void WriteRates(Out out, const PlanRequest& request, const CapacityPlan& plan) {
  const Traffic& traffic = request.traffic;
  fmt::format_to(out,
                 "\nOne request of {:.0f} prompt and {:.0f} answer tokens, nothing else running\n",
                 traffic.prompt_tokens, traffic.answer_tokens);
  fmt::format_to(out, "  first token   {:>10.1f} ms  ({:.0f} % of the prompt cached{})\n",
                 plan.first_token_s * 1e3, traffic.hit_ratio * 100,
                 ExchangeNote(plan.prefill_exchange_share));
  fmt::format_to(out, "  KV transfer   {:>10.1f} ms  of which compute does not hide {:.1f} ms\n",
                 plan.transfer_s * 1e3, plan.exposed_s * 1e3);
  fmt::format_to(out, "\n{:>10} {:>14} {:>14}\n", "batch", "ms a token", "tokens/s");
  for (const DecodePoint& point : plan.steps) {
    fmt::format_to(out, "{:>10} {:>14.2f} {:>14.1f}\n", point.batch, point.step_s * 1e3,
                   point.tokens_per_s);
  }
}

void WriteCache(Out out, const PlanRequest& request, const CapacityPlan& plan) {
  const Traffic& traffic = request.traffic;
  if (traffic.hit_ratio <= 0) return;
  const std::string most = traffic.prompts.empty() ? ""
                                                   : fmt::format(", with unlimited caches {:.1f} %",
                                                                 plan.hit_ratio_max * 100);
  const int64_t saved = plan.without_cache.prefill_workers - plan.prefill.workers;
  fmt::format_to(
      out, "  prefix caches     {:.1f} % of prompt tokens hit{}; they save {} of prefill\n",
      traffic.hit_ratio * 100, most, Devices(request, saved * plan.prefill.worker.degree));
}

void WritePrice(Out out, const PlanRequest& request, const CapacityPlan& plan) {
  if (request.gpu_hour_price <= 0) return;
  fmt::format_to(
      out, "  price             {:.4g} for a million tokens ({:.4g} without cached prompts)\n",
      plan.million_tokens_price, plan.without_cache.million_tokens_price);
}

void WriteWorkers(Out out, const PlanRequest& request, const CapacityPlan& plan) {
  const Traffic& traffic = request.traffic;
  const Targets& targets = request.targets;
  fmt::format_to(out, "\nFor {:.4g} requests/s at {:.0f} % use and {:.4g} ms between tokens\n",
                 traffic.requests_per_s, targets.utilisation * 100, targets.token_s * 1e3);
  fmt::format_to(out, "  batch             {} ({:.2f} ms a token{}; limited by {})\n",
                 plan.batch.batch, plan.batch.token_s * 1e3,
                 ExchangeNote(plan.decode_exchange_share), plan.batch.limit);
  fmt::format_to(out, "  prefill workers   {} (used at {:.0f} %)\n", plan.prefill.workers,
                 plan.prefill_use * 100);
  fmt::format_to(out, "  decode workers    {} (used at {:.0f} %)\n", plan.decode.workers,
                 plan.decode_use * 100);
  fmt::format_to(out, "  in all            {}\n", Devices(request, plan.devices()));
  fmt::format_to(out, "  P:D               {:.3g} : 1\n", plan.prefill_per_decode);
  fmt::format_to(out,
                 "  KV link           {:.3g} GB/s of {} in all; the busiest worker's link of "
                 "{:.3g} GB/s is used at {:.0f} %\n",
                 plan.link.bytes_per_s / 1e9, plan.wire.name, request.link_bytes_per_s / 1e9,
                 plan.link.use * 100);
  WriteCache(out, request, plan);
  WritePrice(out, request, plan);
  fmt::format_to(out, "\nTiers that keep {:.0f} s of this traffic, all workers together\n",
                 targets.keep_s);
  for (const TierNeed& tier : plan.tiers) {
    fmt::format_to(out, "  {:<6} {:>12}\n", tier.form, FormatBytes(tier.bytes));
  }
}

}  // namespace

std::string PlanText(const PlanRequest& request, const CapacityPlan& plan) {
  std::string text;
  const Out out = std::back_inserter(text);
  WriteMemory(out, request, plan);
  WriteRates(out, request, plan);
  WriteWorkers(out, request, plan);
  for (const std::string& warning : plan.warnings) {
    fmt::format_to(out, "\nWARNING: {}\n", warning);
  }
  return text;
}

}  // namespace penstock
