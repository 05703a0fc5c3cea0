// Routers that a gateway asks for an endpoint: its decisions, and what misuse costs.
#include "router/picker/picker_server.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <thread>

#include "proto/ext_proc.grpc.pb.h"
#include "tests/router/service/cluster.h"
#include "tests/router/service/raw_call.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

using Stub = ext_proc::ExternalProcessor::Stub;

struct Ask {
  std::string path = "/v1/completions";
  std::string body = R"({"model":"test-model","prompt":"Once upon a time","max_tokens":5})";
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::vector<std::string> subset = {};
};

ext_proc::ProcessingRequest HeadOf(const Ask& ask) {
  ext_proc::ProcessingRequest message;
  const auto add = [&](const std::string& name, const std::string& value) {
    auto& header = *message.mutable_request_headers()->mutable_headers()->add_headers();
    header.set_key(name);
    header.set_raw_value(value);
  };
  add(":method", "POST");
  add(":path", ask.path);
  add("content-type", "application/json");
  for (const auto& [name, value] : ask.headers) add(name, value);
  message.mutable_protocol_config()->set_request_body_mode(
      ext_proc::ProtocolConfiguration::FULL_DUPLEX_STREAMED);
  if (!ask.subset.empty()) {
    auto& hint =
        (*message.mutable_metadata_context()->mutable_filter_metadata())["envoy.lb.subset_hint"];
    auto& list =
        *(*hint.mutable_fields())["x-gateway-destination-endpoint-subset"].mutable_list_value();
    for (const auto& endpoint : ask.subset) list.add_values()->set_string_value(endpoint);
  }
  return message;
}

ext_proc::ProcessingRequest BodyOf(const std::string& bytes, bool last) {
  ext_proc::ProcessingRequest message;
  message.mutable_request_body()->set_body(bytes);
  message.mutable_request_body()->set_end_of_stream(last);
  return message;
}

// One stream of a gateway.
class Gateway {
 public:
  explicit Gateway(const std::string& endpoint)
      : stub_(Stub(grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials()))),
        stream_(stub_.Process(&context_)) {}

  bool Send(const ext_proc::ProcessingRequest& message) { return stream_->Write(message); }
  ext_proc::ProcessingResponse Read() {
    ext_proc::ProcessingResponse answer;
    stream_->Read(&answer);
    return answer;
  }
  grpc::Status End() {
    stream_->WritesDone();
    return Status();
  }
  // Reads until the server ends the stream.
  grpc::Status Status() {
    ext_proc::ProcessingResponse unread;
    while (stream_->Read(&unread)) continue;
    return stream_->Finish();
  }

 private:
  Stub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<
      grpc::ClientReaderWriter<ext_proc::ProcessingRequest, ext_proc::ProcessingResponse>>
      stream_;
};

// The picker's first answer.
ext_proc::ProcessingResponse Pick(const std::string& endpoint, const Ask& ask = {}) {
  Gateway gateway(endpoint);
  gateway.Send(HeadOf(ask));
  gateway.Send(BodyOf(ask.body, true));
  ext_proc::ProcessingResponse answer = gateway.Read();
  gateway.End();
  return answer;
}

std::string NamedBy(const ext_proc::ProcessingResponse& answer) {
  const auto& mutation = answer.request_headers().response().header_mutation();
  return mutation.set_headers_size() == 0 ? "" : mutation.set_headers(0).header().raw_value();
}

int StatusOf(const ext_proc::ProcessingResponse& answer) {
  return answer.immediate_response().status().code();
}

class PickerServerTest : public ::testing::Test {
 protected:
  explicit PickerServerTest(ClusterOptions options = {.queue_wait = 20s})
      : cluster_([&] {
          options.picker = true;
          return options;
        }()) {
    EXPECT_TRUE(cluster_.WaitForReady());
  }

  std::string picker() const { return cluster_.router->picker_endpoint(); }

