#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/paged_kv.h"
#include "lab/plan/hardware.h"
#include "lab/plan/weight_meter.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

struct PromptSample {
  double tokens = 0;
  double cached = 0;  // of these, tokens whose KV is there already
};

struct Traffic {
  double requests_per_s = 1;
  double prompt_tokens = 1024;  // mean
  double answer_tokens = 256;   // mean
  double hit_ratio = 0;         // of prompt tokens whose KV is there already
  // Of a trace (trace_traffic.h). Without: every request is the mean one.
  std::vector<PromptSample> prompts;
  double context_tokens = 0;  // mean of a sequence over its decode steps; 0: prompt + answer / 2
  double held_tokens = 0;     // mean that a sequence reserves over them; 0: prompt + answer
  double longest_tokens = 0;  // prompt and answer of the longest request; 0: prompt + answer
  double longest_prompt_tokens = 0;  // 0: prompt

  double Context() const {
    return context_tokens > 0 ? context_tokens : prompt_tokens + answer_tokens / 2;
  }
  double Held() const { return held_tokens > 0 ? held_tokens : prompt_tokens + answer_tokens; }
  double Longest() const {
    return longest_tokens > 0 ? longest_tokens : prompt_tokens + answer_tokens;
  }
  double LongestPrompt() const {
    return longest_prompt_tokens > 0 ? longest_prompt_tokens : prompt_tokens;
  }
};

struct Targets {
  double token_s = 0.05;     // time between tokens, at most
  double utilisation = 0.7;  // of a worker's time at this traffic, at most
  double keep_s = 600;       // how long the KV of a request should be found again
};

// Devices of a worker. 0: the fewest of 1, 2, 4 and 8 that fit the model and keep the targets.
struct Degrees {
  int32_t prefill = 0;
  int32_t decode = 0;
};

struct PlanRequest {
  ModelConfig model;
  WeightSizes weights;  // of that model; see MeasureWeights
  Hardware hardware;
  Degrees degrees;
  int32_t block_tokens = 16;
  KvPageFormat kv_format;
  std::string wire_codec = "raw";           // of pages in bf16: raw, lx16 or lxr
  std::optional<uint64_t> kv_memory_bytes;  // a worker's; absent: what weights and reserve leave
  // A CPU worker's for routed experts; absent: all are in memory.
  std::optional<uint64_t> expert_memory_bytes;
  uint64_t dram_memory_bytes = 0;    // of a prefill worker, for evicted prefixes
  double memory_share = 0.9;         // of the hardware's memory that may be used at all
  double link_bytes_per_s = 1.25e9;  // from a prefill to a decode worker
  int32_t chunk_tokens = 512;        // of a prefill step
  int32_t step_tokens = 512;         // of the largest step, for which workers have memory
  int64_t prefill_workers_min = 1;
  int32_t batch_max = 64;         // of a decode step
  double gpu_hour_price = 0;      // of a device; 0: unknown
  std::vector<int64_t> contexts;  // tokens a sequence, for the table of capacity
  Traffic traffic;
  Targets targets;
};

}  // namespace penstock
