#pragma once

#include <span>

#include "base/status.h"
#include "model/checkpoint/model_config.h"
#include "model/forward/model_runner.h"

namespace penstock {

// A runner and pages that it may write to: at least RunnerCheckBlocks().
struct CheckedRunner {
  ModelRunner& runner;
  PagedKv pages;
};

// A small model with the heads, the pages and the extras of `config`, two KV heads for each of
// `gpus`: what its kernels are tried on.
ModelConfig SmallModelLike(const ModelConfig& config, int32_t gpus);

// The root of the mean square of what differs, of the one wanted.
double Deviation(std::span<const float> got, std::span<const float> want);

// How many blocks the check takes, and the most tokens of one step.
int64_t RunnerCheckBlocks(const KvLayout& layout);
int64_t RunnerCheckTokens(const KvLayout& layout);

// Holds a runner against another one of the same weights, for a start on a machine that nobody has
// tried: logits of a prompt and of the token behind it are near `reference`'s; the same bits come
// again beside other sequences, from pages that were copied by way of the host and, where `exact`,
// from any chunks. FAILED_PRECONDITION says what is not so. One thread.
absl::Status CheckRunner(const CheckedRunner& checked, const CheckedRunner& reference, bool exact);

}  // namespace penstock
