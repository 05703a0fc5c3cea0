#pragma once

#include <memory>

#include "decode_worker/engine/decode_admission.h"
#include "decode_worker/engine/decode_engine.h"
#include "kvstore/handoff/kv_receiver.h"
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

// This room (decode_worker) is the decode role around its engine: it receives KV, admits sessions,
// moves choices to other decode workers, and keeps the streams to routers. It does not know text,
// clients or placement; it never includes prefill_worker.

// The parts that the DecodeWorker service uses. Everything referred to outlives the service.
struct DecodeBackend {
  RoleGate& gate;
  DecodeEngine& engine;
  AdmissionContext admission;
  GrammarHost& grammars;
  KvReceiver& receiver;
  TransferMetrics& received;  // handoffs to this worker
  KvSender& sender;           // of moves to other workers, with its control streams
  HandoffClient& handoffs;
  TransferMetrics& sent;
  const Clock& clock;
  TokenLimits limits;
  const LossyKv& lossy;
  const KvEvictions& evictions;
  const KvSelections& selections;
  const KvBlends& blends;
  int64_t local_prefill_max_tokens = 0;  // of a prompt; more are refused
  int64_t sessions_max = 1;              // open at once; more are refused with RESOURCE_EXHAUSTED
};

// Serves DecodeWorker: sets blocks aside for a session, waits for its KV, and streams its tokens;
// or hands a running choice to another worker. A cancelled session releases all its blocks.
class DecodeService {
 public:
  explicit DecodeService(const DecodeBackend& backend);
  ~DecodeService();
  grpc::Service* service();
  // Sends the tokens of the engine's turn. Called on the engine's thread.
  void OnStep();
  // Ends every session, and the routers' streams. Call it before the server shuts down.
  void Stop();
  // Choices that other decode workers have taken over, since the start.
  uint64_t moved() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
