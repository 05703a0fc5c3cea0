// The router as its clients see it, with workers that are well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "lab/fake/test_model.h"
#include "tests/router/service/cluster.h"
#include "tests/router/service/raw_call.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

grpc::Status StatusOf(Cluster& cluster, const v1::GenerateRequest& request) {
  return Call(*cluster.stub, request).ReadAll().status;
}

TEST(RouterService, StreamsTheAnswer) {
  Cluster cluster;
  ASSERT_TRUE(cluster.WaitForReady());
  v1::GenerateRequest request = Request(64);
  request.set_client_request_id("mine");
  request.mutable_output()->set_timing(true);
  Call call(*cluster.stub, request);
  const Answer& answer = call.ReadAll();
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.text.at(0), ExpectedAnswer(0, 64));
  ASSERT_EQ(answer.endings.size(), 1u);
  const v1::Final& ending = answer.endings[0];
  EXPECT_EQ(ending.finish_reason(), v1::LENGTH);
  EXPECT_EQ(ending.request_id(), "mine");
  EXPECT_EQ(ending.usage().prompt_tokens(), 16u);
  EXPECT_EQ(ending.usage().completion_tokens(), 64u);
  EXPECT_EQ(ending.timing().prefill_worker(), "prefill-0");
  EXPECT_EQ(ending.timing().decode_worker(), "decode-0");
  EXPECT_EQ(ending.timing().kv_bytes_moved(), 64u * 16u);
  EXPECT_EQ(ending.timing().migrations(), 0u);
  EXPECT_TRUE(WaitUntil([&] { return cluster.router->open_requests() == 0; }));
}

TEST(RouterService, UnaryGivesTheSameInOneMessage) {
  Cluster cluster;
  ASSERT_TRUE(cluster.WaitForReady());
  v1::GenerateRequest request = Request(32);
  request.mutable_sampling()->set_n(3);
  request.mutable_output()->set_return_token_ids(true);
  grpc::ClientContext context;
  v1::GenerateUnaryResponse response;
  const grpc::Status status = cluster.stub->GenerateUnary(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.choices_size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(response.choices(i).text(), ExpectedAnswer(i, 32));
    EXPECT_EQ(response.choices(i).token_ids_size(), 32);
  }
  EXPECT_EQ(response.usage().completion_tokens(), 96u);
}

TEST(RouterService, AnswersFourChoices) {
  Cluster cluster;
  ASSERT_TRUE(cluster.WaitForReady());
  v1::GenerateRequest request = Request(40);
  request.mutable_sampling()->set_n(4);
  Call call(*cluster.stub, request);
  const Answer& answer = call.ReadAll();
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(answer.text.at(i), ExpectedAnswer(i, 40)) << i;
  ASSERT_EQ(answer.endings.size(), 4u);
  EXPECT_FALSE(answer.endings[2].has_usage());
  EXPECT_TRUE(answer.endings[3].has_usage());
}

TEST(RouterService, AStopStringEndsTheAnswerAndTheWork) {
  Cluster cluster;
  ASSERT_TRUE(cluster.WaitForReady());
  const std::string whole = ExpectedAnswer(0, 60);
  const std::string stop = whole.substr(20, 8);
  v1::GenerateRequest request = Request(2000);
  request.mutable_stop()->add_stop(stop);
  cluster.decode[0]->HoldAt(200);  // far beyond: only a cancellation gets the call past it
  Call call(*cluster.stub, request);
  const Answer& answer = call.ReadAll();
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.text.at(0), whole.substr(0, whole.find(stop)));
  EXPECT_EQ(answer.endings[0].matched_stop_string(), stop);
  EXPECT_TRUE(WaitUntil([&] { return cluster.decode[0]->open_calls() == 0; }));
  EXPECT_EQ(cluster.decode[0]->cancelled_calls(), 1);
}

