#include <fmt/format.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <future>

#include "base/lifecycle.h"
#include "cli/operate/commands.h"
#include "cli/shell/connect.h"

namespace penstock {
namespace {

// grpc.health.v1.HealthCheckRequest{service}, whose generated code is not in Debian's packages.
grpc::ByteBuffer RequestFor(const std::string& service) {
  std::string bytes;
  if (!service.empty())
    bytes = "\x0a" + std::string(1, static_cast<char>(service.size())) + service;
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

// HealthCheckResponse{status}: one field, one byte.
std::string StatusIn(const grpc::ByteBuffer& response) {
  grpc::Slice slice;
  if (!response.DumpToSingleSlice(&slice).ok() || slice.size() != 2 || slice.begin()[0] != 0x08) {
    return "UNKNOWN";
  }
  switch (slice.begin()[1]) {
    case 1:
      return "SERVING";
    case 2:
      return "NOT_SERVING";
    default:
      return "UNKNOWN";
  }
}

}  // namespace

int Run(const HealthOptions& options) {
  const auto channel = Connect(options.endpoint, options.tls, Called::kProcess);
  if (!channel.ok()) {
    fmt::print(stderr, "penstock health: {}\n", Message(channel.status()));
    return static_cast<int>(ExitCodeFor(channel.status()));
  }
  grpc::GenericStub stub(*channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(options.timeout_ms));
  const grpc::ByteBuffer request = RequestFor(options.service);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> ended;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request, &response,
                 [&](grpc::Status status) { ended.set_value(std::move(status)); });
  const grpc::Status status = ended.get_future().get();
  if (!status.ok()) {
    fmt::print("{}: {}\n", options.endpoint, status.error_message());
    return static_cast<int>(ExitCode::kUnavailable);
  }
  const std::string said = StatusIn(response);
  fmt::print("{}\n", said);
  return said == "SERVING" ? 0 : static_cast<int>(ExitCode::kFailure);
}

}  // namespace penstock
