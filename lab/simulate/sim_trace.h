#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace penstock {

struct SimRequest {
  double arrival_s = 0;
  uint32_t prompt_tokens = 0;
  uint32_t answer_tokens = 0;
  std::vector<uint32_t> blocks;  // equal numbers: equal block and equal prefix; dense from 0
};

struct SimTrace {
  std::vector<SimRequest> requests;  // by arrival
  uint32_t unique_blocks = 0;
  uint32_t block_tokens = 512;
};

// Mooncake's format: a JSON object a line with timestamp (ms), input_length, output_length and
// hash_ids. Requests of one tick are spread evenly up to the next. `copies`: the number of tenants,
// with disjoint blocks and shifted starts.
absl::StatusOr<SimTrace> LoadTrace(const std::string& path, uint32_t copies, uint64_t seed);

// Conversations: sessions begin as a Poisson process, each behind one of a few system prompts (the
// first of them half the time), with 1 to 8 turns, think times and growing prompts.
struct SyntheticOptions {
  uint32_t requests = 4000;
  double requests_per_s = 4;
  uint32_t system_prompts = 8;
  uint32_t universal_blocks = 1;  // in front of everything
  uint64_t seed = 1;
};
SimTrace MakeTrace(const SyntheticOptions& options);

// A trace that is read or made.
struct SimSource {
  std::string path;  // empty: synthetic
  uint32_t copies = 1;
  SyntheticOptions synthetic;
  // Above 0: the copies are played one after the other over a day of this many hours (sim_day.h).
  double day_hours = 0;
  double peak_over_trough = 4;  // of the day's rate
};
absl::StatusOr<SimTrace> LoadSource(const SimSource& source);

}  // namespace penstock
