#include "decode_worker/engine/decode_job.h"

#include <algorithm>

namespace penstock {

std::optional<BeamRules> BeamRulesOf(const v1::SamplingSpec& spec, const StopRule& stop) {
  if (!spec.has_beams()) return std::nullopt;
  return BeamRules{.width = static_cast<int32_t>(spec.beams().width()),
                   .answers = static_cast<int32_t>(spec.choices()),
                   .length_penalty = spec.beams().length_penalty(),
                   .early_stopping = static_cast<EarlyStopping>(spec.beams().early_stopping()),
                   .tokens_max = stop.tokens_max,
                   .stop_token_ids = stop.stop_token_ids};
}

int64_t DecodeGrowthBlocks(const KvLayout& layout, int64_t tokens_held, int64_t tokens_more,
                           int64_t choices) {
  // The last token of an answer is never fed back: its KV needs no slot.
  const int64_t tokens_last = tokens_held + std::max<int64_t>(tokens_more - 1, 0);
  const int64_t shared = tokens_held / layout.block_tokens;
  const int64_t own = layout.BlocksFor(tokens_last) - shared;
  return shared + choices * own - layout.BlocksFor(tokens_held);
}

}  // namespace penstock
