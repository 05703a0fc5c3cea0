#include "model/cuda/cuda_batch.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <utility>

#include "kernels/cuda/latents/latents.h"
#include "model/sampler/token_draw.h"

namespace penstock {
namespace {

// One sequence's rows of the batch, in slots from `slot` on.
struct Part {
  const SequenceStep* sequence = nullptr;
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t slot = 0;
};

cuda::SampleRow ToSampleRow(const DrawSpec& draw, int32_t logits_row) {
  cuda::SampleRow row{.logits_row = logits_row, .top_k = draw.top_k, .random = draw.random};
  if (draw.temperature > 0) row.steepness = Softmax::At(0, draw.temperature).steepness;
  if (draw.top_p < 1) row.top_p = static_cast<int64_t>(FixedShare(draw.top_p));
  if (draw.min_p > 0) row.min_p_steps = MinPSteps(draw.min_p);
  static_assert(std::size(row.barred_ids) == kBarredMax);
  row.barred = draw.barred;
  std::ranges::copy(draw.barred_ids, row.barred_ids);
  return row;
}

// Rounds up by at most a quarter, so that growing steps have few different sizes.
int64_t RoundUpSize(int64_t size) {
  int64_t unit = 1;
  while (size > 8 * unit) unit *= 2;
  return (size + unit - 1) / unit * unit;
}

// Appends the rows of a part's blocks, and fills up to `stride` entries. Blocks before the window
// have no rows. Kernels load some tokens of them all the same, with weights of 0, so their entries
// name a row of the sequence: another's may have values that are not finite, and 0 times these is
// not 0.
void AppendRows(const Part& part, const PagedKv& kv, int64_t stride, std::vector<uint32_t>& to) {
  const size_t first = to.size();
  to.resize(first + static_cast<size_t>(stride));
  const int64_t end = kv.layout.BlocksFor(part.slot + part.rows);
  const int64_t begin = kv.layout.FirstGroupBlock(part.slot);
  for (int64_t i = 0; i < end; ++i) {
    to[first + static_cast<size_t>(i)] = kv.rows->row[part.sequence->blocks[std::max(i, begin)]];
  }
}

// Appends a part's blocks, and fills up to `stride` entries; the same for its rows.
void AppendTable(const Part& part, const PagedKv& kv, int64_t stride, std::vector<uint32_t>& tables,
                 std::vector<uint32_t>& row_tables) {
  const auto blocks = part.sequence->blocks.first(kv.layout.BlocksFor(part.slot + part.rows));
  const size_t first = tables.size();
  tables.insert(tables.end(), blocks.begin(), blocks.end());
  tables.resize(first + static_cast<size_t>(stride));
  if (kv.rows != nullptr) AppendRows(part, kv, stride, row_tables);
}

// The limit for the partial sums of a launch. Those of many rows of one long sequence, in narrow
// tiles, would otherwise take more memory than the sequence's KV.
constexpr size_t kSharesBytesMax = size_t{256} << 20;

cuda::TileRows TilesOf(const KvLayout& layout) {
  cuda::TileRows tiles = layout.HasLatents() ? cuda::kLatentTiles : cuda::TileRows();
  tiles.launch_shares_max = static_cast<int32_t>(
      kSharesBytesMax / cuda::NarrowScratchBytes(1, layout.kv_heads, layout.ValueDim()));
  return tiles;
}

bool IsBehind(const Part& before, const Part& part) {
  const std::span<const uint32_t> a = before.sequence->blocks, b = part.sequence->blocks;
  return a.data() == b.data() && a.size() == b.size() && before.slot + before.rows <= part.slot;
}

// Joins parts of one sequence, whose slots are then those that the last of them ends with. Returns
// the positions of all rows, or nothing where no parts were joined.
std::vector<int32_t> Join(std::vector<Part>& parts) {
  std::vector<int32_t> positions;
  std::vector<Part> joined;
  for (const Part& part : parts) {
    for (int32_t row = 0; row < part.rows; ++row) positions.push_back(part.slot + row);
    if (joined.empty() || !IsBehind(joined.back(), part)) {
      joined.push_back(part);
      continue;
    }
    Part& before = joined.back();
    before.slot = part.slot - before.rows;
    before.rows += part.rows;
  }
  if (joined.size() == parts.size()) return {};
  parts = std::move(joined);
  return positions;
}

CudaAttention Plan(std::vector<Part> parts, const PagedKv& kv, int32_t group,
                   const CudaBatchOptions& options) {
  const KvLayout& layout = kv.layout;
  const cuda::library::PrefillShape* const prompts = options.prompts;
  CudaAttention attention;
  if (options.joins) attention.positions = Join(parts);
  for (const Part& part : parts) {
    attention.table_stride =
        std::max(attention.table_stride, layout.BlocksFor(part.slot + part.rows));
  }
  for (const Part& part : parts) {
    attention.rows += part.rows;
    const int64_t stride = attention.table_stride;
    if (prompts != nullptr && part.sequence->prompt) {
      PromptRows& rows = attention.prompts;
      AppendTable(part, kv, stride, rows.tables, rows.row_tables);
      rows.sequences.push_back(
          {.first_row = part.first_row, .rows = part.rows, .position = part.slot});
    } else {
      AppendTable(part, kv, stride, attention.tables, attention.row_tables);
      attention.sequences.push_back(
          {.first_row = part.first_row, .rows = part.rows, .position = part.slot});
    }
  }
  if (prompts != nullptr) attention.prompts.Plan(*prompts, attention.table_stride);
  attention.plan =
      cuda::PlanAttention(attention.sequences, group, TilesOf(layout), attention.positions);
  return attention;
}

// Divides the parts into rows that attend to all pages and rows that choose; part i has table i.
CudaSelected Select(const std::vector<Part>& parts, const PagedKv& kv, int32_t group) {
  const int32_t page = kv.layout.block_tokens;
  CudaSelected selected;
  std::vector<Part> dense;
  for (size_t i = 0; i < parts.size(); ++i) {
    Part part = parts[i];
    const PageSelection& selection = part.sequence->selection;
    const auto first = static_cast<int32_t>(selection.Leading(part.slot, part.rows, page));
    for (int32_t row = first; row < part.rows; ++row) {
      const int32_t position = part.slot + row;
      const auto pages = static_cast<int32_t>(kv.layout.BlocksFor(position + 1));
      selected.pages_max = std::max(selected.pages_max, pages);
      selected.keep_max = std::max(selected.keep_max, selection.pages);
      selected.rows.push_back({.query = part.first_row + row,
                               .table = static_cast<int32_t>(i),
                               .pages = pages,
                               .keep = selection.pages});
      selected.chosen.sequences.push_back(
          {.first_row = part.first_row + row,
           .rows = 1,
           .position = static_cast<int32_t>(selection.Attended(position, page) - 1)});
    }
    part.rows = first;
    if (part.rows > 0) dense.push_back(part);
  }
  if (!selected.any()) return selected;
  selected.dense = Plan(dense, kv, group, {});
  selected.chosen.rows = static_cast<int32_t>(selected.rows.size());
  cuda::TileRows narrow = TilesOf(kv.layout);
  narrow.narrow_max = std::numeric_limits<int32_t>::max();
  selected.chosen.plan = cuda::PlanAttention(selected.chosen.sequences, group, narrow);
  return selected;
}

}  // namespace

CudaBatch::CudaBatch(const StepArgs& args, int32_t hidden_size, int32_t group,
                     const CudaBatchOptions& options)
    : row_tiles_((group + cuda::kNarrowRows - 1) / cuda::kNarrowRows) {
  const int32_t page = args.kv.layout.block_tokens;
  const KnownBounds* const known = options.known;
  std::vector<Part> parts, last_parts;
  std::vector<int32_t> last_of(args.sequences.size(), -1);
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    const SequenceStep& sequence = args.sequences[i];
    const auto rows = static_cast<int32_t>(sequence.tokens.size());
    const int32_t first_slot = sequence.position - sequence.evicted;
    const auto first_row = static_cast<int32_t>(arrays.tokens.size());
    parts.push_back({&sequence, first_row, rows, first_slot});
    if (known != nullptr) selecting.Add(sequence, args.kv, first_row, *known);
    for (int32_t row = 0; row < rows; ++row) {
      const int32_t slot = first_slot + row;
      arrays.tokens.push_back(sequence.tokens[row]);
      arrays.positions.push_back(sequence.position + row);
      const uint32_t block = sequence.blocks[slot / page];
      arrays.slots.push_back(int64_t{block} * page + slot % page);
      if (args.kv.rows == nullptr) continue;
      arrays.row_slots.push_back(int64_t{args.kv.rows->row[block]} * page + slot % page);
    }
    if (!sequence.wants_last() && sequence.hidden_sum.empty() && !sequence.fills_mtp) continue;
    const auto first_last = static_cast<int32_t>(last_rows.size());
    if (sequence.fills_mtp) {
      mtp.Add(sequence, i == 0 ? nullptr : &args.sequences[i - 1], first_row, first_last,
              hidden_size);
    }
    const int32_t kept = AddLastRows(sequence);
    last_parts.push_back({&sequence, first_last, kept, first_slot + rows - kept});
    last_of[i] = first_last + kept - 1;
  }
  AddOutputs(args.sequences, last_of);
  all_last = last_rows.size() == arrays.tokens.size();
  all = Plan(parts, args.kv, group, options);
  if (!all_last) last = Plan(last_parts, args.kv, group, options);
  if (!selecting.any()) return;
  selecting.FinishAdding();
  for (const auto& missing : selecting.missing()) unbounded.push_back(missing.block);
  all_selected = Select(parts, args.kv, group);
  if (!all_last) last_selected = Select(last_parts, args.kv, group);
}

