#include "decode_worker/decode_worker.h"

#include <atomic>
#include <utility>

#include "base/lifecycle.h"
#include "base/log.h"
#include "base/rpc_server.h"
#include "decode_worker/decode_engine.h"
#include "decode_worker/decode_service.h"
#include "decode_worker/handoff_service.h"
#include "kvstore/kv_receiver.h"
#include "kvstore/wire_ucx.h"
#include "worker/drain.h"
#include "worker/fault.h"
#include "worker/model_host.h"
#include "worker/status_service.h"
#include "worker/ticker.h"
#include "worker/worker_identity.h"

namespace penstock {

struct DecodeWorker::Parts {
  v1::WorkerState State() const;

  SteadyClock clock;
  std::unique_ptr<ModelHost> host;
  std::unique_ptr<KvReceiver> receiver;
  std::unique_ptr<Wire> wire;
  std::unique_ptr<DecodeEngine> engine;
  std::unique_ptr<DecodeService> decode;
  std::unique_ptr<HandoffService> handoff;
  std::unique_ptr<StatusService> status;
  std::unique_ptr<RpcServer> server;
  std::unique_ptr<Ticker> ticker;

  v1::WorkerState described;  // what does not change; complete before `ready`
  std::atomic<bool> ready{false};
  std::atomic<bool> draining{false};
};

v1::WorkerState DecodeWorker::Parts::State() const {
  v1::WorkerState state;
  state.set_phase(v1::WorkerState::STARTING);
  if (!ready) return state;
  state = described;
  if (draining) state.set_phase(v1::WorkerState::DRAINING);
  const KvReceiverLoad load = receiver->load();
  state.set_waiting(static_cast<uint32_t>(load.waiting));
  state.set_handoffs(static_cast<uint32_t>(load.handoffs));
  state.set_running(static_cast<uint32_t>(engine->running()));
  state.set_steps(static_cast<uint64_t>(engine->steps()));
  SetPoolLoad(*host->pool, &state);
  return state;
}

absl::StatusOr<std::unique_ptr<DecodeWorker>> DecodeWorker::Start(const v1::DecodeConfig& config) {
  auto parts = std::make_unique<Parts>();
  ASSIGN_OR_RETURN(auto fault, MakeFault(config.fault()));
  ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(config.listen()));
  ASSIGN_OR_RETURN(parts->host,
                   ModelHost::Open({.model = config.model(),
                                    .kv_memory = config.kv_memory(),
                                    .block_tokens = static_cast<int32_t>(config.block_tokens()),
                                    .threads = static_cast<int32_t>(config.threads()),
                                    .step_tokens = static_cast<int32_t>(config.max_batch())}));
  ModelHost& host = *parts->host;
  const Duration lease = std::chrono::milliseconds(config.lease_ms());
  parts->receiver = std::make_unique<KvReceiver>(
      KvReceiverOptions{.timing = {.lease = lease},
                        .waiting_max = config.max_waiting(),
                        .on_step = std::move(fault),
                        .writer = {}},
      HandoffFormat{.model_fingerprint = host.fingerprint, .layout = host.layout}, parts->clock,
      *host.pool);
  const std::string wire_listen = config.wire_listen().empty() ? listen.host : config.wire_listen();
  ASSIGN_OR_RETURN(
      parts->wire,
      MakeUcxWire({.listen = wire_listen, .lanes = config.wire(), .limits = {}}, *parts->receiver));
  parts->receiver->SetWireAddress(parts->wire->address());

  // Every session in the engine holds a block, every other one stands in the receiver's line.
  const int64_t sessions_max = host.pool->blocks_total() + config.max_waiting();
  parts->engine = std::make_unique<DecodeEngine>(
      *host.runner, *host.pool,
      DecodeEngine::Options{.batch_max = config.max_batch(),
                            .sessions_max = static_cast<size_t>(sessions_max)});
  parts->decode = std::make_unique<DecodeService>(
      DecodeBackend{.engine = *parts->engine,
                    .receiver = *parts->receiver,
                    .limits = {.vocab = host.runner->vocab(),
                               .max_position = host.runner->max_position(),
                               .layout = host.layout,
                               .blocks_total = host.pool->blocks_total()},
                    .sessions_max = sessions_max});
  parts->handoff = std::make_unique<HandoffService>(*parts->receiver);
  parts->status = std::make_unique<StatusService>([raw = parts.get()] { return raw->State(); });
  ASSIGN_OR_RETURN(parts->server, RpcServer::Start({.listen = config.listen(),
                                                    .services = {parts->decode->service(),
                                                                 parts->handoff->service(),
                                                                 parts->status->service()}}));
  parts->described = DescribeWorker(v1::WorkerState::DECODE, host);
  parts->described.set_worker_id(WorkerId(config.worker_id(), "decode", parts->server->endpoint()));
  parts->engine->Start();
  parts->ticker =
      std::make_unique<Ticker>(lease / 6, [raw = parts.get()] { raw->receiver->Tick(); });
  parts->ready = true;
  parts->server->SetServing("", true);
  LogInfo("serving endpoint={} blocks={} block_tokens={} context={}", parts->server->endpoint(),
          host.pool->blocks_total(), host.layout.block_tokens, host.runner->max_position());
  return std::unique_ptr<DecodeWorker>(new DecodeWorker(std::move(parts)));
}

DecodeWorker::DecodeWorker(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

const std::string& DecodeWorker::endpoint() const { return parts_->server->endpoint(); }

void DecodeWorker::Stop(std::chrono::nanoseconds grace) {
  parts_->draining = true;
  parts_->server->SetServing("", false);
  WaitUntil(
      [this] { return parts_->engine->running() == 0 && parts_->receiver->load().handoffs == 0; },
      grace);
  parts_->status->Stop();
  parts_->engine->Stop();  // Its sessions' calls end with a status that lets the router go on.
  parts_->server->Stop(std::chrono::seconds(1));
}

DecodeWorker::~DecodeWorker() { Stop(std::chrono::nanoseconds(0)); }

}  // namespace penstock
