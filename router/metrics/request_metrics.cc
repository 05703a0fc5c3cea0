#include "router/metrics/request_metrics.h"

#include <chrono>

#include "router/request/error_detail.h"

namespace penstock {
namespace {

constexpr const char* kEndpointNames[kEndpoints] = {"chat",           "completions", "messages",
                                                    "responses",      "embeddings",  "generate",
                                                    "generate_unary", "warm_prefix"};
constexpr const char* kReasons[] = {kReasonContextLength, kReasonOverloaded, kReasonQueueFull,
                                    kReasonTooSlow,       kReasonDraining,   kReasonNoWorker,
                                    kReasonModel,         kReasonQuota,      "other"};
constexpr const char* kStageNames[kStages] = {"route",   "credit", "queue",        "prefill",
                                              "exposed", "commit", "first_decode", "write"};

// vLLM's buckets, with finer ones below for small models.
std::vector<double> TokenTimeBuckets() {
  return {.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3,
          .4,   .5,    .75,  1,   2.5,  5,   7.5,  10, 20,  40, 80};
}
std::vector<double> CountBuckets() {
  return {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
          2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
}

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string EndKey(Endpoint endpoint, std::string_view status, const std::string& finish) {
  return fmt::format("{} {} {}", kEndpointNames[static_cast<size_t>(endpoint)], status, finish);
}

prometheus::Counter& Disconnects(MetricsRegistry& registry, const std::string& phase) {
  return registry.Counter("penstock_client_disconnects_total",
                          "Requests whose client disconnected before the answer was complete.",
                          {{"phase", phase}});
}

prometheus::Counter& Violations(MetricsRegistry& registry, const std::string& slo) {
  return registry.Counter("penstock_slo_violations_total",
                          "Successful requests that missed their latency target.", {{"slo", slo}});
}

prometheus::Counter& LateTokens(MetricsRegistry& registry, const std::string& slo) {
  return registry.Counter("penstock_late_tokens_total",
                          "First tokens later than the TTFT target (ttft), and tokens that came "
                          "later after the one before than the TPOT target (tpot).",
                          {{"slo", slo}});
}

void ShowTarget(MetricsRegistry& registry, const std::string& slo, Duration target) {
  registry
      .Gauge("penstock_slo_target_seconds",
             "Latency target in seconds (--ttft_target_ms, --tpot_target_ms).", {{"slo", slo}})
      .Set(Seconds(target));
}

prometheus::Histogram& StageHistogram(MetricsRegistry& registry, const char* stage) {
  return registry.Histogram("penstock_request_stage_seconds",
                            "Time spent in each stage of a request, in seconds.", LatencyBuckets(),
                            {{"stage", stage}});
}

}  // namespace

std::string_view OutcomeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return "ok";
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return "client_error";
    case absl::StatusCode::kResourceExhausted:
      return "rejected";
    case absl::StatusCode::kCancelled:
      return "cancelled";
    case absl::StatusCode::kDeadlineExceeded:
      return "timeout";
    default:
      return kServerError;
  }
}

