#include "lab/plan/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "base/bytes.h"

namespace penstock {
namespace {

using Out = std::back_insert_iterator<std::string>;

void WriteMemory(Out out, const PlanRequest& request, const CapacityPlan& plan) {
  const KvLayout& layout = plan.cost.layout;
  fmt::format_to(out, "model       {:.4g} M parameters, {} in bf16\n",
                 static_cast<double>(plan.cost.parameters) / 1e6,
                 FormatBytes(plan.cost.weight_bytes));
  fmt::format_to(out, "hardware    {}: {}, {:.4g} GB/s, {:.4g} TFLOP/s ({})\n",
                 request.hardware.name, FormatBytes(request.hardware.memory_bytes),
                 request.hardware.read_bytes_per_s / 1e9, request.hardware.flops_per_s / 1e12,
                 request.hardware.source);
  fmt::format_to(out, "KV pool     {} = {} blocks of {} tokens ({} each)\n",
                 FormatBytes(plan.kv_memory_bytes), plan.blocks, layout.block_tokens,
                 FormatBytes(layout.BlockStride()));
  fmt::format_to(out, "\nKV a token\n");
  for (const KvForm& form : plan.forms) {
    fmt::format_to(out, "  {:<6} {:>12.1f} B  {}\n", form.name, form.bytes_per_token,
                   form.resident ? "resident" : "wire and tiers, nominal");
  }
  fmt::format_to(out, "\n{:>10} {:>10} {:>22}\n", "context", "blocks", "sequences at once");
  for (const ContextCapacity& row : plan.contexts) {
    fmt::format_to(out, "{:>10} {:>10} {:>22}\n", row.context_tokens, row.blocks, row.sequences);
  }
}

void WriteRates(Out out, const PlanRequest& request, const CapacityPlan& plan) {
  const Traffic& traffic = request.traffic;
  fmt::format_to(out,
                 "\nOne request of {:.0f} prompt and {:.0f} answer tokens, nothing else running\n",
                 traffic.prompt_tokens, traffic.answer_tokens);
  fmt::format_to(out, "  first token   {:>10.1f} ms  ({:.0f} % of the prompt cached)\n",
                 plan.first_token_s * 1e3, traffic.hit_ratio * 100);
  fmt::format_to(out, "  KV transfer   {:>10.1f} ms  of which compute does not hide {:.1f} ms\n",
                 plan.transfer_s * 1e3, plan.exposed_s * 1e3);
  fmt::format_to(out, "\n{:>10} {:>14} {:>14}\n", "batch", "ms a token", "tokens/s");
  for (const DecodePoint& point : plan.decode) {
    fmt::format_to(out, "{:>10} {:>14.2f} {:>14.1f}\n", point.batch, point.step_s * 1e3,
                   point.tokens_per_s);
  }
}

void WriteLink(Out out, const PlanRequest& request, const CapacityPlan& plan) {
  const LinkNeed& link = plan.link;
  fmt::format_to(out,
                 "  KV link           {:.3g} GB/s in all; the busiest worker's link of {:.3g} GB/s "
                 "is used at {:.0f} %\n",
                 link.bytes_per_s / 1e9, request.link_bytes_per_s / 1e9, link.use * 100);
  if (!link.overloaded) return;
  fmt::format_to(
      out,
      "  WARNING: the links are too slow for this traffic, so second tokens would wait. Any "
      "one of these cures it:\n"
      "    links of {:.3g} GB/s for these workers\n"
      "    {} workers of each role, each with its own link\n",
      link.bytes_per_link / 1e9, link.links);
  if (link.codecs.empty()) {
    fmt::format_to(out, "    no codec makes KV small enough\n");
  } else {
    fmt::format_to(out, "    one of the codecs {}\n", fmt::join(link.codecs, ", "));
  }
}

void WritePrice(Out out, const PlanRequest& request, const CapacityPlan& plan) {
  if (request.gpu_hour_price <= 0) return;
  fmt::format_to(
      out, "  price             {:.4g} for a million tokens ({:.4g} without cached prompts)\n",
      plan.million_tokens_price, plan.uncached_million_tokens_price);
}

void WriteWorkers(Out out, const PlanRequest& request, const CapacityPlan& plan) {
  const Traffic& traffic = request.traffic;
  const Targets& targets = request.targets;
  fmt::format_to(out, "\nFor {:.4g} requests/s at {:.0f} % use and {:.4g} ms between tokens\n",
                 traffic.requests_per_s, targets.utilisation * 100, targets.token_s * 1e3);
  fmt::format_to(out, "  batch             {} ({:.2f} ms a token; limited by {})\n", plan.batch,
                 plan.token_s * 1e3, plan.batch_limit);
  fmt::format_to(out, "  prefill workers   {}\n  decode workers    {}\n", plan.prefill_workers,
                 plan.decode_workers);
  fmt::format_to(out, "  P:D               {:.3g} : 1\n", plan.prefill_per_decode);
  WriteLink(out, request, plan);
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
  return text;
}

std::string PlanJson(const PlanRequest& request, const CapacityPlan& plan) {
  using Json = nlohmann::ordered_json;
  Json forms = Json::array(), contexts = Json::array(), decode = Json::array(),
       tiers = Json::array();
  for (const KvForm& form : plan.forms) {
    forms.push_back({{"name", form.name},
                     {"bytes_per_token", form.bytes_per_token},
                     {"resident", form.resident}});
  }
  for (const ContextCapacity& row : plan.contexts) {
    contexts.push_back({{"context_tokens", row.context_tokens},
                        {"blocks", row.blocks},
                        {"sequences", row.sequences}});
  }
  for (const DecodePoint& point : plan.decode) {
    decode.push_back({{"batch", point.batch},
                      {"token_ms", point.step_s * 1e3},
                      {"tokens_per_s", point.tokens_per_s}});
  }
  for (const TierNeed& tier : plan.tiers) {
    tiers.push_back({{"form", tier.form}, {"bytes", tier.bytes}});
  }
  const Json json = {{"hardware",
                      {{"name", request.hardware.name},
                       {"memory_bytes", request.hardware.memory_bytes},
                       {"read_bytes_per_s", request.hardware.read_bytes_per_s},
                       {"flops_per_s", request.hardware.flops_per_s},
                       {"source", request.hardware.source}}},
                     {"parameters", plan.cost.parameters},
                     {"weight_bytes", plan.cost.weight_bytes},
                     {"kv_memory_bytes", plan.kv_memory_bytes},
                     {"block_tokens", plan.cost.layout.block_tokens},
                     {"block_bytes", plan.cost.layout.BlockStride()},
                     {"blocks", plan.blocks},
                     {"kv_forms", forms},
                     {"contexts", contexts},
                     {"first_token_ms", plan.first_token_s * 1e3},
                     {"transfer_ms", plan.transfer_s * 1e3},
                     {"exposed_ms", plan.exposed_s * 1e3},
                     {"decode", decode},
                     {"batch", plan.batch},
                     {"batch_limit", plan.batch_limit},
                     {"token_ms", plan.token_s * 1e3},
                     {"prefill_workers", plan.prefill_workers},
                     {"decode_workers", plan.decode_workers},
                     {"prefill_per_decode", plan.prefill_per_decode},
                     {"link",
                      {{"bytes_per_s", plan.link.bytes_per_s},
                       {"use", plan.link.use},
                       {"overloaded", plan.link.overloaded},
                       {"links_needed", plan.link.links},
                       {"bytes_per_s_needed", plan.link.bytes_per_link},
                       {"codecs", plan.link.codecs}}},
                     {"million_tokens_price", plan.million_tokens_price},
                     {"uncached_million_tokens_price", plan.uncached_million_tokens_price},
                     {"tiers", tiers}};
  return json.dump(2) + "\n";
}

}  // namespace penstock
