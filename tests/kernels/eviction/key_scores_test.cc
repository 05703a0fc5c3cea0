#include "kernels/eviction/key_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/thread_pool.h"
#include "tests/kernels/eviction/key_pages.h"
#include "tests/kernels/kv_row_oracle.h"

namespace penstock {
namespace {

constexpr int32_t kHeads = 6, kKvHeads = 2, kHeadDim = 32;
constexpr int64_t kTokens = 203, kObserved = 17;
constexpr int32_t kLayer = 1;

using Scores = std::vector<std::vector<double>>;  // [kv_heads][tokens]

KvLayout Layout(KvDtype dtype) {
  return {.layers = 2, .kv_heads = kKvHeads, .head_dim = kHeadDim, .dtype = dtype};
}

class KeyScoresTest : public ::testing::TestWithParam<KvDtype> {
 protected:
  std::vector<float> Run(KeyScoring scoring, ThreadPool* threads = nullptr, float cap = 0,
                         int64_t observed = kObserved) {
    std::vector<float> scores(kKvHeads * kTokens, -1.0f);
    ScoreKeys({.threads = threads}, {.scoring = scoring,
                                     .kv = pages_.kv(),
                                     .layer = kLayer,
                                     .blocks = pages_.blocks(),
                                     .tokens = kTokens,
                                     .queries = {queries_.data(), {observed, kHeads * kHeadDim}},
                                     .heads = kHeads,
                                     .scale = kScale,
                                     .cap = cap,
                                     .scores = {scores.data(), {kKvHeads, kTokens}}});
    return scores;
  }

  std::vector<double> Key(int32_t head, int64_t token) {
    return HeldRow(pages_.kv(), pages_.At(pages_.blocks(), kLayer, head, KvPlane::kKeys, token));
  }

  std::vector<double> Query(int64_t row, int32_t head) {
    const float* from = queries_.data() + (row * kHeads + head) * kHeadDim;
    std::vector<double> query(from, from + kHeadDim);
    return pages_.kv().layout.IsRotated(KvPlane::kKeys) ? Rotated(query) : query;
  }

  // The attention to each token, summed over the last `observed` queries, in double.
  Scores Attention(double cap, int64_t observed = kObserved) {
    Scores sums(kKvHeads, std::vector<double>(kTokens, 0.0));
    for (int32_t head = 0; head < kHeads; ++head) {
      const int32_t kv_head = head / (kHeads / kKvHeads);
      for (int64_t row = 0; row < observed; ++row) {
        const std::vector<double> query = Query(row, head);
        const int64_t attended = kTokens - observed + row + 1;
        std::vector<double> weights;
        double total = 0;
        for (int64_t token = 0; token < attended; ++token) {
          double score = kScale * Dot(query, Key(kv_head, token));
          if (cap > 0) score = cap * std::tanh(score / cap);
          weights.push_back(std::exp(score));
          total += weights.back();
        }
        for (int64_t token = 0; token < attended; ++token) {
          sums[kv_head][token] += weights[token] / total;
        }
      }
    }
    return sums;
  }

  static double Dot(const std::vector<double>& a, const std::vector<double>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  }

  static void ExpectNear(const std::vector<float>& scores, const Scores& expected, double share) {
    for (int32_t head = 0; head < kKvHeads; ++head) {
      for (int64_t token = 0; token < kTokens; ++token) {
        const double wanted = expected[head][token];
        EXPECT_NEAR(scores[head * kTokens + token], wanted, share * std::abs(wanted) + 1e-6)
            << "head " << head << " token " << token;
      }
    }
  }

