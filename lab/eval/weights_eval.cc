#include "lab/eval/weights_eval.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "lab/eval/kv_eval_session.h"
#include "lab/eval/logit_statistics.h"

namespace penstock {
namespace {

using Sessions = std::vector<std::unique_ptr<KvEvalSession>>;
using TextWindows = std::vector<std::vector<uint32_t>>;

struct NamedPolicy {
  const char* name;
  WeightPolicy policy;
};
constexpr NamedPolicy kPolicies[] = {{"checkpoint", WeightPolicy::kCheckpoint},
                                     {"int8", WeightPolicy::kInt8},
                                     {"int4", WeightPolicy::kInt4}};

// Sums over the tokens of one window, and the divergence of every token.
struct WindowSamples {
  std::vector<double> nats, divergence, agreement;  // a value per window
  std::vector<double> divergences;                  // a value per token
};

TextWindows DrawTextWindows(const std::vector<uint32_t>& text, const KvEvalOptions& options) {
  const auto length = static_cast<size_t>(options.context + options.continuation);
  std::mt19937_64 engine(1);
  std::uniform_int_distribution<size_t> first(0, text.size() - length);
  TextWindows windows;
  for (int32_t i = 0; i < options.windows; ++i) {
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(first(engine));
    windows.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(length));
  }
  return windows;
}

void AddToken(std::span<const float> exact, std::span<const float> other, uint32_t next,
              double share, size_t window, WindowSamples& samples) {
  const double divergence = Divergence(exact, other);
  samples.nats[window] += share * (LogSum(other) - other[next]);
  samples.divergence[window] += share * divergence;
  samples.agreement[window] += Best(exact) == Best(other) ? share : 0;
  samples.divergences.push_back(divergence);
}

// One token of every window at `position`, on every model.
absl::Status ScoreStep(const KvEvalOptions& options, const Sessions& sessions,
                       const TextWindows& windows, int32_t position,
                       std::vector<WindowSamples>& samples) {
  std::vector<uint32_t> tokens;
  for (const auto& window : windows) tokens.push_back(window[static_cast<size_t>(position)]);
  std::vector<std::vector<float>> logits(sessions.size());
  for (size_t m = 0; m < sessions.size(); ++m) {
    RETURN_IF_ERROR(sessions[m]->Step(true, position, tokens, logits[m]));
  }
  const auto vocab = static_cast<size_t>(sessions[0]->vocab());
  for (size_t m = 0; m < sessions.size(); ++m) {
    for (size_t w = 0; w < windows.size(); ++w) {
      const auto row = [&](size_t model) {
        return std::span<const float>(logits[model]).subspan(w * vocab, vocab);
      };
      AddToken(row(0), row(m), windows[w][static_cast<size_t>(position) + 1],
               1.0 / (options.continuation - 1), w, samples[m]);
    }
  }
  return absl::OkStatus();
}

double Mean(const std::vector<double>& values) { return EstimateOf(values).mean; }

double BitsPerWeight(const Weights& weights) {
  double count = 0;
  const auto add = [&](const WeightMatrix& matrix) {
    count += static_cast<double>(matrix.outputs()) * static_cast<double>(matrix.inputs());
  };
  for (const LayerWeights& layer : weights.layers) {
    for (const WeightMatrix* matrix : layer.Matrices()) add(*matrix);
  }
  add(weights.lm_head);
  return 8 * static_cast<double>(weights.matrix_bytes()) / count;
}

WeightsQuality QualityOf(const NamedPolicy& policy, const KvEvalSession& session,
                         const WindowSamples& exact, WindowSamples samples) {
  std::vector<double> change;
  for (size_t w = 0; w < samples.nats.size(); ++w) {
    change.push_back(std::exp(samples.nats[w] - exact.nats[w]) - 1);
  }
  std::ranges::sort(samples.divergences);
  return {.weights = policy.name,
          .form = session.model().weights.FormName(),
          .bits_per_weight = BitsPerWeight(session.model().weights),
          .perplexity = std::exp(Mean(samples.nats)),
          .perplexity_change = EstimateOf(change),
          .divergence = EstimateOf(samples.divergence),
          .divergence_p99 = samples.divergences[samples.divergences.size() * 99 / 100],
          .top1_agreement = EstimateOf(samples.agreement)};
}

absl::StatusOr<Sessions> OpenSessions(const KvEvalOptions& options) {
  Sessions sessions;
  for (const NamedPolicy& policy : kPolicies) {
    ASSIGN_OR_RETURN(auto session,
                     KvEvalSession::Open(options.model, options.threads, options.windows,
                                         options.context + options.continuation, policy.policy));
    sessions.push_back(std::move(session));
  }
  return sessions;
}

}  // namespace