RequestMetrics::RequestMetrics(MetricsRegistry& registry, const SloTargets& targets,
                               const std::string& model_name)
    : targets_(targets),
      migration_gap_(registry.Histogram("penstock_migration_gap_seconds",
                                        "Pause in an answer during a migration, in seconds.",
                                        LatencyBuckets())),
      prepare_(StageHistogram(registry, "tokenize")),
      first_token_(registry.Traced("penstock_time_to_first_token_seconds",
                                   "Time from receipt to the first token sent, in seconds.",
                                   FirstTokenBuckets())),
      next_token_(registry.Traced("penstock_inter_token_latency_seconds",
                                  "Time between two tokens of a choice, in seconds.",
                                  TokenTimeBuckets())),
      token_(registry.Histogram("penstock_time_per_output_token_seconds",
                                "Mean time per token after the first, of a request, in seconds.",
                                TokenTimeBuckets())),
      prompt_tokens_(registry.Histogram("penstock_request_prompt_tokens",
                                        "Prompt tokens of a request.", CountBuckets())),
      cached_tokens_(registry.Histogram("penstock_request_cached_tokens",
                                        "Prompt tokens of a request with cached KV.",
                                        CountBuckets())),
      answer_tokens_(registry.Histogram("penstock_request_output_tokens",
                                        "Output tokens of a request, over all choices.",
                                        CountBuckets())),
      prompt_total_(registry.Counter("penstock_prompt_tokens_total", "Prompt tokens.")),
      cached_total_(
          registry.Counter("penstock_prompt_tokens_cached_total", "Prompt tokens with cached KV.")),
      recomputed_total_(registry.Counter("penstock_prompt_tokens_recomputed_total",
                                         "Tokens recomputed after a worker failed.")),
      answer_total_(
          registry.Counter("penstock_output_tokens_total", "Output tokens sent to clients.")),
      left_waiting_(Disconnects(registry, "waiting")),
      left_answering_(Disconnects(registry, "answering")),
      first_token_late_(Violations(registry, "ttft")),
      tokens_slow_(Violations(registry, "tpot")),
      late_first_tokens_(LateTokens(registry, "ttft")),
      late_next_tokens_(LateTokens(registry, "tpot")),
      goodput_(registry.Counter("penstock_goodput_requests_total",
                                "Successful requests within both latency targets.")),
      tenants_(registry),
      vllm_(registry, model_name) {
  ShowTarget(registry, "ttft", targets.first_token);
  ShowTarget(registry, "tpot", targets.per_token);
  const auto requests = [&](const std::string& status, const std::string& finish) {
    for (size_t i = 0; i < kEndpoints; ++i) {
      requests_[EndKey(static_cast<Endpoint>(i), status, finish)] = &registry.Counter(
          "penstock_requests_total", "Finished requests, by endpoint, status and finish reason.",
          {{"endpoint", kEndpointNames[i]}, {"status", status}, {"finish_reason", finish}});
    }
  };
  for (const char* finish : {"stop", "length"}) requests("ok", finish);
  for (const char* status : kStatuses) {
    if (std::string(status) != "ok") requests(status, "none");
    total_[status] = &registry.Traced("penstock_request_duration_seconds",
                                      "Time from receipt to the end of a request, in seconds.",
                                      LatencyBuckets(), {{"status", status}});
  }
  for (const char* reason : kReasons) {
    refused_[reason] = &registry.Counter("penstock_requests_rejected_total",
                                         "Rejected requests, by reason.", {{"reason", reason}});
  }
  for (size_t i = 0; i < kStages; ++i) stages_[i] = &StageHistogram(registry, kStageNames[i]);
  for (const char* reason : kMigrationReasons) {
    migrations_[reason] = &registry.Counter(
        "penstock_migrations_total", "Migrations of running requests to other workers, by reason.",
        {{"reason", reason}});
  }
}

void RequestMetrics::CountEnd(Endpoint endpoint, const absl::Status& status,
                              const std::string& finish) {
  requests_.at(EndKey(endpoint, OutcomeOf(status), status.ok() ? finish : "none"))->Increment();
  if (status.ok() || absl::IsCancelled(status) || absl::IsDeadlineExceeded(status)) return;
  CountRefusal(status);
}

void RequestMetrics::CountRefusal(const absl::Status& status) {
  const auto reason = refused_.find(DetailOf(status).reason);
  if (reason != refused_.end()) {
    reason->second->Increment();
  } else if (absl::IsResourceExhausted(status)) {
    refused_.at("other")->Increment();
  }
}

void RequestMetrics::OnRefused(Endpoint endpoint, const absl::Status& status) {
  CountEnd(endpoint, status, "none");
}

void RequestMetrics::OnPrepared(Duration took) { prepare_.Observe(Seconds(took)); }

void RequestMetrics::OnFirstToken(Duration since, const std::string& trace_id) {
  first_token_.Observe(Seconds(since), trace_id);
  vllm_.first_token.Observe(Seconds(since));
  if (since > targets_.first_token) late_first_tokens_.Increment();
}

void RequestMetrics::OnNextTokens(Duration since_last, int tokens, const std::string& trace_id) {
  for (int i = 0; i < tokens; ++i) {
    next_token_.Observe(Seconds(since_last) / tokens, trace_id);
    vllm_.next_token.Observe(Seconds(since_last) / tokens);
  }
  if (since_last > tokens * targets_.per_token) late_next_tokens_.Increment(tokens);
}

