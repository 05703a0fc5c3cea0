#include "worker/runtime/wire_metrics.h"

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "base/log/log.h"

namespace penstock {
namespace {

constexpr std::array<const char*, kWireRefusals> kReasons = {"greeting", "certificate", "limit",
                                                             "protocol", "tag"};
constexpr auto kWarningInterval = std::chrono::minutes(1);

}  // namespace

OnWireRefusal CountRefusals(MetricsRegistry& registry) {
  std::array<prometheus::Counter*, kWireRefusals> counters{};
  for (size_t i = 0; i < counters.size(); ++i) {
    counters[i] = &registry.Counter("penstock_wire_refused_total",
                                    "Connections to the wire's port that were turned away.",
                                    {{"reason", kReasons[i]}});
  }
  // Shared by all copies of the function, because every lane has one.
  const auto warned = std::make_shared<std::optional<std::chrono::steady_clock::time_point>>();
  return [counters, warned](WireRefusal refusal) {
    const auto reason = static_cast<size_t>(refusal);
    counters[reason]->Increment();
    const auto now = std::chrono::steady_clock::now();
    if (*warned && now - **warned < kWarningInterval) return;
    *warned = now;
    LogWarning("wire_connection_refused",
               "a connection to the wire's port was turned away ({}); further ones are counted in "
               "penstock_wire_refused_total and not logged for a minute",
               kReasons[reason]);
  };
}

void AddDetourMetric(MetricsRegistry& registry, const GpuHost* gpu) {
  prometheus::Counter& detours = registry.Counter(
      "penstock_kv_gpu_detours_total",
      "Slabs of KV that crossed page-locked host memory between the GPUs of this worker.");
  registry.BeforeScrape([&detours, gpu, shown = uint64_t{0}]() mutable {
    const uint64_t slabs = gpu == nullptr ? 0 : gpu->slab_detours().slabs;
    detours.Increment(static_cast<double>(slabs - std::exchange(shown, slabs)));
  });
}

}  // namespace penstock
