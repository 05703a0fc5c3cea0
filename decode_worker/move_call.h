#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>

#include "base/clock.h"
#include "decode_worker/decode_engine.h"
#include "proto/worker.pb.h"
#include "worker/engine/token_request.h"
#include "worker/handoff/handoff_client.h"
#include "worker/handoff/transfer_metrics.h"
#include "worker/runtime/role_gate.h"

namespace penstock {

// What a Move call stands on; all outlive it.
struct MoveBackend {
  RoleGate& gate;
  DecodeEngine& engine;
  const KvCacheManager& cache;
  KvSender& sender;
  HandoffClient& handoffs;
  TransferMetrics& sent;
  const Clock& clock;
  TokenLimits limits;
  std::atomic<uint64_t>& moved;  // counts choices that a target has
};

// Serves one DecodeWorker.Move: makes the choice stand still, hands its KV to the target, and lets
// it go on when the call ends and the sender reads its pages no more. gRPC deletes it.
grpc::ServerWriteReactor<v1::PrefillEvent>* ServeMove(const MoveBackend& backend,
                                                      const grpc::CallbackServerContext& context,
                                                      const v1::MoveRequest& request);

}  // namespace penstock
