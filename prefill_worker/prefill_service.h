#pragma once

#include <memory>

#include "base/clock.h"
#include "kvstore/kv_sender.h"
#include "prefill_worker/prefill_engine.h"
#include "prefill_worker/prefix_reader.h"
#include "worker/handoff_client.h"
#include "worker/lossy_kv.h"
#include "worker/role_gate.h"
#include "worker/token_request.h"
#include "worker/transfer_metrics.h"

namespace grpc {
class Service;
}

namespace penstock {

// What the PrefillWorker service stands on; all but the limits outlive it.
struct PrefillBackend {
  RoleGate& gate;
  PrefillEngine& engine;
  PrefixReader& reader;
  WorkerCache& cache;
  KvSender& sender;
  HandoffClient& handoffs;
  const Clock& clock;
  TokenLimits limits;
  TransferMetrics& transfers;
  const LossyKv& lossy;
};

// Serves PrefillWorker: checks a request, starts its handoff and its compute, and streams back the
// first tokens and how the handoff went. A cancelled call ends both.
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
