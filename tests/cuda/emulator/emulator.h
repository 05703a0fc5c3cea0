#pragma once

// Emulates a thread block on the host: every thread is a fiber, and every intrinsic of device.cuh
// does what the PTX manual says. It provokes errors: shared memory starts as NaN, asynchronous
// copies complete as late (or as early) as allowed, and threads run up to the next barrier in
// either order. A collective that some lanes of a warp do not call, or a barrier that some threads
// do not reach, ends the process. It does not emulate the GPU's memory model or its timing.

#include <bit>
#include <functional>

#include "kernels/cuda/launch_shape.h"
#include "tests/cuda/emulator/emulated_stream.h"

#define PENSTOCK_UNROLL
#define PENSTOCK_NO_UNROLL
#define PENSTOCK_DEVICE inline
// The keywords of nvcc.
// NOLINTBEGIN(bugprone-reserved-identifier)
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
// NOLINTEND(bugprone-reserved-identifier)

namespace penstock::cuda {
namespace emulator {

enum class Copies { kLate, kEarly };  // an asynchronous copy completes at the wait, or at once
// The order in which threads run: all threads of a block in turn, or one warp as far as barriers
// allow.
enum class Order { kAscending, kDescending, kWarpByWarp };
inline constexpr Order kOrders[] = {Order::kAscending, Order::kDescending, Order::kWarpByWarp};

// Sets the schedule of the calling thread's launches during its lifetime.
class ScopedSchedule {
 public:
  ScopedSchedule(Copies copies, Order order);
  ~ScopedSchedule();
  ScopedSchedule(const ScopedSchedule&) = delete;
  ScopedSchedule& operator=(const ScopedSchedule&) = delete;

 private:
  Copies copies_before_;
  Order order_before_;
};

// Runs the blocks of a launch, one after the other.
void Run(const LaunchShape& shape, const std::function<void()>& thread);

int64_t LaunchCount();  // of the calling thread

}  // namespace emulator

int ThreadX();
int BlockX();
int BlockY();
int BlockZ();
uint8_t* SharedMemory();
void SyncWarp();
void SyncBlock();
void CopyAsync16(void* shared, const void* global, bool valid);
void CommitCopies();
void WaitForCopies(int pending);
template <int kPending>
void WaitCopies() {
  WaitForCopies(kPending);
}
void LoadMatrix4(uint32_t (&r)[4], const void* row);
void LoadMatrix4Transposed(uint32_t (&r)[4], const void* row);
uint32_t TransposeMatrix(uint32_t cells);
void MmaOf(bool bf16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <bool kBf16>
void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MmaOf(kBf16, c, a, b0, b1);
}
uint32_t ShuffleXor(uint32_t v, int mask);
uint32_t Shuffle(uint32_t v, int lane);
uint32_t Ballot(bool b);

inline float BitsToFloat(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline uint32_t FloatToBits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline double BitsToDouble(uint64_t bits) {
  double x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline uint64_t DoubleToBits(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline float Exp2(float x) { return std::exp2(x); }
inline float Reciprocal(float x) { return 1.0f / x; }
// Single IEEE operations: compiled with -ffp-contract=off.
inline float Multiply(float a, float b) { return a * b; }
inline float Add(float a, float b) { return a + b; }
inline float Divide(float a, float b) { return a / b; }
inline float SquareRoot(float a) { return std::sqrt(a); }
inline float MultiplyAdd(float a, float b, float c) { return std::fma(a, b, c); }
inline double Multiply(double a, double b) { return a * b; }
inline double Add(double a, double b) { return a + b; }
inline double Divide(double a, double b) { return a / b; }
inline double SquareRoot(double a) { return std::sqrt(a); }
inline uint64_t MultiplyHigh(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(a) * b >> 64);
}

uint32_t PackBf16(float low, float high);
uint32_t PackHalf(float low, float high);
float LowHalf(uint32_t halves);
float HighHalf(uint32_t halves);
uint32_t E4m3ToHalves(uint32_t codes);
inline constexpr bool kPacksE4m3 = true;
uint32_t PackE4m3(float low, float high);
uint32_t MinBf16(uint32_t a, uint32_t b);
uint32_t MaxBf16(uint32_t a, uint32_t b);
uint32_t MultiplyAddBf16(uint32_t a, uint32_t b, uint32_t c);
inline uint32_t CountBits(uint32_t v) { return static_cast<uint32_t>(std::popcount(v)); }
uint32_t Permute(uint32_t a, uint32_t b, uint32_t selector);
inline uint32_t NibblesToHalves(uint32_t cells) { return (cells & 0x000f000fu) | 0x64006400u; }
inline uint32_t NibblesToBf16(uint32_t cells) { return (cells & 0x000f000fu) | 0x43004300u; }
Words4 LoadStreaming(const void* p);

inline void Store(void* p, const Words4& v) { *static_cast<Words4*>(p) = v; }
inline void Store(void* p, const Words2& v) { *static_cast<Words2*>(p) = v; }

// Fibers of one host thread are never preempted, so this is atomic.
inline uint32_t AtomicAdd(uint32_t* p, uint32_t v) { return (*p += v) - v; }
inline void AtomicMin(uint32_t* p, uint32_t v) { *p = v < *p ? v : *p; }
inline void AtomicAdd(uint64_t* p, uint64_t v) { *p += v; }

template <class Params>
void Launch(void (*kernel)(Params), const LaunchShape& shape, const Params& params, void* stream) {
  if (shape.x == 0 || shape.y == 0 || shape.z == 0) return;
  emulator::Enqueue(stream, [=] { emulator::Run(shape, [&] { kernel(params); }); });
}

}  // namespace penstock::cuda
