#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "router/fleet/worker_table.h"
#include "router/request/served_model.h"
#include "router/request/tenant.h"
#include "router/session/session.h"

namespace penstock {

// The result of PrepareRequest.
struct PreparedRequest {
  SessionRequest session;
  StopMatcher stops;
};

struct PrepareArgs {
  const v1::GenerateRequest& request;
  const ServedModel& model;
  uint32_t max_model_len = 0;  // the workers' limit, at most the model's
  Caller caller = {};
  // Returns the lossy codecs and methods of eviction and selection that some pair of ready workers
  // supports; nullopt: no pair is ready.
  std::function<std::optional<std::vector<std::string>>()> kv_methods = {};
  uint64_t random = 0;  // for the seed and the request id that the client does not give
  TraceContext trace;
  TimePoint received;
};

// Checks a request completely and tokenizes its prompt, before any worker is involved. Errors carry
// an ErrorDetail. Pure, except for the time of day that templates may show.
absl::StatusOr<PreparedRequest> PrepareRequest(const PrepareArgs& args);

// Block ids of a prompt in the namespace `space`, as PlacementRequest has them.
struct PromptIds {
  std::vector<BlockId> ids;
  std::optional<std::vector<BlockId>> decode_ids;
};

// Computes the ids of the prompt's full blocks as the workers do (KvCacheManager::NameBlocks).
// Pure.
PromptIds NamePrompt(const SessionRequest& request, const BlockSpace& space);

// The requirements of a request's first placement, at `now`. Pure.
PlacementNeed NeedOfNew(const SessionRequest& request, TimePoint now);

ModelLimits LimitsOf(const ServedModel& model, uint32_t max_model_len);

}  // namespace penstock