  // Makes the only prefill worker report a full queue, and returns when the router has seen it.
  void Fill() {
    cluster_.prefill[0]->SetWaiting(kMaxWaitingPerWorker);
    EXPECT_TRUE(WaitUntil([&] {
      const PlacementRequest probe{.need = {.prompt_tokens = 1, .answer_tokens = 1}};
      return absl::IsResourceExhausted(cluster_.router->fleet().table().Foresee(probe).status());
    }));
  }

  // grpc.health.v1: the request's field 1 is the service; the answer's field 1 is 1 when serving,
  // 2 when not.
  int Health(const std::string& service) {
    const std::string request =
        "\x0a" + std::string(1, static_cast<char>(service.size())) + service;
    const RawAnswer answer =
        RawCall(grpc::CreateChannel(picker(), grpc::InsecureChannelCredentials()),
                "/grpc.health.v1.Health/Check", request);
    return answer.status.ok() && answer.bytes.size() == 2 ? answer.bytes[1] : -1;
  }

  Cluster cluster_;
};

TEST_F(PickerServerTest, NamesThisRouterAndReservesNothing) {
  EXPECT_EQ(NamedBy(Pick(picker())), cluster_.router->http_endpoint());
  EXPECT_EQ(cluster_.router->open_requests(), 0u);
  EXPECT_EQ(cluster_.prefill[0]->calls() + cluster_.decode[0]->calls(), 0);
  for (const WorkerPicture& worker : cluster_.router->fleet().table().Pictures(8)) {
    EXPECT_EQ(worker.requests, 0u) << worker.endpoint;
  }
}

TEST_F(PickerServerTest, AFullClusterTakesRequestsWhileItsQueueDoes) {
  Fill();
  EXPECT_EQ(NamedBy(Pick(picker())), cluster_.router->http_endpoint());
  EXPECT_EQ(NamedBy(Pick(picker(), {.headers = {{"x-slo-ttft-ms", "1"}}})),
            cluster_.router->http_endpoint())
      << "nothing predicts how long it waits";
}

class FullQueueTest : public PickerServerTest {
 protected:
  FullQueueTest() : PickerServerTest({.queue_wait = 20s, .queued_max = 0}) {}
};

