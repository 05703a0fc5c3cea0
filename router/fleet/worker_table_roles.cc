// WorkerTable: the load of each role, for the advice on the number of workers.

#include <algorithm>

#include "router/fleet/worker_table.h"

namespace penstock {
namespace {

// Utilization of a worker's compute and KV memory that counts as full. The rest is headroom for
// bursts.
constexpr double kBusyMax = 0.85;
constexpr double kFullMax = 0.9;

}  // namespace

bool StartedInOtherRole(const v1::WorkerState& state) {
  return state.role_epoch() > 0 && state.role_epoch() % 2 == 0;
}

RoleSituation WorkerTable::Roles(const RoleTargets& targets) const {
  RoleSituation situation;
  double queue_ms = 0, busy = 0;
  double step_base_ms = 0, step_more_ms = 0, full = 0;
  MutexLock lock(mutex_);
  const TimePoint now = clock_.Now();
  for (const auto& [endpoint, worker] : workers_) {
    const v1::WorkerState& state = worker.state;
    situation.changes += state.role_epoch();
    situation.turning |= worker.fresh && state.turning_to() != v1::WorkerState::ROLE_UNSPECIFIED;
    if (!Eligible(worker)) continue;
    const bool is_prefill = state.role() == v1::WorkerState::PREFILL;
    RolePool& pool = is_prefill ? situation.prefill : situation.decode;
    const Candidate now_there = CandidateOf(endpoint, worker, {});
    const Pool& models = PoolOf(now_there.format);
    if (is_prefill) {
      queue_ms += QueueMs(worker, models.prefill.model());
      busy += worker.queue.RecentWorkMs(now) / PrefillQueue::kRecentDecayMs;
    } else if (models.step.known()) {
      const StepModel step = models.step.model();
      const double tokens =
          static_cast<double>(state.kv_blocks_used()) * now_there.format.block_tokens;
      step_base_ms += step.base_ms;
      step_more_ms += step.Ms(now_there.requests, tokens) - step.base_ms;
    }
    if (!is_prefill) {
      full += static_cast<double>(now_there.blocks_taken) /
              static_cast<double>(std::max<uint64_t>(1, now_there.blocks_total));
    }
    pool.workers.push_back({.endpoint = endpoint,
                            .worker_id = state.worker_id(),
                            .drain_cost = static_cast<double>(now_there.blocks_taken),
                            .visitor = StartedInOtherRole(state)});
  }
  const auto prefills = static_cast<double>(std::max<size_t>(1, situation.prefill.size()));
  const auto decodes = static_cast<double>(std::max<size_t>(1, situation.decode.size()));
  situation.prefill.loads = {{"the time to the first token", mean_prefill_ms_ / targets.ttft_ms,
                              queue_ms / prefills / targets.ttft_ms},
                             {"the time", 0, busy / prefills / kBusyMax}};
  situation.decode.loads = {
      {"the time between two tokens", step_base_ms / decodes / targets.tpot_ms,
       step_more_ms / decodes / targets.tpot_ms},
      {"the KV memory", 0, full / decodes / kFullMax}};
  return situation;
}

ServiceTimes WorkerTable::Times() const {
  ServiceTimes times;
  MutexLock lock(mutex_);
  times.prefill_ms = mean_prefill_ms_;
  for (const auto& [endpoint, worker] : workers_) {
    if (!Eligible(worker)) continue;
    const Pool& models = PoolOf(FormatOf(worker.state));
    if (worker.state.role() == v1::WorkerState::PREFILL) {
      times.prefill_known |= models.prefill.known();
      times.ms_per_prompt_token = models.prefill.model().ms_per_token;
    } else {
      times.step_known |= models.step.known();
      times.step = models.step.model();
    }
  }
  return times;
}

// The predicted time until a prompt that arrives now is started: the work of this router's
// reservations, plus the waiting tokens of other routers' requests.
double WorkerTable::QueueMs(const Worker& worker, const PrefillModel& prefill) const {
  const uint64_t ours = worker.reserved_at_state.tokens;
  const uint64_t reported = worker.state.waiting_tokens();
  const double others = reported > ours ? static_cast<double>(reported - ours) : 0;
  return worker.queue.WaitMs(clock_.Now()) + others * prefill.ms_per_token;
}

}  // namespace penstock
