#include "lab/world/router.h"

#include <algorithm>
#include <utility>

#include "lab/fake/test_model.h"
#include "lab/world/machine/listing.h"
#include "lab/world/machine/must.h"
#include "lab/world/machine/network.h"
#include "lab/world/machine/scheduler.h"

namespace penstock::world {

SimRouter::SimRouter(RouterPlace place) : place_(std::move(place)) {}

void SimRouter::Crash() {
  process_->alive = false;
  parts_ = nullptr;
  Network::current().OnDeath(process_);
}

std::vector<WorkerPicture> SimRouter::Pictures() const {
  constexpr size_t kAll = SIZE_MAX;
  return parts_ == nullptr ? std::vector<WorkerPicture>() : parts_->fleet->table().Pictures(kAll);
}

bool SimRouter::Sees(const std::string& endpoint, v1::WorkerState::Role role) const {
  const std::vector<WorkerPicture> pictures = Pictures();
  return std::any_of(pictures.begin(), pictures.end(), [&](const WorkerPicture& worker) {
    return worker.endpoint == endpoint && worker.state.role() == role && worker.status == "ready";
  });
}

bool SimRouter::CanSpare(const std::string& endpoint) const {
  const std::vector<WorkerPicture> pictures = Pictures();
  const auto here =
      std::find_if(pictures.begin(), pictures.end(),
                   [&](const WorkerPicture& worker) { return worker.endpoint == endpoint; });
  if (here == pictures.end()) return false;
  return std::any_of(pictures.begin(), pictures.end(), [&](const WorkerPicture& worker) {
    return worker.endpoint != endpoint && Sees(worker.endpoint, here->state.role());
  });
}

size_t SimRouter::workers_ready() const {
  const std::vector<WorkerPicture> pictures = Pictures();
  return static_cast<size_t>(
      std::count_if(pictures.begin(), pictures.end(),
                    [](const WorkerPicture& worker) { return worker.status == "ready"; }));
}

uint32_t SimRouter::reserved() const {
  uint32_t reserved = 0;
  for (const WorkerPicture& worker : Pictures()) reserved += worker.requests;
  return reserved;
}

void SimRouter::Start() {
  process_ = new Process{.name = "router", .host = place_.host};
  Scheduler::current()->StartThread(process_, [this] { Run(); });
}

void SimRouter::Run() {
  auto* const parts = new Parts;
  parts->model = MakeTestModel(place_.max_model_len);
  parts->metrics = std::make_unique<RequestMetrics>(parts->registry, SloTargets{}, "world");
  parts->open = std::make_unique<OpenRequests>(place_.requests_max);
  parts->fleet = Must(Fleet::Create({.discovery = {.dns = {std::string(kListedName)}},
                                     .queued_max = place_.queued_max,
                                     .peer_reads = {.on = place_.peer_reads},
                                     .rule = place_.rule,
                                     .on_poll = [this, parts](TimePoint now) {
                                       if (place_.on_poll == nullptr) return;
                                       place_.on_poll(parts->fleet->table(), parts->registry, now);
                                     }}));
  parts->core =
      std::make_unique<InferenceCore>(InferenceCoreArgs{.model = parts->model,
                                                        .fleet = *parts->fleet,
                                                        .open = *parts->open,
                                                        .clock = parts->clock,
                                                        .limits = {.queue_wait = place_.queue_wait},
                                                        .metrics = *parts->metrics});
  parts->fleet->Run();
  parts_ = parts;
}

void SimRouter::Send(RouterClient& client) {
  if (!process_->alive || parts_ == nullptr) return client.OnRouterDeath();
  Scheduler::current()->After(Duration::zero(), process_, [this, &client] {
    client.OnStarting();
    Begin(client);
    client.OnStarted();
  });
}

void SimRouter::Begin(RouterClient& client) {
  InferenceCore& core = *parts_->core;
  auto ticket = core.Enter({}, Endpoint::kGenerate);
  if (!ticket.ok()) return client.Finish(ticket.status());
  auto admitted = core.Admit({.request = client.request(),
                              .ticket = *std::move(ticket),
                              .received = parts_->clock.Now(),
                              .deadline = client.deadline(),
                              .client = client});
  if (!admitted.ok()) return client.Finish(admitted.status());
  client.OnAdmitted(admitted->driver);
  admitted->driver->Start();
}

void SimRouter::Cancel(RouterClient& client, const absl::Status& why) {
  Scheduler::current()->After(Duration::zero(), process_, [&client, why] {
    if (const auto driver = client.driver()) driver->OnClientGone(why);
  });
}

}  // namespace penstock::world
