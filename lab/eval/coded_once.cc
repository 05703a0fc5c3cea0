#include "lab/eval/coded_once.h"

#include <algorithm>

#include "kernels/rope.h"

namespace penstock {
namespace {

KvLayout OneHead(const KvLayout& layout, const KvPageFormat& format) {
  return KvLayout{.layers = 1,
                  .kv_heads = 1,
                  .head_dim = layout.head_dim,
                  .block_tokens = layout.block_tokens,
                  .dtype = format.dtype};
}

}  // namespace

FormatRoundTrip::FormatRoundTrip(const Weights& weights, const KvLayout& layout,
                                 const KvPageFormat& format)
    : weights_(weights),
      format_(format),
      memory_(OneHead(layout, format).BlockStride()),
      coded_{.arena = memory_.as<std::byte>(), .blocks = 1, .layout = OneHead(layout, format)} {
  if (!format.centred) return;
  for (int32_t layer = 0; layer < layout.layers; ++layer) {
    rotations_.push_back(RotationOf(weights.config, layer));
  }
}

double FormatRoundTrip::Apply(const PagedKv& pages, uint32_t block, int32_t position) {
  const KvLayout& layout = pages.layout;
  for (int32_t layer = 0; layer < layout.layers; ++layer) {
    for (int32_t slot = 0; slot < layout.block_tokens; ++slot) {
      if (format_.centred) SetMeans(layer, position + slot);
      for (int32_t head = 0; head < layout.kv_heads; ++head) {
        for (const KvPlane plane : {KvPlane::kKeys, KvPlane::kValues}) {
          ApplyRow(pages, {block, layer, head, plane, slot});
        }
      }
    }
  }
  return 8.0 * layout.layers * layout.kv_heads * static_cast<double>(coded_.layout.LayerBytes());
}

// The means of a layer's keys, rotated to a position.
void FormatRoundTrip::SetMeans(int32_t layer, int32_t position) {
  const ModelConfig& config = weights_.config;
  means_ = weights_.layers[static_cast<size_t>(layer)].key_means;
  const LayerRotation& rotation = rotations_[static_cast<size_t>(layer)];
  const int64_t pairs = std::ssize(rotation.frequencies);
  if (pairs == 0) return;
  std::vector<float> cosines(rotation.frequencies.size()), sines(rotation.frequencies.size());
  RopeAngles(rotation.frequencies, rotation.attention_factor, position, cosines.data(),
             sines.data());
  Rope({}, {.rows = {means_.data(), {1, std::ssize(means_)}},
            .cosines = {cosines.data(), {1, pairs}},
            .sines = {sines.data(), {1, pairs}},
            .heads = config.kv_heads,
            .head_dim = config.head_dim});
}

void FormatRoundTrip::ApplyRow(const PagedKv& pages, const KvRowsAt& at) {
  const int32_t dims = pages.layout.head_dim;
  auto* row = reinterpret_cast<Bf16*>(pages.Layer(at.block, at.layer) +
                                      pages.layout.CodesAt(at.kv_head, at.plane, at.slot));
  const bool centred = format_.centred && at.plane == KvPlane::kKeys;
  const float* mean = centred ? means_.data() + int64_t{at.kv_head} * dims : nullptr;
  std::vector<float> values(static_cast<size_t>(dims));
  for (int32_t d = 0; d < dims; ++d) values[d] = ToFloat(row[d]) - (centred ? mean[d] : 0);
  const KvRowsAt here{.plane = at.plane};
  cpu::StoreKvRow(coded_, here, values.data());
  cpu::LoadKvRows(coded_, here, 1, row);
  for (int32_t d = 0; d < dims; ++d) values[d] = ToFloat(row[d]);
  if (coded_.layout.IsRotated(at.plane)) cpu::RotateRows(values.data(), 1, dims);
  for (int32_t d = 0; d < dims; ++d) row[d] = ToBf16(values[d] + (centred ? mean[d] : 0));
}

}  // namespace penstock
