#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/metrics/metrics.h"
#include "proto/inference.pb.h"
#include "router/metrics/finished_requests.h"
#include "router/metrics/session_timing.h"
#include "router/metrics/tenant_usage.h"
#include "router/metrics/vllm_aliases.h"

namespace penstock {

// Room router/metrics: counts and times what clients get, under Penstock's and vLLM's metric names.
// It knows the statuses and figures of finished requests; it may not know workers, placement or
// how a session runs.

// The `status` label of a finished request, one of kStatuses.
inline constexpr const char* kServerError = "server_error";
inline constexpr const char* kStatuses[] = {"ok",        "client_error", "rejected",
                                            "cancelled", "timeout",      kServerError};
std::string_view OutcomeOf(const absl::Status& status);

// The API method of a request.
enum class Endpoint {
  kChat,
  kCompletions,
  kMessages,
  kResponses,
  kEmbeddings,
  kGenerate,
  kGenerateUnary,
  kWarmPrefix
};
inline constexpr size_t kEndpoints = 8;

// The service-level objectives of requests (--ttft_target_ms, --tpot_target_ms).
struct SloTargets {
  Duration first_token = std::chrono::seconds(2);
  Duration per_token = std::chrono::milliseconds(100);  // mean over a request's later tokens
};

// Whose request it is and when it came.
struct RequestOrigin {
  Endpoint endpoint;
  TimePoint received;
  std::string request_id = {};
  std::string trace_id = {};  // empty: no trace
  std::string tenant = {};    // empty: none
};

// Counters and histograms of requests as clients see them. The registry outlives it. Any thread.
class RequestMetrics {
 public:
  RequestMetrics(MetricsRegistry& registry, const SloTargets& targets,
                 const std::string& model_name);

  // A request was refused before it had a session.
  void OnRefused(Endpoint endpoint, const absl::Status& status);
  // Counts the reason of a refusal only, for requests that do not generate.
  void CountRefusal(const absl::Status& status);
  void OnPrepared(Duration took);  // the request is checked, templated and tokenized
  // `trace_id` may be empty.
  void OnFirstToken(Duration since_received, const std::string& trace_id);
  void OnNextTokens(Duration since_last, int tokens, const std::string& trace_id);
  struct Ended {
    const RequestOrigin& origin;
    const absl::Status& status;
    const SessionTiming& timing;
    TimePoint end;
    Duration first_token;   // since receipt; only valid when tokens_shown > 0
    Duration answering;     // from the first token shown to the last
    uint64_t tokens_shown;  // over all choices
    uint32_t choices;
    bool stopped;  // the last choice ended by a stop token or string, not by its length
  };
  void OnEnded(const Ended& ended);

  // A histogram: upper bounds of the buckets, of which the last is infinity, and observations.
  struct Spread {
    std::vector<double> bounds;    // seconds
    std::vector<uint64_t> counts;  // cumulative, one for each bound
  };
  // Totals since the start, for the page. Prometheus reads the registry.
  struct Totals {
    uint64_t ended = 0;  // requests, with any outcome
    uint64_t refused = 0;
    uint64_t succeeded = 0;
    uint64_t failed = 0;       // server errors and deadlines that passed
    uint64_t in_time = 0;      // successful requests that met both targets
    uint64_t first_late = 0;   // successful requests that missed the target of TTFT
    uint64_t tokens_slow = 0;  // successful requests that missed the target of TPOT
    std::map<std::string, uint64_t> refused_by;  // by reason, without those that did not occur
    uint64_t prompt_tokens = 0;                  // prompt tokens of requests that have ended
    uint64_t cached_tokens = 0;
    Spread first_token_s;
    Spread next_token_s;
  };
  Totals totals() const;
  const SloTargets& targets() const { return targets_; }
  const FinishedRequests& finished() const { return finished_; }

 private:
  void CountEnd(Endpoint endpoint, const absl::Status& status, const std::string& finish);
  void CountTokens(const Ended& ended);
  void AddToVllm(const Ended& ended);  // successful requests
  void JudgeTimes(const Ended& ended);
  void Remember(const Ended& ended);
  // The requests that ended with this status, over all endpoints.
  uint64_t EndedWith(std::string_view status) const;

  const SloTargets targets_;
  std::map<std::string, prometheus::Counter*> requests_;    // by endpoint, status and finish
  std::map<std::string, prometheus::Counter*> refused_;     // by reason
  std::map<std::string, TracedHistogram*> total_;           // by status
  std::array<prometheus::Histogram*, kStages> stages_;      // by Stage
  std::map<std::string, prometheus::Counter*> migrations_;  // by reason
  prometheus::Histogram& migration_gap_;
  prometheus::Histogram& prepare_;
  TracedHistogram& first_token_;
  TracedHistogram& next_token_;
  prometheus::Histogram& token_;
  prometheus::Histogram& prompt_tokens_;
  prometheus::Histogram& cached_tokens_;
  prometheus::Histogram& answer_tokens_;
  prometheus::Counter& prompt_total_;
  prometheus::Counter& cached_total_;
  prometheus::Counter& recomputed_total_;
  prometheus::Counter& answer_total_;
  prometheus::Counter& left_waiting_;    // clients that left before the first token
  prometheus::Counter& left_answering_;  // clients that left after the first token
  prometheus::Counter& first_token_late_;
  prometheus::Counter& tokens_slow_;
  prometheus::Counter& late_first_tokens_;
  prometheus::Counter& late_next_tokens_;
  prometheus::Counter& goodput_;
  TenantUsage tenants_;
  VllmAliases vllm_;
  FinishedRequests finished_;
};

// Measures one request's answer. Its session's lock guards it. `metrics` outlives it.
class RequestMeter {
 public:
  RequestMeter(RequestMetrics& metrics, RequestOrigin origin)
      : metrics_(metrics), origin_(std::move(origin)) {}

  void OnShown(uint32_t choice, int tokens, TimePoint now);
  void OnSent(const v1::GenerateResponse& response);
  uint64_t tokens() const { return tokens_; }
  void OnFinished(const absl::Status& status, const SessionTiming& timing, TimePoint now);

 private:
  RequestMetrics& metrics_;
  const RequestOrigin origin_;
  std::map<uint32_t, TimePoint> last_;  // by choice; at most 16
  TimePoint first_;
  TimePoint latest_;
  uint64_t tokens_ = 0;
  bool stopped_ = false;
};

// Gauges of a router that are set at each scrape. The registry outlives it.
struct RouterGauges {
  explicit RouterGauges(MetricsRegistry& registry);
  prometheus::Gauge& open;
  prometheus::Gauge& waiting;
  std::map<std::pair<std::string, std::string>, prometheus::Gauge*> workers;  // by role and state
};

}  // namespace penstock
