#include "kernels/selection/select_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <set>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/kernels/eviction/key_pages.h"
#include "tests/kernels/kv_row_oracle.h"

namespace penstock {
namespace {

constexpr int32_t kHeads = 6, kKvHeads = 2, kHeadDim = 32, kLayer = 1;
constexpr int64_t kTokens = 16 * 83 + 5, kRows = 3;  // more pages than a tile has
constexpr int64_t kPages = 84, kKeep = 12;

using Case = std::tuple<KvDtype, Isa>;

class SelectPagesTest : public ::testing::TestWithParam<Case> {
 protected:
  SelectPagesTest() {
    for (size_t i = 0; i + kLastPages < pages_.blocks().size(); ++i) {
      bounds_.Reserve(pages_.kv(), pages_.blocks()[i]);
      for (int32_t head = 0; head < kKvHeads; ++head) {
        bounds_.Compute(pages_.kv(), pages_.blocks()[i], kLayer, head);
      }
    }
  }

  SelectPagesArgs Args(std::span<const SelectingRow> rows) {
    return {.queries = {queries_.data(), {kRows, kHeads * kHeadDim}},
            .heads = kHeads,
            .layout = layout_,
            .layer = kLayer,
            .bounds = &bounds_,
            .rows = rows};
  }

  std::vector<uint32_t> Select(std::vector<int64_t> queries, ThreadPool* threads = nullptr) {
    std::vector<uint32_t> tables(queries.size() * kKvHeads * kKeep, ~0u);
    std::vector<SelectingRow> rows;
    for (const int64_t query : queries) {
      rows.push_back(
          {.row = query,
           .blocks = pages_.blocks(),
           .keep = kKeep,
           .tables = std::span(tables).subspan(rows.size() * kKvHeads * kKeep, kKvHeads * kKeep)});
    }
    SelectPages({.threads = threads}, Args(rows));
    return tables;
  }

  double Product(int64_t row, int32_t head, const std::vector<double>& key) {
    const std::vector<double> query = Query(row, head);
    double sum = 0;
    for (int d = 0; d < kHeadDim; ++d) sum += query[d] * key[d];
    return sum;
  }

  std::vector<double> Query(int64_t row, int32_t head) {
    const float* from = queries_.data() + (row * kHeads + head) * kHeadDim;
    const std::vector<double> query(from, from + kHeadDim);
    return layout_.IsRotated(KvPlane::kKeys) ? Rotated(query) : query;
  }

  std::vector<double> Key(int32_t head, int64_t token) {
    return HeldRow(pages_.kv(), pages_.At(pages_.blocks(), kLayer, head, KvPlane::kKeys, token));
  }

  // The published criterion, in double from the pages' bytes: over all query heads of the KV head
  // and all dimensions, the greater of query * least key and query * greatest key.
  double Criterion(int64_t row, int32_t kv_head, int64_t page) {
    std::vector<double> least(kHeadDim, 1e30), greatest(kHeadDim, -1e30);
    for (int64_t slot = 0; slot < layout_.block_tokens; ++slot) {
      const std::vector<double> key = Key(kv_head, page * layout_.block_tokens + slot);
      for (int d = 0; d < kHeadDim; ++d) {
        least[d] = std::min(least[d], key[d]);
        greatest[d] = std::max(greatest[d], key[d]);
      }
    }
    double sum = 0;
    for (int32_t head = 0; head < kHeads; ++head) {
      if (head / (kHeads / kKvHeads) != kv_head) continue;
      const std::vector<double> query = Query(row, head);
      for (int d = 0; d < kHeadDim; ++d) {
        sum += std::max(query[d] * least[d], query[d] * greatest[d]);
      }
    }
    return sum;
  }

  std::vector<float> Scores(int64_t row, int32_t kv_head) {
    std::vector<float> scores(kPages - kLastPages);
    const SelectingRow selecting{.row = row, .blocks = pages_.blocks(), .keep = kKeep};
    ScorePages(Args({}), selecting, kv_head, scores);
    return scores;
  }

  // What rounding of queries to bf16, where an instruction set does it, may change of a score.
  double Tolerance() const { return std::get<1>(GetParam()) == Isa::kAvx512Bf16 ? 0.25 : 2e-3; }

