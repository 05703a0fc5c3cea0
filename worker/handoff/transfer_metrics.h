#pragma once

#include <map>
#include <string>

#include "base/clock.h"
#include "base/metrics/metrics.h"
#include "kvstore/handoff/kv_sender.h"

namespace penstock {

// Handoffs of KV, as one side of them sees it. Any thread.
class TransferMetrics {
 public:
  enum class Direction { kSent, kReceived };
  TransferMetrics(MetricsRegistry& registry, Direction direction);

  void OnCommitted() { outcomes_.at("ok")->Increment(); }
  // Of the sender, which knows more. `took`: from the offer to Committed.
  void OnCommitted(const KvSendStats& stats, Duration took);
  void OnFailed(const absl::Status& status);
  // Of a sender.
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

  std::map<std::string, Codec> codecs_;                   // all of them; of a sender only
  std::map<std::string, prometheus::Counter*> outcomes_;  // all of them
  std::map<std::string, Lane> lanes_;                     // all of them; of a sender only
  prometheus::Histogram* exposed_ = nullptr;              // of a sender only
  prometheus::Histogram* first_slab_ = nullptr;           // likewise
};

}  // namespace penstock
