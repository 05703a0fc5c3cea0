#include "tests/world/world.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "lab/world/machine/disk.h"
#include "lab/world/machine/listing.h"
#include "lab/world/machine/machine.h"
#include "router/request/error_detail.h"
#include "tests/world/model.h"

namespace penstock::world {
namespace {

constexpr Duration kStartLimit = std::chrono::seconds(20);
// Behind the last arrival and the last fault: every request has ended by then.
constexpr Duration kEndLimit = std::chrono::seconds(90);
// Behind the end of the last request: every block is free by then.
constexpr Duration kIdleLimit = std::chrono::seconds(30);
// Until the router sees every worker ready again, and until the probes have ended.
constexpr Duration kRecoverLimit = std::chrono::seconds(60);
constexpr Duration kTurnLimit = std::chrono::seconds(6);
constexpr const char* kModelA = "model-a";
constexpr const char* kModelB = "model-b";

// Small, so that every bound is met; otherwise the defaults of the program.
v1::WorkerConfig SmallWorker(const Plan& plan, int life) {
  constexpr int kPageBytes = 8192;
  v1::WorkerConfig config;
  config.set_kv_memory(fmt::format("{}B", plan.pages * kPageBytes));
  config.set_block_tokens(kBlockTokens);
  config.set_chunk_tokens(64);
  config.set_layers_per_group(1);
  config.set_max_batch(16);
  config.set_prefill_chunk(16);
  config.set_local_prefill_max_tokens(24);
  config.set_max_waiting(64);
  config.set_wire("auto");
  config.set_lease_ms(3000);
  config.set_cache_policy("cost");
  config.set_wire_codec(life % 2 == 0 ? "lx16" : "raw");
  config.set_kv_format("bf16");
  config.set_dram_memory(fmt::format("{}B", plan.slots * kPageBytes));
  config.set_nvme_size("2MiB");
  config.set_nvme_io("threads");
  config.set_nvme_min_uses(1);
  config.set_nvme_codec("raw");
  config.set_stall_ms(5000);
  config.set_peer_reads(4);
  config.set_lossy_kv("near-lossless");
  config.set_device("cpu");
  config.set_tensor_parallel(1);
  config.set_speculation((plan.seed + static_cast<uint64_t>(life)) % 2 == 0 ? "ngram" : "off");
  config.set_max_draft_tokens(4);
  return config;
}

std::string HostOf(size_t worker) { return fmt::format("10.0.0.{}", worker + 1); }

}  // namespace

void Totals::operator+=(const Totals& other) {
  requests += other.requests;
  ok += other.ok;
  cancelled += other.cancelled;
  late += other.late;
  failed += other.failed;
  tokens += other.tokens;
  prompt_tokens += other.prompt_tokens;
  cached_tokens += other.cached_tokens;
  first_tokens += other.first_tokens;
  migrations += other.migrations;
  lossy += other.lossy;
  wrong += other.wrong;
  stuck += other.stuck;
  leaked_blocks += other.leaked_blocks;
  worlds += other.worlds;
  broken += other.broken;
  events += other.events;
  for (size_t i = 0; i < faults.size(); ++i) faults[i] += other.faults[i];
  for (size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
}

World::World(const Plan& plan)
    : plan_(plan), scheduler_(plan.seed), network_(scheduler_, plan.seed + 1) {
  SeedEntropy(plan.seed + 2);
  std::filesystem::create_directories(DisksOf(getpid()));
  for (int i = 0; i < plan.prefill_workers; ++i) AddWorker(v1::WorkerState::PREFILL);
  for (int i = 0; i < plan.decode_workers; ++i) AddWorker(v1::WorkerState::DECODE);
  network_.faults() = plan.network;
  SetModels(plan.slow_pages ? OpenSlowModel : OpenHashModel);
  router_ = std::make_unique<SimRouter>(RouterPlace{.host = static_cast<int>(workers_.size()),
                                                    .max_model_len = uint32_t{kMaxPosition}});
  std::vector<uint64_t> models = {ModelNumber(kModelA)};
  if (!plan.planned) models.push_back(ModelNumber(kModelB));
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    clients_.emplace_back(plan.requests[i], static_cast<int>(i), models);
  }
  arrived_.resize(clients_.size());
  for (size_t i = 0; i < plan.probes.size(); ++i) {
    probes_.emplace_back(plan.probes[i], static_cast<int>(clients_.size() + i), models);
  }
}

void World::AddWorker(v1::WorkerState::Role role) {
  const size_t number = workers_.size();
  workers_.push_back(std::make_unique<SimWorker>(
      WorkerPlace{.first_role = role,
                  .endpoint = fmt::format("{}:{}", HostOf(number), kListedPort),
                  .host = static_cast<int>(number),
                  .model = kModelA,
                  .disk = DiskPath(static_cast<int>(number)),
                  .config = [this](int life) { return SmallWorker(plan_, life); }}));
  TheListing().hosts.insert(HostOf(number));
}

Outcome World::Run() {
  for (const auto& worker : workers_) worker->Start();
  router_->Start();
  scheduler_.Run(scheduler_.now() + kStartLimit, [this] { return router_->ready(); });
  if (!router_->ready()) return {.failure = "the router never became ready"};
  Begin();
  const TimePoint begun = scheduler_.now();
  Duration last{};
  for (const RequestPlan& request : plan_.requests) last = std::max(last, request.at);
  for (const Fault& fault : plan_.faults) last = std::max(last, fault.at + 2 * fault.lasts);
  scheduler_.Run(scheduler_.now() + last + kEndLimit, [this] { return AllFinished(); });
  scheduler_.Run(begun + last + kEndLimit + kIdleLimit, [this] { return AllIdle(); });
  Outcome outcome = Result();
  if (outcome.failure.empty()) {
    scheduler_.Run(std::max(scheduler_.now(), begun + last), [] { return false; });
    outcome.failure = Recover();
  }
  CountFailures();
  outcome.totals = totals_;
  return outcome;
}

std::string World::Recover() {
  const TimePoint limit = scheduler_.now() + kRecoverLimit;
  while (!Unseen().empty() && scheduler_.now() < limit) {
    RestoreRoles();
    scheduler_.Run(scheduler_.now() + kTurnLimit, [this] { return Unseen().empty(); });
  }
  if (const std::string unseen = Unseen(); !unseen.empty()) {
    return "after the last fault, the router does not see ready:" + unseen;
  }
  return Probe();
}

// A role change that a fault has left behind is what an operator would undo.
void World::RestoreRoles() {
  for (const auto& worker : workers_) {
    const WorkerPlace& place = worker->place();
    if (worker->serving() && !router_->Sees(place.endpoint, place.first_role)) {
      worker->TakeRole(place.first_role);
    }
  }
}

std::string World::Unseen() const {
  std::string unseen;
  for (const auto& worker : workers_) {
    const WorkerPlace& place = worker->place();
    if (!router_->Sees(place.endpoint, place.first_role)) unseen += " " + place.endpoint;
  }
  return unseen;
}

std::string World::Probe() {
  for (SimClient& probe : probes_) {
    After(probe.plan().at, [this, &probe] { router_->Send(probe); });
  }
  const auto ended = [this] {
    return std::all_of(probes_.begin(), probes_.end(),
                       [](const SimClient& probe) { return probe.finished(); });
  };
  scheduler_.Run(scheduler_.now() + kRecoverLimit, ended);
  for (const SimClient& probe : probes_) {
    if (!probe.wrong().empty()) return probe.wrong();
    if (!probe.finished()) return "a probe after the last fault is stuck";
    if (!probe.status().ok()) {
      return fmt::format("a probe after the last fault fails: {}", probe.status().ToString());
    }
  }
  scheduler_.Run(scheduler_.now() + kIdleLimit,
                 [this] { return AllIdle() && router_->reserved() == 0; });
  if (router_->reserved() > 0) {
    return fmt::format("the router keeps load of {} requests reserved", router_->reserved());
  }
  return Problem();
}

void World::Begin() {
  for (size_t i = 0; i < plan_.requests.size(); ++i) {
    After(plan_.requests[i].at, [this, i] { Arrive(i); });
  }
  for (const Fault& fault : plan_.faults) After(fault.at, [this, &fault] { Inject(fault); });
  for (const IdleBy& idle : plan_.idle_by) After(idle.at, [this, &idle] { CheckIdle(idle); });
}

void World::CheckIdle(const IdleBy& idle) {
  const SimWorker& worker = *workers_[static_cast<size_t>(idle.worker)];
  const std::string leaks = worker.Leaks();
  if (leaks.empty() || !late_.empty()) return;
  late_ = fmt::format("worker {} still holds after {:.0f} ms:{}", worker.place().endpoint,
                      Milliseconds(idle.at), leaks);
}

void World::Arrive(size_t request) {
  SimClient& client = clients_[request];
  const RequestPlan& plan = client.plan();
  arrived_[request] = true;
  client.OnArrival();
  router_->Send(client);
  if (plan.deadline > Duration::zero()) {
    After(plan.deadline, [this, &client] {
      router_->Cancel(client, absl::DeadlineExceededError("the client's deadline has passed"));
    });
  }
  if (plan.cancelled > Duration::zero()) {
    After(plan.cancelled, [this, &client] {
      router_->Cancel(client, absl::CancelledError("the client has left"));
    });
  }
  if (plan.ends_within > Duration::zero()) {
    After(plan.ends_within, [this, &client] {
      if (client.finished() || !late_.empty()) return;
      late_ = fmt::format("{} has not ended {:.0f} ms after its arrival",
                          client.request().client_request_id(),
                          Milliseconds(client.plan().ends_within));
    });
  }
}

bool World::AllFinished() const {
  return std::all_of(clients_.begin(), clients_.end(),
                     [](const SimClient& client) { return client.finished(); });
}

bool World::AllIdle() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker->idle(); });
}

