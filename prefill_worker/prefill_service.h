#pragma once

#include <memory>

#include "base/clock.h"
#include "kvstore/handoff/kv_sender.h"
#include "prefill_worker/prefill_engine.h"
#include "prefill_worker/prefix_reader.h"
#include "worker/engine/token_request.h"
#include "worker/grammar/grammar_host.h"
#include "worker/handoff/handoff_client.h"
#include "worker/handoff/kv_blends.h"
#include "worker/handoff/kv_evictions.h"
#include "worker/handoff/kv_selections.h"
#include "worker/handoff/lossy_kv.h"
#include "worker/handoff/transfer_metrics.h"
#include "worker/runtime/role_gate.h"

namespace grpc {
class Service;
}

namespace penstock {

// The parts that the PrefillWorker service uses. Everything referred to outlives the service.
struct PrefillBackend {
  RoleGate& gate;
  PrefillEngine& engine;
  PrefixReader& reader;
  GrammarHost& grammars;
  KvCacheManager& cache;
  KvSender& sender;
  HandoffClient& handoffs;
  const Clock& clock;
  TokenLimits limits;
  TransferMetrics& transfers;
  const LossyKv& lossy;
  const KvEvictions& evictions;
  const KvSelections& selections;
  const KvBlends& blends;
};

// Serves PrefillWorker: checks a request, starts its handoff and its compute, and streams back the
// first tokens and the outcome of the handoff. A cancelled call ends both.
class PrefillService {
 public:
  explicit PrefillService(const PrefillBackend& backend);
  ~PrefillService();
  grpc::Service* service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
