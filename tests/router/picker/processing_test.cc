// The state machine of a gateway's stream: the messages of each way of sending a body, and what the
// gateway gets for them.
#include "router/picker/processing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using ext_proc::ProcessingRequest;
using ext_proc::ProcessingResponse;
using Mode = ext_proc::ProtocolConfiguration;
using Next = Processing::Next;

constexpr char kEndpoint[] = "10.0.0.7:8000";

// Refuses what a test sets.
class FakeRule final : public PickRule {
 public:
  std::optional<HttpResponse> Screen(const HttpHead&, const Subset&) override {
    return screen_refusal;
  }
  std::string AccountOf(const HttpHead&) override { return "account"; }
  std::optional<HttpResponse> Decide(const HttpRequest&) override { return std::nullopt; }
  void OnNamed() override { ++named; }
  HttpResponse Refuse(int status, const std::string& message) override {
    return {.status = status, .body = message};
  }

  std::optional<HttpResponse> screen_refusal;
  int named = 0;
};

ProcessingRequest Head(Mode::BodySendMode request, bool end = false,
                       Mode::BodySendMode response = Mode::FULL_DUPLEX_STREAMED) {
  ProcessingRequest message;
  const auto add = [&](const char* name, const char* value) {
    auto& header = *message.mutable_request_headers()->mutable_headers()->add_headers();
    header.set_key(name);
    header.set_raw_value(value);
  };
  add(":method", "POST");
  add(":path", "/v1/completions?trace=1");
  add(":authority", "llm.example.com");
  add("Content-Type", "application/json");
  message.mutable_request_headers()->set_end_of_stream(end);
  message.mutable_protocol_config()->set_request_body_mode(request);
  message.mutable_protocol_config()->set_response_body_mode(response);
  return message;
}

ProcessingRequest RequestBody(const std::string& bytes, bool end) {
  ProcessingRequest message;
  message.mutable_request_body()->set_body(bytes);
  message.mutable_request_body()->set_end_of_stream(end);
  return message;
}

ProcessingRequest ResponseBody(const std::string& bytes, bool end) {
  ProcessingRequest message;
  message.mutable_response_body()->set_body(bytes);
  message.mutable_response_body()->set_end_of_stream(end);
  return message;
}

class ProcessingTest : public ::testing::Test {
 protected:
  std::vector<ProcessingResponse> Answers() {
    std::vector<ProcessingResponse> answers;
    while (auto answer = stream.TakeAnswer()) answers.push_back(*std::move(answer));
    return answers;
  }

  void Expect(const ProcessingRequest& message, Next next) {
    const auto got = stream.OnMessage(message);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got, next);
  }

  // The answer names the endpoint, in its header and in the metadata.
  static void ExpectNamed(const ProcessingResponse& answer,
                          const ext_proc::CommonResponse& common) {
    ASSERT_EQ(common.header_mutation().set_headers_size(), 1);
    const auto& option = common.header_mutation().set_headers(0);
    EXPECT_EQ(option.header().key(), "x-gateway-destination-endpoint");
    EXPECT_EQ(option.header().raw_value(), kEndpoint);
    EXPECT_EQ(option.append_action(), ext_proc::HeaderValueOption::OVERWRITE_IF_EXISTS_OR_ADD);
    const auto& metadata = answer.dynamic_metadata().fields().at("envoy.lb").struct_value();
    EXPECT_EQ(metadata.fields().at("x-gateway-destination-endpoint").string_value(), kEndpoint);
  }

  FakeRule rule;
  BodyBudget bodies{4000};
  Processing stream{{.rule = rule,
                     .bodies = bodies,
                     .endpoint = kEndpoint,
                     .limits = {.head_bytes = 1000, .body_bytes = 1000}}};
};

TEST_F(ProcessingTest, AStreamedBodyIsGivenBackBehindTheNamedEndpoint) {
  Expect(Head(Mode::FULL_DUPLEX_STREAMED), Next::kRead);
  EXPECT_TRUE(Answers().empty()) << "the head waits for the decision";
  Expect(RequestBody("{\"prompt\":", false), Next::kRead);
  Expect(RequestBody("\"a\"}", true), Next::kDecide);
  EXPECT_TRUE(Answers().empty());
  EXPECT_EQ(stream.request().body, "{\"prompt\":\"a\"}");
  EXPECT_EQ(stream.request().head.path, "/v1/completions");
  EXPECT_EQ(stream.request().head.query, "trace=1");
  EXPECT_EQ(*stream.request().head.Find("content-type"), "application/json");
  EXPECT_EQ(stream.request().head.Find(":authority"), nullptr);
  EXPECT_EQ(bodies.reserved(), 14u);

  EXPECT_EQ(stream.OnDecided(std::nullopt), Next::kRead);
  const auto answers = Answers();
  ASSERT_EQ(answers.size(), 2u);
  ASSERT_TRUE(answers[0].has_request_headers());
  ExpectNamed(answers[0], answers[0].request_headers().response());
  const auto& piece = answers[1].request_body().response().body_mutation().streamed_response();
  EXPECT_EQ(piece.body(), "{\"prompt\":\"a\"}");
  EXPECT_TRUE(piece.end_of_stream());
  EXPECT_EQ(rule.named, 1);
  EXPECT_EQ(bodies.reserved(), 0u) << "the gateway has the body back";
}

