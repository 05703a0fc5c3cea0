#pragma once

#include "base/status.h"
#include "kernels/paged_kv.h"
#include "kvstore/manager/kv_cache_manager.h"
#include "proto/worker.pb.h"
#include "worker/model/model_host.h"

namespace penstock {

// This room (worker/engine) is the base of both roles' engines: it checks requests and turns them
// into sampling, collects the outputs of steps, carries messages to an engine (mailbox.h) and
// watches its beats. It knows one worker's model. It does not know roles, services, routers or
// other workers.

// The limits of a worker's requests.
struct TokenLimits {
  int32_t vocab = 0;
  int32_t max_position = 0;  // tokens of prompt and answer together
  KvLayout layout;
  int64_t blocks_total = 0;
  int32_t chunk_tokens = 0;  // of a prompt, computed in one step
};

TokenLimits LimitsOf(const ModelHost& host, int32_t chunk_tokens = 0);

// Checks the common fields of workers' requests: key, tokens, prompt_tokens and, except for a move,
// sampling.choices.
// INVALID_ARGUMENT names the field and the limit; RESOURCE_EXHAUSTED when the tokens' KV can never
// fit the block pool.
absl::Status CheckTokens(const v1::PrefillRequest& request, const TokenLimits& limits);
absl::Status CheckTokens(const v1::DecodeRequest& request, const TokenLimits& limits);
absl::Status CheckTokens(const v1::MoveRequest& request, const TokenLimits& limits);

PrefixPins PinsOf(const v1::PrefillRequest& request);
PrefixPins PinsOf(const v1::DecodeRequest& request);

}  // namespace penstock
