#include "worker/held_metrics.h"

#include <array>
#include <chrono>
#include <memory>

namespace penstock {
namespace {

// A peer that is silent for its lease (3 s) loses what is held for it within 5 s.
struct Age {
  const char* name;
  Duration below;
};
constexpr Age kAges[] = {{"0-1s", std::chrono::seconds(1)},
                         {"1-5s", std::chrono::seconds(5)},
                         {"5-30s", std::chrono::seconds(30)},
                         {"30s-", Duration::max()}};

using Gauges = std::array<prometheus::Gauge*, std::size(kAges)>;

Gauges GaugesIn(MetricsRegistry& registry) {
  Gauges gauges{};
  for (size_t i = 0; i < gauges.size(); ++i) {
    gauges[i] = &registry.Gauge("penstock_kv_blocks_held",
                                "Blocks that handoffs hold until the other side has committed.",
                                {{"age", kAges[i].name}});
  }
  return gauges;
}

void Show(const std::vector<KvHeld>& held, const Gauges& gauges) {
  std::array<int64_t, std::size(kAges)> blocks{};
  for (const KvHeld& one : held) {
    size_t age = 0;
    while (one.age >= kAges[age].below && age + 1 < blocks.size()) ++age;
    blocks[age] += one.blocks;
  }
  for (size_t i = 0; i < gauges.size(); ++i) gauges[i]->Set(static_cast<double>(blocks[i]));
}

}  // namespace

void AddHeldMetrics(MetricsRegistry& registry, const KvSender& sender, const KvReceiver& receiver) {
  const Gauges gauges = GaugesIn(registry);
  prometheus::Gauge& quarantined =
      registry.Gauge("penstock_kv_blocks_quarantined",
                     "Blocks of handoffs that have ended while a write into them was under way.");
  registry.BeforeScrape([gauges, &quarantined, &sender, &receiver] {
    Show(sender.held(), gauges);
    quarantined.Set(static_cast<double>(receiver.load().quarantined_blocks));
  });
}

}  // namespace penstock
