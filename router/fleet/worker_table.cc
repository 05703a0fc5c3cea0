#include "router/fleet/worker_table.h"

#include <algorithm>
#include <utility>

#include "base/log/log.h"
#include "kvstore/names/kv_policy.h"
#include "proto/names.h"

namespace penstock {
namespace {

// A router that starts gives prefill workers so long before decode workers serve alone.
constexpr std::chrono::seconds kAloneAfter{3};

// True when both states are of one process in one role period: its requests are still there.
bool SameRoleEpoch(const v1::WorkerState& a, const v1::WorkerState& b) {
  return a.incarnation() == b.incarnation() && a.role_epoch() == b.role_epoch();
}

}  // namespace

WorkerTable::WorkerTable(const Clock& clock, Duration stale_after, PlacementMetrics* metrics,
                         PeerReadPolicy peer_reads, PlacementRule rule)
    : clock_(clock),
      started_(clock.Now()),
      stale_after_(stale_after),
      metrics_(metrics),
      peer_reads_(peer_reads),
      rule_(std::move(rule)),
      prefixes_(clock),
      transfers_(clock) {}

void WorkerTable::Add(const std::string& endpoint, std::shared_ptr<grpc::Channel> channel,
                      std::shared_ptr<DecodeLink> sessions) {
  MutexLock lock(mutex_);
  Worker& worker = workers_[endpoint];
  worker.channel = std::move(channel);
  worker.sessions = std::move(sessions);
  worker.last_seen = clock_.Now();
  if (!worker.index) worker.index = prefixes_.Join();
  ++version_;
}

void WorkerTable::Remove(const std::string& endpoint) {
  std::optional<uint32_t> index;
  {
    MutexLock lock(mutex_);
    const auto found = workers_.find(endpoint);
    if (found == workers_.end()) return;
    index = found->second.index;
    workers_.erase(found);
    Log(LogLevel::kInfo, "worker_unlisted", {{"worker", endpoint}});
    ++version_;
  }
  if (index) prefixes_.Leave(*index);  // without the lock: visits the whole index
}

std::optional<uint32_t> WorkerTable::IndexOf(const std::string& endpoint) const {
  MutexLock lock(mutex_);
  const auto found = workers_.find(endpoint);
  return found == workers_.end() ? std::nullopt : found->second.index;
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
  std::vector<std::function<void()>> drain_listeners;
  std::optional<uint32_t> restarted;
  {
    MutexLock lock(mutex_);
    const auto found = workers_.find(endpoint);
    if (found == workers_.end()) return;
    if (found->second.state.incarnation() != state.incarnation()) restarted = found->second.index;
    TakeState(endpoint, found->second, state);
    if (state.phase() == v1::WorkerState::DRAINING)
      drain_listeners = TakeDrainListeners(found->second);
    // An unhealthy worker's engine hangs, and so would the calls to it.
    if (state.phase() == v1::WorkerState::UNHEALTHY) TakeLossListeners(found->second, listeners);
  }
  if (restarted) prefixes_.OnRestarted(*restarted, state.incarnation());  // visits the whole index
  for (const LossListener& listener : listeners) {
    listener(Unavailable("worker {} is unhealthy", state.worker_id()));
  }
  for (const auto& leave : drain_listeners) leave();
}

std::vector<std::function<void()>> WorkerTable::TakeDrainListeners(Worker& worker) {
  std::vector<std::function<void()>> drain_listeners;
  for (auto& [id, reservation] : worker.reservations) {
    if (auto leave = std::exchange(reservation.on_draining, nullptr)) {
      drain_listeners.push_back(std::move(leave));
    }
  }
  return drain_listeners;
}

void WorkerTable::TakeLossListeners(Worker& worker, std::vector<LossListener>& listeners) {
  for (auto& [id, reservation] : worker.reservations) {
    if (reservation.on_lost == nullptr) continue;
    listeners.push_back(std::move(reservation.on_lost));
    reservation.on_lost = nullptr;
  }
}

void WorkerTable::TakeState(const std::string& endpoint, Worker& worker,
                            const v1::WorkerState& state) {
  if (!SameRoleEpoch(worker.state, state)) {
    worker.reservations.clear();  // requests end with the process, and with its role
    worker.reserved = {};
    worker.queue = {};
  } else if (worker.fresh) {
    LearnSteps(worker, state);
  }
  worker.state = state;
  worker.fresh = true;
  worker.last_seen = clock_.Now();
  if (state.role() == v1::WorkerState::PREFILL && IsReady(worker)) prefill_was_ready_ = true;
  worker.reserved_at_state = worker.reserved;
  ++version_;
  BindModel(endpoint, worker);
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
  Log(LogLevel::kInfo, "worker_changed", {{"worker", endpoint}, {"message", what}});
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
      TakeLossListeners(worker, listeners);
    }
    if (!silent.empty()) ++version_;
  }
  // Without the lock: listeners release their reservations.
  const absl::Status status =
      Unavailable("the worker has been silent for {} ms", stale_after_.count() / 1'000'000);
  for (const LossListener& listener : listeners) listener(status);
  return silent;
}

