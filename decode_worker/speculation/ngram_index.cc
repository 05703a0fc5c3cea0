#include "decode_worker/speculation/ngram_index.h"

#include <algorithm>
#include <bit>

namespace penstock {
namespace {

constexpr int kCandidatesMax = 16;  // occurrences that are compared

}  // namespace

NgramIndex::NgramIndex(size_t tokens_max)
    : mask_(static_cast<uint32_t>(
          std::bit_ceil(std::clamp<size_t>(tokens_max, kMatchMax, kRemembered)) - 1)),
      tokens_(mask_ + 1),
      heads_(mask_ + 1),
      links_(mask_ + 1) {}

uint32_t NgramIndex::Slot() const {
  uint32_t hash = 0;
  for (uint32_t i = 1; i <= kGram; ++i) hash = (hash ^ At(size_ - i)) * 0x9e3779b1u;
  return (hash ^ hash >> 15) & mask_;
}

void NgramIndex::Append(uint32_t token) {
  tokens_[size_++ & mask_] = token;
  if (size_ < kGram) return;
  uint32_t& head = heads_[Slot()];
  links_[(size_ - 1) & mask_] = head;
  head = size_;
}

// The number of tokens before `end` that equal the sequence's last ones.
uint32_t NgramIndex::CommonSuffix(uint32_t end) const {
  const uint32_t most = std::min(kMatchMax, end - Oldest());
  uint32_t length = 0;
  while (length < most && At(end - 1 - length) == At(size_ - 1 - length)) ++length;
  return length;
}

uint32_t NgramIndex::Continue(size_t count, std::vector<uint32_t>& next) const {
  next.clear();
  if (size_ < kGram) return 0;
  uint32_t best = 0, best_length = kGram - 1;
  uint32_t end = links_[(size_ - 1) & mask_];
  for (int i = 0; i < kCandidatesMax && end > Oldest() && best_length < kMatchMax; ++i) {
    if (const uint32_t length = CommonSuffix(end); length > best_length) {
      best = end;
      best_length = length;
    }
    end = links_[(end - 1) & mask_];
  }
  if (best == 0) return 0;
  for (uint32_t i = 0; i < count; ++i) {
    next.push_back(best + i < size_ ? At(best + i) : next[best + i - size_]);
  }
  return best_length;
}

}  // namespace penstock
