#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "base/status.h"
#include "kernels/blend/move_tokens.h"
#include "kernels/paged_kv.h"
#include "kernels/view.h"
#include "model/sampler/drawn_token.h"

namespace penstock {

// One page more than those that are always chosen (kernels/selection).
inline constexpr int32_t kSelectedPagesMin = 4;

// Attention of a sequence's later tokens to some of its pages (Quest, Tang et al., arXiv
// 2406.10774). In every layer but the first two, each of these tokens chooses `pages` pages for
// each KV head by itself, so its result depends neither on other tokens nor on how they are
// computed.
struct PageSelection {
  int32_t pages = 0;    // that a token attends to; 0: it attends to all
  int32_t from = 0;     // the first position whose token selects; those before attend to all
  int32_t checked = 0;  // tokens at positions from here on are guesses, which may be wrong

  // The number of leading tokens that attend to all tokens before them: with `pages` pages there
  // is nothing to choose from.
  int64_t Exact(int32_t block_tokens) const {
    return std::max(int64_t{from}, int64_t{pages} * block_tokens);
  }
  bool Selects(int64_t position, int32_t block_tokens) const {
    return pages > 0 && position >= Exact(block_tokens);
  }
  // The number of tokens in [position, position + rows) that attend to all tokens before them. They
  // come before those that select.
  int64_t Leading(int64_t position, int64_t rows, int32_t block_tokens) const {
    return pages == 0 ? rows : std::clamp(Exact(block_tokens) - position, int64_t{0}, rows);
  }
  // The tokens that the one at `position`, which selects, attends to, itself included.
  int64_t Attended(int64_t position, int32_t block_tokens) const {
    return int64_t{pages - 1} * block_tokens + position % block_tokens + 1;
  }
};

// The layer whose values tell which blended tokens are computed further: the first one that
// attention has changed. Published, with the same choice: CacheBlend.
inline constexpr int32_t kCheckedLayer = 1;

// Tokens of a step whose keys and values are in the pages already, of every layer, computed behind
// other tokens and moved here (CacheBlend, Yao et al., arXiv 2405.16444). The first two layers'
// keys and values are computed for all of them. Of the second, the values tell how far each token
// is from what the pages had; from there on only those that deviate most are computed, and all
// attend to the others as they are in the pages.
struct BlendedTokens {
  int32_t recompute = 0;    // tokens to compute in every layer
  float deviation_max = 0;  // if the deviation of all is above this, all are computed
  // Results.
  int32_t recomputed = 0;
  float deviation = 0;  // ValueDeviation::relative
};

// The part of one sequence in a step: `tokens` at positions [position, position + size).
struct SequenceStep {
  std::span<const uint32_t> tokens;  // at least one
  // Keys and values of [0, position) are in the pages already, or other parts of the step are to
  // write them there.
  int32_t position = 0;
  std::span<const uint32_t> blocks;  // block table; covers position - evicted + tokens.size()
  // Of the positions before, those whose KV was evicted: a token's KV is in slot position -
  // evicted, and it attends to all slots up to its own. Only for a runner with
  // eviction_attention().
  int32_t evicted = 0;
  PageSelection selection = {};  // not with `evicted`. Only for a runner that selects_pages()
  // True if `tokens` are a prompt's, false if they are an answer's or guesses of one. A GPU with
  // numerics=fast computes their attention by different kernels, so the caller must not infer it
  // from the number of tokens.
  bool prompt = false;
  // Not with `evicted`, `selection`, or any output. Such parts are behind all others of the step.
  // Only for a runner with key_rotations(). Null: all tokens are computed.
  BlendedTokens* blended = nullptr;
  bool wants_logits = false;  // returns the logits of the last of `tokens`
  // Receives the hidden state of the last of `tokens`, which its logits come from. Empty, or of
  // hidden_size() elements, with wants_logits, draws or fills_mtp.
  std::span<float> hidden = {};
  // Receives the sum of the hidden states of all `tokens` on top of what it has: one after the
  // other, so that the sum of a prompt does not depend on its division into steps. Empty, or of
  // hidden_size() elements.
  std::span<double> hidden_sum = {};
  // Only for a runner with mtp(): the step also writes the keys and values of the layer for
  // multi-token prediction.
  bool fills_mtp = false;
  // With fills_mtp, the hidden state of the token before `tokens`. Empty: zeros, or that of the
  // part before, if it has the same block table and ends at `position`. It may be the memory of
  // `hidden`. In StepMtp, the hidden states of the tokens before each of `tokens`,
  // [tokens][hidden].
  std::span<const float> before = {};
  // Not null: the bytes of pages that were not in memory, and were read from the pager's file for
  // `tokens`, are added here. What several sequences need is counted for the first of them. Blended
  // parts count nothing.
  uint64_t* bytes_read = nullptr;
  // Draws that the runner makes from those logits. Only for a runner that draws_tokens().
  std::span<const DrawSpec> draws = {};

