#include "lab/simulate/sim_cluster.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "lab/simulate/sim_ids.h"

namespace penstock {
namespace {

double SecondsOf(const PrefillModel& model, uint32_t tokens, uint32_t cached) {
  return model.Ms(tokens, cached) / 1000;
}

template <class T>
double Percentile(const std::vector<T>& sorted, double percent) {
  if (sorted.empty()) return 0;
  const double at = static_cast<double>(sorted.size() - 1) * percent / 100;
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

// One run. Events are arrivals, ends of prefills, KV that has come, and ends of answers.
class Cluster {
 public:
  Cluster(const SimTrace& trace, const SimOptions& options);
  absl::StatusOr<SimResult> Run();

 private:
  enum class Kind { kPrefilled, kLanded, kAnswered };
  struct Event {
    double at_s;
    uint64_t sequence;
    Kind kind;
    uint32_t worker;
    uint32_t request;
    uint64_t generation;  // of the decode worker's batch
    bool operator>(const Event& other) const {
      return std::tie(at_s, sequence) > std::tie(other.at_s, other.sequence);
    }
  };
  struct Worker {
    SimCache cache;
    std::deque<uint32_t> queue;
    bool busy = false;
    double busy_s = 0;
    double waiting_s = 0;  // predicted work in the queue
  };
  struct Decode {
    SimDecode batch;
    uint64_t generation = 0;
    double booked_context = 0;
    double booked_requests = 0;
  };
  struct Flight {  // of one request
    SimChoice choice;
    uint32_t decode = 0;
    double arrived_s = 0;
    double predicted_s = 0;
    double work_s = 0;  // predicted
    double tokens = 0;  // uncached, as the router saw it
    double first_s = 0;
  };
  struct Change {
    double at_s;
    uint32_t worker;
    bool stored;
    std::vector<BlockId> ids;
  };

  absl::Status Arrive(uint32_t number, double now);
  absl::StatusOr<SimChoice> Choose(uint32_t number, double now);
  void Start(uint32_t worker, double now);
  void OnPrefilled(const Event& event);
  void OnLanded(const Event& event);
  void OnAnswered(const Event& event);
  void Handle(const Event& event);
  void WatchDecode(uint32_t worker);
  void Keep(uint32_t worker, const SimRequest& request, double now);
  void Tell(Change change);
  void CatchUp(double now);
  void Apply(const Change& change);
  void Push(double at, Kind kind, uint32_t worker, uint32_t request, uint64_t generation = 0) {
    events_.push({at, sequence_++, kind, worker, request, generation});
  }
  std::vector<SimDecodeView> DecodeViews() const;
  SimResult Result();

  const SimTrace& trace_;
  const SimOptions& options_;
  const bool pooled_;
  double speed_ = 1;
  PrefixIndex index_;
  PrefixMatches matches_;
  std::unique_ptr<SimPolicy> policy_;  // null: the production router
  SimRouter router_;
  SimView view_;
  std::vector<double> drained_s_;  // predicted, by worker
  std::vector<Worker> workers_;
  SimCache pool_;
  std::vector<Decode> decode_;
  std::vector<Flight> flights_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::deque<Change> changes_;
  uint64_t sequence_ = 0;

  std::vector<float> ttft_s_;
  std::vector<float> tpot_ms_;
  std::vector<float> error_;
  std::vector<bool> in_time_;
  double blocks_ = 0, hit_blocks_ = 0, tokens_ = 0, hit_tokens_ = 0, pulled_tokens_ = 0;
};

SimRouter::Options RouterOptions(const SimTrace& trace, const SimOptions& options) {
  return {.workers = options.workers,
          .block_tokens = trace.block_tokens,
          .policy = options.placement,
          .pull = options.shared_stores ? std::optional(MoveModel{0, options.kv_ms_per_token})
                                        : std::nullopt,
          .link = {},
          .step = options.decode_workers > 0 ? options.step : StepModel{0, 0, 0},
          .seed = options.seed,
          .predictions = options.predictions};
}

Cluster::Cluster(const SimTrace& trace, const SimOptions& options)
    : trace_(trace),
      options_(options),
      pooled_(options.policy == "pool"),
      policy_(
          MakeSimPolicy(pooled_ ? "least-ttft" : options.policy, options.workers, options.seed)),
      router_(RouterOptions(trace, options), index_),
      drained_s_(options.workers, 0),
      pool_(options.cache_blocks),
      flights_(trace.requests.size()),
      in_time_(trace.requests.size(), false) {
  const size_t each = std::max<size_t>(1, options.cache_blocks / options.workers);
  for (uint32_t i = 0; i < options.workers; ++i) workers_.push_back({.cache = SimCache(each)});
  for (uint32_t i = 0; i < options.decode_workers; ++i) {
    decode_.push_back({.batch = SimDecode(options.step, options.decode_context_max)});
  }
  double work_s = 0;
  for (const SimRequest& request : trace.requests) {
    work_s += SecondsOf(options.prefill, request.prompt_tokens, 0);
  }
  const double span_s = trace.requests.back().arrival_s - trace.requests.front().arrival_s;
  speed_ = options.speed > 0 ? options.speed : options.rho * options.workers * span_s / work_s;
  view_.block_tokens = trace.block_tokens;
  view_.queue_s.assign(options.workers, 0);
  view_.queue_tokens.assign(options.workers, 0);
  view_.requests.assign(options.workers, 0);
  view_.blocks.assign(options.workers, 0);
  view_.matches = &matches_;
  view_.prefill = options.prefill;
  view_.pull = {0, options.kv_ms_per_token};
}

absl::StatusOr<SimResult> Cluster::Run() {
  for (uint32_t next = 0; next < trace_.requests.size() || !events_.empty();) {
    const double arrival =
        next < trace_.requests.size() ? trace_.requests[next].arrival_s / speed_ : INFINITY;
    if (events_.empty() || arrival < events_.top().at_s) {
      RETURN_IF_ERROR(Arrive(next++, arrival));
    } else {
      const Event event = events_.top();
      events_.pop();
      Handle(event);
    }
  }
  return Result();
}

void Cluster::Handle(const Event& event) {
  switch (event.kind) {
    case Kind::kPrefilled:
      return OnPrefilled(event);
    case Kind::kLanded:
      return OnLanded(event);
    case Kind::kAnswered:
      return OnAnswered(event);
  }
}

// ---------------------------------------------------------------- what the router hears

void Cluster::Tell(Change change) {
  if (options_.index_lag_s > 0) {
    changes_.push_back(std::move(change));
  } else {
    Apply(change);
  }
}

void Cluster::CatchUp(double now) {
  for (; !changes_.empty() && changes_.front().at_s <= now; changes_.pop_front()) {
    Apply(changes_.front());
  }
}

void Cluster::Apply(const Change& change) {
  if (change.stored) {
    index_.Store(change.worker, BlockTier::kDevice, nullptr, change.ids);
  } else {
    index_.Remove(change.worker, change.ids);
  }
}

void Cluster::Keep(uint32_t worker, const SimRequest& request, double now) {
  std::vector<uint32_t> evicted;
  if (pooled_) return pool_.Insert(request.blocks, evicted);
  workers_[worker].cache.Insert(request.blocks, evicted);
  const double heard = now + options_.index_lag_s;
  Tell({heard, worker, true, SimBlockIds(request.blocks)});
  if (!evicted.empty()) Tell({heard, worker, false, SimBlockIds(evicted)});
}

// ---------------------------------------------------------------- prefill

absl::StatusOr<SimChoice> Cluster::Choose(uint32_t number, double now) {
  const SimRequest& request = trace_.requests[number];
  Flight& flight = flights_[number];
  if (policy_ == nullptr) {
    ASSIGN_OR_RETURN(const SimPlaced placed, router_.Place(number, request, now, DecodeViews()));
    flight.decode = placed.decode;
    flight.predicted_s = placed.predicted.ttft_ms() / 1000;
    return placed.prefill;
  }
  index_.Find(SimBlockIds(request.blocks), matches_);
  if (pooled_) matches_.Clear();
  view_.now_s = now;
  for (uint32_t i = 0; i < options_.workers; ++i) {
    view_.queue_s[i] = std::max(drained_s_[i] - now, 0.0);
  }
  if (!decode_.empty()) {
    const std::vector<SimDecodeView> views = DecodeViews();
    const auto idlest = std::min_element(
        views.begin(), views.end(),
        [](const auto& a, const auto& b) { return a.context_tokens < b.context_tokens; });
    flight.decode = static_cast<uint32_t>(idlest - views.begin());
  }
  return policy_->Choose(request, view_);
}

absl::Status Cluster::Arrive(uint32_t number, double now) {
  CatchUp(now);
  const SimRequest& request = trace_.requests[number];
  Flight& flight = flights_[number];
  flight.arrived_s = now;
  ASSIGN_OR_RETURN(flight.choice, Choose(number, now));
  const uint32_t w = flight.choice.worker;
  Worker& worker = workers_[w];
  const size_t here = pooled_ ? 0 : worker.cache.Match(request.blocks);
  const size_t reach =
      pooled_ ? pool_.Match(request.blocks) : std::max<size_t>(here, flight.choice.reach_blocks);
  const double block = trace_.block_tokens;
  const auto reach_tokens = static_cast<uint32_t>(static_cast<double>(reach) * block);
  flight.tokens = std::max(1.0, double{1} * request.prompt_tokens - reach_tokens);
  flight.work_s = SecondsOf(options_.prefill, request.prompt_tokens, reach_tokens) +
                  static_cast<double>(reach - here) * block * options_.kv_ms_per_token / 1000;
  view_.queue_tokens[w] += flight.tokens;
  view_.blocks[w] += static_cast<double>(request.blocks.size());
  view_.requests[w] += 1;
  drained_s_[w] = std::max(drained_s_[w], now) + flight.work_s;
  worker.waiting_s += flight.work_s;
  if (!decode_.empty()) {
    decode_[flight.decode].booked_context += request.prompt_tokens;
    decode_[flight.decode].booked_requests += 1;
  }
  worker.queue.push_back(number);
  if (!worker.busy) Start(w, now);
  return absl::OkStatus();
}

void Cluster::Start(uint32_t w, double now) {
  Worker& worker = workers_[w];
  const uint32_t number = worker.queue.front();
  worker.queue.pop_front();
  worker.busy = true;
  const SimRequest& request = trace_.requests[number];
  const Flight& flight = flights_[number];
  const size_t here = pooled_ ? 0 : worker.cache.Match(request.blocks);
  const size_t reach =
      pooled_ ? pool_.Match(request.blocks) : std::max<size_t>(here, flight.choice.reach_blocks);
  const double block = trace_.block_tokens;
  const double pulled = static_cast<double>(reach - here) * block;
  const auto cached =
      std::min(static_cast<uint32_t>(static_cast<double>(reach) * block), request.prompt_tokens);
  const double compute_s = SecondsOf(options_.prefill, request.prompt_tokens, cached);
  const double took_s = compute_s + pulled * options_.kv_ms_per_token / 1000;
  blocks_ += static_cast<double>(request.blocks.size());
  hit_blocks_ += static_cast<double>(reach);
  tokens_ += request.prompt_tokens;
  hit_tokens_ += cached;
  pulled_tokens_ += pulled;
  worker.busy_s += took_s;
  worker.waiting_s -= flight.work_s;
  drained_s_[w] = now + took_s + worker.waiting_s;
  if (policy_ == nullptr) {
    router_.OnPrefilled(request, std::min(cached, request.prompt_tokens - 1), compute_s * 1000);
  }
  Push(now + took_s, Kind::kPrefilled, w, number);
}

void Cluster::OnPrefilled(const Event& event) {
  const double now = event.at_s;
  const SimRequest& request = trace_.requests[event.request];
  Flight& flight = flights_[event.request];
  Worker& worker = workers_[event.worker];
  CatchUp(now);
  Keep(event.worker, request, now);
  if (policy_ == nullptr) router_.OnFirstToken(event.request, event.worker, now);
  view_.queue_tokens[event.worker] -= flight.tokens;
  view_.requests[event.worker] -= 1;
  view_.blocks[event.worker] -= static_cast<double>(request.blocks.size());
  flight.first_s = now;
  const double ttft_s = now - flight.arrived_s;
  ttft_s_.push_back(static_cast<float>(ttft_s));
  if (policy_ == nullptr) {
    error_.push_back(static_cast<float>(std::abs(flight.predicted_s - ttft_s) / ttft_s));
  }
  const double whole_s = SecondsOf(options_.prefill, request.prompt_tokens, 0);
  in_time_[event.request] = ttft_s <= 1 + 2 * whole_s;
  if (!decode_.empty() && request.answer_tokens > 1) {
    // The last group of layers is on its way when the prompt is done; the rest went before.
    Push(now + request.prompt_tokens * options_.kv_ms_per_token / 1000 / 16, Kind::kLanded,
         flight.decode, event.request);
  }
  worker.busy = false;
  if (!worker.queue.empty()) Start(event.worker, now);
}

// ---------------------------------------------------------------- decode

std::vector<SimDecodeView> Cluster::DecodeViews() const {
  std::vector<SimDecodeView> views;
  for (const Decode& decode : decode_) {
    const double context = decode.batch.context_tokens() + decode.booked_context;
    views.push_back(
        {.requests = decode.batch.sequences() + decode.batch.waiting() + decode.booked_requests,
         .context_tokens = context,
         .blocks_total = static_cast<uint64_t>(options_.decode_context_max / 16),
         .blocks_taken = static_cast<uint64_t>(context / 16)});
  }
  return views;
}

void Cluster::OnLanded(const Event& event) {
  const SimRequest& request = trace_.requests[event.request];
  Decode& decode = decode_[event.worker];
  decode.booked_context -= request.prompt_tokens;
  decode.booked_requests -= 1;
  decode.batch.Add(event.request, request.prompt_tokens, request.answer_tokens - 1.0, event.at_s);
  WatchDecode(event.worker);
}

// The batch has changed, and so has the time of its next end.
void Cluster::WatchDecode(uint32_t worker) {
  Decode& decode = decode_[worker];
  ++decode.generation;
  if (const std::optional<double> end = decode.batch.NextEnd()) {
    Push(*end, Kind::kAnswered, worker, 0, decode.generation);
  }
}

void Cluster::OnAnswered(const Event& event) {
  Decode& decode = decode_[event.worker];
  if (event.generation != decode.generation) return;
  const uint32_t number = decode.batch.Finish(event.at_s);
  const double tpot_ms = (event.at_s - flights_[number].first_s) * 1000 /
                         (trace_.requests[number].answer_tokens - 1.0);
  tpot_ms_.push_back(static_cast<float>(tpot_ms));
  if (tpot_ms > options_.tpot_limit_ms) in_time_[number] = false;
  WatchDecode(event.worker);
}

// ---------------------------------------------------------------- results

SimResult Cluster::Result() {
  const double span_s = trace_.requests.back().arrival_s - trace_.requests.front().arrival_s;
  const double count = static_cast<double>(trace_.requests.size());
  double busy = 0;
  double busiest = 0;
  for (const Worker& worker : workers_) {
    busy += worker.busy_s;
    busiest = std::max(busiest, worker.busy_s);
  }
  for (std::vector<float>* values : {&ttft_s_, &tpot_ms_, &error_}) {
    std::sort(values->begin(), values->end());
  }
  SimResult result{
      .requests_per_s = count / span_s * speed_,
      .speed = speed_,
      .block_hit = hit_blocks_ / blocks_,
      .token_hit = hit_tokens_ / tokens_,
      .pulled = hit_tokens_ > 0 ? pulled_tokens_ / hit_tokens_ : 0,
      .busy_over_mean = busiest * options_.workers / busy,
      .slo = static_cast<double>(std::count(in_time_.begin(), in_time_.end(), true)) / count,
      .ttft_p50_s = Percentile(ttft_s_, 50),
      .ttft_p90_s = Percentile(ttft_s_, 90),
      .ttft_p99_s = Percentile(ttft_s_, 99),
      .tpot_p50_ms = Percentile(tpot_ms_, 50),
      .tpot_p99_ms = Percentile(tpot_ms_, 99),
      .ttft_error_p50 = Percentile(error_, 50)};
  result.ttft_mean_s = std::accumulate(ttft_s_.begin(), ttft_s_.end(), 0.0) / count;
  result.ttft_s = std::move(ttft_s_);
  return result;
}

}  // namespace

absl::StatusOr<SimResult> Simulate(const SimTrace& trace, const SimOptions& options) {
  const bool known = options.policy == "penstock" || options.policy == "pool" ||
                     MakeSimPolicy(options.policy, 1, 0) != nullptr;
  if (!known) {
    return InvalidArgument("policy {} is unknown; there are penstock, pool, {}", options.policy,
                           fmt::join(SimPolicyNames(), ", "));
  }
  if (options.workers == 0 || options.workers > 4096) {
    return InvalidArgument("workers is {}; 1 to 4096 can be simulated", options.workers);
  }
  return Cluster(trace, options).Run();
}

}  // namespace penstock
