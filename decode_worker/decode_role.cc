#include "decode_worker/decode_role.h"

#include "decode_worker/decode_engine.h"
#include "decode_worker/decode_service.h"
#include "worker/engine/metered_runner.h"
#include "worker/handoff/transfer_metrics.h"

namespace penstock {
namespace {

class DecodeRole final : public WorkerRole {
 public:
  DecodeRole(WorkerBody& body, const DecodeRoleOptions& options)
      : receiver_(body.receiver()),
        sender_(body.sending().sender()),
        options_(options),
        // Every session in the engine holds a block, every other one stands in the receiver's line.
        sessions_max_(body.host().pool->blocks_total() + options.waiting_max),
        swap_room_(body.store().tiers().swap_blocks_max()),
        runner_(*body.host().runner, body.clock(), progress_,
                StepMetrics(body.metrics(), "decode")),
        transfers_(body.metrics(), TransferMetrics::Direction::kReceived),
        engine_({.runner = runner_,
                 .pool = *body.host().pool,
                 .cache = body.cache(),
                 .store = body.store().tiers(),
                 .clock = body.clock()},
                {.batch_max = options.batch_max,
                 .sessions_max = static_cast<size_t>(sessions_max_),
                 .prefill_tokens = static_cast<int32_t>(options.prefill_chunk),
                 .progress = &progress_,
                 .on_room = [this] { receiver_.OnBlocksFreed(); },
                 .on_turn = [this] { service_.OnStep(); }}),
        service_({.gate = gate_,
                  .engine = engine_,
                  .door = {.engine = engine_,
                           .cache = body.cache(),
                           .swap_budget = swap_room_,
                           .layout = body.host().layout,
                           .blocks_total = body.host().pool->blocks_total(),
                           .watermark = body.watermark()},
                  .receiver = receiver_,
                  .transfers = transfers_,
                  .sending = body.sending(),
                  .clock = body.clock(),
                  .limits = LimitsOf(body.host()),
                  .lossy = body.lossy(),
                  .local_prefill_max_tokens = options.local_prefill_max_tokens,
                  .sessions_max = sessions_max_}) {
    engine_.Start();
  }
  ~DecodeRole() override { engine_.Stop(); }  // It calls the service, which goes before it.

  v1::WorkerState::Role kind() const override { return v1::WorkerState::DECODE; }
  grpc::Service* service() override { return service_.service(); }
  RoleGate& gate() override { return gate_; }
  const Progress& progress() const override { return progress_; }

  void AddTotals(v1::WorkerState* state) const override {
    state->set_tokens(state->tokens() + runner_.tokens());
    state->set_steps(state->steps() + static_cast<uint64_t>(engine_.steps()));
    state->set_sequences_moved(state->sequences_moved() + service_.moved());
  }

  void DescribeLoad(v1::WorkerState* state) const override {
    const KvReceiverLoad load = receiver_.load();
    state->set_waiting(static_cast<uint32_t>(load.waiting));
    state->set_handoffs(static_cast<uint32_t>(load.handoffs + sender_.handoffs()));
    state->set_running(static_cast<uint32_t>(engine_.running()));
    state->set_local_prefill_max_tokens(options_.local_prefill_max_tokens);
    state->set_prefill_chunk(options_.prefill_chunk);
  }

  DrainLeft left() const override {
    return {.running = engine_.running(),
            .handoffs = static_cast<int64_t>(receiver_.load().handoffs + sender_.handoffs()),
            .moved = service_.moved()};
  }

  void Stop() override {
    engine_.Stop();
    service_.Stop();
  }

 private:
  KvReceiver& receiver_;
  KvSender& sender_;
  const DecodeRoleOptions options_;
  const int64_t sessions_max_;
  RoleGate gate_{"decode"};
  Progress progress_;
  SwapBudget swap_room_;
  MeteredRunner runner_;
  TransferMetrics transfers_;
  DecodeEngine engine_;
  DecodeService service_;
};

}  // namespace

std::unique_ptr<WorkerRole> MakeDecodeRole(WorkerBody& body, const DecodeRoleOptions& options) {
  return std::make_unique<DecodeRole>(body, options);
}

}  // namespace penstock
