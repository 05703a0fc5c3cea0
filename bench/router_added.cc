#include "bench/router_added.h"

#include <grpcpp/create_channel.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "proto/inference.grpc.pb.h"
#include "proto/worker.grpc.pb.h"
#include "router/router_server.h"
#include "tests/router/fake_worker.h"
#include "tests/router/test_model.h"
#include "tests/router/wait_until.h"

namespace penstock {
namespace {

constexpr int kWarmUp = 100;
constexpr double kLimitMs = 1.0;
constexpr uint32_t kPromptTokens = 512;
constexpr uint32_t kAnswerTokens = 8;

std::shared_ptr<grpc::Channel> Connect(const std::string& endpoint) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(endpoint, grpc::InsecureChannelCredentials(), arguments);
}

// Milliseconds to the first message of a stream; the rest is read and not timed.
template <class Event, class Start>
absl::StatusOr<double> TimeToFirst(const Start& start) {
  grpc::ClientContext context;
  const TimePoint begin = std::chrono::steady_clock::now();
  const auto reader = start(&context);
  Event event;
  const bool first = reader->Read(&event);
  const double ms = Milliseconds(std::chrono::steady_clock::now() - begin);
  while (reader->Read(&event)) {
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok() || !first) return FromGrpcStatus(status);
  return ms;
}

v1::PrefillRequest DirectRequest() {
  v1::PrefillRequest request;
  for (uint32_t i = 0; i < kPromptTokens; ++i) request.add_tokens('a' + i % 26);
  request.set_prompt_tokens(kPromptTokens);
  request.mutable_sampling()->set_choices(1);
  request.mutable_sampling()->set_max_tokens(kAnswerTokens);
  return request;
}

v1::GenerateRequest RoutedRequest() {
  v1::GenerateRequest request;
  const v1::PrefillRequest direct = DirectRequest();
  request.set_text(std::string(direct.tokens().begin(), direct.tokens().end()));
  request.mutable_stop()->set_max_tokens(kAnswerTokens);
  return request;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

absl::StatusOr<std::unique_ptr<RouterServer>> StartRouter(const FakeWorker& prefill,
                                                          const FakeWorker& decode) {
  RouterServerOptions options;
  options.model = MakeTestModel();
  options.fleet.discovery.workers = {prefill.endpoint(), decode.endpoint()};
  ASSIGN_OR_RETURN(auto router, RouterServer::Start(std::move(options)));
  if (!WaitUntil([&] { return router->fleet().table().ready(); })) {
    return Unavailable("the bench's workers did not become ready");
  }
  return router;
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunRouterBench(
    const RouterBenchOptions& options, const std::function<void(const std::string&)>& progress) {
  progress(
      fmt::format("router: {} requests, and {} without it", options.requests, options.requests));
  FakeWorker prefill({.role = v1::WorkerState::PREFILL, .worker_id = "prefill"});
  FakeWorker decode({.role = v1::WorkerState::DECODE, .worker_id = "decode"});
  ASSIGN_OR_RETURN(const auto router, StartRouter(prefill, decode));
  const auto worker_stub = v1::PrefillWorker::NewStub(Connect(prefill.endpoint()));
  const auto router_stub = v1::Inference::NewStub(Connect(router->endpoint()));
  const v1::PrefillRequest direct_request = DirectRequest();
  const v1::GenerateRequest routed_request = RoutedRequest();
  std::vector<double> direct;
  std::vector<double> routed;
  // In turns, so that whatever else the machine does falls on both.
  for (int i = 0; i < kWarmUp + options.requests; ++i) {
    ASSIGN_OR_RETURN(const double direct_ms,
                     TimeToFirst<v1::PrefillEvent>([&](grpc::ClientContext* context) {
                       return worker_stub->Prefill(context, direct_request);
                     }));
    ASSIGN_OR_RETURN(const double routed_ms,
                     TimeToFirst<v1::GenerateResponse>([&](grpc::ClientContext* context) {
                       return router_stub->Generate(context, routed_request);
                     }));
    if (i < kWarmUp) continue;
    direct.push_back(direct_ms);
    routed.push_back(routed_ms);
  }
  const double added = Median(std::move(routed)) - Median(std::move(direct));
  return std::vector<BenchRow>{{.name = "router_added",
                                .value = added,
                                .unit = "ms",
                                .limit = kLimitMs,
                                .fraction = added / kLimitMs}};
}

}  // namespace penstock