KvFormat WorkerTable::FormatOf(const v1::WorkerState& state) {
  return {state.model_fingerprint(), state.layout_fingerprint(), state.block_tokens(),
          state.kv_window()};
}

bool WorkerTable::IsReady(const Worker& worker) const {
  return worker.fresh && worker.state.phase() == v1::WorkerState::READY &&
         clock_.Now() - worker.last_seen <= stale_after_;
}

bool WorkerTable::HasOtherModel(const Worker& worker) const {
  const uint64_t checkpoint = worker.state.checkpoint_fingerprint();
  return checkpoint != 0 && checkpoint_ != 0 && checkpoint != checkpoint_;
}

bool WorkerTable::Eligible(const Worker& worker) const {
  return IsReady(worker) && !HasOtherModel(worker);
}

bool WorkerTable::IsServed(uint64_t checkpoint) const {
  for (const auto& [endpoint, worker] : workers_) {
    if (IsReady(worker) && worker.state.checkpoint_fingerprint() == checkpoint) return true;
  }
  return false;
}

void WorkerTable::BindModel(const std::string& endpoint, Worker& worker) {
  const uint64_t checkpoint = worker.state.checkpoint_fingerprint();
  if (checkpoint == 0 || !IsReady(worker)) return;
  const bool served = checkpoint_ != 0 && IsServed(checkpoint_);
  if (!served) {
    if (checkpoint_ != 0) {
      Log(LogLevel::kWarning, "model_changed",
          {{"worker", endpoint},
           {"checkpoint", fmt::format("{:016x}", checkpoint)},
           {"before", fmt::format("{:016x}", checkpoint_)}});
    }
    checkpoint_ = checkpoint;
  }
  const bool refused = HasOtherModel(worker);
  if (refused && !worker.refused) {
    Log(LogLevel::kWarning, "worker_model_refused",
        {{"worker", endpoint},
         {"checkpoint", fmt::format("{:016x}", checkpoint)},
         {"served", fmt::format("{:016x}", checkpoint_)}});
  }
  worker.refused = refused;
}

// ---------------------------------------------------------------- reservations

