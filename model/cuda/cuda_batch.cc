#include "model/cuda/cuda_batch.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "model/sampler/token_draw.h"

namespace penstock {
namespace {

// One sequence's rows [first, first + rows) of the batch, at positions from `position` on.
struct Part {
  const SequenceStep* sequence = nullptr;
  int32_t rows = 0;
  int32_t position = 0;
};

cuda::SampleRow ToSampleRow(const DrawSpec& draw, int32_t logits_row) {
  cuda::SampleRow row{.logits_row = logits_row, .top_k = draw.top_k, .random = draw.random};
  if (draw.temperature > 0) row.steepness = Softmax::At(0, draw.temperature).steepness;
  if (draw.top_p < 1) row.top_p = static_cast<int64_t>(FixedShare(draw.top_p));
  if (draw.min_p > 0) row.min_p_steps = MinPSteps(draw.min_p);
  return row;
}

// Rounds up by at most a quarter, so that growing steps have few different sizes.
int64_t RoundUpSize(int64_t size) {
  int64_t unit = 1;
  while (size > 8 * unit) unit *= 2;
  return (size + unit - 1) / unit * unit;
}

CudaAttention Plan(const std::vector<Part>& decodes, const std::vector<Part>& prefills,
                   const KvLayout& layout, const CudaBatch::Options& options) {
  CudaAttention plan;
  for (const auto* parts : {&decodes, &prefills}) {
    for (const Part& part : *parts) {
      plan.table_stride = std::max(plan.table_stride, layout.BlocksFor(part.position + part.rows));
    }
  }
  const auto add_table = [&](const Part& part) {
    const auto blocks = part.sequence->blocks.first(layout.BlocksFor(part.position + part.rows));
    const size_t first = plan.tables.size();
    plan.tables.insert(plan.tables.end(), blocks.begin(), blocks.end());
    plan.tables.resize(first + plan.table_stride);
  };
  for (const Part& part : decodes) {
    plan.lengths.push_back(part.position + 1);
    plan.rows += 1;
    add_table(part);
  }
  for (const Part& part : prefills) {
    plan.prefills.push_back({.first_row = plan.rows, .rows = part.rows, .position = part.position});
    plan.rows += part.rows;
    add_table(part);
  }
  for (const int32_t window : options.windows) {
    plan.decode.push_back(cuda::PlanDecode(plan.lengths, window));
  }
  plan.tiles = cuda::PlanPrefill(plan.prefills, options.group);
  return plan;
}

}  // namespace

CudaBatch::CudaBatch(const StepArgs& args, const Options& options) {
  std::vector<Part> decodes, prefills, last_decodes, last_prefills;
  std::vector<size_t> last_of_decodes, last_of_prefills;  // indices of sequences
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    const SequenceStep& sequence = args.sequences[i];
    const auto rows = static_cast<int32_t>(sequence.tokens.size());
    const bool decode = rows == 1 && !options.exact;
    (decode ? decodes : prefills).push_back({&sequence, rows, sequence.position});
    if (!sequence.wants_last()) continue;
    // A row is computed by the same kernel in every layer.
    (decode ? last_decodes : last_prefills).push_back({&sequence, 1, sequence.position + rows - 1});
    (decode ? last_of_decodes : last_of_prefills).push_back(i);
  }
  const int32_t page = args.kv.layout.block_tokens;
  for (const auto* parts : {&decodes, &prefills}) {
    for (const Part& part : *parts) {
      for (int32_t i = 0; i < part.rows; ++i) {
        const int32_t position = part.position + i;
        tokens.push_back(part.sequence->tokens[i]);
        positions.push_back(position);
        slots.push_back(int64_t{part.sequence->blocks[position / page]} * page + position % page);
      }
      if (part.sequence->wants_last()) {
        last_rows.push_back(static_cast<int32_t>(tokens.size()) - 1);
      }
    }
  }
  last_of_decodes.insert(last_of_decodes.end(), last_of_prefills.begin(), last_of_prefills.end());
  AddOutputs(args.sequences, last_of_decodes);
  block_tokens_ = page;
  all_last = last_rows.size() == tokens.size();
  all = Plan(decodes, prefills, args.kv.layout, options);
  if (!all_last) last = Plan(last_decodes, last_prefills, args.kv.layout, options);
}

bool CudaBatch::paddable() const {
  return all_last && draws.size() <= tokens.size() && all.tiles.size() <= tokens.size();
}

CudaBatchShape CudaBatch::PaddedShape(int32_t rows_max) const {
  const auto rows = static_cast<uint32_t>(all.rows);
  const uint32_t padded = rows <= 8 ? std::bit_ceil(rows) : (rows + 7) / 8 * 8;
  CudaBatchShape shape{.rows = std::min(static_cast<int32_t>(padded), rows_max),
                       .table_stride = RoundUpSize(all.table_stride)};
  for (const cuda::DecodePlan& plan : all.decode) {
    const int64_t items = RoundUpSize(static_cast<int64_t>(plan.items.size()));
    shape.items = std::max(shape.items, static_cast<int32_t>(items));
  }
  if (all.decodes() == 0) return shape;
  const int64_t tokens_max = shape.table_stride * block_tokens_;
  shape.max_splits =
      static_cast<int32_t>((tokens_max + cuda::kSplitTokens - 1) / cuda::kSplitTokens);
  return shape;
}

void CudaBatch::PadTo(const CudaBatchShape& shape) {
  tokens.resize(shape.rows);
  positions.resize(shape.rows);
  slots.resize(shape.rows, -1);
  last_rows.resize(shape.rows);
  draws.resize(shape.rows);  // padding draws belong to no row
  all.PadTo(shape);
}

void CudaAttention::PadTo(const CudaBatchShape& shape) {
  std::vector<uint32_t> padded(shape.rows * shape.table_stride);
  for (int32_t row = 0; row < rows; ++row) {
    std::copy_n(tables.begin() + row * table_stride, table_stride,
                padded.begin() + row * shape.table_stride);
  }
  tables = std::move(padded);
  table_stride = shape.table_stride;
  rows = shape.rows;
  if (decodes() == 0) {
    prefills.resize(shape.rows);
    tiles.resize(shape.rows);
    return;
  }
  lengths.resize(shape.rows);
  for (cuda::DecodePlan& plan : decode) {
    plan.items.resize(shape.items);
    plan.split_counts.resize(shape.rows);
    plan.max_splits = shape.max_splits;
  }
}

void CudaBatch::AddOutputs(std::span<const SequenceStep> sequences,
                           const std::vector<size_t>& last_of) {
  std::vector<int32_t> row_of(sequences.size(), -1);
  for (size_t row = 0; row < last_of.size(); ++row) {
    row_of[last_of[row]] = static_cast<int32_t>(row);
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].wants_logits) logits_rows.push_back(row_of[i]);
    for (const DrawSpec& draw : sequences[i].draws) draws.push_back(ToSampleRow(draw, row_of[i]));
  }
}

}  // namespace penstock
