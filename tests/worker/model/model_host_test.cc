#include "worker/model/model_host.h"

#include <gtest/gtest.h>

#include "tests/support/environment.h"

namespace penstock {
namespace {

absl::Status Open(const std::string& device, int32_t tensor_parallel = 1) {
  return ModelHost::Open({.model = ModelFolder(),
                          .kv_memory = "1MiB",
                          .threads = 1,
                          .device = device,
                          .tensor_parallel = tensor_parallel})
      .status();
}

TEST(ModelHost, SaysWhyThereIsNoGpu) {
  EXPECT_TRUE(Open("cpu").ok());
  // In this build or on this machine.
  const absl::Status none = Open("cuda:7");
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(none).find("cuda:7"), std::string::npos) << none.message();
  for (const char* device : {"", "gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:0 "}) {
    const absl::Status status = Open(device);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << device;
    EXPECT_NE(Message(status).find("cuda:N"), std::string::npos) << status.message();
  }
}

TEST(ModelHost, SeveralGpusAreNotTheCpus) {
  const absl::Status status = Open("cpu", 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(status).find("tensor_parallel is 2"), std::string::npos) << status.message();
}

TEST(ModelHost, LatentsHaveOneFormat) {
  const auto open = [](const char* format) {
    return ModelHost::Open({.model = SourceFolder() + "/tests/golden/logits/deepseek_v3",
                            .kv_memory = "1MiB",
                            .kv_format = format,
                            .threads = 1});
  };
  const auto host = open("bf16");
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_TRUE((*host)->layout.HasLatents());
  EXPECT_EQ((*host)->layout.LayerBytes(), 16u * (32 + 16) * 2);
  EXPECT_FALSE((*host)->runner->eviction_attention().has_value());
  for (const char* format : {"f8", "i8", "i4r", "k8v4", "k3v3", "k3v2"}) {
    const absl::Status status = open(format).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << format;
    EXPECT_NE(Message(status).find("DeepseekV3ForCausalLM) have latents"), std::string::npos)
        << status.message();
  }
}

TEST(ModelHost, LibraryKernelsAreNotTheCpus) {
  const absl::Status status =
      ModelHost::Open(
          {.model = ModelFolder(), .kv_memory = "1MiB", .threads = 1, .gpu_kernels = "library"})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(status).find("gpu_kernels is library"), std::string::npos) << status.message();
}

TEST(ModelHost, GraphsAreNotTheCpus) {
  const absl::Status status =
      ModelHost::Open(
          {.model = ModelFolder(), .kv_memory = "1MiB", .threads = 1, .gpu_graphs = "always"})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(status).find("gpu_graphs is always"), std::string::npos) << status.message();
}

TEST(ModelHost, FastNumericsAreNotTheCpus) {
  ModelHost::Options options{.model = ModelFolder(), .kv_memory = "1MiB", .threads = 1};
  const auto exact = ModelHost::Open(options);
  ASSERT_TRUE(exact.ok()) << exact.status();
  EXPECT_EQ((*exact)->numerics, "exact");
  options.numerics = "fast";
  const absl::Status status = ModelHost::Open(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(status).find("numerics is fast, and device is cpu"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace penstock
