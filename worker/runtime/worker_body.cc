#include "worker/runtime/worker_body.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/log/log.h"
#include "kvstore/handoff/slab_memory.h"
#include "kvstore/wire/ucx/ucx.h"
#include "worker/engine/held_metrics.h"

namespace penstock {
namespace {

// Slabs that a GPU encodes or decodes; larger ones, of models with large layers, go by the host.
constexpr size_t kGpuCodecBytes = size_t{4} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerBody>> WorkerBody::Open(Options options) {
  std::unique_ptr<WorkerBody> body(new WorkerBody());
  RETURN_IF_ERROR(body->OpenParts(std::move(options)));
  return body;
}

absl::Status WorkerBody::OpenParts(Options options) {
  const std::string model = options.shell.model.model;
  const std::string worker_id = options.shell.worker_id;
  const Duration lease = options.sending.lease;
  ASSIGN_OR_RETURN(shell_, WorkerShell::Open(std::move(options.shell)));
  watermark_ = std::max<int64_t>(1, host().pool->blocks_total() / 100);
  options.cache.model_fingerprint = host().fingerprint;
  options.cache.kv_format = std::string(KvDtypeName(host().layout.dtype));
  ASSIGN_OR_RETURN(cache_, KvCacheManager::Create(*host().pool, clock(), std::move(options.cache)));
  ASSIGN_OR_RETURN(lossy_, LossyKv::Open(options.lossy_kv, model, host().layout));
  receiver_ = std::make_unique<KvReceiver>(
      KvReceiverOptions{.timing = {.lease = lease},
                        .waiting_max = options.waiting_max,
                        .calibration = lossy_->calibration(),
                        .on_step = std::move(options.on_received_step),
                        .writer = {}},
      HandoffFormat{.model_fingerprint = host().fingerprint, .layout = host().layout}, clock(),
      *host().pool);
  ASSIGN_OR_RETURN(wire_,
                   MakeUcxWire({.listen = options.wire_host,
                                .lanes = options.wire,
                                .limits = {},
                                .gpu = host().gpu == nullptr ? nullptr : host().gpu->transfers(),
                                .nccl = {.library = options.nccl_library}},
                               *receiver_));
  if (const absl::Status status = OpenDeviceSlabs(); !status.ok()) {
    LogWarning("gpu_memory_not_used", "KV goes by the host's memory: {}", Message(status));
  }
  receiver_->SetWireAddress(wire_->address());
  options.sending.lossy = lossy_.get();
  ASSIGN_OR_RETURN(sending_, KvSending::Start(std::move(options.sending),
                                              {.host = host(),
                                               .clock = clock(),
                                               .wire = *wire_,
                                               .metrics = metrics(),
                                               .credentials = shell_->peer_credentials(),
                                               .device_slabs = device_outgoing_.get()}));
  AddHeldMetrics(metrics(), sending_->sender(), *receiver_);
  ASSIGN_OR_RETURN(
      store_,
      WorkerStore::Open(options.store, {.host = host(),
                                        .cache = *cache_,
                                        .metrics = metrics(),
                                        .worker_id = worker_id,
                                        .on_pages_freed = [this] { receiver_->OnBlocksFreed(); }}));
  peer_sends_ = std::make_unique<PeerSendMetrics>(metrics());
  peer_store_ =
      std::make_unique<PeerStoreService>(PeerStoreBackend{.cache = *cache_,
                                                          .sender = sending_->sender(),
                                                          .handoffs = sending_->handoffs(),
                                                          .layout = host().layout,
                                                          .blocks_left = watermark_,
                                                          .calls_max = options.peer_reads,
                                                          .metrics = *peer_sends_,
                                                          .on_step = std::move(options.on_found)});
  handoff_ = std::make_unique<HandoffService>(*receiver_);
  ticker_ = std::make_unique<Ticker>(lease / 6, [this] { receiver_->Tick(); });
  return absl::OkStatus();
}

// Where slabs of KV stay on the GPU, if there is one and the wire reaches its memory.
absl::Status WorkerBody::OpenDeviceSlabs() {
  if (host().gpu == nullptr || !wire_->TakesDeviceMemory()) return absl::OkStatus();
  ASSIGN_OR_RETURN(DeviceSlabs* const slabs, host().gpu->OpenSlabs());
  const auto make = [&](size_t bytes) -> absl::StatusOr<std::unique_ptr<SlabMemory>> {
    ASSIGN_OR_RETURN(auto codec, host().gpu->MakeSlabCoder(kGpuCodecBytes));
    return MakeDeviceSlabs(host().layout, *slabs, bytes, std::move(codec));
  };
  ASSIGN_OR_RETURN(auto outgoing, make(KvSenderOptions().staging_bytes));
  ASSIGN_OR_RETURN(device_incoming_, make(KvReceiverOptions().staging_bytes));
  device_outgoing_ = std::move(outgoing);
  receiver_->SetDeviceSlabs(*device_incoming_);
  LogInfo("gpu_memory_for_slabs", "{} of the GPU's memory are for KV on its way, out and in",
          FormatBytes(device_outgoing_->budget() + device_incoming_->budget()));
  return absl::OkStatus();
}

absl::Status WorkerBody::Serve(std::vector<std::unique_ptr<WorkerRole>> roles,
                               v1::WorkerState::Role first) {
  roles_ = std::move(roles);
  std::vector<WorkerRole*> each;
  std::vector<grpc::Service*> services = {handoff_->service(), peer_store_->service(),
                                          store_->admin()};
  for (const auto& role : roles_) {
    each.push_back(role.get());
    services.push_back(role->service());
  }
  switch_ = std::make_unique<RoleSwitch>(
      RoleSwitch::Parts{.roles = std::move(each),
                        .metrics = metrics(),
                        .on_turning = [this] { shell_->OnTurning(switch_->turning()); }},
      first);
  return shell_->Serve(
      std::move(services),
      {.describe = [this](v1::WorkerState* state) { DescribeParts(state); },
       .beats = [this] { return switch_->beats(); },
       .subscribe = [this] { return cache_->Subscribe(); },
       .turn = [this](v1::WorkerState::Role to, Duration within,
                      RoleSwitch::OnTurned done) { switch_->Turn(to, within, std::move(done)); }});
}

void WorkerBody::DescribeParts(v1::WorkerState* state) const {
  lossy_->Describe(state);
  store_->Describe(state);
  switch_->Describe(state);
}

void WorkerBody::Stop(Duration grace) {
  if (std::exchange(stopped_, true) || shell_ == nullptr) return;
  shell_->BeginDrain();
  if (switch_ != nullptr) {
    switch_->Stop();  // Whoever waits for a turn is told.
    // Routers that see it move what runs here to other decode workers.
    Drain([this] { return switch_->left(); }, grace);
  }
  shell_->StopWatches();
  for (const auto& role : roles_) role->Stop();
  // Its handoffs' calls end with a status that lets the router go on.
  if (sending_ != nullptr) sending_->sender().Stop();
  if (store_ != nullptr) store_->Stop();
  shell_->Stop();
}

WorkerBody::~WorkerBody() { Stop(Duration::zero()); }

}  // namespace penstock
