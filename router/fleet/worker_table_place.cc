#include <algorithm>
#include <cmath>

#include "router/fleet/worker_table.h"
#include "router/placement/explain.h"

// WorkerTable: gathers the candidates of a placement, and learns cost models from its outcome.

namespace penstock {
namespace {

// The weight of one placement in the moving average of prefill times.
constexpr double kMeanWeight = 0.05;

// Workers do not report the speed of their tiers. Restoring is assumed to take half as long as
// computing.
MoveModel RestoreModel(const PrefillModel& prefill) {
  return {.ms_per_token = prefill.ms_per_token / 2};
}

// The time for which a worker's store is not read after a failed read.
Duration NoSourceFor(v1::PeerRead::Outcome outcome) {
  switch (outcome) {
    case v1::PeerRead::REFUSED:
      return std::chrono::seconds(1);
    case v1::PeerRead::LATE:
      return std::chrono::seconds(5);
    case v1::PeerRead::LOST:
      return std::chrono::seconds(10);
    default:
      return Duration::zero();  // The worker's events correct the index.
  }
}

// A worker's load now: its report, plus this router's reservations since the report, minus those
// released since; at least this router's own reservations.
template <class T>
T Current(T reported, T reserved_then, T reserved_now) {
  const T sum = reported + reserved_now;
  return std::max(reserved_now, sum > reserved_then ? sum - reserved_then : T{0});
}

}  // namespace

const WorkerTable::Pool& WorkerTable::PoolOf(const KvFormat& format) const {
  static const Pool kUnknown;
  const auto found = pools_.find({format.model_fingerprint, format.layout_fingerprint});
  return found == pools_.end() ? kUnknown : found->second;
}

Candidate WorkerTable::CandidateOf(const std::string& endpoint, const Worker& worker,
                                   const PlacementRequest& request) const {
  const v1::WorkerState& state = worker.state;
  const ReservedTotals& then = worker.reserved_at_state;
  const ReservedTotals& now = worker.reserved;
  const auto failed = request.failures.find({endpoint, state.incarnation()});
  return {.format = FormatOf(state),
          .max_model_len = state.max_model_len(),
          .blocks_total = state.kv_blocks_total(),
          .blocks_taken =
              Current(state.kv_blocks_used() + state.kv_blocks_reserved(), then.blocks, now.blocks),
          .requests = Current(state.waiting() + state.running(), then.requests, now.requests),
          .waiting = state.waiting(),
          .waiting_max = state.max_waiting(),
          .failures = failed == request.failures.end() ? 0 : failed->second};
}

void WorkerTable::AddPrefill(const Worker& worker, const PlacementRequest& request,
                             const PrefixMatches& matches, Candidate& candidate) const {
  const Pool& pool = PoolOf(candidate.format);
  // A prefill worker counts the prompts that run against its limit, too.
  if (candidate.waiting_max > 0) candidate.waiting = candidate.requests;
  candidate.prefill = pool.prefill.model();
  candidate.link = pool.handoff.model();
  candidate.queue_ms = QueueMs(worker, candidate.prefill);
  candidate.recent_work_ms = worker.queue.RecentWorkMs(clock_.Now());
  candidate.long_term_work_ms = worker.queue.LongTermWorkMs(clock_.Now());
  if (!worker.index) return;
  candidate.cached = prefixes_.CachedOn(*worker.index, matches, request.need.prompt_tokens,
                                        candidate.format.block_tokens);
  candidate.dram = candidate.nvme = RestoreModel(candidate.prefill);
  // Workers read no prefixes of a model with a window.
  if (peer_reads_.on && candidate.format.window == 0) candidate.pull = pool.fetch.model();
}

// A draining worker's store can be read, too. Expected blocks do not count: they are not there yet.
void WorkerTable::AddSource(const std::string& endpoint, const Worker& worker,
                            const PlacementRequest& request, const PrefixMatches& matches,
                            Gathered& gathered) const {
  const bool serves = worker.state.phase() == v1::WorkerState::READY ||
                      worker.state.phase() == v1::WorkerState::DRAINING;
  const TimePoint now = clock_.Now();
  if (!peer_reads_.on || !worker.index || !worker.fresh || !serves ||
      now - worker.last_seen > stale_after_ || now < worker.no_source_until) {
    return;
  }
  PrefixSource source{.format = FormatOf(worker.state)};
  source.cached = prefixes_.CachedOn(*worker.index, matches, request.need.prompt_tokens,
                                     source.format.block_tokens);
  source.cached.tokens -= std::min(source.cached.tokens, source.cached.expected_tokens);
  if (source.cached.tokens < source.format.block_tokens) return;
  source.dram = source.nvme = RestoreModel(PoolOf(source.format).prefill.model());
  gathered.sources.push_back(endpoint);
  gathered.input.sources.push_back(source);
}

void WorkerTable::AddDecode(const Worker& worker, const PlacementRequest& request,
                            const PrefixMatches& matches, Candidate& candidate) const {
  const Pool& pool = PoolOf(candidate.format);
  candidate.step = pool.step.model();
  candidate.prefill = pool.prefill.model();
  candidate.local_prefill_max_tokens =
      pool.prefill.known() ? worker.state.local_prefill_max_tokens() : 0;
  candidate.prefill_chunk = worker.state.prefill_chunk();
  candidate.serves_alone = ServesAlone(worker);
  candidate.link = pool.handoff.model();
  candidate.context_tokens =
      static_cast<double>(worker.state.kv_blocks_used()) * candidate.format.block_tokens;
  if (!worker.index) return;
  candidate.cached = prefixes_.CachedOn(*worker.index, matches, request.need.prompt_tokens,
                                        candidate.format.block_tokens);
}

WorkerTable::Gathered WorkerTable::Gather(const PlacementRequest& request,
                                          const Matches& matches) const {
  Gathered gathered{
      .input = {.need = request.need, .random = request.random, .explain = request.explain}};
  PlacementInput& input = gathered.input;
  for (const auto& [endpoint, worker] : workers_) {
    if (worker.state.role() == v1::WorkerState::ROLE_UNSPECIFIED) continue;
    const bool is_prefill = worker.state.role() == v1::WorkerState::PREFILL;
    ++(is_prefill ? input.prefill_known : input.decode_known);
    AddSource(endpoint, worker, request, matches.prefill, gathered);
    if (!Eligible(worker)) continue;
    const uint64_t grammar = request.need.grammar_fingerprint;
    if (grammar != 0 && worker.state.grammar_fingerprint() != grammar) continue;
    const std::string& method = request.need.kv_method;
    if (!method.empty() && !MethodsOf(worker.state).contains(method)) continue;
    Candidate candidate = CandidateOf(endpoint, worker, request);
    if (is_prefill) {
      AddPrefill(worker, request, matches.prefill, candidate);
      // No request is refused on the prior of a model alone.
      if (!PoolOf(candidate.format).prefill.known()) input.need.ttft_limit_ms = 0;
      gathered.prefill.push_back(endpoint);
      input.prefill.push_back(candidate);
    } else {
      AddDecode(worker, request, matches.decode, candidate);
      gathered.decode.push_back(endpoint);
      input.decode.push_back(candidate);
    }
  }
  return gathered;
}

v1::Explanation WorkerTable::ExplanationOf(const Gathered& gathered,
                                           const Placement& placement) const {
  v1::Explanation explanation = Explain(gathered.input, placement);
  for (int i = 0; i < explanation.candidates_size(); ++i) {
    const WorkerPair& workers = placement.scored[static_cast<size_t>(i)].workers;
    v1::ScoredPair& scored = *explanation.mutable_candidates(i);
    if (workers.prefill != WorkerPair::kNone) {
      scored.set_prefill_worker(workers_.at(gathered.prefill[workers.prefill]).state.worker_id());
    }
    scored.set_decode_worker(workers_.at(gathered.decode[workers.decode]).state.worker_id());
    if (const auto& fetch = placement.scored[static_cast<size_t>(i)].fetch) {
      scored.set_source_worker(workers_.at(gathered.sources[fetch->source]).state.worker_id());
    }
  }
  if (placement.scored.empty()) return explanation;
  const std::string& chosen = gathered.decode[placement.scored.front().workers.decode];
  explanation.set_numerics(workers_.at(chosen).state.numerics());
  return explanation;
}

absl::StatusOr<PlacedPair> WorkerTable::Place(const PlacementRequest& request) {
  thread_local PrefixMatches found, found_lossy;
  prefixes_.Find(request.ids, found);
  if (request.decode_ids) prefixes_.Find(*request.decode_ids, found_lossy);
  const Matches matches{.prefill = found, .decode = request.decode_ids ? found_lossy : found};
  ASSIGN_OR_RETURN(PlacedPair placed, PlaceFound(request, matches));
  uint32_t blocks_found = 0;
  for (const uint16_t worker : found.workers()) {
    blocks_found = std::max(blocks_found, found.of(worker).blocks);
  }
  hot_prefixes_.OnPlaced({.tenant = request.tenant,
                          .ids = request.ids,
                          .blocks_found = blocks_found,
                          .block_tokens = placed.format.block_tokens},
                         clock_.Now());
  return placed;
}

absl::StatusOr<PlacementOutlook> WorkerTable::Foresee(const PlacementRequest& request) const {
  thread_local PrefixMatches found, found_lossy;
  prefixes_.Find(request.ids, found);
  if (request.decode_ids) prefixes_.Find(*request.decode_ids, found_lossy);
  MutexLock lock(mutex_);
  const Gathered gathered =
      Gather(request, {.prefill = found, .decode = request.decode_ids ? found_lossy : found});
  ASSIGN_OR_RETURN(const Placement placement,
                   rule_ ? rule_(gathered.input, request.ids) : penstock::Place(gathered.input));
  const auto name = [&](const std::string& endpoint)
                        REQUIRES(mutex_) { return workers_.at(endpoint).state.worker_id(); };
  const bool local_prefill = placement.workers.prefill == WorkerPair::kNone;
  return PlacementOutlook{
      .prefill_worker = local_prefill ? "" : name(gathered.prefill[placement.workers.prefill]),
      .decode_worker = name(gathered.decode[placement.workers.decode]),
      .cached_tokens = placement.cached_tokens,
      .first_token_ms = placement.terms.ttft_ms()};
}

absl::StatusOr<PlacedPair> WorkerTable::PlaceFound(const PlacementRequest& request,
                                                   const Matches& matches) {
  MutexLock lock(mutex_);
  const Gathered gathered = Gather(request, matches);
  ASSIGN_OR_RETURN(const Placement placement,
                   rule_ ? rule_(gathered.input, request.ids) : penstock::Place(gathered.input));
  const std::string& decode = gathered.decode[placement.workers.decode];
  const bool local_prefill = placement.workers.prefill == WorkerPair::kNone;
  const std::string& prefill = local_prefill ? decode : gathered.prefill[placement.workers.prefill];
  const KvFormat format = gathered.input.decode[placement.workers.decode].format;
  PlacedPair placed{.prefill = local_prefill
                                   ? PlacedWorker()
                                   : Reserve(prefill, {.tokens = request.need.prompt_tokens,
                                                       .predicted_ms = placement.terms.prefill_ms +
                                                                       placement.terms.restore_ms,
                                                       .on_lost = request.on_prefill_lost}),
                    .decode = Reserve(decode, {.blocks = BlocksNeeded(request.need, format),
                                               .on_lost = request.on_decode_lost,
                                               .on_draining = request.on_decode_draining}),
                    .format = format};
  if (request.explain > 0) {
    placed.explanation =
        std::make_shared<const v1::Explanation>(ExplanationOf(gathered, placement));
  }
  placed.local_prefill = local_prefill;
  placed.alone = placement.alone;
  if (!local_prefill) {
    mean_prefill_ms_ += kMeanWeight * (placement.terms.prefill_ms - mean_prefill_ms_);
  }
  if (metrics_ != nullptr)
    (local_prefill ? metrics_->local_prefills : metrics_->remote_prefills).Increment();
  const std::optional<uint32_t> index = workers_[prefill].index;
  if (!index) return placed;
  prefixes_.Expect(*index, request.ids);
  if (const std::optional<uint32_t> to = workers_[decode].index) {
    prefixes_.Expect(*to, request.decode_ids ? *request.decode_ids : request.ids);
  }
  PlacementForecast forecast{.endpoint = prefill,
                             .index_worker = *index,
                             .format = format,
                             .ids = request.ids,
                             .prompt_tokens = request.need.prompt_tokens,
                             .cached_tokens = placement.cached_tokens,
                             .held_tokens = placement.held_tokens + request.need.evicted_tokens,
                             .terms = placement.terms,
                             .local_prefill = local_prefill,
                             .placed_at = clock_.Now()};
  if (!local_prefill) PlanFetch(gathered, placement, placed, forecast);
  placed.forecast = std::make_shared<const PlacementForecast>(std::move(forecast));
  return placed;
}

absl::StatusOr<PlacedPair> WorkerTable::PlaceTarget(const PlacementRequest& request) {
  thread_local PrefixMatches found;
  prefixes_.Find(request.decode_ids ? *request.decode_ids : request.ids, found);
  MutexLock lock(mutex_);
  const Gathered gathered = Gather(request, {.prefill = found, .decode = found});
  ASSIGN_OR_RETURN(const size_t target, penstock::PlaceTarget(gathered.input));
  const KvFormat format = gathered.input.decode[target].format;
  PlacedPair placed;
  placed.decode = Reserve(gathered.decode[target], {.blocks = BlocksNeeded(request.need, format),
                                                    .on_lost = request.on_decode_lost,
                                                    .on_draining = request.on_decode_draining});
  placed.format = format;
  return placed;
}

void WorkerTable::PlanFetch(const Gathered& gathered, const Placement& placement,
                            PlacedPair& placed, PlacementForecast& forecast) const {
  if (!placement.fetch) return;
  const std::string& endpoint = gathered.sources[placement.fetch->source];
  const Worker& worker = workers_.at(endpoint);
  const CachedPrefix& cached = gathered.input.sources[placement.fetch->source].cached;
  const uint32_t block_tokens = std::max(1u, placed.format.block_tokens);
  v1::PeerPrefix peer;
  peer.set_endpoint(endpoint);
  peer.set_own_endpoint(placed.prefill.life.first);
  peer.set_blocks(cached.tokens / block_tokens);
  peer.set_patience_ms(std::max(placement.fetch->computed_ms, peer_reads_.patience_least_ms));
  placed.peer = std::move(peer);
  forecast.source = {endpoint, worker.state.incarnation()};
  forecast.source_index = worker.index;
  forecast.source_on_device = cached.dram_tokens == 0 && cached.nvme_tokens == 0;
  forecast.fetched_tokens = placement.fetch->tokens;
}

// ---------------------------------------------------------------- outcomes

void WorkerTable::OnFirstTokens(const PlacementForecast& forecast, const v1::FirstTokens& first) {
  if (metrics_ != nullptr) {
    const double predicted = forecast.terms.ttft_ms() / 1000;
    const double real = Milliseconds(clock_.Now() - forecast.placed_at) / 1000;
    metrics_->predicted_seconds.Observe(predicted);
    metrics_->real_seconds.Observe(real);
    if (real > 0) metrics_->error_ratio.Observe(std::abs(predicted - real) / real);
  }
  {
    MutexLock lock(mutex_);
    const KvFormat& format = forecast.format;
    Pool& pool = pools_[{format.model_fingerprint, format.layout_fingerprint}];
    const uint32_t computed = std::clamp(first.computed_tokens(), 1u, forecast.prompt_tokens);
    if (first.compute_ms() > 0 && !forecast.local_prefill) {
      pool.prefill.Observe(forecast.prompt_tokens, forecast.prompt_tokens - computed,
                           first.compute_ms());
    }
  }
  if (forecast.fetched_tokens > 0 && first.has_peer()) LearnFetch(forecast, first.peer());
  const uint32_t block_tokens = std::max(1u, forecast.format.block_tokens);
  const size_t believed = std::min<size_t>(
      (forecast.cached_tokens - forecast.fetched_tokens) / block_tokens, forecast.ids.size());
  prefixes_.OnMissing(forecast.index_worker, std::span(forecast.ids).first(believed),
                      first.cached_tokens() / block_tokens);
}

// Learns the time of reads from peers, and excludes a failing source for a while.
void WorkerTable::LearnFetch(const PlacementForecast& forecast, const v1::PeerRead& read) {
  {
    MutexLock lock(mutex_);
    const KvFormat& format = forecast.format;
    const uint32_t came = read.blocks() * format.block_tokens;
    const bool late = read.outcome() == v1::PeerRead::LATE;
    if (late || (read.outcome() == v1::PeerRead::READ && forecast.source_on_device)) {
      pools_[{format.model_fingerprint, format.layout_fingerprint}].fetch.Observe(
          late ? forecast.fetched_tokens : came, read.ms());
    }
    const auto found = workers_.find(forecast.source.first);
    if (found != workers_.end() && found->second.state.incarnation() == forecast.source.second) {
      found->second.no_source_until = clock_.Now() + NoSourceFor(read.outcome());
      if (read.outcome() == v1::PeerRead::READ) {
        transfers_.OnPrefixRead(forecast.source.first, forecast.endpoint,
                                read.blocks() * found->second.state.kv_block_bytes());
      }
    }
  }
  if (read.outcome() != v1::PeerRead::MISSING || !forecast.source_index) return;
  const uint32_t block_tokens = std::max(1u, forecast.format.block_tokens);
  const size_t believed =
      std::min<size_t>(forecast.cached_tokens / block_tokens, forecast.ids.size());
  prefixes_.OnMissing(*forecast.source_index, std::span(forecast.ids).first(believed),
                      (forecast.cached_tokens - forecast.fetched_tokens) / block_tokens);
}

void WorkerTable::OnHandoff(const PlacementForecast& forecast, const v1::HandoffDone& handoff) {
  MutexLock lock(mutex_);
  const KvFormat& format = forecast.format;
  pools_[{format.model_fingerprint, format.layout_fingerprint}].handoff.Observe(
      forecast.prompt_tokens - forecast.held_tokens, handoff.exposed_ms());
}

// The mean step time between two states of a worker that decoded throughout.
void WorkerTable::LearnSteps(const Worker& worker, const v1::WorkerState& next) {
  constexpr uint64_t kStepsAtLeast = 4;
  const v1::WorkerState& last = worker.state;
  const bool busy = last.role() == v1::WorkerState::DECODE && last.running() > 0 &&
                    next.running() > 0 && next.steps() >= last.steps() + kStepsAtLeast;
  if (!busy) return;
  const double ms = Milliseconds(clock_.Now() - worker.last_seen);
  const KvFormat format = FormatOf(next);
  const double context = static_cast<double>(next.kv_blocks_used()) * format.block_tokens;
  pools_[{format.model_fingerprint, format.layout_fingerprint}].step.Observe(
      next.running(), context, ms / static_cast<double>(next.steps() - last.steps()));
}

}  // namespace penstock
