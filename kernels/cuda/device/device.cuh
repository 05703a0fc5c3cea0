#pragma once

// The device operations that kernels use, by name: PTX under nvcc, and a block emulator on the host
// otherwise (emulator.h), so that the same source runs on a GPU and in every test run. Lanes of a
// warp are named as in the PTX manual: lane = 4 * group + member for the fragments of mma and
// ldmatrix.
//
// This room, kernels/cuda/device, has the kernels' device code, one file per algorithm. It may use
// kernels/, kernels/cpu (constants only) and kernels/cuda. It does not know allocation, models,
// requests or the network.

#include "kernels/cuda/launch_shape.h"

#ifdef __CUDACC__

#include <cuda_runtime.h>

#define PENSTOCK_UNROLL _Pragma("unroll")
#define PENSTOCK_NO_UNROLL _Pragma("unroll 1")
#define PENSTOCK_DEVICE __device__ __forceinline__

namespace penstock::cuda {

PENSTOCK_DEVICE int ThreadX() { return static_cast<int>(threadIdx.x); }
PENSTOCK_DEVICE int BlockX() { return static_cast<int>(blockIdx.x); }
PENSTOCK_DEVICE int BlockY() { return static_cast<int>(blockIdx.y); }
PENSTOCK_DEVICE int BlockZ() { return static_cast<int>(blockIdx.z); }

// The launch's dynamic shared memory, aligned to 128 bytes.
PENSTOCK_DEVICE uint8_t* SharedMemory() {
  extern __shared__ __align__(128) uint8_t penstock_shared_memory[];
  return penstock_shared_memory;
}

PENSTOCK_DEVICE void SyncWarp() { __syncwarp(); }
PENSTOCK_DEVICE void SyncBlock() { __syncthreads(); }

PENSTOCK_DEVICE uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Starts an asynchronous copy of 16 bytes to shared memory; writes zeros if not `valid`. Both
// addresses are aligned to 16 bytes.
PENSTOCK_DEVICE void CopyAsync16(void* shared, const void* global, bool valid) {
  asm volatile(
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)),
      "l"(global), "r"(valid ? 16 : 0)
      : "memory");
}
PENSTOCK_DEVICE void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending groups of copies of this thread are incomplete. Other threads'
// copies need a barrier too.
template <int kPending>
PENSTOCK_DEVICE void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ldmatrix: loads four 8x8 matrices of 16-bit cells; lane i gives the address of row i % 8 of
// matrix i / 8.
PENSTOCK_DEVICE void LoadMatrix4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
PENSTOCK_DEVICE void LoadMatrix4Transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
// Transposes an 8x8 matrix of 16-bit cells across the warp; each lane has two cells of a row.
PENSTOCK_DEVICE uint32_t TransposeMatrix(uint32_t cells) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(cells));
  return r;
}

// mma: c[16][8] += a[16][16] * b[16][8], accumulated in f32, for bf16 or f16 operands.
template <bool kBf16>
PENSTOCK_DEVICE void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kBf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

PENSTOCK_DEVICE uint32_t ShuffleXor(uint32_t v, int mask) {
  return __shfl_xor_sync(0xffffffffu, v, mask);
}
PENSTOCK_DEVICE uint32_t Shuffle(uint32_t v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
PENSTOCK_DEVICE uint32_t Ballot(bool b) { return __ballot_sync(0xffffffffu, b); }

PENSTOCK_DEVICE float BitsToFloat(uint32_t bits) { return __uint_as_float(bits); }
PENSTOCK_DEVICE uint32_t FloatToBits(float x) { return __float_as_uint(x); }
PENSTOCK_DEVICE double BitsToDouble(uint64_t bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}
PENSTOCK_DEVICE uint64_t DoubleToBits(double x) {
  return static_cast<uint64_t>(__double_as_longlong(x));
}

// 2^x within about 2 ulp; 0 for -infinity.
PENSTOCK_DEVICE float Exp2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// 1 / x within 1 ulp; 0 for infinity.
PENSTOCK_DEVICE float Reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// Single IEEE operations, each rounded once and never fused, so that they match the CPU's bits.
PENSTOCK_DEVICE float Multiply(float a, float b) { return __fmul_rn(a, b); }
PENSTOCK_DEVICE float Add(float a, float b) { return __fadd_rn(a, b); }
PENSTOCK_DEVICE float Divide(float a, float b) { return __fdiv_rn(a, b); }
PENSTOCK_DEVICE float SquareRoot(float a) { return __fsqrt_rn(a); }
// a * b + c, rounded once.
PENSTOCK_DEVICE float MultiplyAdd(float a, float b, float c) { return __fmaf_rn(a, b, c); }
PENSTOCK_DEVICE double Multiply(double a, double b) { return __dmul_rn(a, b); }
PENSTOCK_DEVICE double Add(double a, double b) { return __dadd_rn(a, b); }
PENSTOCK_DEVICE double Divide(double a, double b) { return __ddiv_rn(a, b); }
PENSTOCK_DEVICE double SquareRoot(double a) { return __dsqrt_rn(a); }
PENSTOCK_DEVICE uint64_t MultiplyHigh(uint64_t a, uint64_t b) { return __umul64hi(a, b); }

// Rounds two floats to nearest, ties to even, and packs them into a word.
PENSTOCK_DEVICE uint32_t PackBf16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
PENSTOCK_DEVICE uint32_t PackHalf(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
PENSTOCK_DEVICE float LowHalf(uint32_t halves) {
  float r;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(r) : "r"(halves));
  return r;
}
PENSTOCK_DEVICE float HighHalf(uint32_t halves) {
  float r;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(r) : "r"(halves));
  return r;
}
// Converts the two e4m3 codes in the low 16 bits to two f16, exactly.
PENSTOCK_DEVICE uint32_t E4m3ToHalves(uint32_t codes) {
  uint32_t r;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(static_cast<uint16_t>(codes)));
