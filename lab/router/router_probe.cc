#include "lab/router/router_probe.h"

#include <grpcpp/create_channel.h>

#include "lab/fake/test_model.h"
#include "lab/fake/wait_until.h"

namespace penstock {
namespace {

constexpr uint32_t kPromptTokens = 512;

std::shared_ptr<grpc::Channel> Connect(const std::string& endpoint) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(endpoint, grpc::InsecureChannelCredentials(), arguments);
}

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

v1::PrefillRequest DirectRequest(uint32_t answer_tokens) {
  v1::PrefillRequest request;
  for (uint32_t i = 0; i < kPromptTokens; ++i) request.add_tokens('a' + i % 26);
  request.set_prompt_tokens(kPromptTokens);
  request.mutable_sampling()->set_choices(1);
  request.mutable_sampling()->set_max_tokens(answer_tokens);
  return request;
}

}  // namespace

v1::GenerateRequest RouterProbe::Request(uint32_t answer_tokens) {
  v1::GenerateRequest request;
  const v1::PrefillRequest direct = DirectRequest(answer_tokens);
  request.set_text(std::string(direct.tokens().begin(), direct.tokens().end()));
  request.mutable_stop()->set_max_tokens(answer_tokens);
  return request;
}

RouterProbe::RouterProbe(const RouterProbeOptions& options)
    : options_(options),
      prefill_({.role = v1::WorkerState::PREFILL, .worker_id = "prefill"}),
      decode_({.role = v1::WorkerState::DECODE,
               .worker_id = "decode",
               .token_every = options.token_every}) {}

absl::StatusOr<std::unique_ptr<RouterProbe>> RouterProbe::Start(
    const RouterProbeOptions& probe_options) {
  auto probe = std::unique_ptr<RouterProbe>(new RouterProbe(probe_options));
  RouterServerOptions options;
  options.max_requests = probe_options.max_requests;
  options.model = MakeTestModel();
  options.fleet.discovery.workers = {probe->prefill_.endpoint(), probe->decode_.endpoint()};
  ASSIGN_OR_RETURN(probe->router_, RouterServer::Start(std::move(options)));
  if (!WaitUntil([&] { return probe->router_->fleet().table().ready(); })) {
    return Unavailable("the bench's workers did not become ready");
  }
  probe->worker_stub_ = v1::PrefillWorker::NewStub(Connect(probe->prefill_.endpoint()));
  probe->router_stub_ = v1::Inference::NewStub(Connect(probe->router_->endpoint()));
  return probe;
}

absl::StatusOr<double> RouterProbe::AskRouter() {
  const v1::GenerateRequest request = Request(options_.answer_tokens);
  return TimeToFirst<v1::GenerateResponse>(
      [&](grpc::ClientContext* context) { return router_stub_->Generate(context, request); });
}

absl::StatusOr<double> RouterProbe::AskPrefillWorker() {
  const v1::PrefillRequest request = DirectRequest(options_.answer_tokens);
  return TimeToFirst<v1::PrefillEvent>(
      [&](grpc::ClientContext* context) { return worker_stub_->Prefill(context, request); });
}

}  // namespace penstock
