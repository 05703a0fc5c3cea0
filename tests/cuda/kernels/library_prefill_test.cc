// The start-up check of the library's prefill attention, over the host's implementation of it.

#include <gtest/gtest.h>

#include "kernels/library/prefill_check.h"

namespace penstock::cuda::library {
namespace {

constexpr int32_t kProcessors = 3;

std::string CheckBy(const PrefillRun& run, const PrefillModel& model) {
  return Message(CheckPrefill(run, model, kProcessors, nullptr));
}

TEST(LibraryPrefillCheck, PassesRightAttention) {
  for (const int32_t head_dim : {64, 128}) {
    for (const int32_t page : {16, 64}) {
      const PrefillModel model{
          .head_dim = head_dim, .group = 4, .page_tokens = page, .window = true};
      EXPECT_EQ(CheckBy(LaunchPrefill, model), "") << head_dim << " " << page;
    }
  }
}

// A kernel that does something other than what the call says.
void ExpectFound(const std::function<void(PrefillCall&)>& change, const char* fault) {
  const auto run = [&](PrefillCall call, void* stream) {
    change(call);
    LaunchPrefill(call, stream);
  };
  const std::string message = CheckBy(run, {.head_dim = 64, .group = 2, .window = true});
  EXPECT_NE(message.find("numerics is fast"), std::string::npos) << message;
  EXPECT_NE(message.find(fault), std::string::npos) << message;
}

TEST(LibraryPrefillCheck, FindsWrongAttention) {
  constexpr char kOff[] = "of its size off the CPU's";
  ExpectFound([](PrefillCall& call) { call.scale *= 1.1f; }, kOff);
  ExpectFound([](PrefillCall& call) { call.items = 0; }, kOff);
  ExpectFound([](PrefillCall& call) { call.kv.values = call.kv.keys; }, kOff);
  ExpectFound([](PrefillCall& call) { call.shape.window = 0; },
              "heads of 64 with a sliding window is");
}

TEST(LibraryPrefillCheck, FindsBitsThatDependOnChunks) {
  ExpectFound(
      [](PrefillCall& call) {
        if (call.rows == 97) call.scale *= 1.0001f;
      },
      "without a window has other bits in chunks of 97 tokens");
}

TEST(LibraryPrefillCheck, SaysWhichGpusAreSupported) {
  EXPECT_EQ(Message(CheckPrefillDevice({.compute_major = 9, .compute_minor = 0})), "");
  for (const auto& [major, minor] : {std::pair{8, 0}, {9, 1}, {10, 0}}) {
    const std::string message =
        Message(CheckPrefillDevice({.compute_major = major, .compute_minor = minor}));
    EXPECT_NE(message.find("the library kernels need 9.0"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace penstock::cuda::library
