#include "model/forward/runner_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/eviction/kv_evictor.h"
#include "kernels/page_copier.h"

namespace penstock {
namespace {

// Largest allowed RMS of the difference relative to the reference, from the same pages. Rounding to
// bf16 yields 0.01, and a wrong kernel about 1.
constexpr double kDeviationMax = 0.15;
// From pages that each has written itself, in codes of few bits: now and then rounding gets one of
// the two the next code, which yields up to 0.5 with two bits.
constexpr double kFewBitsDeviationMax = 0.7;
constexpr int32_t kFewBits = 4;
constexpr int kTables = 3;
// More rows than the products of few rows take, and deliberately not a whole number of pages.
constexpr int64_t kPromptTokens = 76;
// A history so long that attention is split: the pages of several prompts, each of whole pages,
// which are computed in one step.
constexpr int64_t kHistoryPrompts = 5;
constexpr int64_t kHistoryPromptTokens = 128;
constexpr int64_t kHistoryTokens = kHistoryPrompts * kHistoryPromptTokens;
// Positions that were evicted between a prompt and the token after it.
constexpr int32_t kEvicted = 200;
// The last tokens of a prompt whose queries score keys, and those of it that stay.
constexpr int64_t kObserved = 32, kKept = 40;

std::vector<uint32_t> Tokens(int64_t size, uint32_t seed, int32_t vocab) {
  std::vector<uint32_t> tokens;
  for (int64_t i = 0; i < size; ++i) {
    tokens.push_back(static_cast<uint32_t>((seed * 31 + i * i * 7 + i) % vocab));
  }
  return tokens;
}

absl::Status Wrong(std::string_view what) {
  return FailedPrecondition("a small model is computed wrongly: {}", what);
}

// One runner that computes one model's prompts.
class Trial {
 public:
  explicit Trial(const CheckedRunner& of) : runner_(of.runner), pages_(of.pages) {
    const int64_t each = BlocksOfTable(pages_.layout);
    for (int t = 0; t < kTables; ++t) {
      tables_.emplace_back();
      // The blocks of a table are not contiguous.
      for (int64_t i = 0; i < each; ++i)
        tables_[t].push_back(static_cast<uint32_t>(i * kTables + t));
    }
  }

  static int64_t BlocksOfTable(const KvLayout& layout) {
    return layout.BlocksFor(kHistoryTokens + kPromptTokens + 1);
  }

  int32_t vocab() const { return runner_.vocab(); }
  bool evicts() const {
    return pages_.layout.span == 0 && runner_.eviction_attention().has_value();
  }
  const KvLayout& layout() const { return pages_.layout; }
  std::span<const uint32_t> table(size_t index) const { return tables_[index]; }

  struct Feed {
    std::span<const uint32_t> blocks;
    std::span<const uint32_t> tokens;
    int64_t position;
    int32_t evicted = 0;
    bool answer = false;  // the tokens are an answer's
  };
  // The token after a prompt.
  static Feed Next(std::span<const uint32_t> blocks, int64_t position, int32_t evicted = 0);

  // Returns the last logits of the first of `feeds`.
  absl::StatusOr<std::vector<float>> Step(const std::vector<Feed>& feeds) {
    std::vector<SequenceStep> steps;
    for (const Feed& feed : feeds) {
      steps.push_back({.tokens = feed.tokens,
                       .position = static_cast<int32_t>(feed.position),
                       .blocks = feed.blocks,
                       .evicted = feed.evicted,
                       .prompt = !feed.answer,
                       .wants_logits = steps.empty()});
    }
    std::vector<float> logits(static_cast<size_t>(runner_.vocab()));
    RETURN_IF_ERROR(runner_.Step(
        {.sequences = steps, .kv = pages_, .logits = {logits.data(), {1, runner_.vocab()}}}));
    return logits;
  }

  // Copies pages, as wires and tiers do.
  void Move(std::span<const uint32_t> from, std::span<const uint32_t> to) {
    const size_t bytes = pages_.layout.PayloadBytes();
    std::vector<std::byte> host(bytes * from.size());
    ReadPages(pages_, from, 0, bytes, host.data());
    WritePages(pages_, to, 0, bytes, host.data());
  }

  // Takes a table's pages from another runner of the same layout.
  void Take(std::span<const uint32_t> table, const Trial& from) {
    const size_t bytes = pages_.layout.PayloadBytes();
    std::vector<std::byte> host(bytes * table.size());
    ReadPages(from.pages_, table, 0, bytes, host.data());
    WritePages(pages_, table, 0, bytes, host.data());
  }

