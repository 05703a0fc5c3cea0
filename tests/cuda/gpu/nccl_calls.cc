#include "tests/cuda/gpu/nccl_calls.h"

#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "kernels/cuda/runtime.h"

namespace penstock::cuda {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);

}  // namespace

bool LoadNccl(const char* path, nccl::Functions& calls, std::string& why) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    why = dlerror();
    return false;
  }
  nccl::VisitFunctions(calls, [&](const char* name, auto& function, bool needed) {
    void* found = dlsym(library, name);
    std::memcpy(&function, &found, sizeof(found));
    if (found == nullptr && needed) why = std::string("it lacks ") + name;
  });
  return why.empty();
}

bool SettleNccl(const nccl::Functions& calls, nccl::Comm* comm, nccl::Result result) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (result == nccl::kInProgress && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
    if (calls.comm_get_async_error(comm, &result) != nccl::kSuccess) return false;
  }
  return result == nccl::kSuccess;
}

bool AwaitEvent(void* event) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!EventReached(event)) {
    if (std::chrono::steady_clock::now() > deadline || TakeError() != nullptr) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace penstock::cuda
