#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/selection/selection.h"
#include "kernels/library/prefill.h"
#include "model/cuda/mtp/mtp_rows.h"
#include "model/cuda/prompts/prompt_rows.h"
#include "model/forward/selecting_rows.h"

namespace penstock {

// The sizes that the arrays of a decode step are padded to, so that many steps have equal sizes.
struct CudaAttentionShape {
  int32_t rows = 0;
  int64_t table_stride = 0;
  int32_t narrow = 0;  // narrow tiles
  int32_t items = 0;   // splits of these

  bool operator==(const CudaAttentionShape&) const = default;
};
struct CudaBatchShape {
  CudaAttentionShape all;
  // As CudaSelected. Zeros where there are none.
  CudaAttentionShape dense, chosen;
  int32_t pages_max = 0, keep_max = 0;
  int32_t unbounded = 0;

  bool operator==(const CudaBatchShape&) const = default;
};

// The rows of a step that attend.
struct CudaAttention {
  int32_t rows = 0;    // those of `prompts`, too
  PromptRows prompts;  // that the library computes; all below is of the other sequences
  std::vector<cuda::AttentionSequence> sequences;
  // The positions of all rows. Empty: the rows of each sequence are consecutive.
  std::vector<int32_t> positions;
  cuda::AttentionPlan plan;
  std::vector<uint32_t> tables;  // table_stride entries for each sequence
  // The same of the blocks' rows (PagedKv::rows), of which those before the window have no meaning.
  // Empty: the pages have none.
  std::vector<uint32_t> row_tables;
  int64_t table_stride = 0;

  void PadTo(const CudaAttentionShape& shape);
};

// The rows of a step that attend, in the layers in which some of them choose pages.
struct CudaSelected {
  CudaAttention dense;   // of rows that attend to all pages
  CudaAttention chosen;  // a sequence of each row that chooses; the GPU writes its tables
  std::vector<cuda::SelectRow> rows;  // of `chosen`, with the tables of all rows' attention
  int32_t pages_max = 0, keep_max = 0;

  bool any() const { return !rows.empty(); }
  void PadTo(const CudaBatchShape& shape);
};

// The hidden states that a step returns of one sequence: those of its last token, or, with a sum,
// of all. Its rows are [first, first + count) of CudaBatch::last_rows.
struct CudaHidden {
  int32_t first = 0;
  int32_t count = 0;
  std::span<float> last = {};  // SequenceStep::hidden
  std::span<double> sum = {};  // SequenceStep::hidden_sum
};

// The arrays of rows that are computed.
struct CudaRows {
  std::vector<uint32_t> tokens;    // [rows]
  std::vector<int32_t> positions;  // [rows]
  std::vector<int64_t> slots;      // [rows]: block * block_tokens + slot
  // The same of the blocks' rows (PagedKv::rows); empty: the pages have none.
  std::vector<int64_t> row_slots;
};

// How a batch is computed.
struct CudaBatchOptions {
  // The library's kernel computes attention of the rows of prompts, on a model and a GPU like this;
  // null: ours does.
  const cuda::library::PrefillShape* prompts = nullptr;
  // Rows may choose the pages that they attend to; null: none does.
  const KnownBounds* known = nullptr;
  // Parts with the same block table, one behind the other with ascending positions, are one
  // sequence of attention, whose rows share its tiles. No bit depends on it.
  bool joins = false;
};

// A step in the form that the kernels take, on the host. Plain data of one step.
struct CudaBatch {
  // `hidden`: the elements of a hidden state. `group`: query heads per KV head.
  CudaBatch(const StepArgs& args, int32_t hidden, int32_t group,
            const CudaBatchOptions& options = {});

  // True if PadTo supports the step: every sequence has one token, with logits or a draw, none is
  // for the layer for multi-token prediction, and the library computes none.
  bool paddable() const;
  // Returns sizes that are at least the step's own and at most a quarter larger, with at most
  // `rows_max` rows.
  CudaBatchShape PaddedShape(int32_t rows_max) const;
  // The rows whose logits are computed: those with outputs, and the padding behind them.
  int32_t logits_count() const {
    return all_output ? static_cast<int32_t>(last_rows.size()) : outputs;
  }
  // Adds rows that store nothing and items that do nothing. The results of the other rows do not
  // change.
  void PadTo(const CudaBatchShape& shape);

  // The arrays of some of its rows.
  CudaRows RowsOf(const std::vector<int32_t>& some) const;

  CudaRows arrays;        // of all rows
  CudaAttention all;      // attention of every row
  CudaAttention last;     // attention of the rows in last_rows
  bool all_last = false;  // last_rows are all rows; `last` is empty
  SelectingRows selecting;
  std::vector<uint32_t> unbounded;           // blocks whose bounds the step finds
  CudaSelected all_selected, last_selected;  // as `all` and `last`
  // Rows with outputs or hidden states that are in use, in the order of `last`.
  std::vector<int32_t> last_rows;
  // Hidden states that the step returns, of last_rows.
  std::vector<CudaHidden> hidden;
  bool all_output = false;           // all of last_rows have logits or draws
  std::vector<int32_t> output_rows;  // else the indices of those with logits or draws
  int32_t outputs = 0;               // rows with logits or draws
  // Indices of these rows: for each row of StepArgs::logits, and for each draw of StepArgs::drawn.
  std::vector<int32_t> logits_rows;
  std::vector<cuda::SampleRow> draws;
  MtpRows mtp;  // of the parts with fills_mtp; kept rows are last_rows

 private:
  int32_t row_tiles_;  // narrow tiles of a token

  CudaAttentionShape PaddedShape(const CudaAttention& attention, int32_t rows) const;
  // Adds the last rows of a sequence with outputs or for `mtp`, which ends with the batch's last
  // row so far. Returns how many they are.
  int32_t AddLastRows(const SequenceStep& sequence);
  // `last_of`: of each sequence with outputs, the index of its last row among last_rows.
  void AddOutputs(std::span<const SequenceStep> sequences, const std::vector<int32_t>& last_of);
};

}  // namespace penstock