  // The scores of the keys of a prompt in the first layer. The queries are numbers that bf16 has.
  std::vector<float> Scores(std::span<const uint32_t> table, KeyScoring scoring) {
    const EvictionAttention attention = *runner_.eviction_attention();
    const int64_t width = int64_t{attention.heads} * pages_.layout.head_dim;
    std::vector<float> queries, scores(static_cast<size_t>(layout().kv_heads * kPromptTokens));
    for (int64_t i = 0; i < kObserved * width; ++i) {
      queries.push_back(static_cast<float>((i * 37 + i / 7) % 17 - 8) / 8);
    }
    KeyScoresArgs keys = KeysOf(table, 0, scoring);
    keys.queries = {queries.data(), {kObserved, width}};
    keys.scores = {scores.data(), {layout().kv_heads, kPromptTokens}};
    attention.evictor->Score(keys);
    return scores;
  }

  // Copies some tokens of a prompt in every layer.
  void Evict(std::span<const uint32_t> table, std::span<const uint32_t> to) {
    for (int32_t layer = 0; layer < layout().layers; ++layer) {
      EvictLayer(*runner_.eviction_attention()->evictor,
                 {.keys = KeysOf(table, layer, KeyScoring::kRandom),
                  .rule = {.keep = kKept, .last = 1},
                  .to = to});
    }
  }

  // Fills kHistoryTokens at the beginning of a table.
  absl::Status MakeHistory(std::span<const uint32_t> table) {
    const auto blocks = static_cast<size_t>(pages_.layout.BlocksFor(kHistoryPromptTokens));
    std::vector<std::vector<uint32_t>> prompts;
    std::vector<Feed> feeds;
    for (uint32_t i = 0; i < kHistoryPrompts; ++i) {
      prompts.push_back(Tokens(kHistoryPromptTokens, 10 + i, vocab()));
      feeds.push_back({table.subspan(i * blocks, blocks), prompts.back(), 0});
    }
    return Step(feeds).status();
  }

 private:
  KeyScoresArgs KeysOf(std::span<const uint32_t> table, int32_t layer, KeyScoring scoring) const {
    const EvictionAttention attention = *runner_.eviction_attention();
    return {.scoring = scoring,
            .kv = pages_,
            .layer = layer,
            .blocks = table,
            .tokens = kPromptTokens,
            .queries = {},
            .heads = attention.heads,
            .scale = attention.scale,
            .cap = attention.cap,
            .scores = {}};
  }

