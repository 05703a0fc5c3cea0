#include "worker/handoff/held_metrics.h"

#include <array>
#include <chrono>
#include <memory>
#include <utility>

namespace penstock {
namespace {

// Pages are held for a silent peer until its lease (3 s) has passed, and at most 5 s.
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

// Counts slabs that have landed in one kind of memory.
class Landed {
 public:
  Landed(MetricsRegistry& registry, const char* memory)
      : counter_(registry.Counter("penstock_kv_landed_slabs_total",
                                  "Received slabs of KV, by the memory they landed in.",
                                  {{"memory", memory}})) {}
  void Show(uint64_t count) {
    counter_.Increment(static_cast<double>(count - std::exchange(shown_, count)));
  }

 private:
  prometheus::Counter& counter_;
  uint64_t shown_ = 0;
};

}  // namespace

void AddHeldMetrics(MetricsRegistry& registry, const KvSender& sender, const KvReceiver& receiver) {
  const Gauges gauges = GaugesIn(registry);
  prometheus::Gauge& quarantined =
      registry.Gauge("penstock_kv_blocks_quarantined",
                     "Blocks of handoffs that have ended while a write into them was under way.");
  const auto host = std::make_shared<Landed>(registry, "host");
  const auto gpu = std::make_shared<Landed>(registry, "gpu");
  registry.BeforeScrape([gauges, &quarantined, host, gpu, &sender, &receiver] {
    Show(sender.held(), gauges);
    const KvReceiverLoad load = receiver.load();
    quarantined.Set(static_cast<double>(load.quarantined_blocks));
    host->Show(load.landed_in_host);
    gpu->Show(load.landed_in_device);
  });
}

}  // namespace penstock
