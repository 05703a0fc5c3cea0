#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/cuda/kv_planes.h"

// FlashInfer's paged prefill attention for compute capability 9.0. It reads our bf16 pages in
// place. Our plan replaces the library's: which block computes which tile depends on the step, but
// not what is computed for a row.

namespace penstock::cuda::library {

// A part of the name of the arithmetic of a worker that uses the kernel. A new version of the
// library may round differently; then this name changes.
inline constexpr std::string_view kPrefillName = "fast 1";

// The rows (tokens) of one query head that a block computes at once.
constexpr int32_t PrefillTileRows(int32_t head_dim) { return head_dim == 64 ? 192 : 128; }
// Its tiles of keys are counted from position 0.
inline constexpr int32_t kPrefillTileKeys = 96;

// The queries of one sequence: rows [first_row, first_row + rows) of the batch, at positions from
// `position` on. The pages hold all position + rows tokens, including those of these rows.
struct PrefillRows {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t position = 0;
};

struct PrefillShape {
  int32_t heads = 0;  // query heads
  int32_t head_dim = 0;
  int32_t window = 0;        // tokens that a query sees, with its own; 0: all
  int64_t table_stride = 0;  // from one sequence's page ids to the next sequence's
  int32_t processors = 0;    // of the GPU
};

// The work of a step. `words` goes to the device as it is: the first item of each processor and the
// end, then seven arrays of `items` words (see PrefillField).
struct PrefillPlan {
  int32_t items = 0;
  std::vector<int32_t> words;
};
enum class PrefillField { kTile, kFirstRow, kRows, kTableAt, kLength, kHead, kSequence };
constexpr int kPrefillFields = 7;

// The index in PrefillPlan::words of the first word of a field.
constexpr int64_t PrefillFieldAt(PrefillField field, int32_t items, int32_t processors) {
  return processors + 1 + static_cast<int64_t>(field) * items;
}

// Deals the tiles of all sequences and heads to the processors, the longest first, each to the
// processor that has least to do.
PrefillPlan PlanPrefill(std::span<const PrefillRows> sequences, const PrefillShape& shape);

// True if the kernels can read these planes: bf16, heads of 64 or 128 elements.
bool SupportsPrefill(const KvPlanes& kv);

// Addresses in bf16 planes, in elements: token `slot` of a page is at
// base + page * page + head * head + slot * token, with `keys` or `values` as the base.
struct PrefillStrides {
  const Bf16* keys = nullptr;
  const Bf16* values = nullptr;
  int64_t page = 0;
  int64_t head = 0;
  int64_t token = 0;
};
// Requires SupportsPrefill(kv).
PrefillStrides StridesOf(const KvPlanes& kv);

// Arguments of LaunchPrefill. All pointers are to device memory and aligned to 16 bytes; strides
// are in elements, and multiples of 8.
struct PrefillCall {
  const Bf16* queries = nullptr;  // [rows][heads][head_dim]
  int64_t query_stride = 0;       // from one row to the next
  Bf16* output = nullptr;         // [rows][heads][head_dim]
  int64_t output_stride = 0;
  int32_t rows = 0;  // of all sequences
  KvPlanes kv;
  const uint32_t* tables = nullptr;  // page ids, [sequences][table_stride]
  PrefillShape shape;
  const int32_t* plan = nullptr;  // PrefillPlan::words
  int32_t items = 0;              // PrefillPlan::items
  float scale = 0;                // factor of the scores
};

// True if this build has the kernels. A seam: prefill_launch.cc implements it and LaunchPrefill,
// and prefill_none.cc replaces it in builds without the library.
bool HasPrefill();

// Enqueues softmax(scale * q k^T) v, causal. The bits of a row do not depend on the chunk or the
// batch. The kernel reads a tile of keys as a whole: tokens in front of the window have the weight
// 0, so what a table names there must be finite. Requires SupportsPrefill(call.kv) and
// HasPrefill().
void LaunchPrefill(const PrefillCall& call, void* stream);

}  // namespace penstock::cuda::library