  ScopedIsa isa_{std::get<1>(GetParam())};
  const KvLayout layout_{
      .layers = 2, .kv_heads = kKvHeads, .head_dim = kHeadDim, .dtype = std::get<0>(GetParam())};
  KeyPages pages_{layout_, kTokens, 2, 5};
  std::vector<float> queries_ = RandomData(11).Floats(kRows * kHeads * kHeadDim);
  PageBounds bounds_;
};

TEST_P(SelectPagesTest, ScoresAreThePublishedCriterion) {
  for (int64_t row = 0; row < kRows; ++row) {
    for (int32_t head = 0; head < kKvHeads; ++head) {
      const std::vector<float> scores = Scores(row, head);
      for (size_t page = 0; page < scores.size(); ++page) {
        EXPECT_NEAR(scores[page], Criterion(row, head, static_cast<int64_t>(page)), Tolerance())
            << "row " << row << " head " << head << " page " << page;
      }
    }
  }
}

TEST_P(SelectPagesTest, NoKeyOfAPageScoresHigher) {
  const std::vector<float> scores = Scores(1, 1);
  for (size_t page = 0; page < scores.size(); ++page) {
    for (int64_t slot = 0; slot < layout_.block_tokens; ++slot) {
      double sum = 0;
      const auto token = static_cast<int64_t>(page) * layout_.block_tokens + slot;
      for (int32_t head = 3; head < kHeads; ++head) sum += Product(1, head, Key(1, token));
      EXPECT_LE(sum, scores[page] + Tolerance());
    }
  }
}

TEST_P(SelectPagesTest, TheFirstTheLastAndTheBestStayInOrder) {
  const std::vector<uint32_t> tables = Select({0, 1, 2});
  const std::vector<uint32_t>& blocks = pages_.blocks();
  std::set<std::set<int64_t>> differ;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int32_t head = 0; head < kKvHeads; ++head) {
      const auto table =
          std::span(tables).subspan(static_cast<size_t>((row * kKvHeads + head) * kKeep), kKeep);
      std::vector<int64_t> chosen;
      for (const uint32_t block : table) {
        chosen.push_back(std::find(blocks.begin(), blocks.end(), block) - blocks.begin());
      }
      EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
      const std::set<int64_t> unique(chosen.begin(), chosen.end());
      ASSERT_EQ(unique.size(), static_cast<size_t>(kKeep));
      EXPECT_EQ(chosen.front(), 0);
      EXPECT_EQ(chosen[kKeep - 2], kPages - 2);
      EXPECT_EQ(chosen[kKeep - 1], kPages - 1);
      double least = 1e30, greatest = -1e30;
      for (int64_t page = 1; page < kPages - kLastPages; ++page) {
        const double score = Criterion(row, head, page);
        if (unique.contains(page)) {
          least = std::min(least, score);
        } else {
          greatest = std::max(greatest, score);
        }
      }
      EXPECT_GE(least, greatest - 2 * Tolerance());
      differ.insert(unique);
    }
  }
  EXPECT_GT(differ.size(), 1u) << "rows and heads choose by themselves";
}

TEST_P(SelectPagesTest, OtherRowsAndThreadsChangeNothing) {
  ThreadPool threads(3);
  const std::vector<uint32_t> together = Select({0, 1, 2}, &threads);
  for (int64_t row = 0; row < kRows; ++row) {
    const std::vector<uint32_t> alone = Select({row});
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(),
                           together.begin() + row * static_cast<int64_t>(alone.size())));
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const KvDtype dtype : kKvDtypes) {
    for (const Isa isa : SupportedIsas()) cases.emplace_back(dtype, isa);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Formats, SelectPagesTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) {
                           std::string name(KvDtypeName(std::get<0>(test.param)));
                           name += '_';
                           for (const char c : IsaName(std::get<1>(test.param))) {
                             if (std::isalnum(static_cast<unsigned char>(c)) != 0) name += c;
                           }
                           return name;
                         });

TEST(PageBoundsTest, AreOfTheBlockAsItIsNow) {
  const KvLayout layout{.layers = 1, .kv_heads = 1, .head_dim = 16};
  KeyPages pages(layout, 32, 0, 3);
  PagedKv kv = pages.kv();
  PageBounds bounds;
  const auto compute = [&](uint32_t block) {
    bounds.Reserve(kv, block);
    bounds.Compute(kv, block, 0, 0);
    bounds.known().Remember(kv, block);
  };
  compute(0);
  EXPECT_FALSE(bounds.known().Has(kv, 0)) << "an arena without serial numbers is not remembered";
  std::vector<std::atomic<uint64_t>> numbers(2);
  numbers[0] = 7;
  numbers[1] = 8;
  kv.serials = numbers.data();
  compute(0);
  EXPECT_TRUE(bounds.known().Has(kv, 0));
  EXPECT_FALSE(bounds.known().Has(kv, 1));
  EXPECT_EQ(bounds.bytes(), 2 * 16 * sizeof(Bf16));
  numbers[0] = 9;  // taken for other tokens
  EXPECT_FALSE(bounds.known().Has(kv, 0));
  const std::vector<float> key(16, 50.0f);
  for (int64_t slot = 0; slot < 16; ++slot) {
    cpu::StoreKvRow(kv, {.block = 0, .slot = slot}, key.data());
  }
  compute(0);
  EXPECT_TRUE(bounds.known().Has(kv, 0));
  for (int i = 0; i < 2 * 16; ++i) EXPECT_EQ(ToFloat(bounds.Of(layout, 0, 0, 0)[i]), 50.0f);
  bounds.Reserve(kv, 0);
  EXPECT_FALSE(bounds.known().Has(kv, 0)) << "they are being computed anew";
}

}  // namespace
}  // namespace penstock