TEST(RouterService, TheWorkersGetWhatTheClientAsked) {
  Cluster cluster;
  ASSERT_TRUE(cluster.WaitForReady());
  v1::GenerateRequest request = Request(3);
  request.mutable_sampling()->set_temperature(0.25);
  (*request.mutable_sampling()->mutable_logit_bias())[65] = 3;
  request.mutable_stop()->add_stop_token_ids(10);
  ASSERT_TRUE(StatusOf(cluster, request).ok());
  const v1::SamplingSpec sampling = cluster.prefill[0]->last_sampling();
  EXPECT_EQ(sampling.temperature(), 0.25f);
  EXPECT_EQ(sampling.seed(), 7u);
  EXPECT_EQ(sampling.max_tokens(), 3u);
  EXPECT_EQ(sampling.logit_bias().at(65), 3.0f);
  EXPECT_THAT(sampling.stop_token_ids(), ::testing::ElementsAre(10, kTestImEnd));
  EXPECT_EQ(cluster.decode[0]->last_sampling().SerializeAsString(), sampling.SerializeAsString());
}

TEST(RouterService, ACancellationReachesBothWorkers) {
  Cluster cluster;
  ASSERT_TRUE(cluster.WaitForReady());
  cluster.prefill[0]->HoldAt(0);
  cluster.decode[0]->HoldAt(1);
  Call call(*cluster.stub, Request(50));
  ASSERT_TRUE(WaitUntil([&] {
    return cluster.prefill[0]->held_calls() == 1 && cluster.decode[0]->held_calls() == 1;
  }));
  call.context().TryCancel();
  EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(WaitUntil([&] {
    return cluster.prefill[0]->open_calls() == 0 && cluster.decode[0]->open_calls() == 0;
  }));
  EXPECT_EQ(cluster.prefill[0]->cancelled_calls(), 1);
  EXPECT_EQ(cluster.decode[0]->cancelled_calls(), 1);
  EXPECT_TRUE(WaitUntil([&] { return cluster.router->open_requests() == 0; }));
}

TEST(RouterService, ADeadlineReachesBothWorkers) {
  Cluster cluster;
  ASSERT_TRUE(cluster.WaitForReady());
  cluster.prefill[0]->HoldAt(0);
  cluster.decode[0]->HoldAt(1);
  Call call(*cluster.stub, Request(50), std::chrono::system_clock::now() + 300ms);
  EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(WaitUntil([&] {
    return cluster.prefill[0]->open_calls() == 0 && cluster.decode[0]->open_calls() == 0 &&
           cluster.router->open_requests() == 0;
  }));
}

TEST(RouterService, TwoHundredRequestsAtOnce) {
  Cluster cluster({.prefill = 2, .decode = 2});
  ASSERT_TRUE(cluster.WaitForReady());
  constexpr int kRequests = 200;
  std::vector<std::thread> clients;
  std::vector<std::string> texts(kRequests);
  std::vector<grpc::Status> statuses(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    clients.emplace_back([&, i] {
      Call call(*cluster.stub, Request(20 + i % 50));
      const Answer& answer = call.ReadAll();
      statuses[i] = answer.status;
      if (answer.text.contains(0)) texts[i] = answer.text.at(0);
    });
  }
  for (std::thread& client : clients) client.join();
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(statuses[i].ok()) << i << ": " << statuses[i].error_message();
    ASSERT_EQ(texts[i], ExpectedAnswer(0, 20 + i % 50)) << i;
  }
  for (const auto& worker : cluster.decode) EXPECT_GT(worker->calls(), 20) << "load is spread";
  for (const auto& worker : cluster.prefill) EXPECT_GT(worker->calls(), 20);
  EXPECT_TRUE(WaitUntil([&] { return cluster.router->open_requests() == 0; }));
}

// A gateway sends all requests on one connection. They wait for workers that do not appear.
TEST(RouterService, AllRequestsThatMayBeOpenOnOneConnection) {
  constexpr uint32_t kMax = 2048;
  Cluster cluster({.prefill = 0, .decode = 0, .max_requests = kMax, .worker_wait = 60s});
  std::vector<std::unique_ptr<Call>> calls;
  for (uint32_t i = 0; i < kMax; ++i) {
    calls.push_back(std::make_unique<Call>(*cluster.stub, Request(20)));
  }
  ASSERT_TRUE(WaitUntil([&] { return cluster.router->open_requests() == kMax; }));
  const grpc::Status status = StatusOf(cluster, Request(1));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << "and not in a queue";
  EXPECT_THAT(status.error_message(), HasSubstr("2048 requests are open"));
  for (const auto& call : calls) call->context().TryCancel();
  EXPECT_TRUE(WaitUntil([&] { return cluster.router->open_requests() == 0; }));
}

