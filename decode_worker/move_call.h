#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>

#include "base/clock.h"
#include "decode_worker/engine/decode_engine.h"
#include "proto/worker.pb.h"
#include "worker/engine/token_request.h"
#include "worker/handoff/handoff_client.h"
#include "worker/handoff/transfer_metrics.h"
#include "worker/runtime/role_gate.h"

namespace penstock {

// The parts that a Move call uses. All outlive the call.
struct MoveBackend {
  RoleGate& gate;
  DecodeEngine& engine;
  const KvCacheManager& cache;
  KvSender& sender;
  HandoffClient& handoffs;
  TransferMetrics& sent;
  const Clock& clock;
  TokenLimits limits;
  std::atomic<uint64_t>& moved;  // choices that were moved
};

// Serves one DecodeWorker.Move: freezes the choice, hands its KV to the target, and unfreezes it
// when the call has ended and the sender does not read its pages any more. gRPC deletes the
// reactor.
grpc::ServerWriteReactor<v1::PrefillEvent>* ServeMove(const MoveBackend& backend,
                                                      const grpc::CallbackServerContext& context,
                                                      const v1::MoveRequest& request);

}  // namespace penstock
