#include "tests/world/worker.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "proto/admin.grpc.pb.h"
#include "tests/world/machine/must.h"
#include "tests/world/machine/rpc_call.h"
#include "tests/world/model.h"
#include "worker/main/worker.h"

namespace penstock::world {
namespace {

namespace fs = std::filesystem;

constexpr int kPageBytes = 8192;

v1::WorkerAdmin::CallbackService* AdminOf(const std::string& endpoint) {
  const RpcHost* const host = FindHost(endpoint);
  if (host == nullptr) return nullptr;
  for (grpc::Service* const service : host->services) {
    if (auto* const admin = dynamic_cast<v1::WorkerAdmin::CallbackService*>(service)) return admin;
  }
  return nullptr;
}

}  // namespace

// Small, so that every bound is met; otherwise the defaults of the program.
v1::WorkerConfig SimWorker::Config() const {
  v1::WorkerConfig config;
  config.set_listen(place_.endpoint);
  config.set_model(place_.model);
  config.set_worker_id(place_.endpoint);
  config.set_kv_memory(fmt::format("{}B", place_.pages * kPageBytes));
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
  config.set_wire_codec(lives_ % 2 == 0 ? "lx16" : "raw");
  config.set_kv_format("bf16");
  config.set_dram_memory(fmt::format("{}B", place_.slots * kPageBytes));
  config.set_nvme_dir(place_.disk);
  config.set_nvme_size("2MiB");
  config.set_nvme_io("threads");
  config.set_nvme_min_uses(1);
  config.set_nvme_codec("raw");
  config.set_stall_ms(5000);
  config.set_peer_reads(4);
  config.set_lossy_kv("near-lossless");
  config.set_device("cpu");
  config.set_tensor_parallel(1);
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
  if (!serving()) return counts;
  for (const prometheus::MetricFamily& family : runtime_->metrics().Collect()) {
    const auto found = std::find(std::begin(kCounted), std::end(kCounted), family.name);
    if (found == std::end(kCounted)) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      counts[static_cast<size_t>(found - std::begin(kCounted))] += metric.counter.value;
    }
  }
  return counts;
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
