#include "worker/handoff/peer_metrics.h"

#include <chrono>

namespace penstock {
namespace {

const char* NameOf(int outcome) {
  switch (outcome) {
    case v1::PeerRead::READ:
      return "read";
    case v1::PeerRead::MISSING:
      return "missing";
    case v1::PeerRead::REFUSED:
      return "refused";
    case v1::PeerRead::LATE:
      return "late";
    case v1::PeerRead::LOST:
      return "lost";
    case v1::PeerRead::NEEDLESS:
      return "needless";
    default:
      return nullptr;
  }
}

prometheus::Counter& Sends(MetricsRegistry& registry, const char* outcome) {
  return registry.Counter("penstock_kv_peer_sends_total",
                          "Prefixes that other workers requested from this one, by outcome.",
                          {{"outcome", outcome}});
}

prometheus::Counter& Blocks(MetricsRegistry& registry, const char* direction) {
  return registry.Counter("penstock_kv_peer_blocks_total",
                          "Blocks of prefixes that workers read from each other's stores.",
                          {{"direction", direction}});
}

}  // namespace

PeerReadMetrics::PeerReadMetrics(MetricsRegistry& registry, uint64_t block_bytes)
    : block_bytes_(static_cast<double>(block_bytes)),
      blocks_(Blocks(registry, "rx")),
      bytes_(registry.Counter("penstock_kv_peer_bytes_total",
                              "Bytes of KV in prefixes that came from other workers' stores.")),
      duration_(registry.Histogram("penstock_kv_peer_read_seconds",
                                   "Time that a prompt waited for a prefix from another worker's "
                                   "store, for every outcome.",
                                   LatencyBuckets())) {
  for (int outcome = 0; outcome < v1::PeerRead::Outcome_ARRAYSIZE; ++outcome) {
    if (NameOf(outcome) == nullptr) continue;
    outcomes_[static_cast<size_t>(outcome)] =
        &registry.Counter("penstock_kv_peer_reads_total",
                          "Prefixes requested from other workers' stores, by outcome.",
                          {{"outcome", NameOf(outcome)}});
  }
}

void PeerReadMetrics::OnEnded(const v1::PeerRead& read) {
  outcomes_.at(static_cast<size_t>(read.outcome()))->Increment();
  blocks_.Increment(read.blocks());
  bytes_.Increment(read.blocks() * block_bytes_);
  duration_.Observe(read.ms() / 1000);
}

PeerSendMetrics::PeerSendMetrics(MetricsRegistry& registry)
    : sent_(Sends(registry, "sent")),
      missing_(Sends(registry, "missing")),
      refused_(Sends(registry, "refused")),
      cancelled_(Sends(registry, "cancelled")),
      failed_(Sends(registry, "failed")),
      blocks_(Blocks(registry, "tx")) {}

void PeerSendMetrics::OnSent(size_t blocks) {
  sent_.Increment();
  blocks_.Increment(static_cast<double>(blocks));
}

void PeerSendMetrics::OnEnded(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return missing_.Increment();
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kInvalidArgument:
      return refused_.Increment();
    case absl::StatusCode::kCancelled:
      return cancelled_.Increment();
    default:
      return failed_.Increment();
  }
}

}  // namespace penstock
