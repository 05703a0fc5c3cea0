#include "tests/cuda/cases/blend_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/blend/blend.h"
#include "tests/cuda/cases/device_array.h"

namespace penstock::cuda {
namespace {

constexpr int kPageTokens = 16;

// A pool of which the first half of the slots, in another order, is the source of the moves.
struct BlendPool {
  explicit BlendPool(const BlendCase& c)
      : row(c.head_dim * 2), plane_bytes(c.kv_heads * kPageTokens * row), random(c.seed) {
    blocks = 2 * ((c.tokens + kPageTokens - 1) / kPageTokens);
    layer_bytes = 2 * plane_bytes;
    bytes.resize(static_cast<size_t>(blocks) * layer_bytes * c.layers);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < bytes.size(); i += 2) {
      const Bf16 element = ToBf16(normal(random));
      std::memcpy(bytes.data() + i, &element, 2);
    }
    std::vector<int64_t> order(static_cast<size_t>(blocks) * kPageTokens);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    from.assign(order.begin(), order.begin() + c.tokens);
    to.assign(order.begin() + c.tokens, order.begin() + 2 * c.tokens);
    planes = {.block_stride = int64_t{layer_bytes} * c.layers,
              .keys = {.head_stride = kPageTokens * row, .row_bytes = row},
              .values = {.offset = plane_bytes, .head_stride = kPageTokens * row, .row_bytes = row},
              .kv_heads = c.kv_heads,
              .head_dim = c.head_dim,
              .page_log2 = 4};
  }

  // The elements of a head in a slot of a plane.
  std::vector<float> Row(const std::vector<std::byte>& pool, int layer, int64_t slot, int head,
                         const KvPlane& plane) const {
    const std::byte* at = pool.data() + slot / kPageTokens * planes.block_stride +
                          int64_t{layer} * layer_bytes + plane.offset + head * plane.head_stride +
                          slot % kPageTokens * row;
    std::vector<float> elements;
    for (int d = 0; d < planes.head_dim; ++d) {
      Bf16 element;
      std::memcpy(&element, at + 2 * d, 2);
      elements.push_back(ToFloat(element));
    }
    return elements;
  }

  const int32_t row, plane_bytes;
  std::mt19937_64 random;
  int32_t blocks = 0, layer_bytes = 0;
  std::vector<std::byte> bytes;
  std::vector<int64_t> from, to;
  KvPlanes planes;  // without a pool
};

struct Rotations {
  Rotations(int tokens, int of_pairs, std::mt19937_64& random) : pairs(of_pairs) {
    std::uniform_real_distribution<float> angle(-3, 3);
    for (int i = 0; i < tokens * pairs; ++i) {
      const float a = angle(random);
      cosines.push_back(std::cos(a));
      sines.push_back(std::sin(a));
    }
  }
  int pairs;
  std::vector<float> cosines, sines;
};

// The largest difference of a key from what it is in double precision, of the largest key.
double KeyError(const std::vector<float>& was, const std::vector<float>& is, const float* cosines,
                const float* sines, int pairs) {
  double worst = 0, largest = 0;
  for (size_t d = 0; d < was.size(); ++d) {
    double want = was[d];
    const auto at = static_cast<int>(d);
    if (at < pairs) {
      want = double{was[d]} * cosines[d] - double{was[d + pairs]} * sines[d];
    } else if (at < 2 * pairs) {
      want = double{was[d]} * cosines[d - pairs] + double{was[d - pairs]} * sines[d - pairs];
    }
    const double error = std::fabs(is[d] - want);
    if (!(error <= worst)) worst = error;  // NaN is the worst
    largest = std::max(largest, std::fabs(want));
  }
  return worst / largest;
}

// Values of layer 0 before and behind the moves, at the slots that tokens have moved to.
double SquaresError(const BlendPool& pool, const std::vector<std::byte>& moved,
                    const std::vector<float>& squares) {
  double worst = 0;
  for (size_t i = 0; i < pool.to.size(); ++i) {
    double differences = 0, values = 0;
    for (int head = 0; head < pool.planes.kv_heads; ++head) {
      const auto was = pool.Row(pool.bytes, 0, pool.to[i], head, pool.planes.values);
      const auto is = pool.Row(moved, 0, pool.to[i], head, pool.planes.values);
      for (size_t d = 0; d < was.size(); ++d) {
        differences += (double{is[d]} - was[d]) * (double{is[d]} - was[d]);
        values += double{is[d]} * is[d];
      }
    }
    for (const double error : {std::fabs(squares[2 * i] - differences) / differences,
                               std::fabs(squares[2 * i + 1] - values) / values}) {
      if (!(error <= worst)) worst = error;
    }
  }
  return worst;
}

}  // namespace

BlendResult RunBlend(const BlendCase& c) {
  BlendPool pool(c);
  const Rotations first(c.tokens, c.pairs, pool.random), second(c.tokens, c.pairs / 2, pool.random);
  const DeviceArray<std::byte> memory(pool.bytes);
  const DeviceArray<int64_t> from(pool.from), to(pool.to);
  const DeviceArray<float> cosines(first.cosines), sines(first.sines),
      other_cosines(second.cosines), other_sines(second.sines), squares(2 * pool.to.size());
  std::vector<int32_t> turns_of;  // layer 0 has the first table, layer 1 the second, layer 2 none
  for (int layer = 0; layer < c.layers; ++layer)
    turns_of.push_back(layer % 3 == 2 ? -1 : layer % 3);
  const DeviceArray<int32_t> tables(turns_of);
  const DeviceArray<Bf16> kept(size_t{1} * c.tokens * c.kv_heads * c.head_dim);
  KvPlanes planes = pool.planes;
  planes.layer = memory.data();
  const ValuesParams values{
      .kv = planes, .slots = to.data(), .values = kept.data(), .squares = squares.data()};
  ReadValues(values, c.tokens, nullptr);
  MoveTokens({.kv = planes,
              .layer_stride = pool.layer_bytes,
              .layers = c.layers,
              .from = from.data(),
              .to = to.data(),
              .turns = {{cosines.data(), sines.data(), first.pairs},
                        {other_cosines.data(), other_sines.data(), second.pairs}},
              .turns_of = tables.data()},
             c.tokens, nullptr);
  CompareValues(values, c.tokens, nullptr);
  ExpectNoDeviceError("blends");
  const std::vector<std::byte> moved = memory.Read();
  BlendResult result{.values_equal = true, .squares = SquaresError(pool, moved, squares.Read())};
  for (int layer = 0; layer < c.layers; ++layer) {
    const Rotations& turns = turns_of[static_cast<size_t>(layer)] == 1 ? second : first;
    const int pairs = turns_of[static_cast<size_t>(layer)] < 0 ? 0 : turns.pairs;
    for (int token = 0; token < c.tokens; ++token) {
      const int64_t source = pool.from[token], target = pool.to[token];
      for (int head = 0; head < c.kv_heads; ++head) {
        const auto was = pool.Row(pool.bytes, layer, source, head, planes.values);
        result.values_equal &= pool.Row(moved, layer, target, head, planes.values) == was;
        const double error = KeyError(pool.Row(pool.bytes, layer, source, head, planes.keys),
                                      pool.Row(moved, layer, target, head, planes.keys),
                                      turns.cosines.data() + token * turns.pairs,
                                      turns.sines.data() + token * turns.pairs, pairs);
        if (!(error <= result.keys)) result.keys = error;
      }
    }
  }
  return result;
}

}  // namespace penstock::cuda
