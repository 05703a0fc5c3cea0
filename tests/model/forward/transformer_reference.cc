#include "tests/model/forward/transformer_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "kernels/bf16.h"
#include "model/forward/rope_angles.h"

namespace penstock {
namespace {

using Row = std::vector<double>;

Row MatrixRow(const WeightMatrix& matrix, int64_t index) {
  std::vector<float> row(static_cast<size_t>(matrix.inputs()));
  matrix.GetRow(index, row.data());
  return {row.begin(), row.end()};
}

Row Multiply(const WeightMatrix& matrix, const std::vector<float>& bias, const Row& x) {
  Row y(static_cast<size_t>(matrix.outputs()));
  for (size_t o = 0; o < y.size(); ++o) {
    const Row row = MatrixRow(matrix, static_cast<int64_t>(o));
    for (size_t i = 0; i < x.size(); ++i) y[o] += row[i] * x[i];
    if (!bias.empty()) y[o] += bias[o];
  }
  return y;
}

void Norm(double* x, size_t size, const std::vector<float>& weight, double epsilon) {
  double sum = 0;
  for (size_t i = 0; i < size; ++i) sum += x[i] * x[i];
  const double scale = 1 / std::sqrt(sum / static_cast<double>(size) + epsilon);
  for (size_t i = 0; i < size; ++i) x[i] *= scale * weight[i];
}

void Rotate(const ModelConfig& config, int32_t position, double* head) {
  const auto frequencies = RopeFrequencies(config.rope, config.head_dim);
  const int32_t half = config.head_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * frequencies[i];
    const double c = std::cos(angle) * config.rope.attention_factor;
    const double s = std::sin(angle) * config.rope.attention_factor;
    const double a = head[i], b = head[i + half];
    head[i] = a * c - b * s;
    head[i + half] = b * c + a * s;
  }
}

struct LayerContext {
  int32_t layer = 0;
  const ReferenceEviction* eviction = nullptr;
  const ReferenceSelection* selection = nullptr;

  bool Sees(int64_t kv_head, size_t position, size_t other) const {
    if (eviction == nullptr || position < eviction->at || other >= eviction->at) return true;
    return eviction->kept(layer, kv_head, other);
  }
};

// The greatest that query * key can be, over the keys of a page and the query heads of a KV head.
double UpperBound(const ModelConfig& config, const std::vector<Row>& qkv, size_t position,
                  int64_t kv_head, size_t first, size_t tokens) {
  const int64_t dim = config.head_dim, group = config.heads / config.kv_heads;
  double sum = 0;
  for (int64_t d = 0; d < dim; ++d) {
    const auto key = static_cast<size_t>((config.heads + kv_head) * dim + d);
    double least = qkv[first][key], greatest = least;
    for (size_t p = first; p < first + tokens; ++p) {
      least = std::min(least, qkv[p][key]);
      greatest = std::max(greatest, qkv[p][key]);
    }
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      const double query = qkv[position][static_cast<size_t>(h * dim + d)];
      sum += std::max(query * least, query * greatest);
    }
  }
  return sum;
}

// The pages that a token attends to, by KV head; empty: all.
std::vector<std::set<size_t>> Selected(const ModelConfig& config, const LayerContext& context,
                                       const std::vector<Row>& qkv, size_t position) {
  const ReferenceSelection* selection = context.selection;
  if (selection == nullptr || context.layer < 2 || position < selection->from) return {};
  const size_t pages = position / selection->page_tokens + 1;
  if (pages <= selection->pages) return {};
  std::vector<std::set<size_t>> selected;
  for (int64_t head = 0; head < config.kv_heads; ++head) {
    std::vector<std::pair<double, size_t>> others;
    for (size_t page = 1; page + 2 < pages; ++page) {
      others.emplace_back(-UpperBound(config, qkv, position, head, page * selection->page_tokens,
                                      selection->page_tokens),
                          page);
    }
    std::sort(others.begin(), others.end());
    std::set<size_t>& chosen = selected.emplace_back(std::set<size_t>{0, pages - 2, pages - 1});
    for (size_t i = 0; chosen.size() < selection->pages; ++i) chosen.insert(others[i].second);
  }
  return selected;
}

