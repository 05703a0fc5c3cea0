#include "tests/cuda/cases/attention_case.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cuda/angle_order.h"
#include "kernels/cuda/attention.h"
#include "tests/cuda/cases/attention_arrays.h"
#include "tests/kernels/kv_row_oracle.h"

namespace penstock::cuda {
namespace {

struct Queries {
  // The last rows[i] positions of sequence i; a query depends on its sequence and position alone.
  Queries(const AttentionCase& c, const std::vector<int32_t>& rows)
      : heads(c.kv.kv_heads * c.group), dim(c.kv.head_dim), width(int64_t{heads} * dim) {
    for (size_t s = 0; s < rows.size(); ++s) {
      for (int32_t t = c.kv.lengths[s] - rows[s]; t < c.kv.lengths[s]; ++t) {
        std::mt19937_64 random(c.query_seed + 1000 * s + 1000000 * t);
        std::normal_distribution<float> normal;
        for (int64_t i = 0; i < width; ++i) host.push_back(ToBf16(normal(random)));
      }
    }
    device = std::make_unique<DeviceArray<Bf16>>(host);
    output = std::make_unique<DeviceArray<Bf16>>(host.size());
  }

  int32_t heads, dim;
  int64_t width;
  std::vector<Bf16> host;
  std::unique_ptr<DeviceArray<Bf16>> device, output;
};

// The centre queries of a case, as long as its queries, and the angles of all positions.
struct Centre {
  Centre(const AttentionCase& c, const Queries& q)
      : dim(q.dim), pairs(c.centred_dims / 2), positions(std::ranges::max(c.kv.lengths)) {
    for (size_t i = 0; i < q.host.size(); ++i) queries.push_back(q.host[i ^ 5]);
    const auto elements = static_cast<size_t>(AngleElements(positions, dim));
    std::vector<Bf16> packed(elements);
    for (int position = 0; position < positions; ++position) {
      for (int d = 0; d < dim; ++d) {
        const Bf16 angle = AngleOf(position, d);
        packed[static_cast<size_t>(AngleAt(position, d, dim))] = angle;
        host_angles.push_back(ToFloat(angle));
      }
    }
    device = std::make_unique<DeviceArray<Bf16>>(queries);
    angles = std::make_unique<DeviceArray<Bf16>>(packed);
  }
  Bf16 AngleOf(int position, int d) const {
    if (d >= 2 * pairs) return ToBf16(1);
    const double angle = position / std::pow(100.0, d % pairs / static_cast<double>(pairs));
    return ToBf16(static_cast<float>(d < pairs ? std::cos(angle) : std::sin(angle)));
  }
  // What a query at `at` adds to its score of a token.
  double Score(int64_t at, int token) const {
    const Bf16* const query = queries.data() + at;
    const float* const angle = host_angles.data() + int64_t{token} * dim;
    double sum = 0;
    for (int d = 0; d < dim; ++d) sum += double{ToFloat(query[d])} * angle[d];
    return sum;
  }

  int dim, pairs, positions;
  std::vector<Bf16> queries;
  std::vector<float> host_angles;  // [position][dim]
  std::unique_ptr<DeviceArray<Bf16>> device, angles;
};

// From far below the scores of a row to far above them.
float SinkOf(int head) { return -4.0f + 1.75f * static_cast<float>(head % 8); }

// The keys and values of a case, of which those in bf16 are others, so that a kernel that reads a
// token in the wrong form gives a wrong answer. They are there from the span of the first query on.
struct CasePools {
  explicit CasePools(const AttentionCase& c) : span(c.span), kv(c.kv) {
    if (span == 0) return;
    KvPoolCase::Options second = c.kv;
    second.keys = second.values = KvCode::kBf16;
    second.seed = c.kv.seed + 77;
    for (size_t s = 0; s < c.rows.size(); ++s) {
      second.begins.push_back((c.kv.lengths[s] - c.rows[s]) / span * span);
    }
    recent = std::make_unique<KvPoolCase>(second);
    if (IsLevels(c.kv.values)) RotateValues();
  }

