#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "kernels/selection/page_bounds.h"
#include "kernels/view.h"

namespace penstock {

// The pages that a query always attends to: attention sinks are on the first, and the tokens just
// before the query on the last two, of which the last may be partial.
inline constexpr int64_t kFirstPages = 1;
inline constexpr int64_t kLastPages = 2;

// A query that attends to a part of its sequence's pages.
struct SelectingRow {
  int64_t row = 0;                   // of the queries
  std::span<const uint32_t> blocks;  // of all its pages, in order of position
  int64_t keep = 0;                  // pages; at least kFirstPages + kLastPages, fewer than it has
  std::span<uint32_t> tables;        // out, [kv_heads][keep]: the blocks of each KV head
};

struct SelectPagesArgs {
  View<const float, 2> queries;  // [rows, at least heads * head_dim], as Attention takes them
  int32_t heads = 0;             // a multiple of the layout's kv_heads
  KvLayout layout;
  int32_t layer = 0;
  const PageBounds* bounds = nullptr;  // of the layer, of all pages but the last kLastPages
  std::span<const SelectingRow> rows;
};

// The pages of the first `pages` of `blocks` that a query may attend to most: for each, an upper
// bound of query * key over its keys, summed over the query heads of a KV head. Since that bound is
// linear in the positive and the negative part of a query, the sum over the group is one product;
// the greatest of the group would be one for each head. `scores` has room for `pages`.
void ScorePages(const SelectPagesArgs& args, const SelectingRow& row, int32_t kv_head,
                std::span<float> scores);

// Chooses for every row and KV head the first page, the last two, and of the others those with the
// highest scores; of equal ones the earlier. Tables are in the order of positions. The result for
// a row does not depend on the other rows, nor on the number of threads.
void SelectPages(const Exec& exec, const SelectPagesArgs& args);

}  // namespace penstock
