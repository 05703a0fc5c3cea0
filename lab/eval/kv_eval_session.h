#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kvstore/codec/codec_calibration.h"
#include "lab/eval/judged_codec.h"
#include "lab/eval/kv_source.h"
#include "model/forward/transformer_runner.h"
#include "model/load/load_model.h"
#include "model/tokenizer/tokenizer.h"
#include "prefill_worker/prompt_blend.h"
#include "worker/engine/kv_compaction.h"

namespace penstock {

// The error that a codec leaves in pages.
struct PageDamage {
  double bits = 0, elements = 0;                                        // of the encoded form
  double key_error = 0, key_norm = 0, value_error = 0, value_norm = 0;  // squares
  double deviation = 0;  // the greatest of a blended document (BlendedTokens::deviation)
};

// A model with pages for `sequences` sequences of `tokens_max` tokens, twice: exact ones, and
// those a codec has gone over. One thread.
class KvEvalSession {
 public:
  static absl::StatusOr<std::unique_ptr<KvEvalSession>> Open(const std::string& model,
                                                             int32_t threads, int32_t sequences,
                                                             int32_t tokens_max,
                                                             WeightPolicy weights = {});

  const LoadedModel& model() const { return model_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  int32_t vocab() const { return runner_->vocab(); }
  int32_t max_position() const { return runner_->max_position(); }
  const KvLayout& layout() const { return layout_; }

  // Computes the exact KV of sequence `index`.
  absl::Status Prefill(int32_t index, std::span<const uint32_t> tokens);
  // Makes `tokens` the prompt of sequence `index`, of which Prefill has computed them and maybe
  // more.
  void SetPrompt(int32_t index, std::span<const uint32_t> tokens);
  // Sends the first `tokens` of each of the first `sequences` through the codec, whole blocks only
  // (the tail stays exact), into the other pages; or evicts what was prefilled, which has `tokens`
  // tokens, into those; or copies that, so that later tokens select from it; or computes it again
  // in pages of another format, in which the others may work, too; or codes it once in such a
  // format, whole blocks only; or blends documents that end
  // with the first `tokens`. An oracle takes the exact pages, in which later tokens are computed
  // too.
  absl::StatusOr<PageDamage> Compress(const JudgedCodec& codec, int32_t sequences, int32_t tokens);
  // One token at `position` of each sequence: the logits of the next, [sequences][vocab]. In the
  // other pages, an eviction with slack compacts the sequences before, where its schedule says so.
  // So its tokens must come in order, and once.
  absl::Status Step(bool exact, int32_t position, std::span<const uint32_t> tokens,
                    std::vector<float>& logits);

 private:
  explicit KvEvalSession(LoadedModel model) : model_(std::move(model)) {}
  void Allocate(int32_t threads, int32_t sequences, int32_t tokens_max);
  std::span<const uint32_t> Table(int32_t index) const;
  absl::Status Compute(const PagedKv& kv, std::span<const uint32_t> tokens, size_t begin,
                       std::span<const uint32_t> table);
  std::vector<uint32_t> InOther(std::span<const uint32_t> table) const;
  absl::Status CheckOracle(PageDamage& damage) const;
  void CopySequence(int32_t index);
  std::vector<Bf16> ReadBlocks(const PagedKv& kv, int32_t index, uint32_t count) const;
  absl::Status Damage(const JudgedCodec& codec, int32_t index, int32_t tokens, PageDamage& damage);
  absl::Status CheckFormat(const KvPageFormat& format) const;
  absl::Status SetFormat(const KvPageFormat& format);
  absl::Status CodeOnce(const KvPageFormat& format, int32_t index, int32_t tokens,
                        PageDamage& damage);
  double FormatBits(int32_t tokens) const;
  absl::Status FillDamaged(int32_t index);
  absl::Status CompressSequence(const JudgedCodec& codec, int32_t index, int32_t tokens,
                                PageDamage& damage);
  absl::Status EvictSequence(const KvEviction& eviction, int32_t index, PageDamage& damage);
  absl::Status Evict(const KvEviction& rule, const EvictionAttention& attention, int32_t index);
  absl::Status BlendSequence(const JudgedBlend& judged, int32_t index, int32_t end,
                             PageDamage& damage);
  absl::Status MoveDocuments(const PromptParts& parts, bool moves_keys, int32_t index);
  absl::Status BlendDocuments(const PromptParts& parts, bool blends, int32_t index,
                              PageDamage& damage);
  int32_t OracleEvicts(size_t index) const;
  absl::Status StepOracle(int32_t position, std::span<const uint32_t> tokens,
                          std::vector<float>& logits);
  absl::Status StepIn(const PagedKv& kv, std::span<const SequenceStep> steps,
                      std::vector<float>& logits,
                      std::function<void(int32_t, View<const float, 2>)> on_queries);
  absl::Status SelectFrom(int32_t index, PageDamage& damage);
  void CompactWhereDue(int32_t index, int32_t position);
  std::function<void(int32_t, View<const float, 2>)> Observer(int32_t position);
  PageSelection SelectionOf(int32_t index, int32_t position) const;

  const LoadedModel model_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  absl::StatusOr<KvCalibration> calibration_ = absl::NotFoundError("");
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<TransformerRunner> runner_;
  KvLayout layout_;
  int32_t sequences_ = 0;
  int64_t table_blocks_ = 0;
  std::vector<uint32_t> blocks_;  // of every sequence, and of one document
  Buffer pages_;
  PagedKv kv_[2];                               // exact, damaged; parts of pages_
  std::vector<std::vector<uint32_t>> prompts_;  // of each sequence, as prefilled
  std::vector<int32_t> evicted_;                // of each sequence's damaged pages, tokens
  std::optional<KvEviction> eviction_;          // with slack: of tokens behind the prompts
  std::vector<CompactionScores> scores_;        // of each sequence's next compaction
  std::optional<KvSelection> selection_;        // of tokens that see the damaged pages
  std::optional<KvOracle> oracle_;
};

// Blocks at the start and the end of a prompt that cgx and kv2 keep near-lossless: the attention
// sinks, and the recent window of 128 tokens.
inline constexpr uint16_t kProtectedFirst = 1;
inline uint16_t ProtectedLast(const KvLayout& layout) {
  return static_cast<uint16_t>(128 / layout.block_tokens);
}

}  // namespace penstock
