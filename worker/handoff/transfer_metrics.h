#pragma once

#include <map>
#include <string>

#include "base/clock.h"
#include "base/metrics/metrics.h"
#include "kvstore/handoff/kv_sender.h"

namespace penstock {

// Metrics of handoffs, for one of their sides. Any thread.
class TransferMetrics {
 public:
  enum class Direction { kSent, kReceived };
  TransferMetrics(MetricsRegistry& registry, Direction direction);

  void OnCommitted() { outcomes_.at("ok")->Increment(); }
  // For a sender. `took`: from the offer to Committed.
  void OnCommitted(const KvSendStats& stats, Duration took);
  void OnFailed(const absl::Status& status);
  // For a sender.
  void OnSlab(const KvSlabReport& report);

 private:
  struct Lane {
    prometheus::Counter* bytes;
    prometheus::Counter* wire_bytes;
    prometheus::Histogram* duration;
  };
  struct Codec {
    prometheus::Counter* slabs;
    prometheus::Counter* bytes_in;
    prometheus::Counter* bytes_out;
    prometheus::Counter* encoding;
    prometheus::Counter* predicted;
    prometheus::Counter* actual;
  };
  static Codec CountersOf(MetricsRegistry& registry, const std::string& codec);

  std::map<std::string, Codec> codecs_;                   // all names; senders only
  std::map<std::string, prometheus::Counter*> outcomes_;  // all names
  std::map<std::string, Lane> lanes_;                     // all names; senders only
  prometheus::Histogram* exposed_ = nullptr;              // senders only
  prometheus::Histogram* first_slab_ = nullptr;           // senders only
};

}  // namespace penstock
