#include "router/api/cors_handler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using ::testing::HasSubstr;

constexpr char kChat[] = "https://chat.example.com";
constexpr char kLocal[] = "http://localhost:3000";

// Answers everything but OPTIONS.
class NextHandler final : public HttpHandler {
 public:
  std::optional<HttpResponse> Screen(const HttpHead& head) override {
    if (head.method != "OPTIONS") return std::nullopt;
    return HttpResponse{.status = 405};
  }
  void Handle(HttpRequest, std::shared_ptr<Exchange> exchange) override {
    exchange->Respond({.status = 200, .body = "answer"});
  }
  HttpResponse Refuse(int status, const std::string&) override { return {.status = status}; }
};

HttpHead HeadOf(const std::string& method, std::vector<HttpHeader> headers) {
  return {.method = method, .path = "/v1/models", .headers = std::move(headers)};
}

HttpHead Preflight(const std::string& origin, const std::string& names = "authorization") {
  return HeadOf("OPTIONS", {{"origin", origin},
                            {"access-control-request-method", "POST"},
                            {"access-control-request-headers", names}});
}

std::string ValueOf(const std::vector<HttpHeader>& headers, std::string_view name) {
  std::string value;
  for (const HttpHeader& header : headers) {
    if (header.name == name) value += header.value;
  }
  return value;
}

class CorsHandlerTest : public ::testing::Test {
 protected:
  CorsHandler Make(const std::vector<std::string>& origins) {
    return CorsHandler(*CorsPolicy::Parse(origins), next_);
  }
  static HttpResponse Answer(CorsHandler& handler, const HttpHead& head) {
    if (auto refusal = handler.Screen(head)) return *std::move(refusal);
    const auto exchange = std::make_shared<Exchange>([] {});
    handler.Handle({.head = head}, exchange);
    return exchange->TakeAnswer()->head;
  }

  NextHandler next_;
};

TEST_F(CorsHandlerTest, AnswersOfAnAllowedOriginSaySo) {
  CorsHandler handler = Make({kChat, kLocal});
  for (const char* origin : {kChat, kLocal}) {
    const auto headers = handler.AnswerHeaders(HeadOf("POST", {{"origin", origin}}));
    EXPECT_EQ(ValueOf(headers, "access-control-allow-origin"), origin);
    EXPECT_THAT(ValueOf(headers, "access-control-expose-headers"), HasSubstr("x-request-id"));
    EXPECT_EQ(ValueOf(headers, "vary"), "Origin");
    EXPECT_EQ(ValueOf(headers, "access-control-allow-credentials"), "");
  }
}

TEST_F(CorsHandlerTest, OtherOriginsGetNothingButVary) {
  CorsHandler handler = Make({kChat});
  for (const char* origin : {"https://evil.example.com", "https://chat.example.com.evil.com",
                             "http://chat.example.com", "null", ""}) {
    const auto headers = handler.AnswerHeaders(HeadOf("POST", {{"origin", origin}}));
    EXPECT_EQ(headers.size(), 1u) << origin;
    EXPECT_EQ(ValueOf(headers, "vary"), "Origin") << origin;
    EXPECT_EQ(Answer(handler, Preflight(origin)).status, 405) << origin;
  }
  EXPECT_EQ(ValueOf(handler.AnswerHeaders(HeadOf("GET", {})), "vary"), "Origin");
}

TEST_F(CorsHandlerTest, AllOriginsMayBeAllowedWithoutCredentials) {
  CorsHandler handler = Make({"*"});
  const auto headers = handler.AnswerHeaders(HeadOf("POST", {{"origin", "https://any.com"}}));
  EXPECT_EQ(ValueOf(headers, "access-control-allow-origin"), "*");
  EXPECT_EQ(ValueOf(headers, "access-control-allow-credentials"), "");
  EXPECT_EQ(ValueOf(headers, "vary"), "") << "all origins get the same";
  EXPECT_EQ(Answer(handler, Preflight("https://any.com")).status, 200);
}

TEST_F(CorsHandlerTest, APreflightIsAnsweredWithWhatMayBeSent) {
  CorsHandler handler = Make({kChat});
  const HttpResponse answer =
      Answer(handler, Preflight(kChat, "authorization,content-type,x-stainless-os"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "");
  EXPECT_EQ(ValueOf(answer.headers, "access-control-allow-methods"), "GET, HEAD, POST");
  EXPECT_EQ(ValueOf(answer.headers, "access-control-allow-headers"),
            "authorization,content-type,x-stainless-os");
  EXPECT_EQ(ValueOf(answer.headers, "access-control-allow-credentials"), "");
  const HttpResponse odd = Answer(handler, Preflight(kChat, "a: b"));
  EXPECT_EQ(ValueOf(odd.headers, "access-control-allow-headers"), "");
}

TEST_F(CorsHandlerTest, OtherRequestsGoOn) {
  CorsHandler handler = Make({kChat});
  EXPECT_EQ(Answer(handler, HeadOf("POST", {{"origin", kChat}})).body, "answer");
  EXPECT_EQ(Answer(handler, HeadOf("OPTIONS", {{"origin", kChat}})).status, 405);
  EXPECT_EQ(Answer(handler, HeadOf("OPTIONS", {{"access-control-request-method", "POST"}})).status,
            405);
}

TEST(CorsPolicyTest, TakesOriginsOnly) {
  EXPECT_TRUE(
      CorsPolicy::Parse({"https://a.com", "http://127.0.0.1:8080", "http://[::1]:3000"}).ok());
  for (const char* origin : {"https://a.com/", "a.com", "https://", "https://A.com", "null", "",
                             "https://*.a.com", "ftp://a.com"}) {
    const auto policy = CorsPolicy::Parse({kChat, origin});
    ASSERT_FALSE(policy.ok()) << origin;
    EXPECT_THAT(std::string(policy.status().message()),
                HasSubstr("cors_allow_origins has `" + std::string(origin) + "`"));
  }
  EXPECT_FALSE(CorsPolicy::Parse({kChat, "*"}).ok()) << "* is for all, so it is alone";
}

}  // namespace
}  // namespace penstock
