#include "model/check/blend_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <span>
#include <vector>

#include "kernels/blend/move_tokens.h"
#include "kernels/kv_rows.h"
#include "kernels/page_copier.h"

namespace penstock {
namespace {

// The prompt: leading tokens, others, and a part of it that was computed behind the leading tokens
// alone, in pieces that are blended, and a question. No border of these is one of pages.
constexpr int32_t kLeading = 5, kOthers = 21, kPiece = 20, kPieces = 2, kQuestion = 6;
constexpr int32_t kPart = kPieces * kPiece;
constexpr int32_t kBegin = kLeading + kOthers, kEnd = kBegin + kPart;
constexpr int32_t kTokens = kEnd + kQuestion;
// The tokens of each piece with a value that is far from the computed one. Without deviations the
// first token of a piece is chosen, so it is among them.
constexpr std::array<std::array<int32_t, 4>, kPieces> kMarked = {{{0, 6, 7, 19}, {0, 9, 13, 18}}};
constexpr int32_t kMarks = kPieces * static_cast<int32_t>(kMarked[0].size());
constexpr float kMark = 1024;  // exact in bf16; computed values are about 2
constexpr int32_t kLayers = 4;
// The most elements of a row, twice as many as a block of threads copies at once.
constexpr int32_t kRowMax = 2048;
// The tables of a runner: the part behind the leading tokens, the prompt, and in the reference the
// prompt of the checked runner.
enum Table : uint8_t { kAlone, kPrompt, kPromptOfChecked };
constexpr int kTables = 3;
// Largest allowed RMS of the difference of a row or of logits relative to the CPU's. Rounding
// yields 0.03, and a wrong kernel about 1.
constexpr double kComputedMax = 0.15;
// The same of a key that was rotated and rounded once, and of the deviation of a piece. Rounding
// yields 0.003, and a rotation by one position more about 0.2.
constexpr double kRotatedMax = 0.03;

absl::Status WrongBlend(std::string_view what) {
  return FailedPrecondition("a small model is blended wrongly: {}", what);
}

std::vector<uint32_t> TokensOfPrompt(int32_t vocab) {
  std::vector<uint32_t> tokens;
  for (int32_t i = 0; i < kTokens; ++i) {
    tokens.push_back(static_cast<uint32_t>((i * i * 7 + i * 3 + 1) % vocab));
  }
  return tokens;
}

bool IsMarked(int32_t position) {
  if (position < kBegin || position >= kEnd) return false;
  const int32_t token = position - kBegin;
  return std::ranges::count(kMarked[static_cast<size_t>(token / kPiece)], token % kPiece) > 0;
}

// The results of a blend.
struct Blend {
  std::vector<float> logits;
  std::array<BlendedTokens, kPieces> pieces;
};

// One runner that blends the prompt.
class BlendTrial {
 public:
  explicit BlendTrial(const CheckedRunner& of) : runner_(of.runner), pages_(of.pages) {
    const int64_t each = pages_.layout.BlocksFor(kTokens);
    for (int t = 0; t < kTables; ++t) {
      // The blocks of a table are neither contiguous nor ascending.
      for (int64_t i = each; i-- > 0;) tables_[t].push_back(static_cast<uint32_t>(i * kTables + t));
    }
    prompt_ = TokensOfPrompt(runner_.vocab());
  }

  const PagedKv& pages() const { return pages_; }
  std::span<const uint32_t> table(Table which) const { return tables_[which]; }

  // Overwrites the prompt's pages, which may have what an earlier check left, with NaN.
  void Forget() {
    const size_t bytes = pages_.layout.PayloadBytes();
    const std::vector<std::byte> host(bytes * tables_[kPrompt].size(), std::byte{0xff});
    WritePages(pages_, tables_[kPrompt], 0, bytes, host.data());
  }

