#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "proto/inference.pb.h"
#include "router/request/served_model.h"

namespace penstock {

// A request to keep the first `tokens` tokens of a prompt cached for `ttl`.
struct PrefixBreakpoint {
  uint32_t tokens = 0;
  Duration ttl{};
};

// Finds the positions of the request's breakpoints in its prompt, whose token ids are `prompt`.
// INVALID_ARGUMENT names the breakpoint and the limit. Pure, except for the time of day that
// templates may show.
absl::StatusOr<std::vector<PrefixBreakpoint>> FindBreakpoints(const v1::GenerateRequest& request,
                                                              const ServedModel& model,
                                                              std::span<const uint32_t> prompt);

}  // namespace penstock
