#include "lab/eval/kv_eval.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "lab/eval/kv_eval_session.h"
#include "lab/eval/logit_statistics.h"
#include "lab/eval/recall_question.h"

namespace penstock {
namespace {

using Windows = std::vector<std::vector<uint32_t>>;  // equally long

// Of each distance, a value for each prompt: 1 if the pass key was told whole, else 0.
using Answers = std::map<int32_t, std::vector<double>>;

// The samples of one codec, a value per window.
struct Gathered {
  std::vector<double> nats, exact_nats, divergence, agreement, same;
  std::vector<double> divergences;  // a value per token
  double whole = 0;                 // generations without a difference
  PageDamage damage;
  Answers told, told_later;
};

class Evaluation {
 public:
  Evaluation(const KvEvalOptions& options, KvEvalSession& session, std::vector<uint32_t> text)
      : options_(options), session_(session), text_(std::move(text)) {}

  // The text's windows of one seed: scored and generated from.
  absl::Status Score(uint64_t seed, const std::vector<JudgedCodec>& codecs,
                     std::vector<Gathered>& gathered) {
    const Windows windows = DrawWindows(seed);
    for (size_t i = 0; i < windows.size(); ++i) {
      RETURN_IF_ERROR(
          session_.Prefill(static_cast<int32_t>(i), std::span(windows[i]).first(Context())));
    }
    // The exact continuation, whose KV goes behind the context in the exact pages only.
    std::vector<std::vector<float>> exact;
    RETURN_IF_ERROR(Continue(true, windows, exact));
    Windows generated;
    RETURN_IF_ERROR(Generate(true, windows, generated));
    for (size_t c = 0; c < codecs.size(); ++c) {
      ASSIGN_OR_RETURN(const PageDamage damage,
                       session_.Compress(codecs[c], std::ssize(windows), options_.context));
      AddDamage(damage, gathered[c].damage);
      std::vector<std::vector<float>> logits;
      RETURN_IF_ERROR(Continue(false, windows, logits));
      Compare(windows, exact, logits, gathered[c]);
      if (codecs[c].EvictsAnswer()) {  // Continue has compacted the pages.
        RETURN_IF_ERROR(
            session_.Compress(codecs[c], std::ssize(windows), options_.context).status());
      }
      Windows again;
      RETURN_IF_ERROR(Generate(false, windows, again));
      for (size_t w = 0; w < windows.size(); ++w) {
        const auto differs =
            std::mismatch(generated[w].begin(), generated[w].end(), again[w].begin());
        const auto same = differs.first - generated[w].begin();
        gathered[c].same.push_back(static_cast<double>(same));
        gathered[c].whole += differs.first == generated[w].end() ? 1 : 0;
      }
    }
    return absl::OkStatus();
  }

  // Numbers told after `distance` tokens of text.
  absl::Status Recall(int32_t distance, const std::vector<JudgedCodec>& codecs,
                      std::vector<Gathered>& gathered) {
    std::mt19937_64 engine(static_cast<uint64_t>(distance) * 1000003);
    for (int32_t i = 0; i < options_.prompts; ++i) {
      ASSIGN_OR_RETURN(const RecallQuestion question,
                       MakeRecallQuestion(options_.codes ? RecallTask::kCode : RecallTask::kPassKey,
                                          distance, session_.tokenizer(), text_, engine));
      RETURN_IF_ERROR(session_.Prefill(0, question.prompt));
      ASSIGN_OR_RETURN(const bool told, Tells(true, question.prompt.size() - 1,
                                              question.prompt.back(), question.answer));
      exact_told_[distance].push_back(told ? 1 : 0);
      for (size_t c = 0; c < codecs.size(); ++c) {
        RETURN_IF_ERROR(codecs[c].BehindPrompt()
                            ? RecallBehind(question, codecs[c], distance, gathered[c])
                            : RecallCompressed(question, codecs[c], distance, gathered[c]));
      }
    }
    return absl::OkStatus();
  }

  const Answers& exact_told() const { return exact_told_; }

 private:
  size_t Context() const { return static_cast<size_t>(options_.context); }
  size_t Continuation() const { return static_cast<size_t>(options_.continuation); }

