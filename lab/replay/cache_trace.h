#pragma once

#include <cstdint>
#include <span>
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
// The blocks that a cache may keep: all, or the full ones only.
std::span<const BlockId> BlocksToKeep(const CacheRequest& request, bool keeps_partial);

struct CacheTrace {
  std::string name;
  std::vector<CacheRequest> requests;  // in order of time
};

// Reads Mooncake's format: a JSON object a line with timestamp (milliseconds), input_length
// (tokens) and hash_ids, of which one names a block of `block_tokens` tokens together with all
// before it. A line has an id for each full block, and may have one for the rest. Errors name the
// line; a trace of blocks of another size is one.
absl::StatusOr<CacheTrace> LoadCacheTrace(const std::string& path, int64_t block_tokens);

// Chats of several turns, agents with one long shared prompt, and single questions. The same on
// every machine.
CacheTrace MakeCacheTrace(int requests);

}  // namespace penstock
