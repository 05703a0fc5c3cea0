#include "lab/decoding/structured_decoding.h"

namespace penstock {
namespace {

constexpr int kShortPromptTokens = 16;

}  // namespace

StructuredDecoding::StructuredDecoding(ModelRunner& runner,
                                       const std::vector<SamplingParams>& params, int steps)
    : runner_(runner),
      layout_(runner.kv_layout()),
      blocks_(layout_.BlocksFor(kShortPromptTokens + steps)),
      pages_(params.size() * static_cast<size_t>(blocks_) * layout_.BlockStride()) {
  for (size_t s = 0; s < params.size(); ++s) {
    Sequence& sequence = sequences_.emplace_back(
        Sequence{.sampler = Sampler(params[s], static_cast<uint32_t>(s), {})});
    for (int64_t block = 0; block < blocks_; ++block) {
      sequence.table.push_back(static_cast<uint32_t>(static_cast<int64_t>(s) * blocks_ + block));
    }
    for (uint32_t t = 0; t < kShortPromptTokens; ++t) {
      sequence.next.push_back(1 + (t * 31 + static_cast<uint32_t>(s)) % 200);
    }
  }
}

absl::Status StructuredDecoding::Step() {
  std::vector<SequenceStep> steps;
  for (const Sequence& sequence : sequences_) {
    steps.push_back({.tokens = sequence.next,
                     .position = sequence.held,
                     .blocks = sequence.table,
                     .wants_logits = true});
  }
  const auto vocab = static_cast<size_t>(runner_.vocab());
  const auto count = static_cast<int64_t>(sequences_.size());
  logits_.resize(sequences_.size() * vocab);
  RETURN_IF_ERROR(runner_.Step({.sequences = steps,
                                .kv = {pages_.as<std::byte>(), count * blocks_, layout_},
                                .logits = {logits_.data(), {count, static_cast<int64_t>(vocab)}}}));
  for (size_t s = 0; s < sequences_.size(); ++s) {
    Sequence& sequence = sequences_[s];
    sequence.held += static_cast<int32_t>(sequence.next.size());
    const SampledToken token =
        sequence.sampler.Sample(std::span(logits_).subspan(s * vocab, vocab));
    if (!sequence.sampler.failure().ok()) return sequence.sampler.failure();
    sequence.next = {token.id};
    sequence.answer.push_back(token.id);
  }
  return absl::OkStatus();
}

}  // namespace penstock
