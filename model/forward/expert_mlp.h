#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/buffer.h"
#include "kernels/device.h"
#include "kernels/gemm.h"
#include "model/weights/weights.h"

namespace penstock {

// The MLP of a layer with experts. Owns the memory of the choice and of the rows of one expert.
// One thread calls Run.
class ExpertMlp {
 public:
  // Needs no memory for a model without experts. `weights` outlive it.
  ExpertMlp(const Weights& weights, const Exec& exec, int64_t max_tokens);

  // output = the weighted sum of the chosen experts' outputs, and of the shared expert's, for each
  // row of `input`. Only matrices of chosen experts are read. A row's experts are added in
  // ascending order of their ids, so a row's bits do not depend on the others. Errors are those of
  // ExpertCache::Get, if the weights have one.
  absl::Status Run(const ExpertLayer& layer, View<const float, 2> input, const GemmScratch& gemm,
                   View<float, 2> output);
  size_t bytes() const;

 private:
  // The rows that use an expert, ascending, and their weights.
  struct Group {
    std::span<const int32_t> rows;
    std::span<const float> weights;
  };

  void Choose(const ExpertLayer& layer, View<const float, 2> input);
  void SortByExpert(int64_t tokens);
  Group GroupOf(int32_t expert) const;
  void BeginCached(const ExpertLayer& layer, int64_t tokens);
  absl::Status AddRouted(const GatedWeights& expert, const Group& group, View<const float, 2> input,
                         const GemmScratch& gemm, View<float, 2> output);
  void AddExpert(const GatedWeights& expert, const Group& group, View<const float, 2> input,
                 const GemmScratch& gemm, View<float, 2> output);
  void ScoreShared(const ExpertLayer& layer, View<const float, 2> input);
  void AddShared(const ExpertLayer& layer, View<const float, 2> input, const GemmScratch& gemm,
                 View<float, 2> output);

  const ModelConfig& config_;
  ExpertCache* const cache_;  // null: all experts are in memory
  const Exec exec_;
  Buffer scores_;    // [max_tokens, experts]
  Buffer chosen_;    // [max_tokens, experts per token]
  Buffer weights_;   // [max_tokens, experts per token]
  Buffer gathered_;  // [max_tokens, hidden]
  Buffer gated_;     // [max_tokens, intermediate]
  Buffer result_;    // [max_tokens, hidden]
  // Expert e has rows_[first_[e]] to rows_[first_[e + 1]].
  std::vector<int64_t> first_;
  std::vector<int32_t> rows_;
  std::vector<float> row_weights_;
  std::vector<ExpertUse> uses_;
};

}  // namespace penstock