TEST(RouterService, RefusesBadRequestsBeforeAnyWorkerHearsOfThem) {
  Cluster cluster;
  ASSERT_TRUE(cluster.WaitForReady());
  struct Case {
    std::function<void(v1::GenerateRequest&)> spoil;
    grpc::StatusCode code;
    std::string message;
  };
  const Case cases[] = {
      {[](auto& r) { r.set_text("hello\xff"); }, grpc::INVALID_ARGUMENT,
       "text: byte 5 of 6 is not valid UTF-8"},
      {[](auto& r) { r.mutable_stop()->add_stop("\xc0"); }, grpc::INVALID_ARGUMENT,
       "stop.stop[0]: byte 0 of 1"},
      {[](auto& r) { r.set_model("\x80"); }, grpc::INVALID_ARGUMENT, "model: byte 0"},
      {[](auto& r) { r.set_model("other"); }, grpc::NOT_FOUND, "model \"other\" not found"},
      {[](auto& r) { r.set_text(""); }, grpc::INVALID_ARGUMENT, "text is empty"},
      {[](auto& r) { r.clear_prompt(); }, grpc::INVALID_ARGUMENT, "no prompt"},
      {[](auto& r) { r.set_text(std::string(2048, 'a')); }, grpc::INVALID_ARGUMENT,
       "the prompt has 2048 tokens; the context of test-model has 2048"},
      {[](auto& r) { r.mutable_tokens()->add_ids(9999); }, grpc::INVALID_ARGUMENT,
       "tokens.ids[0] is 9999"},
      {[](auto& r) { r.mutable_sampling()->set_n(17); }, grpc::INVALID_ARGUMENT,
       "sampling.n is 17; it must be in [1, 16]"},
      {[](auto& r) { r.mutable_chat()->add_messages()->set_role("pirate"); },
       grpc::INVALID_ARGUMENT, "chat.messages[0].role is `pirate`"},
      {[](auto& r) { r.set_text(std::string(5 << 20, 'a')); }, grpc::RESOURCE_EXHAUSTED, "larger"},
  };
  for (const Case& bad : cases) {
    v1::GenerateRequest request = Request(10);
    bad.spoil(request);
    const grpc::Status status = StatusOf(cluster, request);
    EXPECT_EQ(status.error_code(), bad.code) << bad.message << ": " << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(bad.message));
    grpc::ClientContext context;
    v1::GenerateUnaryResponse response;
    EXPECT_EQ(cluster.stub->GenerateUnary(&context, request, &response).error_code(), bad.code);
  }
  EXPECT_EQ(cluster.prefill[0]->calls() + cluster.decode[0]->calls(), 0);
  EXPECT_TRUE(StatusOf(cluster, Request(5)).ok()) << "and goes on serving";
}

TEST(RouterService, RefusesBytesThatAreNoMessage) {
  Cluster cluster;
  const RawAnswer answer =
      RawCall(cluster.channel, "/penstock.v1.Inference/Generate", std::string("\x12\x7f", 2));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("breaks off at byte"));
}

TEST(RouterService, TokenizesDetokenizesAndListsModels) {
  Cluster cluster;
  ASSERT_TRUE(cluster.WaitForReady());
  grpc::ClientContext context[3];
  v1::TokenizeRequest text;
  text.set_text("abc");
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(cluster.stub->Tokenize(&context[0], text, &tokens).ok());
  EXPECT_EQ(tokens.count(), 3u);
  EXPECT_EQ(tokens.max_model_len(), 2048u);
  v1::DetokenizeRequest ids;
  *ids.mutable_token_ids() = tokens.token_ids();
  v1::DetokenizeResponse back;
  ASSERT_TRUE(cluster.stub->Detokenize(&context[1], ids, &back).ok());
  EXPECT_EQ(back.text(), "abc");
  v1::ListModelsResponse models;
  ASSERT_TRUE(cluster.stub->ListModels(&context[2], {}, &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).id(), "test-model");
  EXPECT_EQ(models.models(0).block_size(), 16u);
  EXPECT_TRUE(models.models(0).ready());
}

