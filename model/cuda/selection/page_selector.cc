#include "model/cuda/selection/page_selector.h"

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

absl::StatusOr<std::unique_ptr<PageSelector>> PageSelector::Create(const PagedKv& kv,
                                                                   int32_t heads) {
  std::unique_ptr<PageSelector> selector(new PageSelector(kv.layout, heads));
  const size_t bytes = static_cast<size_t>(kv.blocks) * PageBounds::BytesOf(kv.layout);
  ASSIGN_OR_RETURN(selector->bounds_, cuda::DeviceBuffer::Create(bytes, "bounds of pages"));
  return selector;
}

absl::Status PageSelector::Reserve(int64_t rows, int64_t pages_max, int64_t keep_max) {
  const auto lists = static_cast<size_t>(rows * layout_.kv_heads);
  RETURN_IF_ERROR(
      GrowTo(lists * static_cast<size_t>(pages_max) * sizeof(float), "scores of pages", scores_));
  return GrowTo(lists * static_cast<size_t>(keep_max) * sizeof(uint32_t), "chosen pages", chosen_);
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
  cuda::ChoosePages({.queries = rows.queries,
                     .query_stride = int64_t{heads_} * layout_.head_dim,
                     .kv_heads = layout_.kv_heads,
                     .head_dim = layout_.head_dim,
                     .group = heads_ / layout_.kv_heads,
                     .tables = rows.tables,
                     .table_stride = rows.table_stride,
                     .bounds = BoundsOf(layer),
                     .rows = rows.rows,
                     .count = rows.count,
                     .pages_max = rows.pages_max,
                     .scores = scores_.as<float>(),
                     .chosen = chosen_.as<uint32_t>(),
                     .chosen_stride = rows.keep_max},
                    stream);
  return chosen_.as<uint32_t>();
}

}  // namespace penstock
