#include "router/scaling/load_meter.h"

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

// Work that waits counts as load that must be done within this time.
constexpr double kBacklogMs = 60'000;
// The share of the KV memory that running sequences may use; the rest is for bursts.
constexpr double kFullMax = 0.9;

bool Serves(const WorkerPicture& worker) { return worker.status == "ready"; }

void Count(const WorkerPicture& worker, ScaleSituation& situation) {
  const v1::WorkerState& state = worker.state;
  situation.turning |= state.turning_to() != v1::WorkerState::ROLE_UNSPECIFIED;
  // A worker that drains or is silent is replaced, or ends: it is no replica.
  if (!Serves(worker)) return;
  const bool prefill = state.role() == v1::WorkerState::PREFILL;
  RoleFleet& role = prefill ? situation.prefill : situation.decode;
  RoleFleet& other = prefill ? situation.decode : situation.prefill;
  const bool visitor = StartedInOtherRole(state);
  role.visitors += visitor ? 1 : 0;
  ++(visitor ? other : role).replicas;
}

// Sums over the decode workers that serve.
struct DecodeSums {
  double workers = 0;
  double running = 0;
  double waiting = 0;
  double context_tokens = 0;
  double blocks_used = 0;
  double blocks_total = 0;
  std::vector<double> batches;  // running sequences of each worker
};

void Add(const v1::WorkerState& state, DecodeSums& sums) {
  ++sums.workers;
  sums.running += state.running();
  sums.waiting += state.waiting();
  const auto used = static_cast<double>(state.kv_blocks_used());
  sums.context_tokens += used * state.block_tokens();
  sums.blocks_used += used;
  sums.blocks_total += static_cast<double>(state.kv_blocks_total());
  sums.batches.push_back(state.running());
}

// A step of b sequences takes base + slope * b, so a worker gives b / (base + slope * b) tokens per
// millisecond. The load is the sum of these rates, over the rate of the largest batch that keeps
// the target and fits into memory.
QueueLoad DecodeLoad(const DecodeSums& sums, const StepModel& step, double tpot_ms) {
  if (sums.running == 0) return {.work = sums.waiting > 0 ? sums.workers : 0};
  const double slope =
      step.ms_per_sequence + step.ms_per_context_token * sums.context_tokens / sums.running;
  const double in_time = (tpot_ms - step.base_ms) / std::max(1e-6, slope);
  const double blocks_each = std::max(1e-6, sums.blocks_used / sums.running);
  const double fits = kFullMax * sums.blocks_total / sums.workers / blocks_each;
  const double batch = std::max(1.0, std::min(in_time, fits));
  const auto rate = [&](double sequences) {
    return sequences / std::max(1e-6, step.base_ms + slope * sequences);
  };
  double rates = 0;
  for (const double running : sums.batches) rates += rate(running);
  return {.work = rates / rate(batch) + sums.waiting / batch, .slots = batch};
}

}  // namespace

double LoadMeter::BusyShare(const WorkerPicture& worker, TimePoint now) {
  const v1::WorkerState& state = worker.state;
  const Seen seen{.incarnation = state.incarnation(),
                  .role_epoch = state.role_epoch(),
                  .busy_us = state.busy_us(),
                  .at = now};
  const auto [at, first] = seen_.try_emplace(worker.endpoint, seen);
  if (first) return 0;
  const Seen last = std::exchange(at->second, seen);
  const double passed_us = Milliseconds(now - last.at) * 1000;
  if (last.incarnation != seen.incarnation || last.role_epoch != seen.role_epoch ||
      seen.busy_us < last.busy_us || passed_us <= 0) {
    return 0;
  }
  return static_cast<double>(seen.busy_us - last.busy_us) / passed_us;
}

ScaleSituation LoadMeter::Measure(const std::vector<WorkerPicture>& workers,
                                  const ServiceTimes& times, TimePoint now) {
  ScaleSituation situation;
  for (auto& [endpoint, seen] : seen_) seen.used = false;
  DecodeSums decode;
  double busy = 0, backlog_ms = 0, prefills = 0;
  for (const WorkerPicture& worker : workers) {
    Count(worker, situation);
    if (!Serves(worker)) continue;
    if (worker.state.role() == v1::WorkerState::DECODE) {
      Add(worker.state, decode);
      continue;
    }
    ++prefills;
    busy += BusyShare(worker, now);
    backlog_ms += static_cast<double>(worker.state.waiting_tokens()) * times.ms_per_prompt_token;
  }
  std::erase_if(seen_, [](const auto& entry) { return !entry.second.used; });
  situation.prefill.known = prefills > 0 && times.prefill_known;
  situation.prefill.load = {
      .work = busy + backlog_ms / kBacklogMs,
      .service_ms = times.prefill_ms,
      .wait_max_ms = std::max(targets_.ttft_ms - times.prefill_ms, targets_.ttft_ms / 4)};
  situation.decode.known = decode.workers > 0 && times.step_known;
  situation.decode.load = DecodeLoad(decode, times.step, targets_.tpot_ms);
  return situation;
}

}  // namespace penstock