  static constexpr float kScale = 0.4f;
  KeyPages pages_{Layout(GetParam()), kTokens, 3, 11};
  std::vector<float> queries_ = RandomData(12).Floats(kObserved * kHeads * kHeadDim);
};

// bf16 rows of the machine's fastest products are rounded, to 8 bits.
constexpr double kRounding = 0.04;

TEST_P(KeyScoresTest, AttentionIsThatOfTheObservedQueries) {
  ExpectNear(Run(KeyScoring::kAttention), Attention(0), kRounding);
}

TEST_P(KeyScoresTest, AttentionIsCapped) {
  ExpectNear(Run(KeyScoring::kAttention, nullptr, 2.0f), Attention(2.0), kRounding);
}

TEST_P(KeyScoresTest, HeadsOfALayerShareTheirAttention) {
  const Scores sums = Attention(0);
  Scores expected = sums;
  for (int64_t token = 0; token < kTokens; ++token) {
    expected[0][token] = expected[1][token] = sums[0][token] + sums[1][token];
  }
  ExpectNear(Run(KeyScoring::kLayerAttention), expected, kRounding);
}

TEST_P(KeyScoresTest, AKeyLikeTheMeanOfAllIsLow) {
  Scores expected(kKvHeads, std::vector<double>(kTokens));
  for (int32_t head = 0; head < kKvHeads; ++head) {
    std::vector<double> mean(kHeadDim, 0.0);
    for (int64_t token = 0; token < kTokens; ++token) {
      const std::vector<double> key = Key(head, token);
      for (int d = 0; d < kHeadDim; ++d) mean[d] += key[d] / std::sqrt(Dot(key, key));
    }
    for (int64_t token = 0; token < kTokens; ++token) {
      const std::vector<double> key = Key(head, token);
      expected[head][token] = -Dot(key, mean) / std::sqrt(Dot(key, key) * Dot(mean, mean));
    }
  }
  ExpectNear(Run(KeyScoring::kKeyDifference), expected, 1e-3);
}

TEST_P(KeyScoresTest, AShortKeyIsHigh) {
  Scores expected(kKvHeads, std::vector<double>(kTokens));
  for (int32_t head = 0; head < kKvHeads; ++head) {
    for (int64_t token = 0; token < kTokens; ++token) {
      const std::vector<double> key = Key(head, token);
      expected[head][token] = -std::sqrt(Dot(key, key));
    }
  }
  ExpectNear(Run(KeyScoring::kKeyNorm), expected, 1e-5);
}

TEST_P(KeyScoresTest, TheNumberOfThreadsChangesNoBit) {
  ThreadPool threads(3);
  for (const KeyScoring scoring :
       {KeyScoring::kAttention, KeyScoring::kLayerAttention, KeyScoring::kKeyDifference}) {
    EXPECT_EQ(Run(scoring), Run(scoring, &threads));
  }
}

// H2O: the queries of a chunk at a time, as a prompt is computed.
TEST_P(KeyScoresTest, ChunksAddUpToTheSameBits) {
  const auto sums = [&](const std::vector<int64_t>& chunks) {
    std::vector<float> scores(kKvHeads * kTokens, 0.0f);
    int64_t row = 0;
    for (const int64_t rows : chunks) {
      AddAttention(
          {}, {.kv = pages_.kv(),
               .layer = kLayer,
               .blocks = pages_.blocks(),
               .tokens = kTokens - kObserved + row + rows,
               .queries = {queries_.data() + row * kHeads * kHeadDim, {rows, kHeads * kHeadDim}},
               .heads = kHeads,
               .scale = kScale,
               .scores = {scores.data(), {kKvHeads, kTokens}}});
      row += rows;
    }
    return scores;
  };
  const std::vector<float> at_once = sums({kObserved});
  EXPECT_EQ(at_once, Run(KeyScoring::kAttention));
  EXPECT_EQ(sums({1, 3, 7, 6}), at_once);
  EXPECT_EQ(sums(std::vector<int64_t>(kObserved, 1)), at_once);
}

INSTANTIATE_TEST_SUITE_P(Formats, KeyScoresTest, ::testing::ValuesIn(kKvDtypes),
                         [](const auto& test) { return std::string(KvDtypeName(test.param)); });

TEST(KeyScoresRandomTest, DiffersByHeadAndLayer) {
  KeyPages pages(Layout(KvDtype::kBf16), 40, 1, 3);
  const auto run = [&](int32_t layer) {
    std::vector<float> scores(kKvHeads * 40);
    ScoreKeys({}, {.scoring = KeyScoring::kRandom,
                   .kv = pages.kv(),
                   .layer = layer,
                   .blocks = pages.blocks(),
                   .tokens = 40,
                   .scores = {scores.data(), {kKvHeads, 40}}});
    return scores;
  };
  const std::vector<float> first = run(0);
  EXPECT_EQ(first, run(0));
  EXPECT_NE(first, run(1));
  EXPECT_NE(std::vector<float>(first.begin(), first.begin() + 40),
            std::vector<float>(first.begin() + 40, first.end()));
}

}  // namespace
}  // namespace penstock
