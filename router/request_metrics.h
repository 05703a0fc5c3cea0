#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "proto/inference.pb.h"
#include "router/session_timing.h"

namespace penstock {

// How a request ended: "ok", "client_error", "rejected", "cancelled" or kServerError.
inline constexpr std::string_view kServerError = "server_error";
std::string_view OutcomeOf(const absl::Status& status);

// What clients get, counted: outcomes, and times as they see them. Any thread.
class RequestMetrics {
 public:
  explicit RequestMetrics(MetricsRegistry& registry);

  // A request that never became a session.
  void OnRefused(const absl::Status& status);
  void OnPrepared(Duration took);  // checked, templated and tokenized
  void OnFirstToken(Duration since_received);
  void OnNextTokens(Duration since_last, int tokens);
  struct Ended {
    const absl::Status& status;
    const SessionTiming& timing;
    Duration total;
    Duration answering;     // from the first token shown to the last
    uint64_t tokens_shown;  // of all choices
    uint32_t choices;
    bool stopped;  // the last choice ended by a stop, not by length
  };
  void OnEnded(const Ended& ended);

  // A histogram's bounds and how much lies at or below each; the last is infinity.
  struct Spread {
    std::vector<double> bounds;
    std::vector<uint64_t> counts;  // cumulative
  };
  // Since the start. For the page; Prometheus reads the registry.
  struct Totals {
    uint64_t ended = 0;  // requests, by any end
    uint64_t refused = 0;
    uint64_t prompt_tokens = 0;  // of requests that have ended
    uint64_t cached_tokens = 0;
    Spread first_token_s;
    Spread next_token_s;
  };
  Totals totals() const;

 private:
  void CountEnd(const absl::Status& status, const std::string& finish);

  std::map<std::string, prometheus::Counter*> requests_;    // by status and finish
  std::map<std::string, prometheus::Counter*> refused_;     // by reason
  std::map<std::string, prometheus::Histogram*> total_;     // by status
  std::array<prometheus::Histogram*, kStages> stages_;      // by Stage
  std::map<std::string, prometheus::Counter*> migrations_;  // by reason
  prometheus::Histogram& migration_gap_;
  prometheus::Histogram& prepare_;
  prometheus::Histogram& first_token_;
  prometheus::Histogram& next_token_;
  prometheus::Histogram& token_;
  prometheus::Histogram& prompt_tokens_;
  prometheus::Histogram& answer_tokens_;
  prometheus::Counter& prompt_total_;
  prometheus::Counter& cached_total_;
  prometheus::Counter& recomputed_total_;
  prometheus::Counter& answer_total_;
};

// Watches one request's answer go by. Under its session's lock.
class RequestMeter {
 public:
  RequestMeter(RequestMetrics& metrics, TimePoint received)
      : metrics_(metrics), received_(received) {}

  void OnShown(uint32_t choice, int tokens, TimePoint now);
  void OnSent(const v1::GenerateResponse& response);
  uint64_t tokens() const { return tokens_; }
  void OnFinished(const absl::Status& status, const SessionTiming& timing, TimePoint now);

 private:
  RequestMetrics& metrics_;
  const TimePoint received_;
  std::map<uint32_t, TimePoint> last_;  // by choice; at most 16
  TimePoint first_;
  TimePoint latest_;
  uint64_t tokens_ = 0;
  bool stopped_ = false;
};

// Gauges of a router that are read at each scrape.
struct RouterGauges {
  explicit RouterGauges(MetricsRegistry& registry);
  prometheus::Gauge& open;
  std::map<std::pair<std::string, std::string>, prometheus::Gauge*> workers;  // by role and state
};

}  // namespace penstock
