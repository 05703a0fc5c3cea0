#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/metrics/metrics.h"
#include "proto/inference.pb.h"
#include "router/metrics/session_timing.h"
#include "router/metrics/vllm_aliases.h"

namespace penstock {

// How a request ended: "ok", "client_error", "rejected", "cancelled" or kServerError.
inline constexpr std::string_view kServerError = "server_error";
std::string_view OutcomeOf(const absl::Status& status);

// What was called.
enum class Endpoint { kChat, kCompletions, kGenerate, kGenerateUnary, kWarmPrefix };
inline constexpr size_t kEndpoints = 5;

// What requests should get.
struct SloTargets {
  Duration first_token = std::chrono::seconds(2);
  Duration per_token = std::chrono::milliseconds(100);  // mean of a request, without its first
};

// What clients get, counted: outcomes, and times as they see them. Any thread.
class RequestMetrics {
 public:
  RequestMetrics(MetricsRegistry& registry, const SloTargets& targets,
                 const std::string& model_name);

  // A request that never became a session.
  void OnRefused(Endpoint endpoint, const absl::Status& status);
  void OnPrepared(Duration took);  // checked, templated and tokenized
  void OnFirstToken(Duration since_received);
  void OnNextTokens(Duration since_last, int tokens);
  struct Ended {
    Endpoint endpoint;
    const absl::Status& status;
    const SessionTiming& timing;
    Duration total;
    Duration first_token;   // where tokens_shown is not 0
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
  void CountEnd(Endpoint endpoint, const absl::Status& status, const std::string& finish);
  void CountTokens(const Ended& ended);
  void JudgeTimes(const Ended& ended);

  const SloTargets targets_;
  std::map<std::string, prometheus::Counter*> requests_;    // by endpoint, status and finish
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
  prometheus::Histogram& cached_tokens_;
  prometheus::Histogram& answer_tokens_;
  prometheus::Counter& prompt_total_;
  prometheus::Counter& cached_total_;
  prometheus::Counter& recomputed_total_;
  prometheus::Counter& answer_total_;
  prometheus::Counter& left_waiting_;    // clients, before the first token
  prometheus::Counter& left_answering_;  // ... and after it
  prometheus::Counter& first_token_late_;
  prometheus::Counter& tokens_slow_;
  prometheus::Counter& goodput_;
  VllmAliases vllm_;
};

// Watches one request's answer go by. Under its session's lock.
class RequestMeter {
 public:
  RequestMeter(RequestMetrics& metrics, Endpoint endpoint, TimePoint received)
      : metrics_(metrics), endpoint_(endpoint), received_(received) {}

  void OnShown(uint32_t choice, int tokens, TimePoint now);
  void OnSent(const v1::GenerateResponse& response);
  uint64_t tokens() const { return tokens_; }
  void OnFinished(const absl::Status& status, const SessionTiming& timing, TimePoint now);

 private:
  RequestMetrics& metrics_;
  const Endpoint endpoint_;
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
  prometheus::Gauge& waiting;
  std::map<std::pair<std::string, std::string>, prometheus::Gauge*> workers;  // by role and state
};

}  // namespace penstock
