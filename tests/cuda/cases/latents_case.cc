#include "tests/cuda/cases/latents_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/cuda/latents/latents.h"
#include "tests/cuda/cases/attention_arrays.h"

namespace penstock::cuda {
namespace {

constexpr float kScale = 0.07f, kLog2E = 1.44269504f;
constexpr int32_t kPlainDims = 24;  // of the queries that have the rotated parts

std::vector<float> RandomFloats(int64_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<Bf16> RandomBf16(int64_t size, uint64_t seed) {
  std::vector<Bf16> values;
  for (const float value : RandomFloats(size, seed)) values.push_back(ToBf16(value));
  return values;
}

std::vector<uint16_t> BitsOf(const DeviceArray<Bf16>& array) {
  std::vector<uint16_t> bits;
  for (const Bf16 value : array.Read()) bits.push_back(value.bits);
  return bits;
}

// A pool of two layers of pages of latents, dealt at random; the rest is NaN.
struct LatentPool {
  LatentPool(const std::vector<int32_t>& lengths, int32_t page) : row(kLatentRow) {
    int64_t blocks = 3;
    for (const int32_t length : lengths) {
      const int64_t pages = (length + page - 1) / page;
      table_stride = std::max(table_stride, pages);
      blocks += pages;
    }
    const int32_t layer_bytes = page * row * 2;
    planes = {.block_stride = (2 * layer_bytes + 4095) / 4096 * 4096,
              .keys = {.row_bytes = row * 2},
              .kv_heads = 1,
              .head_dim = row,
              .page_log2 = 0};
    while ((1 << planes.page_log2) < page) ++planes.page_log2;
    bytes.assign(static_cast<size_t>(blocks * planes.block_stride), std::byte{0xff});
    std::vector<uint32_t> order(static_cast<size_t>(blocks)), host_tables;
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(5));
    host_tables.assign(lengths.size() * static_cast<size_t>(table_stride), 0xffffffffu);
    size_t dealt = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      latents.push_back(RandomBf16(int64_t{lengths[s]} * row, 100 + s));
      for (int32_t t = 0; t < lengths[s]; ++t) {
        uint32_t& block = host_tables[s * static_cast<size_t>(table_stride) + t / page];
        if (t % page == 0) block = order[dealt++];
        std::memcpy(bytes.data() + block * planes.block_stride + layer_bytes + t % page * row * 2,
                    latents[s].data() + int64_t{t} * row, static_cast<size_t>(row) * 2);
      }
    }
    pool = std::make_unique<DeviceArray<std::byte>>(bytes);
    tables = std::make_unique<DeviceArray<uint32_t>>(host_tables);
    planes.layer = pool->data() + layer_bytes;
  }

