#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/cuda/crc_tables.h"
#include "kernels/cuda/gemm.h"
#include "tests/cuda/cases/attention_case.h"
#include "tests/cuda/cases/blend_case.h"
#include "tests/cuda/cases/eviction_case.h"
#include "tests/cuda/cases/experts_case.h"
#include "tests/cuda/cases/gemm_case.h"
#include "tests/cuda/cases/kv_codec_case.h"
#include "tests/cuda/cases/latents_case.h"
#include "tests/cuda/cases/quantised_case.h"
#include "tests/cuda/cases/row_case.h"
#include "tests/cuda/cases/sample_case.h"
#include "tests/cuda/cases/selection_case.h"
#include "tests/cuda/cases/slab_case.h"
#include "tests/cuda/gpu/suite.h"

namespace penstock::cuda {
namespace {

using enum KvCode;

std::string Name(const AttentionCase& c) {
  static const char* const kNames[] = {"bf16", "f8", "i8", "i4", "l3", "l2"};
  std::string name = kNames[static_cast<int>(c.kv.keys)];
  if (c.kv.values != c.kv.keys) name += std::string("/") + kNames[static_cast<int>(c.kv.values)];
  return name + " d" + std::to_string(c.kv.head_dim) + " group " + std::to_string(c.group) +
         " page " + std::to_string(c.kv.page) + (c.window > 0 ? " window" : "") +
         (c.cap > 0 ? " cap" : "") + (c.sinks ? " sinks" : "") +
         (c.span > 0 ? " span " + std::to_string(c.span) : "") +
         (c.centred_dims >= 0 ? " centred" : "");
}

double Number(bool equal) { return equal ? 0 : NAN; }

constexpr int32_t kRowsOfOracle = 150;  // of a sequence, because the oracle is slow

void CheckAttention(AttentionCase c, bool small, Report& report) {
  c.kv.lengths = small ? std::vector<int32_t>{1, 37} : std::vector<int32_t>{1, 16, 17, 1200, 333};
  const double limit = c.kv.keys == kBf16 ? 5e-3 : 1e-2;
  c.rows.assign(c.kv.lengths.size(), 1);
  const AttentionResult tokens = RunAttention(c);
  report.checks.push_back({"tokens " + Name(c), tokens.deviation.relative, limit});
  AttentionCase again = c;
  again.oracle = false;
  report.checks.push_back({"again " + Name(c), Number(RunAttention(again).bits == tokens.bits), 1});
  const std::vector<uint16_t> first(tokens.bits.begin(),
                                    tokens.bits.begin() + c.kv.kv_heads * c.group * c.kv.head_dim);
  AttentionCase alone = again;
  alone.kv.lengths.resize(1);
  alone.rows.resize(1);
  report.checks.push_back({"alone " + Name(c), Number(RunAttention(alone).bits == first), 1});
  for (size_t i = 0; i < c.rows.size(); ++i) {
    c.rows[i] = std::clamp(c.kv.lengths[i] / 2, 1, kRowsOfOracle);
  }
  const AttentionResult prompts = RunAttention(c);
  report.checks.push_back({"prompts " + Name(c), prompts.deviation.relative, limit});
  c.oracle = false;
  for (const AttentionTiles tiles : {AttentionTiles::kWide, AttentionTiles::kNarrow}) {
    c.tiles = tiles;
    const bool equal = RunAttention(c).bits == prompts.bits;
    const char* kind = tiles == AttentionTiles::kWide ? "wide " : "narrow ";
    report.checks.push_back({kind + Name(c), Number(equal), 1});
  }
}

void CheckAttentions(bool small, Report& report) {
  const std::pair<KvCode, KvCode> kCodes[] = {{kBf16, kBf16}, {kF8, kF8}, {kI8, kI8}, {kI4, kI4},
                                              {kI8, kI4},     {kL3, kL3}, {kL3, kL2}};
  for (const auto& [keys, values] : kCodes) {
    for (const int dim : {64, 128}) {
      AttentionCase c{.kv = {.keys = keys, .values = values, .kv_heads = 2, .head_dim = dim}};
      CheckAttention(c, small, report);
      c.cap = 2;
      c.sinks = true;
      CheckAttention(c, small, report);
      c.cap = 0;
      c.sinks = false;
      if (keys != kBf16) {
        c.span = small ? 64 : 128;
        CheckAttention(c, small, report);
        c.centred_dims = dim;
        CheckAttention(c, small, report);
        c.centred_dims = -1;
        c.span = 0;
      }
      if (small) continue;
      c.kv.page = 32;
      c.window = 200;
      c.group = 16;
      CheckAttention(c, small, report);
      c.group = 1;
      c.kv.value_deviation = 1e-5f;
      CheckAttention(c, small, report);
    }
  }
}

void CheckRows(bool small, Report& report) {
  for (const int hidden : {256, small ? 512 : 8192}) {
    const std::string size = std::to_string(hidden);
    report.checks.push_back(
        {"norm " + size, NormDeviation({.hidden = hidden, .slices = 4}, 1), 6e-3});
    report.checks.push_back({"silu " + size, SiluDeviation(3, hidden, 2, 2), 6e-3});
    report.checks.push_back({"embedding " + size, Number(EmbeddingIsExact(5, hidden, 3)), 1});
    report.checks.push_back({"rows " + size, Number(GatherRowsIsExact(5, hidden, 4)), 1});
    report.checks.push_back({"slices " + size, Number(SumSlicesIsExact(3, hidden, 4, 5)), 1});
  }
  for (const RopeCase& c :
       {RopeCase{.rows = 40, .slices = 3, .norms = true, .bias = true}, RopeCase{.head_dim = 64},
        RopeCase{.head_dim = 64, .rotary_dims = 16}, RopeCase{.rotary_dims = 96, .norms = true},
        RopeCase{.rotary_dims = 0}, RopeCase{.keys = kF8, .values = kF8},
        RopeCase{.keys = kI8, .values = kI8}, RopeCase{.keys = kI4, .values = kI4, .rotated = true},
        RopeCase{.keys = kI8, .values = kI4}, RopeCase{.keys = kL3, .values = kL3, .rotated = true},
        RopeCase{.keys = kL3, .values = kL2, .head_dim = 64, .rotated = true},
        RopeCase{.keys = kI4, .values = kI4, .heads = 4, .rotated = true, .centred = true},
        RopeCase{.keys = kL3,
        .values = kL3,
        .head_dim = 64,
        .heads = 4,
        .rotary_dims = 24,
        .rotated = true,
        .centred = true}}) {
    const RopeDeviation deviation = RunRopeAppend(c);
    report.checks.push_back({"rope queries", deviation.queries, 6e-3});
    report.checks.push_back({"rope centre queries", deviation.centre, 6e-3});
    report.checks.push_back({"rope pages", deviation.kept, 1});
    report.checks.push_back({"rope else", Number(deviation.untouched), 1});
  }
}

// The operations of models that differ from Llama.
void CheckOtherRows(bool small, Report& report) {
  for (const int hidden : {256, small ? 1300 : 8192, small ? 1300 : 16384}) {
    const std::string size = std::to_string(hidden);
    const auto norm = [&](const char* name, NormCase c) {
      c.hidden = hidden;
      c.slices = 4;
      report.checks.push_back({name + size, NormDeviation(c, 1), 6e-3});
    };
    norm("no norm ", {.norm = false});
    norm("layer norm ", {.layer_norm = true, .product_bias = true});
    norm("norm of a product ", {.product_norm = true, .factor = 0.22f});
    norm("norm first ", {.layer_norm = true, .norms_first = true});
    for (const auto kind : {GeluKind::kTanhGate, GeluKind::kTanh, GeluKind::kExact}) {
      report.checks.push_back({"gelu " + size, GeluDeviation(kind, 3, hidden / 8 * 8, 2, 2), 6e-3});
    }
    const WideNormCase wide{.query_width = hidden, .key_width = 256, .slices = 3};
    report.checks.push_back({"norm of all heads " + size, WideHeadNormDeviation(wide, 3), 2e-5});
    report.checks.push_back(
        {"embedding with positions " + size, PlacedEmbeddingDeviation(true, 3, hidden, 4), 1e-6});
    report.checks.push_back(
        {"capped slices " + size, CapSlicesDeviation(0.5f, 30, 3, hidden, 2, 5), 1e-5});
  }
}

void CheckGemm(bool small, Report& report) {
  for (const int rows : {1, 8, 13, 32, 64, 100}) {
    const GemmCase c{.rows = rows, .inputs = small ? 520 : 4096, .outputs = small ? 72 : 1024};
    report.checks.push_back(
        {"skinny gemm " + std::to_string(rows) + " rows", RunGemm(c).relative, 1e-4});
  }
  for (const int rows : {65, 130, 300}) {
    GemmCase c{.rows = rows, .inputs = small ? 1160 : 4096, .outputs = small ? 72 : 1024};
    const GemmResult skinny = RunGemm(c);
    for (const GemmKernel kernel : {GemmKernel::kWide, GemmKernel::kWideAddedUp}) {
      c.kernel = kernel;
      const GemmResult wide = RunGemm(c);
      const std::string name = "wide gemm " + std::to_string(rows) + " rows";
      report.checks.push_back({name, wide.relative, 1e-4});
      report.checks.push_back({name + ", bits", Number(wide.values == skinny.values), 1});
    }
  }
}

void CheckEvictions(bool small, Report& report) {
  const std::pair<KvCode, KvCode> kCodes[] = {{kBf16, kBf16}, {kF8, kF8}, {kI8, kI4}, {kL3, kL2}};
  for (const auto& [keys, values] : kCodes) {
    for (const int dim : {64, 128}) {
      const int32_t tokens = small ? 533 : 2100;  // several splits, and a part of a tile
      EvictionCase c{.kv = {.keys = keys,
                            .values = values,
                            .kv_heads = 2,
                            .head_dim = dim,
                            .lengths = {tokens, tokens}},
                     .observed = small ? 5 : 32};
      const std::string name = Name(AttentionCase{.kv = c.kv, .group = c.group});
      const auto check = [&](const char* what, double got, double limit) {
        report.checks.push_back({what + name, got, limit});
      };
      // Codes are converted to bf16.
      const double sums = keys == kBf16 ? 1e-5 : 5e-3, attention = keys == kBf16 ? 1e-3 : 2e-2;
      check("key norms ", KeyScoreDeviation(KeyScore::kNorm, c), sums);
      check("key differences ", KeyScoreDeviation(KeyScore::kDifference, c), sums);
      check("key attention ", KeyScoreDeviation(KeyScore::kAttention, c), attention);
      check("key attention in parts ", Number(KeyAttentionIsTheSameInParts(c)), 1);
      check("moved slots ", Number(MovedSlotsAreExact(c, tokens * 3 / 4, false)), 1);
      check("moved slots in place ", Number(MovedSlotsAreExact(c, tokens * 3 / 4, true)), 1);
      c.cap = 2;
      check("key attention, cap ", KeyScoreDeviation(KeyScore::kAttention, c), attention);
    }
  }
}

void CheckSelections(bool small, Report& report) {
  const std::pair<KvCode, KvCode> kCodes[] = {{kBf16, kBf16}, {kF8, kF8}, {kI8, kI4}, {kL3, kL2}};
  for (const auto& [keys, values] : kCodes) {
    for (const int dim : {64, 128}) {
      const int32_t longest = small ? 16 * 40 + 3 : 16 * 700 + 3;
      const SelectionCase c{.kv = {.keys = keys,
                                   .values = values,
                                   .kv_heads = 2,
                                   .head_dim = dim,
                                   .lengths = {longest, 16 * 20}},
                            .keep = 16};
      const std::string name = Name(AttentionCase{.kv = c.kv, .group = c.group});
      const SelectionResult result = RunSelection(c);
      const double limit = keys == kBf16 ? 1e-5 : 5e-3;  // codes are converted to bf16
      report.checks.push_back({"bounds of pages " + name, result.bounds, limit});
      report.checks.push_back({"scores of pages " + name, result.scores, limit});
      report.checks.push_back({"chosen pages " + name, Number(result.best), 1});
    }
  }
}

void CheckExperts(bool small, Report& report) {
  const int hidden = small ? 520 : 4096;
  report.checks.push_back({"scores of experts", ScoreDeviation(5, 129, hidden, 1), 1e-5});
  report.checks.push_back({"scores alone", Number(ScoresAreOfTheirRow(5, 20, hidden, 2)), 1});
  const RouteCase routes[] = {
      {.rows = 70, .experts = 128, .per_token = 8},
      {.experts = 512, .per_token = 10, .ties = true},
      {.experts = 60, .per_token = 4, .normalise = false, .shared = true, .shared_gate = true},
      {.experts = 160, .per_token = 8, .sigmoid = true, .choice_bias = true, .scale = 2.5f}};
  for (const RouteCase& c : routes) {
    report.checks.push_back(
        {"choice of " + std::to_string(c.experts) + " experts", RouteDeviation(c), 1e-5});
  }
  report.checks.push_back({"pairs by expert", Number(GroupIsExact(90, 33, 8, 3)), 1});
  const int inputs = small ? 1160 : 4096, outputs = small ? 72 : 1032;
  using enum GroupedKernel;
  for (const GroupedKernel kernel : {kSkinny1, kSkinny2, kSkinny4, kSkinny8, kWide, kChosen}) {
    const bool dense = GroupedIsDense({9, 0, 17, 130, 1}, inputs, outputs, kernel, 4);
    report.checks.push_back(
        {"grouped gemm " + std::to_string(static_cast<int>(kernel)) + ", bits", Number(dense), 1});
  }
  for (const CodeForm& form : AllForms(InputOrder::kOwn)) {
    for (const GroupedKernel kernel : {kSkinny1, kSkinny2, kSkinny4, kSkinny8, kChosen}) {
      const bool dense = GroupedCodesAreDense(form, {9, 0, 17, 130, 1}, inputs, outputs, kernel, 8);
      report.checks.push_back(
          {"grouped " + NameOf(form) + " " + std::to_string(static_cast<int>(kernel)) + ", bits",
           Number(dense), 1});
    }
    const bool expanded = GroupedCodesAreDense(form, {180, 20, 5}, inputs, outputs, kChosen, 9);
    report.checks.push_back({"grouped " + NameOf(form) + ", expanded", Number(expanded), 1});
  }
  report.checks.push_back(
      {"scores with biases", ScoreDeviation(5, 129, hidden, 6, /*bias=*/true), 1e-5});
  report.checks.push_back({"clamped gate", ClampedGateDeviation(9, hidden, 2, true, 7), 6e-3});
  for (const bool bias : {false, true}) {
    const MixCase mix{.rows = 5, .width = hidden, .per_token = 8, .slices = 3, .bias = bias};
    report.checks.push_back(
        {bias ? "mix of experts with biases" : "mix of experts", Number(MixIsExact(mix, 5)), 1});
  }
}

void CheckLatents(bool small, Report& report) {
  for (const int32_t heads : {16, 128}) {
    LatentCase c{.heads = heads, .lengths = {1, 37, small ? 70 : 1200}, .rows = {1, 1, 1}};
    const std::string name = "latents of " + std::to_string(heads) + " heads";
    report.checks.push_back({name + ", tokens", RunLatentAttention(c).deviation.relative, 5e-3});
    c.rows = {1, 20, 30};
    report.checks.push_back({name + ", prompts", RunLatentAttention(c).deviation.relative, 5e-3});
    c.oracle = false;
    c.tiles = AttentionTiles::kWide;
    const std::vector<uint16_t> wide = RunLatentAttention(c).bits;
    c.tiles = AttentionTiles::kNarrow;
    report.checks.push_back({name + ", bits", Number(RunLatentAttention(c).bits == wide), 1});
  }
  for (const int32_t rows : {5, 64, 130}) {
    const HeadProductCase c{
        .heads = small ? 2 : 16, .rows = rows, .outputs = 512, .input_step = 192};
    const std::string name = "heads' products of " + std::to_string(rows) + " rows";
    report.checks.push_back({name, HeadDeviation(c), 8e-3});
    report.checks.push_back({name + ", alone", Number(HeadProductsAreOfTheirRow(c)), 1});
  }
  report.checks.push_back({"norm of latents", LatentNormDeviation(9, 1536, 3, 1), 8e-3});
  report.checks.push_back({"store of latents", LatentAppendDeviation({.rows = 19}), 8e-3});
  report.checks.push_back({"queries of latents", LatentQueriesDeviation({.heads = 16}), 8e-3});
}

void CheckQuantised(bool small, Report& report) {
  for (const InputOrder order : {InputOrder::kOwn, InputOrder::kNatural}) {
    for (const CodeForm& form : AllForms(order)) {
      for (const int rows : {1, 13, 70}) {
        const QuantisedCase c{
            .form = form, .rows = rows, .inputs = small ? 520 : 4104, .outputs = small ? 72 : 280};
        const QuantisedResult result = RunQuantised(c);
        const std::string name = NameOf(form) + ", " + std::to_string(rows) + " rows";
        report.checks.push_back({name, result.relative, 1e-4});
        report.checks.push_back(
            {name + ", weights",
             Number(std::ranges::equal(result.expanded, result.reference, {}, ToFloat, ToFloat)),
             1});
        if (order == InputOrder::kNatural) continue;  // gpu_library_check compares those
        report.checks.push_back({name + ", bits", Number(result.product == result.of_bf16), 1});
      }
    }
  }
}

// The tokens of rows drawn together and one by one, and once more; that they are the CPU's is
// tested on the emulator.
void CheckSample(Report& report) {
  constexpr int32_t kVocabulary = 128256;
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(4 * kVocabulary);
  for (float& logit : logits) logit = normal(random);
  constexpr float kSteepness = 46.1662413f;
  const std::vector<SampleRow> rows = {
      {.logits_row = 0, .steepness = 0},
      {.logits_row = 1, .steepness = kSteepness, .top_k = 50, .random = random()},
      {.logits_row = 2,
       .steepness = kSteepness / 0.7f,
       .top_p = int64_t{1} << 31,
       .random = random()},
      {.logits_row = 3,
       .steepness = kSteepness,
       .top_k = 1000,
       .top_p = 4000000000,
       .min_p_steps = 200,
       .random = 5}};
  const auto together = RunSample(logits, kVocabulary, rows);
  bool equal = together[0].id ==
               static_cast<uint32_t>(
                   std::max_element(logits.begin(), logits.begin() + kVocabulary) - logits.begin());
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<float> own(logits.begin() + i * kVocabulary,
                                 logits.begin() + (i + 1) * kVocabulary);
    SampleRow row = rows[i];
    row.logits_row = 0;
    const SampledRow alone = RunSample(own, kVocabulary, {row})[0];
    equal = equal && alone.id == together[i].id && alone.total_mass == together[i].total_mass;
  }
  report.checks.push_back({"sample", Number(equal), 1});
}

void CheckBlends(bool small, Report& report) {
  for (const BlendCase& c : {BlendCase{.tokens = small ? 20 : 500},
                             BlendCase{.kv_heads = 2, .head_dim = 64, .tokens = 37, .pairs = 12}}) {
    const BlendResult result = RunBlend(c);
    const std::string name = "blend d" + std::to_string(c.head_dim);
    report.checks.push_back({name + ", values", Number(result.values_equal), 1});
    report.checks.push_back({name + ", keys", result.keys, 4e-3});
    report.checks.push_back({name + ", squares", result.squares, 1e-5});
  }
}

void CheckSlabs(Report& report) {
  for (const SlabCase& c :
       {SlabCase{}, SlabCase{.piece_bytes = 2112, .blocks = 37, .block_stride = 4096, .offset = 64},
        SlabCase{.piece_bytes = 65536, .blocks = 64, .block_stride = 131072, .processors = 16}}) {
    const SlabResult gather = RunGather(c), scatter = RunScatter(c);
    report.checks.push_back({"slab gather", Number(gather.equal), 1});
    report.checks.push_back({"slab scatter", Number(scatter.equal), 1});
    uint32_t crc = ~0u;
    for (const std::byte byte : gather.slab) {
      crc ^= static_cast<uint32_t>(byte);
      for (int bit = 0; bit < 8; ++bit) crc = CrcTimesX(crc);
    }
    report.checks.push_back({"slab checksum", Number(gather.checksum == ~crc), 1});
  }
  const SlabPartCase part{.blocks = 17, .layers = 3, .codes_bytes = 8192, .scales_bytes = 256};
  report.checks.push_back({"slab part gather", Number(RunPart(part, false)), 1});
  report.checks.push_back({"slab part scatter", Number(RunPart(part, true)), 1});
}

void CheckKvCodecs(bool small, Report& report) {
  for (const KvCodecCase& c : KvCodecCases()) {
    report.checks.push_back(
        {std::string("codec ") + c.name, Number(RunKvCodec(c.kind) == c.cpu), 1});
    if (small || (c.kind != KvCodecKind::kLx16 && c.kind != KvCodecKind::kLxr)) continue;
    report.checks.push_back(
        {std::string("codec ") + c.name + ", many tiles", Number(RoundTripsManyTiles(c.kind)), 1});
  }
}

}  // namespace

void CheckCorrectness(bool small, Report& report) {
  CheckAttentions(small, report);
  CheckRows(small, report);
  CheckOtherRows(small, report);
  CheckGemm(small, report);
  CheckEvictions(small, report);
  CheckSelections(small, report);
  CheckExperts(small, report);
  CheckLatents(small, report);
  CheckQuantised(small, report);
  report.checks.push_back({"a step as a graph", Number(StepIsTheSameAsAGraph()), 1});
  CheckBlends(small, report);
  CheckSlabs(report);
  CheckKvCodecs(small, report);
  if (!small) CheckSample(report);
}

}  // namespace penstock::cuda
