#include "model/forward/step_check.h"

namespace penstock {
namespace {

absl::Status CheckHidden(const SequenceStep& sequence, const StepLimits& limits, size_t index) {
  const auto hidden = static_cast<size_t>(limits.hidden_size);
  const bool has_hidden = sequence.wants_last() || sequence.fills_mtp;
  if (!sequence.hidden.empty() && (!has_hidden || sequence.hidden.size() != hidden)) {
    return InvalidArgument(
        "sequence {} has room for {} dimensions of a hidden state, it may have 0, or {} with "
        "logits",
        index, sequence.hidden.size(), hidden);
  }
  if (!sequence.hidden_sum.empty() && sequence.hidden_sum.size() != hidden) {
    return InvalidArgument(
        "sequence {} has room for {} dimensions of a sum of hidden states, it may have 0 or {}",
        index, sequence.hidden_sum.size(), hidden);
  }
  if (!sequence.fills_mtp) return absl::OkStatus();
  if (!limits.has_mtp || sequence.evicted > 0) {
    return InvalidArgument("sequence {} has fills_mtp, and {}", index,
                           limits.has_mtp ? "evicted positions" : "this runner has no MTP layer");
  }
  if (sequence.before.empty() || sequence.before.size() == hidden) return absl::OkStatus();
  return InvalidArgument("sequence {} has {} dimensions of the token before, it may have 0 or {}",
                         index, sequence.before.size(), hidden);
}

absl::Status CheckSelection(const SequenceStep& sequence, const StepLimits& limits, size_t index) {
  const PageSelection& selection = sequence.selection;
  if (selection.pages == 0) return absl::OkStatus();
  if (!limits.selects_pages) {
    return InvalidArgument("sequence {} selects pages, and this runner attends to all", index);
  }
  if (selection.pages < kSelectedPagesMin || selection.from < 0) {
    return InvalidArgument(
        "sequence {} selects {} pages from position {} on, it may select {} or more from 0 on",
        index, selection.pages, selection.from, kSelectedPagesMin);
  }
  if (sequence.evicted > 0) {
    return InvalidArgument("sequence {} selects pages and has {} evicted positions, it may have 0",
                           index, sequence.evicted);
  }
  return absl::OkStatus();
}

// The parts that are blended are the last of a step.
absl::Status CheckBlended(const StepArgs& args, const StepLimits& limits, size_t index) {
  const SequenceStep& sequence = args.sequences[index];
  if (sequence.blended == nullptr) {
    if (index == 0 || args.sequences[index - 1].blended == nullptr) return absl::OkStatus();
    return InvalidArgument(
        "sequence {} is not blended, and the one before is; blended ones are last", index);
  }
  if (!limits.blends) {
    return InvalidArgument("sequence {} is blended, and this runner computes all tokens", index);
  }
  if (sequence.blended->recompute < 1) {
    return InvalidArgument("sequence {} recomputes {} tokens, it must be at least 1", index,
                           sequence.blended->recompute);
  }
  if (sequence.evicted == 0 && sequence.selection.pages == 0 && !sequence.wants_last() &&
      sequence.hidden.empty() && sequence.hidden_sum.empty()) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "sequence {} is blended, and evicts, selects pages, or has an output; it may do neither",
      index);
}

absl::Status CheckSequence(const StepArgs& args, const StepLimits& limits, size_t index) {
  const SequenceStep& sequence = args.sequences[index];
  if (sequence.tokens.empty()) {
    return InvalidArgument("sequence {} has no tokens, it needs at least one", index);
  }
  const int64_t end = sequence.position + static_cast<int64_t>(sequence.tokens.size());
  if (sequence.position < 0 || end > limits.max_position) {
    return InvalidArgument("sequence {} has positions [{}, {}), the model's limit is {}", index,
                           sequence.position, end, limits.max_position);
  }
  if (sequence.evicted < 0 || sequence.evicted > sequence.position ||
      (sequence.evicted > 0 && !limits.takes_evicted)) {
    return InvalidArgument("sequence {} has {} evicted positions, it may have 0 to {}", index,
                           sequence.evicted, limits.takes_evicted ? sequence.position : 0);
  }
  RETURN_IF_ERROR(CheckSelection(sequence, limits, index));
  RETURN_IF_ERROR(CheckBlended(args, limits, index));
  RETURN_IF_ERROR(CheckHidden(sequence, limits, index));
  for (const uint32_t token : sequence.tokens) {
    if (token >= static_cast<uint32_t>(limits.vocab)) {
      return InvalidArgument("sequence {} has token {}, the vocabulary has {}", index, token,
                             limits.vocab);
    }
  }
  const int64_t slots = end - sequence.evicted;
  const int64_t blocks = args.kv.layout.BlocksFor(slots);
  if (static_cast<int64_t>(sequence.blocks.size()) < blocks) {
    return InvalidArgument("sequence {} has a table of {} blocks, {} positions need {}", index,
                           sequence.blocks.size(), slots, blocks);
  }
  for (int64_t i = 0; i < blocks; ++i) {
    if (sequence.blocks[i] >= static_cast<uint64_t>(args.kv.blocks)) {
      return InvalidArgument("sequence {} names block {}, the arena has {}", index,
                             sequence.blocks[i], args.kv.blocks);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStep(const StepArgs& args, const StepLimits& limits) {
  KvLayout expected = limits.layout.In(args.kv.layout.format());
  expected.block_tokens = args.kv.layout.block_tokens;
  if (args.kv.layout != expected || expected.block_tokens < 1) {
    return InvalidArgument("kv.layout is not this model's: {} layers, {} kv heads of {}",
                           expected.layers, expected.kv_heads, expected.head_dim);
  }
  int64_t tokens = 0, wanted = 0;
  size_t draws = 0;
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    RETURN_IF_ERROR(CheckSequence(args, limits, i));
    tokens += static_cast<int64_t>(args.sequences[i].tokens.size());
    wanted += args.sequences[i].wants_logits ? 1 : 0;
    draws += args.sequences[i].draws.size();
  }
  if (tokens > limits.max_tokens) {
    return InvalidArgument("the step has {} tokens, the limit is {}: use smaller chunks", tokens,
                           limits.max_tokens);
  }
  if (wanted > 0 && (args.logits.data == nullptr || args.logits.dim(0) != wanted ||
                     args.logits.dim(1) != limits.vocab)) {
    return InvalidArgument("logits must be [{}, {}], they are [{}, {}]", wanted, limits.vocab,
                           args.logits.dim(0), args.logits.dim(1));
  }
  if (draws > 0 && !limits.draws_tokens) {
    return InvalidArgument("{} tokens are to be drawn, this runner gives logits alone", draws);
  }
  if (args.on_queries && !limits.takes_evicted) {
    return InvalidArgument("on_queries is set, and this runner does not give queries");
  }
  if (args.drawn.size() != draws) {
    return InvalidArgument("drawn must have room for {} tokens, it has for {}", draws,
                           args.drawn.size());
  }
  return absl::OkStatus();
}

absl::Status CheckBefore(const StepArgs& args, int32_t hidden_size) {
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    const SequenceStep& sequence = args.sequences[i];
    const size_t wanted = sequence.tokens.size() * static_cast<size_t>(hidden_size);
    if (sequence.before.size() == wanted && !sequence.fills_mtp) continue;
    return InvalidArgument("sequence {} has {} numbers of the tokens before, it must have {}", i,
                           sequence.before.size(), wanted);
  }
  return absl::OkStatus();
}

}  // namespace penstock
