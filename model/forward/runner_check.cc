#include "model/forward/runner_check.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/page_copier.h"

namespace penstock {
namespace {

// Largest allowed RMS of the difference relative to the reference. Rounding to bf16 yields 0.01,
// differently rounded four-bit codes 0.08, and a wrong kernel about 1.
constexpr double kDeviationMax = 0.15;
constexpr int kTables = 3;
constexpr int64_t kNeighbourTokens = 5;

// Deliberately not a whole number of pages.
int64_t PromptTokens(const KvLayout& layout) { return 2 * int64_t{layout.block_tokens} + 12; }

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
    return layout.BlocksFor(PromptTokens(layout) + 1);
  }

  struct Feed {
    int table;
    std::span<const uint32_t> tokens;
    int32_t position;
  };
  // Returns the last logits of the first of `feeds`.
  absl::StatusOr<std::vector<float>> Step(std::initializer_list<Feed> feeds) {
    std::vector<SequenceStep> steps;
    for (const Feed& feed : feeds) {
      steps.push_back({.tokens = feed.tokens,
                       .position = feed.position,
                       .blocks = tables_[feed.table],
                       .wants_logits = steps.empty()});
    }
    std::vector<float> logits(static_cast<size_t>(runner_.vocab()));
    RETURN_IF_ERROR(runner_.Step(
        {.sequences = steps, .kv = pages_, .logits = {logits.data(), {1, runner_.vocab()}}}));
    return logits;
  }

  // Copies the pages of one table to those of another, as wires and tiers do.
  void Move(int from, int to) {
    const size_t bytes = pages_.layout.PayloadBytes();
    std::vector<std::byte> host(bytes * tables_[from].size());
    ReadPages(pages_, tables_[from], 0, bytes, host.data());
    WritePages(pages_, tables_[to], 0, bytes, host.data());
  }

 private:
  ModelRunner& runner_;
  const PagedKv pages_;
  std::vector<std::vector<uint32_t>> tables_;
};

}  // namespace

ModelConfig SmallModelLike(const ModelConfig& config, int32_t gpus) {
  ModelConfig small = config;
  small.layers = 2;
  small.hidden = 256;
  small.intermediate = 256;
  small.kv_heads = 2 * gpus;
  small.heads = small.kv_heads * (config.heads / config.kv_heads);
  small.vocab = 256;
  small.max_position = std::max(config.max_position, 512);
  if (!config.sliding_window.empty()) small.sliding_window = {20, 0};
  return small;
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

int64_t RunnerCheckTokens(const KvLayout& layout) {
  return PromptTokens(layout) + kNeighbourTokens;
}

int64_t RunnerCheckBlocks(const KvLayout& layout) { return kTables * Trial::BlocksOfTable(layout); }

absl::Status CheckRunner(const CheckedRunner& checked, const CheckedRunner& reference) {
  Trial trial(checked), other(reference);
  const int64_t size = PromptTokens(checked.pages.layout);
  const auto end = static_cast<int32_t>(size);
  const std::vector<uint32_t> prompt = Tokens(size, 1, checked.runner.vocab());
  const std::vector<uint32_t> neighbour = Tokens(kNeighbourTokens, 2, checked.runner.vocab());
  const std::vector<uint32_t> next = {3};

  ASSIGN_OR_RETURN(const std::vector<float> first, trial.Step({{0, prompt, 0}}));
  ASSIGN_OR_RETURN(const std::vector<float> second, trial.Step({{0, next, end}}));
  ASSIGN_OR_RETURN(const std::vector<float> want_first, other.Step({{0, prompt, 0}}));
  ASSIGN_OR_RETURN(const std::vector<float> want_second, other.Step({{0, next, end}}));
  for (const auto& [got, want] : {std::pair(&first, &want_first), {&second, &want_second}}) {
    const double off = Deviation(*got, *want);
    if (!(off < kDeviationMax)) {
      return Wrong(fmt::format("logits are {:.2g} of their size off the CPU's, {} may be rounding",
                               off, kDeviationMax));
    }
  }

  ASSIGN_OR_RETURN(const auto beside, trial.Step({{1, prompt, 0}, {2, neighbour, 0}}));
  if (beside != first) return Wrong("logits change beside another sequence");
  trial.Move(0, 2);
  ASSIGN_OR_RETURN(const auto moved, trial.Step({{2, next, end}}));
  if (moved != second) return Wrong("pages that were copied to the host and back are not the same");

  const std::span<const uint32_t> all = prompt;
  RETURN_IF_ERROR(trial.Step({{1, all.first(7), 0}}).status());
  RETURN_IF_ERROR(trial.Step({{1, all.subspan(7, 1), 7}}).status());
  ASSIGN_OR_RETURN(const auto chunks, trial.Step({{1, all.subspan(8), 8}}));
  if (chunks != first) return Wrong("logits depend on how a prompt is cut into steps");
  return absl::OkStatus();
}

}  // namespace penstock