TEST_F(ProcessingTest, ALongBodyComesBackInPiecesThatGatewaysTake) {
  BodyBudget large(1 << 20);
  Processing long_stream({.rule = rule, .bodies = large, .endpoint = kEndpoint});
  const std::string body(150'000, 'x');
  ASSERT_TRUE(long_stream.OnMessage(Head(Mode::FULL_DUPLEX_STREAMED)).ok());
  ASSERT_TRUE(long_stream.OnMessage(RequestBody(body, true)).ok());
  long_stream.OnDecided(std::nullopt);
  std::string back;
  int pieces = 0;
  bool ended = false;
  while (const auto answer = long_stream.TakeAnswer()) {
    if (!answer->has_request_body()) continue;
    const auto& piece = answer->request_body().response().body_mutation().streamed_response();
    EXPECT_LE(piece.body().size(), 64u << 10);
    EXPECT_FALSE(ended);
    back += piece.body();
    ended = piece.end_of_stream();
    ++pieces;
  }
  EXPECT_EQ(back, body);
  EXPECT_EQ(pieces, 3);
  EXPECT_TRUE(ended);
}

TEST_F(ProcessingTest, TrailersEndAStreamedBody) {
  Expect(Head(Mode::FULL_DUPLEX_STREAMED), Next::kRead);
  Expect(RequestBody("{}", false), Next::kRead);
  ProcessingRequest trailers;
  trailers.mutable_request_trailers();
  Expect(trailers, Next::kDecide);
  stream.OnDecided(std::nullopt);
  const auto answers = Answers();
  ASSERT_EQ(answers.size(), 3u);
  const auto& piece = answers[1].request_body().response().body_mutation().streamed_response();
  EXPECT_EQ(piece.body(), "{}");
  EXPECT_FALSE(piece.end_of_stream()) << "the trailers end the request";
  EXPECT_TRUE(answers[2].has_request_trailers());
}

TEST_F(ProcessingTest, ABufferedBodyIsAskedForAndItsAnswerNamesTheEndpoint) {
  Expect(Head(Mode::BUFFERED), Next::kRead);
  auto answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_TRUE(answers[0].has_request_headers());
  EXPECT_FALSE(answers[0].has_dynamic_metadata());
  Expect(RequestBody("{}", false), Next::kDecide);  // trailers follow
  stream.OnDecided(std::nullopt);
  answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  ASSERT_TRUE(answers[0].has_request_body());
  ExpectNamed(answers[0], answers[0].request_body().response());
  EXPECT_FALSE(answers[0].request_body().response().has_body_mutation());
  ProcessingRequest trailers;
  trailers.mutable_request_trailers();
  Expect(trailers, Next::kRead);
  answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_TRUE(answers[0].has_request_trailers());
}

TEST_F(ProcessingTest, WithoutABodyTheHeadDecides) {
  for (const Mode::BodySendMode mode : {Mode::NONE, Mode::STREAMED, Mode::BUFFERED_PARTIAL}) {
    Processing one({.rule = rule, .bodies = bodies, .endpoint = kEndpoint});
    const auto next = one.OnMessage(Head(mode));
    ASSERT_TRUE(next.ok());
    EXPECT_EQ(*next, Next::kRead);
    const auto answer = one.TakeAnswer();
    ASSERT_TRUE(answer && answer->has_request_headers());
    ExpectNamed(*answer, answer->request_headers().response());
    ASSERT_TRUE(one.OnMessage(RequestBody("later", true)).ok());
    EXPECT_TRUE(one.TakeAnswer()->has_request_body());
  }
  Expect(Head(Mode::FULL_DUPLEX_STREAMED, /*end=*/true), Next::kRead);
  const auto answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  ExpectNamed(answers[0], answers[0].request_headers().response());
}

TEST_F(ProcessingTest, TheResponsePasses) {
  Expect(Head(Mode::FULL_DUPLEX_STREAMED, /*end=*/true), Next::kRead);
  Answers();
  ProcessingRequest head;
  head.mutable_response_headers();
  Expect(head, Next::kRead);
  Expect(ResponseBody("data: 1\n\n", false), Next::kRead);
  Expect(ResponseBody("", true), Next::kRead);
  ProcessingRequest trailers;
  trailers.mutable_response_trailers();
  Expect(trailers, Next::kRead);
  const auto answers = Answers();
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_TRUE(answers[0].has_response_headers());
  const auto piece = [&](size_t i) {
    return answers[i].response_body().response().body_mutation().streamed_response();
  };
  EXPECT_EQ(piece(1).body(), "data: 1\n\n");
  EXPECT_FALSE(piece(1).end_of_stream());
  EXPECT_EQ(piece(2).body(), "");
  EXPECT_TRUE(piece(2).end_of_stream());
  EXPECT_TRUE(answers[3].has_response_trailers());
}

TEST_F(ProcessingTest, AStreamedResponseOfOtherModesIsNotGivenBack) {
  Expect(Head(Mode::FULL_DUPLEX_STREAMED, /*end=*/true, Mode::STREAMED), Next::kRead);
  Answers();
  Expect(ResponseBody("data", true), Next::kRead);
  const auto answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_FALSE(answers[0].response_body().response().has_body_mutation());
}

TEST_F(ProcessingTest, ARefusalEndsTheStream) {
  rule.screen_refusal = HttpResponse{
      .status = 401, .headers = {{"www-authenticate", "Bearer"}}, .body = "{\"error\":1}"};
  Expect(Head(Mode::FULL_DUPLEX_STREAMED), Next::kEnd);
  const auto answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  const auto& immediate = answers[0].immediate_response();
  EXPECT_EQ(immediate.status().code(), 401);
  EXPECT_EQ(immediate.body(), "{\"error\":1}");
  ASSERT_EQ(immediate.headers().set_headers_size(), 1);
  EXPECT_EQ(immediate.headers().set_headers(0).header().key(), "www-authenticate");
  EXPECT_EQ(rule.named, 0);
}

TEST_F(ProcessingTest, ARefusalAfterTheBodyGivesNothingBack) {
  Expect(Head(Mode::FULL_DUPLEX_STREAMED), Next::kRead);
  Expect(RequestBody("{}", true), Next::kDecide);
  EXPECT_EQ(stream.OnDecided(HttpResponse{.status = 429}), Next::kEnd);
  const auto answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].immediate_response().status().code(), 429);
  EXPECT_EQ(bodies.reserved(), 0u);
}

