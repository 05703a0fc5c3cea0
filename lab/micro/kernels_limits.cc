#include "lab/micro/kernels_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "kernels/cpu/gemm/integer_ops.h"
#include "kernels/cpu/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock {
namespace {

// Pieces are claimed as the kernels' tasks are, so that both bear a busy core alike. Long enough to
// keep prefetchers busy, short enough that threads end together.
constexpr size_t kPieceBytes = size_t{8} << 20;  // at most
constexpr size_t kLine = 256;                    // pieces are whole ones
constexpr int kWalkTrials = 3;
constexpr int64_t kPeakRounds = int64_t{1} << 20;
constexpr int kChains = 12;  // more than any pipeline's latency times its width

// Keeps results, so that no loop is optimised away.
std::atomic<uint64_t> sink{0};

double SecondsOfCalls(auto run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A way to walk through memory: equal parts side by side, some cache lines of each in turn, with or
// without asking for lines some way ahead. Which one is the fastest depends on the machine.
struct Walk {
  int streams;
  bool prefetches;
};
constexpr Walk kWalks[] = {{1, false}, {2, false}, {4, false}, {1, true}, {2, true}, {4, true}};

// Sums 64-bit words. Inlined into functions of several instruction sets.
template <int kLines, bool kPrefetches>
[[gnu::always_inline]] inline uint64_t SumWords(const uint64_t* words, int64_t count, int streams) {
  constexpr int64_t kWords = kLines * 8;  // of one visit
  constexpr int64_t kAhead = 1536 / 8;
  uint64_t sums[kWords] = {};
  const int64_t part = count / streams;
  for (int64_t i = 0; i + kWords <= part; i += kWords) {
    for (int s = 0; s < streams; ++s) {
      const uint64_t* line = words + s * part + i;
      if (kPrefetches) {
        for (int64_t j = 0; j < kWords; j += 8) __builtin_prefetch(line + kAhead + j);
      }
      for (int64_t j = 0; j < kWords; ++j) sums[j] += line[j];
    }
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

[[gnu::always_inline]] inline uint64_t SumStreams(const uint64_t* words, int64_t count, Walk walk) {
  return walk.prefetches ? SumWords<2, true>(words, count, walk.streams)
                         : SumWords<4, false>(words, count, walk.streams);
}

// Each returns the operations done: two per lane and chain in a round. The empty asm makes values
// unknown to the compiler, which would else fold equal chains into one.
double PortablePeak(int64_t rounds) {
  constexpr int kLanes = 8;
  float sums[kChains][kLanes] = {};
  asm volatile("" : : "r"(sums) : "memory");
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& chain : sums) {
      for (float& sum : chain) sum += 0.5f * sum;
    }
  }
  sink += static_cast<uint64_t>(sums[0][0]);
  return 2.0 * kLanes * kChains * static_cast<double>(rounds);
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) uint64_t SumStreamsAvx2(const uint64_t* words, int64_t count,
                                                        Walk walk) {
  return SumStreams(words, count, walk);
}

uint64_t ReadStreams(const uint64_t* words, int64_t count, Walk walk) {
  return IsaSupported(Isa::kAvx2) ? SumStreamsAvx2(words, count, walk)
                                  : SumStreams(words, count, walk);
}

__attribute__((target("avx2,fma"))) double Avx2Peak(int64_t rounds) {
  __m256 sums[kChains], x = _mm256_set1_ps(0.5f);
  for (auto& sum : sums) {
    sum = _mm256_setzero_ps();
    asm volatile("" : "+x"(sum));
  }
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+x"(x));
    for (auto& sum : sums) sum = _mm256_fmadd_ps(x, x, sum);
  }
  for (const auto& sum : sums) sink += static_cast<uint64_t>(_mm256_cvtss_f32(sum));
  return 2.0 * 8 * kChains * static_cast<double>(rounds);
}

__attribute__((target("avx512f"))) double Avx512Peak(int64_t rounds) {
  __m512 sums[kChains], x = _mm512_set1_ps(0.5f);
  for (auto& sum : sums) {
    sum = _mm512_setzero_ps();
    asm volatile("" : "+v"(sum));
  }
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(x));
    for (auto& sum : sums) sum = _mm512_fmadd_ps(x, x, sum);
  }
  for (const auto& sum : sums) sink += static_cast<uint64_t>(_mm512_cvtss_f32(sum));
  return 2.0 * 16 * kChains * static_cast<double>(rounds);
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) double Avx512Bf16Peak(
    int64_t rounds) {
  __m512 sums[kChains];
  __m512i x = _mm512_set1_epi32(0x3f003f00);
  for (auto& sum : sums) {
    sum = _mm512_setzero_ps();
    asm volatile("" : "+v"(sum));
  }
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(x));
    const auto pairs = reinterpret_cast<__m512bh>(x);
    for (auto& sum : sums) sum = _mm512_dpbf16_ps(sum, pairs, pairs);
  }
  for (const auto& sum : sums) sink += static_cast<uint64_t>(_mm512_cvtss_f32(sum));
  return 4.0 * 16 * kChains * static_cast<double>(rounds);
}

