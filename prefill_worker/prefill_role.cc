#include "prefill_worker/prefill_role.h"

#include "prefill_worker/prefill_engine.h"
#include "prefill_worker/prefill_service.h"
#include "prefill_worker/prefix_reader.h"
#include "worker/engine/metered_runner.h"

namespace penstock {
namespace {

PrefillEngine::Options EngineOptionsOf(const PrefillRoleOptions& options, const ModelHost& host,
                                       int64_t blocks_kept, Progress* progress) {
  const int32_t group = options.layers_per_group;
  return {.chunk_tokens = options.chunk_tokens,
          .layers_per_group = group > 0 ? group : LayersPerGroup(host.layout, options.chunk_tokens),
          .prompts_max = options.prompts_max,
          .blocks_kept_for_credited = blocks_kept,
          .random_chunks = options.random_chunks,
          .progress = progress};
}

class PrefillRole final : public WorkerRole {
 public:
  PrefillRole(WorkerBody& body, const PrefillRoleOptions& options)
      : sender_(body.sending().sender()),
        blocks_kept_(body.host().layout.BlocksFor(body.host().runner->max_position())),
        runner_(*body.host().runner, body.clock(), progress_,
                StepMetrics(body.metrics(), "prefill")),
        engine_(runner_, *body.host().pool, body.cache(), sender_, body.clock(),
                EngineOptionsOf(options, body.host(), blocks_kept_, &progress_)),
        peer_reads_(body.metrics(), body.host().layout.PayloadBytes()),
        reader_({.cache = body.cache(),
                 .receiver = body.receiver(),
                 .clock = body.clock(),
                 .metrics = peer_reads_,
                 .credentials = body.shell().peer_credentials(),
                 .layout = body.host().layout,
                 .blocks_left = blocks_kept_,
                 .reads_max = options.prompts_max}),
        service_({.gate = gate_,
                  .engine = engine_,
                  .reader = reader_,
                  .cache = body.cache(),
                  .sender = sender_,
                  .handoffs = body.sending().handoffs(),
                  .clock = body.clock(),
                  .limits = LimitsOf(body.host()),
                  .transfers = body.sending().transfers(),
                  .lossy = body.lossy()}) {
    engine_.Start();
  }

  v1::WorkerState::Role kind() const override { return v1::WorkerState::PREFILL; }
  grpc::Service* service() override { return service_.service(); }
  RoleGate& gate() override { return gate_; }
  const Progress& progress() const override { return progress_; }

  void AddTotals(v1::WorkerState* state) const override {
    state->set_tokens(state->tokens() + runner_.tokens());
    state->set_steps(state->steps() + static_cast<uint64_t>(engine_.steps()));
  }

  void DescribeLoad(v1::WorkerState* state) const override {
    state->set_running(static_cast<uint32_t>(engine_.prompts()) +
                       static_cast<uint32_t>(reader_.reads()));
    state->set_waiting_tokens(static_cast<uint64_t>(engine_.tokens_waiting()));
    state->set_handoffs(static_cast<uint32_t>(sender_.handoffs()));
  }

  DrainLeft left() const override {
    return {.running = engine_.prompts() + static_cast<int64_t>(reader_.reads()),
            .handoffs = static_cast<int64_t>(sender_.handoffs())};
  }

  void Stop() override {
    reader_.Stop();
    engine_.Stop();
  }

 private:
  KvSender& sender_;
  const int64_t blocks_kept_;
  RoleGate gate_{"prefill"};
  Progress progress_;
  MeteredRunner runner_;
  PrefillEngine engine_;
  PeerReadMetrics peer_reads_;
  PrefixReader reader_;
  PrefillService service_;
};

}  // namespace

std::unique_ptr<WorkerRole> MakePrefillRole(WorkerBody& body, const PrefillRoleOptions& options) {
  return std::make_unique<PrefillRole>(body, options);
}

}  // namespace penstock