absl::StatusOr<WeightsEvalReport> RunWeightsEval(
    const KvEvalOptions& options, const std::function<void(const std::string&)>& progress) {
  const int64_t length = int64_t{options.context} + options.continuation;
  if (options.continuation < 2) return InvalidArgument("continuation must be at least 2 tokens");
  ASSIGN_OR_RETURN(const Sessions sessions, OpenSessions(options));
  if (length > sessions[0]->max_position()) {
    return InvalidArgument("context and continuation have {} tokens, the model takes {}", length,
                           sessions[0]->max_position());
  }
  ASSIGN_OR_RETURN(const std::vector<uint32_t> text,
                   TokensOf(sessions[0]->tokenizer(), options.text));
  if (std::ssize(text) < length) {
    return InvalidArgument("{} has {} tokens, a window takes {}", options.text, text.size(),
                           length);
  }
  const TextWindows windows = DrawTextWindows(text, options);
  const std::vector<double> zeros(windows.size());
  std::vector<WindowSamples> samples(sessions.size(), {zeros, zeros, zeros, {}});
  for (size_t m = 0; m < sessions.size(); ++m) {
    progress(fmt::format("{}: contexts", kPolicies[m].name));
    for (size_t w = 0; w < windows.size(); ++w) {
      RETURN_IF_ERROR(
          sessions[m]->Prefill(static_cast<int32_t>(w),
                               std::span(windows[w]).first(static_cast<size_t>(options.context))));
    }
  }
  progress("scoring continuations");
  for (int32_t position = options.context; position + 1 < length; ++position) {
    RETURN_IF_ERROR(ScoreStep(options, sessions, windows, position, samples));
  }
  WeightsEvalReport report{
      .options = options, .tokens = std::ssize(windows) * (options.continuation - 1), .rows = {}};
  for (size_t m = 0; m < sessions.size(); ++m) {
    report.rows.push_back(QualityOf(kPolicies[m], *sessions[m], samples[0], samples[m]));
  }
  return report;
}

std::string ToJson(const WeightsEvalReport& report) {
  const auto estimate = [](const Estimate& e) {
    return nlohmann::json{{"mean", e.mean}, {"half_width", e.half_width}};
  };
  nlohmann::json rows = nlohmann::json::array();
  for (const WeightsQuality& row : report.rows) {
    rows.push_back({{"weights", row.weights},
                    {"form", row.form},
                    {"bits_per_weight", row.bits_per_weight},
                    {"perplexity", row.perplexity},
                    {"perplexity_change", estimate(row.perplexity_change)},
                    {"divergence", estimate(row.divergence)},
                    {"divergence_p99", row.divergence_p99},
                    {"top1_agreement", estimate(row.top1_agreement)}});
  }
  return nlohmann::json{{"model", report.options.model}, {"tokens", report.tokens}, {"rows", rows}}
      .dump(2);
}

std::string ToText(const WeightsEvalReport& report) {
  std::string text = fmt::format("{}, {} tokens\n", report.options.model, report.tokens);
  text += fmt::format("{:<11} {:>5} {:>11} {:>18} {:>21} {:>9} {:>8}\n", "weights", "bits",
                      "perplexity", "change, %", "KL", "KL, 99th", "top-1");
  for (const WeightsQuality& row : report.rows) {
    text += fmt::format(
        "{:<11} {:>5.2f} {:>11.4f} {:>+8.3f} +- {:>6.3f} {:>9.6f} +- {:>8.6f} {:>9.5f} {:>7.2f}%\n",
        row.weights, row.bits_per_weight, row.perplexity, 100 * row.perplexity_change.mean,
        100 * row.perplexity_change.half_width, row.divergence.mean, row.divergence.half_width,
        row.divergence_p99, 100 * row.top1_agreement.mean);
  }
  return text;
}

}  // namespace penstock
