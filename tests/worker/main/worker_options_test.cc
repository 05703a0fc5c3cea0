#include "worker/main/worker_options.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/environment.h"

namespace penstock {
namespace {

constexpr const char* kInterface = "NCCL_SOCKET_IFNAME";

std::string InterfaceFor(uint32_t gpus, const std::string& wire, const char* set_by_operator) {
  const ScopedEnvironment restored(kInterface, "");
  if (set_by_operator == nullptr) {
    unsetenv(kInterface);
  } else {
    setenv(kInterface, set_by_operator, 1);
  }
  v1::WorkerConfig config;
  config.set_tensor_parallel(gpus);
  config.set_wire(wire);
  KeepNcclOnThisHost(config);
  const char* const value = std::getenv(kInterface);
  return value == nullptr ? "unset" : value;
}

TEST(KeepNcclOnThisHost, WhereNcclConnectsTheGpusOfOneWorkerOnly) {
  EXPECT_EQ(InterfaceFor(2, "auto", nullptr), "=lo");
  EXPECT_EQ(InterfaceFor(2, "nccl", nullptr), "unset");
  EXPECT_EQ(InterfaceFor(1, "auto", nullptr), "unset");
}

TEST(KeepNcclOnThisHost, KeepsWhatTheOperatorSet) {
  EXPECT_EQ(InterfaceFor(2, "auto", "eth1"), "eth1");
}

}  // namespace
}  // namespace penstock