  ModelRunner& runner_;
  const PagedKv pages_;
  std::vector<std::vector<uint32_t>> tables_;
};

// Few dimensions, but as many experts and as many for a token.
void MakeExpertsSmall(const ModelConfig& large, ModelConfig& small) {
  if (large.experts.count == 0) return;
  small.tied_embeddings = false;     // for MakeChoicesClear
  small.experts.intermediate = 128;  // a group of inputs, if matrices are quantised
  if (large.experts.shared_intermediate > 0) small.experts.shared_intermediate = 128;
  if (large.experts.gate_limit != 0) small.experts.gate_limit = 2;  // so that it is met
  const bool some_dense = std::ranges::count(large.experts.dense, true) > 0;
  small.experts.dense = {some_dense, false};
}

// Latents as large, for whose size there are kernels, and heads for two tiles of rows on each of
// the GPUs, which divide the heads.
void MakeLatentsSmall(const ModelConfig& large, int32_t gpus, ModelConfig& small) {
  if (!large.HasLatents()) return;
  small.kv_heads = 1;
  small.heads = gpus * std::clamp(large.heads / gpus, 1, 32);
  if (large.latent.query_rank > 0) small.latent.query_rank = 128;
}

float SignOf(int32_t code, int bit) { return (code >> bit & 1) != 0 ? 1.0f : -1.0f; }

// So large that leaving one out shows. The signs of a token's first dimensions, which name its
// group, stay as they are.
void MakeBiasesShow(ExpertLayer& layer) {
  constexpr float kGateTimes = 20, kDownTimes = 5;
  constexpr size_t kSigns = 9;  // of up to 512 experts
  for (GatedWeights& expert : layer.experts) {
    for (float& bias : expert.gate_up_bias) bias *= kGateTimes;
    for (float& bias : expert.down_bias) bias *= kDownTimes;
    std::fill_n(expert.down_bias.begin(), std::min(kSigns, expert.down_bias.size()), 0.0f);
  }
}

// Of the scores of a group's experts: it decides between groups 2i and 2i + 1, whose scores are
// equal without it.
float RouterBias(int32_t group, int32_t groups) {
  const bool preferred = group % 2 != 0 || group == groups - 1;
  return group < groups && preferred ? 1.0f : 0.0f;
}

}  // namespace

ModelConfig SmallModelLike(const ModelConfig& config, int32_t gpus) {
  ModelConfig small = config;
  small.layers = 2;
  small.hidden = 256;
  small.intermediate = 256;
  small.kv_heads = 2 * gpus;
  small.heads = small.kv_heads * (config.heads / config.kv_heads);
  MakeLatentsSmall(config, gpus, small);
  small.vocab = 256;
  small.max_position = std::max(config.max_position, 1024);
  const auto& windows = config.sliding_window;
  const bool some = std::ranges::count(windows, 0) != std::ssize(windows);
  small.sliding_window = some ? std::vector<int32_t>{20, 0} : std::vector<int32_t>();
  if (!config.layer_rope.empty()) {
    const LayerRope first = config.layer_rope.front();
    const auto other =
        std::ranges::find_if(config.layer_rope, [first](LayerRope rope) { return rope != first; });
    small.layer_rope = {first, other == config.layer_rope.end() ? first : *other};
  }
  if (config.attention_cap != 0) small.attention_cap = 1;
  if (config.logit_cap != 0) small.logit_cap = 1;
  MakeExpertsSmall(config, small);
  return small;
}

void MakeChoicesClear(Weights& weights) {
  const ExpertConfig& experts = weights.config.experts;
  if (experts.count == 0) return;
  constexpr float kEmbedding = 8, kScore = 0.5f, kSpread = 0.1f, kOther = 1.0f / 64;
  const int64_t hidden = weights.config.hidden;
  const int32_t groups = experts.count / experts.per_token;
  const int bits = std::max<int>(1, std::bit_width(static_cast<uint32_t>(groups - 1)));
  auto* embedding = weights.embedding.as<Bf16>();
  for (int32_t t = 0; t < weights.config.vocab; ++t, embedding += hidden) {
    for (int b = 0; b < bits; ++b) embedding[b] = ToBf16(kEmbedding * SignOf(t % groups, b));
  }
  for (LayerWeights& layer : weights.layers) {
    if (!layer.experts.has_value()) continue;
    for (float& bias : layer.experts->choice_bias) bias *= kOther;
    std::vector<float>& biases = layer.experts->router_bias;
    float* row = layer.experts->router.data();
    for (int32_t e = 0; e < experts.count; ++e, row += hidden) {
      for (int64_t i = 0; i < hidden; ++i) row[i] *= kOther;
      const int32_t group = e / experts.per_token, place = e % experts.per_token;
      const float part = 1 - kSpread * static_cast<float>(place) / experts.per_token;
      const float score = group < groups ? kScore * part / static_cast<float>(bits) : 0;
      for (int b = 0; b < bits; ++b) row[b] = score * SignOf(group, b);
      if (biases.empty()) continue;
      row[0] = 0;  // which tells groups 2i and 2i + 1 apart
      biases[static_cast<size_t>(e)] = RouterBias(group, groups);
    }
  }
}

Weights SmallWeightsLike(const ModelConfig& config, int32_t gpus, const MatrixForms& forms) {
  return SmallWeightsOf(SmallModelLike(config, gpus), forms);
}

Weights SmallWeightsOf(const ModelConfig& small, const MatrixForms& forms) {
  Weights weights = RandomWeights(small, 1, /*deviation=*/0.1f, forms);
  const auto vary = [](std::vector<float>& norm) {
    for (size_t i = 0; i < norm.size(); ++i) norm[i] *= 0.75f + 0.125f * static_cast<float>(i % 5);
  };
  for (LayerWeights& layer : weights.layers) {
    for (auto* norm : {&layer.attention_norm, &layer.attention_output_norm, &layer.mlp_norm,
                       &layer.mlp_output_norm, &layer.q_norm, &layer.k_norm}) {
      vary(*norm);
    }
    if (layer.latents.has_value()) {
      vary(layer.latents->norm);
      vary(layer.latents->query_norm);
    }
    for (float& sink : layer.sinks) sink += 5;
    if (layer.experts.has_value()) MakeBiasesShow(*layer.experts);
  }
  vary(weights.final_norm);
  MakeChoicesClear(weights);
  return weights;
}

void AddRandomMeans(Weights& weights) {
  const ModelConfig& config = weights.config;
  const auto size = static_cast<size_t>(config.kv_heads) * static_cast<size_t>(config.head_dim);
  KeyMeans means;
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    std::vector<float>& values = means.layers.emplace_back(size);
    for (size_t i = 0; i < size; ++i) {
      values[i] = static_cast<float>((i * 29 + i / 5 + static_cast<size_t>(layer)) % 23) / 11 - 1;
    }
  }
  weights.SetKeyMeans(std::move(means));
}

