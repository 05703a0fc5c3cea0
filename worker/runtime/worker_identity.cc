#include "worker/runtime/worker_identity.h"

#include <random>

#include "base/check.h"
#include "kvstore/wire/wire.h"
#include "model/grammar/grammar.h"

namespace penstock {

v1::WorkerState DescribeWorker(const ModelHost& host) {
  std::random_device random;
  v1::WorkerState state;
  state.set_incarnation((uint64_t{random()} << 32) | random());
  state.set_phase(v1::WorkerState::READY);
  state.set_model_fingerprint(host.fingerprint);
  state.set_checkpoint_fingerprint(host.checkpoint_fingerprint);
  // Routers pair workers of equal fingerprints, so those of different wires are not paired either.
  state.set_layout_fingerprint(host.layout.Fingerprint() + kWireVersion);
  state.set_max_model_len(static_cast<uint32_t>(host.runner->max_position()));
  state.set_kv_blocks_total(static_cast<uint64_t>(host.pool->blocks_total()));
  state.set_kv_block_bytes(host.pool->block_bytes());
  state.set_block_tokens(static_cast<uint32_t>(host.layout.block_tokens));
  state.set_kv_window(static_cast<uint32_t>(host.layout.window));
  state.set_kv_format(KvPageFormatName(host.layout.format()));
  state.set_grammar_fingerprint(GrammarFingerprint());
  state.set_weights(host.weights_form);
  state.set_numerics(host.numerics);
  return state;
}

std::string WorkerId(const std::string& asked, const std::string& role,
                     const std::string& endpoint) {
  if (!asked.empty()) return asked;
  return role + "-" + endpoint.substr(endpoint.rfind(':') + 1);
}

void SetPoolLoad(const BlockPool& pool, v1::WorkerState* state) {
  state->set_kv_blocks_used(static_cast<uint64_t>(pool.blocks_used()));
  state->set_kv_blocks_cached(static_cast<uint64_t>(pool.blocks_cached()));
  state->set_kv_blocks_reserved(static_cast<uint64_t>(pool.blocks_reserved()));
  const BlockPool::RowCounts rows = pool.row_counts();
  if (!rows.apart) return;
  state->set_kv_rows_total(static_cast<uint64_t>(rows.total));
  state->set_kv_rows_used(static_cast<uint64_t>(rows.held));
  state->set_kv_rows_reserved(static_cast<uint64_t>(rows.reserved));
}

}  // namespace penstock
