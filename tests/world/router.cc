#include "tests/world/router.h"

#include <algorithm>
#include <utility>

#include "lab/fake/test_model.h"
#include "tests/world/machine/listing.h"
#include "tests/world/machine/must.h"
#include "tests/world/machine/network.h"
#include "tests/world/machine/scheduler.h"
#include "tests/world/model.h"

namespace penstock::world {
namespace {

constexpr uint32_t kRequestsMax = 2048;

}  // namespace

SimRouter::SimRouter(int host) : host_(host) {}

void SimRouter::Crash() {
  process_->alive = false;
  parts_ = nullptr;
  Network::current().OnDeath(process_);
}

std::vector<WorkerPicture> SimRouter::Pictures() const {
  constexpr size_t kAll = 64;
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

uint32_t SimRouter::reserved() const {
  uint32_t reserved = 0;
  for (const WorkerPicture& worker : Pictures()) reserved += worker.requests;
  return reserved;
}

void SimRouter::Start() {
  process_ = new Process{.name = "router", .host = host_};
  Scheduler::current()->StartThread(process_, [this] { Run(); });
}

void SimRouter::Run() {
  auto* const parts = new Parts;
  parts->model = MakeTestModel(kMaxPosition);
  parts->metrics = std::make_unique<RequestMetrics>(parts->registry, SloTargets{}, "world");
  parts->open = std::make_unique<OpenRequests>(kRequestsMax);
  parts->fleet = Must(Fleet::Create({.discovery = {.dns = {std::string(kListedName)}}}));
  parts->core = std::make_unique<InferenceCore>(
      InferenceCoreArgs{.model = parts->model,
                        .fleet = *parts->fleet,
                        .open = *parts->open,
                        .clock = parts->clock,
                        .limits = {.queue_wait = std::chrono::seconds(2)},
                        .metrics = *parts->metrics});
  parts->fleet->Run();
  parts_ = parts;
}

void SimRouter::Send(SimClient& client) {
  if (!process_->alive || parts_ == nullptr) return client.OnRouterDeath();
  Scheduler::current()->After(Duration::zero(), process_, [this, &client] {
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
  });
}

void SimRouter::Cancel(SimClient& client, const absl::Status& why) {
  Scheduler::current()->After(Duration::zero(), process_, [&client, why] {
    if (const auto driver = client.driver()) driver->OnClientGone(why);
  });
}

}  // namespace penstock::world