__attribute__((target("avx2"))) double Avx2IntegerPeak(int64_t rounds) {
  __m256i sums[kChains], x = _mm256_set1_epi32(0x10001);
  for (auto& sum : sums) {
    sum = _mm256_setzero_si256();
    asm volatile("" : "+x"(sum));
  }
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& sum : sums) {
      asm volatile("" : "+x"(x));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x, x));
    }
  }
  for (const auto& sum : sums) sink += static_cast<uint64_t>(_mm256_extract_epi32(sum, 0));
  return 2.0 * 16 * kChains * static_cast<double>(rounds);
}

__attribute__((target("avx512f,avx512bw,avx512vnni"))) double VnniPeak(int64_t rounds) {
  // The sums stay in registers only if the compiler unrolls every loop over them early.
  __m512i sums[kChains], x = _mm512_set1_epi32(0x10001);
#pragma GCC unroll 16
  for (auto& sum : sums) sum = _mm512_setzero_si512();
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (auto& sum : sums) asm volatile("vpdpwssd %1, %1, %0" : "+v"(sum) : "v"(x));
  }
#pragma GCC unroll 16
  for (const auto& sum : sums) {
    int32_t lanes[16];
    _mm512_storeu_si512(lanes, sum);
    sink += static_cast<uint64_t>(lanes[0]);
  }
  return 2.0 * 32 * kChains * static_cast<double>(rounds);
}

double Operations(Isa isa, int64_t rounds) {
  if (isa == Isa::kAvx512Bf16) return Avx512Bf16Peak(rounds);
  if (isa == Isa::kAvx512) return Avx512Peak(rounds);
  if (isa == Isa::kAvx2) return Avx2Peak(rounds);
  return PortablePeak(rounds);
}

#else

uint64_t ReadStreams(const uint64_t* words, int64_t count, Walk walk) {
  return SumStreams(words, count, walk);
}

double Operations(Isa, int64_t rounds) { return PortablePeak(rounds); }

#endif

MachineLimits::Memory CutPieces(const MachineLimits::Memory& memory) {
  MachineLimits::Memory pieces;
  for (const std::span<const std::byte> whole : memory) {
    const size_t count = (whole.size() + kPieceBytes - 1) / kPieceBytes;
    const size_t bytes = whole.size() / count / kLine * kLine;
    for (size_t i = 0; i < count; ++i) pieces.push_back(whole.subspan(i * bytes, bytes));
  }
  return pieces;
}

}  // namespace

MachineLimits::MachineLimits(const Exec& exec, const Memory& memory)
    : exec_(exec), pieces_(CutPieces(memory)), walk_(BestWalk()) {}

int MachineLimits::BestWalk() const {
  double max[std::size(kWalks)] = {};
  for (int trial = 0; trial < kWalkTrials; ++trial) {
    for (int i = 0; i < static_cast<int>(std::size(kWalks)); ++i) {
      max[i] = std::max(max[i], ReadBandwidth(i));
    }
  }
  return static_cast<int>(std::max_element(std::begin(max), std::end(max)) - std::begin(max));
}

double MachineLimits::ReadBandwidth() const { return ReadBandwidth(walk_); }

double MachineLimits::ReadBandwidth(int walk) const {
  const double seconds = SecondsOfCalls([&] {
    ParallelFor(exec_, static_cast<int64_t>(pieces_.size()), [&](int64_t index, int) {
      const std::span<const std::byte> piece = pieces_[index];
      sink += ReadStreams(reinterpret_cast<const uint64_t*>(piece.data()),
                          static_cast<int64_t>(piece.size() / sizeof(uint64_t)), kWalks[walk]);
    });
  });
  size_t bytes = 0;
  for (const std::span<const std::byte> piece : pieces_) bytes += piece.size();
  return static_cast<double>(bytes) / seconds;
}

double MachineLimits::RateOf(const std::function<double(int64_t rounds)>& operations) const {
  const int threads = ThreadCount(exec_);
  double done_by_all = 0;
  const double seconds = SecondsOfCalls([&] {
    ParallelFor(exec_, threads, [&](int64_t task, int) {
      const double done = operations(kPeakRounds);
      if (task == 0) done_by_all = done * threads;
    });
  });
  return done_by_all / seconds;
}

double MachineLimits::Peak(Isa isa) const {
  return RateOf([isa](int64_t rounds) { return Operations(isa, rounds); });
}

double MachineLimits::IntegerPeak() const {
#if defined(__x86_64__)
  if (VnniSupported()) return RateOf(VnniPeak);
  if (IsaSupported(Isa::kAvx2)) return RateOf(Avx2IntegerPeak);
#endif
  return RateOf(PortablePeak);
}

double MachineLimits::DotProductPeak() const {
  return Peak(IsaSupported(Isa::kAvx512Bf16) ? Isa::kAvx512Bf16 : BestIsa());
}

double MachineLimits::MultiplyAddPeak() const {
  return Peak(IsaSupported(Isa::kAvx512) ? Isa::kAvx512 : BestIsa());
}

}  // namespace penstock
