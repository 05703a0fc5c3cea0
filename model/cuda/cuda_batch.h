#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/sample.h"
#include "model/forward/model_runner.h"

namespace penstock {

// The sizes that the arrays of a decode step are padded to, so that many steps have equal sizes.
struct CudaBatchShape {
  int32_t rows = 0;
  int64_t table_stride = 0;
  int32_t items = 0;       // of the decode kernel, for each window
  int32_t max_splits = 1;  // of these items

  bool operator==(const CudaBatchShape&) const = default;
};

// The rows of a step that attend: first those of the decode kernel, one row per sequence, then
// those of the prefill kernel.
struct CudaAttention {
  int32_t rows = 0;
  std::vector<int32_t> lengths;          // tokens in the pages of each decode sequence
  std::vector<cuda::DecodePlan> decode;  // one for each window of CudaBatch::Options
  std::vector<cuda::PrefillSequence> prefills;
  std::vector<cuda::PrefillTile> tiles;
  std::vector<uint32_t> tables;  // decodes, then prefills; table_stride entries each
  int64_t table_stride = 0;

  int32_t decodes() const { return static_cast<int32_t>(lengths.size()); }
  void PadTo(const CudaBatchShape& shape);
};

// A step in the form that the kernels take, on the host. Sequences of one token come first. Plain
// data of one step.
struct CudaBatch {
  struct Options {
    int32_t group = 1;             // query heads per KV head
    std::vector<int32_t> windows;  // every window that some layer uses
    bool exact = false;            // use the prefill kernel for all rows
  };

  CudaBatch(const StepArgs& args, const Options& options);

  // True if PadTo supports the step: every sequence has one token, with logits or a draw.
  bool paddable() const;
  // Returns sizes that are at least the step's own and at most a quarter larger, with at most
  // `rows_max` rows.
  CudaBatchShape PaddedShape(int32_t rows_max) const;
  // Adds rows that store nothing and items that do nothing. The results of the other rows do not
  // change.
  void PadTo(const CudaBatchShape& shape);

  std::vector<uint32_t> tokens;    // [rows]
  std::vector<int32_t> positions;  // [rows]
  std::vector<int64_t> slots;      // [rows]: block * block_tokens + slot
  CudaAttention all;               // attention of every row
  CudaAttention last;              // attention of the rows in last_rows
  bool all_last = false;           // last_rows are all rows; `last` is empty
  std::vector<int32_t> last_rows;  // rows with logits or draws, in the order of `last`
  // Indices into last_rows: for each row of StepArgs::logits, and for each draw of StepArgs::drawn.
  std::vector<int32_t> logits_rows;
  std::vector<cuda::SampleRow> draws;

 private:
  // `last_of` are the sequences of `last_rows`.
  void AddOutputs(std::span<const SequenceStep> sequences, const std::vector<size_t>& last_of);

  int32_t block_tokens_ = 0;
};

}  // namespace penstock
