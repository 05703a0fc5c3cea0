#pragma once

#include <array>

#include "base/clock.h"
#include "base/metrics/metrics.h"
#include "proto/worker.pb.h"

namespace penstock {

// Metrics of prefixes that this worker reads from other workers' stores. Any thread.
class PeerReadMetrics {
 public:
  explicit PeerReadMetrics(MetricsRegistry& registry, uint64_t block_bytes);
  // The outcome of `read` is a known one.
  void OnEnded(const v1::PeerRead& read);

 private:
  const double block_bytes_;
  std::array<prometheus::Counter*, v1::PeerRead::Outcome_ARRAYSIZE> outcomes_{};
  prometheus::Counter& blocks_;
  prometheus::Counter& bytes_;
  prometheus::Histogram& duration_;
};

// Metrics of prefixes that this worker sends to other workers. Any thread.
class PeerSendMetrics {
 public:
  explicit PeerSendMetrics(MetricsRegistry& registry);
  void OnSent(size_t blocks);
  void OnEnded(const absl::Status& status);  // without being sent

 private:
  prometheus::Counter& sent_;
  prometheus::Counter& missing_;
  prometheus::Counter& refused_;
  prometheus::Counter& cancelled_;
  prometheus::Counter& failed_;
  prometheus::Counter& blocks_;
};

}  // namespace penstock