std::string World::Problem() const {
  for (const SimClient& client : clients_) {
    if (!client.wrong().empty()) return client.wrong();
  }
  for (size_t i = 0; i < clients_.size(); ++i) {
    if (!clients_[i].finished()) return fmt::format("request {} is stuck", i);
  }
  if (!late_.empty()) return late_;
  for (const auto& worker : workers_) {
    if (const std::string leaks = worker->Leaks(); !leaks.empty()) {
      return fmt::format("worker {} leaks:{}", worker->place().endpoint, leaks);
    }
  }
  return Crossed();
}

std::string World::Crossed() const {
  for (const SimClient& client : clients_) {
    const size_t cached = client.usage().cached_tokens();
    size_t possible = 0, of = 0;
    for (size_t i = 0; i < clients_.size(); ++i) {
      const SimClient& other = clients_[i];
      // A request that began again may find its own blocks.
      const bool counts = &client == &other ? !client.began_once() : arrived_[i];
      if (!counts || client.plan().salt != other.plan().salt) continue;
      if (const size_t shared = client.SharedWith(other); shared > possible)
        possible = shared, of = i;
    }
    if (cached <= possible) continue;
    return fmt::format(
        "{} of \"{}\" had {} tokens cached, and its tenant has at most {} of them, in {}",
        client.request().client_request_id(), client.plan().salt, cached, possible,
        clients_[of].request().client_request_id());
  }
  return "";
}

