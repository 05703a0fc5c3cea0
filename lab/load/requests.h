#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/load/draw.h"

namespace penstock {

// A piece of a prompt: equal ids are equal tokens, so prompts that begin with the same pieces have
// a prefix in common.
struct PromptPiece {
  uint64_t id = 0;
  uint32_t tokens = 0;
};

struct LoadRequest {
  double at_s = 0;  // since the start, where requests come at times of their own
  std::vector<PromptPiece> prompt;
  uint32_t output_tokens = 0;

  uint32_t prompt_tokens() const;
};

// The alphabet of prompts: token ids of [first_id, last_id], or words.
struct PromptAlphabet {
  uint64_t seed = 0;
  uint32_t first_id = 256;
  uint32_t last_id = 1255;
};
std::vector<uint32_t> PromptIds(const LoadRequest& request, const PromptAlphabet& alphabet);
// A word a token; what a tokenizer makes of it is near that.
std::string PromptText(const LoadRequest& request, const PromptAlphabet& alphabet);

// Requests one after the other. One thread.
class RequestSource {
 public:
  virtual ~RequestSource() = default;
  virtual std::optional<LoadRequest> Next() = 0;
};

struct TokenRange {
  uint32_t min = 0;
  uint32_t max = 0;
};

// Made up: `shared_tokens` that one of `prefixes` prompts' beginnings has, then tokens that no
// other request has. They arrive as a renewal process whose gaps are gamma distributed: burstiness
// 1 is Poisson, less is burstier, as with vLLM's benchmark.
struct SyntheticLoad {
  uint32_t requests = 0;  // 0: without end
  TokenRange prompt_tokens{256, 256};
  TokenRange output_tokens{64, 64};
  uint32_t shared_tokens = 0;  // in front of prompt_tokens
  uint32_t prefixes = 1;
  double rate = 0;  // a second; 0 or infinite: all at once
  double burstiness = 1;
  uint64_t seed = 0;
};
std::unique_ptr<RequestSource> MakeSyntheticSource(const SyntheticLoad& load);

// Mooncake's format: an object a line with timestamp (ms), input_length, output_length and
// hash_ids, each of which names a block together with all before it.
struct TraceLoad {
  std::string path;
  double speed = 1;           // 2: twice as fast
  uint32_t block_tokens = 0;  // 0: found out from the lengths
  uint32_t longest = 0;       // rows with more prompt and output tokens are left out; 0: none is
  uint32_t requests = 0;      // 0: all
  bool spread = true;         // requests of one tick are spread up to the next
};
struct LoadedTrace {
  std::deque<LoadRequest> requests;  // by time, the first at 0
  uint32_t block_tokens = 0;
  uint32_t left_out = 0;
};
// NOT_FOUND, or INVALID_ARGUMENT with the line.
absl::StatusOr<LoadedTrace> LoadRequestTrace(const TraceLoad& load);
std::unique_ptr<RequestSource> MakeListSource(std::deque<LoadRequest> requests);

}  // namespace penstock