PlacedWorker WorkerTable::Reserve(const std::string& endpoint, ReservationRecord reservation) {
  Worker& worker = workers_[endpoint];
  worker.reserved.tokens += reservation.tokens;
  worker.reserved.blocks += reservation.blocks;
  ++worker.reserved.requests;
  const uint64_t id = next_reservation_++;
  if (reservation.predicted_ms > 0) {
    worker.queue.Add(id, reservation.predicted_ms, clock_.Now());
  }
  worker.reservations.emplace(id, std::move(reservation));
  const uint64_t incarnation = worker.state.incarnation();
  return {.life = {endpoint, incarnation},
          .role_epoch = worker.state.role_epoch(),
          .worker_id = worker.state.worker_id(),
          .channel = worker.channel,
          .sessions = worker.sessions,
          .reservation = Reservation([table = shared_from_this(), endpoint, incarnation, id] {
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
  worker.reserved.tokens -= reservation->second.tokens;
  worker.reserved.blocks -= reservation->second.blocks;
  --worker.reserved.requests;
  worker.queue.Remove(id, clock_.Now());
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

std::set<std::string> WorkerTable::numerics() const {
  MutexLock lock(mutex_);
  std::set<std::string> names;
  for (const Worker* decode : EligibleOf(v1::WorkerState::DECODE)) {
    if (!decode->state.numerics().empty()) names.insert(decode->state.numerics());
  }
  return names;
}

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
  if (longest > 0) return longest;
  for (const Worker* decode : EligibleOf(v1::WorkerState::DECODE)) {
    if (ServesAlone(*decode)) longest = std::max(longest, decode->state.max_model_len());
  }
  return longest;
}

uint32_t WorkerTable::block_tokens() const {
  MutexLock lock(mutex_);
  const Worker* decode = FirstServingDecode();
  return decode == nullptr ? 0 : decode->state.block_tokens();
}

std::set<std::string> WorkerTable::MethodsOf(const v1::WorkerState& state) {
  std::set<std::string> methods(state.kv_evictions().begin(), state.kv_evictions().end());
  methods.insert(state.kv_selections().begin(), state.kv_selections().end());
  if (state.kv_blends()) methods.emplace(kBlendName);
  return methods;
}

std::optional<std::vector<std::string>> WorkerTable::kv_methods() const {
  MutexLock lock(mutex_);
  bool pair = false;  // A decode worker that serves alone is none, and takes no lossy KV.
  std::set<std::string> found;
  for (const Worker* prefill : EligibleOf(v1::WorkerState::PREFILL)) {
    const auto& sent = prefill->state.lossy_codecs();
    for (const Worker* decode : EligibleOf(v1::WorkerState::DECODE)) {
      if (FormatOf(prefill->state) != FormatOf(decode->state)) continue;
      pair = true;
      const bool same_tables = prefill->state.kv_calibration() == decode->state.kv_calibration();
      for (const std::string& codec : decode->state.lossy_codecs()) {
        const bool taken = std::find(sent.begin(), sent.end(), codec) != sent.end();
        if (taken && (same_tables || !codec.starts_with("cgx"))) found.insert(codec);
      }
      const std::set<std::string> methods = MethodsOf(prefill->state);
      for (const std::string& method : MethodsOf(decode->state)) {
        if (methods.contains(method)) found.insert(method);
      }
    }
  }
  if (!pair) return std::nullopt;
  return std::vector<std::string>(found.begin(), found.end());
}

BlockSpace WorkerTable::block_space() const {
  MutexLock lock(mutex_);
  const Worker* decode = FirstServingDecode();
  if (decode == nullptr) return {};
  return {.model_fingerprint = decode->state.model_fingerprint(),
          .kv_format = decode->state.kv_format(),
          .block_tokens = decode->state.block_tokens()};
}

const WorkerTable::Worker* WorkerTable::FirstServingDecode() const {
  for (const Worker* prefill : EligibleOf(v1::WorkerState::PREFILL)) {
    for (const Worker* decode : EligibleOf(v1::WorkerState::DECODE)) {
      if (FormatOf(prefill->state) == FormatOf(decode->state)) return decode;
    }
  }
  for (const Worker* decode : EligibleOf(v1::WorkerState::DECODE)) {
    if (ServesAlone(*decode)) return decode;
  }
  return nullptr;
}

// Not while prefill workers may still be about to start.
bool WorkerTable::ServesAlone(const Worker& decode) const {
  const bool prefill_is_gone = prefill_was_ready_ || clock_.Now() - started_ >= kAloneAfter;
  return prefill_is_gone && decode.state.local_prefill_max_tokens() > 0;
}

std::map<WorkerKind, int> WorkerTable::Counts() const {
  MutexLock lock(mutex_);
  std::map<WorkerKind, int> counts;
  for (const auto& [endpoint, worker] : workers_) {
    const v1::WorkerState& state = worker.state;
    if (state.role() == v1::WorkerState::ROLE_UNSPECIFIED) continue;
    ++counts[{std::string(RoleName(state.role())), std::string(StatusOf(worker))}];
  }
  return counts;
}

std::string_view WorkerTable::StatusOf(const Worker& worker) const {
  const bool heard = worker.fresh && clock_.Now() - worker.last_seen <= stale_after_;
  if (!heard) return "silent";
  const bool refused = IsReady(worker) && HasOtherModel(worker);
  return refused ? "refused" : PhaseName(worker.state.phase());
}

std::vector<WorkerPicture> WorkerTable::Pictures(size_t max) const {
  std::vector<WorkerPicture> pictures;
  MutexLock lock(mutex_);
  for (const auto& [endpoint, worker] : workers_) {
    if (pictures.size() == max) break;
    pictures.push_back({.endpoint = endpoint,
                        .state = worker.state,
                        .status = std::string(StatusOf(worker)),
                        .requests = worker.reserved.requests,
                        .index = worker.index});
  }
  return pictures;
}

absl::StatusOr<const WorkerTable::Worker*> WorkerTable::FindNamed(const std::string& name) const {
  constexpr size_t kNamesMax = 16;
  std::vector<std::string> names;
  std::vector<const Worker*> found;
  for (const auto& [endpoint, worker] : workers_) {
    const std::string& id = worker.state.worker_id();
    if (endpoint == name) return &worker;
    if (!id.empty() && id == name) found.push_back(&worker);
    if (names.size() < kNamesMax) names.push_back(id.empty() ? endpoint : id);
  }
  if (found.size() == 1) return found.front();
  if (found.size() > 1) {
    return FailedPrecondition("{} workers are named {}: say which by its host:port", found.size(),
                              name);
  }
  return NotFound("no worker is `{}`; there are {}{}", name,
                  names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")),
                  workers_.size() > names.size() ? ", ..." : "");
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> WorkerTable::ChannelTo(
    const std::string& worker) const {
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(const Worker* const found, FindNamed(worker));
  return found->channel;
}

absl::Status WorkerTable::CheckOthers(const std::string& worker, v1::WorkerState::Role role) const {
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(const Worker* const found, FindNamed(worker));
  const v1::WorkerState::Role present = found->state.role();
  if (present == role) return absl::OkStatus();
  const std::vector<const Worker*> ready = EligibleOf(present);
  const bool others =
      std::any_of(ready.begin(), ready.end(), [&](const Worker* other) { return other != found; });
  if (others) return absl::OkStatus();
  return FailedPrecondition(
      "{} is the only ready {} worker, and requests need one: start another one first, or use "
      "force",
      worker, RoleName(present));
}

uint64_t WorkerTable::version() const {
  MutexLock lock(mutex_);
  return version_;
}

}  // namespace penstock