  // Computes leading tokens and part.
  absl::Status ComputeAlone() {
    std::vector<uint32_t> tokens(prompt_.begin(), prompt_.begin() + kLeading);
    tokens.insert(tokens.end(), prompt_.begin() + kBegin, prompt_.begin() + kEnd);
    return Step({{.tokens = tokens, .blocks = tables_[kAlone], .prompt = true}}).status();
  }

  // Moves both to the prompt: the leading tokens stay at their positions.
  void Move() {
    Move(0, 0, kLeading);
    Move(kLeading, kBegin, kPart);
  }

  // Computes what the prompt has between these.
  absl::Status ComputeOthers() { return Step({PartOf(kLeading, kBegin)}).status(); }

  // Blends the part, `recompute` tokens of each piece, beside the question.
  absl::StatusOr<Blend> BlendPart(int32_t recompute) {
    Blend blend;
    std::vector<SequenceStep> steps = {PartOf(kEnd, kTokens)};
    for (int32_t i = 0; i < kPieces; ++i) {
      BlendedTokens& piece = blend.pieces[static_cast<size_t>(i)];
      piece = {.recompute = recompute, .deviation_max = std::numeric_limits<float>::infinity()};
      steps.push_back(PartOf(kBegin + i * kPiece, kBegin + (i + 1) * kPiece));
      steps.back().blended = &piece;
    }
    ASSIGN_OR_RETURN(blend.logits, Step(steps));
    return blend;
  }

  // Takes the pages of another trial's table.
  void Take(Table table, const BlendTrial& from, Table from_table) {
    const size_t bytes = pages_.layout.PayloadBytes();
    std::vector<std::byte> host(bytes * tables_[table].size());
    ReadPages(from.pages_, from.tables_[from_table], 0, bytes, host.data());
    WritePages(pages_, tables_[table], 0, bytes, host.data());
  }

  // The keys or values of a position in one layer, of all heads, in the host's pages.
  std::vector<float> Row(Table table, int32_t layer, KvPlane plane, int32_t position) const {
    const auto dims = static_cast<size_t>(pages_.layout.head_dim);
    std::vector<Bf16> row(dims);
    std::vector<float> values;
    for (int32_t head = 0; head < pages_.layout.kv_heads; ++head) {
      cpu::LoadKvRows(pages_, RowAt(table, layer, head, plane, position), 1, row.data());
      std::ranges::transform(row, std::back_inserter(values), ToFloat);
    }
    return values;
  }

  // Marks the prompt's marked tokens in the host's pages, each in another place of its values, in
  // the checked layer and behind it.
  void Mark() {
    int32_t mark = 0;
    for (int32_t position = kBegin; position < kEnd; ++position) {
      if (!IsMarked(position)) continue;
      for (int32_t layer = kCheckedLayer; layer < pages_.layout.layers; ++layer) {
        MarkRow(layer, position, mark);
      }
      ++mark;
    }
  }

 private:
  SequenceStep PartOf(int32_t begin, int32_t end) const {
    return {.tokens = std::span(prompt_).subspan(static_cast<size_t>(begin),
                                                 static_cast<size_t>(end - begin)),
            .position = begin,
            .blocks = tables_[kPrompt],
            .prompt = true,
            .wants_logits = end == kTokens};
  }

  // The logits of the first of `steps`, if it wants them.
  absl::StatusOr<std::vector<float>> Step(const std::vector<SequenceStep>& steps) {
    const int64_t wanted = steps.front().wants_logits ? 1 : 0;
    std::vector<float> logits(static_cast<size_t>(wanted * runner_.vocab()));
    RETURN_IF_ERROR(runner_.Step(
        {.sequences = steps, .kv = pages_, .logits = {logits.data(), {wanted, runner_.vocab()}}}));
    return logits;
  }

  void Move(int32_t from, int32_t to, int32_t tokens) {
    MoveTokens(*runner_.key_rotations(), {.kv = pages_,
                                          .from = tables_[kAlone],
                                          .to = tables_[kPrompt],
                                          .from_position = from,
                                          .to_position = to,
                                          .tokens = tokens});
  }

