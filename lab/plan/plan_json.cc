#include <nlohmann/json.hpp>

#include "lab/plan/plan_report.h"

namespace penstock {
namespace {

using PlanFields = nlohmann::ordered_json;

PlanFields HardwareJson(const Hardware& hardware) {
  return {{"name", hardware.name},
          {"memory_bytes", hardware.memory_bytes},
          {"reserve_bytes", hardware.reserve_bytes},
          {"read_bytes_per_s", hardware.read_bytes_per_s},
          {"flops_per_s", hardware.flops_per_s},
          {"source", hardware.source},
          {"interconnect", hardware.interconnect},
          {"interconnect_bytes_per_s", hardware.interconnect_bytes_per_s}};
}

PlanFields RoleJson(const RolePlan& role, double use, double exchange_share) {
  return {{"workers", role.workers},
          {"tensor_parallel", role.worker.degree},
          {"devices", role.devices()},
          {"utilisation", use},
          {"blocks", role.blocks},
          {"device_weight_bytes", role.worker.DeviceWeightBytes()},
          {"device_kv_memory_bytes", role.kv_memory_bytes},
          {"device_block_bytes", role.worker.DeviceLayout().FirstCopies().BlockStride()},
          {"exchange_share", exchange_share}};
}

PlanFields FormsJson(const CapacityPlan& plan) {
  PlanFields forms = PlanFields::array();
  for (const KvForm& form : plan.forms) {
    forms.push_back({{"name", form.name},
                     {"bytes_per_token", form.bytes_per_token},
                     {"resident", form.resident}});
  }
  return forms;
}

PlanFields ContextsJson(const CapacityPlan& plan) {
  PlanFields contexts = PlanFields::array();
  for (const ContextCapacity& row : plan.contexts) {
    contexts.push_back({{"context_tokens", row.context_tokens},
                        {"blocks", row.blocks},
                        {"rows", row.rows},
                        {"sequences", row.sequences}});
  }
  return contexts;
}

PlanFields StepsJson(const CapacityPlan& plan) {
  PlanFields steps = PlanFields::array();
  for (const DecodePoint& point : plan.steps) {
    steps.push_back({{"batch", point.batch},
                     {"token_ms", point.step_s * 1e3},
                     {"tokens_per_s", point.tokens_per_s}});
  }
  return steps;
}

PlanFields TiersJson(const CapacityPlan& plan) {
  PlanFields tiers = PlanFields::array();
  for (const TierNeed& tier : plan.tiers) {
    tiers.push_back({{"form", tier.form}, {"bytes", tier.bytes}});
  }
  return tiers;
}

PlanFields TrafficJson(const PlanRequest& request, const CapacityPlan& plan) {
  const Traffic& traffic = request.traffic;
  PlanFields json = {{"requests_per_s", traffic.requests_per_s},
                     {"prompt_tokens", traffic.prompt_tokens},
                     {"answer_tokens", traffic.answer_tokens},
                     {"longest_tokens", traffic.Longest()},
                     {"hit_ratio", traffic.hit_ratio}};
  if (!traffic.prompts.empty()) {
    json["trace_requests"] = traffic.prompts.size();
    json["hit_ratio_of_unlimited_caches"] = plan.hit_ratio_max;
  }
  return json;
}

PlanFields LinkJson(const CapacityPlan& plan) {
  return {{"form", plan.wire.name},
          {"bytes_per_s", plan.link.bytes_per_s},
          {"use", plan.link.use},
          {"overloaded", plan.link.overloaded},
          {"links_needed", plan.link.links},
          {"bytes_per_s_needed", plan.link.bytes_per_link},
          {"codecs", plan.link.codecs}};
}

}  // namespace

// kv_memory_bytes and blocks are a decode worker's.
std::string PlanJson(const PlanRequest& request, const CapacityPlan& plan) {
  const int64_t saved = plan.without_cache.prefill_workers - plan.prefill.workers;
  const PlanFields json = {
      {"hardware", HardwareJson(request.hardware)},
      {"parameters", plan.cost.weights.elements()},
      {"weights", plan.cost.weights.form},
      {"weight_bytes", plan.cost.weight_bytes()},
      {"kv_format", KvPageFormatName(request.kv_format)},
      {"kv_memory_bytes", plan.decode.kv_memory_bytes * uint64_t(plan.decode.worker.degree)},
      {"block_tokens", plan.cost.layout.block_tokens},
      {"block_bytes", plan.cost.layout.FirstCopies().BlockStride()},
      {"blocks", plan.decode.blocks},
      {"rows", plan.decode.rows},
      {"kv_forms", FormsJson(plan)},
      {"contexts", ContextsJson(plan)},
      {"traffic", TrafficJson(request, plan)},
      {"first_token_ms", plan.first_token_s * 1e3},
      {"transfer_ms", plan.transfer_s * 1e3},
      {"exposed_ms", plan.exposed_s * 1e3},
      {"decode", StepsJson(plan)},
      {"batch", plan.batch.batch},
      {"batch_limit", plan.batch.limit},
      {"token_ms", plan.batch.token_s * 1e3},
      {"prefill_workers", plan.prefill.workers},
      {"decode_workers", plan.decode.workers},
      {"devices", plan.devices()},
      {"roles",
       {{"prefill", RoleJson(plan.prefill, plan.prefill_use, plan.prefill_exchange_share)},
        {"decode", RoleJson(plan.decode, plan.decode_use, plan.decode_exchange_share)}}},
      {"prefill_per_decode", plan.prefill_per_decode},
      {"link", LinkJson(plan)},
      {"uncached_prefill_workers", plan.without_cache.prefill_workers},
      {"cache_saves_devices", saved * plan.prefill.worker.degree},
      {"million_tokens_price", plan.million_tokens_price},
      {"uncached_million_tokens_price", plan.without_cache.million_tokens_price},
      {"tiers", TiersJson(plan)},
      {"warnings", plan.warnings}};
  return json.dump(2) + "\n";
}

}  // namespace penstock