bool CudaBatch::paddable() const {
  return all_last && all_output && mtp.rows().empty() && all.prompts.sequences.empty() &&
         all.positions.empty() && draws.size() <= arrays.tokens.size() && all.plan.wide.empty() &&
         all.plan.launch_ends.empty() && all_selected.chosen.plan.launch_ends.empty() &&
         all.plan.narrow.size() <= arrays.tokens.size() * static_cast<size_t>(row_tiles_);
}

CudaBatchShape CudaBatch::PaddedShape(int32_t rows_max) const {
  const auto rows = static_cast<uint32_t>(all.rows);
  const uint32_t padded = rows <= 8 ? std::bit_ceil(rows) : (rows + 7) / 8 * 8;
  const int32_t at_most = std::min(static_cast<int32_t>(padded), rows_max);
  CudaBatchShape shape{.all = PaddedShape(all, at_most)};
  const CudaSelected& s = all_selected;
  if (!s.any()) return shape;
  if (!s.dense.sequences.empty()) shape.dense = PaddedShape(s.dense, at_most);
  shape.chosen = PaddedShape(s.chosen, at_most);
  shape.pages_max = static_cast<int32_t>(RoundUpSize(s.pages_max));
  shape.keep_max = static_cast<int32_t>(RoundUpSize(s.keep_max));
  shape.unbounded = static_cast<int32_t>(RoundUpSize(std::ssize(unbounded)));
  return shape;
}

