#pragma once

#include <memory>
#include <string>

#include "kernels/thread_pool.h"
#include "kvstore/block_pool.h"
#include "model/transformer_runner.h"
#include "model/weights.h"

namespace penstock {

// A checkpoint ready to run, and the blocks for its KV: what a worker is made of. Members are in
// the order of construction.
struct ModelHost {
  struct Options {
    std::string model;      // directory
    std::string kv_memory;  // "512MiB"
    int32_t block_tokens = 16;
    std::string kv_format = "bf16";
    int32_t threads = 0;        // 0: every core
    int32_t step_tokens = 512;  // the most that one step computes
  };

  // Errors name the file and field, or the memory that is wanting.
  static absl::StatusOr<std::unique_ptr<ModelHost>> Open(const Options& options);

  Weights weights;
  // Of checkpoint and arithmetic: two workers of equal value give equal bits.
  uint64_t fingerprint = 0;
  std::unique_ptr<ThreadPool> threads;
  std::unique_ptr<TransformerRunner> runner;
  KvLayout layout;  // of the pool
  std::unique_ptr<BlockPool> pool;
};

}  // namespace penstock
