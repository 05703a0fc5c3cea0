#include "lab/eval/kv_eval_session.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "kernels/cpu/kv_quant.h"
#include "kernels/kv_rows.h"
#include "lab/eval/coded_once.h"
#include "prefill_worker/prompt_eviction.h"
#include "worker/engine/page_selection.h"

namespace penstock {
namespace {

constexpr int32_t kChunk = 512;
constexpr char kEvictsNothing[] =
    "the model has sliding windows, attention sinks or latents: nothing can be evicted";

// Plain 4-bit groups: the arithmetic of i4r without the rotation. Returns the bits.
double RoundTripInt4(const KvRun& run, std::vector<Bf16>& values) {
  const KvQuantOps& ops = ActiveKvQuantOps();
  const auto rows = static_cast<int64_t>(values.size() / run.head_dim);
  std::vector<uint8_t> codes(values.size() / 2);
  std::vector<KvGroupParams> params(static_cast<size_t>(rows));
  ops.encode_i4(values.data(), rows, run.head_dim, false, codes.data(), params.data());
  ops.decode_i4(codes.data(), params.data(), rows, run.head_dim, false, values.data());
  return 8.0 * static_cast<double>(codes.size() + params.size() * sizeof(KvGroupParams));
}

absl::StatusOr<double> RoundTrip(const JudgedCodec& codec, KvRun run, const KvCodecContext& context,
                                 std::vector<Bf16>& values) {
  if (!codec.spec) return RoundTripInt4(run, values);
  std::vector<std::byte> encoded(EncodedKvBound(run));
  ASSIGN_OR_RETURN(const size_t used,
                   EncodeKv(*codec.spec, run, context, std::as_bytes(std::span(values)), encoded));
  RETURN_IF_ERROR(DecodeKv(*codec.spec, run, context, std::span(encoded).first(used),
                           std::as_writable_bytes(std::span(values))));
  return 8.0 * static_cast<double>(used);
}

void AddErrors(const KvRun& run, const std::vector<Bf16>& before, const std::vector<Bf16>& after,
               PageDamage& damage) {
  for (size_t i = 0; i < before.size(); ++i) {
    const double x = ToFloat(before[i]), difference = x - ToFloat(after[i]);
    const bool keys = i / run.PieceElements() % run.planes == 0;
    (keys ? damage.key_error : damage.value_error) += difference * difference;
    (keys ? damage.key_norm : damage.value_norm) += x * x;
  }
}

// The means of keys, if the model has them beside it.
absl::Status AddKeyMeans(const std::string& model, Weights& weights) {
  absl::StatusOr<KeyMeans> means = KeyMeans::Load(model, weights.config);
  if (absl::IsNotFound(means.status())) return absl::OkStatus();
  if (!means.ok()) return means.status();
  weights.SetKeyMeans(*std::move(means));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvEvalSession>> KvEvalSession::Open(const std::string& model,
                                                                   int32_t threads,
                                                                   int32_t sequences,
                                                                   int32_t tokens_max,
                                                                   WeightPolicy weights) {
  ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(model, {.policy = weights}));
  RETURN_IF_ERROR(AddKeyMeans(model, loaded.weights));
  std::unique_ptr<KvEvalSession> session(new KvEvalSession(std::move(loaded)));
  ASSIGN_OR_RETURN(session->tokenizer_, Tokenizer::Load(model));
  session->calibration_ = KvCalibration::Load(model);
  session->Allocate(threads, sequences, tokens_max);
  return session;
}

void KvEvalSession::Allocate(int32_t threads, int32_t sequences, int32_t tokens_max) {
  const int32_t cores = static_cast<int32_t>(std::thread::hardware_concurrency());
  pool_ = std::make_unique<ThreadPool>(std::max(1, threads > 0 ? threads : cores));
  runner_ = std::make_unique<TransformerRunner>(model_.weights, Exec{.threads = pool_.get()},
                                                std::max(kChunk, sequences));
  layout_ = runner_->kv_layout();
  sequences_ = sequences;
  table_blocks_ = layout_.BlocksFor(tokens_max);
  blocks_.resize(static_cast<size_t>(table_blocks_ * (sequences + 1)));
  std::iota(blocks_.begin(), blocks_.end(), 0u);
  const size_t part = blocks_.size() * layout_.BlockStride();
  pages_ = Buffer(3 * part);  // the last one: whole prompts in another format
  for (size_t i = 0; i < 2; ++i) {
    kv_[i] = {pages_.as<std::byte>() + i * part, std::ssize(blocks_), layout_};
  }
  prompts_.resize(static_cast<size_t>(sequences));
  evicted_.resize(static_cast<size_t>(sequences));
  scores_.resize(static_cast<size_t>(sequences));
}

std::span<const uint32_t> KvEvalSession::Table(int32_t index) const {
  return std::span(blocks_).subspan(static_cast<size_t>(index * table_blocks_),
                                    static_cast<size_t>(table_blocks_));
}

// The blocks of a table in the second half of a view of twice the blocks.
std::vector<uint32_t> KvEvalSession::InOther(std::span<const uint32_t> table) const {
  std::vector<uint32_t> blocks(table.begin(), table.end());
  for (uint32_t& block : blocks) block += static_cast<uint32_t>(kv_[0].blocks);
  return blocks;
}

absl::Status KvEvalSession::Prefill(int32_t index, std::span<const uint32_t> tokens) {
  SetPrompt(index, tokens);
  return Compute(kv_[0], tokens, 0, Table(index));
}

void KvEvalSession::SetPrompt(int32_t index, std::span<const uint32_t> tokens) {
  prompts_[static_cast<size_t>(index)].assign(tokens.begin(), tokens.end());
}

// Computes the KV of `tokens` from `begin` on.
absl::Status KvEvalSession::Compute(const PagedKv& kv, std::span<const uint32_t> tokens,
                                    size_t begin, std::span<const uint32_t> table) {
  for (size_t at = begin; at < tokens.size(); at += kChunk) {
    const SequenceStep step{
        .tokens = tokens.subspan(at, std::min<size_t>(kChunk, tokens.size() - at)),
        .position = static_cast<int32_t>(at),
        .blocks = table};
    RETURN_IF_ERROR(
        runner_->Step({.sequences = {&step, 1}, .kv = kv, .logits = {nullptr, {0, vocab()}}}));
  }
  return absl::OkStatus();
}

absl::Status KvEvalSession::CheckFormat(const KvPageFormat& format) const {
  const bool windows = layout_.window > 0 || !layout_.group.empty();
  if (layout_.HasLatents() || !HoldsHeads(format.dtype, layout_.head_dim) ||
      (windows && format.span > 0)) {
    return FailedPrecondition("pages of {} do not hold this model's keys and values",
                              KvPageFormatName(format));
  }
  if (format.centred && model_.weights.layers[0].key_means.empty()) {
    return NotFound(
        "pages of {} need the means of the model's keys; `penstock calibrate` measures them",
        KvPageFormatName(format));
  }
  return absl::OkStatus();
}

// With a span a block takes at most twice its bf16 bytes: the memory of both parts behind.
absl::Status KvEvalSession::SetFormat(const KvPageFormat& format) {
  RETURN_IF_ERROR(CheckFormat(format));
  kv_[1].layout = layout_.In(format);
  return absl::OkStatus();
}

// An element of `tokens` tokens. Those of a whole span are in bf16, too.
double KvEvalSession::FormatBits(int32_t tokens) const {
  const KvLayout& layout = kv_[1].layout;
  if (layout.dtype == layout_.dtype) return 16;
  const double bits = 8.0 * static_cast<double>(layout.LayerBytes()) /
                      (2.0 * layout.kv_heads * layout.head_dim * layout.block_tokens);
  return bits + 16.0 * std::min(layout.span, tokens) / tokens;
}

// The whole prompt. In another format as a worker with --kv_format computes it: every token attends
// to pages of the format, its own chunk's too.
absl::Status KvEvalSession::FillDamaged(int32_t index) {
  if (kv_[1].layout.dtype != layout_.dtype) {
    return Compute(kv_[1], prompts_[static_cast<size_t>(index)], 0, Table(index));
  }
  CopySequence(index);
  return absl::OkStatus();
}

void KvEvalSession::CopySequence(int32_t index) {
  for (const uint32_t block : Table(index)) {
    std::memcpy(kv_[1].Block(block), kv_[0].Block(block), layout_.PayloadBytes());
  }
}

std::vector<Bf16> KvEvalSession::ReadBlocks(const PagedKv& kv, int32_t index,
                                            uint32_t count) const {
  const size_t elements = layout_.PayloadBytes() / sizeof(Bf16);
  std::vector<Bf16> values(count * elements);
  for (uint32_t b = 0; b < count; ++b) {
    std::memcpy(values.data() + b * elements, kv.Block(Table(index)[b]), layout_.PayloadBytes());
  }
  return values;
}

absl::Status KvEvalSession::EvictSequence(const KvEviction& eviction, int32_t index,
                                          PageDamage& damage) {
  const std::vector<uint32_t>& prompt = prompts_[static_cast<size_t>(index)];
  const auto tokens = static_cast<uint32_t>(prompt.size());
  const uint32_t evicted = eviction.Evicted(tokens);
  damage.bits +=
      FormatBits(static_cast<int32_t>(tokens)) * static_cast<double>(tokens - evicted) / tokens;
  damage.elements += 1;
  const std::optional<EvictionAttention> attention = runner_->eviction_attention();
  if (!attention) return FailedPrecondition(kEvictsNothing);
  evicted_[static_cast<size_t>(index)] = static_cast<int32_t>(evicted);
  return evicted > 0 ? Evict(eviction, *attention, index) : FillDamaged(index);
}

// The observed tokens are computed once more, for their queries; their KV gets the same bits.
absl::Status KvEvalSession::Evict(const KvEviction& rule, const EvictionAttention& attention,
                                  int32_t index) {
  const std::span<const uint32_t> prompt = prompts_[static_cast<size_t>(index)];
  const bool exact = kv_[1].layout.dtype == layout_.dtype;
  PagedKv both = kv_[exact ? 0 : 1];
  both.blocks *= 2;
  const std::vector<uint32_t> other = InOther(Table(index));
  const std::span<const uint32_t> whole = exact ? Table(index) : std::span(other);
  const std::span<const uint32_t> kept = exact ? std::span(other) : Table(index);
  if (!exact) RETURN_IF_ERROR(Compute(both, prompt, 0, whole));
  PromptEviction eviction(rule, prompt.size());
  size_t end = eviction.Observes(1) ? 0 : prompt.size() - static_cast<size_t>(eviction.observed());
  while (end < prompt.size()) {
    const size_t begin = std::exchange(end, std::min(prompt.size(), end + kChunk));
    const SequenceStep step{.tokens = prompt.subspan(begin, end - begin),
                            .position = static_cast<int32_t>(begin),
                            .blocks = whole};
    const auto observe = [&](int32_t layer, View<const float, 2> queries) {
      eviction.Observe(attention, both,
                       {.layer = layer,
                        .end = static_cast<int32_t>(end),
                        .whole = whole,
                        .kept = kept,
                        .queries = queries});
    };
    RETURN_IF_ERROR(runner_->Step({.sequences = {&step, 1},
                                   .kv = both,
                                   .logits = {nullptr, {0, vocab()}},
                                   .on_queries = observe}));
  }
  return absl::OkStatus();
}

absl::Status KvEvalSession::CheckOracle(PageDamage& damage) const {
  damage.bits += 16;
  damage.elements += 1;
  if (runner_->eviction_attention()) return absl::OkStatus();
  return FailedPrecondition(kEvictsNothing);
}

// As a decode worker before the step of the token at `position`.
void KvEvalSession::CompactWhereDue(int32_t index, int32_t position) {
  if (!eviction_) return;
  const auto i = static_cast<size_t>(index);
  const auto due = static_cast<int32_t>(eviction_->EvictedAt(
      static_cast<uint32_t>(prompts_[i].size()), static_cast<uint32_t>(position)));
  if (evicted_[i] == due) return;
  CompactKv(*runner_->eviction_attention(), kv_[1],
            {.eviction = *eviction_,
             .evicted = evicted_[i],
             .from = Table(index),
             .to = Table(index),
             .scores = scores_[i]});
  evicted_[i] += static_cast<int32_t>(eviction_->slack_tokens);
  PENSTOCK_CHECK_EQ(evicted_[i], due);
}

// As prefill workers: each document is computed behind the leading tokens, and moved to its place;
// then the prompt is computed in order, its documents as blended tokens.
absl::Status KvEvalSession::BlendSequence(const JudgedBlend& judged, int32_t index, int32_t end,
                                          PageDamage& damage) {
  if (!runner_->key_rotations()) {
    return FailedPrecondition(
        "the model has sliding windows, latents, learned positions, multi-token prediction or less "
        "than three layers: nothing can be blended");
  }
  std::vector<uint32_t> bounds = {kLeadingTokens};
  for (auto at = static_cast<int32_t>(kExactTokens); at < end; at += judged.document_tokens) {
    bounds.push_back(static_cast<uint32_t>(at));
  }
  bounds.push_back(static_cast<uint32_t>(end));
  // The prompt's last token, whose logits are needed, is behind the documents.
  ASSIGN_OR_RETURN(PromptParts parts,
                   PartsOf(bounds, static_cast<size_t>(end) + 1, layout_.block_tokens));
  parts.blend = judged.blend.value_or(KvBlend());
  parts.deviation_max = std::numeric_limits<float>::infinity();
  RETURN_IF_ERROR(MoveDocuments(parts, judged.moves_keys, index));
  RETURN_IF_ERROR(BlendDocuments(parts, judged.blend.has_value(), index, damage));
  damage.bits += FormatBits(end);
  damage.elements += 1;
  if (kv_[1].layout.dtype != layout_.dtype) return absl::OkStatus();
  const auto whole = static_cast<uint32_t>(end / layout_.block_tokens);
  const KvRun run = RunOf(layout_, 0, whole, 0, static_cast<uint16_t>(layout_.layers));
  AddErrors(run, ReadBlocks(kv_[0], index, whole), ReadBlocks(kv_[1], index, whole), damage);
  return absl::OkStatus();
}

absl::Status KvEvalSession::MoveDocuments(const PromptParts& parts, bool moves_keys,
                                          int32_t index) {
  KeyRotations rotations = *runner_->key_rotations();
  if (!moves_keys) std::ranges::fill(rotations.layers, -1);
  const std::span<const uint32_t> prompt = prompts_[static_cast<size_t>(index)];
  for (const BlendPart& part : parts.parts) {
    std::vector<uint32_t> alone(prompt.begin(), prompt.begin() + parts.leading);
    alone.insert(alone.end(), prompt.begin() + part.begin, prompt.begin() + part.begin + part.held);
    RETURN_IF_ERROR(Compute(kv_[1], alone, 0, Table(sequences_)));
    MovePart(rotations, kv_[1], parts, part, Table(sequences_), Table(index));
  }
  return absl::OkStatus();
}

// Computes what is in no piece of a document, and blends the pieces; or leaves them as they are.
absl::Status KvEvalSession::BlendDocuments(const PromptParts& parts, bool blends, int32_t index,
                                           PageDamage& damage) {
  const std::span<const uint32_t> prompt = prompts_[static_cast<size_t>(index)];
  size_t at = 0;
  for (BlendPiece& piece : PiecesOf(parts)) {
    const auto begin = static_cast<size_t>(piece.begin), end = static_cast<size_t>(piece.end);
    RETURN_IF_ERROR(Compute(kv_[1], prompt.first(begin), at, Table(index)));
    at = end;
    if (!blends) continue;
    const SequenceStep step{.tokens = prompt.subspan(begin, end - begin),
                            .position = piece.begin,
                            .blocks = Table(index),
                            .blended = &piece.blended};
    RETURN_IF_ERROR(
        runner_->Step({.sequences = {&step, 1}, .kv = kv_[1], .logits = {nullptr, {0, vocab()}}}));
    damage.deviation = std::max(damage.deviation, double{piece.blended.deviation});
  }
  return Compute(kv_[1], prompt, at, Table(index));
}

// All KV is held, and beside it the bounds of the keys of each block, in bf16.
absl::Status KvEvalSession::SelectFrom(int32_t index, PageDamage& damage) {
  if (!runner_->selects_pages()) {
    return FailedPrecondition("the model has sliding windows or latents: nothing can be selected");
  }
  damage.bits += FormatBits(static_cast<int32_t>(prompts_[static_cast<size_t>(index)].size())) +
                 16.0 / layout_.block_tokens;
  damage.elements += 1;
  return FillDamaged(index);
}

PageSelection KvEvalSession::SelectionOf(int32_t index, int32_t position) const {
  const auto tokens = static_cast<uint32_t>(prompts_[static_cast<size_t>(index)].size());
  PageSelection selection = PageSelectionOf(selection_, layout_.block_tokens, tokens);
  selection.checked = position + 1;
  return selection;
}

absl::Status KvEvalSession::CompressSequence(const JudgedCodec& codec, int32_t index,
                                             int32_t tokens, PageDamage& damage) {
  const std::span<const uint32_t> table = Table(index);
  CopySequence(index);
  const auto whole = static_cast<uint32_t>(tokens / layout_.block_tokens);
  KvRun run = RunOf(layout_, 0, whole, 0, static_cast<uint16_t>(layout_.layers));
  run.protected_first = std::min<uint16_t>(kProtectedFirst, static_cast<uint16_t>(whole));
  run.protected_last =
      std::min(ProtectedLast(layout_), static_cast<uint16_t>(whole - run.protected_first));
  const std::vector<Bf16> before = ReadBlocks(kv_[0], index, whole);
  std::vector<Bf16> values = before;
  const KvCodecContext context{.calibration = calibration_.ok() ? &*calibration_ : nullptr};
  ASSIGN_OR_RETURN(const double bits, RoundTrip(codec, run, context, values));
  const size_t elements = values.size() / std::max(1u, whole);
  for (uint32_t b = 0; b < whole; ++b) {
    std::memcpy(kv_[1].Block(table[b]), values.data() + b * elements, layout_.PayloadBytes());
  }
  damage.bits += bits;
  damage.elements += static_cast<double>(values.size());
  AddErrors(run, before, values, damage);
  return absl::OkStatus();
}

// As cgx protects them, the first block and the last 128 tokens are in 8 bits.
absl::Status KvEvalSession::CodeOnce(const KvPageFormat& format, int32_t index, int32_t tokens,
                                     PageDamage& damage) {
  RETURN_IF_ERROR(CheckFormat(format));
  CopySequence(index);
  const auto whole = static_cast<uint32_t>(tokens / layout_.block_tokens);
  const KvRun run = RunOf(layout_, 0, whole, 0, static_cast<uint16_t>(layout_.layers));
  FormatRoundTrip coded(model_.weights, layout_, format);
  FormatRoundTrip fine(model_.weights, layout_, {.dtype = KvDtype::kI8});
  for (uint32_t b = 0; b < whole; ++b) {
    const bool is_protected = b < kProtectedFirst || b + ProtectedLast(layout_) >= whole;
    damage.bits +=
        (is_protected ? fine : coded)
            .Apply(kv_[1], Table(index)[b], static_cast<int32_t>(b) * layout_.block_tokens);
  }
  const std::vector<Bf16> before = ReadBlocks(kv_[0], index, whole);
  damage.elements += static_cast<double>(before.size());
  AddErrors(run, before, ReadBlocks(kv_[1], index, whole), damage);
  return absl::OkStatus();
}

absl::Status KvEvalSession::Damage(const JudgedCodec& codec, int32_t index, int32_t tokens,
                                   PageDamage& damage) {
  if (codec.selection) return SelectFrom(index, damage);
  if (codec.oracle) return CheckOracle(damage);
  if (codec.blend) return BlendSequence(*codec.blend, index, tokens, damage);
  if (codec.eviction) return EvictSequence(*codec.eviction, index, damage);
  if (codec.once) return CodeOnce(*codec.once, index, tokens, damage);
  if (codec.pages) {
    damage.bits += FormatBits(tokens);
    damage.elements += 1;
    return FillDamaged(index);
  }
  return CompressSequence(codec, index, tokens, damage);
}

absl::StatusOr<PageDamage> KvEvalSession::Compress(const JudgedCodec& codec, int32_t sequences,
                                                   int32_t tokens) {
  if (codec.spec && NeedsCalibration(*codec.spec)) RETURN_IF_ERROR(calibration_.status());
  PageDamage damage;
  std::fill(evicted_.begin(), evicted_.end(), 0);
  for (CompactionScores& scores : scores_) scores.Clear();
  selection_ = codec.selection;
  eviction_ = codec.EvictsAnswer() ? codec.eviction : std::nullopt;
  oracle_ = codec.oracle;
  kv_[1].layout = layout_;
  if (codec.pages) RETURN_IF_ERROR(SetFormat(*codec.pages));
  for (int32_t i = 0; i < sequences; ++i) RETURN_IF_ERROR(Damage(codec, i, tokens, damage));
  return damage;
}

absl::Status KvEvalSession::Step(bool exact, int32_t position, std::span<const uint32_t> tokens,
                                 std::vector<float>& logits) {
  if (!exact && oracle_) return StepOracle(position, tokens, logits);
  std::vector<SequenceStep> steps;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!exact) CompactWhereDue(static_cast<int32_t>(i), position);
    steps.push_back(
        {.tokens = tokens.subspan(i, 1),
         .position = position,
         .blocks = Table(static_cast<int32_t>(i)),
         .evicted = exact ? 0 : evicted_[i],
         .selection = exact ? PageSelection() : SelectionOf(static_cast<int32_t>(i), position),
         .wants_logits = true});
  }
  return StepIn(kv_[exact ? 0 : 1], steps, logits, exact ? nullptr : Observer(position));
}