TEST_F(ProcessingTest, ABodyAboveTheLimitIsRefused) {
  Expect(Head(Mode::FULL_DUPLEX_STREAMED), Next::kRead);
  Expect(RequestBody(std::string(600, 'a'), false), Next::kRead);
  Expect(RequestBody(std::string(600, 'a'), false), Next::kEnd);
  EXPECT_EQ(Answers()[0].immediate_response().status().code(), 413);
  EXPECT_EQ(bodies.reserved(), 0u);
}

TEST_F(ProcessingTest, BodiesOfAllStreamsTogetherAreLimited) {
  BodyReservation others(bodies, "others");
  ASSERT_TRUE(others.GrowTo(2000));
  Processing first({.rule = rule, .bodies = bodies, .endpoint = kEndpoint});
  ASSERT_TRUE(first.OnMessage(Head(Mode::FULL_DUPLEX_STREAMED)).ok());
  ASSERT_TRUE(first.OnMessage(RequestBody(std::string(900, 'a'), false)).ok());
  Expect(Head(Mode::FULL_DUPLEX_STREAMED), Next::kRead);
  Expect(RequestBody(std::string(900, 'a'), false), Next::kEnd);
  EXPECT_EQ(Answers()[0].immediate_response().status().code(), 503);
}

TEST_F(ProcessingTest, AHeadAboveTheLimitIsRefused) {
  ProcessingRequest head = Head(Mode::FULL_DUPLEX_STREAMED);
  auto& long_header = *head.mutable_request_headers()->mutable_headers()->add_headers();
  long_header.set_key("x-long");
  long_header.set_value(std::string(2000, 'a'));
  Expect(head, Next::kEnd);
  EXPECT_EQ(Answers()[0].immediate_response().status().code(), 431);
}

