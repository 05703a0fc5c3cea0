#include "cli/client/client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "base/lifecycle.h"
#include "cli/shell/connect.h"
#include "cli/shell/interrupts.h"
#include "proto/inference.grpc.pb.h"

namespace penstock {

struct InferenceClient::Channel {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Inference::Stub> stub;
};

namespace {

// True for text that may stand in a header's value behind "Bearer ".
bool IsHeaderText(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

absl::Status Convert(const grpc::Status& status, const std::string& endpoint, bool connected) {
  if (status.ok()) return absl::OkStatus();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && !connected) {
    return Unavailable(
        "no server at {}: start one with `penstock up --model DIR`, or name another with "
        "--endpoint ({})",
        endpoint, status.error_message());
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return FailedPrecondition(
        "{} is not a Penstock gRPC endpoint (the HTTP port?); name one with --endpoint", endpoint);
  }
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    return absl::UnauthenticatedError(status.error_message() +
                                      "; give a key with --api-key or PENSTOCK_API_KEY");
  }
  // The codes of gRPC and absl are the same numbers.
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace

InferenceClient::InferenceClient(RouterOptions router) : router_(std::move(router)) {
  if (!IsHeaderText(router_.api_key)) {
    channel_ = InvalidArgument("--api-key may contain only printable ASCII characters, no spaces");
    return;
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  auto connected = Connect(router_.endpoint, router_.tls, Called::kHost, arguments);
  if (!connected.ok()) {
    channel_ = connected.status();
    return;
  }
  auto channel = std::make_unique<Channel>();
  channel->channel = *std::move(connected);
  channel->stub = v1::Inference::NewStub(channel->channel);
  channel_ = std::move(channel);
}

InferenceClient::~InferenceClient() = default;

void InferenceClient::AddKey(grpc::ClientContext& context) const {
  if (!router_.api_key.empty()) context.AddMetadata("authorization", "Bearer " + router_.api_key);
}

absl::Status InferenceClient::Generate(const v1::GenerateRequest& request, Interrupts& interrupts,
                                       const OnResponse& on_response, int* signal) {
  RETURN_IF_ERROR(channel_.status());
  const Channel& channel = **channel_;
  grpc::ClientContext context;
  AddKey(context);
  OnInterrupt watch(interrupts, [&context] { context.TryCancel(); });
  const auto stream = channel.stub->Generate(&context, request);
  v1::GenerateResponse response;
  bool any = false;
  bool wanted = true;
  while (stream->Read(&response)) {
    any = true;
    if (wanted && !on_response(response)) {
      wanted = false;
      context.TryCancel();
    }
  }
  const grpc::Status status = stream->Finish();
  *signal = watch.Finish();
  if (!wanted) return absl::OkStatus();
  if (*signal != 0) return Cancelled("stopped");
  const bool connected = any || channel.channel->GetState(false) == GRPC_CHANNEL_READY;
  return Convert(status, router_.endpoint, connected);
}

absl::StatusOr<v1::ListModelsResponse> InferenceClient::ListModels(
    std::chrono::milliseconds timeout) {
  RETURN_IF_ERROR(channel_.status());
  const Channel& channel = **channel_;
  grpc::ClientContext context;
  AddKey(context);
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  v1::ListModelsResponse response;
  const grpc::Status status = channel.stub->ListModels(&context, {}, &response);
  const bool connected = channel.channel->GetState(false) == GRPC_CHANNEL_READY;
  RETURN_IF_ERROR(Convert(status, router_.endpoint, connected));
  return response;
}

ExitCode ExitCodeForCall(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return ExitCode::kTemporary;
  return ExitCodeFor(status);
}

}  // namespace penstock