// Adds up the scores of the sequences' next compactions, one token after the other. Null: they need
// none.
std::function<void(int32_t, View<const float, 2>)> KvEvalSession::Observer(int32_t position) {
  if (!eviction_ || CompactionScores::Observed(*eviction_) == 0) return nullptr;
  return [this, position](int32_t layer, View<const float, 2> queries) {
    const auto limit = static_cast<int32_t>(eviction_->limit());
    for (int64_t row = 0; row < queries.dim(0); ++row) {
      const auto i = static_cast<size_t>(row);
      const int32_t held = position + 1 - evicted_[i];
      if (held <= limit - CompactionScores::Observed(*eviction_)) continue;
      scores_[i].Add(*runner_->eviction_attention(), kv_[1], *eviction_,
                     {.layer = layer,
                      .blocks = Table(static_cast<int32_t>(row)),
                      .tokens = held,
                      .queries = {queries.row(row), {1, queries.dim(1)}}});
    }
  };
}

absl::Status KvEvalSession::StepIn(const PagedKv& kv, std::span<const SequenceStep> steps,
                                   std::vector<float>& logits,
                                   std::function<void(int32_t, View<const float, 2>)> on_queries) {
  logits.resize(steps.size() * static_cast<size_t>(vocab()));
  return runner_->Step({.sequences = steps,
                        .kv = kv,
                        .logits = {logits.data(), {std::ssize(steps), vocab()}},
                        .on_queries = std::move(on_queries)});
}

