#include "model/cuda_batch.h"

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

// One sequence's rows [first, first + rows) of the batch, at positions from `position` on.
struct Part {
  const SequenceStep* sequence = nullptr;
  int32_t rows = 0;
  int32_t position = 0;
};

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
  std::vector<int32_t> decode_logits, prefill_logits;
  int32_t wanted = 0;
  for (const SequenceStep& sequence : args.sequences) {
    const auto rows = static_cast<int32_t>(sequence.tokens.size());
    const bool decode = rows == 1 && !options.exact;
    (decode ? decodes : prefills).push_back({&sequence, rows, sequence.position});
    if (!sequence.wants_logits) continue;
    // The kernel that computes a row is the same in every layer.
    (decode ? last_decodes : last_prefills).push_back({&sequence, 1, sequence.position + rows - 1});
    (decode ? decode_logits : prefill_logits).push_back(wanted++);
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
      if (part.sequence->wants_logits) {
        last_rows.push_back(static_cast<int32_t>(tokens.size()) - 1);
      }
    }
  }
  logits_row = std::move(decode_logits);
  logits_row.insert(logits_row.end(), prefill_logits.begin(), prefill_logits.end());
  all = Plan(decodes, prefills, args.kv.layout, options);
  last = Plan(last_decodes, last_prefills, args.kv.layout, options);
}

}  // namespace penstock