void World::CountFailures() {
  for (const std::deque<SimClient>* const clients : {&clients_, &probes_}) {
    for (const SimClient& client : *clients) {
      totals_.wrong += !client.wrong().empty();
      totals_.lossy += client.lossy();
    }
  }
  for (const SimClient& client : clients_) totals_.stuck += !client.finished();
  for (const auto& worker : workers_) totals_.leaked_blocks += worker->leaked_blocks();
}

std::string World::Refused() const {
  std::string refused;
  for (const SimClient& client : clients_) {
    if (client.finished() && client.status().ok()) continue;
    refused += fmt::format("{}: {} {}\n", client.request().client_request_id(),
                           client.finished() ? client.status().ToString() : "stuck",
                           DetailOf(client.status()).reason);
  }
  return refused;
}

Outcome World::Result() {
  for (const SimClient& client : clients_) {
    ++totals_.requests;
    totals_.tokens += static_cast<int64_t>(client.tokens());
    totals_.migrations += client.migrations();
    totals_.prompt_tokens += client.usage().prompt_tokens();
    totals_.cached_tokens += client.usage().cached_tokens();
    if (client.status().ok()) totals_.first_tokens += client.first_token();
    const absl::StatusCode code = client.status().code();
    const bool late = code == absl::StatusCode::kDeadlineExceeded;
    ++(!client.finished()                           ? totals_.failed
       : code == absl::StatusCode::kOk              ? totals_.ok
       : code == absl::StatusCode::kCancelled       ? totals_.cancelled
       : late && client.plan().deadline.count() > 0 ? totals_.late
                                                    : totals_.failed);
    history_ = (history_ ^ client.tokens() ^ static_cast<uint64_t>(code)) * 0x100000001b3u;
  }
  for (const auto& worker : workers_) {
    const Counts counts = worker->counts();
    for (size_t i = 0; i < counts.size(); ++i) totals_.counts[i] += counts[i];
  }
  totals_.events = static_cast<int64_t>(scheduler_.events_run());
  history_ = (history_ ^ static_cast<uint64_t>(scheduler_.now().time_since_epoch().count()) ^
              scheduler_.events_run()) *
             0x100000001b3u;
  return {.failure = Problem(), .totals = totals_, .refused = Refused(), .history = history_};
}

}  // namespace penstock::world
