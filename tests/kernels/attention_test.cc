#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_rows.h"
#include "kernels/rope.h"
#include "tests/kernels/kv_row_oracle.h"
#include "tests/kernels/random_data.h"

namespace penstock {
namespace {

struct Shape {
  int32_t heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 64;
  int32_t window = 0;
  int64_t length = 200;
  KvDtype dtype = KvDtype::kBf16;
  bool sinks = false;
  int32_t span = 0;
};

// A sequence with random queries, keys and values at every position.
struct Sequence {
  Sequence(const Shape& of, uint64_t seed) : shape(of) {
    RandomData random(seed);
    queries = random.Floats(of.length * Width(), 2.0f);
    keys = random.Bf16s(of.length * of.kv_heads * of.head_dim);
    values = random.Bf16s(of.length * of.kv_heads * of.head_dim);
    if (of.sinks) sinks = random.Floats(of.heads, 3.0f);
  }
  int64_t Width() const { return int64_t{shape.heads} * shape.head_dim; }

  Shape shape;
  std::vector<float> queries, sinks;
  std::vector<Bf16> keys, values;  // [position][kv_head][head_dim]
};

// Pages in which the positions of a sequence from `from` up to `until` are filled in, and from
// `recent` on in bf16 too; all else is NaN, so that whatever reads it shows.
struct Pages {
  Pages(const Sequence& s, int32_t block_tokens, int64_t from, int64_t until, uint64_t seed,
        int64_t recent = 0) {
    const KvLayout plain{.layers = 2,
                         .kv_heads = s.shape.kv_heads,
                         .head_dim = s.shape.head_dim,
                         .block_tokens = block_tokens};
    const KvLayout layout = plain.In({.dtype = s.shape.dtype, .span = s.shape.span});
    const int64_t count = layout.BlocksFor(s.shape.length) + 3;
    memory = Buffer(static_cast<size_t>(count) * layout.BlockStride());
    std::fill_n(memory.as<Bf16>(), memory.bytes() / 2, Bf16{0x7fc0});
    kv = {.arena = memory.as<std::byte>(), .blocks = count, .layout = layout};
    table.resize(static_cast<size_t>(count));
    std::iota(table.begin(), table.end(), 0u);
    std::shuffle(table.begin(), table.end(), std::mt19937_64(seed));
    const int64_t dim = s.shape.head_dim;
    for (int64_t p = from; p < until; ++p) {
      for (int32_t h = 0; h < s.shape.kv_heads; ++h) {
        const int64_t source = (p * s.shape.kv_heads + h) * dim;
        for (const bool keys : {true, false}) {
          const KvRowsAt at = At(p, h, keys ? KvPlane::kKeys : KvPlane::kValues);
          const std::vector<float> row = Widened(keys ? s.keys : s.values, source, dim);
          cpu::StoreKvRow(kv, at, row.data());
          if (s.shape.span > 0 && p >= recent) cpu::StoreRecentKvRow(kv, at, row.data());
        }
      }
    }
  }
  KvRowsAt At(int64_t position, int32_t kv_head, KvPlane plane) const {
    const int64_t block_tokens = kv.layout.block_tokens;
    return {.block = table[position / block_tokens],
            .layer = kv.layout.Copies(),
            .kv_head = kv_head,
            .plane = plane,
            .slot = position % block_tokens};
  }
  static std::vector<float> Widened(const std::vector<Bf16>& from, int64_t first, int64_t count) {
    std::vector<float> floats;
    for (int64_t i = first; i < first + count; ++i) floats.push_back(ToFloat(from[i]));
    return floats;
  }

