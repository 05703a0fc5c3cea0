#include "worker/engine/metered_runner.h"

#include <chrono>

namespace penstock {
namespace {

std::vector<double> TokenBuckets() {
  return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
}

}  // namespace

StepMetrics::StepMetrics(MetricsRegistry& registry, const std::string& phase)
    : tokens(registry.Histogram("penstock_iteration_tokens", "Tokens computed in one engine step.",
                                TokenBuckets(), {{"phase", phase}})),
      duration(registry.Histogram("penstock_iteration_duration_seconds",
                                  "Duration of one engine step.", StepBuckets(),
                                  {{"phase", phase}})),
      computed(registry.Counter("penstock_computed_tokens_total",
                                "Tokens computed by the model, answer tokens included.",
                                {{"phase", phase}})),
      answers(registry.Counter("penstock_generation_tokens_total",
                               "Tokens sampled from logits of this worker.", {{"phase", phase}})) {}

absl::Status MeteredRunner::Step(const StepArgs& args) {
  int64_t tokens = 0, answers = 0;
  for (const SequenceStep& sequence : args.sequences) {
    tokens += static_cast<int64_t>(sequence.tokens.size());
    answers += sequence.wants_last() ? 1 : 0;
  }
  StepArgs beating = args;
  if (args.on_layers_done == nullptr) beating.layers_per_group = 1;
  beating.on_layers_done = [&](int32_t first, int32_t last) {
    progress_.Beat();
    if (args.on_layers_done != nullptr) args.on_layers_done(first, last);
  };
  const TimePoint start = clock_.Now();
  absl::Status status = runner_.Step(beating);
  if (!status.ok()) return status;
  const Duration took = clock_.Now() - start;
  metrics_.duration.Observe(std::chrono::duration<double>(took).count());
  busy_us_.fetch_add(static_cast<uint64_t>(took.count()) / 1000, std::memory_order_relaxed);
  metrics_.tokens.Observe(static_cast<double>(tokens));
  metrics_.computed.Increment(static_cast<double>(tokens));
  metrics_.answers.Increment(static_cast<double>(answers - static_cast<int64_t>(args.guesses)));
  return status;
}

}  // namespace penstock
