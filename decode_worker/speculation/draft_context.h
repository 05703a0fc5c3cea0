#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "decode_worker/speculation/guess_record.h"
#include "kvstore/cache/block_pool.h"

namespace penstock {

// One sequence in the draft model: its tokens, and the draft model's KV of the first of them. KV of
// wrong guesses lies behind `computed` and is overwritten. The KV can be lost at any time; it is
// computed again from the tokens. One thread.
class DraftContext {
 public:
  // `tokens`: the sequence so far. The first `common` of them, its prompt, are those of the other
  // choices of its session, too.
  DraftContext(std::vector<uint32_t> tokens, size_t common);

  // Records the sequence's next token, and compares it with the guess.
  void Observe(uint32_t token);

  std::span<const uint32_t> tokens() const { return tokens_; }
  uint32_t largest_token() const { return largest_token_; }
  std::span<const uint32_t> guess() const { return record_.guess(); }  // the last one
  // Tokens with KV, and tokens still to compute: at least the last one, for its logits.
  size_t computed() const { return std::min(computed_, tokens_.size() - 1); }
  size_t pending() const { return tokens_.size() - computed(); }
  // See GuessRecord.
  double acceptance(double prior) const { return record_.acceptance(prior); }
  void SkipGuess() { record_.Skip(); }  // a step passed without a guess

  // Shares the full blocks of the prompt with `other`, a choice of the same session. Only while
  // this one has no KV.
  void SharePrompt(const DraftContext& other, int32_t block_tokens);
  // Drops the KV.
  void Release();

  // For DraftModel.
  bool Reserve(size_t tokens, BlockPool& pool);  // false: the pool has no block for them
  std::span<const uint32_t> table() const { return table_; }
  void Computed(size_t tokens) { computed_ = computed() + tokens; }
  void BeginGuess() { record_.Begin(); }
  void AddGuess(uint32_t token) { record_.Add(token); }
  GuessRecord::Compared TakeCompared() { return record_.TakeCompared(); }

 private:
  std::vector<uint32_t> tokens_;
  const size_t common_;
  uint32_t largest_token_;
  size_t computed_ = 0;  // tokens with KV; the last one's, too, if it was guessed and not checked
  std::vector<BlockRef> blocks_;
  std::vector<uint32_t> table_;  // ids of `blocks_`
  GuessRecord record_;
};

}  // namespace penstock
