#include "kernels/paged_kv.h"

#include "base/check.h"
#include "kernels/page_copier.h"

namespace penstock {

KvLayout KvLayout::In(const KvPageFormat& format) const {
  PENSTOCK_CHECK_EQ(span, 0);
  PENSTOCK_CHECK(format.span > 0 || !format.centred);
  KvLayout result = *this;
  result.dtype = format.dtype;
  result.span = format.span;
  result.centred = format.centred;
  if (format.span == 0) return result;
  PENSTOCK_CHECK(window == 0 && group.empty() && !HasLatents());
  result.layers = 2 * layers;
  result.group.window = format.span;
  for (int32_t layer = 1; layer < result.layers; layer += 2) {
    result.group.layers.set(static_cast<size_t>(layer));
  }
  return result;
}

PagedKv PagedKv::FirstCopies() const {
  PENSTOCK_CHECK(layout.span == 0 || rows != nullptr);
  PagedKv result = *this;
  result.layout = layout.FirstCopies();
  if (layout.span == 0) return result;
  result.rows = nullptr;
  if (copier == nullptr) return result;
  result.copier = copier->first_copies();
  PENSTOCK_CHECK(result.copier != nullptr);
  return result;
}

WindowRowsView RowsBehind(const PagedKv& kv, const uint32_t* row, uint32_t no_row) {
  WindowRowsView view{.arena = kv.arena + static_cast<size_t>(kv.blocks) * kv.layout.FullStride(),
                      .row_stride = kv.layout.RowStride(),
                      .block_stride = kv.layout.FullStride(),
                      .row = row,
                      .no_row = no_row,
                      .place = {}};
  size_t in_group = 0, others = 0;
  for (int32_t layer = 0; layer < kv.layout.layers; ++layer) {
    size_t& next = kv.layout.group.Has(layer) ? in_group : others;
    view.place.push_back(next);
    next += kv.layout.BytesOf(layer);
  }
  return view;
}

}  // namespace penstock