TEST_F(FullQueueTest, AFullQueueIsAnsweredWith429InTheFormOfTheApi) {
  Fill();
  const auto openai = Pick(picker());
  EXPECT_EQ(StatusOf(openai), 429);
  EXPECT_THAT(openai.immediate_response().body(), HasSubstr(R"({"error":{"message":")"));
  const auto anthropic =
      Pick(picker(), {.path = "/v1/messages", .body = R"({"model":"test-model","max_tokens":5,
                                  "messages":[{"role":"user","content":"Hello"}]})"});
  EXPECT_EQ(StatusOf(anthropic), 429);
  EXPECT_THAT(anthropic.immediate_response().body(), HasSubstr(R"({"type":"error")"));
}

class OneRequestTest : public PickerServerTest {
 protected:
  OneRequestTest() : PickerServerTest({.max_requests = 1}) {}
};

TEST_F(OneRequestTest, OpenRequestsAtTheLimitAreAnsweredWith429) {
  cluster_.prefill[0]->HoldAt(0);
  Call held(*cluster_.stub, Request(5));
  ASSERT_TRUE(WaitUntil([&] { return cluster_.router->open_requests() == 1; }));
  EXPECT_EQ(StatusOf(Pick(picker())), 429);
  cluster_.prefill[0]->Release();
  held.ReadAll();
}

TEST_F(PickerServerTest, WithoutAReadyPairTheAnswerIs503AndHealthSaysSo) {
  EXPECT_TRUE(WaitUntil([&] { return Health("readiness") == 1; }));
  cluster_.decode[0]->SetPhase(v1::WorkerState::DRAINING);
  ASSERT_TRUE(cluster_.WaitForReady(false));
  const auto answer = Pick(picker());
  EXPECT_EQ(StatusOf(answer), 503);
  EXPECT_THAT(answer.immediate_response().body(), HasSubstr("no_ready_worker"));
  EXPECT_TRUE(WaitUntil([&] { return Health("readiness") == 2; }));
  EXPECT_TRUE(
      WaitUntil([&] { return Health("envoy.service.ext_proc.v3.ExternalProcessor") == 2; }));
  EXPECT_EQ(Health("liveness"), 1);
}

TEST_F(PickerServerTest, ASubsetWithoutThisRouterIsAnsweredWith503) {
  const auto answer = Pick(picker(), {.subset = {"10.1.2.3:8000"}});
  EXPECT_EQ(StatusOf(answer), 503);
  EXPECT_THAT(answer.immediate_response().body(), HasSubstr("endpoint_excluded"));
  const std::string own = cluster_.router->http_endpoint();
  EXPECT_EQ(NamedBy(Pick(picker(), {.subset = {"10.1.2.3:8000", own}})), own);
}

TEST_F(PickerServerTest, WhatTheApiRefusesIsRefusedAsTheApiDoes) {
  const auto status = [&](const Ask& ask) { return StatusOf(Pick(picker(), ask)); };
  EXPECT_EQ(status({.body = "{"}), 400);
  EXPECT_EQ(status({.body = R"({"model":"test-model"})"}), 400);
  EXPECT_EQ(status({.body = R"({"model":"other","prompt":"a"})"}), 404);
  EXPECT_EQ(status({.path = "/nothing"}), 404);
  EXPECT_EQ(status({.path = "no target"}), 400);
  EXPECT_EQ(status({.headers = {{"x-slo-ttft-ms", "soon"}}}), 400);
}

TEST_F(PickerServerTest, APathThatGeneratesNothingNeedsNoPrediction) {
  EXPECT_EQ(NamedBy(Pick(picker(), {.path = "/tokenize", .body = "{"})),
            cluster_.router->http_endpoint())
      << "the router itself says what is wrong";
}

TEST_F(PickerServerTest, ABodyAboveTheApisLimitIsRefused) {
  Gateway gateway(picker());
  gateway.Send(HeadOf({}));
  for (int i = 0; i < 5; ++i) gateway.Send(BodyOf(std::string(1 << 20, 'a'), false));
  EXPECT_EQ(StatusOf(gateway.Read()), 413);
}

TEST_F(PickerServerTest, ABrokenProtocolEndsTheStreamWithItsError) {
  Gateway gateway(picker());
  gateway.Send(BodyOf("{}", true));
  const grpc::Status status = gateway.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("body"));
}

// ---------------------------------------------------------------- the port alone

// Names the endpoint for every request, after `hold` has been released.
class HoldingRule final : public PickRule {
 public:
  std::optional<HttpResponse> Screen(const HttpHead&, const Subset&) override {
    return std::nullopt;
  }
  std::string AccountOf(const HttpHead&) override { return ""; }
  std::optional<HttpResponse> Decide(const HttpRequest&) override {
    ++deciding;
    while (hold) std::this_thread::sleep_for(1ms);
    return std::nullopt;
  }
  void OnNamed() override {}
  HttpResponse Refuse(int status, const std::string&) override { return {.status = status}; }

  std::atomic<bool> hold{false};
  std::atomic<int> deciding{0};
};

// Holds decisions until its end: a test that fails must not wait for them.
class Hold {
 public:
  explicit Hold(HoldingRule& rule) : rule_(rule) { rule_.hold = true; }
  ~Hold() { rule_.hold = false; }

 private:
  HoldingRule& rule_;
};

class PickerPortTest : public ::testing::Test {
 protected:
  std::unique_ptr<PickerServer> Start(PickerServerOptions options) {
    options.listen = "127.0.0.1:0";
    options.endpoint = "127.0.0.1:8000";
    auto started = PickerServer::Start(options, rule_, metrics_, clock_);
    EXPECT_TRUE(started.ok()) << started.status();
    return *std::move(started);
  }

  HoldingRule rule_;
  MetricsRegistry registry_;
  PickerMetrics metrics_{registry_};
  SteadyClock clock_;
};