Row Attend(const ModelConfig& config, const LayerContext& context, const std::vector<Row>& qkv,
           size_t position) {
  const std::vector<std::set<size_t>> selected = Selected(config, context, qkv, position);
  const auto sees = [&](int64_t kv_head, size_t other) {
    if (!context.Sees(kv_head, position, other)) return false;
    return selected.empty() ||
           selected[static_cast<size_t>(kv_head)].contains(other / context.selection->page_tokens);
  };
  const int64_t dim = config.head_dim, group = config.heads / config.kv_heads;
  const int32_t window = config.sliding_window.empty() ? 0 : config.sliding_window[context.layer];
  const size_t min = window > 0 && position + 1 > static_cast<size_t>(window)
                         ? position + 1 - static_cast<size_t>(window)
                         : 0;
  Row output(static_cast<size_t>(config.heads * dim));
  for (int64_t h = 0; h < config.heads; ++h) {
    const int64_t key = (config.heads + h / group) * dim, value = key + config.kv_heads * dim;
    Row scores;
    for (size_t p = min; p <= position; ++p) {
      double score = 0;
      for (int64_t d = 0; d < dim; ++d) score += qkv[position][h * dim + d] * qkv[p][key + d];
      scores.push_back(sees(h / group, p) ? score / std::sqrt(static_cast<double>(dim))
                                          : -std::numeric_limits<double>::infinity());
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - top);
    for (size_t p = min; p <= position; ++p) {
      for (int64_t d = 0; d < dim; ++d) {
        output[h * dim + d] += scores[p - min] / sum * qkv[p][value + d];
      }
    }
  }
  return output;
}

void Add(Row& x, const Row& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

void Layer(const ModelConfig& config, const LayerContext& context, const LayerWeights& w,
           std::vector<Row>& x) {
  std::vector<Row> qkv;
  const int64_t dim = config.head_dim;
  for (size_t t = 0; t < x.size(); ++t) {
    Row normed = x[t];
    Norm(normed.data(), normed.size(), w.attention_norm, config.norm_epsilon);
    qkv.push_back(Multiply(w.qkv, w.qkv_bias, normed));
    for (int64_t h = 0; h < config.heads + config.kv_heads; ++h) {
      double* head = qkv[t].data() + h * dim;
      if (config.qk_norm == QkNorm::kHead) {
        Norm(head, static_cast<size_t>(dim), h < config.heads ? w.q_norm : w.k_norm,
             config.norm_epsilon);
      }
      Rotate(config, static_cast<int32_t>(t), head);
    }
    for (size_t i = static_cast<size_t>(config.heads * dim); i < qkv[t].size(); ++i) {
      qkv[t][i] = ToFloat(ToBf16(static_cast<float>(qkv[t][i])));
    }
  }
  for (size_t t = 0; t < x.size(); ++t) {
    Add(x[t],
        Multiply(w.attention_output, w.attention_output_bias, Attend(config, context, qkv, t)));
    Row normed = x[t];
    Norm(normed.data(), normed.size(), w.mlp_norm, config.norm_epsilon);
    const Row both = Multiply(w.gate_up, w.gate_up_bias, normed);
    Row gated(both.size() / 2);
    for (size_t i = 0; i < gated.size(); ++i) {
      const double gate = both[i / 16 * 32 + i % 16], up = both[i / 16 * 32 + 16 + i % 16];
      gated[i] = gate / (1 + std::exp(-gate)) * up;
    }
    Add(x[t], Multiply(w.down, w.down_bias, gated));
  }
}

}  // namespace

std::vector<double> ReferenceLogits(const Weights& weights, std::span<const uint32_t> tokens,
                                    const ReferenceEviction* eviction,
                                    const ReferenceSelection* selection) {
  const ModelConfig& config = weights.config;
  std::vector<Row> x;
  for (const uint32_t token : tokens) {
    if (config.tied_embeddings) {
      x.push_back(MatrixRow(weights.lm_head, token));
      continue;
    }
    const Bf16* row = weights.embedding.as<const Bf16>() + int64_t{token} * config.hidden;
    Row values;
    for (int32_t i = 0; i < config.hidden; ++i) values.push_back(ToFloat(row[i]));
    x.push_back(values);
  }
  for (int32_t i = 0; i < config.layers; ++i)
    Layer(config, {.layer = i, .eviction = eviction, .selection = selection}, weights.layers[i], x);
  Norm(x.back().data(), x.back().size(), weights.final_norm, config.norm_epsilon);
  return Multiply(weights.lm_head, {}, x.back());
}

}  // namespace penstock
