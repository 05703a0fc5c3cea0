#include "decode_worker/decode_role.h"

#include <algorithm>
#include <utility>

#include "decode_worker/decode_service.h"
#include "decode_worker/engine/decode_engine.h"
#include "worker/handoff/transfer_metrics.h"
#include "worker/runtime/engine_role.h"

namespace penstock {
namespace {

// Reading the weights takes most of a decode step's time.
std::unique_ptr<DraftModel> DraftModelOf(WorkerRuntime& runtime, const DecodeRoleOptions& options) {
  ModelHost* const host = runtime.draft_host();
  if (host == nullptr) return nullptr;
  const auto bytes = [](const ModelHost& of) { return static_cast<double>(of.start.weight_bytes); };
  return std::make_unique<DraftModel>(
      *host->runner, *host->pool, runtime.clock(),
      DraftModel::Options{.step_tokens = DraftStepTokens(options.batch_max),
                          .vocab = runtime.host().runner->vocab(),
                          .relative_cost = bytes(*host) / bytes(runtime.host())});
}

// Null without --speculation=mtp, because the layer is not loaded then. Its step reads one layer
// and the output matrix, which is about as much as another.
std::unique_ptr<MtpDrafter> MtpDrafterOf(WorkerRuntime& runtime) {
  ModelHost& host = runtime.host();
  if (host.runner->mtp() == nullptr) return nullptr;
  return std::make_unique<MtpDrafter>(
      *host.runner, host.pool->view(), runtime.clock(),
      MtpDrafter::Options{.step_tokens = host.step_tokens,
                          .relative_cost = 2.0 * host.layout.Copies() / host.layout.layers});
}

class DecodeRole final : public EngineRole {
 public:
  DecodeRole(WorkerRuntime& runtime, const DecodeRoleOptions& options)
      : EngineRole(runtime, v1::WorkerState::DECODE),
        receiver_(runtime.receiver()),
        options_(options),
        // A session in the engine has at least one block; the others wait in the receiver's queue.
        sessions_max_(runtime.host().pool->blocks_total() + options.max_waiting),
        swap_budget_(runtime.tiers().swap_blocks_max()),
        transfers_(runtime.metrics(), TransferMetrics::Direction::kReceived),
        draft_(DraftModelOf(runtime, options)),
        mtp_(MtpDrafterOf(runtime)),
        engine_({.runner = runner_,
                 .pool = *runtime.host().pool,
                 .cache = runtime.cache(),
                 .store = runtime.tiers(),
                 .clock = runtime.clock(),
                 .draft = draft_.get(),
                 .mtp = mtp_.get()},
                {.batch_max = options.batch_max,
                 .sessions_max = static_cast<size_t>(sessions_max_),
                 .prefill_tokens = static_cast<int32_t>(options.prefill_chunk),
                 .progress = &progress_,
                 .draft_tokens = static_cast<int32_t>(options.draft_tokens),
                 .draft_rows = static_cast<int32_t>(options.draft_rows),
                 .ngrams = options.ngrams,
                 .random_drafts = options.random_drafts,
                 .on_room = [this] { receiver_.OnBlocksFreed(); },
                 .on_turn = [this] { OnTurn(); }}),
        service_({.gate = gate_,
                  .engine = engine_,
                  .admission = {.engine = engine_,
                                .cache = runtime.cache(),
                                .swap_budget = swap_budget_,
                                .layout = runtime.host().layout,
                                .blocks_total = runtime.host().pool->blocks_total(),
                                .rows_total = runtime.host().pool->row_counts().total,
                                .watermark = runtime.watermark(),
                                .step_tokens = 1 + int64_t{options.draft_tokens},
                                .chunk_tokens = options.prefill_chunk},
                  .grammars = runtime.grammars(),
                  .receiver = receiver_,
                  .received = transfers_,
                  .sender = sender_,
                  .handoffs = runtime.handoffs(),
                  .sent = runtime.sent_transfers(),
                  .clock = runtime.clock(),
                  .limits = LimitsOf(runtime.host()),
                  .lossy = runtime.lossy(),
                  .evictions = runtime.evictions(),
                  .selections = runtime.selections(),
                  .blends = runtime.blends(),
                  .local_prefill_max_tokens = options.local_prefill_max_tokens,
                  .sessions_max = sessions_max_}) {
    engine_.Start();
  }
  ~DecodeRole() override { engine_.Stop(); }  // The engine calls the service, which ends first.

  grpc::Service* service() override { return service_.service(); }

  void AddTotals(v1::WorkerState* state) const override {
    EngineRole::AddTotals(state);
    state->set_sequences_moved(state->sequences_moved() + service_.moved());
    state->set_decode_evicted_tokens(static_cast<uint64_t>(engine_.decode_evicted_tokens()));
    state->set_compactions(static_cast<uint64_t>(engine_.compactions()));
    state->set_selected_tokens(static_cast<uint64_t>(engine_.selected_tokens()));
    state->set_selectable_tokens(static_cast<uint64_t>(engine_.selectable_tokens()));
    state->set_draft_model_tokens(static_cast<uint64_t>(engine_.drafted(Drafter::kModel)));
    state->set_draft_model_tokens_accepted(
        static_cast<uint64_t>(engine_.accepted(Drafter::kModel)));
    state->set_mtp_tokens(static_cast<uint64_t>(engine_.drafted(Drafter::kMtp)));
    state->set_mtp_tokens_accepted(static_cast<uint64_t>(engine_.accepted(Drafter::kMtp)));
    state->set_draft_tokens(static_cast<uint64_t>(engine_.drafted()));
    state->set_draft_tokens_accepted(static_cast<uint64_t>(engine_.accepted()));
  }

  void DescribeLoad(v1::WorkerState* state) const override {
    EngineRole::DescribeLoad(state);
    state->set_waiting(static_cast<uint32_t>(receiver_.load().waiting));
    state->set_max_waiting(options_.max_waiting);
    state->set_local_prefill_max_tokens(options_.local_prefill_max_tokens);
    state->set_prefill_chunk(options_.prefill_chunk);
  }

  OpenWork open_work() const override {
    return {.running = engine_.running(),
            .handoffs = static_cast<int64_t>(receiver_.load().handoffs + sender_.handoffs()),
            .moved = service_.moved()};
  }

  void Stop() override {
    engine_.Stop();
    service_.Stop();
  }

 private:
  int64_t steps() const override { return engine_.steps(); }

  // On the engine's thread.
  void OnTurn() {
    runner_.CountRight(engine_.accepted() - std::exchange(accepted_, engine_.accepted()));
    service_.OnStep();
  }

  KvReceiver& receiver_;
  const DecodeRoleOptions options_;
  const int64_t sessions_max_;
  SwapBudget swap_budget_;
  TransferMetrics transfers_;
  int64_t accepted_ = 0;  // guesses that metrics have; used by the engine's thread
  const std::unique_ptr<DraftModel> draft_;  // null: there is none
  const std::unique_ptr<MtpDrafter> mtp_;    // likewise
  DecodeEngine engine_;
  DecodeService service_;
};

}  // namespace

int32_t DraftStepTokens(uint32_t batch_max) {
  constexpr uint32_t kOfPrompts = 512;
  return static_cast<int32_t>(std::max(kOfPrompts, DraftModel::kPendingMax * batch_max));
}

std::unique_ptr<WorkerRole> MakeDecodeRole(WorkerRuntime& runtime,
                                           const DecodeRoleOptions& options) {
  return std::make_unique<DecodeRole>(runtime, options);
}

}  // namespace penstock
