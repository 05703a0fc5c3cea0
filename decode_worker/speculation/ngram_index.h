#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock {

// Finds where the end of a token sequence has occurred before (prompt lookup: Saxena 2023). Earlier
// occurrences of the last kGram tokens are chained as in LZ77, and the one with the longest common
// suffix wins. A fixed amount of memory; a constant number of operations a token. One thread.
class NgramIndex {
 public:
  static constexpr uint32_t kGram = 3;            // shortest match, in tokens
  static constexpr uint32_t kMatchMax = 32;       // longest suffix that is compared
  static constexpr uint32_t kRemembered = 32768;  // tokens; earlier ones are forgotten

  // `tokens_max`: the longest that the sequence can become.
  explicit NgramIndex(size_t tokens_max);

  void Append(uint32_t token);
  // Sets `next` to `count` tokens: those behind the best earlier occurrence of the sequence's end,
  // which repeat if it reaches into the end itself. Returns the length of the common suffix; 0, and
  // no token, if there is none.
  uint32_t Continue(size_t count, std::vector<uint32_t>& next) const;

 private:
  uint32_t At(uint32_t position) const { return tokens_[position & mask_]; }
  // The first position that is still remembered.
  uint32_t Oldest() const { return size_ > mask_ ? size_ - mask_ - 1 : 0; }
  uint32_t Slot() const;  // of the last kGram tokens, in heads_
  uint32_t CommonSuffix(uint32_t end) const;

  const uint32_t mask_;  // of a ring of a power of two
  uint32_t size_ = 0;    // tokens so far
  std::vector<uint32_t> tokens_;
  // By hash, and by the last token's place in the ring: the end of an earlier occurrence. 0: none.
  std::vector<uint32_t> heads_;
  std::vector<uint32_t> links_;
};

}  // namespace penstock
