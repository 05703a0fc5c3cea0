#include "decode_worker/decode_worker.h"

#include <algorithm>
#include <utility>

#include "base/lifecycle.h"
#include "decode_worker/decode_engine.h"
#include "decode_worker/decode_service.h"
#include "kvstore/kv_receiver.h"
#include "kvstore/wire_ucx.h"
#include "worker/drain.h"
#include "worker/fault.h"
#include "worker/handoff_service.h"
#include "worker/kv_sending.h"
#include "worker/lossy_kv.h"
#include "worker/metered_runner.h"
#include "worker/peer_store_service.h"
#include "worker/ticker.h"
#include "worker/transfer_metrics.h"
#include "worker/worker_shell.h"
#include "worker/worker_store.h"

namespace penstock {
namespace {

// Blocks that admission leaves to the sessions that are here, so that they need not make room for
// each other with every block: one in a hundred.
int64_t WatermarkOf(const BlockPool& pool) {
  return std::max<int64_t>(1, pool.blocks_total() / 100);
}

}  // namespace

struct DecodeWorker::Parts {
  void AddLoad(v1::WorkerState* state) const;

  uint32_t prefill_most = 0;
  uint32_t prefill_chunk = 0;
  std::unique_ptr<WorkerShell> shell;
  std::unique_ptr<WorkerCache> cache;
  std::unique_ptr<SwapRoom> swap_room;
  std::unique_ptr<LossyKv> lossy;
  std::unique_ptr<KvReceiver> receiver;
  std::unique_ptr<WorkerStore> store;
  std::unique_ptr<Wire> wire;
  std::unique_ptr<KvSending> sending;
  std::unique_ptr<MeteredRunner> runner;
  std::unique_ptr<TransferMetrics> transfers;
  std::unique_ptr<DecodeEngine> engine;
  std::unique_ptr<DecodeService> decode;
  std::unique_ptr<PeerSendMetrics> peer_sends;
  std::unique_ptr<PeerStoreService> peer_store;
  std::unique_ptr<HandoffService> handoff;
  std::unique_ptr<Ticker> ticker;
};

void DecodeWorker::Parts::AddLoad(v1::WorkerState* state) const {
  const KvReceiverLoad load = receiver->load();
  lossy->Describe(state);
  store->Describe(state);
  state->set_tokens(runner->tokens());
  state->set_waiting(static_cast<uint32_t>(load.waiting));
  state->set_handoffs(static_cast<uint32_t>(load.handoffs + sending->sender().handoffs()));
  state->set_running(static_cast<uint32_t>(engine->running()));
  state->set_steps(static_cast<uint64_t>(engine->steps()));
  state->set_sequences_moved(decode->moved());
  state->set_prefill_most(prefill_most);
  state->set_prefill_chunk(prefill_chunk);
}

absl::StatusOr<std::unique_ptr<DecodeWorker>> DecodeWorker::Start(const v1::DecodeConfig& config) {
  auto parts = std::make_unique<Parts>();
  parts->prefill_most = config.prefill_most();
  parts->prefill_chunk = config.prefill_chunk();
  ASSIGN_OR_RETURN(auto fault, MakeFault(config.fault()));
  ASSIGN_OR_RETURN(const std::string wire_host, WireHostOf(config));
  ASSIGN_OR_RETURN(parts->shell,
                   WorkerShell::Open(ShellOptionsOf(v1::WorkerState::DECODE, config,
                                                    config.max_batch() + config.prefill_chunk())));
  ModelHost& host = parts->shell->host();
  const Duration lease = std::chrono::milliseconds(config.lease_ms());
  ASSIGN_OR_RETURN(parts->cache, WorkerCache::Create(*host.pool, parts->shell->clock(),
                                                     CacheOptionsOf(config, host)));
  ASSIGN_OR_RETURN(parts->lossy, LossyKv::Open(config.lossy_kv(), config.model(), host.layout));
  parts->receiver = std::make_unique<KvReceiver>(
      KvReceiverOptions{.timing = {.lease = lease},
                        .waiting_max = config.max_waiting(),
                        .calibration = parts->lossy->calibration(),
                        .on_step = fault,
                        .writer = {}},
      HandoffFormat{.model_fingerprint = host.fingerprint, .layout = host.layout},
      parts->shell->clock(), *host.pool);
  ASSIGN_OR_RETURN(
      parts->wire,
      MakeUcxWire({.listen = wire_host, .lanes = config.wire(), .limits = {}}, *parts->receiver));
  parts->receiver->SetWireAddress(parts->wire->address());
  ASSIGN_OR_RETURN(parts->sending,
                   KvSending::Start(SendingOptionsOf(config, FaultOfMoves(fault)),
                                    {.host = host,
                                     .clock = parts->shell->clock(),
                                     .wire = *parts->wire,
                                     .metrics = parts->shell->metrics(),
                                     .credentials = parts->shell->peer_credentials()}));
  const auto on_room = [raw = parts->receiver.get()] { raw->OnBlocksFreed(); };
  ASSIGN_OR_RETURN(parts->store,
                   WorkerStore::Open(StoreConfigOf(config), {.host = host,
                                                             .cache = *parts->cache,
                                                             .metrics = parts->shell->metrics(),
                                                             .worker_id = config.worker_id(),
                                                             .on_pages_freed = on_room}));
  parts->swap_room = std::make_unique<SwapRoom>(parts->store->tiers().swap_blocks_max());

  // Every session in the engine holds a block, every other one stands in the receiver's line.
  const int64_t sessions_max = host.pool->blocks_total() + config.max_waiting();
  parts->runner =
      std::make_unique<MeteredRunner>(*host.runner, parts->shell->clock(), parts->shell->progress(),
                                      StepMetrics(parts->shell->metrics(), "decode"));
  parts->transfers = std::make_unique<TransferMetrics>(parts->shell->metrics(),
                                                       TransferMetrics::Direction::kReceived);
  parts->engine = std::make_unique<DecodeEngine>(
      DecodeParts{.runner = *parts->runner,
                  .pool = *host.pool,
                  .cache = *parts->cache,
                  .store = parts->store->tiers(),
                  .clock = parts->shell->clock()},
      DecodeEngine::Options{.batch_max = config.max_batch(),
                            .sessions_max = static_cast<size_t>(sessions_max),
                            .prefill_tokens = static_cast<int32_t>(config.prefill_chunk()),
                            .progress = &parts->shell->progress(),
                            .on_room = on_room});
  parts->decode = std::make_unique<DecodeService>(
      DecodeBackend{.engine = *parts->engine,
                    .door = {.engine = *parts->engine,
                             .cache = *parts->cache,
                             .swap_room = *parts->swap_room,
                             .layout = host.layout,
                             .blocks_total = host.pool->blocks_total(),
                             .watermark = WatermarkOf(*host.pool)},
                    .receiver = *parts->receiver,
                    .transfers = *parts->transfers,
                    .sending = *parts->sending,
                    .clock = parts->shell->clock(),
                    .limits = LimitsOf(host),
                    .lossy = *parts->lossy,
                    .prefill_most = config.prefill_most(),
                    .sessions_max = sessions_max});
  parts->peer_sends = std::make_unique<PeerSendMetrics>(parts->shell->metrics());
  parts->peer_store =
      std::make_unique<PeerStoreService>(PeerStoreBackend{.cache = *parts->cache,
                                                          .sender = parts->sending->sender(),
                                                          .handoffs = parts->sending->handoffs(),
                                                          .layout = host.layout,
                                                          .blocks_left = WatermarkOf(*host.pool),
                                                          .calls_max = config.peer_reads(),
                                                          .metrics = *parts->peer_sends,
                                                          .on_step = fault});
  parts->handoff = std::make_unique<HandoffService>(*parts->receiver);
  parts->engine->Start();
  parts->ticker =
      std::make_unique<Ticker>(lease / 6, [raw = parts.get()] { raw->receiver->Tick(); });
  RETURN_IF_ERROR(parts->shell->Serve(
      {parts->decode->service(), parts->handoff->service(), parts->peer_store->service(),
       parts->store->admin()},
      [raw = parts.get()](v1::WorkerState* state) { raw->AddLoad(state); },
      [raw = parts.get()] { return raw->cache->Subscribe(); }));
  return std::unique_ptr<DecodeWorker>(new DecodeWorker(std::move(parts)));
}

DecodeWorker::DecodeWorker(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

const std::string& DecodeWorker::endpoint() const { return parts_->shell->endpoint(); }

void DecodeWorker::Stop(std::chrono::nanoseconds grace) {
  parts_->shell->BeginDrain();
  // Routers that see it move what runs here to other decode workers.
  Drain(
      [this] {
        const size_t handoffs =
            parts_->receiver->load().handoffs + parts_->sending->sender().handoffs();
        return DrainLeft{.running = parts_->engine->running(),
                         .handoffs = static_cast<int64_t>(handoffs),
                         .moved = parts_->decode->moved()};
      },
      grace);
  parts_->shell->StopWatches();
  parts_->engine->Stop();  // Its sessions' calls end with a status that lets the router go on.
  parts_->sending->sender().Stop();
  parts_->store->Stop();
  parts_->shell->Stop();
}

DecodeWorker::~DecodeWorker() { Stop(std::chrono::nanoseconds(0)); }

}  // namespace penstock
