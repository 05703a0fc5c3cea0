#include "model/cuda/selection/page_selector.h"

#include <algorithm>
#include <bit>

#include "kernels/selection/page_bounds.h"

namespace penstock {
namespace {

absl::Status GrowTo(size_t bytes, const char* what, cuda::DeviceBuffer& buffer) {
  if (buffer.bytes() >= bytes) return absl::OkStatus();
  buffer = {};
  ASSIGN_OR_RETURN(buffer, cuda::DeviceBuffer::Create(std::bit_ceil(bytes), what));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PageSelector>> PageSelector::Create(const PagedKv& kv, int32_t heads,
                                                                   size_t scores_bytes_max) {
  std::unique_ptr<PageSelector> selector(new PageSelector(kv.layout, heads, scores_bytes_max));
  const size_t bytes = static_cast<size_t>(kv.blocks) * PageBounds::BytesOf(kv.layout);
  ASSIGN_OR_RETURN(selector->bounds_, cuda::DeviceBuffer::Create(bytes, "bounds of pages"));
  return selector;
}

absl::Status PageSelector::Reserve(int64_t rows, int64_t pages_max, int64_t keep_max) {
  const auto bytes = [&](int64_t count, int64_t of_list) {
    return static_cast<size_t>(count * layout_.kv_heads * of_list) * sizeof(uint32_t);
  };
  static_assert(sizeof(float) == sizeof(uint32_t));
  const int64_t at_once = std::min(rows, RowsAtOnce(pages_max));
  RETURN_IF_ERROR(GrowTo(bytes(at_once, pages_max), "scores of pages", scores_));
  return GrowTo(bytes(rows, keep_max), "chosen pages", chosen_);
}

int64_t PageSelector::RowsAtOnce(int64_t pages_max) const {
  const auto row_bytes = static_cast<int64_t>(sizeof(float)) * layout_.kv_heads * pages_max;
  return std::max<int64_t>(1, static_cast<int64_t>(scores_bytes_max_) / row_bytes);
}

cuda::PageBoundsView PageSelector::BoundsOf(int32_t layer) const {
  const auto of_block = static_cast<int64_t>(PageBounds::BytesOf(layout_) / sizeof(Bf16));
  return {.layer = bounds_.as<Bf16>() + of_block / layout_.layers * layer,
          .block_stride = of_block};
}

void PageSelector::FindBounds(const PagedKv& kv, int32_t layer, const uint32_t* blocks,
                              int32_t count, void* stream) const {
  cuda::FindPageBounds({.kv = cuda::PlanesOf(kv, layer),
                        .blocks = blocks,
                        .count = count,
                        .bounds = BoundsOf(layer)},
                       stream);
}

const uint32_t* PageSelector::Choose(int32_t layer, const Rows& rows, void* stream) const {
  const auto at_once =
      static_cast<int32_t>(std::min<int64_t>(rows.count, RowsAtOnce(rows.pages_max)));
  cuda::ChoosePagesParams params{.queries = rows.queries,
                                 .query_stride = int64_t{heads_} * layout_.head_dim,
                                 .kv_heads = layout_.kv_heads,
                                 .head_dim = layout_.head_dim,
                                 .group = heads_ / layout_.kv_heads,
                                 .tables = rows.tables,
                                 .table_stride = rows.table_stride,
                                 .bounds = BoundsOf(layer),
                                 .rows = rows.rows,
                                 .pages_max = rows.pages_max,
                                 .scores = scores_.as<float>(),
                                 .chosen = chosen_.as<uint32_t>(),
                                 .chosen_stride = rows.keep_max};
  for (int32_t first = 0; first < rows.count; first += at_once) {
    params.count = std::min(at_once, rows.count - first);
    cuda::ChoosePages(params, stream);
    params.rows += params.count;
    params.chosen += int64_t{params.count} * layout_.kv_heads * rows.keep_max;
  }
  return chosen_.as<uint32_t>();
}

}  // namespace penstock
