#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/buffer.h"
#include "kernels/kv_rows.h"
#include "kernels/paged_kv.h"
#include "model/forward/rope_angles.h"
#include "model/weights/weights.h"

namespace penstock {

// Codes KV of bf16 pages in a format of pages and decodes it again, as a codec of the wire does
// with a prompt: later tokens are computed in bf16, so errors do not add up on the way through the
// layers. One thread.
class FormatRoundTrip {
 public:
  // `layout`: of the bf16 pages. Centred formats need the weights' means of keys.
  FormatRoundTrip(const Weights& weights, const KvLayout& layout, const KvPageFormat& format);

  // The tokens of a block, of which the first is at `position`, in place. Returns the bits of the
  // coded form.
  double Apply(const PagedKv& pages, uint32_t block, int32_t position);

 private:
  void SetMeans(int32_t layer, int32_t position);
  void ApplyRow(const PagedKv& pages, const KvRowsAt& at);

  const Weights& weights_;
  const KvPageFormat format_;
  const Buffer memory_;
  const PagedKv coded_;                   // one page with one head
  std::vector<LayerRotation> rotations_;  // of each layer; empty unless keys are centred
  std::vector<float> means_;  // [kv_heads][head_dim], at a position; empty unless keys are centred
};

}  // namespace penstock