  Buffer memory;
  PagedKv kv;
  std::vector<uint32_t> table;
};

// Rows [first, last) in one call, given as many positions as exist by then.
std::vector<float> Attend(const Sequence& s, int32_t block_tokens, int64_t first, int64_t last,
                          const Exec& exec = {}) {
  const int64_t from = s.shape.window == 0 ? 0 : std::max<int64_t>(0, first - s.shape.window + 1);
  const int64_t recent = s.shape.span == 0 ? last : first / s.shape.span * s.shape.span;
  const Pages pages(s, block_tokens, from, last, static_cast<uint64_t>(first * 31 + last), recent);
  std::vector<float> output(static_cast<size_t>((last - first) * s.Width()), -1.0f);
  const AttentionScratch scratch(s.shape.head_dim, ThreadCount(exec));
  const AttentionSequence sequence{
      .first_row = 0, .rows = last - first, .position = first, .blocks = pages.table};
  Attention(exec, {.queries = {s.queries.data() + first * s.Width(), {last - first, s.Width()}},
                   .output = {output.data(), {last - first, s.Width()}},
                   .heads = s.shape.heads,
                   .kv = pages.kv,
                   .layer = pages.kv.layout.Copies(),
                   .window = s.shape.window,
                   .scale = 0.125f,
                   .sinks = s.sinks,
                   .sequences = {&sequence, 1},
                   .scratch = &scratch});
  return output;
}

// The content of the pages, and attention over it in double precision.
class Oracle {
 public:
  Oracle(const Sequence& s, Isa isa) : s_(s), isa_(isa), pages_(s, 16, 0, s.shape.length, 1) {
    for (int64_t p = 0; p < s.shape.length; ++p) {
      for (int32_t h = 0; h < s.shape.kv_heads; ++h) {
        keys_.push_back(HeldRow(pages_.kv, pages_.At(p, h, KvPlane::kKeys)));
        values_.push_back(HeldRow(pages_.kv, pages_.At(p, h, KvPlane::kValues)));
        if (s.shape.span == 0) continue;
        recent_keys_.push_back(HeldRecentRow(pages_.kv, pages_.At(p, h, KvPlane::kKeys)));
        recent_values_.push_back(HeldRecentRow(pages_.kv, pages_.At(p, h, KvPlane::kValues)));
      }
    }
  }

  std::vector<double> At(int64_t position, int32_t head) const {
    const Shape& shape = s_.shape;
    const int64_t dim = shape.head_dim, kv_head = head / (shape.heads / shape.kv_heads);
    const int64_t min = shape.window == 0 ? 0 : std::max<int64_t>(0, position - shape.window + 1);
    const auto first = s_.queries.begin() + position * s_.Width() + head * dim;
    std::vector<double> query(first, first + dim);
    if (pages_.kv.layout.IsRotated(KvPlane::kKeys)) query = Rotated(query);
    for (double& value : query) value = Activation(isa_, static_cast<float>(value));
    std::vector<double> scores, output(static_cast<size_t>(dim), 0.0);
    const auto is_recent = [&](int64_t p) {
      return shape.span > 0 && p / shape.span == position / shape.span;
    };
    for (int64_t p = min; p <= position; ++p) {
      const std::vector<double>& key =
          (is_recent(p) ? recent_keys_ : keys_)[p * shape.kv_heads + kv_head];
      scores.push_back(std::inner_product(query.begin(), query.end(), key.begin(), 0.0) * 0.125);
    }
    double top = *std::max_element(scores.begin(), scores.end()), sum = 0;
    if (shape.sinks) {
      top = std::max<double>(top, s_.sinks[head]);
      sum = std::exp(s_.sinks[head] - top);
    }
    for (double& score : scores) sum += score = std::exp(score - top);
    for (int64_t p = min; p <= position; ++p) {
      const double weight = scores[p - min] / sum;
      const double* const value =
          (is_recent(p) ? recent_values_ : values_)[p * shape.kv_heads + kv_head].data();
      std::transform(value, value + dim, output.begin(), output.begin(),
                     [weight](double v, double so_far) { return so_far + weight * v; });
    }
    if (pages_.kv.layout.IsRotated(KvPlane::kValues)) return Rotated(output);
    return output;
  }