  // As KvPoolCase::Row, for a query at `position`.
  const double* Row(int plane, int sequence, int head, int token, int position) const {
    const bool own = span > 0 && token >= position / span * span;
    return (own ? *recent : kv).Row(plane, sequence, head, token);
  }
  // Answers are sums of values that pages have rotated.
  void RotateValues() {
    const auto dim = static_cast<size_t>(kv.planes.head_dim);
    for (std::vector<double>& values : recent->real[1]) {
      for (auto row = values.begin(); row != values.end(); row += dim) {
        std::ranges::copy(Rotated(std::vector<double>(row, row + dim)), row);
      }
    }
  }

  const int span;
  const KvPoolCase kv;
  std::unique_ptr<KvPoolCase> recent;  // null: no span
};

// One query at `position` of a sequence. `centre` gives the score of a token's mean.
template <class Centred>
void Compare(const AttentionCase& c, const CasePools& kv, int sequence, int position, int head,
             const Bf16* query, const Centred& centre, const uint16_t* got, DeviationSums& sums) {
  const int dim = c.kv.head_dim, kv_head = head / c.group;
  const int first = c.window > 0 ? std::max(0, position + 1 - c.window) : 0;
  std::vector<double> weights(position + 1), wanted(dim);
  double* const want = wanted.data();
  double top = -std::numeric_limits<double>::infinity(), total = 0;
  for (int t = first; t <= position; ++t) {
    const double* const key = kv.Row(0, sequence, kv_head, t, position);
    double score = centre(t);
    for (int d = 0; d < dim; ++d) score += ToFloat(query[d]) * key[d];
    score /= std::sqrt(dim);
    if (c.cap > 0) score = c.cap * std::tanh(score / c.cap);
    weights[t] = score;
    top = std::max(top, score);
  }
  if (c.sinks) {
    top = std::max<double>(top, SinkOf(head));
    total = std::exp(SinkOf(head) - top);
  }
  for (int t = first; t <= position; ++t) {
    const double* const value = kv.Row(1, sequence, kv_head, t, position);
    const double weight = std::exp(weights[t] - top);
    total += weight;
    for (int d = 0; d < dim; ++d) want[d] += weight * value[d];
  }
  for (int d = 0; d < dim; ++d) sums.Add(ToFloat(Bf16{got[d]}), want[d] / total);
}

std::vector<uint16_t> Bits(const DeviceArray<Bf16>& array) {
  std::vector<uint16_t> bits;
  for (const Bf16 value : array.Read()) bits.push_back(value.bits);
  return bits;
}

// The tokens that ask, and how the kernels see them.
struct Asking {
  Asking(const AttentionCase& c, const KvPoolCase& kv) {
    for (size_t s = 0; s < c.rows.size(); ++s) {
      const auto first_row = static_cast<int32_t>(positions.size());
      const auto* const table = kv.host_tables.data() + s * static_cast<size_t>(kv.table_stride);
      for (int32_t row = 0; row < c.rows[s]; ++row) {
        positions.push_back(c.kv.lengths[s] - 1 - c.apart * (c.rows[s] - 1 - row));
        sequence_of.push_back(static_cast<int>(s));
        if (c.alone) Add({first_row + row, 1, positions.back()}, table, kv.table_stride);
      }
      if (c.alone) continue;
      Add({first_row, c.rows[s], c.kv.lengths[s] - c.rows[s]}, table, kv.table_stride);
    }
    if (c.apart > 1 && !c.alone) given = positions;
  }

  std::vector<int32_t> positions, sequence_of;  // by row
  std::vector<AttentionSequence> sequences;
  std::vector<uint32_t> tables;
  std::vector<int32_t> given;  // AttentionParams::positions