CudaAttentionShape CudaBatch::PaddedShape(const CudaAttention& attention, int32_t rows) const {
  return {.rows = rows,
          .table_stride = RoundUpSize(attention.table_stride),
          .narrow = rows * row_tiles_,
          .items = static_cast<int32_t>(RoundUpSize(std::ssize(attention.plan.items)))};
}

void CudaBatch::PadTo(const CudaBatchShape& shape) {
  const int32_t rows = shape.all.rows;
  arrays.tokens.resize(rows);
  arrays.positions.resize(rows);
  arrays.slots.resize(rows, -1);
  if (!arrays.row_slots.empty()) arrays.row_slots.resize(rows, -1);
  last_rows.resize(rows);
  draws.resize(rows);  // padding draws belong to no row
  all.PadTo(shape.all);
  if (!all_selected.any()) return;
  unbounded.resize(shape.unbounded, cuda::kNoBlock);
  all_selected.PadTo(shape);
}

CudaRows CudaBatch::RowsOf(const std::vector<int32_t>& some) const {
  CudaRows of;
  for (const int32_t index : some) {
    const auto row = static_cast<size_t>(index);
    of.tokens.push_back(arrays.tokens[row]);
    of.positions.push_back(arrays.positions[row]);
    of.slots.push_back(arrays.slots[row]);
    if (!arrays.row_slots.empty()) of.row_slots.push_back(arrays.row_slots[row]);
  }
  return of;
}

void CudaSelected::PadTo(const CudaBatchShape& shape) {
  if (shape.dense.rows > 0) dense.PadTo(shape.dense);
  chosen.PadTo(shape.chosen);
  rows.resize(shape.chosen.rows);
  pages_max = shape.pages_max;
  keep_max = shape.keep_max;
}

void CudaAttention::PadTo(const CudaAttentionShape& shape) {
  for (std::vector<uint32_t>* const all : {&tables, &row_tables}) {
    if (all->empty()) continue;
    std::vector<uint32_t> padded(shape.rows * shape.table_stride);
    for (size_t i = 0; i < sequences.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      std::copy_n(all->begin() + at * table_stride, table_stride,
                  padded.begin() + at * shape.table_stride);
    }
    *all = std::move(padded);
  }
  table_stride = shape.table_stride;
  rows = shape.rows;
  sequences.resize(shape.rows);
  plan.narrow.resize(shape.narrow);
  plan.items.resize(shape.items);
}

int32_t CudaBatch::AddLastRows(const SequenceStep& sequence) {
  const auto first = static_cast<int32_t>(last_rows.size());
  const auto end = static_cast<int32_t>(arrays.tokens.size());
  const auto rows = static_cast<int32_t>(sequence.tokens.size());
  const bool sums = !sequence.hidden_sum.empty();
  const int32_t kept = sums || sequence.fills_mtp ? rows : 1;
  for (int32_t row = end - kept; row < end; ++row) last_rows.push_back(row);
  if (!sequence.hidden.empty() || sums) {
    const int32_t returned = sums ? kept : 1;
    hidden.push_back({first + kept - returned, returned, sequence.hidden, sequence.hidden_sum});
  }
  return kept;
}

void CudaBatch::AddOutputs(std::span<const SequenceStep> sequences,
                           const std::vector<int32_t>& last_of) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (!sequences[i].wants_last()) continue;
    const int32_t row = outputs++;
    output_rows.push_back(last_of[i]);
    if (sequences[i].wants_logits) logits_rows.push_back(row);
    for (const DrawSpec& draw : sequences[i].draws) draws.push_back(ToSampleRow(draw, row));
  }
  all_output = output_rows.size() == last_rows.size();
  if (all_output) output_rows.clear();
}

}  // namespace penstock
