#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "proto/inference.pb.h"
#include "router/request/served_model.h"

namespace penstock {

// So much of a prompt should stay cached for so long.
struct PrefixBreakpoint {
  uint32_t tokens = 0;
  Duration ttl{};
};

// Where the request's breakpoints lie in its prompt, whose ids are `prompt`. A part of a chat ends
// where the same chat with a longer part stops having the same tokens. INVALID_ARGUMENT names the
// breakpoint and the limit.
absl::StatusOr<std::vector<PrefixBreakpoint>> FindBreakpoints(const v1::GenerateRequest& request,
                                                              const ServedModel& model,
                                                              std::span<const uint32_t> prompt);

}  // namespace penstock
