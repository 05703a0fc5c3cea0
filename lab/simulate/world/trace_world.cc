#include "lab/simulate/world/trace_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lab/simulate/world/sim_fleet.h"
#include "lab/world/machine/machine.h"

namespace penstock {
namespace {

constexpr Duration kStartMax = std::chrono::minutes(5);
// No request waits as long, in simulated time.
constexpr Duration kEver = std::chrono::hours(24 * 30);
constexpr Duration kDelayMax = std::chrono::microseconds(100);
constexpr uint32_t kManyRequests = 1'000'000;
// The blocks of a decode worker whose steps take no time: it always has room.
constexpr int64_t kManyBlocks = 1 << 18;

// No worker has this host, however many start during the run.
constexpr int kRouterHost = 1 << 20;

template <class T>
double Percentile(const std::vector<T>& sorted, double percent) {
  if (sorted.empty()) return 0;
  const double at = static_cast<double>(sorted.size() - 1) * percent / 100;
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

// The limit of the time to the first token, by the time of the whole prompt.
double TtftLimitMs(double whole_ms) { return 1000 + 2 * whole_ms; }

double SpanOf(const SimTrace& trace) {
  return trace.requests.back().arrival_s - trace.requests.front().arrival_s;
}

}  // namespace

TraceWorld::TraceWorld(const SimTrace& trace, const SimOptions& options)
    : trace_(trace),
      options_(options),
      speed_(Speed()),
      scheduler_(options.seed + 1),
      network_(scheduler_, options.seed + 2),
      policy_(MakeSimPolicy(options.policy, options.seed)),
      fleet_(scheduler_, options.scaling,
             [this](v1::WorkerState::Role role) { return WorkerConfigOf(role); }),
      keda_(options.scaling.workers_min, options.scaling.workers_max) {
  world::SeedEntropy(options.seed + 3);
  world::SetModels([this](const std::string&) { return OpenModel(); });
  network_.faults().delay_max = kDelayMax;
  network_.times() = {
      .ns_per_byte = with_decode() || options.shared_stores
                         ? options.kv_ms_per_token * 1e6 / TimedRunner::kBytesPerToken
                         : 0,
      .cache_news_delay = SecondsOf(options.index_lag_s)};
  router_ = std::make_unique<world::SimRouter>(RouterPlaceOf());
  clients_.resize(trace.requests.size());
}

double TraceWorld::Speed() const {
  if (options_.speed > 0) return options_.speed;
  double work_s = 0;
  for (const SimRequest& request : trace_.requests) {
    work_s += options_.prefill.Ms(request.prompt_tokens, 0) / 1000;
  }
  return options_.rho * options_.workers * SpanOf(trace_) / work_s;
}

uint32_t TraceWorld::AnswerTokens(const SimRequest& request) const {
  return with_decode() ? std::max(1u, request.answer_tokens) : 1;
}

// ---------------------------------------------------------------- the cluster

// The program's defaults, without tiers and without limits on what waits.
v1::WorkerConfig TraceWorld::WorkerConfigOf(v1::WorkerState::Role role) const {
  const auto decode_blocks =
      static_cast<int64_t>(options_.decode_context_max / trace_.block_tokens);
  const uint64_t cache_blocks = options_.scaling.cache_blocks > 0
                                    ? options_.scaling.cache_blocks
                                    : options_.cache_blocks / options_.workers;
  const int64_t blocks = role == v1::WorkerState::PREFILL ? static_cast<int64_t>(cache_blocks)
                         : with_decode()                  ? decode_blocks
                                                          : kManyBlocks;
  v1::WorkerConfig config;
  config.set_kv_memory(fmt::format(
      "{}B",
      std::max<int64_t>(1, blocks) * static_cast<int64_t>(TimedRunner::kLayout.BlockStride())));
  config.set_block_tokens(trace_.block_tokens);
  config.set_chunk_tokens(options_.chunk_tokens);
  config.set_layers_per_group(1);
  config.set_max_batch(512);
  config.set_prefill_chunk(64);
  config.set_local_prefill_max_tokens(with_decode() ? 128 : 0);
  config.set_max_waiting(kManyRequests);
  config.set_wire("auto");
  config.set_lease_ms(3000);
  config.set_cache_policy("cost");
  config.set_wire_codec("raw");
  config.set_kv_format("bf16");
  config.set_dram_memory("0B");
  config.set_nvme_size("1MiB");
  config.set_nvme_io("threads");
  config.set_nvme_min_uses(1);
  config.set_nvme_codec("raw");
  config.set_stall_ms(3'600'000);
  config.set_peer_reads(options_.shared_stores ? 8 : 0);
  config.set_lossy_kv("none");
  config.set_device("cpu");
  config.set_tensor_parallel(1);
  return config;
}

// In the worker's process.
world::SimModel TraceWorld::OpenModel() {
  const bool prefill = fleet_.RoleOf(scheduler_.process()->host) == v1::WorkerState::PREFILL;
  auto* const runner = new TimedRunner(
      {.prefill = options_.prefill, .decode = options_.step, .none = !prefill && !with_decode()},
      static_cast<int32_t>(RouterPlaceOf().max_model_len));
  (prefill ? runners_ : decode_runners_).push_back(runner);
  return {.runner = runner, .fingerprint = 1};
}

world::RouterPlace TraceWorld::RouterPlaceOf() {
  uint32_t longest = 0;
  for (const SimRequest& request : trace_.requests) {
    longest = std::max(longest, request.prompt_tokens + AnswerTokens(request));
  }
  return {.host = kRouterHost,
          .max_model_len = longest + 1,
          .requests_max = kManyRequests,
          .queued_max = kManyRequests,
          .queue_wait = kEver,
          .peer_reads = options_.shared_stores,
          .rule = [this](const PlacementInput& input,
                         std::span<const BlockId> prompt) { return Place(input, prompt); },
          .on_poll = [this](WorkerTable& table, MetricsRegistry& metrics,
                            TimePoint now) { Scale(table, metrics, now); }};
}

// The targets leave the wait that the limit on the mean prompt does.
std::unique_ptr<ScaleKeeper> TraceWorld::MakeKeeper(WorkerTable& table) {
  double whole_ms = 0;
  for (const SimRequest& request : trace_.requests) {
    whole_ms += options_.prefill.Ms(request.prompt_tokens, 0);
  }
  const double mean_ms = whole_ms / static_cast<double>(trace_.requests.size());
  ScaleKeeper::Options options{
      .act = true, .targets = {.ttft_ms = TtftLimitMs(mean_ms), .tpot_ms = options_.tpot_limit_ms}};
  const SimScaling& scaling = options_.scaling;
  options.scale.policy.start_up = SecondsOf(scaling.start_up_s);
  options.scale.prefill = options.scale.decode = {scaling.workers_min, scaling.workers_max};
  return std::make_unique<ScaleKeeper>(table, *scale_metrics_, &fleet_, options);
}

void TraceWorld::Scale(WorkerTable& table, MetricsRegistry& metrics, TimePoint now) {
  if (!began_) return;
  switch (options_.scaling.scaler) {
    case SimScaler::kNone:
      return;
    case SimScaler::kKeda:
      return fleet_.Want(keda_.Observe(table.Pictures(SIZE_MAX), *fleet_.Wanted(), now));
    case SimScaler::kPenstock:
      if (keeper_ == nullptr) {
        scale_metrics_ = std::make_unique<ScaleMetrics>(metrics);
        keeper_ = MakeKeeper(table);
      }
      keeper_->Observe(now);
  }
}

// Called by the router for a request that starts, one that waited, or one that is placed again.
absl::StatusOr<Placement> TraceWorld::Place(const PlacementInput& input,
                                            std::span<const BlockId> prompt) {
  ASSIGN_OR_RETURN(Placement placement,
                   policy_ == nullptr ? penstock::Place(input) : PlaceBy(*policy_, input, prompt));
  if (TraceClient* const client = TraceClient::starting()) {
    client->SetPredicted(placement.terms.ttft_ms());
  }
  return placement;
}

// ---------------------------------------------------------------- the run

absl::StatusOr<SimResult> TraceWorld::Run() {
  fleet_.Begin({.prefill = options_.workers, .decode = std::max(1u, options_.decode_workers)});
  router_->Start();
  const auto ready = [this] {
    return router_->ready() && router_->workers_ready() == fleet_.begun();
  };
  for (TimePoint limit = scheduler_.now() + kStartMax; !ready() && scheduler_.now() < limit;) {
    scheduler_.Run(scheduler_.now() + std::chrono::milliseconds(100), [] { return false; });
  }
  if (!ready()) return Unavailable("the simulated cluster was never ready");
  for (size_t i = 0; i < trace_.requests.size(); ++i) {
    const double at_s = (trace_.requests[i].arrival_s - trace_.requests[0].arrival_s) / speed_;
    scheduler_.After(SecondsOf(at_s), nullptr, [this, i] { Arrive(i); });
  }
  began_ = true;
  scheduler_.Run(scheduler_.now() + kEver, [this] { return ended_ == clients_.size(); });
  if (ended_ < clients_.size()) {
    return Internal("{} requests are stuck", clients_.size() - ended_);
  }
  return Result();
}

void TraceWorld::Arrive(size_t request) {
  const SimRequest& asked = trace_.requests[request];
  clients_[request] =
      std::make_unique<TraceClient>(asked, static_cast<uint32_t>(request), AnswerTokens(asked),
                                    trace_.block_tokens, [this] { ++ended_; });
  router_->Send(*clients_[request]);
}

// ---------------------------------------------------------------- figures

SimResult TraceWorld::Result() const {
  SimResult result{.requests_per_s = static_cast<double>(clients_.size()) / SpanOf(trace_) * speed_,
                   .speed = speed_};
  AddTimes(result);
  AddCaches(result);
  fleet_.Describe(result);
  AddUse(result);
  return result;
}

void TraceWorld::AddUse(SimResult& result) const {
  constexpr double kHourMs = 3600e3;
  double busy = 0, busiest = 0, sequences = 0;
  for (const TimedRunner* const runner : runners_) {
    busy += runner->busy_ms();
    busiest = std::max(busiest, runner->busy_ms());
  }
  for (const TimedRunner* const runner : decode_runners_) sequences += runner->sequence_ms();
  if (busy > 0) result.busy_over_mean = busiest * static_cast<double>(runners_.size()) / busy;
  result.prefill_use = busy / (result.prefill_worker_hours * kHourMs);
  result.decode_sequences = sequences / (result.decode_worker_hours * kHourMs);
}

void TraceWorld::AddTimes(SimResult& result) const {
  std::vector<float> tpot_ms, error;
  double in_time = 0, failed = 0;
  for (size_t i = 0; i < clients_.size(); ++i) {
    const TraceClient& client = *clients_[i];
    if (!client.status().ok()) {
      ++failed;
      continue;
    }
    const double ttft_ms = client.ttft_ms();
    const double whole_ms = options_.prefill.Ms(trace_.requests[i].prompt_tokens, 0);
    const std::optional<double> tpot = client.tpot_ms();
    if (ttft_ms <= TtftLimitMs(whole_ms) && tpot.value_or(0) <= options_.tpot_limit_ms) ++in_time;
    result.ttft_s.push_back(static_cast<float>(ttft_ms / 1000));
    if (tpot) tpot_ms.push_back(static_cast<float>(*tpot));
    if (client.predicted_ms()) {
      error.push_back(static_cast<float>(std::abs(*client.predicted_ms() - ttft_ms) / ttft_ms));
    }
  }
  const double count = static_cast<double>(clients_.size());
  result.slo = in_time / count;
  result.failed = failed / count;
  for (std::vector<float>* values : {&result.ttft_s, &tpot_ms, &error}) {
    std::sort(values->begin(), values->end());
  }
  result.ttft_p50_s = Percentile(result.ttft_s, 50);
  result.ttft_p90_s = Percentile(result.ttft_s, 90);
  result.ttft_p99_s = Percentile(result.ttft_s, 99);
  result.ttft_mean_s = std::accumulate(result.ttft_s.begin(), result.ttft_s.end(), 0.0) /
                       std::max(1.0, count - failed);
  result.tpot_p50_ms = Percentile(tpot_ms, 50);
  result.tpot_p99_ms = Percentile(tpot_ms, 99);
  result.ttft_error_p50 = Percentile(error, 50);
}

void TraceWorld::AddCaches(SimResult& result) const {
  double tokens = 0, hit_tokens = 0;
  uint64_t blocks = 0, hit_blocks = 0;
  for (size_t i = 0; i < clients_.size(); ++i) {
    const uint32_t prompt = trace_.requests[i].prompt_tokens;
    blocks += prompt / trace_.block_tokens;
    hit_blocks += clients_[i]->cached_tokens() / trace_.block_tokens;
    tokens += prompt;
    hit_tokens += clients_[i]->cached_tokens();
  }
  if (blocks > 0) result.block_hit = static_cast<double>(hit_blocks) / static_cast<double>(blocks);
  result.token_hit = hit_tokens / tokens;
  result.pulled =
      hit_tokens > 0 ? fleet_.PeerBytes() / TimedRunner::kBytesPerToken / hit_tokens : 0;
}

}  // namespace penstock