 private:
  void Add(const AttentionSequence& sequence, const uint32_t* table, int64_t stride) {
    sequences.push_back(sequence);
    tables.insert(tables.end(), table, table + stride);
  }
};

// Unless the case has planned tiles, every row is in tiles of one kind.
AttentionPlan PlanOf(const AttentionCase& c, const Asking& asking) {
  const std::vector<AttentionSequence>& sequences = asking.sequences;
  if (c.tiles == AttentionTiles::kPlanned) {
    TileRows tiles;
    if (c.launch_shares_max > 0) tiles.launch_shares_max = c.launch_shares_max;
    return PlanAttention(sequences, c.group, tiles, asking.given);
  }
  AttentionPlan plan;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const AttentionSequence& s = sequences[i];
    const bool wide = c.tiles == AttentionTiles::kWide;
    const int32_t rows = s.rows * c.group, step = wide ? kWideRows : kNarrowRows;
    for (int32_t first = 0; first < rows; first += step) {
      AttentionTile tile{.sequence = static_cast<int32_t>(i), .first = first};
      if (wide) {
        plan.wide.push_back(tile);
        continue;
      }
      const int32_t last = s.position + (std::min(first + step, rows) - 1) / c.group;
      tile.splits = last / kSplitTokens + 1;
      tile.first_share = plan.shares;
      for (int32_t split = 0; split < tile.splits; ++split) {
        plan.items.push_back({static_cast<int32_t>(plan.narrow.size()), split});
      }
      plan.shares += tile.splits * std::min(step, rows - first);
      plan.narrow.push_back(tile);
    }
  }
  return plan;
}

constexpr float kLog2E = 1.44269504f;

float Scale(int dim) { return 1.0f / std::sqrt(static_cast<float>(dim)); }

}  // namespace

AttentionResult RunAttention(const AttentionCase& c) {
  const CasePools pools(c);
  const KvPoolCase& kv = pools.kv;
  const Asking asking(c, kv);
  const Queries q(c, c.rows);
  AttentionPlan plan = PlanOf(c, asking);
  plan.wide.push_back({});  // padding
  plan.narrow.push_back({});
  plan.items.push_back({});
  const DeviceArray<uint32_t> tables(asking.tables);
  const DeviceArray<int32_t> positions(asking.given);
  const AttentionArrays arrays(asking.sequences, plan,
                               WideScratchBytes(plan.wide.size(), c.kv.kv_heads, q.dim),
                               NarrowScratchBytes(plan.shares + 1, c.kv.kv_heads, q.dim));
  std::vector<float> sinks;
  for (int head = 0; head < q.heads; ++head) sinks.push_back(SinkOf(head));
  const DeviceArray<float> device_sinks(sinks);
  AttentionParams params{.queries = q.device->data(),
                         .query_stride = q.width,
                         .output = q.output->data(),
                         .output_stride = q.width,
                         .kv = kv.planes,
                         .tables = tables.data(),
                         .table_stride = kv.table_stride,
                         .positions = asking.given.empty() ? nullptr : positions.data(),
                         .group = c.group,
                         .window = c.window,
                         .scale_log2 = kLog2E * (c.cap > 0 ? c.cap : Scale(q.dim)),
                         .cap_factor = c.cap > 0 ? 2 * kLog2E * Scale(q.dim) / c.cap : 0,
                         .sinks = c.sinks ? device_sinks.data() : nullptr};
  arrays.SetIn(params);
  if (c.span > 0) {
    params.span = c.span;
    params.recent = pools.recent->planes;
    params.recent_tables = pools.recent->tables->data();
  }
  std::unique_ptr<Centre> centre;
  if (c.centred_dims >= 0) {
    centre = std::make_unique<Centre>(c, q);
    params.centre_queries = centre->device->data();
    params.angles = centre->angles->data();
  }
  ForLaunches(plan, params, [](const AttentionParams& launch, const AttentionCounts& counts) {
    Attention(launch, counts, nullptr);
  });
  ExpectNoDeviceError("Attention");
  AttentionResult result{.bits = Bits(*q.output)};
  if (!c.oracle) return result;
  DeviationSums sums;
  for (size_t row = 0; row < asking.positions.size(); ++row) {
    const int position = asking.positions[row];
    for (int h = 0; h < q.heads; ++h) {
      const int64_t at = static_cast<int64_t>(row) * q.width + h * q.dim;
      const auto centred = [&](int token) {
        const bool coded = centre != nullptr && token < position / c.span * c.span;
        return coded ? centre->Score(at, token) : 0.0;
      };
      Compare(c, pools, asking.sequence_of[row], position, h, q.host.data() + at, centred,
              result.bits.data() + at, sums);
    }
  }
  result.deviation = sums.Result();
  return result;
}

}  // namespace penstock::cuda
