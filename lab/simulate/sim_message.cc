// The messages between penstock-lab and penstock-lab-world: a job and its result, as JSON.
#include <nlohmann/json.hpp>

#include "lab/simulate/sim_options.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

// Calls field(name, value) for every field of a job.
template <class Job, class Fn>
void EachField(Job& job, const Fn& field) {
  field("trace", job.source.path);
  field("copies", job.source.copies);
  field("requests", job.source.synthetic.requests);
  field("requests_per_s", job.source.synthetic.requests_per_s);
  field("system_prompts", job.source.synthetic.system_prompts);
  field("universal_blocks", job.source.synthetic.universal_blocks);
  field("trace_seed", job.source.synthetic.seed);
  field("day_hours", job.source.day_hours);
  field("peak_over_trough", job.source.peak_over_trough);
  auto& options = job.options;
  field("workers", options.workers);
  field("decode_workers", options.decode_workers);
  field("cache_blocks", options.cache_blocks);
  field("policy", options.policy);
  field("shared_stores", options.shared_stores);
  field("rho", options.rho);
  field("speed", options.speed);
  field("index_lag_s", options.index_lag_s);
  field("seed", options.seed);
  field("chunk_tokens", options.chunk_tokens);
  field("prefill_base_ms", options.prefill.base_ms);
  field("prefill_ms_per_token", options.prefill.ms_per_token);
  field("prefill_ms_per_square", options.prefill.ms_per_square);
  field("kv_ms_per_token", options.kv_ms_per_token);
  field("step_base_ms", options.step.base_ms);
  field("step_ms_per_sequence", options.step.ms_per_sequence);
  field("step_ms_per_context_token", options.step.ms_per_context_token);
  field("decode_context_max", options.decode_context_max);
  field("tpot_limit_ms", options.tpot_limit_ms);
  field("scaler", options.scaling.scaler);
  field("workers_min", options.scaling.workers_min);
  field("workers_max", options.scaling.workers_max);
  field("start_up_s", options.scaling.start_up_s);
  field("drain_s", options.scaling.drain_s);
  field("worker_cache_blocks", options.scaling.cache_blocks);
}

}  // namespace

std::string JobText(const SimJob& job) {
  Json json;
  EachField(job, [&](const char* name, const auto& value) { json[name] = value; });
  return json.dump();
}

absl::StatusOr<SimJob> ParseJob(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  SimJob job;
  std::string missing;
  EachField(job, [&](const char* name, auto& value) {
    if (!json.is_object() || !json.contains(name)) {
      missing = name;
    } else {
      json[name].get_to(value);
    }
  });
  if (!missing.empty()) return InvalidArgument("the job has no field {}", missing);
  return job;
}

std::string ResultText(const absl::StatusOr<SimResult>& result) {
  Json json;
  if (!result.ok()) {
    json["error"] = Message(result.status());
    json["code"] = static_cast<int>(result.status().code());
    return json.dump();
  }
  for (const SimFigure& figure : kSimFigures) json[figure.name] = *result.*figure.field;
  json["ttft_s"] = result->ttft_s;
  return json.dump();
}

absl::StatusOr<SimResult> ParseResult(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Internal("the simulated world has ended without a result");
  if (json.contains("error")) {
    return absl::Status(static_cast<absl::StatusCode>(json["code"].get<int>()),
                        json["error"].get<std::string>());
  }
  SimResult result;
  for (const SimFigure& figure : kSimFigures) json[figure.name].get_to(result.*figure.field);
  json["ttft_s"].get_to(result.ttft_s);
  return result;
}

}  // namespace penstock
