#include "prefill_worker/prefill_worker.h"

#include <atomic>
#include <utility>

#include "base/lifecycle.h"
#include "base/log.h"
#include "base/rpc_server.h"
#include "kvstore/kv_sender.h"
#include "kvstore/wire_ucx.h"
#include "prefill_worker/handoff_client.h"
#include "prefill_worker/prefill_engine.h"
#include "prefill_worker/prefill_service.h"
#include "worker/drain.h"
#include "worker/fault.h"
#include "worker/model_host.h"
#include "worker/status_service.h"
#include "worker/worker_identity.h"

namespace penstock {
namespace {

// A prefill worker only sends.
class NoReceiver final : public WireReceiver {
 public:
  absl::StatusOr<std::byte*> OnAnnounced(std::span<const std::byte>, size_t) override {
    return FailedPrecondition("a prefill worker takes no KV");
  }
  void OnLanded(std::span<const std::byte>, std::span<std::byte>) override {}
  void OnLost(std::span<const std::byte>, std::byte*) override {}
};

}  // namespace

struct PrefillWorker::Parts {
  v1::WorkerState State() const;

  SteadyClock clock;
  NoReceiver no_receiver;
  std::unique_ptr<ModelHost> host;
  std::unique_ptr<Wire> wire;
  std::unique_ptr<KvSender> sender;
  std::unique_ptr<HandoffClient> handoffs;
  std::unique_ptr<PrefillEngine> engine;
  std::unique_ptr<PrefillService> prefill;
  std::unique_ptr<StatusService> status;
  std::unique_ptr<RpcServer> server;

  v1::WorkerState described;  // what does not change; complete before `ready`
  std::atomic<bool> ready{false};
  std::atomic<bool> draining{false};
};

v1::WorkerState PrefillWorker::Parts::State() const {
  v1::WorkerState state;
  state.set_phase(v1::WorkerState::STARTING);
  if (!ready) return state;
  state = described;
  if (draining) state.set_phase(v1::WorkerState::DRAINING);
  state.set_running(static_cast<uint32_t>(engine->prompts()));
  state.set_waiting_tokens(static_cast<uint64_t>(engine->tokens_waiting()));
  state.set_handoffs(static_cast<uint32_t>(sender->handoffs()));
  state.set_steps(static_cast<uint64_t>(engine->steps()));
  SetPoolLoad(*host->pool, &state);
  return state;
}

absl::StatusOr<std::unique_ptr<PrefillWorker>> PrefillWorker::Start(
    const v1::PrefillConfig& config) {
  auto parts = std::make_unique<Parts>();
  ASSIGN_OR_RETURN(auto fault, MakeFault(config.fault()));
  ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(config.listen()));
  ASSIGN_OR_RETURN(parts->host,
                   ModelHost::Open({.model = config.model(),
                                    .kv_memory = config.kv_memory(),
                                    .block_tokens = static_cast<int32_t>(config.block_tokens()),
                                    .threads = static_cast<int32_t>(config.threads()),
                                    .step_tokens = static_cast<int32_t>(config.chunk_tokens())}));
  ModelHost& host = *parts->host;
  const std::string wire_listen = config.wire_listen().empty() ? listen.host : config.wire_listen();
  ASSIGN_OR_RETURN(parts->wire,
                   MakeUcxWire({.listen = wire_listen, .lanes = config.wire(), .limits = {}},
                               parts->no_receiver));
  KvSenderOptions sending;
  sending.timing.lease = std::chrono::milliseconds(config.lease_ms());
  sending.on_step = std::move(fault);
  parts->sender = std::make_unique<KvSender>(
      std::move(sending),
      HandoffFormat{.model_fingerprint = host.fingerprint, .layout = host.layout}, parts->clock,
      *parts->wire, host.pool->view());
  parts->sender->Launch();
  parts->handoffs = std::make_unique<HandoffClient>(*parts->sender);

  const auto chunk_tokens = static_cast<int32_t>(config.chunk_tokens());
  const auto group = static_cast<int32_t>(config.layers_per_group());
  parts->engine = std::make_unique<PrefillEngine>(
      *host.runner, *host.pool, *parts->sender, parts->clock,
      PrefillEngine::Options{
          .chunk_tokens = chunk_tokens,
          .layers_per_group = group > 0 ? group : LayersPerGroup(host.layout, chunk_tokens),
          .prompts_max = config.max_waiting(),
          .blocks_kept_for_credited = host.layout.BlocksFor(host.runner->max_position()),
          .random_chunks = config.random_chunks()});
  parts->prefill = std::make_unique<PrefillService>(
      PrefillBackend{.engine = *parts->engine,
                     .sender = *parts->sender,
                     .handoffs = *parts->handoffs,
                     .clock = parts->clock,
                     .limits = {.vocab = host.runner->vocab(),
                                .max_position = host.runner->max_position(),
                                .layout = host.layout,
                                .blocks_total = host.pool->blocks_total()}});
  parts->status = std::make_unique<StatusService>([raw = parts.get()] { return raw->State(); });
  ASSIGN_OR_RETURN(
      parts->server,
      RpcServer::Start({.listen = config.listen(),
                        .services = {parts->prefill->service(), parts->status->service()}}));
  parts->described = DescribeWorker(v1::WorkerState::PREFILL, host);
  parts->described.set_worker_id(
      WorkerId(config.worker_id(), "prefill", parts->server->endpoint()));
  parts->engine->Start();
  parts->ready = true;
  parts->server->SetServing("", true);
  LogInfo("serving endpoint={} blocks={} block_tokens={} context={}", parts->server->endpoint(),
          host.pool->blocks_total(), host.layout.block_tokens, host.runner->max_position());
  return std::unique_ptr<PrefillWorker>(new PrefillWorker(std::move(parts)));
}

PrefillWorker::PrefillWorker(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

const std::string& PrefillWorker::endpoint() const { return parts_->server->endpoint(); }

void PrefillWorker::Stop(std::chrono::nanoseconds grace) {
  parts_->draining = true;
  parts_->server->SetServing("", false);
  WaitUntil([this] { return parts_->engine->prompts() == 0 && parts_->sender->handoffs() == 0; },
            grace);
  parts_->status->Stop();
  parts_->engine->Stop();
  parts_->sender->Stop();  // Its handoffs' calls end with a status that lets the router go on.
  parts_->server->Stop(std::chrono::seconds(1));
}

PrefillWorker::~PrefillWorker() { Stop(std::chrono::nanoseconds(0)); }

}  // namespace penstock
