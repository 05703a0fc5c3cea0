#include "lab/world/worker.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "lab/world/machine/must.h"
#include "lab/world/machine/rpc_call.h"
#include "proto/admin.grpc.pb.h"
#include "worker/main/worker.h"

namespace penstock::world {
namespace {

namespace fs = std::filesystem;

v1::WorkerAdmin::CallbackService* AdminOf(const std::string& endpoint) {
  const RpcHost* const host = FindHost(endpoint);
  if (host == nullptr) return nullptr;
  for (grpc::Service* const service : host->services) {
    if (auto* const admin = dynamic_cast<v1::WorkerAdmin::CallbackService*>(service)) return admin;
  }
  return nullptr;
}

}  // namespace

v1::WorkerConfig SimWorker::Config() const {
  v1::WorkerConfig config = place_.config(lives_);
  config.set_listen(place_.endpoint);
  config.set_worker_id(place_.endpoint);
  config.set_model(place_.model);
  config.set_nvme_dir(place_.disk);
  return config;
}

void SimWorker::Start() {
  ++lives_;
  runtime_ = nullptr;
  role_ = place_.first_role;
  // Never destroyed: abandoned fibers refer to it.
  process_ =
      new Process{.name = fmt::format("{}#{}", place_.endpoint, lives_), .host = place_.host};
  Scheduler::current()->StartThread(process_, [this] { Run(); });
}

void SimWorker::Run() { runtime_ = Must(StartWorker(place_.first_role, Config())).release(); }

void SimWorker::Poison() {
  if (!serving()) return;
  const PagedKv pages = runtime_->host().pool->view();
  for (int64_t block = 0; block < pages.blocks; ++block) {
    *pages.Block(static_cast<uint32_t>(block)) ^= std::byte{1};
  }
}

Counts SimWorker::counts() const {
  Counts counts = counted_;
  for (size_t i = 0; i < counts.size(); ++i) counts[i] += Counted(kCounted[i]);
  return counts;
}

double SimWorker::Counted(std::string_view counter) const {
  double sum = 0;
  if (!serving()) return sum;
  for (const prometheus::MetricFamily& family : runtime_->metrics().Collect()) {
    if (family.name != counter) continue;
    for (const prometheus::ClientMetric& metric : family.metric) sum += metric.counter.value;
  }
  return sum;
}

void SimWorker::Crash() {
  if (!up()) return;
  counted_ = counts();
  process_->alive = false;
  runtime_ = nullptr;
  Network::current().OnDeath(process_);
}

void SimWorker::LoseDisk() {
  if (place_.disk.empty()) return;
  fs::remove_all(place_.disk);
}

void SimWorker::SetDraining(bool draining) {
  Scheduler::current()->After(Duration::zero(), process_, [this, draining] {
    auto* const admin = AdminOf(place_.endpoint);
    if (admin == nullptr) return;
    v1::SetDrainingRequest request;
    request.set_draining(draining);
    v1::DrainingSet set;
    grpc::CallbackServerContext context;
    admin->SetDraining(&context, &request, &set);
  });
}

void SimWorker::Turn() {
  TakeRole(role_ == v1::WorkerState::PREFILL ? v1::WorkerState::DECODE : v1::WorkerState::PREFILL);
}

void SimWorker::TakeRole(v1::WorkerState::Role role) {
  role_ = role;
  Scheduler::current()->After(Duration::zero(), process_, [this, role] {
    auto* const admin = AdminOf(place_.endpoint);
    if (admin == nullptr || runtime_ == nullptr) return;
    // The call ends later; it is never destroyed.
    auto* const context = new grpc::CallbackServerContext;
    auto* const set = new v1::RoleSet;
    v1::SetRoleRequest request;
    request.set_role(role);
    request.set_within_ms(5000);
    admin->SetRole(context, &request, set);
  });
}

int64_t SimWorker::leaked_blocks() const {
  if (!serving()) return 0;
  const BlockPool& pool = *runtime_->host().pool;
  return pool.blocks_used() + pool.blocks_reserved() + pool.blocks_leaving();
}

std::string SimWorker::Leaks() const {
  if (!serving()) return "";
  WorkerRuntime& runtime = *runtime_;
  const BlockPool& pool = *runtime.host().pool;
  const KvReceiverLoad load = runtime.receiver().load();
  const StoreStats store = runtime.tiers().stats();
  std::string leaks;
  const auto check = [&](const char* what, int64_t count) {
    if (count != 0) leaks += fmt::format(" {} {};", count, what);
  };
  check("blocks used", pool.blocks_used());
  check("blocks reserved", pool.blocks_reserved());
  check("blocks leaving", pool.blocks_leaving());
  check("handoffs sent", static_cast<int64_t>(runtime.sender().handoffs()));
  check("bytes staged to send", static_cast<int64_t>(runtime.sender().staging_used()));
  check("handoffs received", static_cast<int64_t>(load.handoffs));
  check("sessions waiting", static_cast<int64_t>(load.waiting));
  check("blocks quarantined", load.quarantined_blocks);
  check("bytes staged", static_cast<int64_t>(load.staging_used));
  check("slots swapped", static_cast<int64_t>(store.swap_slots));
  return leaks;
}

}  // namespace penstock::world
