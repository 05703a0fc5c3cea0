#include "lab/micro/machine_rates.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "kernels/buffer.h"
#include "kernels/cpu/thread_pool.h"
#include "lab/micro/kernels_limits.h"

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
