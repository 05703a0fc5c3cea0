#include "kernels/paged_kv.h"

#include "base/check.h"

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
  if (layout.span > 0) result.rows = nullptr;
  return result;
}

}  // namespace penstock
