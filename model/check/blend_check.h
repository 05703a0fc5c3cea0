#pragma once

#include <cstdint>

#include "base/status.h"
#include "model/checkpoint/model_config.h"
#include "model/forward/runner_check.h"

namespace penstock {

// This room, model/check, compares work that only some workers ask for with the CPU's, beside
// CheckRunner, when a worker on a GPU starts. It may use base/, kernels/ with its blend room,
// model/checkpoint, model/forward and model/weights. It does not know GPUs.

// A small model (SmallModelLike) for CheckBlends, of a model that may blend (CanBlend): two layers
// come behind the one that is checked. It has as many KV heads as `config`, but 2 at least, and at
// most 2,048 elements, since the threads of the kernels divide the heads of a row.
ModelConfig SmallBlendedModelLike(const ModelConfig& config);

// The number of blocks that CheckBlends uses, and the most tokens in one step.
int64_t BlendCheckBlocks(const KvLayout& layout);
int64_t BlendCheckTokens();

// Compares blends (docs/adr/0059) of a runner with those of the CPU's runner `reference`, whose
// pages are in the host's memory. Tokens that both move to other positions must be the same but for
// the rounding of keys. Then both blend tokens, from the same pages: the deviations, the keys and
// values of all layers and the logits behind them must be near, and KV that a blend re-uses must
// have the same bits. Some tokens have one value of the checked layer that is a hundred times as
// large as any computed one, each in another place of the row, so rounding does not decide which
// rows are chosen. The same blend again finds no deviation. OK if the checked runner does not blend
// (key_rotations). FAILED_PRECONDITION names the first difference. One thread.
absl::Status CheckBlends(const CheckedRunner& checked, const CheckedRunner& reference);

}  // namespace penstock
