#include "model/forward/expert_mlp.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "kernels/experts.h"
#include "kernels/rows.h"

namespace penstock {
namespace {

View<const float, 1> BiasOf(const std::vector<float>& bias) {
  if (bias.empty()) return {};
  return {bias.data(), {static_cast<int64_t>(bias.size())}};
}

Buffer Words(int64_t tokens, int64_t width) {
  static_assert(sizeof(float) == sizeof(int32_t));
  return Buffer(static_cast<size_t>(tokens * width) * sizeof(float));
}

// The most intermediate values of an expert, padded as its matrices are.
int64_t Widest(const ExpertConfig& experts) {
  return (std::max(experts.intermediate, experts.shared_intermediate) + 15) / 16 * 16;
}

int64_t HiddenOf(const ModelConfig& config) {
  return config.experts.count == 0 ? 0 : config.hidden;
}

}  // namespace

ExpertMlp::ExpertMlp(const Weights& weights, const Exec& exec, int64_t max_tokens)
    : config_(weights.config),
      cache_(weights.expert_cache.get()),
      exec_(exec),
      scores_(Words(max_tokens, config_.experts.count)),
      chosen_(Words(max_tokens, config_.experts.per_token)),
      weights_(Words(max_tokens, config_.experts.per_token)),
      gathered_(Words(max_tokens, HiddenOf(config_))),
      gated_(Words(max_tokens, Widest(config_.experts))),
      result_(Words(max_tokens, HiddenOf(config_))),
      first_(static_cast<size_t>(config_.experts.count) + 1),
      rows_(static_cast<size_t>(max_tokens * config_.experts.per_token)),
      row_weights_(rows_.size()) {
  // No family with experts has another activation.
  PENSTOCK_CHECK(config_.experts.count == 0 || config_.activation == Activation::kSilu);
}

size_t ExpertMlp::bytes() const {
  return scores_.bytes() + chosen_.bytes() + weights_.bytes() + gathered_.bytes() + gated_.bytes() +
         result_.bytes();
}

absl::Status ExpertMlp::Run(const ExpertLayer& layer, View<const float, 2> input,
                            const GemmScratch& gemm, View<float, 2> output) {
  Choose(layer, input);
  SortByExpert(input.dim(0));
  if (cache_ != nullptr) BeginCached(layer, input.dim(0));
  std::fill_n(output.data, output.dim(0) * output.dim(1), 0.0f);
  for (int32_t e = 0; e < config_.experts.count; ++e) {
    const Group group = GroupOf(e);
    if (group.rows.empty()) continue;
    RETURN_IF_ERROR(AddRouted(layer.experts[e], group, input, gemm, output));
  }
  if (layer.shared.has_value()) AddShared(layer, input, gemm, output);
  return absl::OkStatus();
}

// The cache reads later experts while earlier ones are computed.
void ExpertMlp::BeginCached(const ExpertLayer& layer, int64_t tokens) {
  uses_.clear();
  for (int32_t e = 0; e < config_.experts.count; ++e) {
    const int64_t rows = std::ssize(GroupOf(e).rows);
    if (rows > 0) uses_.push_back({.expert = layer.experts[e].cached_as, .tokens = rows});
  }
  cache_->Begin(uses_, tokens);
}

absl::Status ExpertMlp::AddRouted(const GatedWeights& expert, const Group& group,
                                  View<const float, 2> input, const GemmScratch& gemm,
                                  View<float, 2> output) {
  if (cache_ == nullptr) {
    AddExpert(expert, group, input, gemm, output);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const GatedWeights* const cached, cache_->Get(expert));
  AddExpert(*cached, group, input, gemm, output);
  cache_->Release(expert.cached_as);
  return absl::OkStatus();
}

void ExpertMlp::Choose(const ExpertLayer& layer, View<const float, 2> input) {
  const int64_t tokens = input.dim(0), experts = config_.experts.count;
  const int64_t per_token = config_.experts.per_token;
  Route(exec_, {.input = input,
                .router = {layer.router.data(), {experts, config_.hidden}},
                .bias = BiasOf(layer.router_bias),
                .normalise = config_.experts.normalise,
                .sigmoid = config_.experts.sigmoid,
                .choice_bias = {layer.choice_bias.data(), {std::ssize(layer.choice_bias)}},
                .groups = config_.experts.groups,
                .kept_groups = config_.experts.kept_groups,
                .scale = config_.experts.scale,
                .scores = {scores_.as<float>(), {tokens, experts}},
                .chosen = {chosen_.as<int32_t>(), {tokens, per_token}},
                .weights = {weights_.as<float>(), {tokens, per_token}}});
}

// Counting sort of (row, weight) by expert. It is stable: the rows of an expert ascend.
void ExpertMlp::SortByExpert(int64_t tokens) {
  const int64_t per_token = config_.experts.per_token;
  const auto* chosen = chosen_.as<const int32_t>();
  std::ranges::fill(first_, 0);
  for (int64_t i = 0; i < tokens * per_token; ++i) ++first_[static_cast<size_t>(chosen[i]) + 1];
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  std::vector<int64_t> next = first_;
  for (int64_t i = 0; i < tokens * per_token; ++i) {
    const auto at = static_cast<size_t>(next[static_cast<size_t>(chosen[i])]++);
    rows_[at] = static_cast<int32_t>(i / per_token);
    row_weights_[at] = weights_.as<float>()[i];
  }
}

ExpertMlp::Group ExpertMlp::GroupOf(int32_t expert) const {
  const auto first = static_cast<size_t>(first_[static_cast<size_t>(expert)]);
  const auto count = static_cast<size_t>(first_[static_cast<size_t>(expert) + 1]) - first;
  return {.rows = std::span(rows_).subspan(first, count),
          .weights = std::span(row_weights_).subspan(first, count)};
}

void ExpertMlp::AddExpert(const GatedWeights& expert, const Group& group,
                          View<const float, 2> input, const GemmScratch& gemm,
                          View<float, 2> output) {
  const auto rows = static_cast<int64_t>(group.rows.size());
  const View<float, 2> gathered(gathered_.as<float>(), {rows, config_.hidden});
  const View<float, 2> gated(gated_.as<float>(), {rows, expert.down.inputs()});
  const View<float, 2> result(result_.as<float>(), {rows, config_.hidden});
  const bool clamped = config_.experts.gate_limit > 0;
  GatherRows(exec_, {.input = input, .rows = group.rows, .output = gathered});
  Gemm(exec_, {.input = gathered,
               .weight = &expert.gate_up,
               .bias = BiasOf(expert.gate_up_bias),
               .output = gated,
               .mode = clamped ? GemmOutput::kClampedGate : GemmOutput::kSiluGate,
               .limit = config_.experts.gate_limit,
               .scratch = &gemm});
  Gemm(exec_, {.input = gated,
               .weight = &expert.down,
               .bias = BiasOf(expert.down_bias),
               .output = result,
               .scratch = &gemm});
  AddRowsTo(exec_,
            {.input = result, .rows = group.rows, .factors = group.weights, .output = output});
}

void ExpertMlp::ScoreShared(const ExpertLayer& layer, View<const float, 2> input) {
  const View<float, 2> scores(scores_.as<float>(), {input.dim(0), 1});
  ScoreRows(exec_, {.input = input,
                    .vectors = {layer.shared_gate.data(), {1, config_.hidden}},
                    .output = scores});
  for (int64_t t = 0; t < input.dim(0); ++t) {
    row_weights_[static_cast<size_t>(t)] = 1 / (1 + std::exp(-*scores.row(t)));
  }
}

// The shared expert's weight is the sigmoid of its own gate, if it has one.
void ExpertMlp::AddShared(const ExpertLayer& layer, View<const float, 2> input,
                          const GemmScratch& gemm, View<float, 2> output) {
  const int64_t tokens = input.dim(0);
  std::iota(rows_.begin(), rows_.begin() + tokens, 0);
  std::fill_n(row_weights_.begin(), tokens, 1.0f);
  if (!layer.shared_gate.empty()) ScoreShared(layer, input);
  const auto count = static_cast<size_t>(tokens);
  AddExpert(*layer.shared, {std::span(rows_).first(count), std::span(row_weights_).first(count)},
            input, gemm, output);
}

}  // namespace penstock
