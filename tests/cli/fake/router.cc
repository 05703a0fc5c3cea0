// Stands in for penstock-router: echoes the prompt, word by word, and refuses what the real one
// would refuse. Prompts that start with "hang" are answered with one word and then never finished.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <sstream>
#include <thread>

#include "base/config/config.h"
#include "proto/config.pb.h"
#include "proto/inference.grpc.pb.h"

namespace penstock {
namespace {

using Writer = grpc::ServerWriter<v1::GenerateResponse>;

std::string PromptOf(const v1::GenerateRequest& request) {
  if (!request.has_chat()) return request.text();
  const auto& messages = request.chat().messages();
  // The whole conversation, so that a test sees what was remembered.
  std::string prompt;
  for (const v1::Message& message : messages) {
    prompt += fmt::format("{}={} ", message.role(), message.content(0).text());
  }
  return prompt;
}

bool WriteText(Writer& writer, uint32_t index, const std::string& text) {
  v1::GenerateResponse response;
  response.mutable_chunk()->set_index(index);
  response.mutable_chunk()->set_text(text);
  return writer.Write(response);
}

void WriteFinal(Writer& writer, uint32_t index, uint32_t tokens, bool last) {
  v1::GenerateResponse response;
  v1::Final& final = *response.mutable_final();
  final.set_index(index);
  final.set_finish_reason(v1::STOP);
  if (last) {
    final.mutable_usage()->set_prompt_tokens(3);
    final.mutable_usage()->set_completion_tokens(tokens);
    v1::Timing& timing = *final.mutable_timing();
    timing.set_kv_bytes_moved(393216);
    timing.set_layers(6);
    timing.set_layers_overlapped(5);
    timing.set_transport("tcp");
    timing.set_prefill_worker("prefill-0");
    timing.set_decode_worker("decode-0");
  }
  writer.Write(response);
}

class EchoService final : public v1::Inference::Service {
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        Writer* writer) override {
    const std::string prompt = PromptOf(*request);
    if (prompt.empty()) return {grpc::StatusCode::INVALID_ARGUMENT, "prompt is empty"};
    if (prompt.starts_with("full")) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "max_requests is reached"};
    }
    if (prompt.starts_with("nobody")) {
      return {grpc::StatusCode::UNAVAILABLE, "no decode worker is ready"};
    }
    if (prompt.find("hang") != std::string::npos) {
      WriteText(*writer, 0, "hanging");
      while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      return grpc::Status::CANCELLED;
    }
    Echo(*request, prompt, *writer);
    return grpc::Status::OK;
  }

  static void Echo(const v1::GenerateRequest& request, const std::string& prompt, Writer& writer) {
    const uint32_t choices = request.sampling().has_n() ? request.sampling().n() : 1;
    uint32_t words = 0;
    const char* separator = "";
    std::istringstream stream(prompt);
    for (std::string word; stream >> word; ++words, separator = " ") {
      for (uint32_t i = 0; i < choices; ++i)
        WriteText(writer, i, fmt::format("{}{}", separator, word));
    }
    for (uint32_t i = 0; i < choices; ++i) {
      WriteFinal(writer, i, words * choices, i + 1 == choices);
    }
  }

  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse* response) override {
    v1::Model& model = *response->add_models();
    model.set_id("echo");
    model.set_ready(true);
    return grpc::Status::OK;
  }
};

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  penstock::BlockShutdownSignals();
  const auto config = penstock::LoadConfigOrExit<penstock::v1::RouterConfig>(
      argc, argv, {.name = "fake-router", .summary = "stands in for the router"});
  penstock::EchoService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(config.listen(), grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    fmt::print(stderr, "cannot listen on {}\n", config.listen());
    return static_cast<int>(penstock::ExitCode::kOsError);
  }
  const absl::Status ready =
      penstock::WriteReadyFile(config.ready_file(), fmt::format("127.0.0.1:{}", port));
  if (!ready.ok()) return static_cast<int>(penstock::ExitCodeFor(ready));
  penstock::ServeUntilSignal([&] { server->Shutdown(std::chrono::system_clock::now()); });
  return 0;
}