void RequestMetrics::OnEnded(const Ended& ended) {
  CountEnd(ended.origin.endpoint, ended.status, ended.stopped ? "stop" : "length");
  total_.at(std::string(OutcomeOf(ended.status)))
      ->Observe(Seconds(ended.end - ended.origin.received), ended.origin.trace_id);
  for (size_t i = 0; i < kStages; ++i) {
    if (const auto stage = ended.timing.stages()[i]) stages_[i]->Observe(Seconds(*stage));
  }
  for (const Migration& migration : ended.timing.migrations()) {
    migrations_.at(migration.reason)->Increment();
    if (migration.gap) migration_gap_.Observe(Seconds(*migration.gap));
  }
  // A cancellation by the server carries a reason (ErrorDetail); one by the client does not.
  if (absl::IsCancelled(ended.status) && DetailOf(ended.status).reason.empty()) {
    (ended.tokens_shown == 0 ? left_waiting_ : left_answering_).Increment();
  }
  CountTokens(ended);
  JudgeTimes(ended);
  Remember(ended);
}

void RequestMetrics::Remember(const Ended& ended) {
  const RequestOrigin& origin = ended.origin;
  FinishedRequest request{.id = origin.request_id,
                          .trace_id = origin.trace_id,
                          .tenant = origin.tenant,
                          .endpoint = kEndpointNames[static_cast<size_t>(origin.endpoint)],
                          .status = OutcomeOf(ended.status),
                          .reason = DetailOf(ended.status).reason,
                          .prompt_tokens = ended.timing.prompt_tokens(),
                          .cached_tokens = ended.timing.cached_tokens(),
                          .output_tokens = ended.tokens_shown,
                          .received = origin.received,
                          .end = ended.end,
                          .stages = ended.timing.Timeline()};
  if (ended.tokens_shown > 0) request.first_token = ended.first_token;
  finished_.Add(std::move(request));
}

void RequestMetrics::CountTokens(const Ended& ended) {
  prompt_tokens_.Observe(ended.timing.prompt_tokens());
  cached_tokens_.Observe(ended.timing.cached_tokens());
  prompt_total_.Increment(ended.timing.prompt_tokens());
  vllm_.prompt_tokens.Increment(ended.timing.prompt_tokens());
  cached_total_.Increment(ended.timing.cached_tokens());
  recomputed_total_.Increment(ended.timing.recomputed_tokens());
  answer_tokens_.Observe(static_cast<double>(ended.tokens_shown));
  answer_total_.Increment(static_cast<double>(ended.tokens_shown));
  vllm_.generation_tokens.Increment(static_cast<double>(ended.tokens_shown));
  tenants_.Add(ended.origin.tenant,
               {.status = OutcomeOf(ended.status),
                .prompt_tokens = static_cast<double>(ended.timing.prompt_tokens()),
                .cached_tokens = static_cast<double>(ended.timing.cached_tokens()),
                .output_tokens = static_cast<double>(ended.tokens_shown)});
}

void RequestMetrics::AddToVllm(const Ended& ended) {
  const auto stage = [&](Stage name) {
    return Seconds(ended.timing.stages()[static_cast<size_t>(name)].value_or(Duration()));
  };
  vllm_.total.Observe(Seconds(ended.end - ended.origin.received));
  vllm_.queue.Observe(stage(Stage::kRoute) + stage(Stage::kQueue));
  vllm_.prefill.Observe(stage(Stage::kPrefill));
  vllm_.decode.Observe(Seconds(ended.answering));
  vllm_.prompt.Observe(ended.timing.prompt_tokens());
  vllm_.answer.Observe(static_cast<double>(ended.tokens_shown));
  (ended.stopped ? vllm_.stopped : vllm_.reached_length).Increment();
}