  bool wants_last() const { return wants_logits || !draws.empty(); }
};

// The rows [first, first + count) of a step.
struct RowRange {
  int64_t first = 0;
  int64_t count = 0;
};

// The arguments of one step. All spans and views stay valid until Step returns.
struct StepArgs {
  std::span<const SequenceStep> sequences;
  PagedKv kv;
  View<float, 2> logits;             // [sequences with wants_logits, in order][vocab]
  std::span<DrawnToken> drawn = {};  // of all draws, in order
  // Called on the caller's thread as soon as the pages hold the keys and values of layers [first,
  // last) of all tokens of the step (of the layer for MTP: of those with fills_mtp), in ascending
  // order, while later layers are still being computed. If no sequence has more than one token, a
  // runner may call it once at the end, for all layers.
  std::function<void(int32_t first_layer, int32_t last_layer)> on_layers_done;
  int32_t layers_per_group = 0;  // layers per call of on_layers_done; 0: one call, at the end
  // Called on the caller's thread for every layer, when the pages hold its keys and values and
  // before on_layers_done, with the queries of all tokens of the step, in order, of those without
  // `blended` at least: [tokens, at least heads * head_dim], as Attention takes them. Only for a
  // runner with eviction_attention().
  std::function<void(int32_t layer, View<const float, 2> queries)> on_queries = {};
  // The rows that on_queries is to have; other rows may hold anything. Empty: it has all of them.
  std::span<const RowRange> observed = {};
  size_t guesses = 0;  // sequences of one token that may turn out to be wrong; for metrics
  // What the caller has to do beside the step, which neither waits for it nor reads or writes what
  // it does: called at most once, on the caller's thread, when the GPU has the step's work and
  // before its results are awaited. Only for a runner that runs_beside_caller(); not always called
  // if the step fails.
  std::function<void()> meanwhile = {};
};

class KvEvictor;

// What evictions take from a runner: the parameters of attention that scores of keys need
// (KeyScoresArgs), and what evicts in its pages, for calls within on_queries and between steps.
struct EvictionAttention {
  int32_t heads = 0;
  float scale = 1;
  float cap = 0;
  KvEvictor* evictor = nullptr;  // the runner's
};

// Interface: the layer for multi-token prediction (MTP; DeepSeek-V3, arXiv 2412.19437, section 2.2)
// of a model, whose keys and values are the last layer of the model's pages. Position p of it takes
// the token at p and the model's hidden state at p - 1, and predicts the token at p + 1. (The paper
// counts this as position p - 1. Rotations are relative, so both give the same.) The hidden state
// is the one behind the model's final norm, as SGLang and vLLM feed it.
class MtpLayer {
 public:
  virtual ~MtpLayer() = default;
  // Computes keys and values of the layer alone for all tokens, and the logits of the next token
  // where they are wanted. SequenceStep::before has the hidden states of the tokens before, and
  // SequenceStep::hidden receives the layer's own, which takes the place of the model's for a
  // further guess. on_layers_done and on_queries are not called. Errors are those of
  // ModelRunner::Step. On the thread of ModelRunner::Step.
  virtual absl::Status StepMtp(const StepArgs& args) = 0;
};

// Interface: runs one step of a model over a ragged batch. The logits of a sequence depend on its
// own tokens only, not on the other sequences of the batch, nor on the division of its tokens into
// steps. One thread calls Step.
//
// This room, model/forward, computes the forward pass on CPUs (TransformerRunner), and defines the
// interface that GPUs implement too. It may use base/, kernels/ with its cpu room,
// model/checkpoint, model/sampler and model/weights. It does not know requests,
// scheduling or who owns a KV block.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  virtual int32_t vocab() const = 0;
  // The layout of pages, with the default block_tokens, which callers may change.
  virtual KvLayout kv_layout() const = 0;
  virtual int32_t max_position() const = 0;
  // True if the runner draws tokens itself: those that DrawToken (token_draw.h) picks from the same
  // logits.
  virtual bool draws_tokens() const { return false; }
  // The dimensions of SequenceStep::hidden; 0: the runner does not give hidden states.
  virtual int32_t hidden_size() const { return 0; }
  // Null: the runner has no layer for multi-token prediction.
  virtual MtpLayer* mtp() { return nullptr; }
  // How a caller that evicts KV computes attention like the runner does; nullopt: the runner
  // neither takes SequenceStep::evicted nor calls StepArgs::on_queries.
  virtual std::optional<EvictionAttention> eviction_attention() const { return std::nullopt; }
  // How a caller moves keys and values to other positions; nullopt: the runner does not take
  // SequenceStep::blended.
  virtual std::optional<KeyRotations> key_rotations() const { return std::nullopt; }
  // True if the runner takes SequenceStep::selection.
  virtual bool selects_pages() const { return false; }
  // True if the caller's thread is free while a step is computed, and the runner calls
  // StepArgs::meanwhile.
  virtual bool runs_beside_caller() const { return false; }
  // Returns INVALID_ARGUMENT for a token id or a position out of range.
  virtual absl::Status Step(const StepArgs& args) = 0;
};

}  // namespace penstock
