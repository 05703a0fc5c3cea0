// For tests over an emulated GPU, in the place of kvstore/wire/ucx/ucx_memory.cc: UCX is given the
// address at which the CPU may touch the GPU's memory. PENSTOCK_TEST_DEVICE_MEMORY says what UCX
// can do there: "works", "fails" (what it receives goes astray); unset: it does not reach it.

#include <cstdlib>
#include <string_view>
#include <vector>

#include "kvstore/wire/net/device_probe.h"
#include "kvstore/wire/ucx/ucx_memory.h"
#include "tests/cuda/emulator/emulated_memory.h"

namespace penstock {
namespace {

std::string_view Setting() {
  const char* setting = std::getenv("PENSTOCK_TEST_DEVICE_MEMORY");
  return setting == nullptr ? "" : setting;
}

}  // namespace

bool UcxReachesDevices(ucp_context*) { return !Setting().empty(); }

UcxBuffer UcxBufferOf(const std::byte* data, MemoryKind memory) {
  if (memory == MemoryKind::kDevice && Setting() == "fails") {
    // Each wire has its own thread, so a wire does not receive the bytes that another wire sent.
    thread_local std::vector<std::byte> astray(2 * DeviceProbe::kBytes);
    return {.data = astray.data()};
  }
  return {.data = cuda::emulator::SeenByHardware(data)};
}

}  // namespace penstock
