// Streams one answer over gRPC. Usage: generate [ENDPOINT [PROMPT]]. Sends the API key in
// PENSTOCK_API_KEY if that is set.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include "inference.grpc.pb.h"

namespace v1 = penstock::v1;

namespace {

void Prepare(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  if (const char* key = std::getenv("PENSTOCK_API_KEY")) {
    context.AddMetadata("authorization", std::string("Bearer ") + key);
  }
}

int Failed(const grpc::Status& status) {
  std::cerr << "\nerror " << status.error_code() << ": " << status.error_message() << '\n';
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string endpoint = argc > 1 ? argv[1] : "127.0.0.1:8090";
  v1::GenerateRequest request;
  request.set_text(argc > 2 ? argv[2] : "Once upon a time");
  request.mutable_sampling()->set_seed(7);
  request.mutable_stop()->set_max_tokens(32);

  const auto channel = grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials());
  const auto stub = v1::Inference::NewStub(channel);
  grpc::ClientContext context;
  Prepare(context);
  const auto stream = stub->Generate(&context, request);
  std::string text;
  v1::Usage usage;
  v1::GenerateResponse response;
  while (stream->Read(&response)) {
    if (response.has_chunk()) {
      text += response.chunk().text();
      std::cout << response.chunk().text() << std::flush;
    } else if (response.final().has_usage()) {
      usage = response.final().usage();
    }
  }
  if (const grpc::Status status = stream->Finish(); !status.ok()) return Failed(status);
  std::cout << "\n(" << usage.completion_tokens() << " tokens, " << usage.cached_tokens() << " of "
            << usage.prompt_tokens() << " prompt tokens were cached)\n";

  // The same seed gives the same answer, streamed or not.
  grpc::ClientContext again;
  Prepare(again);
  v1::GenerateUnaryResponse whole;
  if (const grpc::Status status = stub->GenerateUnary(&again, request, &whole); !status.ok()) {
    return Failed(status);
  }
  if (whole.choices(0).text() == text) return 0;
  std::cerr << "the stream and the whole answer differ\n";
  return 1;
}
