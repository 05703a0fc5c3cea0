#include "lab/micro/kernels_pages.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <string>

#include "kernels/attention.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_rows.h"

namespace penstock {
namespace {

constexpr int32_t kHeads = 32;
constexpr int32_t kLayers = 12;
constexpr int64_t kSequences = 8;
constexpr int64_t kPagesContext = 2048;
constexpr int kRuns = 8;

// Pages full of random rows, and what a decode step asks of them.
class Pages {
 public:
  Pages(const Exec& exec, const KvLayout& layout)
      : exec_(exec),
        blocks_(layout.BlocksFor(kPagesContext)),
        memory_(static_cast<size_t>(blocks_ * kSequences) * layout.BlockStride()),
        kv_{memory_.as<std::byte>(), blocks_ * kSequences, layout},
        table_(static_cast<size_t>(kv_.blocks)),
        queries_(static_cast<size_t>(kSequences * Width())),
        output_(queries_.size()),
        scratch_(layout.head_dim, ThreadCount(exec), layout.centred) {
    std::iota(table_.begin(), table_.end(), 0u);
    std::mt19937_64 random(1);
    std::shuffle(table_.begin(), table_.end(), random);
    std::normal_distribution<float> normal;
    for (float& query : queries_) query = normal(random);
    if (layout.centred) Centre();
    for (int64_t s = 0; s < kSequences; ++s) {
      sequences_.push_back({.first_row = s,
                            .rows = 1,
                            .position = kPagesContext - 1,
                            .blocks = std::span(table_).subspan(s * blocks_, blocks_)});
    }
    ParallelFor(exec, kv_.blocks, [&](int64_t block, int) { Fill(static_cast<uint32_t>(block)); });
  }

  double elements() const {  // of keys and values, that one run attends to
    return static_cast<double>(kSequences * kPagesContext) * kLayers * 2 * kv_.layout.kv_heads *
           kv_.layout.head_dim;
  }
  double bytes() const {  // that one run reads
    const KvLayout& layout = kv_.layout;
    const double coded = static_cast<double>(layout.LayerBytes()) / layout.block_tokens;
    const double recent = 2.0 * 2 * layout.kv_heads * layout.head_dim * layout.span;
    return kLayers * kSequences *
           (coded * static_cast<double>(kPagesContext - layout.span) + recent);
  }

  double Seconds() const {
    const auto start = std::chrono::steady_clock::now();
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      Attention(exec_, {.queries = {queries_.data(), {kSequences, Width()}},
                        .output = {output_.data(), {kSequences, Width()}},
                        .heads = kHeads,
                        .kv = kv_,
                        .layer = layer * kv_.layout.Copies(),
                        .scale = 0.125f,
                        .sequences = sequences_,
                        .centre = centre_,
                        .scratch = &scratch_});
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  int64_t Width() const { return int64_t{kHeads} * kv_.layout.head_dim; }

  // Means and angles, of which the bench asks nothing but the time they take.
  void Centre() {
    const int64_t head_dim = kv_.layout.head_dim, pairs = head_dim / 2;
    means_.assign(static_cast<size_t>(kv_.layout.kv_heads * head_dim), 0.5f);
    const std::vector<float> ones(static_cast<size_t>(kPagesContext * pairs), 1.0f);
    const View<const float, 2> turns(ones.data(), {kPagesContext, pairs});
    angles_ = PositionAngles(turns, turns, kv_.layout.head_dim);
    centre_ = {.means = {means_.data(), {kv_.layout.kv_heads, head_dim}}, .angles = &angles_};
  }

  void Fill(uint32_t block) {
    std::mt19937_64 random(block);
    std::vector<float> row(static_cast<size_t>(kv_.layout.head_dim));
    for (float& value : row) value = static_cast<float>(random() % 2001) / 1000 - 1;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (int32_t head = 0; head < kv_.layout.kv_heads; ++head) {
        for (const KvPlane plane : {KvPlane::kKeys, KvPlane::kValues}) {
          for (int64_t slot = 0; slot < kv_.layout.block_tokens; ++slot) {
            const KvRowsAt at{block, layer * kv_.layout.Copies(), head, plane, slot};
            cpu::StoreKvRow(kv_, at, row.data());
            if (kv_.layout.span > 0) cpu::StoreRecentKvRow(kv_, at, row.data());
            std::rotate(row.begin(), row.begin() + 1, row.end());
          }
        }
      }
    }
  }

  const Exec exec_;
  const int64_t blocks_;  // of a sequence
  const Buffer memory_;
  const PagedKv kv_;
  std::vector<uint32_t> table_;
  std::vector<float> queries_;
  mutable std::vector<float> output_;
  const AttentionScratch scratch_;
  std::vector<float> means_;
  PositionAngles angles_;
  KeyCentre centre_;
  std::vector<AttentionSequence> sequences_;
};

}  // namespace

std::vector<BenchRow> MeasurePageFormats(const Exec& exec, const MachineLimits& limits) {
  std::vector<KvPageFormat> formats;
  for (const KvDtype dtype : kKvDtypes) formats.push_back({.dtype = dtype});
  formats.push_back({.dtype = KvDtype::kK3v3, .span = 128, .centred = true});
  const KvLayout layout{.layers = kLayers, .kv_heads = 4, .head_dim = 64};
  std::vector<BenchRow> rows;
  double bf16_elements = 0;  // in a second
  for (const KvPageFormat& format : formats) {
    const Pages pages(exec, layout.In(format));
    double best = 1e9, bandwidth = 0;
    for (int run = 0; run < kRuns; ++run) {
      best = std::min(best, pages.Seconds());
      bandwidth = std::max(bandwidth, limits.ReadBandwidth());
    }
    const double rate = pages.bytes() / best;
    rows.push_back({"attention_" + KvPageFormatName(format), rate / 1e9, "GB/s", bandwidth / 1e9,
                    rate / bandwidth});
    const double elements = pages.elements() / best;
    if (format == KvPageFormat{}) bf16_elements = elements;
    rows.push_back({"attention_elements_" + KvPageFormatName(format), elements / 1e9, "G/s",
                    bf16_elements / 1e9, elements / bf16_elements});
  }
  return rows;
}

}  // namespace penstock
