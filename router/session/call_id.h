#pragma once

#include <cstdint>
#include <string>

namespace penstock {

// One tool call among all.
struct CallKey {
  uint64_t seed = 0;  // random, of the request
  uint32_t choice = 0;
  uint32_t call = 0;  // of the choice, from 0
};

// The call's id: "call_" and 24 letters and digits, or `length` of them for templates that take no
// other id; 0: any. A request that is planned again gives its calls the same ids. Pure.
std::string MakeCallId(const CallKey& key, uint32_t length);

}  // namespace penstock