  const int32_t row;
  int64_t table_stride = 0;
  KvPlanes planes;  // of the last layer
  std::vector<std::byte> bytes;
  std::vector<std::vector<Bf16>> latents;  // of each sequence, [token][kLatentRow]
  std::unique_ptr<DeviceArray<std::byte>> pool;
  std::unique_ptr<DeviceArray<uint32_t>> tables;
};

// Every sequence in tiles of one kind, or as they are planned.
AttentionPlan PlanOf(const LatentCase& c, const std::vector<AttentionSequence>& sequences) {
  TileRows tiles = kLatentTiles;
  if (c.tiles == AttentionTiles::kWide) tiles.narrow_max = 0;
  if (c.tiles == AttentionTiles::kNarrow) tiles.narrow_max = std::numeric_limits<int32_t>::max();
  return PlanAttention(sequences, c.heads, tiles);
}

// The query of a row and head: what meets latents, and what meets keys.
struct Query {
  const Bf16* plain;
  const Bf16* rotated;
  float At(int i) const { return ToFloat(i < kLatentRank ? plain[i] : rotated[i - kLatentRank]); }
};

void Compare(const std::vector<Bf16>& latents, int position, const Query& query,
             const uint16_t* got, DeviationSums& sums) {
  std::vector<double> weights(static_cast<size_t>(position) + 1), want(kLatentRank);
  double top = -std::numeric_limits<double>::infinity(), total = 0;
  for (int t = 0; t <= position; ++t) {
    double score = 0;
    for (int i = 0; i < kLatentRow; ++i) {
      score += double{query.At(i)} * ToFloat(latents[int64_t{t} * kLatentRow + i]);
    }
    weights[t] = kScale * score;
    top = std::max(top, weights[t]);
  }
  for (int t = 0; t <= position; ++t) {
    const double weight = std::exp(weights[t] - top);
    total += weight;
    for (int i = 0; i < kLatentRank; ++i) {
      want[i] += weight * ToFloat(latents[int64_t{t} * kLatentRow + i]);
    }
  }
  for (int i = 0; i < kLatentRank; ++i) sums.Add(ToFloat(Bf16{got[i]}), want[i] / total);
}

std::vector<uint16_t> RunHeads(const HeadProductCase& c, const std::vector<Bf16>& x,
                               const std::vector<Bf16>& w) {
  const auto rows = static_cast<int32_t>(std::ssize(x) / (c.heads * c.input_step));
  const DeviceArray<Bf16> input(x), matrices(w), output(size_t{1} * rows * c.heads * c.outputs);
  HeadProducts({.matrices = matrices.data(),
                .heads = c.heads,
                .outputs = c.outputs,
                .inputs = c.inputs,
                .input = input.data(),
                .input_step = c.input_step,
                .rows = rows,
                .output = output.data()},
               nullptr);
  ExpectNoDeviceError("heads' products");
  return BitsOf(output);
}

std::vector<Bf16> HeadInput(const HeadProductCase& c) {
  return RandomBf16(int64_t{c.rows} * c.heads * c.input_step, c.seed);
}
std::vector<Bf16> HeadMatrices(const HeadProductCase& c) {
  return RandomBf16(int64_t{c.heads} * c.outputs * c.inputs, c.seed + 1);
}

// A product in slices, and its sums.
struct Sliced {
  Sliced(int rows, int width, int slices, uint64_t seed)
      : host(RandomFloats(int64_t{1} * slices * rows * width, seed)),
        device(host),
        product{.data = device.data(),
                .slice_stride = int64_t{1} * rows * width,
                .slices = slices,
                .width = width} {}
  double At(int64_t row, int64_t column) const {
    double sum = 0;
    for (int s = 0; s < product.slices; ++s) {
      sum += host[static_cast<size_t>(s * product.slice_stride + row * product.width + column)];
    }
    return sum;
  }
  double Scale(int64_t row, int64_t width, double epsilon) const {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += At(row, i) * At(row, i);
    return 1 / std::sqrt(squares / static_cast<double>(width) + epsilon);
  }

  const std::vector<float> host;
  const DeviceArray<float> device;
  const Product product;
};

// The worst deviation, of numbers near 1. NaN stays.
struct Worst {
  double value = 0;
  void Add(double got, double want) {
    const double off = std::fabs(got - want) / std::max(1.0, std::fabs(want));
    if (off > value || std::isnan(off)) value = off;
  }
};

struct Angles {
  explicit Angles(int rows, uint64_t seed)
      : turns(RandomFloats(int64_t{1} * rows * kPairs, seed)),
        cosines(Of([](float x) { return std::cos(x); })),
        sines(Of([](float x) { return std::sin(x); })) {}
  template <class Function>
  std::vector<float> Of(const Function& function) const {
    std::vector<float> values;
    for (const float turn : turns) values.push_back(function(turn));
    return values;
  }
  // Element `i` of a rotated row of which at(j) is element j.
  template <class At>
  double Rotated(int64_t row, int i, const At& at) const {
    const double turn = turns[static_cast<size_t>(row * kPairs + i % kPairs)];
    const double first = at(i % kPairs), second = at(i % kPairs + kPairs);
    return i < kPairs ? first * std::cos(turn) - second * std::sin(turn)
                      : second * std::cos(turn) + first * std::sin(turn);
  }

  static constexpr int kPairs = kLatentRopeDims / 2;
  const std::vector<float> turns;
  const DeviceArray<float> cosines, sines;
};

}  // namespace