double Deviation(std::span<const float> got, std::span<const float> want) {
  PENSTOCK_CHECK_EQ(got.size(), want.size());
  double error = 0, reference = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double{got[i]} - want[i], 2);
    reference += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(error / reference);
}

int64_t RunnerCheckTokens() { return std::max(2 * kPromptTokens, kHistoryTokens); }

int64_t RunnerCheckBlocks(const KvLayout& layout) { return kTables * Trial::BlocksOfTable(layout); }

namespace {

using Logits = std::vector<float>;
const std::vector<uint32_t> kNext = {3};

Trial::Feed Trial::Next(std::span<const uint32_t> blocks, int64_t position, int32_t evicted) {
  return {blocks, kNext, position, evicted, /*answer=*/true};
}

// The logits of a prompt and of the token after it, without and with a long history; and of the
// token where others between them were evicted.
struct Outcome {
  Logits prompt, next, late_prompt, late_next, behind_evicted;
};

// Leaves the prompt's pages in table 0, and those behind the history in table 1.
absl::StatusOr<Outcome> Compute(std::span<const uint32_t> prompt, bool evicts, Trial& trial) {
  const auto first = trial.table(0), second = trial.table(1);
  Outcome outcome;
  ASSIGN_OR_RETURN(outcome.prompt, trial.Step({{first, prompt, 0}}));
  if (evicts) {  // first, so that the token's own slot is of the next step
    ASSIGN_OR_RETURN(outcome.behind_evicted,
                     trial.Step({Trial::Next(first, kPromptTokens + kEvicted, kEvicted)}));
  }
  ASSIGN_OR_RETURN(outcome.next, trial.Step({Trial::Next(first, kPromptTokens)}));
  RETURN_IF_ERROR(trial.MakeHistory(second));
  ASSIGN_OR_RETURN(outcome.late_prompt, trial.Step({{second, prompt, kHistoryTokens}}));
  ASSIGN_OR_RETURN(outcome.late_next,
                   trial.Step({Trial::Next(second, kHistoryTokens + kPromptTokens)}));
  return outcome;
}

absl::Status CheckNear(const Logits& got, const Logits& want, double most) {
  if (want.empty()) return absl::OkStatus();
  const double off = Deviation(got, want);
  if (off < most) return absl::OkStatus();
  return Wrong(
      fmt::format("logits are {:.2g} of their size off the CPU's, {} may be rounding", off, most));
}

absl::Status CheckNear(const Outcome& got, const Outcome& want, KvDtype dtype) {
  const bool few_bits = CodeBits(dtype, KvPlane::kValues) <= kFewBits;
  for (const auto part : {&Outcome::prompt, &Outcome::next, &Outcome::late_prompt,
                          &Outcome::late_next, &Outcome::behind_evicted}) {
    RETURN_IF_ERROR(
        CheckNear(got.*part, want.*part, few_bits ? kFewBitsDeviationMax : kDeviationMax));
  }
  return absl::OkStatus();
}

// The token after a prompt, which the reference computes from the pages of the checked runner.
absl::Status CheckPages(const Outcome& got, const Trial& trial, Trial& reference) {
  const auto first = reference.table(0), second = reference.table(1);
  reference.Take(first, trial);
  reference.Take(second, trial);
  ASSIGN_OR_RETURN(const Logits next, reference.Step({Trial::Next(first, kPromptTokens)}));
  RETURN_IF_ERROR(CheckNear(got.next, next, kDeviationMax));
  ASSIGN_OR_RETURN(const Logits late,
                   reference.Step({Trial::Next(second, kHistoryTokens + kPromptTokens)}));
  return CheckNear(got.late_next, late, kDeviationMax);
}

// Scores of the keys in one runner's pages, and a token behind what both keep of them.
absl::Status CheckEvictions(Trial& trial, Trial& reference) {
  const auto first = reference.table(0), kept = reference.table(2);
  reference.Take(first, trial);
  std::vector<KeyScoring> scorings = {KeyScoring::kKeyDifference, KeyScoring::kKeyNorm};
  // A GPU takes queries that are rotated already.
  if (!trial.layout().IsRotated(KvPlane::kKeys)) scorings.push_back(KeyScoring::kAttention);
  for (const KeyScoring scoring : scorings) {
    const double off = Deviation(trial.Scores(first, scoring), reference.Scores(first, scoring));
    if (!(off < kDeviationMax)) {
      return Wrong(fmt::format("scores of keys are {:.2g} of their size off the CPU's", off));
    }
  }
  trial.Evict(first, kept);
  reference.Evict(first, kept);
  const std::vector<Trial::Feed> next = {
      Trial::Next(kept, kPromptTokens, static_cast<int32_t>(kPromptTokens - kKept))};
  ASSIGN_OR_RETURN(const Logits got, trial.Step(next));
  ASSIGN_OR_RETURN(const Logits want, reference.Step(next));
  return CheckNear(got, want, kDeviationMax);
}

absl::Status CheckNeighbours(std::span<const uint32_t> prompt, const Outcome& alone, Trial& trial) {
  const std::vector<uint32_t> neighbour = Tokens(kPromptTokens, 2, trial.vocab());
  ASSIGN_OR_RETURN(const Logits beside,
                   trial.Step({{trial.table(0), prompt, 0}, {trial.table(2), neighbour, 0}}));
  if (beside == alone.prompt) return absl::OkStatus();
  return Wrong("logits change beside another sequence");
}

absl::Status CheckMoves(const Outcome& unmoved, Trial& trial) {
  const auto blocks = static_cast<size_t>(trial.layout().BlocksFor(kPromptTokens));
  trial.Move(trial.table(0).first(blocks), trial.table(2).first(blocks));
  ASSIGN_OR_RETURN(const Logits moved, trial.Step({Trial::Next(trial.table(2), kPromptTokens)}));
  if (moved == unmoved.next) return absl::OkStatus();
  return Wrong("pages that were copied to the host and back are not the same");
}

// The last logits of a prompt in three steps.
absl::StatusOr<Logits> InChunks(std::span<const uint32_t> prompt, std::span<const uint32_t> table,
                                int64_t position, Trial& trial) {
  RETURN_IF_ERROR(trial.Step({{table, prompt.first(7), position}}).status());
  RETURN_IF_ERROR(trial.Step({{table, prompt.subspan(7, 1), position + 7}}).status());
  return trial.Step({{table, prompt.subspan(8), position + 8}});
}

absl::Status CheckChunks(std::span<const uint32_t> prompt, const Outcome& whole, Trial& trial) {
  ASSIGN_OR_RETURN(const Logits chunks, InChunks(prompt, trial.table(0), 0, trial));
  ASSIGN_OR_RETURN(const Logits late, InChunks(prompt, trial.table(1), kHistoryTokens, trial));
  if (chunks == whole.prompt && late == whole.late_prompt) return absl::OkStatus();
  return Wrong("logits depend on how a prompt is cut into steps");
}

}  // namespace

absl::Status CheckRunner(const CheckedRunner& checked, const CheckedRunner& reference) {
  Trial trial(checked), other(reference);
  const std::vector<uint32_t> prompt = Tokens(kPromptTokens, 1, trial.vocab());
  const bool evicts = trial.evicts() && other.evicts();
  ASSIGN_OR_RETURN(const Outcome outcome, Compute(prompt, evicts, trial));
  ASSIGN_OR_RETURN(const Outcome want, Compute(prompt, evicts, other));
  RETURN_IF_ERROR(CheckNear(outcome, want, trial.layout().dtype));
  RETURN_IF_ERROR(CheckPages(outcome, trial, other));
  if (evicts) RETURN_IF_ERROR(CheckEvictions(trial, other));
  RETURN_IF_ERROR(CheckNeighbours(prompt, outcome, trial));
  RETURN_IF_ERROR(CheckMoves(outcome, trial));
  return CheckChunks(prompt, outcome, trial);
}

}  // namespace penstock
