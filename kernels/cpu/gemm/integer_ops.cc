#include "kernels/cpu/gemm/integer_ops.h"

#include "kernels/cpu/isa.h"

namespace penstock {
namespace simd {
extern const IntegerOps kPortableIntegerOps;
#if defined(__x86_64__)
extern const IntegerOps kAvx2IntegerOps;
extern const IntegerOps kVnniIntegerOps;
#endif
}  // namespace simd

namespace {

Codes CodesOf(const QuantisedFormat& format) {
  if (format.table() != nullptr) return Codes::kTable;
  if (format.bits == 4) return Codes::kNibbles;
  return format.bits == 5 ? Codes::kFive : format.bits == 6 ? Codes::kSix : Codes::kBytes;
}

}  // namespace

PanelForm FormOf(const QuantisedFormat& format) {
  return {.codes = CodesOf(format),
          .table = format.table() == nullptr ? nullptr : format.table()->data(),
          .group = format.group,
          .run = format.run(),
          .zero = format.zero(),
          .zeros = format.zeros,
          .offsets = format.offsets,
          .scale = format.scale,
          .scales_at = format.scales_at(),
          .zeros_at = format.zeros_at(),
          .offsets_at = format.offsets_at(),
          .head_bytes = format.head_bytes(),
          .code_bytes = format.code_bytes(),
          .run_bytes = format.run_bytes()};
}

#if defined(__x86_64__)

bool VnniSupported() { return IsaSupported(Isa::kAvx512) && __builtin_cpu_supports("avx512vnni"); }

const IntegerOps& ActiveIntegerOps() {
  static const bool vnni = VnniSupported();
  const Isa isa = ActiveIsa();
  if (isa == Isa::kPortable) return simd::kPortableIntegerOps;
  return isa == Isa::kAvx2 || !vnni ? simd::kAvx2IntegerOps : simd::kVnniIntegerOps;
}

#else

bool VnniSupported() { return false; }
const IntegerOps& ActiveIntegerOps() { return simd::kPortableIntegerOps; }

#endif

}  // namespace penstock
