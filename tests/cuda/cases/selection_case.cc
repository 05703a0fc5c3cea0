#include "tests/cuda/cases/selection_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cuda/selection/selection.h"

namespace penstock::cuda {
namespace {

constexpr int kFirst = 1, kLast = 2;  // pages that are always chosen

// A largest difference, relative to the largest value.
class Difference {
 public:
  void Add(double want, double got) {
    const double off = std::fabs(want - got);
    if (!(off <= most_)) most_ = off;  // keeps NaN
    largest_ = std::max(largest_, std::fabs(want));
  }
  double relative() const { return most_ / largest_; }

 private:
  double most_ = 0, largest_ = 0;
};

class Run {
 public:
  explicit Run(const SelectionCase& c)
      : c_(c),
        pool_(c.kv),
        width_(c.kv.kv_heads * c.group * c.kv.head_dim),
        bounds_stride_(int64_t{c.kv.kv_heads} * 2 * c.kv.head_dim) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < pool_.lengths.size() * static_cast<size_t>(width_); ++i) {
      queries_.push_back(ToBf16(c.equal ? 0.0f : normal(random)));
    }
    for (int i = 0; i < std::ssize(pool_.lengths); ++i) {
      rows_.push_back({.query = i, .table = i, .pages = Pages(i), .keep = c.keep + i});
    }
  }

  SelectionResult Finish() {
    const std::vector<uint32_t> blocks = BoundedBlocks();
    const size_t heads = static_cast<size_t>(c_.kv.kv_heads), count = rows_.size();
    const uint32_t last = *std::ranges::max_element(blocks);
    const DeviceArray<Bf16> bounds((last + 1) * static_cast<size_t>(bounds_stride_));
    const DeviceArray<uint32_t> there(blocks);
    const PageBoundsView view{.layer = bounds.data(), .block_stride = bounds_stride_};
    FindPageBounds({.kv = pool_.planes,
                    .blocks = there.data(),
                    .count = static_cast<int32_t>(blocks.size()),
                    .bounds = view},
                   nullptr);
    int32_t pages_max = 0;
    for (const SelectRow& row : rows_) pages_max = std::max(pages_max, row.pages);
    const int64_t stride = c_.keep + std::ssize(rows_);
    const DeviceArray<Bf16> queries(queries_);
    const DeviceArray<SelectRow> rows(rows_);
    const DeviceArray<float> scores(count * heads * static_cast<size_t>(pages_max));
    const DeviceArray<uint32_t> chosen(count * heads * static_cast<size_t>(stride));
    ChoosePages({.queries = queries.data(),
                 .query_stride = width_,
                 .kv_heads = c_.kv.kv_heads,
                 .head_dim = c_.kv.head_dim,
                 .group = c_.group,
                 .tables = pool_.tables->data(),
                 .table_stride = pool_.table_stride,
                 .bounds = view,
                 .rows = rows.data(),
                 .count = static_cast<int32_t>(count),
                 .pages_max = pages_max,
                 .scores = scores.data(),
                 .chosen = chosen.data(),
                 .chosen_stride = stride},
                nullptr);
    SelectionResult result{.chosen = chosen.Read()};
    const std::vector<float> scored = scores.Read();
    result.bounds = BoundsOff(bounds.Read());
    Difference off;
    for (int i = 0; i < std::ssize(rows_); ++i) {
      for (int head = 0; head < c_.kv.kv_heads; ++head) {
        const size_t at = static_cast<size_t>(i) * heads + static_cast<size_t>(head);
        const float* row = scored.data() + at * static_cast<size_t>(pages_max);
        for (int page = 0; page < Pages(i) - kLast; ++page) {
          off.Add(Score(i, head, page), row[page]);
        }
        const uint32_t* got = result.chosen.data() + at * static_cast<size_t>(stride);
        result.best = result.best && std::ranges::equal(Best(i, row), std::span(got, Kept(i)));
      }
    }
    result.scores = c_.equal ? 0 : off.relative();
    return result;
  }

 private:
  int32_t Pages(int sequence) const {
    return (pool_.lengths[static_cast<size_t>(sequence)] + c_.kv.page - 1) / c_.kv.page;
  }
  size_t Kept(int sequence) const { return static_cast<size_t>(c_.keep + sequence); }
  uint32_t Block(int sequence, int page) const {
    return pool_.host_tables[static_cast<size_t>(sequence * pool_.table_stride + page)];
  }
  std::vector<uint32_t> BoundedBlocks() const {
    std::vector<uint32_t> blocks;
    for (int i = 0; i < std::ssize(rows_); ++i) {
      for (int page = 0; page < Pages(i) - kLast; ++page) blocks.push_back(Block(i, page));
    }
    return blocks;
  }

  // The greatest (`sign` 1) or the least (-1) element of a dimension of a page's keys.
  double Bound(int sequence, int head, int page, int element, double sign) const {
    double most = -INFINITY;
    for (int t = page * c_.kv.page; t < (page + 1) * c_.kv.page; ++t) {
      most = std::max(most, sign * pool_.Row(0, sequence, head, t)[element]);
    }
    return sign * most;
  }

  double BoundsOff(const std::vector<Bf16>& bounds) const {
    Difference off;
    const int dims = c_.kv.head_dim;
    for (int i = 0; i < std::ssize(rows_); ++i) {
      for (int page = 0; page < Pages(i) - kLast; ++page) {
        const Bf16* block = bounds.data() + Block(i, page) * bounds_stride_;
        for (int head = 0; head < c_.kv.kv_heads; ++head) {
          for (int e = 0; e < dims; ++e) {
            const Bf16* at = block + head * 2 * dims + e;
            off.Add(Bound(i, head, page, e, 1), ToFloat(at[0]));
            off.Add(Bound(i, head, page, e, -1), ToFloat(at[dims]));
          }
        }
      }
    }
    return off.relative();
  }

  double Score(int sequence, int kv_head, int page) const {
    double score = 0;
    for (int e = 0; e < c_.kv.head_dim; ++e) {
      const double greatest = Bound(sequence, kv_head, page, e, 1);
      const double least = Bound(sequence, kv_head, page, e, -1);
      for (int head = kv_head * c_.group; head < (kv_head + 1) * c_.group; ++head) {
        const double query =
            ToFloat(queries_[static_cast<size_t>(sequence * width_ + head * c_.kv.head_dim + e)]);
        score += query * (query > 0 ? greatest : least);
      }
    }
    return score;
  }

  // The blocks of the pages that a query should have, by the device's scores.
  std::vector<uint32_t> Best(int sequence, const float* scores) const {
    const int pages = Pages(sequence);
    std::vector<int> order(static_cast<size_t>(pages - kFirst - kLast));
    std::iota(order.begin(), order.end(), kFirst);
    std::ranges::stable_sort(order, [&](int a, int b) { return scores[a] > scores[b]; });
    order.resize(Kept(sequence) - kFirst - kLast);
    for (const int always : {0, pages - 2, pages - 1}) order.push_back(always);
    std::ranges::sort(order);
    std::vector<uint32_t> blocks;
    for (const int page : order) blocks.push_back(Block(sequence, page));
    return blocks;
  }

  const SelectionCase& c_;
  const KvPoolCase pool_;
  const int width_;
  const int64_t bounds_stride_;
  std::vector<Bf16> queries_;
  std::vector<SelectRow> rows_;
};

}  // namespace

SelectionResult RunSelection(const SelectionCase& c) { return Run(c).Finish(); }

}  // namespace penstock::cuda