int32_t KvEvalSession::OracleEvicts(size_t index) const {
  const auto prompt = static_cast<int32_t>(prompts_[index].size());
  return std::max(0, prompt - static_cast<int32_t>(oracle_->tokens));
}

// Twice: with exact KV, for the queries, which choose what the other pages get of each layer; and
// with these pages, where the token takes its own slot, the last one.
absl::Status KvEvalSession::StepOracle(int32_t position, std::span<const uint32_t> tokens,
                                       std::vector<float>& logits) {
  std::vector<SequenceStep> steps;
  for (size_t i = 0; i < tokens.size(); ++i) {
    steps.push_back({.tokens = tokens.subspan(i, 1),
                     .position = position,
                     .blocks = Table(static_cast<int32_t>(i)),
                     .wants_logits = true});
  }
  const EvictionAttention attention = *runner_->eviction_attention();
  PagedKv both = kv_[0];
  both.blocks *= 2;
  const auto choose = [&](int32_t layer, View<const float, 2> queries) {
    for (int64_t i = 0; i < queries.dim(0); ++i) {
      const int32_t evicted = OracleEvicts(static_cast<size_t>(i));
      const auto prompt = std::ssize(prompts_[static_cast<size_t>(i)]);
      const std::span<const uint32_t> from = Table(static_cast<int32_t>(i));
      EvictLayer(*attention.evictor,
                 {.keys = {.scoring = KeyScoring::kAttention,
                           .kv = both,
                           .layer = layer,
                           .blocks = from,
                           .tokens = position + 1,
                           .queries = {queries.row(i), {1, queries.dim(1)}},
                           .heads = attention.heads,
                           .scale = attention.scale,
                           .cap = attention.cap,
                           .scores = {}},
                  .rule = {.keep = position + 1 - evicted, .last = position + 1 - prompt},
                  .to = InOther(from)});
    }
  };
  RETURN_IF_ERROR(StepIn(kv_[0], steps, logits, choose));
  for (size_t i = 0; i < steps.size(); ++i) steps[i].evicted = OracleEvicts(i);
  return StepIn(kv_[1], steps, logits, {});
}

}  // namespace penstock
