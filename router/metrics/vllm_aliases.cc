#include "router/metrics/vllm_aliases.h"

namespace penstock {
namespace {

// vLLM's buckets, so that quantiles of both systems can be compared in one dashboard.
std::vector<double> NextTokenBuckets() {
  return {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
}
std::vector<double> TotalBuckets() {
  return {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
          30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
}

// 1, 2 and 5 times each power of ten, up to a million.
std::vector<double> TokenBuckets() {
  std::vector<double> bounds;
  for (double power = 1; power < 1e6; power *= 10) {
    for (const double mantissa : {1, 2, 5}) bounds.push_back(mantissa * power);
  }
  bounds.push_back(1e6);
  return bounds;
}

MetricsRegistry::Labels LabelsOf(const std::string& model_name) {
  return {{"model_name", model_name}, {"engine", "0"}};
}

prometheus::Counter& Success(MetricsRegistry& registry, const std::string& model_name,
                             const std::string& finish) {
  MetricsRegistry::Labels labels = LabelsOf(model_name);
  labels["finished_reason"] = finish;
  return registry.Counter("vllm:request_success_total", "Successful requests.", labels);
}

}  // namespace

std::vector<double> FirstTokenBuckets() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
          1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
}

VllmAliases::VllmAliases(MetricsRegistry& registry, const std::string& model_name)
    : first_token(registry.Histogram("vllm:time_to_first_token_seconds",
                                     "Alias of penstock_time_to_first_token_seconds.",
                                     FirstTokenBuckets(), LabelsOf(model_name))),
      next_token(registry.Histogram("vllm:inter_token_latency_seconds",
                                    "Alias of penstock_inter_token_latency_seconds.",
                                    NextTokenBuckets(), LabelsOf(model_name))),
      total(registry.Histogram("vllm:e2e_request_latency_seconds",
                               "Alias of penstock_request_duration_seconds, successful requests.",
                               TotalBuckets(), LabelsOf(model_name))),
      queue(
          registry.Histogram("vllm:request_queue_time_seconds",
                             "Time that a request waited, in the router and in the prefill worker.",
                             TotalBuckets(), LabelsOf(model_name))),
      prefill(registry.Histogram("vllm:request_prefill_time_seconds",
                                 "Time from the start of a prompt's compute to its end.",
                                 TotalBuckets(), LabelsOf(model_name))),
      decode(registry.Histogram("vllm:request_decode_time_seconds",
                                "Time from the first token of an answer to the last.",
                                TotalBuckets(), LabelsOf(model_name))),
      prompt(registry.Histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.",
                                TokenBuckets(), LabelsOf(model_name))),
      answer(registry.Histogram("vllm:request_generation_tokens",
                                "Output tokens of a request, over all choices.", TokenBuckets(),
                                LabelsOf(model_name))),
      stopped(Success(registry, model_name, "stop")),
      reached_length(Success(registry, model_name, "length")),
      prompt_tokens(registry.Counter("vllm:prompt_tokens_total",
                                     "Alias of penstock_prompt_tokens_total.",
                                     LabelsOf(model_name))),
      generation_tokens(registry.Counter("vllm:generation_tokens_total",
                                         "Alias of penstock_output_tokens_total.",
                                         LabelsOf(model_name))) {}

}  // namespace penstock
