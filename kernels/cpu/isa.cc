#include "kernels/cpu/isa.h"

#include <atomic>

#include "base/check.h"

namespace penstock {
namespace {

// The Isa that a ScopedIsa forces; negative if none does.
std::atomic<int> forced_isa{-1};

}  // namespace

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

#if defined(__x86_64__)

bool IsaSupported(Isa isa) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx512Bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16");
  }
  return false;
}

Isa BestIsa() {
  // Intel's cores before Diamond Rapids issue one vdpbf16ps every two cycles, but two 512-bit FMAs
  // every cycle: there f32 arithmetic is twice as fast, and exact in the activations. Zen 4 and
  // later issue one vdpbf16ps and one 512-bit FMA every cycle: there bf16 is twice as fast.
  if (IsaSupported(Isa::kAvx512Bf16) && __builtin_cpu_is("amd")) return Isa::kAvx512Bf16;
  if (IsaSupported(Isa::kAvx512)) return Isa::kAvx512;
  return IsaSupported(Isa::kAvx2) ? Isa::kAvx2 : Isa::kPortable;
}

#else

bool IsaSupported(Isa isa) { return isa == Isa::kPortable; }
Isa BestIsa() { return Isa::kPortable; }

#endif

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (IsaSupported(isa)) isas.push_back(isa);
  }
  return isas;
}

Isa ActiveIsa() {
  static const Isa best = BestIsa();
  const int forced = forced_isa.load(std::memory_order_relaxed);
  return forced < 0 ? best : static_cast<Isa>(forced);
}

ScopedIsa::ScopedIsa(Isa isa) : previous_(forced_isa.load()) {
  PENSTOCK_CHECK(IsaSupported(isa));
  forced_isa.store(static_cast<int>(isa));
}

ScopedIsa::~ScopedIsa() { forced_isa.store(previous_); }

}  // namespace penstock
