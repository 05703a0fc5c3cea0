#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda/kv_planes.h"

// The kernels of kernels/selection on a GPU (Quest, Tang et al., arXiv 2406.10774): bounds of the
// keys of pages, and the choice of the pages that a query attends to.
// This room, kernels/cuda/selection, has their launch arguments. It may use kernels/ and
// kernels/cuda.

namespace penstock::cuda {

// The greatest and the least element of each dimension of the keys of pages, in one layer:
// [block][layer][kv_head][2][head_dim], the greatest first. Keys are those that attention sees:
// rotated, and converted to bf16 where pages are quantised.
struct PageBoundsView {
  Bf16* layer = nullptr;     // of block 0
  int64_t block_stride = 0;  // elements
};

constexpr uint32_t kNoBlock = ~uint32_t{0};  // padding of PageBoundsParams::blocks

// Arguments of FindPageBounds. All pointers are to device memory.
struct PageBoundsParams {
  KvPlanes kv;
  const uint32_t* blocks = nullptr;  // [count], all of whose slots are written; or kNoBlock
  int32_t count = 0;
  PageBoundsView bounds;
};
// Computes the bounds of one layer of the keys of `blocks`. Requires SupportsKv(params.kv).
void FindPageBounds(const PageBoundsParams& params, void* stream);

// A query that attends to some of its sequence's pages.
struct SelectRow {
  int32_t query = 0;  // row of ChoosePagesParams::queries
  int32_t table = 0;  // of ChoosePagesParams::tables
  int32_t pages = 0;  // of the sequence, up to the query's own; 0: a row that is padding
  int32_t keep = 0;   // pages that it attends to: more than 3, and fewer than it has
};

// Arguments of ChoosePages. All pointers are to device memory; strides are in elements.
struct ChoosePagesParams {
  const Bf16* queries = nullptr;  // [rows of the step][kv_heads * group][head_dim]
  int64_t query_stride = 0;       // as attention reads them: rotated where keys are
  int32_t kv_heads = 0, head_dim = 0, group = 0;
  const uint32_t* tables = nullptr;  // page ids, [sequences][table_stride]
  int64_t table_stride = 0;
  PageBoundsView bounds;  // of all pages of the rows but the last two
  const SelectRow* rows = nullptr;
  int32_t count = 0;           // rows
  int32_t pages_max = 0;       // of a row
  float* scores = nullptr;     // scratch, [count][kv_heads][pages_max]
  uint32_t* chosen = nullptr;  // out, page ids, [count][kv_heads][chosen_stride]
  int64_t chosen_stride = 0;   // at least the largest `keep`
};
// For each row and KV head, chooses the first page, the last two, and of the others those with the
// greatest upper bound of query * key, summed over the query heads of the KV head; of equal ones
// the earlier. Writes them in the order of positions. The result of a row depends on its own query
// and pages alone. head_dim is 64 or 128.
void ChoosePages(const ChoosePagesParams& params, void* stream);

}  // namespace penstock::cuda
