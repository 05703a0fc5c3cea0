#pragma once

#include <cstdint>

namespace penstock {

// Names one attempt to hand a request's KV from a prefill to a decode worker. A message or slab
// whose key is not the current one is refused: that alone removes stale writes.
struct HandoffKey {
  uint64_t session = 0;  // random; the router's name for the request
  uint32_t epoch = 0;    // counts the plans of a session
  uint64_t nonce = 0;    // random; of this attempt
  bool operator==(const HandoffKey&) const = default;
};

}  // namespace penstock
