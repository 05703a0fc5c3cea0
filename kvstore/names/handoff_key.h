#pragma once

#include <cstdint>

namespace penstock {

// Names one attempt to hand a request's KV from a prefill worker to a decode worker. Receivers
// refuse a message or slab whose key is not the current one, so a stale attempt can write nothing.
struct HandoffKey {
  uint64_t session = 0;  // random; chosen by the router, one for each request
  uint32_t epoch = 0;    // the number of the plan (placement) within the session
  uint64_t nonce = 0;    // random; chosen anew for each attempt
  bool operator==(const HandoffKey&) const = default;
};

}  // namespace penstock