AttentionResult RunLatentAttention(const LatentCase& c) {
  const LatentPool pool(c.lengths, c.page);
  constexpr int32_t kQueryDims = kPlainDims + kLatentRopeDims;
  std::vector<AttentionSequence> sequences;
  std::vector<Bf16> plain, rotated;  // a query depends on its sequence and position alone
  int32_t rows = 0;
  for (size_t s = 0; s < c.rows.size(); ++s) {
    const int32_t first = c.lengths[s] - c.rows[s];
    sequences.push_back({.first_row = rows, .rows = c.rows[s], .position = first});
    rows += c.rows[s];
    for (int32_t t = first; t < c.lengths[s]; ++t) {
      const uint64_t seed = 7 + 1000 * s + 1000000 * static_cast<uint64_t>(t);
      const auto one = RandomBf16(int64_t{c.heads} * kLatentRank, seed);
      const auto other = RandomBf16(int64_t{c.heads} * kQueryDims, seed + 1);
      plain.insert(plain.end(), one.begin(), one.end());
      rotated.insert(rotated.end(), other.begin(), other.end());
    }
  }
  AttentionPlan plan = PlanOf(c, sequences);
  plan.wide.push_back({});  // padding
  plan.narrow.push_back({});
  plan.items.push_back({});
  const AttentionArrays arrays(sequences, plan, 0,
                               NarrowScratchBytes(plan.shares + 1, 1, kLatentRank));
  const DeviceArray<Bf16> queries(plain), keys(rotated), output(plain.size());
  const int64_t width = int64_t{c.heads} * kLatentRank;
  LatentAttentionParams params{.attention = {.queries = queries.data(),
                                             .query_stride = width,
                                             .output = output.data(),
                                             .output_stride = width,
                                             .kv = pool.planes,
                                             .tables = pool.tables->data(),
                                             .table_stride = pool.table_stride,
                                             .group = c.heads,
                                             .scale_log2 = kLog2E * kScale},
                               .rotated = keys.data() + kPlainDims,
                               .rotated_stride = int64_t{c.heads} * kQueryDims,
                               .rotated_step = kQueryDims};
  arrays.SetIn(params.attention);
  LatentAttention(params, plan.counts(), nullptr);
  ExpectNoDeviceError("LatentAttention");
  AttentionResult result{.bits = BitsOf(output)};
  if (!c.oracle) return result;
  DeviationSums sums;
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int32_t r = 0; r < sequences[s].rows; ++r) {
      for (int32_t h = 0; h < c.heads; ++h) {
        const int64_t at = (int64_t{sequences[s].first_row} + r) * c.heads + h;
        const Query query{plain.data() + at * kLatentRank,
                          rotated.data() + at * kQueryDims + kPlainDims};
        Compare(pool.latents[s], sequences[s].position + r, query,
                result.bits.data() + at * kLatentRank, sums);
      }
    }
  }
  result.deviation = sums.Result();
  return result;
}

double HeadDeviation(const HeadProductCase& c) {
  const std::vector<Bf16> x = HeadInput(c), w = HeadMatrices(c);
  const std::vector<uint16_t> got = RunHeads(c, x, w);
  Worst worst;
  for (int64_t i = 0; i < std::ssize(got); ++i) {
    const int64_t output = i % c.outputs, head = i / c.outputs % c.heads;
    const Bf16* row = x.data() + i / c.outputs * c.input_step;
    const Bf16* matrix = w.data() + (head * c.outputs + output) * c.inputs;
    double want = 0;
    for (int32_t k = 0; k < c.inputs; ++k) want += double{ToFloat(row[k])} * ToFloat(matrix[k]);
    const double size = std::sqrt(c.inputs);
    worst.Add(ToFloat(Bf16{got[static_cast<size_t>(i)]}) / size, want / size);
  }
  return worst.value;
}

bool HeadProductsAreOfTheirRow(const HeadProductCase& c) {
  const std::vector<Bf16> x = HeadInput(c), w = HeadMatrices(c);
  const std::vector<uint16_t> all = RunHeads(c, x, w);
  const int64_t width = int64_t{c.heads} * c.input_step, outputs = int64_t{c.heads} * c.outputs;
  for (int64_t row = 0; row < c.rows; ++row) {
    const std::vector<uint16_t> alone =
        RunHeads(c, {x.begin() + row * width, x.begin() + (row + 1) * width}, w);
    if (!std::equal(alone.begin(), alone.end(), all.begin() + row * outputs)) return false;
  }
  return true;
}

