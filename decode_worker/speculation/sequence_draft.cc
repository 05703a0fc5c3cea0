#include "decode_worker/speculation/sequence_draft.h"

namespace penstock {
namespace {

size_t ClassOf(uint32_t match) { return match < 6 ? 0 : match < 16 ? 1 : 2; }

}  // namespace

SequenceDraft::SequenceDraft(std::span<const uint32_t> tokens, size_t tokens_max)
    : index_(tokens_max) {
  for (const uint32_t token : tokens) index_.Append(token);
}

void SequenceDraft::Observe(uint32_t token) {
  index_.Append(token);
  if (compared_ == guess_.size()) return;
  const bool right = guess_[compared_] == token;
  acceptance_[class_].Add(right);
  compared_ = right ? compared_ + 1 : guess_.size();
}

void SequenceDraft::Guess(size_t count) {
  class_ = ClassOf(index_.Continue(count, guess_));
  compared_ = 0;
}

}  // namespace penstock
