#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "kvstore/names/block_hash.h"

namespace penstock {

// Prompts as a cache sees them.
struct CacheRequest {
  double at_s = 0;
  bool partial_tail = false;  // the last block is not full
  std::vector<BlockId> blocks;
};
struct CacheTrace {
  std::string name;
  std::vector<CacheRequest> requests;  // in order of time
};

// Reads Mooncake's format: a JSON object a line with timestamp (milliseconds), input_length
// (tokens) and hash_ids, of which one names a block of `block_tokens` tokens together with all
// before it. Errors name the line.
absl::StatusOr<CacheTrace> LoadCacheTrace(const std::string& path, int64_t block_tokens);

// Chats of several turns, agents with one long shared prompt, and single questions. The same on
// every machine.
CacheTrace MakeCacheTrace(int requests);

}  // namespace penstock