  Windows DrawWindows(uint64_t seed) const {
    std::mt19937_64 engine(seed);
    Windows windows;
    const size_t size = Context() + Continuation() + 1;
    for (int32_t i = 0; i < options_.windows; ++i) {
      const size_t at = engine() % (text_.size() - size);
      windows.emplace_back(text_.begin() + static_cast<long>(at),
                           text_.begin() + static_cast<long>(at + size));
      if (session_.tokenizer().bos_id()) windows.back()[0] = *session_.tokenizer().bos_id();
    }
    return windows;
  }

  // logits[step] for the tokens of the continuation but the last, [windows][vocab] each.
  absl::Status Continue(bool exact, const Windows& windows,
                        std::vector<std::vector<float>>& logits) {
    for (size_t step = 0; step < Continuation(); ++step) {
      std::vector<uint32_t> tokens;
      for (const auto& window : windows) tokens.push_back(window[Context() + step]);
      logits.emplace_back();
      RETURN_IF_ERROR(
          session_.Step(exact, static_cast<int32_t>(Context() + step), tokens, logits.back()));
    }
    return absl::OkStatus();
  }

  // Greedily, from the continuation's first token on.
  absl::Status Generate(bool exact, const Windows& windows, Windows& generated) {
    std::vector<uint32_t> tokens;
    for (const auto& window : windows) tokens.push_back(window[Context()]);
    generated.assign(windows.size(), {});
    std::vector<float> logits;
    for (size_t step = 0; step < Continuation(); ++step) {
      RETURN_IF_ERROR(session_.Step(exact, static_cast<int32_t>(Context() + step), tokens, logits));
      for (size_t w = 0; w < windows.size(); ++w) {
        tokens[w] = Best(Row(logits, w));
        generated[w].push_back(tokens[w]);
      }
    }
    return absl::OkStatus();
  }

  std::span<const float> Row(const std::vector<float>& logits, size_t row) const {
    const auto vocab = static_cast<size_t>(session_.vocab());
    return std::span(logits).subspan(row * vocab, vocab);
  }

  void Compare(const Windows& windows, const std::vector<std::vector<float>>& exact,
               const std::vector<std::vector<float>>& other, Gathered& gathered) const {
    for (size_t w = 0; w < windows.size(); ++w) {
      double nats = 0, exact_nats = 0, divergence = 0, agreement = 0;
      for (size_t step = 0; step < Continuation(); ++step) {
        const std::span<const float> p = Row(exact[step], w), q = Row(other[step], w);
        const uint32_t next = windows[w][Context() + step + 1];
        nats += LogSum(q) - q[next];
        exact_nats += LogSum(p) - p[next];
        gathered.divergences.push_back(Divergence(p, q));
        divergence += gathered.divergences.back();
        agreement += Best(p) == Best(q) ? 1 : 0;
      }
      const auto count = static_cast<double>(Continuation());
      gathered.nats.push_back(nats / count);
      gathered.exact_nats.push_back(exact_nats / count);
      gathered.divergence.push_back(divergence / count);
      gathered.agreement.push_back(agreement / count);
    }
  }

  static void AddDamage(const PageDamage& more, PageDamage& damage) {
    damage.bits += more.bits;
    damage.elements += more.elements;
    damage.key_error += more.key_error;
    damage.key_norm += more.key_norm;
    damage.value_error += more.value_error;
    damage.value_norm += more.value_norm;
    damage.deviation = std::max(damage.deviation, more.deviation);
  }

  // Prompts differ in length by a few tokens: each goes alone. A question is in no document.
  absl::Status RecallCompressed(const RecallQuestion& question, const JudgedCodec& codec,
                                int32_t distance, Gathered& gathered) {
    const size_t context = question.prompt.size() - 1;
    session_.SetPrompt(0, std::span(question.prompt).first(context));
    const size_t compressed = codec.blend ? question.asked_at : context;
    RETURN_IF_ERROR(session_.Compress(codec, 1, static_cast<int32_t>(compressed)).status());
    ASSIGN_OR_RETURN(const bool told,
                     Tells(false, context, question.prompt.back(), question.answer));
    gathered.told[distance].push_back(told ? 1 : 0);
    return absl::OkStatus();
  }

