#include "worker/worker_metrics.h"

#include <memory>
#include <utility>

namespace penstock {
namespace {

struct WorkerMetrics {
  explicit WorkerMetrics(MetricsRegistry& registry)
      : blocks_used(Blocks(registry, "used")),
        blocks_promised(Blocks(registry, "promised")),
        blocks_cached(Blocks(registry, "cached")),
        blocks_free(Blocks(registry, "free")),
        running(registry.Gauge("penstock_requests_running", "Requests that are being computed.")),
        waiting(registry.Gauge("penstock_requests_waiting", "Requests that wait for a place.")),
        waiting_tokens(registry.Gauge("penstock_request_waiting_tokens",
                                      "Prompt tokens that are still to be computed.")),
        handoffs(registry.Gauge("penstock_kv_transfers_inflight", "Handoffs that are open.")),
        steps(registry.Counter("penstock_scheduler_steps_total",
                               "Engine steps: forward progress while requests run.")) {}

  static prometheus::Gauge& Blocks(MetricsRegistry& registry, const std::string& state) {
    return registry.Gauge("penstock_kv_blocks", "Blocks of the KV pool by what holds them.",
                          {{"tier", "device"}, {"state", state}});
  }

  void Show(const v1::WorkerState& state) {
    const auto used = static_cast<double>(state.kv_blocks_used());
    const auto promised = static_cast<double>(state.kv_blocks_promised());
    const auto cached = static_cast<double>(state.kv_blocks_cached());
    blocks_used.Set(used);
    blocks_promised.Set(promised);
    blocks_cached.Set(cached);
    blocks_free.Set(static_cast<double>(state.kv_blocks_total()) - used - promised - cached);
    running.Set(state.running());
    waiting.Set(state.waiting());
    waiting_tokens.Set(static_cast<double>(state.waiting_tokens()));
    handoffs.Set(state.handoffs());
    steps.Increment(static_cast<double>(state.steps()) - steps.Value());
  }

  prometheus::Gauge& blocks_used;
  prometheus::Gauge& blocks_promised;
  prometheus::Gauge& blocks_cached;
  prometheus::Gauge& blocks_free;
  prometheus::Gauge& running;
  prometheus::Gauge& waiting;
  prometheus::Gauge& waiting_tokens;
  prometheus::Gauge& handoffs;
  prometheus::Counter& steps;
};

}  // namespace

void AddWorkerMetrics(MetricsRegistry& registry, std::function<v1::WorkerState()> state) {
  auto metrics = std::make_shared<WorkerMetrics>(registry);
  registry.BeforeScrape([metrics, state = std::move(state)] { metrics->Show(state()); });
}

}  // namespace penstock
