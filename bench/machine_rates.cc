#include "bench/machine_rates.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "bench/kernels_limits.h"
#include "kernels/buffer.h"
#include "kernels/thread_pool.h"

namespace penstock {
namespace {

constexpr size_t kReadBytes = size_t{9} << 27;  // 1.125 GiB

}  // namespace

MachineRates MeasureMachine() {
  ThreadPool threads(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  const Buffer memory(kReadBytes);
  std::memset(memory.as<std::byte>(), 1, memory.bytes());  // untouched, it is one page of zeros
  const MachineLimits limits(Exec{.threads = &threads},
                             {std::span(memory.as<const std::byte>(), memory.bytes())});
  return {.read_bytes_per_s = limits.ReadBandwidth(), .flops_per_s = limits.MultiplyAddPeak()};
}

}  // namespace penstock