  // As workers evict and select: behind the whole prompt, so the answer's first token is that of
  // whole KV, or behind a first turn that does not have the question yet. Where the answer is
  // evicted, the pass key comes as tokens of the answer, too.
  absl::Status RecallBehind(const RecallQuestion& question, const JudgedCodec& codec,
                            int32_t distance, Gathered& gathered) {
    const std::vector<uint32_t>& prompt = question.prompt;
    const std::span<const uint32_t> answer(question.answer);
    session_.SetPrompt(0, prompt);
    const auto tokens = static_cast<int32_t>(prompt.size());
    if (codec.pages) {
      RETURN_IF_ERROR(session_.Compress({.name = {}, .pages = codec.pages}, 1, tokens).status());
    }
    ASSIGN_OR_RETURN(bool told,
                     Tells(!codec.pages, prompt.size() - 1, prompt.back(), answer.first(1)));
    RETURN_IF_ERROR(session_.Compress(codec, 1, tokens).status());
    if (told) {
      ASSIGN_OR_RETURN(told, Tells(false, prompt.size(), answer.front(), answer.subspan(1)));
    }
    gathered.told[distance].push_back(told ? 1 : 0);
    const size_t turn = codec.EvictsAnswer() ? question.stated_at : question.asked_at;
    session_.SetPrompt(0, std::span(prompt).first(turn));
    RETURN_IF_ERROR(session_.Compress(codec, 1, static_cast<int32_t>(turn)).status());
    std::vector<float> logits;
    for (size_t at = turn; at + 1 < prompt.size(); ++at) {
      RETURN_IF_ERROR(
          session_.Step(false, static_cast<int32_t>(at), std::span(prompt).subspan(at, 1), logits));
    }
    ASSIGN_OR_RETURN(const bool later, Tells(false, prompt.size() - 1, prompt.back(), answer));
    gathered.told_later[distance].push_back(later ? 1 : 0);
    return absl::OkStatus();
  }

  // True if every token of the answer is the likeliest one behind `token` at `position`, and those
  // before it.
  absl::StatusOr<bool> Tells(bool exact, size_t position, uint32_t token,
                             std::span<const uint32_t> answer) {
    std::vector<float> logits;
    for (const uint32_t expected : answer) {
      RETURN_IF_ERROR(
          session_.Step(exact, static_cast<int32_t>(position++), std::span(&token, 1), logits));
      if (Best(logits) != expected) return false;
      token = expected;
    }
    return true;
  }

