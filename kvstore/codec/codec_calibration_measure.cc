#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/kv_quant.h"
#include "kernels/kv_codec.h"
#include "kvstore/codec/codec_calibration.h"

namespace penstock {
namespace {

// Quantisation steps by level, relative to the root mean square of the quantised values.
constexpr std::array<float, kCgxLevels> kStepShares = {0.30f, 0.40f, 0.46f, 0.75f, 1.5f};

// Finds the number of low bits with the lowest total cost, and the distribution of the remaining
// symbols, from counts of levels with |level| <= kTop.
constexpr int kTop = 4096;
constexpr int kLowBitsMax = 6;
// Minimum gain of one more low bit, because a low bit costs time.
constexpr double kLowBitSaves = 0.01;
using LevelCounts = std::vector<uint64_t>;  // [2 * kTop + 1]

double BitsFor(const LevelCounts& counts, int low_bits, KvCalibration::Table& table) {
  std::array<uint64_t, kRansSymbols> symbols{};
  for (int level = -kTop; level <= kTop; ++level) {
    const int high = (level >> low_bits) + 7;
    symbols[static_cast<size_t>(high >= 0 && high < 15 ? high : 15)] +=
        counts[static_cast<size_t>(level + kTop)];
  }
  NormaliseRansFrequencies(symbols, table.frequencies);
  table.low_bits = static_cast<uint8_t>(low_bits);
  double bits = 16.0 * static_cast<double>(symbols[15]), total = 0;
  for (size_t s = 0; s < kRansSymbols; ++s) {
    bits += static_cast<double>(symbols[s]) * (8 - std::log2(table.frequencies[s]));
    total += static_cast<double>(symbols[s]);
  }
  return bits + total * low_bits;
}

KvCalibration::Table BestTable(const LevelCounts& counts) {
  KvCalibration::Table best;
  double min = BitsFor(counts, 0, best);
  for (int low_bits = 1; low_bits <= kLowBitsMax; ++low_bits) {
    KvCalibration::Table table;
    const double bits = BitsFor(counts, low_bits, table);
    if (bits < (1 - kLowBitSaves) * min) min = bits, best = table;
  }
  return best;
}

// The elements of one plane of one head of one layer, over all blocks.
struct Samples {
  const KvRun& run;  // one block
  std::span<const Bf16* const> blocks;
  size_t layer, head, plane;

  size_t slots() const { return blocks.size() * run.block_tokens; }
  // Calls call(row of quantised elements) for every slot.
  template <class Call>
  void ForSlots(const Call& call) const {
    const size_t at =
        layer * run.LayerElements() + (head * run.planes + plane) * run.PieceElements();
    for (const Bf16* block : blocks) {
      for (size_t slot = 0; slot < run.block_tokens; ++slot) call(block + at + slot * run.head_dim);
    }
  }
};

// Computes the channels' means and returns the sum of their variances.
double MeasureMeans(const Samples& samples, std::span<float> means) {
  std::vector<double> sums(means.size()), squares(means.size());
  samples.ForSlots([&](const Bf16* row) {
    for (size_t d = 0; d < means.size(); ++d) {
      const double value = ToFloat(row[d]);
      sums[d] += value;
      squares[d] += value * value;
    }
  });
  const auto count = static_cast<double>(samples.slots());
  double variance = 0;
  for (size_t d = 0; d < means.size(); ++d) {
    means[d] = ToFloat(ToBf16(static_cast<float>(sums[d] / count)));
    variance += squares[d] / count - 2.0 * means[d] * sums[d] / count + double{means[d]} * means[d];
  }
  return variance;
}

LevelCounts CountLevels(const Samples& samples, std::span<const float> means, float step) {
  const KvQuantOps& ops = ActiveKvQuantOps();
  std::vector<int16_t> levels(means.size());
  LevelCounts counts(2 * kTop + 1);
  samples.ForSlots([&](const Bf16* row) {
    ops.quantise(row, means.data(), 1, static_cast<int>(means.size()), step, levels.data());
    for (const int16_t level : levels) {
      ++counts[static_cast<size_t>(std::clamp<int>(level, -kTop, kTop) + kTop)];
    }
  });
  return counts;
}

}  // namespace

void KvCalibration::MeasurePlane(const KvRun& run, std::span<const Bf16* const> blocks,
                                 size_t layer, size_t plane) {
  const auto means = [&](size_t head) {
    return std::span(means_).subspan(Index(layer, head, plane) * dims(), dims());
  };
  double variance = 0;
  for (size_t head = 0; head < run.kv_heads; ++head) {
    variance += MeasureMeans({run, blocks, layer, head, plane}, means(head));
  }
  const auto channels = static_cast<double>(dims() * run.kv_heads);
  const auto rms = static_cast<float>(std::sqrt(std::max(variance / channels, 1e-20)));
  for (size_t level = 0; level < kCgxLevels; ++level) {
    const float step = rms * kStepShares[level];
    steps_[(level * run.layers + layer) * run.planes + plane] = step;
    for (size_t head = 0; head < run.kv_heads; ++head) {
      tables_[level * Units(geometry_) + Index(layer, head, plane)] =
          BestTable(CountLevels({run, blocks, layer, head, plane}, means(head), step));
    }
  }
}

KvCalibration KvCalibration::Measure(const KvRun& run, std::span<const Bf16* const> blocks) {
  PENSTOCK_CHECK(!blocks.empty());
  KvCalibration calibration({.layers = run.layers,
                             .kv_heads = run.kv_heads,
                             .planes = run.planes,
                             .head_dim = run.head_dim,
                             .rope_dim = run.rope_dim});
  for (size_t layer = 0; layer < run.layers; ++layer) {
    for (size_t plane = 0; plane < run.planes; ++plane) {
      calibration.MeasurePlane(run, blocks, layer, plane);
    }
  }
  calibration.SetId();
  return calibration;
}

}  // namespace penstock
