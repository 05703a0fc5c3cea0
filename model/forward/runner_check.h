#pragma once

#include <span>

#include "base/status.h"
#include "model/checkpoint/model_config.h"
#include "model/forward/model_runner.h"
#include "model/weights/weights.h"

namespace penstock {

// A runner, and pages that the check may overwrite: at least RunnerCheckBlocks().
struct CheckedRunner {
  ModelRunner& runner;
  PagedKv pages;
};

// A small model with the head size, pages and optional parts of `config`, and two KV heads for each
// of `gpus`, or with latents up to 32 heads for each. The check runs kernels on it. Its two layers
// have different windows and rotations if those of `config` differ, and caps are so low that they
// change the logits. It has as many experts as `config`; if some layers of that have a dense MLP,
// so has the first.
ModelConfig SmallModelLike(const ModelConfig& config, int32_t gpus);

// Random weights of it, rounded to `forms`. Norms differ from 1, and sinks take a good part of a
// row's softmax, so that a runner which leaves them out is found out. Choices of experts are clear.
Weights SmallWeightsLike(const ModelConfig& config, int32_t gpus, const MatrixForms& forms = {});
// The same of a small model itself.
Weights SmallWeightsOf(const ModelConfig& small, const MatrixForms& forms = {});

// Gives small weights means of keys, as large as keys, so that a runner which leaves them out, or
// rotates them otherwise, is found out.
void AddRandomMeans(Weights& weights);

// Changes random weights so that rounding changes no choice of experts, as it does where a score is
// just above another one: two good runners would then compute different things. Experts form groups
// of as many as a token uses. A token's embedding has the number of a group in the signs of its
// first dimensions, far above what layers add to them, and routers prefer that group's experts. A
// bias of the router decides between this group and its neighbour. Embeddings are not tied.
void MakeChoicesClear(Weights& weights);

// The RMS of the difference divided by the RMS of `want`.
double Deviation(std::span<const float> got, std::span<const float> want);

// The number of blocks that the check uses, and the most tokens in one step.
int64_t RunnerCheckBlocks(const KvLayout& layout);
int64_t RunnerCheckTokens();

// Compares a runner with another one of the same weights, for the first start on a machine. Logits
// of a prompt, and of the token after it, must be near those of `reference`, and so must those
// behind a history of 640 tokens; the token after a prompt from the same pages, too. In pages of
// few bits only the latter is close. If both can evict, scores of keys are compared, and
// tokens behind evicted positions. They must have the same bits beside other sequences, from
// pages that were copied through the host, and for any chunks. So steps have 1 to 640 rows, and
// every kind of kernel is reached. Returns FAILED_PRECONDITION that names the first difference. One
// thread.
absl::Status CheckRunner(const CheckedRunner& checked, const CheckedRunner& reference);

}  // namespace penstock