  KvRowsAt RowAt(Table table, int32_t layer, int32_t head, KvPlane plane, int32_t position) const {
    const int32_t page = pages_.layout.block_tokens;
    return {.block = tables_[table][static_cast<size_t>(position / page)],
            .layer = layer,
            .kv_head = head,
            .plane = plane,
            .slot = position % page};
  }

  // The first mark is in the first element of a row and the last one in its last eight, and every
  // place among eight elements, which a thread reads at once, has one.
  void MarkRow(int32_t layer, int32_t position, int32_t mark) {
    const KvLayout& layout = pages_.layout;
    const int32_t head = mark * (layout.kv_heads - 1) / (kMarks - 1);
    const int32_t eight = mark * (layout.head_dim / 8 - 1) / (kMarks - 1);
    const KvRowsAt at = RowAt(kPrompt, layer, head, KvPlane::kValues, position);
    auto* row = reinterpret_cast<Bf16*>(pages_.Layer(at.block, layer) +
                                        layout.CodesAt(head, at.plane, at.slot));
    row[8 * eight + mark % 8] = ToBf16(kMark);
  }

  ModelRunner& runner_;
  const PagedKv pages_;
  std::array<std::vector<uint32_t>, kTables> tables_;
  std::vector<uint32_t> prompt_;
};

// The keys or values of one position of the prompt in one layer.
struct RowOfPrompt {
  int32_t layer = 0;
  KvPlane plane = KvPlane::kKeys;
  int32_t position = 0;
};

// How much such a row may differ from the reference's; 0: not in a bit.
using RowLimit = double (*)(const RowOfPrompt& row);

// Compares a row that `reference` has of the checked runner with its own.
absl::Status CompareRow(const BlendTrial& reference, const RowOfPrompt& row, double limit) {
  const auto got = reference.Row(kPromptOfChecked, row.layer, row.plane, row.position);
  const auto want = reference.Row(kPrompt, row.layer, row.plane, row.position);
  const double off = got == want ? 0 : Deviation(got, want);
  if (off <= limit) return absl::OkStatus();
  return WrongBlend(fmt::format(
      "{} of position {} in layer {} are {:.2g} of their size off the CPU's, {} may be",
      row.plane == KvPlane::kKeys ? "keys" : "values", row.position, row.layer, off, limit));
}

// Compares the rows of the prompt's positions [begin, end) in both runners' pages.
absl::Status CompareRows(const BlendTrial& trial, BlendTrial& reference, int32_t begin, int32_t end,
                         RowLimit limit) {
  reference.Take(kPromptOfChecked, trial, kPrompt);
  for (int32_t layer = 0; layer < reference.pages().layout.layers; ++layer) {
    for (const KvPlane plane : {KvPlane::kKeys, KvPlane::kValues}) {
      for (int32_t position = begin; position < end; ++position) {
        const RowOfPrompt row{.layer = layer, .plane = plane, .position = position};
        RETURN_IF_ERROR(CompareRow(reference, row, limit(row)));
      }
    }
  }
  return absl::OkStatus();
}

double MovedLimit(const RowOfPrompt& row) {
  return row.plane == KvPlane::kKeys && row.position >= kBegin ? kRotatedMax : 0;
}

// Positions before the part, and in layers behind the checked one those that are not chosen, stay
// as they were.
double BlendedLimit(const RowOfPrompt& row) {
  const bool chosen = row.layer <= kCheckedLayer || IsMarked(row.position);
  const bool computed = row.position >= kEnd || (row.position >= kBegin && chosen);
  return computed ? kComputedMax : 0;
}

// Both move the same tokens. Leaves the prompt's pages, with marks and what comes before the part,
// the same in both.
absl::Status CheckMoved(BlendTrial& trial, BlendTrial& reference) {
  RETURN_IF_ERROR(trial.ComputeAlone());
  reference.Take(kAlone, trial, kAlone);
  trial.Forget();
  trial.Move();
  reference.Move();
  RETURN_IF_ERROR(CompareRows(trial, reference, 0, kLeading, MovedLimit));
  RETURN_IF_ERROR(CompareRows(trial, reference, kBegin, kEnd, MovedLimit));
  RETURN_IF_ERROR(trial.ComputeOthers());
  reference.Take(kPrompt, trial, kPrompt);
  reference.Mark();
  trial.Take(kPrompt, reference, kPrompt);
  return absl::OkStatus();
}

absl::Status CheckDeviations(const Blend& got, const Blend& want) {
  for (int32_t i = 0; i < kPieces; ++i) {
    const BlendedTokens& ours = got.pieces[i];
    const BlendedTokens& theirs = want.pieces[i];
    const double off = std::abs(ours.deviation - theirs.deviation) / theirs.deviation;
    if (off <= kRotatedMax && ours.recomputed == theirs.recomputed) continue;
    return WrongBlend(fmt::format(
        "piece {} deviates by {:.3g} with {} tokens recomputed, on the CPU by {:.3g} with {}", i,
        ours.deviation, ours.recomputed, theirs.deviation, theirs.recomputed));
  }
  return absl::OkStatus();
}

// The pages have what the same blend computes.
absl::Status CheckAgain(const Blend& first, BlendTrial& trial) {
  ASSIGN_OR_RETURN(const Blend again, trial.BlendPart(1));
  for (const BlendedTokens& piece : again.pieces) {
    if (piece.deviation == 0 && piece.recomputed == 1) continue;
    return WrongBlend(
        fmt::format("the same values deviate by {:.3g} from each other", piece.deviation));
  }
  if (again.logits == first.logits) return absl::OkStatus();
  return WrongBlend("the same blend has other logits when it is made again");
}

}  // namespace

ModelConfig SmallBlendedModelLike(const ModelConfig& config) {
  ModelConfig small = SmallModelLike(config, 1);
  small.layers = kLayers;
  const int32_t heads = small.heads;
  small.kv_heads = std::clamp(config.kv_heads, small.kv_heads, kRowMax / small.head_dim);
  small.heads = (heads + small.kv_heads - 1) / small.kv_heads * small.kv_heads;
  const auto repeat = [](auto& of_layers) {
    for (size_t i = 0; !of_layers.empty() && of_layers.size() < kLayers; ++i) {
      of_layers.push_back(of_layers[i]);
    }
  };
  repeat(small.layer_rope);
  repeat(small.experts.dense);
  return small;
}

int64_t BlendCheckBlocks(const KvLayout& layout) { return kTables * layout.BlocksFor(kTokens); }

int64_t BlendCheckTokens() { return kPart + kQuestion; }

absl::Status CheckBlends(const CheckedRunner& checked, const CheckedRunner& reference) {
  if (!checked.runner.key_rotations()) return absl::OkStatus();
  BlendTrial trial(checked), other(reference);
  RETURN_IF_ERROR(CheckMoved(trial, other));
  const auto recompute = static_cast<int32_t>(kMarked[0].size());
  ASSIGN_OR_RETURN(const Blend got, trial.BlendPart(recompute));
  ASSIGN_OR_RETURN(const Blend want, other.BlendPart(recompute));
  RETURN_IF_ERROR(CheckDeviations(got, want));
  RETURN_IF_ERROR(CompareRows(trial, other, 0, kTokens, BlendedLimit));
  const double off = Deviation(got.logits, want.logits);
  if (!(off < kComputedMax)) {
    return WrongBlend(
        fmt::format("logits are {:.2g} of their size off the CPU's, {} may be", off, kComputedMax));
  }
  return CheckAgain(got, trial);
}

}  // namespace penstock