TEST_F(PickerPortTest, AStreamAboveTheLimitIsRefusedAndLaterOnesAreNot) {
  auto server = Start({.streams_max = 2});
  auto first = std::make_unique<Gateway>(server->endpoint());
  Gateway second(server->endpoint());
  ASSERT_TRUE(WaitUntil([&] { return metrics_.streams.Value() == 2; }));
  EXPECT_EQ(StatusOf(Pick(server->endpoint())), 503);
  first->End();
  ASSERT_TRUE(WaitUntil([&] { return metrics_.streams.Value() == 1; }));
  EXPECT_EQ(NamedBy(Pick(server->endpoint())), "127.0.0.1:8000");
}

TEST_F(PickerPortTest, ABodyThatDoesNotEndEndsTheStream) {
  auto server = Start({.body_wait = 50ms});
  Gateway gateway(server->endpoint());
  gateway.Send(HeadOf({}));
  gateway.Send(BodyOf("{", false));
  EXPECT_EQ(gateway.Status().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(WaitUntil([&] { return metrics_.streams.Value() == 0; }));
}

TEST_F(PickerPortTest, AGatewayThatEndsWithinARequestGetsAnError) {
  auto server = Start({});
  Gateway gateway(server->endpoint());
  gateway.Send(HeadOf({}));
  gateway.Send(BodyOf("{", false));
  EXPECT_EQ(gateway.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(PickerPortTest, AResponseMayTakeLongerThanARequest) {
  auto server = Start({.body_wait = 2s});
  Gateway answered(server->endpoint());
  ext_proc::ProcessingRequest head = HeadOf({});
  head.mutable_request_headers()->set_end_of_stream(true);
  answered.Send(head);
  EXPECT_EQ(NamedBy(answered.Read()), "127.0.0.1:8000");
  Gateway silent(server->endpoint());
  EXPECT_EQ(silent.Status().error_code(), grpc::StatusCode::CANCELLED);
  ext_proc::ProcessingRequest response;
  response.mutable_response_headers();
  answered.Send(response);
  EXPECT_TRUE(answered.Read().has_response_headers());
}

TEST_F(PickerPortTest, AStreamThatStaysOpenIsCancelledAtItsLimit) {
  auto server = Start({.stream_max = 1s});
  Gateway gateway(server->endpoint());
  gateway.Send(HeadOf({}));
  gateway.Send(BodyOf("{}", true));
  EXPECT_EQ(NamedBy(gateway.Read()), "127.0.0.1:8000");
  EXPECT_TRUE(WaitUntil([&] { return metrics_.streams.Value() == 0; }));
}

TEST_F(PickerPortTest, AFullQueueOfDecisionsRefuses) {
  auto server = Start({.decisions_queued_max = 1});
  const Hold hold(rule_);
  std::vector<std::unique_ptr<Gateway>> gateways;
  const auto send = [&] {
    gateways.push_back(std::make_unique<Gateway>(server->endpoint()));
    gateways.back()->Send(HeadOf({}));
    gateways.back()->Send(BodyOf("{}", true));
  };
  for (int busy = 1; busy <= 2; ++busy) {  // until both threads are
    send();
    ASSERT_TRUE(WaitUntil([&] { return rule_.deciding == busy; }));
  }
  send();
  send();
  // One of the last two waits in the queue.
  std::atomic<int> refused{0}, answered{0};
  std::vector<std::thread> readers;
  for (size_t i = 2; i < 4; ++i) {
    readers.emplace_back([&, i] {
      if (StatusOf(gateways[i]->Read()) == 503) ++refused;
      ++answered;
    });
  }
  EXPECT_TRUE(WaitUntil([&] { return answered == 1; }));
  EXPECT_EQ(refused, 1);
  rule_.hold = false;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(refused, 1);
}

TEST_F(PickerPortTest, AServerThatStopsWaitsForItsDecisions) {
  auto server = Start({});
  const Hold hold(rule_);
  Gateway gateway(server->endpoint());
  gateway.Send(HeadOf({}));
  gateway.Send(BodyOf("{}", true));
  ASSERT_TRUE(WaitUntil([&] { return rule_.deciding == 1; }));
  std::thread stops([&] { server.reset(); });
  rule_.hold = false;
  stops.join();
  gateway.End();
}

}  // namespace
}  // namespace penstock
