#include "tests/cuda/cases/kv_pool_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tests/kernels/kv_row_oracle.h"

namespace penstock::cuda {
namespace {

uint16_t TruncateToBf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}
float FromBf16(uint16_t bits) { return ToFloat(Bf16{bits}); }

double E4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double x =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return (code & 0x80) != 0 ? -x : x;
}

int NearestE4m3(double x) {
  static const std::vector<double> kMagnitudes = [] {
    std::vector<double> values;
    for (int code = 0; code < 0x7f; ++code) values.push_back(E4m3(code));
    return values;
  }();
  const auto above = std::ranges::lower_bound(kMagnitudes, std::fabs(x));
  auto best = above == kMagnitudes.end() ? above - 1 : above;
  if (best != kMagnitudes.begin() && std::fabs(x) - best[-1] < *best - std::fabs(x)) --best;
  return static_cast<int>(best - kMagnitudes.begin()) | (x < 0 ? 0x80 : 0);
}

void EncodeF8(const std::vector<float>& x, uint8_t* row, uint8_t* scale, double* real) {
  float top = 1e-30f;
  for (const float v : x) top = std::max(top, std::fabs(v));
  const float power = std::exp2(std::ceil(std::log2(top / 448.0f)));
  const uint16_t bits = TruncateToBf16(power);
  std::memcpy(scale, &bits, sizeof(bits));
  for (size_t d = 0; d < x.size(); ++d) {
    row[d] = static_cast<uint8_t>(NearestE4m3(x[d] / power));
    real[d] = E4m3(row[d]) * power;
  }
}

void EncodeAffine(const std::vector<float>& x, int levels, uint8_t* row, uint8_t* scale,
                  double* real) {
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const uint16_t step = TruncateToBf16((*high - *low) / static_cast<float>(levels) * 1.01f);
  const uint16_t minimum = TruncateToBf16(*low);
  std::memcpy(scale, &step, 2);
  std::memcpy(scale + 2, &minimum, 2);
  const size_t half = x.size() / 2;
  for (size_t d = 0; d < x.size(); ++d) {
    const double code =
        std::clamp(std::nearbyint((x[d] - FromBf16(minimum)) / static_cast<double>(FromBf16(step))),
                   0.0, static_cast<double>(levels));
    real[d] = code * FromBf16(step) + FromBf16(minimum);
    if (levels == 255 || d < half) {
      row[d] = static_cast<uint8_t>(code);
    } else {
      row[d - half] = static_cast<uint8_t>(row[d - half] | static_cast<int>(code) << 4);
    }
  }
}

// Rows are taken as rotated already.
void EncodeLevels(const std::vector<float>& x, int bits, uint8_t* row, uint8_t* scale,
                  double* real) {
  double square = 0;
  for (const float v : x) square += double{v} * v;
  const uint16_t step =
      TruncateToBf16(static_cast<float>(std::sqrt(square / static_cast<double>(x.size()))));
  std::memcpy(scale, &step, 2);
  const std::vector<double> levels = LevelsOf(bits);
  const size_t quarter = x.size() / 4;
  std::fill_n(row, x.size() * static_cast<size_t>(bits) / 8, uint8_t{0});
  for (size_t d = 0; d < x.size(); ++d) {
    const double magnitude = std::fabs(x[d]) / FromBf16(step);
    const auto nearest = std::ranges::min_element(
        levels, {}, [&](double level) { return std::fabs(level - magnitude); });
    const bool negative = x[d] < 0;
    const auto index = static_cast<int>(nearest - levels.begin());
    const int low = bits == 2 && negative ? index | 2 : index;
    row[d % quarter] = static_cast<uint8_t>(row[d % quarter] | low << (2 * (d / quarter)));
    if (bits == 3 && negative) {
      row[quarter + d / 8] = static_cast<uint8_t>(row[quarter + d / 8] | 1 << (d % 8));
    }
    real[d] = (negative ? -1 : 1) * *nearest * FromBf16(step);
  }
}

void Encode(KvCode code, const std::vector<float>& x, std::byte* row, std::byte* scale,
            double* real) {
  auto* codes = reinterpret_cast<uint8_t*>(row);
  auto* scales = reinterpret_cast<uint8_t*>(scale);
  if (code == KvCode::kF8) return EncodeF8(x, codes, scales, real);
  if (code == KvCode::kI8) return EncodeAffine(x, 255, codes, scales, real);
  if (code == KvCode::kI4) return EncodeAffine(x, 15, codes, scales, real);
  if (IsLevels(code)) return EncodeLevels(x, CodeBits(code), codes, scales, real);
  for (size_t d = 0; d < x.size(); ++d) {
    const Bf16 value = ToBf16(x[d]);
    std::memcpy(row + 2 * d, &value, sizeof(value));
    real[d] = ToFloat(value);
  }
}

}  // namespace

