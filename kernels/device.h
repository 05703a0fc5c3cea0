#pragma once

namespace penstock {

enum class Device { kCpu, kCuda };

#ifdef PENSTOCK_WITH_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

class ThreadPool;

// The device that kernels run on, and the order in which they run. CUDA kernels are enqueued on
// `stream` and never synchronise. CPU kernels run on `threads`, or on the calling thread if it is
// null, and return when the result is complete. The number of threads never changes a bit of any
// result.
struct Exec {
  Device device = Device::kCpu;
  void* stream = nullptr;         // cudaStream_t when device == kCuda, else unused.
  ThreadPool* threads = nullptr;  // Outlives every call; used by one caller at a time.
};

// Chooses the backend; no other code does. A CPU-only build never instantiates `cuda`.
template <class Cpu, class Cuda>
void Dispatch(const Exec& exec, Cpu cpu, Cuda cuda) {
  if constexpr (kHasCuda) {
    if (exec.device == Device::kCuda) return cuda();
  }
  cpu();
}

}  // namespace penstock
