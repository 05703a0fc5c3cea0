#include "tests/router/service/cluster.h"

#include <grpcpp/create_channel.h>

#include "base/check.h"
#include "lab/fake/fake_model.h"
#include "lab/fake/test_model.h"
#include "tests/support/wait_until.h"

namespace penstock {

std::unique_ptr<FakeWorker> StartFake(v1::WorkerState::Role role, const std::string& id) {
  return std::make_unique<FakeWorker>(FakeWorkerOptions{.role = role, .worker_id = id});
}

Cluster::Cluster(const ClusterOptions& options) {
  RouterServerOptions router_options;
  std::vector<std::string>& list = router_options.fleet.discovery.workers;
  for (int i = 0; i < options.prefill; ++i) {
    prefill.push_back(StartFake(v1::WorkerState::PREFILL, fmt::format("prefill-{}", i)));
    list.push_back(prefill.back()->endpoint());
  }
  for (int i = 0; i < options.decode; ++i) {
    decode.push_back(StartFake(v1::WorkerState::DECODE, fmt::format("decode-{}", i)));
    list.push_back(decode.back()->endpoint());
  }
  if (!options.workers_file.empty()) {
    list.clear();
    router_options.fleet.discovery.file = options.workers_file;
  }
  router_options.fleet.stale_after = options.stale_after;
  router_options.fleet.poll_every = std::chrono::milliseconds(50);
  router_options.model = MakeTestModel();
  router_options.http_listen = "127.0.0.1:0";
  router_options.keys_file = options.keys_file;
  router_options.request_limit = options.request_limit;
  router_options.http_connections = options.http_connections;
  router_options.max_requests = options.max_requests;
  router_options.limits.worker_wait = options.worker_wait;
  router_options.limits.queue_wait = options.queue_wait;
  router_options.fleet.queued_max = options.queued_max;
  router_options.page = options.page;
  router_options.cors_allow_origins = options.cors_allow_origins;
  if (!options.otlp_endpoint.empty()) {
    router_options.spans = SpanExporterOptions{.endpoint = options.otlp_endpoint};
  }
  if (options.picker) router_options.picker_listen = "127.0.0.1:0";
  router_options.client_stall = options.client_stall;
  auto started = RouterServer::Start(std::move(router_options));
  PENSTOCK_CHECK(started.ok(), "the router does not start");
  router = *std::move(started);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  channel =
      grpc::CreateCustomChannel(router->endpoint(), grpc::InsecureChannelCredentials(), arguments);
  stub = v1::Inference::NewStub(channel);
}

Cluster::~Cluster() {
  decode.clear();
  prefill.clear();
}

bool Cluster::WaitForReady(bool ready) {
  return WaitUntil([&] { return router->fleet().table().ready() == ready; });
}

v1::GenerateRequest Request(uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.set_text(kClusterPrompt);
  request.mutable_sampling()->set_seed(7);
  request.mutable_stop()->set_max_tokens(max_tokens);
  return request;
}

std::string ExpectedAnswer(uint32_t choice, uint32_t tokens) {
  const std::string prompt = kClusterPrompt;
  return FakeAnswer(std::vector<uint32_t>(prompt.begin(), prompt.end()), 7, choice, tokens);
}

Call::Call(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
           std::chrono::system_clock::time_point deadline) {
  context_.set_deadline(deadline);
  reader_ = stub.Generate(&context_, request);
}

bool Call::ReadOne() {
  v1::GenerateResponse response;
  if (!reader_->Read(&response)) return false;
  if (response.has_final()) {
    answer_.endings.push_back(response.final());
    return true;
  }
  const v1::Chunk& chunk = response.chunk();
  // The fake model's tokens are a byte of text each.
  EXPECT_EQ(chunk.sequence(), answer_.next_sequence[chunk.index()]);
  answer_.next_sequence[chunk.index()] += chunk.text().size();
  answer_.text[chunk.index()] += chunk.text();
  return true;
}

bool Call::ReadText(size_t bytes) {
  while (answer_.text[0].size() < bytes) {
    if (!ReadOne()) return false;
  }
  return true;
}

Answer& Call::ReadAll() {
  while (ReadOne()) {
  }
  answer_.status = reader_->Finish();
  return answer_;
}

}  // namespace penstock
