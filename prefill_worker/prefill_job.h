#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/log/log.h"
#include "base/trace_context.h"
#include "kvstore/cache/block_pool.h"
#include "kvstore/manager/kv_cache_manager.h"
#include "kvstore/names/handoff_key.h"
#include "kvstore/names/kv_policy.h"
#include "model/forward/model_runner.h"
#include "model/sampler/sampler.h"
#include "prefill_worker/prompt_blend.h"
#include "proto/worker.pb.h"
#include "worker/engine/sampling_spec.h"

namespace penstock {

// Receives a prompt's scores and first tokens. Called on the engine thread; must not block.
class PrefillSink {
 public:
  virtual ~PrefillSink() = default;
  // The scores of a job with `score_top`: all of them before OnFirst, by ascending position.
  virtual void OnScores(v1::PromptScores scores) = 0;
  // That of a job with `hidden_state`: before OnFirst.
  virtual void OnHiddenState(v1::HiddenState state) = 0;
  // `decode_follows` is false when every choice ended with its first token: no KV is handed over.
  virtual void OnFirst(v1::FirstTokens first, bool decode_follows) = 0;
  virtual void OnFailed(absl::Status status) = 0;
};

// A prompt to compute. The job owns the prompt's tokens; all others refer to them.
struct PrefillJob {
  HandoffKey key;
  RequestName name;
  TraceContext trace;            // for calls to other workers
  std::vector<uint32_t> tokens;  // the prompt, then what was already answered
  PromptBlocks prompt;           // the names of the blocks of `tokens`
  PrefixPins pins;
  size_t prompt_tokens = 0;
  SamplingParams sampling;
  StopRule stop;
  uint32_t first_choice = 0;
  uint32_t choices = 1;
  uint32_t candidates = 0;  // see FirstTokensArgs
  // Score the prompt's tokens, with this number of alternatives. Nothing is taken from the cache
  // then.
  std::optional<uint32_t> score_top{};
  bool hidden_state = false;  // report that of the last token
  bool hidden_mean = false;   // instead, the mean of all; nothing is taken from the cache
  std::optional<KvEviction> eviction{};  // that drops some of `tokens`
  PageSelection selection{};             // of the tokens behind the prompt
  std::optional<PromptParts> parts{};    // that are blended; `prompt` has no names of them
  TimePoint arrival;
  TimePoint deadline = TimePoint::max();
  std::shared_ptr<PrefillSink> sink;          // shared: the RPC may end before the engine drops it
  std::optional<v1::PeerRead> peer{};         // outcome of reading the prefix from another worker
  std::optional<CacheAdmission> admission{};  // its blocks; some KV may still be restored

  // The blocks that it takes at once when chunks have at most `chunk_tokens`, which matters only in
  // a model with a window.
  int64_t Blocks(const KvLayout& layout, int32_t chunk_tokens) const;
  // True if it needs more on its way, in the place of those that its window has passed.
  bool Exchanges(const KvLayout& layout, int32_t chunk_tokens) const;
  // The rows that it holds at once in a model with a window group.
  int64_t Rows(const KvLayout& layout, int32_t chunk_tokens) const {
    return layout.RowsAtOnce(static_cast<int64_t>(tokens.size()), chunk_tokens);
  }
  // False if every choice ends with its first token: then no decode worker needs the KV.
  bool IsDecoded() const { return stop.tokens_max > 1 || candidates > 0; }
  // The leading blocks that may come from the cache.
  int64_t CachedBlocksMax(const KvLayout& layout) const;
};

}  // namespace penstock