// grpc.health.v1: the request's field 1 is the service; the answer's field 1 is 1 when serving.
int HealthOf(Cluster& cluster, const std::string& service) {
  std::string request;
  if (!service.empty()) {
    request = "\x0a" + std::string(1, static_cast<char>(service.size())) + service;
  }
  const RawAnswer answer = RawCall(cluster.channel, "/grpc.health.v1.Health/Check", request);
  return answer.status.ok() && answer.bytes.size() == 2 ? answer.bytes[1] : -1;
}

TEST(RouterService, HealthFollowsTheWorkers) {
  Cluster cluster;
  for (const std::string service : {"", "penstock.v1.Inference"}) {
    EXPECT_TRUE(WaitUntil([&] { return HealthOf(cluster, service) == 1; })) << service;
  }
  cluster.decode[0]->SetPhase(v1::WorkerState::DRAINING);
  for (const std::string service : {"", "penstock.v1.Inference"}) {
    EXPECT_TRUE(WaitUntil([&] { return HealthOf(cluster, service) == 2; })) << service;
  }
  cluster.decode[0]->SetPhase(v1::WorkerState::READY);
  EXPECT_TRUE(WaitUntil([&] { return HealthOf(cluster, "") == 1; }));
}

TEST(RouterService, ReflectionNamesTheService) {
  Cluster cluster;
  const std::string list_services("\x3a\x00", 2);  // field 7, empty
  const RawAnswer answer =
      RawCall(cluster.channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              list_services);
  EXPECT_THAT(answer.bytes, HasSubstr("penstock.v1.Inference"));
}

TEST(RouterService, BoundsTheOpenRequests) {
  Cluster cluster({.max_requests = 2});
  ASSERT_TRUE(cluster.WaitForReady());
  cluster.prefill[0]->HoldAt(0);
  Call first(*cluster.stub, Request(5));
  Call second(*cluster.stub, Request(5));
  ASSERT_TRUE(WaitUntil([&] { return cluster.prefill[0]->held_calls() == 2; }));
  const grpc::Status status = StatusOf(cluster, Request(5));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("2 requests are open"));
  EXPECT_THAT(status.error_message(), HasSubstr("try again"));
  cluster.prefill[0]->Release();
  EXPECT_TRUE(first.ReadAll().status.ok());
  EXPECT_TRUE(second.ReadAll().status.ok());
}

TEST(RouterService, CutsOffAClientThatDoesNotRead) {
  Cluster cluster({.client_stall = 200ms});
  ASSERT_TRUE(cluster.WaitForReady());
  v1::GenerateRequest request = Request(2000);
  request.mutable_sampling()->set_n(16);
  request.mutable_output()->set_top_logprobs(20);  // 8 MB, more than any window
  Call call(*cluster.stub, request);
  EXPECT_TRUE(WaitUntil([&] { return cluster.decode[0]->calls() >= 1; }));
  EXPECT_TRUE(WaitUntil([&] { return cluster.router->open_requests() == 0; }));
  EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::CANCELLED);
}

TEST(RouterService, DrainLetsOpenRequestsFinishAndRefusesNewOnes) {
  Cluster cluster;
  ASSERT_TRUE(cluster.WaitForReady());
  cluster.decode[0]->HoldAt(10);
  Call call(*cluster.stub, Request(30));
  ASSERT_TRUE(call.ReadText(5));
  std::thread drain([&] { cluster.router->Drain(20s); });
  EXPECT_TRUE(WaitUntil([&] { return HealthOf(cluster, "") == 2; }));
  EXPECT_TRUE(WaitUntil(
      [&] { return StatusOf(cluster, Request(1)).error_code() == grpc::StatusCode::UNAVAILABLE; }));
  cluster.decode[0]->Release();
  EXPECT_TRUE(call.ReadAll().status.ok());
  EXPECT_EQ(call.answer().text.at(0), ExpectedAnswer(0, 30));
  drain.join();
}