  const KvEvalOptions& options_;
  KvEvalSession& session_;
  const std::vector<uint32_t> text_;
  Answers exact_told_;
};

std::map<int32_t, double> SharesOf(const Answers& answers) {
  std::map<int32_t, double> shares;
  for (const auto& [distance, told] : answers) {
    const auto whole = static_cast<double>(std::count(told.begin(), told.end(), 1.0));
    shares[distance] = whole / static_cast<double>(told.size());
  }
  return shares;
}

// The change over all prompts of all distances, paired.
Estimate ChangeOf(const Answers& exact, const Answers& other) {
  std::vector<double> changes;
  for (const auto& [distance, told] : other) {
    const std::vector<double>& before = exact.at(distance);
    for (size_t i = 0; i < told.size(); ++i) changes.push_back(told[i] - before[i]);
  }
  return changes.empty() ? Estimate() : EstimateOf(changes);
}

KvQuality QualityOf(const JudgedCodec& codec, const Answers& exact_told, Gathered& gathered) {
  std::vector<double> changes;
  double nats = 0;
  for (size_t i = 0; i < gathered.nats.size(); ++i) {
    changes.push_back(gathered.nats[i] - gathered.exact_nats[i]);
    nats += gathered.nats[i] / static_cast<double>(gathered.nats.size());
  }
  const Estimate change = EstimateOf(changes);
  std::sort(gathered.divergences.begin(), gathered.divergences.end());
  KvQuality row;
  row.codec = codec.name;
  row.bits_per_element = gathered.damage.bits / gathered.damage.elements;
  row.perplexity = std::exp(nats);
  row.perplexity_change = {std::expm1(change.mean), change.half_width};
  row.divergence = EstimateOf(gathered.divergence);
  row.divergence_p99 = gathered.divergences[gathered.divergences.size() * 99 / 100];
  row.top1_agreement = EstimateOf(gathered.agreement);
  row.key_error = std::sqrt(gathered.damage.key_error / gathered.damage.key_norm);
  row.value_error = std::sqrt(gathered.damage.value_error / gathered.damage.value_norm);
  if (codec.blend && codec.blend->blend) row.blend_deviation = gathered.damage.deviation;
  row.same_tokens = EstimateOf(gathered.same);
  row.same_generation = gathered.whole / static_cast<double>(gathered.same.size());
  row.recall = SharesOf(gathered.told);
  row.recall_later = SharesOf(gathered.told_later);
  row.recall_change = ChangeOf(exact_told, gathered.told);
  row.recall_later_change = ChangeOf(exact_told, gathered.told_later);
  return row;
}

absl::Status SetDocuments(const KvEvalOptions& options, JudgedCodec& codec) {
  if (!codec.blend) return absl::OkStatus();
  codec.blend->document_tokens = options.document;
  const int32_t behind = options.context - static_cast<int32_t>(kExactTokens);
  const int32_t documents = (behind + options.document - 1) / options.document;
  if (behind > 0 && documents < static_cast<int32_t>(kBlendPartsMax)) return absl::OkStatus();
  return InvalidArgument(
      "--context {} has {} exact tokens and {} documents of --document {} tokens; there must be 1 "
      "to {}",
      options.context, kExactTokens, std::max(documents, 0), options.document, kBlendPartsMax - 1);
}

}  // namespace

absl::StatusOr<KvEvalReport> RunKvEval(const KvEvalOptions& options,
                                       const std::function<void(const std::string&)>& progress) {
  std::vector<JudgedCodec> codecs;
  for (const std::string& name : options.codecs) {
    ASSIGN_OR_RETURN(codecs.emplace_back(), ParseJudgedCodec(name));
    RETURN_IF_ERROR(SetDocuments(options, codecs.back()));
  }
  if (codecs.empty()) codecs = AllJudgedCodecs();
  const int32_t max = options.context + options.continuation + 64;
  ASSIGN_OR_RETURN(const auto session,
                   KvEvalSession::Open(options.model, options.threads, options.windows, max));
  if (options.context + options.continuation > session->max_position()) {
    return InvalidArgument("--context {} and --continuation {} are beyond the model's {} positions",
                           options.context, options.continuation, session->max_position());
  }
  ASSIGN_OR_RETURN(std::vector<uint32_t> text, TokensOf(session->tokenizer(), options.text));
  if (std::ssize(text) < 4 * max) {
    return InvalidArgument("{} has {} tokens, {} are needed", options.text, text.size(), 4 * max);
  }
  Evaluation evaluation(options, *session, std::move(text));
  std::vector<Gathered> gathered(codecs.size());
  for (int32_t seed = 1; seed <= options.seeds; ++seed) {
    progress(fmt::format("text, seed {} of {}", seed, options.seeds));
    RETURN_IF_ERROR(evaluation.Score(static_cast<uint64_t>(seed), codecs, gathered));
  }
  for (int32_t distance = 64; distance + 64 <= options.context; distance *= 2) {
    if (options.prompts == 0) break;
    progress(fmt::format("recall over {} tokens", distance));
    RETURN_IF_ERROR(evaluation.Recall(distance, codecs, gathered));
  }
  KvEvalReport report{.options = options};
  report.recall = SharesOf(evaluation.exact_told());
  for (size_t c = 0; c < codecs.size(); ++c) {
    report.rows.push_back(QualityOf(codecs[c], evaluation.exact_told(), gathered[c]));
    report.rows.back().resident_bytes =
        ResidentBytes(codecs[c], session->layout(), static_cast<uint32_t>(options.context),
                      static_cast<uint32_t>(options.context + options.continuation));
  }
  report.perplexity = std::exp(EstimateOf(gathered.front().exact_nats).mean);
  report.tokens = std::ssize(gathered.front().divergences);
  return report;
}

}  // namespace penstock