double LatentNormDeviation(int rows, int width, int slices, uint64_t seed) {
  constexpr float kEpsilon = 0.5f;
  const Sliced x(rows, width, slices, seed);
  const std::vector<float> weights = RandomFloats(width, seed + 1);
  const DeviceArray<float> weight(weights);
  const DeviceArray<Bf16> output(size_t{1} * rows * width);
  LatentNorm(
      {.product = x.product, .weight = weight.data(), .epsilon = kEpsilon, .output = output.data()},
      rows, nullptr);
  ExpectNoDeviceError("a norm of latents");
  const std::vector<Bf16> got = output.Read();
  Worst worst;
  for (int64_t row = 0; row < rows; ++row) {
    const double scale = x.Scale(row, width, kEpsilon);
    for (int64_t i = 0; i < width; ++i) {
      worst.Add(ToFloat(got[row * width + i]), x.At(row, i) * scale * weights[i]);
    }
  }
  return worst.value;
}

double LatentAppendDeviation(const LatentRowsCase& c) {
  constexpr float kEpsilon = 0.5f;
  const Sliced x(c.rows, kLatentRow, c.slices, c.seed);
  const Angles angles(c.rows, c.seed + 1);
  const std::vector<float> norm = RandomFloats(kLatentRank, c.seed + 2);
  const DeviceArray<float> weight(norm);
  const LatentPool pool({4 * c.rows}, c.page);
  std::vector<std::byte> want_bytes = pool.bytes;
  std::vector<int64_t> slots;
  for (int64_t row = 0; row < c.rows; ++row) slots.push_back(row % 3 == 2 ? -1 : 3 * row + 1);
  const DeviceArray<int64_t> device_slots(slots);
  LatentAppend({.product = x.product,
                .norm = weight.data(),
                .epsilon = kEpsilon,
                .cosines = angles.cosines.data(),
                .sines = angles.sines.data(),
                .rows = c.rows,
                .kv = pool.planes,
                .slots = device_slots.data()},
               nullptr);
  ExpectNoDeviceError("a store of latents");
  const std::vector<std::byte> got = pool.pool->Read();
  Worst worst;
  for (int64_t row = 0; row < c.rows; ++row) {
    if (slots[row] < 0) continue;
    const double scale = x.Scale(row, kLatentRank, kEpsilon);
    const int64_t at = slots[row] / c.page * pool.planes.block_stride +
                       (pool.planes.layer - pool.pool->data()) +
                       slots[row] % c.page * kLatentRow * 2;
    std::vector<Bf16> stored(kLatentRow);
    std::memcpy(stored.data(), got.data() + at, kLatentRow * 2);
    std::memcpy(want_bytes.data() + at, got.data() + at, kLatentRow * 2);
    for (int i = 0; i < kLatentRank; ++i) {
      worst.Add(ToFloat(stored[i]), x.At(row, i) * scale * norm[i]);
    }
    const auto key = [&](int i) { return x.At(row, kLatentRank + i); };
    for (int i = 0; i < kLatentRopeDims; ++i) {
      worst.Add(ToFloat(stored[kLatentRank + i]), angles.Rotated(row, i, key));
    }
  }
  return got == want_bytes ? worst.value : std::numeric_limits<double>::infinity();
}

double LatentQueriesDeviation(const LatentRowsCase& c) {
  const int32_t dims = c.plain_dims + kLatentRopeDims, width = c.heads * dims;
  const Sliced x(c.rows, width, c.slices, c.seed);
  const Angles angles(c.rows, c.seed + 1);
  const DeviceArray<Bf16> output(size_t{1} * c.rows * width);
  LatentQueries({.product = x.product,
                 .cosines = angles.cosines.data(),
                 .sines = angles.sines.data(),
                 .rows = c.rows,
                 .heads = c.heads,
                 .plain_dims = c.plain_dims,
                 .queries = output.data()},
                nullptr);
  ExpectNoDeviceError("queries of latents");
  const std::vector<Bf16> got = output.Read();
  Worst worst;
  for (int64_t i = 0; i < std::ssize(got); ++i) {
    const int64_t row = i / width, column = i % width, dim = column % dims;
    const auto rotated = [&](int j) { return x.At(row, column - dim + c.plain_dims + j); };
    worst.Add(ToFloat(got[i]),
              dim < c.plain_dims
                  ? x.At(row, column)
                  : angles.Rotated(row, static_cast<int>(dim - c.plain_dims), rotated));
  }
  return worst.value;
}

}  // namespace penstock::cuda
