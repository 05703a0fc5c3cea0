#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "router/request/served_model.h"
#include "router/request/tenant.h"
#include "router/session/session.h"

namespace penstock {

struct PreparedRequest {
  SessionRequest session;
  StopMatcher stops;
};

struct PrepareArgs {
  const v1::GenerateRequest& request;
  const ServedModel& model;
  uint32_t max_model_len = 0;  // what the workers take, at most the model's own
  Caller caller = {};
  // The lossy codecs that some pair of ready workers takes; nothing while there is none.
  std::function<std::optional<std::vector<std::string>>()> lossy_codecs = {};
  uint64_t random = 0;  // for the seed and the request's id, where the client gives none
  TraceContext trace;
  TimePoint received;
};

// Everything that can be wrong with a request is found here, before any worker hears of it. Pure
// but for the time of day that templates may show.
absl::StatusOr<PreparedRequest> PrepareRequest(const PrepareArgs& args);

ModelLimits LimitsOf(const ServedModel& model, uint32_t max_model_len);

}  // namespace penstock
