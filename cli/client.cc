#include "cli/client.h"

#include <grpcpp/grpcpp.h>

#include "cli/interrupts.h"
#include "proto/inference.grpc.pb.h"

namespace penstock {

struct InferenceClient::Channel {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Inference::Stub> stub;
};

namespace {

absl::Status Convert(const grpc::Status& status, const std::string& endpoint, bool connected) {
  if (status.ok()) return absl::OkStatus();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && !connected) {
    return Unavailable(
        "no server at {}: start one with `penstock up --model DIR`, or name another with "
        "--endpoint",
        endpoint);
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return FailedPrecondition("{} is no penstock router: name one with --endpoint", endpoint);
  }
  // The codes of gRPC and absl are the same numbers.
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace

InferenceClient::InferenceClient(std::string endpoint) : endpoint_(std::move(endpoint)) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // A proxy would be asked for loopback too.
  arguments.SetMaxReceiveMessageSize(-1);
  channel_ = std::make_unique<Channel>();
  channel_->channel =
      grpc::CreateCustomChannel(endpoint_, grpc::InsecureChannelCredentials(), arguments);
  channel_->stub = v1::Inference::NewStub(channel_->channel);
}

InferenceClient::~InferenceClient() = default;

absl::Status InferenceClient::Generate(const v1::GenerateRequest& request, Interrupts& interrupts,
                                       const OnResponse& on_response, int* signal) {
  grpc::ClientContext context;
  OnInterrupt watch(interrupts, [&context] { context.TryCancel(); });
  const auto stream = channel_->stub->Generate(&context, request);
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
  const bool connected = any || channel_->channel->GetState(false) == GRPC_CHANNEL_READY;
  return Convert(status, endpoint_, connected);
}

absl::StatusOr<v1::ListModelsResponse> InferenceClient::ListModels(
    std::chrono::milliseconds timeout) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  v1::ListModelsResponse response;
  const grpc::Status status = channel_->stub->ListModels(&context, {}, &response);
  const bool connected = channel_->channel->GetState(false) == GRPC_CHANNEL_READY;
  RETURN_IF_ERROR(Convert(status, endpoint_, connected));
  return response;
}

ExitCode ExitCodeForCall(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return ExitCode::kTemporary;
  return ExitCodeFor(status);
}

}  // namespace penstock
