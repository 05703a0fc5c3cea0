#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/sample.h"
#include "model/forward/model_runner.h"

namespace penstock {

// What the arrays of a step of single tokens are padded to, so that many steps have the same sizes.
struct CudaBatchShape {
  int32_t rows = 0;
  int64_t table_stride = 0;
  int32_t items = 0;       // of the decode kernel, for each window
  int32_t max_splits = 1;  // of them

  bool operator==(const CudaBatchShape&) const = default;
};

// Which rows of a step attend, and how: those of the decode kernel first, one row per sequence.
struct CudaAttention {
  int32_t rows = 0;
  std::vector<int32_t> lengths;          // of the decode kernel's sequences: tokens in pages
  std::vector<cuda::DecodePlan> decode;  // one per window of CudaBatch::Options
  std::vector<cuda::PrefillSequence> prefills;
  std::vector<cuda::PrefillTile> tiles;
  std::vector<uint32_t> tables;  // of decodes, then of prefills; table_stride each
  int64_t table_stride = 0;

  int32_t decodes() const { return static_cast<int32_t>(lengths.size()); }
  void PadTo(const CudaBatchShape& shape);
};

// A step as the kernels take it, on the host. Sequences of one token come first.
struct CudaBatch {
  struct Options {
    int32_t group = 1;             // query heads of a KV head
    std::vector<int32_t> windows;  // each that some layer has
    bool exact = false;            // the prefill kernel for all rows
  };

  CudaBatch(const StepArgs& args, const Options& options);

  // Whether PadTo takes it: one token of each sequence, each with logits or a draw.
  bool paddable() const;
  // Of at most `rows_max` rows, and of the step's own size or little more.
  CudaBatchShape PaddedShape(int32_t rows_max) const;
  // Adds rows that keep nothing and items that do nothing. What the others give stays the same.
  void PadTo(const CudaBatchShape& shape);

  std::vector<uint32_t> tokens;    // [rows]
  std::vector<int32_t> positions;  // [rows]
  std::vector<int64_t> slots;      // [rows]: block * block_tokens + slot
  CudaAttention all;               // of every row
  CudaAttention last;              // of the rows whose logits are wanted alone
  bool all_last = false;           // those are all there are; `last` is empty
  std::vector<int32_t> last_rows;  // those, in the order of `last`
  // Which of those rows: of each row of StepArgs::logits, and of each of StepArgs::drawn.
  std::vector<int32_t> logits_rows;
  std::vector<cuda::SampleRow> draws;

 private:
  // `last_of`: the sequences that `last_rows` are of.
  void AddOutputs(std::span<const SequenceStep> sequences, const std::vector<size_t>& last_of);

  int32_t block_tokens_ = 0;
};

}  // namespace penstock