void RequestMetrics::JudgeTimes(const Ended& ended) {
  double per_token_s = 0;
  if (ended.tokens_shown > ended.choices) {
    const auto after_first = static_cast<double>(ended.tokens_shown - ended.choices);
    per_token_s = Seconds(ended.answering) * ended.choices / after_first;
    token_.Observe(per_token_s);
  }
  if (!ended.status.ok()) return;
  AddToVllm(ended);
  const bool late = ended.first_token > targets_.first_token;
  const bool slow = per_token_s > Seconds(targets_.per_token);
  if (late) first_token_late_.Increment();
  if (slow) tokens_slow_.Increment();
  if (!late && !slow) goodput_.Increment();
}

namespace {

RequestMetrics::Spread SpreadOf(const prometheus::Histogram& histogram) {
  RequestMetrics::Spread spread;
  for (const auto& bucket : histogram.Collect().histogram.bucket) {
    spread.bounds.push_back(bucket.upper_bound);
    spread.counts.push_back(bucket.cumulative_count);
  }
  return spread;
}

uint64_t CountOf(const prometheus::Counter& counter) {
  return static_cast<uint64_t>(counter.Value());
}

uint64_t SumOf(const std::map<std::string, prometheus::Counter*>& counters) {
  uint64_t sum = 0;
  for (const auto& [label, counter] : counters) sum += CountOf(*counter);
  return sum;
}

}  // namespace

RequestMetrics::Totals RequestMetrics::totals() const {
  Totals totals{.ended = SumOf(requests_),
                .refused = SumOf(refused_),
                .succeeded = EndedWith("ok"),
                .failed = EndedWith(kServerError) + EndedWith("timeout"),
                .in_time = CountOf(goodput_),
                .first_late = CountOf(first_token_late_),
                .tokens_slow = CountOf(tokens_slow_),
                .prompt_tokens = CountOf(prompt_total_),
                .cached_tokens = CountOf(cached_total_),
                .first_token_s = SpreadOf(first_token_.histogram()),
                .next_token_s = SpreadOf(next_token_.histogram())};
  for (const auto& [reason, counter] : refused_) {
    if (const uint64_t count = CountOf(*counter); count > 0) totals.refused_by[reason] = count;
  }
  return totals;
}

uint64_t RequestMetrics::EndedWith(std::string_view status) const {
  uint64_t count = 0;
  for (size_t i = 0; i < kEndpoints; ++i) {
    for (const char* finish : {"none", "stop", "length"}) {
      const auto found = requests_.find(EndKey(static_cast<Endpoint>(i), status, finish));
      if (found != requests_.end()) count += CountOf(*found->second);
    }
  }
  return count;
}

void RequestMeter::OnSent(const v1::GenerateResponse& response) {
  if (response.has_final()) stopped_ = response.final().finish_reason() != v1::LENGTH;
}

void RequestMeter::OnShown(uint32_t choice, int tokens, TimePoint now) {
  if (tokens_ == 0) {
    first_ = now;
    metrics_.OnFirstToken(now - origin_.received, origin_.trace_id);
  }
  const auto [last, first_of_choice] = last_.try_emplace(choice, now);
  if (!first_of_choice) metrics_.OnNextTokens(now - last->second, tokens, origin_.trace_id);
  last->second = now;
  latest_ = now;
  tokens_ += static_cast<uint64_t>(tokens);
}

void RequestMeter::OnFinished(const absl::Status& status, const SessionTiming& timing,
                              TimePoint now) {
  metrics_.OnEnded({.origin = origin_,
                    .status = status,
                    .timing = timing,
                    .end = now,
                    .first_token = tokens_ > 0 ? first_ - origin_.received : Duration(0),
                    .answering = tokens_ > 0 ? latest_ - first_ : Duration(0),
                    .tokens_shown = tokens_,
                    .choices = static_cast<uint32_t>(last_.size()),
                    .stopped = stopped_});
}

RouterGauges::RouterGauges(MetricsRegistry& registry)
    : open(registry.Gauge("penstock_requests_running", "Open requests.")),
      waiting(registry.Gauge("penstock_requests_waiting",
                             "Open requests in the admission queue, not placed yet.")) {
  for (const char* role : {"prefill", "decode"}) {
    for (const char* state : {"starting", "ready", "draining", "unhealthy", "silent", "refused"}) {
      workers[{role, state}] =
          &registry.Gauge("penstock_workers", "Discovered workers, by role and state.",
                          {{"role", role}, {"state", state}});
    }
  }
}

}  // namespace penstock
