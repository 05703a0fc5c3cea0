#include "base/rpc/grpc_log.h"

#include <gmock/gmock.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "base/log/log.h"

namespace penstock {
namespace {

// An alarm ends a process that hangs.
void LogToNobodyAndExit() {
  alarm(30);
  int ends[2];
  if (pipe(ends) != 0) std::exit(1);
  dup2(ends[1], STDERR_FILENO);  // nobody reads it
  StartLogging({.component = "test"});
  RedirectGrpcLog();
  gpr_set_log_verbosity(
      GPR_LOG_SEVERITY_ERROR);  // grpc_init does it; before that gRPC logs nothing
  for (int i = 0; i < 10'000; ++i) gpr_log(GPR_ERROR, "%s", std::string(100, 'x').c_str());
  std::exit(7);
}

// Writes what gRPC logs of a host that no certificate names, and of another trouble.
void LogRefusedNamesAndExit() {
  StartLogging({.component = "test"});
  RedirectGrpcLog();
  gpr_set_log_verbosity(
      GPR_LOG_SEVERITY_ERROR);  // grpc_init does it; before that gRPC logs nothing
  gpr_log(GPR_ERROR, "No match found for server name: %s.", "10.244.3.2");
  gpr_log(GPR_ERROR, "Handshake failed");
  std::exit(7);
}

TEST(GrpcLogDeathTest, AHostThatNoCertificateNamesIsNoError) {
  EXPECT_EXIT(LogRefusedNamesAndExit(), ::testing::ExitedWithCode(7),
              testing::AllOf(testing::HasSubstr("Handshake failed"),
                             testing::Not(testing::HasSubstr("No match found"))));
}

TEST(GrpcLogDeathTest, AStalledStandardErrorDoesNotBlockGrpc) {
  EXPECT_EXIT(LogToNobodyAndExit(), ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace penstock