KvPlanes PlanesOfCodes(const KvPoolCase::Options& o, int32_t layer, std::byte* base) {
  const int32_t key_row = o.head_dim * CodeBits(o.keys) / 8;
  const int32_t value_row = o.head_dim * CodeBits(o.values) / 8;
  const int32_t head = o.page * (key_row + value_row), codes = o.kv_heads * head;
  const int32_t key_scales = o.page * ScaleBytes(o.keys);
  const int32_t scales_of_head = key_scales + o.page * ScaleBytes(o.values);
  const int64_t layer_bytes = codes + o.kv_heads * scales_of_head;
  // As an integer, since a null base asks for offsets alone.
  const auto address =
      reinterpret_cast<uintptr_t>(base) + static_cast<uintptr_t>(layer * layer_bytes);
  KvPlanes planes{.layer = reinterpret_cast<std::byte*>(address),
                  .block_stride = (o.layers * layer_bytes + 4095) / 4096 * 4096,
                  .keys = {.code = o.keys,
                           .offset = 0,
                           .head_stride = head,
                           .row_bytes = key_row,
                           .scale_offset = codes,
                           .scale_head_stride = scales_of_head},
                  .values = {.code = o.values,
                             .offset = o.page * key_row,
                             .head_stride = head,
                             .row_bytes = value_row,
                             .scale_offset = codes + key_scales,
                             .scale_head_stride = scales_of_head},
                  .kv_heads = o.kv_heads,
                  .head_dim = o.head_dim,
                  .page_log2 = 0};
  while ((1 << planes.page_log2) < o.page) ++planes.page_log2;
  return planes;
}

KvPoolCase::KvPoolCase(const Options& o) : lengths(o.lengths) {
  std::mt19937_64 shuffler(o.seed);
  int64_t blocks = 3;
  for (const int32_t length : lengths) {
    const int64_t pages = (length + o.page - 1) / o.page;
    table_stride = std::max(table_stride, pages);
    blocks += pages;
  }
  planes = PlanesOfCodes(o, o.layers - 1, nullptr);
  const size_t layer_offset = reinterpret_cast<size_t>(planes.layer);
  bytes.assign(static_cast<size_t>(blocks * planes.block_stride), std::byte{0xff});
  std::vector<uint32_t> order(blocks);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), shuffler);
  host_tables.assign(lengths.size() * table_stride, 0xffffffffu);
  size_t dealt = 0;
  for (size_t s = 0; s < lengths.size(); ++s) {
    // The seed is of this sequence alone: neither other sequences nor the page size change its
    // values.
    std::mt19937_64 random(o.seed + 1000 * (s + 1));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i * o.page < lengths[s]; ++i) {
      host_tables[s * table_stride + i] = order[dealt++];
    }
    for (auto& plane : real) {
      plane.emplace_back(static_cast<size_t>(o.kv_heads) * lengths[s] * o.head_dim);
    }
    for (int plane = 0; plane < 2; ++plane) {
      const KvPlane& where = plane == 0 ? planes.keys : planes.values;
      double* out = real[plane][s].data();
      for (int h = 0; h < o.kv_heads; ++h) {
        for (int t = 0; t < lengths[s]; ++t, out += o.head_dim) {
          std::vector<float> x(o.head_dim);
          for (float& v : x) {
            v = plane == 0 ? normal(random) * 1.5f + 0.5f
                           : (normal(random) + 0.2f) * o.value_deviation;
          }
          if (!o.begins.empty() && t < o.begins[s]) continue;
          std::byte* page = bytes.data() + layer_offset +
                            host_tables[s * table_stride + t / o.page] * planes.block_stride;
          const int slot = t % o.page;
          std::byte* scale = page + where.scale_offset + h * where.scale_head_stride +
                             slot * ScaleBytes(where.code);
          Encode(where.code, x,
                 page + where.offset + h * where.head_stride + slot * where.row_bytes, scale, out);
          // Answers are sums of values, rotated back.
          if (plane == 1 && IsLevels(where.code)) {
            std::ranges::copy(Rotated(std::vector<double>(out, out + o.head_dim)), out);
          }
          if (t == o.nan_token && plane == o.nan_plane) {
            std::fill_n(scale, ScaleBytes(where.code), std::byte{0xff});
          }
        }
      }
    }
  }
  pool = std::make_unique<DeviceArray<std::byte>>(bytes);
  tables = std::make_unique<DeviceArray<uint32_t>>(host_tables);
  planes.layer = pool->data() + layer_offset;
}

}  // namespace penstock::cuda
