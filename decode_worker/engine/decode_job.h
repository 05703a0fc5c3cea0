#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "decode_worker/beams/beam_search.h"
#include "decode_worker/engine/swap_budget.h"
#include "kvstore/cache/block_pool.h"
#include "kvstore/manager/kv_cache_manager.h"
#include "kvstore/names/handoff_key.h"
#include "kvstore/names/kv_policy.h"
#include "model/forward/model_runner.h"
#include "model/sampler/sampler.h"
#include "proto/worker.pb.h"
#include "worker/engine/sampling_spec.h"

namespace penstock {

// Receives a session's tokens. Called on the engine thread; must not block.
class DecodeSink {
 public:
  virtual ~DecodeSink() = default;
  virtual void OnToken(v1::TokenOut token) = 0;
  // Called before all tokens if the rest of the prompt was computed here.
  virtual void OnFirst(v1::FirstTokens first) = 0;
  // Called once, after the last token or instead of tokens.
  virtual void OnEnd(absl::Status status) = 0;
};

// A prompt with a cached prefix whose rest the decode engine computes itself.
struct LocalPrefill {
  int32_t cached = 0;  // tokens, less than all
  uint32_t first_choice = 0;
  uint32_t choices = 1;
  TimePoint arrival;
};

// The rules of the request's beam search; nullopt: it has none.
std::optional<BeamRules> BeamRulesOf(const v1::SamplingSpec& spec, const StopRule& stop);

// A session whose KV has arrived, for the engine to decode.
struct DecodeJob {
  HandoffKey key;
  std::vector<uint32_t> tokens;  // the prompt, then what was already answered
  PromptBlocks prompt;           // the names of the blocks of `tokens`
  PrefixPins pins;
  CacheAccess access;
  size_t prompt_tokens = 0;
  int32_t evicted = 0;                      // tokens without KV; `blocks` hold that of the others
  std::optional<KvEviction> eviction = {};  // of the prompt and, with slack, of the answer
  PageSelection selection;                  // of the tokens behind the prompt
  bool blended = false;                     // no cache gets any of it
  SamplingParams sampling;
  StopRule stop;
  std::optional<BeamRules> beams = {};
  // Each choice's token behind `tokens`, sampled by prefill; of a beam search the first candidates.
  std::vector<v1::TokenOut> first;
  std::vector<BlockRef> blocks;  // the KV of `tokens`
  // The model's hidden state behind `tokens`, for MtpContext; empty: it is not known.
  std::vector<float> hidden = {};
  BlockCredit growth;  // for the first tokens, or for the longest answers
  // If not 0, the session needs more blocks than `growth` on its way, in the place of those that
  // its window has passed, and may hold this number at once.
  int64_t exchanges = 0;
  // Not empty: the session can be swapped out, so it may be preempted. Empty: `growth` covers the
  // longest answers.
  SwapReservation swap;
  std::optional<LocalPrefill> prefill;  // if set, `first` is still empty
  std::shared_ptr<DecodeSink> sink;     // shared: the RPC may end before the engine drops it
};

// A move starts from the tokens that the router knows, and the engine may have gone on meanwhile: a
// sequence keeps what its window has passed for this many tokens more. A move from further back is
// refused, and the sequence stays.
inline constexpr int32_t kMoveLag = 16;

// Blocks that a session's choices may take together behind the `tokens_held` it starts from, when
// each answers at most `tokens_more` further tokens. Choices share the full blocks; each has its
// own copy of a partial one (the first choice keeps the original).
int64_t DecodeGrowthBlocks(const KvLayout& layout, int64_t tokens_held, int64_t tokens_more,
                           int64_t choices);

}  // namespace penstock