TEST_F(ProcessingTest, MessagesOutOfOrderEndTheStreamWithAnError) {
  const auto error = [&](const std::vector<ProcessingRequest>& messages) {
    Processing one({.rule = rule, .bodies = bodies, .endpoint = kEndpoint});
    absl::StatusOr<Next> last = Next::kRead;
    for (const ProcessingRequest& message : messages) {
      EXPECT_TRUE(last.ok()) << "before the last message";
      last = one.OnMessage(message);
    }
    return last.status();
  };
  ProcessingRequest trailers;
  trailers.mutable_request_trailers();
  ProcessingRequest observed = Head(Mode::BUFFERED);
  observed.set_observability_mode(true);
  const ProcessingRequest head = Head(Mode::FULL_DUPLEX_STREAMED);
  EXPECT_TRUE(absl::IsInvalidArgument(error({ProcessingRequest()})));
  EXPECT_TRUE(absl::IsInvalidArgument(error({RequestBody("a", true)})));
  EXPECT_TRUE(absl::IsInvalidArgument(error({trailers})));
  EXPECT_TRUE(absl::IsInvalidArgument(error({head, head})));
  EXPECT_TRUE(absl::IsInvalidArgument(
      error({Head(Mode::FULL_DUPLEX_STREAMED, true), RequestBody("a", true)})));
  EXPECT_TRUE(absl::IsInvalidArgument(error({observed})));
}

// ---------------------------------------------------------------- gateway_message

ProcessingRequest WithSubset(const std::vector<std::string>& endpoints) {
  ProcessingRequest message;
  auto& hint =
      (*message.mutable_metadata_context()->mutable_filter_metadata())["envoy.lb.subset_hint"];
  auto& list =
      *(*hint.mutable_fields())["x-gateway-destination-endpoint-subset"].mutable_list_value();
  for (const std::string& endpoint : endpoints) list.add_values()->set_string_value(endpoint);
  list.add_values()->set_number_value(5);
  return message;
}

TEST(GatewayMessageTest, TheSubsetIsInTheMetadata) {
  EXPECT_EQ(SubsetOf(ProcessingRequest()), std::nullopt);
  EXPECT_THAT(*SubsetOf(WithSubset({})), ::testing::IsEmpty());
  EXPECT_THAT(*SubsetOf(WithSubset({"10.0.0.1:80", "[::1]:80"})),
              ::testing::ElementsAre("10.0.0.1:80", "[::1]:80"));
}

TEST(GatewayMessageTest, AnEndpointIsInASubsetInAnySpelling) {
  EXPECT_TRUE(Includes({"10.0.0.1:80", "10.0.0.2:80"}, "10.0.0.2:80"));
  EXPECT_FALSE(Includes({"10.0.0.2:81"}, "10.0.0.2:80"));
  EXPECT_FALSE(Includes({}, "10.0.0.2:80"));
  EXPECT_FALSE(Includes({"nonsense", ""}, "10.0.0.2:80"));
  EXPECT_TRUE(Includes({"[2001:DB8:0:0::1]:80"}, "[2001:db8::1]:80"));
}

TEST(GatewayMessageTest, TheLimitOfTheFirstTokenIsANumberOfMilliseconds) {
  const auto limit = [](const std::string& text) {
    return FirstTokenLimitOf({.headers = {{"x-slo-ttft-ms", text}}});
  };
  EXPECT_EQ(*FirstTokenLimitOf({}), std::nullopt);
  EXPECT_EQ(*limit("250"), std::chrono::milliseconds(250));
  EXPECT_EQ(*limit("0.5"), std::chrono::microseconds(500));
  EXPECT_EQ(*limit("1e-9"), std::chrono::nanoseconds(1)) << "none would be no limit";
  for (const char* wrong : {"", "0", "-1", "soon", "5 s", "1e99", "nan", "inf", "86400001"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(limit(wrong).status())) << wrong;
  }
}

TEST(GatewayMessageTest, ANamedEndpointIsAnAddressOfOneHost) {
  EXPECT_EQ(*NamedEndpoint("10.0.0.1:8000", "flag"), "10.0.0.1:8000");
  EXPECT_EQ(*NamedEndpoint("[10.0.0.1]:8000", "flag"), "10.0.0.1:8000");
  EXPECT_EQ(*NamedEndpoint("[2001:db8::1]:8000", "flag"), "[2001:db8::1]:8000");
  for (const char* wrong :
       {"", "10.0.0.1", "0.0.0.0:8000", "[::]:8000", "[0:0::0]:80", "host:80"}) {
    const absl::Status status = NamedEndpoint(wrong, "flag").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << wrong;
    EXPECT_THAT(std::string(status.message()), ::testing::StartsWith("flag")) << wrong;
  }
}

}  // namespace
}  // namespace penstock