 private:
  const Sequence& s_;
  const Isa isa_;
  const Pages pages_;
  std::vector<std::vector<double>> keys_, values_;  // [position * kv_heads + kv_head][head_dim]
  std::vector<std::vector<double>> recent_keys_, recent_values_;  // with a span
};

class AttentionTest : public testing::TestWithParam<Isa> {
 protected:
  ScopedIsa isa_{GetParam()};
};

TEST_P(AttentionTest, MatchesTheOracle) {
  std::vector<Shape> shapes = {
      {.heads = 8, .kv_heads = 1, .head_dim = 64, .window = 0, .length = 150},
      {.heads = 4, .kv_heads = 4, .head_dim = 32, .window = 0, .length = 70},
      {.heads = 6, .kv_heads = 2, .head_dim = 96, .window = 33, .length = 140},
      {.heads = 5, .kv_heads = 1, .head_dim = 8, .window = 1, .length = 66},
      {.heads = 2, .kv_heads = 2, .head_dim = 128, .window = 100, .length = 230},
      {.heads = 14, .kv_heads = 2, .head_dim = 40, .window = 64, .length = 129},
      {.heads = 64, .kv_heads = 1, .head_dim = 16, .window = 0, .length = 65},
      {.heads = 8, .kv_heads = 2, .head_dim = 64, .window = 0, .length = 150, .sinks = true},
      {.heads = 6, .kv_heads = 1, .head_dim = 32, .window = 33, .length = 140, .sinks = true},
  };
  for (const KvDtype dtype : kKvDtypes) {
    if (dtype == KvDtype::kBf16) continue;
    for (const int32_t group : {1, 4, 7}) {
      shapes.push_back({.heads = 2 * group, .kv_heads = 2, .head_dim = 64, .dtype = dtype});
    }
    shapes.push_back(
        {.heads = 3, .kv_heads = 1, .head_dim = 96, .window = 33, .length = 140, .dtype = dtype});
    shapes.push_back(
        {.heads = 2, .kv_heads = 1, .head_dim = 128, .window = 70, .length = 150, .dtype = dtype});
    for (const int32_t span : {64, 128}) {
      shapes.push_back({.heads = 6,
                        .kv_heads = 2,
                        .head_dim = 32,
                        .length = 290,
                        .dtype = dtype,
                        .sinks = span == 64,
                        .span = span});
    }
  }
  // In f32 scores of some tens are off by a few millionths, and weights by as much.
  const double tolerance = GetParam() == Isa::kAvx512Bf16 ? 1e-2 : 2e-5;
  for (const Shape& shape : shapes) {
    const Sequence s(shape, 17);
    const auto got = Attend(s, 16, 0, shape.length);
    const Oracle oracle(s, GetParam());
    for (int64_t p = 0; p < shape.length; ++p) {
      for (int32_t h = 0; h < shape.heads; ++h) {
        const auto want = oracle.At(p, h);
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          ASSERT_NEAR(got[p * s.Width() + h * shape.head_dim + d], want[d], tolerance)
              << KvDtypeName(shape.dtype) << " heads " << shape.heads << " position " << p
              << " head " << h << " dim " << d;
        }
      }
    }
  }
}

// Any rows of `s`, computed in chunks with pages of any size, are those of one call.
void ExpectSameInChunks(const Sequence& s, RandomData& random, ThreadPool& pool) {
  const auto whole = Attend(s, 16, 0, s.shape.length);
  for (int64_t first = 0; first < s.shape.length;) {
    const int64_t max = random.Int(0, 2) == 0 ? 1 : random.Int(1, 120);
    const int64_t last = std::min(s.shape.length, first + max);
    const int32_t pages[] = {5, 16, 32, 64};
    const auto part = Attend(s, pages[random.Int(0, 3)], first, last, {.threads = &pool});
    const std::vector<float> same(whole.begin() + first * s.Width(),
                                  whole.begin() + last * s.Width());
    ASSERT_EQ(part, same) << "window " << s.shape.window << " span " << s.shape.span << " rows "
                          << first << ".." << last;
    first = last;
  }
}

TEST_P(AttentionTest, ChunksPagesAndThreadsChangeNoBit) {
  ThreadPool pool(3);
  RandomData random(23);
  for (const auto& [window, sinks] :
       {std::pair{0, false}, std::pair{1, true}, std::pair{50, false}, std::pair{64, true},
        std::pair{130, false}, std::pair{0, true}}) {
    for (const auto& [heads, kv_heads, head_dim, dtype] :
         {std::tuple{8, 1, 64, KvDtype::kBf16}, std::tuple{6, 2, 32, KvDtype::kBf16},
          std::tuple{3, 3, 24, KvDtype::kBf16}, std::tuple{4, 2, 32, KvDtype::kF8},
          std::tuple{4, 2, 64, KvDtype::kI8}, std::tuple{4, 1, 48, KvDtype::kI4r},
          std::tuple{2, 2, 32, KvDtype::kK8v4}, std::tuple{4, 2, 64, KvDtype::kK3v2},
          std::tuple{2, 1, 48, KvDtype::kK3v3}}) {
      for (const int32_t span : {0, 64, 192}) {
        if (span > 0 && (window > 0 || sinks || dtype == KvDtype::kBf16)) continue;
        const Sequence s({.heads = heads,
                          .kv_heads = kv_heads,
                          .head_dim = head_dim,
                          .window = window,
                          .length = 300,
                          .dtype = dtype,
                          .sinks = sinks,
                          .span = span},
                         29);
        ExpectSameInChunks(s, random, pool);
      }
    }
  }
}

// A sink far above all scores takes all weight, and one far below them changes no bit.
TEST_P(AttentionTest, SinksAtTheirExtremes) {
  Sequence s({.heads = 2, .kv_heads = 1, .head_dim = 32, .length = 100}, 31);
  const auto without = Attend(s, 16, 0, 100);
  s.sinks = {-1e4f, 1e4f};
  const auto got = Attend(s, 16, 0, 100);
  for (int64_t p = 0; p < 100; ++p) {
    for (int64_t d = 0; d < 32; ++d) {
      ASSERT_EQ(got[p * 64 + d], without[p * 64 + d]);
      ASSERT_EQ(got[p * 64 + 32 + d], 0.0f);
    }
  }
}

TEST_P(AttentionTest, SequencesOfABatchDoNotMeet) {
  const Shape shape{.heads = 4, .kv_heads = 2, .head_dim = 32, .window = 0, .length = 90};
  const Sequence a(shape, 1), b(shape, 2);
  const auto alone_a = Attend(a, 16, 80, 90), alone_b = Attend(b, 16, 89, 90);
  const Pages pages_a(a, 16, 0, 90, 3);
  Pages pages_b(b, 16, 0, 90, 4);
  // One arena: b's blocks after a's.
  Buffer memory(pages_a.memory.bytes() + pages_b.memory.bytes());
  const size_t used = static_cast<size_t>(pages_a.kv.blocks) * pages_a.kv.layout.BlockStride();
  std::copy_n(pages_a.memory.as<std::byte>(), used, memory.as<std::byte>());
  std::copy_n(pages_b.memory.as<std::byte>(), used, memory.as<std::byte>() + used);
  for (uint32_t& block : pages_b.table) block += static_cast<uint32_t>(pages_a.kv.blocks);
  std::vector<float> queries(b.queries.end() - b.Width(), b.queries.end());
  queries.insert(queries.end(), a.queries.begin() + 80 * a.Width(), a.queries.end());
  std::vector<float> output(11 * 128);
  const AttentionScratch scratch(shape.head_dim, 1);
  const AttentionSequence sequences[] = {
      {.first_row = 0, .rows = 1, .position = 89, .blocks = pages_b.table},
      {.first_row = 1, .rows = 10, .position = 80, .blocks = pages_a.table}};
  Attention({}, {.queries = {queries.data(), {11, 128}},
                 .output = {output.data(), {11, 128}},
                 .heads = 4,
                 .kv = {memory.as<std::byte>(), 2 * pages_a.kv.blocks, pages_a.kv.layout},
                 .layer = 1,
                 .scale = 0.125f,
                 .sequences = sequences,
                 .scratch = &scratch});
  EXPECT_EQ(std::vector<float>(output.begin(), output.begin() + 128), alone_b);
  EXPECT_EQ(std::vector<float>(output.begin() + 128, output.end()), alone_a);
}

constexpr int64_t kMeanTokens = 200, kMeanDim = 32;

// Attention of one head with all numbers as they are.
std::vector<float> AttendExactly(View<const float, 2> qkv) {
  std::vector<float> output;
  for (int64_t query = 0; query < qkv.dim(0); ++query) {
    std::vector<double> sums(kMeanDim);
    double all = 0;
    for (int64_t t = 0; t <= query; ++t) {
      const float* key = qkv.row(t) + kMeanDim;
      const double score = std::inner_product(key, key + kMeanDim, qkv.row(query), 0.0);
      const double weight = std::exp(score);
      all += weight;
      for (int64_t d = 0; d < kMeanDim; ++d) sums[d] += weight * key[kMeanDim + d];
    }
    for (const double sum : sums) output.push_back(static_cast<float>(sum / all));
  }
  return output;
}

struct AboutMean {
  std::vector<float> attended, exact;
};

// The outputs of 200 tokens whose keys lie about a mean, in pages of a format, and without
// rounding. Values are constant rows, which the formats of this test hold exactly.
AboutMean AttendAboutMean(const KvPageFormat& format) {
  constexpr int64_t kPairs = 12;
  RandomData random(5);
  const std::vector<float> means = random.Floats(kMeanDim, 4.0f);
  std::vector<float> qkv = random.Floats(kMeanTokens * 3 * kMeanDim, 0.3f), cosines, sines;
  std::vector<uint32_t> table;
  std::vector<KvSlot> slots;
  for (int64_t t = 0; t < kMeanTokens; ++t) {
    float* row = qkv.data() + t * 3 * kMeanDim;
    for (int64_t d = 0; d < kMeanDim; ++d) {
      row[kMeanDim + d] += means[d];
      row[2 * kMeanDim + d] = static_cast<float>(1 << t % 5);
    }
    for (int64_t i = 0; i < kPairs; ++i) {
      const double angle = static_cast<double>(t) * std::pow(0.5, static_cast<double>(i));
      cosines.push_back(static_cast<float>(std::cos(angle)));
      sines.push_back(static_cast<float>(std::sin(angle)));
    }
    if (t % 16 == 0) table.push_back(static_cast<uint32_t>(t / 16));
    slots.push_back({table.back(), static_cast<int32_t>(t % 16)});
  }
  const KvLayout plain{.layers = 1, .kv_heads = 1, .head_dim = kMeanDim, .block_tokens = 16};
  const KvLayout layout = plain.In(format);
  const Buffer memory(table.size() * layout.BlockStride());
  const PagedKv kv{.arena = memory.as<std::byte>(), .blocks = std::ssize(table), .layout = layout};
  const View<float, 2> rows(qkv.data(), {kMeanTokens, 3 * kMeanDim});
  const View<const float, 2> all_cosines(cosines.data(), {kMeanTokens, kPairs}),
      all_sines(sines.data(), {kMeanTokens, kPairs});
  const View<const float, 2> centre =
      format.centred ? View<const float, 2>(means.data(), {1, kMeanDim}) : View<const float, 2>();
  RopeAppend({}, {.qkv = rows,
                  .cosines = all_cosines,
                  .sines = all_sines,
                  .heads = 1,
                  .kv = kv,
                  .slots = slots,
                  .key_means = centre});
  AboutMean result{.attended = std::vector<float>(kMeanTokens * kMeanDim),
                   .exact = AttendExactly(rows)};
  const AttentionScratch scratch(kMeanDim, 1, format.centred);
  const AttentionSequence sequence{.rows = kMeanTokens, .blocks = table};
  const PositionAngles angles(all_cosines, all_sines, kMeanDim);
  Attention({}, {.queries = rows,
                 .output = {result.attended.data(), {kMeanTokens, kMeanDim}},
                 .heads = 1,
                 .kv = kv,
                 .sequences = {&sequence, 1},
                 .centre = {.means = centre, .angles = &angles},
                 .scratch = &scratch});
  return result;
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return std::sqrt(sum);
}

// The distance of the outputs in pages of a format from those without rounding.
double Loss(const KvPageFormat& format) {
  const AboutMean result = AttendAboutMean(format);
  return Distance(result.attended, result.exact);
}

TEST_P(AttentionTest, CentredKeysLoseLess) {
  for (const KvDtype dtype : {KvDtype::kF8, KvDtype::kI4r}) {
    const double plain = Loss({.dtype = dtype, .span = 64});
    EXPECT_LT(Loss({.dtype = dtype, .span = 64, .centred = true}), 0.2 * plain)
        << KvDtypeName(dtype);
  }
}

// bf16 rounds a whole key, and eight bits of the rest are finer than that.
TEST_P(AttentionTest, CentredKeysOfEightBitsLoseLessThanBf16) {
  EXPECT_LT(Loss({.dtype = KvDtype::kI8, .span = 64, .centred = true}), Loss({}));
}

INSTANTIATE_TEST_SUITE_P(Isas, AttentionTest, testing::ValuesIn(SupportedIsas()), TestName);

}  // namespace
}  // namespace penstock
