#include "router/worker_table.h"

#include <algorithm>

#include "base/log.h"

namespace penstock {
namespace {

std::string_view RoleName(v1::WorkerState::Role role) {
  return role == v1::WorkerState::PREFILL ? "prefill" : "decode";
}

std::string_view PhaseName(v1::WorkerState::Phase phase) {
  switch (phase) {
    case v1::WorkerState::STARTING:
      return "starting";
    case v1::WorkerState::READY:
      return "ready";
    case v1::WorkerState::DRAINING:
      return "draining";
    case v1::WorkerState::UNHEALTHY:
      return "unhealthy";
    default:
      return "in an unknown phase";
  }
}

KvFormat FormatOf(const v1::WorkerState& state) {
  return {state.model_fingerprint(), state.layout_fingerprint(), state.block_tokens()};
}

// What a worker has now: what it reported, with our bookings since then added and those that have
// ended since then taken off; at least what we have booked ourselves.
template <class T>
T Current(T reported, T booked_then, T booked_now) {
  const T sum = reported + booked_now;
  return std::max(booked_now, sum > booked_then ? sum - booked_then : T{0});
}

}  // namespace

WorkerTable::WorkerTable(const Clock& clock, Duration stale_after)
    : clock_(clock), stale_after_(stale_after) {}

void WorkerTable::Add(const std::string& endpoint, std::shared_ptr<grpc::Channel> channel) {
  MutexLock lock(mutex_);
  Worker& worker = workers_[endpoint];
  worker.channel = std::move(channel);
  worker.last_seen = clock_.Now();
  ++version_;
}

void WorkerTable::Remove(const std::string& endpoint) {
  MutexLock lock(mutex_);
  if (workers_.erase(endpoint) > 0) LogInfo("worker {} is no longer listed", endpoint);
  ++version_;
}

void WorkerTable::OnWatchStarted(const std::string& endpoint) {
  MutexLock lock(mutex_);
  const auto found = workers_.find(endpoint);
  if (found == workers_.end()) return;
  found->second.watched = true;
  found->second.fresh = false;
  found->second.last_seen = clock_.Now();
}

void WorkerTable::OnState(const std::string& endpoint, const v1::WorkerState& state) {
  std::vector<LossListener> listeners;
  {
    MutexLock lock(mutex_);
    const auto found = workers_.find(endpoint);
    if (found == workers_.end()) return;
    TakeState(endpoint, found->second, state);
    // Its engine hangs, and so would our calls.
    if (state.phase() == v1::WorkerState::UNHEALTHY) TakeListeners(found->second, listeners);
  }
  for (const LossListener& listener : listeners) {
    listener(Unavailable("worker {} is unhealthy", state.worker_id()));
  }
}

void WorkerTable::TakeListeners(Worker& worker, std::vector<LossListener>& listeners) {
  for (auto& [id, reservation] : worker.reservations) {
    if (reservation.on_lost == nullptr) continue;
    listeners.push_back(std::move(reservation.on_lost));
    reservation.on_lost = nullptr;
  }
}

void WorkerTable::TakeState(const std::string& endpoint, Worker& worker,
                            const v1::WorkerState& state) {
  if (worker.state.incarnation() != state.incarnation()) {
    worker.reservations.clear();  // of a process that is gone
    worker.booked = {};
  }
  worker.state = state;
  worker.fresh = true;
  worker.last_seen = clock_.Now();
  worker.booked_at_state = worker.booked;
  ++version_;
  LogOnce(endpoint, worker,
          fmt::format("{} worker {} is {}", RoleName(state.role()), state.worker_id(),
                      PhaseName(state.phase())));
}

void WorkerTable::OnWatchEnded(const std::string& endpoint, const std::string& reason) {
  MutexLock lock(mutex_);
  const auto found = workers_.find(endpoint);
  if (found == workers_.end()) return;
  found->second.watched = false;
  found->second.fresh = false;
  ++version_;
  LogOnce(endpoint, found->second, fmt::format("cannot be watched: {}", reason));
}

void WorkerTable::LogOnce(const std::string& endpoint, Worker& worker, const std::string& what) {
  if (worker.logged == what) return;
  worker.logged = what;
  LogInfo("{}: {}", endpoint, what);
}

std::vector<std::string> WorkerTable::Sweep() {
  std::vector<std::string> silent;
  std::vector<LossListener> listeners;
  {
    MutexLock lock(mutex_);
    for (auto& [endpoint, worker] : workers_) {
      if (!worker.watched || clock_.Now() - worker.last_seen <= stale_after_) continue;
      silent.push_back(endpoint);
      LogOnce(endpoint, worker, "silent");
      TakeListeners(worker, listeners);
    }
    if (!silent.empty()) ++version_;
  }
  // Outside the lock: they release their bookings.
  const absl::Status status =
      Unavailable("the worker has been silent for {} ms", stale_after_.count() / 1'000'000);
  for (const LossListener& listener : listeners) listener(status);
  return silent;
}

bool WorkerTable::Eligible(const Worker& worker) const {
  return worker.fresh && worker.state.phase() == v1::WorkerState::READY &&
         clock_.Now() - worker.last_seen <= stale_after_;
}

Candidate WorkerTable::CandidateOf(const std::string& endpoint, const Worker& worker,
                                   const WorkerFailures& failures) const {
  const v1::WorkerState& state = worker.state;
  const Booked& then = worker.booked_at_state;
  const Booked& now = worker.booked;
  const auto failed = failures.find({endpoint, state.incarnation()});
  return {.format = FormatOf(state),
          .max_model_len = state.max_model_len(),
          .waiting_tokens = Current(state.waiting_tokens(), then.tokens, now.tokens),
          .blocks_total = state.kv_blocks_total(),
          .blocks_taken =
              Current(state.kv_blocks_used() + state.kv_blocks_promised(), then.blocks, now.blocks),
          .requests = Current(state.waiting() + state.running(), then.requests, now.requests),
          .waiting = state.waiting(),
          .failures = failed == failures.end() ? 0 : failed->second};
}

absl::StatusOr<PlacedPair> WorkerTable::Place(const PlacementRequest& request) {
  MutexLock lock(mutex_);
  PlacementInput input{.need = request.need, .random = request.random};
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  for (const auto& [endpoint, worker] : workers_) {
    const bool is_prefill = worker.state.role() == v1::WorkerState::PREFILL;
    if (worker.state.role() == v1::WorkerState::ROLE_UNSPECIFIED) continue;
    ++(is_prefill ? input.prefill_known : input.decode_known);
    if (!Eligible(worker)) continue;
    (is_prefill ? prefill : decode).push_back(endpoint);
    (is_prefill ? input.prefill : input.decode)
        .push_back(CandidateOf(endpoint, worker, request.failures));
  }
  ASSIGN_OR_RETURN(const WorkerPair pair, penstock::Place(input));
  const KvFormat format = input.prefill[pair.prefill].format;
  return PlacedPair{.prefill = Book(prefill[pair.prefill], {.tokens = request.need.prompt_tokens,
                                                            .on_lost = request.on_prefill_lost}),
                    .decode = Book(decode[pair.decode],
                                   {.blocks = BlocksNeeded(request.need, format.block_tokens),
                                    .on_lost = request.on_decode_lost}),
                    .format = format};
}

PlacedWorker WorkerTable::Book(const std::string& endpoint, Reservation reservation) {
  Worker& worker = workers_[endpoint];
  worker.booked.tokens += reservation.tokens;
  worker.booked.blocks += reservation.blocks;
  ++worker.booked.requests;
  const uint64_t id = next_reservation_++;
  worker.reservations.emplace(id, std::move(reservation));
  const uint64_t incarnation = worker.state.incarnation();
  return {.life = {endpoint, incarnation},
          .worker_id = worker.state.worker_id(),
          .channel = worker.channel,
          .booking = Booking([table = shared_from_this(), endpoint, incarnation, id] {
            table->Release(endpoint, incarnation, id);
          })};
}

void WorkerTable::Release(const std::string& endpoint, uint64_t incarnation, uint64_t id) {
  MutexLock lock(mutex_);
  const auto found = workers_.find(endpoint);
  if (found == workers_.end() || found->second.state.incarnation() != incarnation) return;
  Worker& worker = found->second;
  const auto reservation = worker.reservations.find(id);
  if (reservation == worker.reservations.end()) return;
  worker.booked.tokens -= reservation->second.tokens;
  worker.booked.blocks -= reservation->second.blocks;
  --worker.booked.requests;
  worker.reservations.erase(reservation);
}

std::vector<const WorkerTable::Worker*> WorkerTable::EligibleOf(v1::WorkerState::Role role) const {
  std::vector<const Worker*> found;
  for (const auto& [endpoint, worker] : workers_) {
    if (worker.state.role() == role && Eligible(worker)) found.push_back(&worker);
  }
  return found;
}

bool WorkerTable::ready() const { return block_tokens() > 0; }

uint32_t WorkerTable::max_model_len() const {
  MutexLock lock(mutex_);
  uint32_t longest = 0;
  for (const Worker* prefill : EligibleOf(v1::WorkerState::PREFILL)) {
    for (const Worker* decode : EligibleOf(v1::WorkerState::DECODE)) {
      if (FormatOf(prefill->state) != FormatOf(decode->state)) continue;
      longest = std::max(longest,
                         std::min(prefill->state.max_model_len(), decode->state.max_model_len()));
    }
  }
  return longest;
}

uint32_t WorkerTable::block_tokens() const {
  MutexLock lock(mutex_);
  for (const Worker* prefill : EligibleOf(v1::WorkerState::PREFILL)) {
    for (const Worker* decode : EligibleOf(v1::WorkerState::DECODE)) {
      if (FormatOf(prefill->state) == FormatOf(decode->state)) return decode->state.block_tokens();
    }
  }
  return 0;
}

std::map<WorkerKind, int> WorkerTable::Counts() const {
  MutexLock lock(mutex_);
  std::map<WorkerKind, int> counts;
  for (const auto& [endpoint, worker] : workers_) {
    const v1::WorkerState& state = worker.state;
    if (state.role() == v1::WorkerState::ROLE_UNSPECIFIED) continue;
    const bool heard = worker.fresh && clock_.Now() - worker.last_seen <= stale_after_;
    const std::string_view what = heard ? PhaseName(state.phase()) : "silent";
    ++counts[{std::string(RoleName(state.role())), std::string(what)}];
  }
  return counts;
}

uint64_t WorkerTable::version() const {
  MutexLock lock(mutex_);
  return version_;
}

}  // namespace penstock