TEST(RouterService, ATakenPortIsAnError) {
  Cluster cluster;
  RouterServerOptions options;
  options.listen = cluster.router->endpoint();
  options.model = MakeTestModel();
  const auto second = RouterServer::Start(std::move(options));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(second.status()), HasSubstr(cluster.router->endpoint()));
}

// The prompt's blocks as workers name them.
std::vector<BlockId> PromptBlocks(Cluster& cluster, const std::string& text) {
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text(text);
  v1::TokenizeResponse response;
  EXPECT_TRUE(cluster.stub->Tokenize(&context, request, &response).ok());
  const std::vector<uint32_t> tokens(response.token_ids().begin(), response.token_ids().end());
  return HashBlocks(RootBlockId({.model_fingerprint = 1}), tokens, 16);
}

v1::Explanation ExplanationOf(Cluster& cluster, const std::string& prompt) {
  v1::GenerateRequest request = Request(2);
  request.set_text(prompt);
  request.mutable_output()->set_explain(true);
  Call call(*cluster.stub, request);
  const Answer& answer = call.ReadAll();
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  return answer.endings.empty() ? v1::Explanation() : answer.endings.back().explanation();
}

TEST(RouterPrefixes, APromptGoesToTheWorkerThatSaysItHasIt) {
  Cluster cluster({.prefill = 3});
  ASSERT_TRUE(cluster.WaitForReady());
  const std::string prompt(800, 'x');
  const std::vector<BlockId> ids = PromptBlocks(cluster, prompt);
  ASSERT_GE(ids.size(), 50u);
  cluster.prefill[2]->Store(ids);
  ASSERT_TRUE(WaitUntil([&] {
    WorkerTable& table = cluster.router->fleet().table();
    return table.Counts()[{"prefill", "ready"}] == 3 &&
           table.prefixes().figures().blocks == ids.size();
  }));
  const v1::Explanation explanation = ExplanationOf(cluster, prompt);
  ASSERT_EQ(explanation.candidates_size(), 3);
  const v1::ScoredPair& chosen = explanation.candidates(0);
  EXPECT_EQ(chosen.prefill_worker(), "prefill-2");
  EXPECT_EQ(chosen.verdict(), "chosen");
  EXPECT_EQ(chosen.cached_tokens(), 799u);
  EXPECT_GT(chosen.trust(), 0.9);
  // Another one would have to read it from there first.
  EXPECT_EQ(chosen.fetched_tokens(), 0u);
  EXPECT_EQ(explanation.candidates(1).source_worker(), "prefill-2");
  EXPECT_GT(explanation.candidates(1).fetch_ms(), 0);
  EXPECT_GT(explanation.real_first_token().nanos(), 0);
  EXPECT_EQ(explanation.numerics(), "exact");

  // A stream that ends is read anew, and the snapshot says the same.
  cluster.prefill[2]->DropBlockStreams();
  ASSERT_TRUE(WaitUntil([&] {
    return cluster.router->fleet().table().prefixes().figures().blocks == ids.size() &&
           ExplanationOf(cluster, prompt).candidates(0).prefill_worker() == "prefill-2";
  }));
  // With the worker its blocks go.
  cluster.prefill[2]->Kill();
  ASSERT_TRUE(WaitUntil([&] {
    return cluster.router->fleet().table().Counts()[{"prefill", "ready"}] == 2;
  }));
  EXPECT_NE(ExplanationOf(cluster, prompt).candidates(0).prefill_worker(), "prefill-2");
}

TEST(RouterPrefixes, MetadataAsksForAnExplanationAsWell) {
  Cluster cluster;
  ASSERT_TRUE(cluster.WaitForReady());
  Call plain(*cluster.stub, Request(2));
  EXPECT_FALSE(plain.ReadAll().endings.back().has_explanation());
  grpc::ClientContext context;
  context.AddMetadata("x-penstock-explain", "1");
  v1::GenerateUnaryResponse response;
  ASSERT_TRUE(cluster.stub->GenerateUnary(&context, Request(2), &response).ok());
  EXPECT_EQ(response.explanation().candidates_size(), 1);
}

}  // namespace
}  // namespace penstock
