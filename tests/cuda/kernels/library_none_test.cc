// A CUDA build without the library's kernels.

#include <gtest/gtest.h>

#include "kernels/library/prefill_check.h"

namespace penstock::cuda::library {
namespace {

TEST(LibraryNone, SaysWhatIsMissing) {
  EXPECT_FALSE(HasPrefill());
  const absl::Status status = CheckPrefillDevice({.compute_major = 9, .compute_minor = 0});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(status).find("numerics is fast, and this build has no library kernels"),
            std::string::npos)
      << status;
}

TEST(LibraryNoneDeathTest, ComputesNothing) {
  EXPECT_DEATH(LaunchPrefill({}, nullptr), "no library kernels");
}

}  // namespace
}  // namespace penstock::cuda::library
