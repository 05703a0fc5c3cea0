#include "prefill_worker/prefill_role.h"

#include "prefill_worker/prefill_engine.h"
#include "prefill_worker/prefill_service.h"
#include "prefill_worker/prefix_reader.h"
#include "worker/runtime/engine_role.h"

namespace penstock {
namespace {

// Enough for the longest prompt.
int64_t RowsKept(const ModelHost& host, int32_t chunk_tokens) {
  return host.layout.RowsAtOnce(host.runner->max_position(), chunk_tokens);
}

PrefillEngine::Options EngineOptionsOf(const PrefillRoleOptions& options, const ModelHost& host,
                                       int64_t blocks_kept, Progress* progress) {
  const int32_t group = options.layers_per_group;
  return {.chunk_tokens = options.chunk_tokens,
          .layers_per_group = group > 0 ? group : LayersPerGroup(host.layout, options.chunk_tokens),
          .max_waiting = options.max_waiting,
          .blocks_kept_for_credited = blocks_kept,
          .rows_kept_for_credited = RowsKept(host, options.chunk_tokens),
          .random_chunks = options.random_chunks,
          .progress = progress};
}

// Enough for the longest prompt. An eviction holds what it keeps beside the whole prompt, and a
// blend its parts.
int64_t BlocksKept(WorkerRuntime& runtime, int32_t chunk_tokens) {
  const int64_t longest =
      runtime.host().layout.BlocksAtOnce(runtime.host().runner->max_position(), chunk_tokens);
  if (runtime.blends().any()) return 2 * longest + kBlendPartsMax;
  return runtime.evictions().any() ? 2 * longest : longest;
}

class PrefillRole final : public EngineRole {
 public:
  PrefillRole(WorkerRuntime& runtime, const PrefillRoleOptions& options)
      : EngineRole(runtime, v1::WorkerState::PREFILL),
        max_waiting_(options.max_waiting),
        blocks_kept_(BlocksKept(runtime, options.chunk_tokens)),
        engine_(runner_, *runtime.host().pool, runtime.cache(), sender_, runtime.clock(),
                EngineOptionsOf(options, runtime.host(), blocks_kept_, &progress_)),
        peer_reads_(runtime.metrics(), runtime.host().layout.PayloadBytes()),
        reader_({.cache = runtime.cache(),
                 .receiver = runtime.receiver(),
                 .clock = runtime.clock(),
                 .metrics = peer_reads_,
                 .credentials = runtime.peer_credentials(),
                 .layout = runtime.host().layout,
                 .blocks_left = blocks_kept_,
                 .rows_left = RowsKept(runtime.host(), options.chunk_tokens),
                 .chunk_tokens = options.chunk_tokens,
                 .reads_max = options.max_waiting}),
        service_({.gate = gate_,
                  .engine = engine_,
                  .reader = reader_,
                  .grammars = runtime.grammars(),
                  .cache = runtime.cache(),
                  .sender = sender_,
                  .handoffs = runtime.handoffs(),
                  .clock = runtime.clock(),
                  .limits = LimitsOf(runtime.host(), options.chunk_tokens),
                  .transfers = runtime.sent_transfers(),
                  .lossy = runtime.lossy(),
                  .evictions = runtime.evictions(),
                  .selections = runtime.selections(),
                  .blends = runtime.blends()}) {
    engine_.Start();
  }

  grpc::Service* service() override { return service_.service(); }

  void AddTotals(v1::WorkerState* state) const override {
    EngineRole::AddTotals(state);
    state->set_evicted_tokens(static_cast<uint64_t>(engine_.evicted_tokens()));
    state->set_blend_reused_tokens(static_cast<uint64_t>(engine_.blend_reused_tokens()));
    state->set_blend_recomputed_tokens(static_cast<uint64_t>(engine_.blend_recomputed_tokens()));
    state->set_blend_fallback_tokens(static_cast<uint64_t>(engine_.blend_fallback_tokens()));
    state->set_blend_filled_tokens(static_cast<uint64_t>(engine_.blend_filled_tokens()));
  }

  void DescribeLoad(v1::WorkerState* state) const override {
    EngineRole::DescribeLoad(state);
    state->set_waiting_tokens(static_cast<uint64_t>(engine_.tokens_waiting()));
    state->set_max_waiting(max_waiting_);
  }

  OpenWork open_work() const override {
    return {.running = engine_.prompts() + static_cast<int64_t>(reader_.reads()),
            .handoffs = static_cast<int64_t>(sender_.handoffs())};
  }

  void Stop() override {
    reader_.Stop();
    engine_.Stop();
  }

 private:
  int64_t steps() const override { return engine_.steps(); }

  const uint32_t max_waiting_;
  const int64_t blocks_kept_;
  PrefillEngine engine_;
  PeerReadMetrics peer_reads_;
  PrefixReader reader_;
  PrefillService service_;
};

}  // namespace

std::unique_ptr<WorkerRole> MakePrefillRole(WorkerRuntime& runtime,
                                            const PrefillRoleOptions& options) {
  return std::make_unique<PrefillRole>(runtime, options);
}

}  // namespace penstock
