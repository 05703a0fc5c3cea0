#pragma once

namespace penstock {

enum class Device { kCpu, kCuda };

#ifdef PENSTOCK_WITH_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

class ThreadPool;

// Where and in what order kernels run. CUDA kernels enqueue on `stream` and never synchronize; CPU
// kernels run on `threads` (or on the caller alone when it is null) and return when done. How many
// threads there are never changes a bit of any result.
struct Exec {
  Device device = Device::kCpu;
  void* stream = nullptr;         // cudaStream_t when device == kCuda, else unused.
  ThreadPool* threads = nullptr;  // Outlives every call; used by one caller at a time.
};

// The one place that chooses a backend. `cuda` is not referenced in a CPU-only build.
template <class Cpu, class Cuda>
void Dispatch(const Exec& exec, Cpu cpu, Cuda cuda) {
  if constexpr (kHasCuda) {
    if (exec.device == Device::kCuda) return cuda();
  }
  cpu();
}

}  // namespace penstock