#else
  // Exponent and mantissa, shifted down by one bit, form an f16 that is too small by 2^8.
  const uint32_t spread = ((codes & 0xffu) << 8) | ((codes & 0xff00u) << 16);
  const uint32_t small = ((spread & 0x7f007f00u) >> 1) | (spread & 0x80008000u);
  asm("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"(small), "r"(0x5c005c00u));
#endif
  return r;
}
#if __CUDA_ARCH__ >= 890
constexpr bool kPacksE4m3 = true;
#else
constexpr bool kPacksE4m3 = false;
#endif
// Rounds two floats of magnitudes up to 448 to e4m3, to nearest, ties to even; only if kPacksE4m3.
PENSTOCK_DEVICE uint32_t PackE4m3(float low, float high) {
  uint16_t r = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
#endif
  return r;
}
// The smaller, or larger, of each of two bf16; NaN if one of them is.
PENSTOCK_DEVICE uint32_t MinBf16(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
PENSTOCK_DEVICE uint32_t MaxBf16(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// a * b + c for each of two bf16, rounded once.
PENSTOCK_DEVICE uint32_t MultiplyAddBf16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
PENSTOCK_DEVICE uint32_t CountBits(uint32_t v) { return static_cast<uint32_t>(__popc(v)); }
// prmt: selects bytes of {b, a} by the four nibbles of `selector`.
PENSTOCK_DEVICE uint32_t Permute(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}
// Returns 1024 + the low nibble of each 16-bit half, as two f16.
PENSTOCK_DEVICE uint32_t NibblesToHalves(uint32_t cells) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(cells), "r"(0x000f000fu), "r"(0x64006400u));
  return r;
}
// Returns 128 + the low nibble of each 16-bit half, as two bf16.
PENSTOCK_DEVICE uint32_t NibblesToBf16(uint32_t cells) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(cells), "r"(0x000f000fu), "r"(0x43004300u));
  return r;
}

// Loads 16 bytes that are used once, without keeping them in the L1 cache. It is a load that the
// compiler may not move: ptxas delays a load of constant data (ld.global.nc) until its first use,
// which undoes a prefetch.
PENSTOCK_DEVICE Words4 LoadStreaming(const void* p) {
  Words4 v;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(p)
               : "memory");
  return v;
}

// Stores to global memory in one instruction: the compiler may divide the assignment of a struct.
PENSTOCK_DEVICE void Store(void* p, const Words4& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.word[0]), "r"(v.word[1]),
               "r"(v.word[2]), "r"(v.word[3])
               : "memory");
}
PENSTOCK_DEVICE void Store(void* p, const Words2& v) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(v.word[0]), "r"(v.word[1])
               : "memory");
}

// Atomically adds v; returns the previous value.
PENSTOCK_DEVICE uint32_t AtomicAdd(uint32_t* p, uint32_t v) { return atomicAdd(p, v); }
PENSTOCK_DEVICE void AtomicMin(uint32_t* p, uint32_t v) { atomicMin(p, v); }
PENSTOCK_DEVICE void AtomicAdd(uint64_t* p, uint64_t v) {
  atomicAdd(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(v));
}

// Enqueues a kernel. Errors are reported by TakeError() (runtime.h).
template <class Params>
void Launch(void (*kernel)(Params), const LaunchShape& shape, const Params& params, void* stream) {
  if (shape.x == 0 || shape.y == 0 || shape.z == 0) return;
  if (shape.shared_bytes > 48 * 1024) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shape.shared_bytes));
  }
  const dim3 grid(shape.x, shape.y, shape.z);
  kernel<<<grid, shape.threads, shape.shared_bytes, static_cast<cudaStream_t>(stream)>>>(params);
}

}  // namespace penstock::cuda

#else

#ifndef PENSTOCK_CUDA_EMULATOR
#error "device code needs nvcc, or PENSTOCK_CUDA_EMULATOR with the path of the block emulator"
#endif
#include PENSTOCK_CUDA_EMULATOR

#endif

namespace penstock::cuda {

PENSTOCK_DEVICE float ShuffleXor(float v, int mask) {
  return BitsToFloat(ShuffleXor(FloatToBits(v), mask));
}
PENSTOCK_DEVICE float Shuffle(float v, int lane) {
  return BitsToFloat(Shuffle(FloatToBits(v), lane));
}
PENSTOCK_DEVICE double Shuffle(double v, int lane) {
  const uint64_t bits = DoubleToBits(v);
  const uint32_t low = Shuffle(static_cast<uint32_t>(bits), lane);
  const uint32_t high = Shuffle(static_cast<uint32_t>(bits >> 32), lane);
  return BitsToDouble(uint64_t{high} << 32 | low);
}
PENSTOCK_DEVICE float WidenBf16(uint32_t bits) { return BitsToFloat(bits << 16); }
PENSTOCK_DEVICE float LowBf16(uint32_t pair) { return BitsToFloat(pair << 16); }
PENSTOCK_DEVICE float HighBf16(uint32_t pair) { return BitsToFloat(pair & 0xffff0000u); }
// a * b for each of two bf16, rounded once. Adding -0 changes no number and no sign.
PENSTOCK_DEVICE uint32_t MultiplyBf16(uint32_t a, uint32_t b) {
  return MultiplyAddBf16(a, b, 0x80008000u);
}
PENSTOCK_DEVICE uint16_t RoundBf16(float x) {
  return static_cast<uint16_t>(PackBf16(x, 0.0f) & 0xffffu);
}

}  // namespace penstock::cuda
