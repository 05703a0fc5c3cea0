#include "prefill_worker/prefill_worker.h"

#include <algorithm>
#include <utility>

#include "base/lifecycle.h"
#include "kvstore/kv_receiver.h"
#include "kvstore/wire_ucx.h"
#include "prefill_worker/prefill_engine.h"
#include "prefill_worker/prefill_service.h"
#include "prefill_worker/prefix_reader.h"
#include "worker/drain.h"
#include "worker/fault.h"
#include "worker/handoff_service.h"
#include "worker/kv_sending.h"
#include "worker/lossy_kv.h"
#include "worker/metered_runner.h"
#include "worker/peer_store_service.h"
#include "worker/ticker.h"
#include "worker/worker_shell.h"
#include "worker/worker_store.h"

namespace penstock {

struct PrefillWorker::Parts {
  void AddLoad(v1::WorkerState* state) const;

  std::unique_ptr<WorkerShell> shell;
  std::unique_ptr<WorkerCache> cache;
  std::unique_ptr<KvReceiver> receiver;  // of prefixes that other workers have
  std::unique_ptr<WorkerStore> store;
  std::unique_ptr<Wire> wire;
  std::unique_ptr<LossyKv> lossy;
  std::unique_ptr<KvSending> sending;
  std::unique_ptr<MeteredRunner> runner;
  std::unique_ptr<PrefillEngine> engine;
  std::unique_ptr<PeerReadMetrics> peer_reads;
  std::unique_ptr<PrefixReader> reader;
  std::unique_ptr<PrefillService> prefill;
  std::unique_ptr<PeerSendMetrics> peer_sends;
  std::unique_ptr<PeerStoreService> peer_store;
  std::unique_ptr<HandoffService> handoff;
  std::unique_ptr<Ticker> ticker;
};

void PrefillWorker::Parts::AddLoad(v1::WorkerState* state) const {
  lossy->Describe(state);
  store->Describe(state);
  state->set_tokens(runner->tokens());
  state->set_running(static_cast<uint32_t>(engine->prompts()) +
                     static_cast<uint32_t>(reader->reads()));
  state->set_waiting_tokens(static_cast<uint64_t>(engine->tokens_waiting()));
  state->set_handoffs(static_cast<uint32_t>(sending->sender().handoffs()));
  state->set_steps(static_cast<uint64_t>(engine->steps()));
}

absl::StatusOr<std::unique_ptr<PrefillWorker>> PrefillWorker::Start(
    const v1::PrefillConfig& config) {
  auto parts = std::make_unique<Parts>();
  ASSIGN_OR_RETURN(auto fault, MakeFault(config.fault()));
  ASSIGN_OR_RETURN(const std::string wire_host, WireHostOf(config));
  ASSIGN_OR_RETURN(parts->shell, WorkerShell::Open(ShellOptionsOf(v1::WorkerState::PREFILL, config,
                                                                  config.chunk_tokens())));
  ModelHost& host = parts->shell->host();
  const Duration lease = std::chrono::milliseconds(config.lease_ms());
  const HandoffFormat format{.model_fingerprint = host.fingerprint, .layout = host.layout};
  parts->receiver =
      std::make_unique<KvReceiver>(KvReceiverOptions{.timing = {.lease = lease}, .writer = {}},
                                   format, parts->shell->clock(), *host.pool);
  ASSIGN_OR_RETURN(
      parts->wire,
      MakeUcxWire({.listen = wire_host, .lanes = config.wire(), .limits = {}}, *parts->receiver));
  parts->receiver->SetWireAddress(parts->wire->address());
  ASSIGN_OR_RETURN(parts->cache, WorkerCache::Create(*host.pool, parts->shell->clock(),
                                                     CacheOptionsOf(config, host)));
  ASSIGN_OR_RETURN(parts->store,
                   WorkerStore::Open(StoreConfigOf(config), {.host = host,
                                                             .cache = *parts->cache,
                                                             .metrics = parts->shell->metrics(),
                                                             .worker_id = config.worker_id()}));
  ASSIGN_OR_RETURN(parts->lossy, LossyKv::Open(config.lossy_kv(), config.model(), host.layout));
  ASSIGN_OR_RETURN(parts->sending,
                   KvSending::Start(SendingOptionsOf(config, fault, parts->lossy.get()),
                                    {.host = host,
                                     .clock = parts->shell->clock(),
                                     .wire = *parts->wire,
                                     .metrics = parts->shell->metrics(),
                                     .credentials = parts->shell->peer_credentials()}));

  const auto chunk_tokens = static_cast<int32_t>(config.chunk_tokens());
  const auto group = static_cast<int32_t>(config.layers_per_group());
  parts->runner =
      std::make_unique<MeteredRunner>(*host.runner, parts->shell->clock(), parts->shell->progress(),
                                      StepMetrics(parts->shell->metrics(), "prefill"));
  const int64_t blocks_kept = host.layout.BlocksFor(host.runner->max_position());
  parts->engine = std::make_unique<PrefillEngine>(
      *parts->runner, *host.pool, *parts->cache, parts->sending->sender(), parts->shell->clock(),
      PrefillEngine::Options{
          .chunk_tokens = chunk_tokens,
          .layers_per_group = group > 0 ? group : LayersPerGroup(host.layout, chunk_tokens),
          .prompts_max = config.max_waiting(),
          .blocks_kept_for_credited = blocks_kept,
          .random_chunks = config.random_chunks(),
          .progress = &parts->shell->progress()});
  parts->peer_reads =
      std::make_unique<PeerReadMetrics>(parts->shell->metrics(), host.layout.PayloadBytes());
  parts->reader = std::make_unique<PrefixReader>(
      PrefixReader::Parts{.cache = *parts->cache,
                          .receiver = *parts->receiver,
                          .clock = parts->shell->clock(),
                          .metrics = *parts->peer_reads,
                          .credentials = parts->shell->peer_credentials(),
                          .layout = host.layout,
                          .blocks_left = blocks_kept,
                          .reads_max = config.max_waiting()});
  parts->prefill =
      std::make_unique<PrefillService>(PrefillBackend{.engine = *parts->engine,
                                                      .reader = *parts->reader,
                                                      .cache = *parts->cache,
                                                      .sender = parts->sending->sender(),
                                                      .handoffs = parts->sending->handoffs(),
                                                      .clock = parts->shell->clock(),
                                                      .limits = LimitsOf(host),
                                                      .transfers = parts->sending->transfers(),
                                                      .lossy = *parts->lossy});
  parts->peer_sends = std::make_unique<PeerSendMetrics>(parts->shell->metrics());
  parts->peer_store = std::make_unique<PeerStoreService>(
      PeerStoreBackend{.cache = *parts->cache,
                       .sender = parts->sending->sender(),
                       .handoffs = parts->sending->handoffs(),
                       .layout = host.layout,
                       .blocks_left = std::max<int64_t>(1, host.pool->blocks_total() / 100),
                       .calls_max = config.peer_reads(),
                       .metrics = *parts->peer_sends,
                       .on_step = fault});
  parts->handoff = std::make_unique<HandoffService>(*parts->receiver);
  parts->engine->Start();
  parts->ticker =
      std::make_unique<Ticker>(lease / 6, [raw = parts.get()] { raw->receiver->Tick(); });
  RETURN_IF_ERROR(parts->shell->Serve(
      {parts->prefill->service(), parts->handoff->service(), parts->peer_store->service(),
       parts->store->admin()},
      [raw = parts.get()](v1::WorkerState* state) { raw->AddLoad(state); },
      [raw = parts.get()] { return raw->cache->Subscribe(); }));
  return std::unique_ptr<PrefillWorker>(new PrefillWorker(std::move(parts)));
}

PrefillWorker::PrefillWorker(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

const std::string& PrefillWorker::endpoint() const { return parts_->shell->endpoint(); }

void PrefillWorker::Stop(std::chrono::nanoseconds grace) {
  parts_->shell->BeginDrain();
  Drain(
      [this] {
        const auto reads = static_cast<int64_t>(parts_->reader->reads());
        return DrainLeft{.running = parts_->engine->prompts() + reads,
                         .handoffs = static_cast<int64_t>(parts_->sending->sender().handoffs())};
      },
      grace);
  parts_->shell->StopWatches();
  parts_->reader->Stop();
  parts_->engine->Stop();
  // Its handoffs' calls end with a status that lets the router go on.
  parts_->sending->sender().Stop();
  parts_->store->Stop();
  parts_->shell->Stop();
}

PrefillWorker::~PrefillWorker() { Stop(std::chrono::nanoseconds(0)); }

}  // namespace penstock
