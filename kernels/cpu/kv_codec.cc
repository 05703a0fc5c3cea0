#include "kernels/kv_codec.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/cpu/isa.h"

namespace penstock {
namespace simd {
extern const KvCodecOps kPortableKvCodec;
#if defined(__x86_64__)
extern const KvCodecOps kAvx2KvCodec;
extern const KvCodecOps kAvx512KvCodec;
#endif
}  // namespace simd

namespace {

#if defined(__x86_64__)
bool HasByteShuffles() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
}
#endif

}  // namespace

const KvCodecOps& KvCodecOpsFor(Isa isa) {
#if defined(__x86_64__)
  static const bool byte_shuffles = HasByteShuffles();
  if (isa == Isa::kAvx2) return simd::kAvx2KvCodec;
  if (isa == Isa::kAvx512 || isa == Isa::kAvx512Bf16) {
    return byte_shuffles ? simd::kAvx512KvCodec : simd::kAvx2KvCodec;
  }
#endif
  static_cast<void>(isa);
  return simd::kPortableKvCodec;
}

const KvCodecOps& ActiveKvCodecOps() { return KvCodecOpsFor(ActiveIsa()); }

bool MakeRansTable(std::span<const uint8_t, kRansSymbols> frequencies, RansTable& table) {
  uint32_t start = 0;
  for (uint32_t s = 0; s < kRansSymbols; ++s) {
    const uint32_t f = frequencies[s];
    if (f == 0 || start + f > kRansSlots) return false;
    table.frequency[s] = f;
    table.start[s] = start;
    // For f > 1, x / f for every x < 2^31 is the high half of x * reciprocal, shifted (division by
    // an invariant: Granlund and Montgomery, 1994). f = 1 is handled separately.
    const int shift = f == 1 ? 0 : std::bit_width(f - 1) - 1;
    table.shift[s] = static_cast<uint32_t>(shift);
    table.reciprocal[s] =
        f == 1 ? 0 : static_cast<uint32_t>(((uint64_t{1} << (32 + shift)) + f - 1) / f);
    for (uint32_t i = 0; i < f; ++i) {
      table.symbol[start + i] = static_cast<uint8_t>(s);
      table.slot[start + i] = s | f << 8 | i << 16;
    }
    start += f;
  }
  return start == kRansSlots;
}

void NormaliseRansFrequencies(std::span<const uint64_t, kRansSymbols> counts,
                              std::span<uint8_t, kRansSymbols> frequencies) {
  const auto total =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), uint64_t{0}));
  if (total == 0) return std::fill(frequencies.begin(), frequencies.end(), uint8_t{16});
  int left = kRansSlots;
  for (int s = 0; s < kRansSymbols; ++s) {
    const double share = static_cast<double>(counts[s]) / total * kRansSlots;
    frequencies[s] = static_cast<uint8_t>(std::clamp(share, 1.0, 240.0));
    left -= frequencies[s];
  }
  // Greedy correction: while slots are left, give one to the symbol that saves the most bits by it;
  // while there are too many, take one from the symbol that loses the fewest bits.
  for (; left != 0; left += left > 0 ? -1 : 1) {
    int best = -1;
    double best_gain = 0;
    for (int s = 0; s < kRansSymbols; ++s) {
      const double f = frequencies[s];
      if (left < 0 ? f <= 1 : f >= 240) continue;
      const auto weight = static_cast<double>(counts[s]) + 1e-9;
      const double gain = left > 0 ? weight / (f + 0.5) : -weight / (f - 0.5);
      if (best < 0 || gain > best_gain) best = s, best_gain = gain;
    }
    frequencies[best] = static_cast<uint8_t>(frequencies[best] + (left > 0 ? 1 : -1));
  }
}

}  // namespace penstock
