#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "decode_worker/beams/beam_search.h"
#include "kvstore/codec/codec_calibration.h"
#include "model/sampler/sampler.h"
#include "worker/engine/kv_compaction.h"
#include "worker/model/model_host.h"

namespace penstock {

// The answer as one process gives it without any of what Penstock adds: the whole prompt in one
// step, then one token a step, alone in the batch.
class LocalGenerator {
 public:
  // On one thread of the CPU.
  explicit LocalGenerator(const std::string& model_folder, const std::string& kv_format = "bf16");
  // On what `options` say, whose step_tokens are those of the longest prompt.
  explicit LocalGenerator(const ModelHost::Options& options);
  // Generate computes the prompt and the first token on what `prefill` says, and what follows on
  // what `decode` says, from the same pages: workers of unequal numbers of GPUs differ in last
  // bits.
  LocalGenerator(const ModelHost::Options& prefill, const ModelHost::Options& decode);

  // Stops at `tokens_max` tokens or behind one of params.stop_token_ids. `wire`: behind the first
  // token, the prompt's KV is what this codec makes of it (on the CPU only).
  std::vector<uint32_t> Generate(std::span<const uint32_t> prompt, const SamplingParams& params,
                                 int tokens_max, uint32_t choice = 0, const KvCodecSpec& wire = {});
  // Has the answers that follow select as `policy`, a selection, says; exact again if it is empty.
  void Select(const std::string& policy) { policy_ = policy; }
  // The same, with the eviction of `policy`, which must evict some of the prompt, or of the answer.
  std::vector<uint32_t> GenerateEvicted(std::span<const uint32_t> prompt,
                                        const SamplingParams& params, int tokens_max,
                                        const std::string& policy, uint32_t choice = 0);

  // The `answers` best answers of a beam search, each beam of which is computed from its first
  // token at every step.
  std::vector<std::vector<uint32_t>> Search(std::span<const uint32_t> prompt,
                                            const SamplingParams& params, const BeamRules& rules);

  // The hidden state of the prompt's last token.
  std::vector<float> HiddenState(std::span<const uint32_t> prompt);
  // The mean of those of all tokens.
  std::vector<float> MeanHiddenState(std::span<const uint32_t> prompt);

  uint32_t vocab() const { return static_cast<uint32_t>(host_->runner->vocab()); }

 private:
  // A sequence as far as it is computed.
  struct Held {
    ModelHost* host = nullptr;
    std::vector<BlockRef> blocks;
    std::vector<uint32_t> table;
    int32_t evicted = 0;
  };
  Held Hold(size_t tokens) { return Hold(*host_, tokens); }
  static Held Hold(ModelHost& host, size_t tokens);
  Held MovedToDecode(const Held& held) const;
  // Of the answer's tokens since the last compaction, as the step of each gave them.
  struct Queries {
    int64_t width = 0;                       // of a row
    std::vector<std::vector<float>> layers;  // [tokens][width]
  };
  CompactionScores Scores(const KvEviction& rule, const Held& full, const Queries& queries);
  Held Compacted(const KvEviction& rule, const Held& full, const Queries& queries);
  // `prompt`: its tokens, behind which tokens may select.
  void Step(size_t prompt, std::span<const uint32_t> tokens, int32_t position, const Held& held,
            std::function<void(int32_t, View<const float, 2>)> on_queries = {},
            std::span<float> hidden = {});
  bool Answer(Sampler& sampler, const SamplingParams& params, int tokens_max,
              std::vector<uint32_t>& answer);
  void Transcode(const KvCodecSpec& codec, std::span<const uint32_t> blocks);

  std::unique_ptr<ModelHost> host_;
  std::unique_ptr<ModelHost> decode_;  // null: host_ does all
  std::vector<float> logits_;
  std::string policy_;
  std::unique_ptr<KvCalibration> calibration_;  // where the model has one
};

}  // namespace penstock
