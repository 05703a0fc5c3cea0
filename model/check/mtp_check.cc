#include "model/check/mtp_check.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "kernels/page_copier.h"

namespace penstock {
namespace {

// Largest allowed RMS of the difference relative to the reference, as CheckRunner's.
constexpr double kGuessMax = 0.15, kFewBitsGuessMax = 0.7;
// A prompt in two chunks, which is deliberately not a whole number of pages.
constexpr size_t kFirstChunk = 30, kPromptTokens = 37, kGuesses = 2;
// Dimensions of embeddings that decide the choice of up to 512 experts.
constexpr int64_t kChoosing = 16;

absl::Status WrongGuess(std::string_view what, double off, double most) {
  return FailedPrecondition(
      "a small model's layer for multi-token prediction is computed wrongly: {} are {:.2g} of "
      "their size off the CPU's, {} may be rounding",
      what, off, most);
}

// The first outputs are the first dimensions of the token's embedding; the others are as they were,
// of the token and of the hidden state.
WeightMatrix ClearProjection(const WeightMatrix& random) {
  PackedMatrix packed(random.outputs(), random.inputs());
  std::vector<float> values(static_cast<size_t>(random.inputs()));
  std::vector<Bf16> row(values.size());
  for (int64_t output = 0; output < random.outputs(); ++output) {
    random.GetRow(output, values.data());
    if (output < kChoosing) {
      values.assign(values.size(), 0.0f);
      values[static_cast<size_t>(output)] = 2;
    }
    std::ranges::transform(values, row.begin(), ToBf16);
    packed.SetRow(output, row.data());
  }
  return WeightMatrix(std::move(packed));
}

struct Guess {
  std::vector<float> logits, hidden;
};
using Guesses = std::array<Guess, kGuesses>;

// One runner that computes a prompt and guesses behind it.
class MtpTrial {
 public:
  explicit MtpTrial(const CheckedRunner& of)
      : runner_(of.runner), pages_(of.pages), state_(static_cast<size_t>(of.runner.hidden_size())) {
    // The blocks are neither contiguous nor ascending.
    for (int64_t i = pages_.layout.BlocksFor(kPromptTokens + kGuesses); i-- > 0;) {
      table_.push_back(static_cast<uint32_t>(2 * i));
    }
    for (uint32_t i = 0; i < kPromptTokens + kGuesses; ++i) {
      tokens_.push_back((i * i * 5 + i * 3 + 2) % static_cast<uint32_t>(runner_.vocab()));
    }
  }

  // Computes the prompt with the layer's keys and values, in pages that have nothing of it before.
  absl::Status Fill() {
    const size_t bytes = pages_.layout.PayloadBytes();
    const std::vector<std::byte> nothing(bytes * table_.size(), std::byte{0xff});  // NaN in bf16
    WritePages(pages_, table_, 0, bytes, nothing.data());
    RETURN_IF_ERROR(FillChunk(0, kFirstChunk));
    return FillChunk(kFirstChunk, kPromptTokens);
  }

  // The layer's outputs for the tokens behind the prompt. All but the first take the layer's own
  // hidden state.
  absl::StatusOr<Guesses> MakeGuesses() {
    Guesses guesses;
    std::span<const float> before = state_;
    for (size_t i = 0; i < kGuesses; ++i) {
      guesses[i] = {.logits = std::vector<float>(static_cast<size_t>(runner_.vocab())),
                    .hidden = std::vector<float>(state_.size())};
      SequenceStep step = PartOf(kPromptTokens + i, kPromptTokens + i + 1);
      step.wants_logits = true;
      step.hidden = guesses[i].hidden;
      step.before = before;
      RETURN_IF_ERROR(
          runner_.mtp()->StepMtp({.sequences = {&step, 1},
                                  .kv = pages_,
                                  .logits = {guesses[i].logits.data(), {1, runner_.vocab()}}}));
      before = guesses[i].hidden;
    }
    return guesses;
  }

  // Takes the pages of the prompt and the hidden state behind it.
  void Take(const MtpTrial& from) {
    const size_t bytes = pages_.layout.PayloadBytes();
    std::vector<std::byte> host(bytes * table_.size());
    ReadPages(from.pages_, from.table_, 0, bytes, host.data());
    WritePages(pages_, table_, 0, bytes, host.data());
    state_ = from.state_;
  }

  const std::vector<float>& state() const { return state_; }  // behind the prompt

 private:
  SequenceStep PartOf(size_t begin, size_t end) const {
    return {.tokens = std::span(tokens_).subspan(begin, end - begin),
            .position = static_cast<int32_t>(begin),
            .blocks = table_};
  }

  absl::Status FillChunk(size_t begin, size_t end) {
    SequenceStep step = PartOf(begin, end);
    step.prompt = step.fills_mtp = true;
    step.hidden = state_;
    if (begin > 0) step.before = state_;
    return runner_.Step({.sequences = {&step, 1}, .kv = pages_, .logits = {}});
  }

  ModelRunner& runner_;
  const PagedKv pages_;
  std::vector<uint32_t> table_, tokens_;
  std::vector<float> state_;
};

absl::Status CompareGuesses(const Guesses& got, const Guesses& want, double most) {
  for (size_t i = 0; i < kGuesses; ++i) {
    const double logits = Deviation(got[i].logits, want[i].logits);
    if (!(logits < most)) return WrongGuess("logits", logits, most);
    const double hidden = Deviation(got[i].hidden, want[i].hidden);
    if (!(hidden < most)) return WrongGuess("hidden states", hidden, most);
  }
  return absl::OkStatus();
}

}  // namespace

void MakeMtpClear(Weights& weights) {
  MtpWeights& mtp = *weights.mtp;
  for (size_t i = 0; i < mtp.norm.size(); ++i) {
    mtp.token_norm[i] *= 0.75f + 0.125f * static_cast<float>(i % 5);
    mtp.hidden_norm[i] *= 0.5f + 0.25f * static_cast<float>(i % 7);
    mtp.norm[i] *= 0.75f + 0.25f * static_cast<float>(i % 3);
  }
  if (weights.config.experts.count > 0) mtp.projection = ClearProjection(mtp.projection);
}

absl::Status CheckMtp(const CheckedRunner& checked, const CheckedRunner& reference) {
  if (checked.runner.mtp() == nullptr) return absl::OkStatus();
  MtpTrial trial(checked), other(reference);
  RETURN_IF_ERROR(trial.Fill());
  RETURN_IF_ERROR(other.Fill());
  const bool few_bits = CodeBits(checked.pages.layout.dtype, KvPlane::kValues) <= 4;
  const double most = few_bits ? kFewBitsGuessMax : kGuessMax;
  const double state = Deviation(trial.state(), other.state());
  if (!(state < most)) return WrongGuess("hidden states of a prompt", state, most);
  ASSIGN_OR_RETURN(const Guesses got, trial.MakeGuesses());
  ASSIGN_OR_RETURN(const Guesses apart, other.MakeGuesses());
  RETURN_IF_ERROR(CompareGuesses(got, apart, most));
  other.Take(trial);
  ASSIGN_OR_RETURN(const Guesses want, other.MakeGuesses());
  return CompareGuesses(got, want, kGuessMax);
}

}  // namespace penstock
