#include "worker/main/worker_options.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/environment.h"
#include "worker/main/step_defaults.h"

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

v1::WorkerConfig ConfigOn(const std::string& device) {
  v1::WorkerConfig config;
  config.set_device(device);
  return config;
}

TEST(DeviceDefaults, GpusTakeLargerSteps) {
  const auto cpu = WithDeviceDefaults(ConfigOn("cpu")),
             gpu = WithDeviceDefaults(ConfigOn("cuda:1"));
  EXPECT_EQ(cpu->chunk_tokens(), 512u);
  EXPECT_EQ(cpu->max_batch(), 64u);
  EXPECT_EQ(gpu->chunk_tokens(), 2048u);
  EXPECT_EQ(gpu->max_batch(), 256u);
}

TEST(StepTokensMax, IsThatOfTheLargestStep) {
  EXPECT_EQ(StepTokensMax({.chunk_tokens = 2048, .max_batch = 256, .prefill_chunk = 64}), 2048u);
  EXPECT_EQ(StepTokensMax({.chunk_tokens = 256,
                           .max_batch = 256,
                           .prefill_chunk = 64,
                           .draft_rows = 10,
                           .again_tokens = 1}),
            331u);
  const auto* field = v1::WorkerConfig::descriptor()->FindFieldByName("prefill_chunk");
  EXPECT_EQ(field->options().GetExtension(v1::default_),
            std::to_string(StepDefaults().prefill_chunk));
}

TEST(DeviceDefaults, KeepWhatTheUserSet) {
  for (const char* device : {"cpu", "cuda:0"}) {
    v1::WorkerConfig config = ConfigOn(device);
    config.set_chunk_tokens(16);
    config.set_max_batch(1);
    const auto kept = WithDeviceDefaults(config);
    ASSERT_TRUE(kept.ok()) << kept.status();
    EXPECT_EQ(kept->chunk_tokens(), 16u);
    EXPECT_EQ(kept->max_batch(), 1u);
    config.set_chunk_tokens(15);
    EXPECT_EQ(Message(WithDeviceDefaults(config).status()),
              "chunk_tokens is 15; it must be 0 or at least 16");
  }
}

TEST(LoadKernelsAtStart, OnGpusUnlessTheOperatorSaysOtherwise) {
  constexpr const char* kName = "CUDA_MODULE_LOADING";
  const ScopedEnvironment restored(kName, "LAZY");
  LoadKernelsAtStart(ConfigOn("cuda:0"));
  EXPECT_STREQ(std::getenv(kName), "LAZY");
  unsetenv(kName);
  LoadKernelsAtStart(ConfigOn("cpu"));
  EXPECT_EQ(std::getenv(kName), nullptr);
  LoadKernelsAtStart(ConfigOn("cuda:0"));
  EXPECT_STREQ(std::getenv(kName), "EAGER");
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
