// The OpenAI API of a router over fake workers, over real sockets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "lab/fake/temp_folder.h"
#include "tests/http/http2_client.h"
#include "tests/http/http_client.h"
#include "tests/router/service/cluster.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kText[] = "/v1/completions";

std::string Hex(const std::string& bytes) {
  std::string hex;
  for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

class HttpApi : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(cluster_.WaitForReady()); }
  std::string endpoint() const { return cluster_.router->http_endpoint(); }
  HttpReply Post(const std::string& path, const json& body, const std::string& headers = "") const {
    return Ask(endpoint(), path, body.dump(), headers);
  }
  static json TextRequest(uint32_t tokens) {
    return {{"prompt", kClusterPrompt}, {"max_tokens", tokens}, {"seed", 7}};
  }
  static json ChatRequest(uint32_t tokens) {
    return {{"model", "test-model"},
            {"messages", {{{"role", "user"}, {"content", "hello"}}}},
            {"max_tokens", tokens},
            {"seed", 7}};
  }

  Cluster cluster_;
};

TEST_F(HttpApi, CompletesText) {
  const HttpReply reply = Post(kText, TextRequest(12), "X-Request-Id: abc-1\r\n");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.headers.at("content-type"), "application/json");
  EXPECT_EQ(reply.headers.at("x-request-id"), "abc-1");
  const json body = json::parse(reply.body);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "test-model");
  EXPECT_THAT(body["id"].get<std::string>(), ::testing::StartsWith("cmpl-"));
  EXPECT_EQ(body["choices"][0]["text"], ExpectedAnswer(0, 12));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(body["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(body["usage"]["prompt_tokens"], sizeof(kClusterPrompt) - 1);
  EXPECT_EQ(body["usage"]["completion_tokens"], 12);
  EXPECT_EQ(body["usage"]["total_tokens"], sizeof(kClusterPrompt) - 1 + 12);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_FALSE(body["system_fingerprint"].get<std::string>().empty());
}

TEST_F(HttpApi, StreamsText) {
  json request = TextRequest(20);
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}};
  const HttpReply reply = Post(kText, request);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream");
  EXPECT_EQ(reply.headers.at("cache-control"), "no-cache");
  std::vector<std::string> events = EventsOf(reply.body);
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  const json usage = json::parse(events.back());
  EXPECT_EQ(usage["choices"], json::array());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 20);
  events.pop_back();
  std::string text;
  json last;
  for (const std::string& event : events) {
    last = json::parse(event);
    EXPECT_TRUE(last["usage"].is_null()) << event;
    EXPECT_EQ(last["id"], usage["id"]);
    text += last["choices"][0]["text"];
  }
  EXPECT_EQ(text, ExpectedAnswer(0, 20));
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
}

TEST_F(HttpApi, StreamsAChatWithSeveralChoices) {
  json request = ChatRequest(15);
  request["stream"] = true;
  request["n"] = 3;
  const HttpReply streamed = Post(kChat, request);
  ASSERT_EQ(streamed.status, 200) << streamed.body;
  std::map<int, std::string> texts;
  std::map<int, int> roles, endings;
  std::vector<std::string> events = EventsOf(streamed.body);
  ASSERT_EQ(events.back(), "[DONE]");
  events.pop_back();
  for (const std::string& event : events) {
    const json chunk = json::parse(event);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_FALSE(chunk.contains("usage"));
    const json& choice = chunk["choices"][0];
    const json& delta = choice["delta"];
    const int index = choice["index"];
    if (delta.contains("role")) {
      EXPECT_TRUE(texts[index].empty()) << "the role comes first";
      ++roles[index];
    }
    if (delta.contains("content")) texts[index] += delta["content"];
    if (!choice["finish_reason"].is_null()) ++endings[index];
  }
  EXPECT_EQ(roles, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}}));
  EXPECT_EQ(endings, roles);
  request.erase("stream");
  const json whole = json::parse(Post(kChat, request).body);
  EXPECT_EQ(whole["object"], "chat.completion");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(whole["choices"][i]["index"], i);
    EXPECT_EQ(whole["choices"][i]["message"]["content"], texts[i]);
    EXPECT_EQ(whole["choices"][i]["message"]["role"], "assistant");
  }
  EXPECT_NE(texts[0], texts[1]);
}

TEST_F(HttpApi, AnswersSeveralPromptsAtOnce) {
  const std::string prompt = kClusterPrompt;
  json request = TextRequest(10);
  request["prompt"] = {"other", prompt, std::vector<int>(prompt.begin(), prompt.end())};
  request["n"] = 2;
  const json body = json::parse(Post(kText, request).body);
  ASSERT_EQ(body["choices"].size(), 6u) << body;
  EXPECT_EQ(body["choices"][4]["text"], body["choices"][2]["text"]);
  EXPECT_EQ(body["choices"][2]["index"], 2);
  EXPECT_EQ(body["choices"][2]["text"], ExpectedAnswer(0, 10));
  EXPECT_EQ(body["choices"][3]["text"], ExpectedAnswer(1, 10));
  EXPECT_EQ(body["usage"]["prompt_tokens"], 5 + 2 * prompt.size());
  EXPECT_EQ(body["usage"]["completion_tokens"], 60);
  request["stream"] = true;
  std::map<int, std::string> texts;
  std::vector<std::string> events = EventsOf(Post(kText, request).body);
  ASSERT_EQ(events.back(), "[DONE]");
  events.pop_back();
  for (const std::string& event : events) {
    const json chunk = json::parse(event);
    texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"];
  }
  EXPECT_EQ(texts[3], ExpectedAnswer(1, 10));
}

TEST_F(HttpApi, TakesTokenIds) {
  const std::string prompt = kClusterPrompt;
  json request = TextRequest(8);
  request["prompt"] = std::vector<int>(prompt.begin(), prompt.end());
  request["return_token_ids"] = true;
  const json body = json::parse(Post(kText, request).body);
  const std::string text = body["choices"][0]["text"];
  EXPECT_EQ(text, ExpectedAnswer(0, 8));
  EXPECT_EQ(body["choices"][0]["token_ids"], std::vector<int>(text.begin(), text.end()));
  request["prompt"] = {std::vector<int>(prompt.begin(), prompt.end())};
  EXPECT_EQ(json::parse(Post(kText, request).body)["choices"][0]["text"], text);
}

TEST_F(HttpApi, GivesLogprobsInBothDialects) {
  json chat = ChatRequest(4);
  chat["logprobs"] = true;
  chat["top_logprobs"] = 2;
  const json chat_logprobs = json::parse(Post(kChat, chat).body)["choices"][0]["logprobs"];
  ASSERT_EQ(chat_logprobs["content"].size(), 4u);
  const json& first = chat_logprobs["content"][0];
  EXPECT_EQ(first["logprob"], -1.0);
  EXPECT_EQ(first["bytes"][0].get<int>(), first["token"].get<std::string>()[0]);
  EXPECT_EQ(first["top_logprobs"].size(), 2u);
  EXPECT_EQ(first["top_logprobs"][1]["logprob"], -2.0);
  json text = TextRequest(4);
  text["logprobs"] = 2;
  const json choice = json::parse(Post(kText, text).body)["choices"][0];
  const json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["text_offset"], (json{0, 1, 2, 3}));
  EXPECT_EQ(logprobs["token_logprobs"], (json{-1.0, -1.0, -1.0, -1.0}));
  EXPECT_EQ(logprobs["tokens"][1], choice["text"].get<std::string>().substr(1, 1));
  EXPECT_EQ(logprobs["top_logprobs"][0].size(), 2u);
}

TEST_F(HttpApi, StopsAtAStop) {
  const std::string answer = ExpectedAnswer(0, 30);
  json request = TextRequest(30);
  request["stop"] = answer.substr(5, 3);
  const json body = json::parse(Post(kText, request).body);
  EXPECT_EQ(body["choices"][0]["text"], answer.substr(0, answer.find(answer.substr(5, 3))));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["stop_reason"], answer.substr(5, 3));
}

TEST_F(HttpApi, ContinuousUsageCounts) {
  json request = TextRequest(5);
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  std::vector<std::string> events = EventsOf(Post(kText, request).body);
  ASSERT_EQ(events.back(), "[DONE]");
  events.pop_back();
  int last = 0;
  for (const std::string& event : events) {
    const json usage = json::parse(event)["usage"];
    EXPECT_EQ(usage["prompt_tokens"], sizeof(kClusterPrompt) - 1);
    EXPECT_GE(usage["completion_tokens"], last);
    last = usage["completion_tokens"];
  }
  EXPECT_EQ(last, 5);
}

TEST_F(HttpApi, PassesSamplingOn) {
  json request = ChatRequest(3);
  request.update({{"temperature", 0.25},
                  {"top_p", 0.5},
                  {"top_k", 40},
                  {"min_p", 0.125},
                  {"frequency_penalty", 1},
                  {"presence_penalty", -1.5},
                  {"repetition_penalty", 1.25},
                  {"seed", -5},
                  {"logit_bias", {{"65", 3}}},
                  {"stop_token_ids", {10}},
                  {"min_tokens", 2},
                  {"max_tokens", 99},
                  {"max_completion_tokens", 3},
                  {"user", "u"},
                  {"store", true},
                  {"metadata", {{"a", "b"}}},
                  {"unheard_of", 1},
                  {"tools", json::array()},
                  {"response_format", {{"type", "text"}}},
                  {"prompt_cache_key", "k"}});
  ASSERT_EQ(Post(kChat, request).status, 200);
  const v1::SamplingSpec sampling = cluster_.prefill[0]->last_sampling();
  EXPECT_EQ(sampling.temperature(), 0.25f);
  EXPECT_EQ(sampling.top_p(), 0.5f);
  EXPECT_EQ(sampling.top_k(), 40u);
  EXPECT_EQ(sampling.min_p(), 0.125f);
  EXPECT_EQ(sampling.frequency_penalty(), 1.0f);
  EXPECT_EQ(sampling.presence_penalty(), -1.5f);
  EXPECT_EQ(sampling.repetition_penalty(), 1.25f);
  EXPECT_EQ(sampling.seed(), static_cast<uint64_t>(-5));
  EXPECT_EQ(sampling.logit_bias().at(65), 3.0f);
  EXPECT_EQ(sampling.max_tokens(), 3u);
  EXPECT_EQ(sampling.min_tokens(), 2u);
}

TEST_F(HttpApi, GivesResponses) {
  json request = {
      {"model", "test-model"}, {"input", "hello"}, {"max_output_tokens", 15}, {"seed", 7}};
  const HttpReply reply = Post("/v1/responses", request, "X-Request-Id: abc-1\r\n");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.headers.at("x-request-id"), "abc-1");
  const json whole = json::parse(reply.body);
  EXPECT_EQ(whole["object"], "response");
  EXPECT_EQ(whole["status"], "incomplete");
  const json chat = json::parse(Post(kChat, ChatRequest(15)).body);
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], chat["choices"][0]["message"]["content"]);
  EXPECT_EQ(whole["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
  request["stream"] = true;
  const HttpReply streamed = Post("/v1/responses", request);
  EXPECT_EQ(streamed.headers.at("content-type"), "text/event-stream");
  EXPECT_TRUE(streamed.complete);
  EXPECT_THAT(streamed.body, ::testing::StartsWith("event: response.created\ndata: "));
  EXPECT_THAT(streamed.body, HasSubstr("event: response.incomplete\ndata: "));
  EXPECT_THAT(streamed.body, ::testing::Not(HasSubstr("[DONE]")));
  request["previous_response_id"] = "resp_1";
  const json error = json::parse(Post("/v1/responses", request).body)["error"];
  EXPECT_EQ(error["param"], "previous_response_id");
  EXPECT_EQ(error["code"], "unsupported_parameter");
  EXPECT_EQ(Post("/v1/responses/resp_1", request).status, 404);
}

TEST_F(HttpApi, AResponseThatFailsInMidStreamSaysSo) {
  cluster_.decode[0]->HoldAt(3);
  HttpClient client(endpoint());
  client.Send(
      HttpText("/v1/responses", R"({"input": "hello", "max_output_tokens": 30, "stream": true})"));
  ASSERT_TRUE(client.ReceiveUntil("output_text.delta"));
  cluster_.decode[0]->FailAt(6, grpc::StatusCode::INTERNAL);
  cluster_.decode[0]->Release();
  const HttpReply reply = client.Receive();
  EXPECT_FALSE(reply.complete);
  EXPECT_THAT(reply.body, HasSubstr("event: response.failed\ndata: "));
  EXPECT_THAT(reply.body, HasSubstr(R"("code":"server_error")"));
}

TEST_F(HttpApi, HeadersWaitForTheFirstToken) {
  cluster_.prefill[0]->HoldAt(0);
  HttpClient client(endpoint());
  json request = TextRequest(5);
  request["stream"] = true;
  client.Send(HttpText(kText, request.dump()));
  ASSERT_TRUE(WaitUntil([&] { return cluster_.prefill[0]->held_calls() == 1; }));
  EXPECT_FALSE(client.ReceiveUntil("HTTP", 100ms)) << client.received();
  cluster_.prefill[0]->Release();
  EXPECT_EQ(client.Receive().status, 200);
}

TEST_F(HttpApi, AnErrorBeforeTheFirstTokenIsTheResponse) {
  cluster_.prefill[0]->FailAt(0, grpc::StatusCode::INTERNAL);
  json request = TextRequest(5);
  request["stream"] = true;
  const HttpReply reply = Post(kText, request);
  EXPECT_EQ(reply.status, 500);
  const json error = json::parse(reply.body)["error"];
  EXPECT_EQ(error["type"], "internal_error");
  EXPECT_THAT(error["message"].get<std::string>(), ::testing::Not(HasSubstr("prefill-0")));
}

TEST_F(HttpApi, AnErrorInMidStreamIsItsLastEvent) {
  cluster_.decode[0]->HoldAt(3);
  HttpClient client(endpoint());
  json request = TextRequest(30);
  request["stream"] = true;
  client.Send(HttpText(kText, request.dump()));
  ASSERT_TRUE(client.ReceiveUntil("data: "));
  cluster_.decode[0]->FailAt(6, grpc::StatusCode::INTERNAL);
  cluster_.decode[0]->Release();
  const HttpReply reply = client.Receive();
  EXPECT_EQ(reply.status, 200);
  EXPECT_FALSE(reply.complete) << "a client that reads no events sees that, too";
  const std::vector<std::string> events = EventsOf(reply.body);
  EXPECT_EQ(json::parse(events.back())["error"]["code"], "internal_error");
  EXPECT_THAT(reply.body, ::testing::Not(HasSubstr("[DONE]")));
}

TEST_F(HttpApi, IsTheSameOverHttp2) {
  Http2Client client(endpoint());
  const auto post = [&](const std::string& path, const json& body) {
    return client.Send("POST", path, body.dump(), {{"content-type", "application/json"}});
  };
  const auto without_times = [](const std::string& text) {
    json body = json::parse(text);
    for (const char* changing : {"id", "created"}) body.erase(changing);
    return body;
  };
  json streamed = TextRequest(12);
  streamed["stream"] = true;
  const int32_t whole = post(kText, TextRequest(12));
  const int32_t events = post(kText, streamed);
  const int32_t wrong = post(kText, {{"prompt", 7}});
  EXPECT_EQ(client.Await(whole).status, 200);
  EXPECT_EQ(without_times(client.reply(whole).body),
            without_times(Post(kText, TextRequest(12)).body));
  EXPECT_EQ(client.Await(events).headers.at("content-type"), "text/event-stream");
  std::string text;
  for (const std::string& event : EventsOf(client.reply(events).body)) {
    if (event != "[DONE]") text += json::parse(event)["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, ExpectedAnswer(0, 12));
  EXPECT_EQ(client.Await(wrong).status, 400);
  EXPECT_EQ(client.reply(wrong).body, Post(kText, {{"prompt", 7}}).body);
}

TEST_F(HttpApi, AnHttp2StreamThatIsResetEndsItsRequest) {
  cluster_.decode[0]->HoldAt(3);
  json body = TextRequest(12);
  body["stream"] = true;
  Http2Client client(endpoint());
  const int32_t stream =
      client.Send("POST", kText, body.dump(), {{"content-type", "application/json"}});
  ASSERT_TRUE(client.WaitUntil([&] { return cluster_.decode[0]->held_calls() == 1; }));
  client.Reset(stream);
  EXPECT_TRUE(WaitUntil([&] { return cluster_.decode[0]->cancelled_calls() == 1; }));
  cluster_.decode[0]->Release();
  EXPECT_EQ(client.Ask("/v1/models").status, 200) << "the connection goes on";
}

TEST_F(HttpApi, AClientThatLeavesEndsItsRequest) {
  for (const bool stream : {false, true}) {
    cluster_.decode[0]->HoldAt(3);
    const int cancelled = cluster_.decode[0]->cancelled_calls();
    {
      HttpClient client(endpoint());
      json request = TextRequest(50);
      request["stream"] = stream;
      client.Send(HttpText(kText, request.dump()));
      ASSERT_TRUE(WaitUntil([&] { return cluster_.decode[0]->held_calls() == 1; }));
    }
    EXPECT_TRUE(WaitUntil([&] { return cluster_.decode[0]->cancelled_calls() == cancelled + 1; }));
    EXPECT_TRUE(WaitUntil([&] { return cluster_.router->open_requests() == 0; }));
    cluster_.decode[0]->Release();
  }
}

TEST(HttpApiLimits, ARequestThatTakesTooLongEnds) {
  Cluster cluster({.request_limit = 300ms});
  ASSERT_TRUE(cluster.WaitForReady());
  cluster.prefill[0]->HoldAt(0);
  const HttpReply reply =
      Ask(cluster.router->http_endpoint(), kText, R"({"prompt": "a", "max_tokens": 5})");
  EXPECT_EQ(reply.status, 408) << reply.body;
  EXPECT_EQ(reply.headers.at("x-should-retry"), "true");
  EXPECT_TRUE(WaitUntil([&] { return cluster.router->open_requests() == 0; }));
}

TEST(HttpApiLimits, TooManyRequestsAreRefusedWithARetryHint) {
  Cluster cluster({.max_requests = 1});
  ASSERT_TRUE(cluster.WaitForReady());
  cluster.prefill[0]->HoldAt(0);
  HttpClient first(cluster.router->http_endpoint());
  first.Send(HttpText(kText, R"({"prompt": "a", "max_tokens": 5})"));
  ASSERT_TRUE(WaitUntil([&] { return cluster.prefill[0]->held_calls() == 1; }));
  const HttpReply reply =
      Ask(cluster.router->http_endpoint(), kText, R"({"prompt": "a", "max_tokens": 5})");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.headers.at("retry-after-ms"), "1000");
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
  EXPECT_EQ(json::parse(reply.body)["error"]["code"], "overloaded");
  cluster.prefill[0]->Release();
  EXPECT_EQ(first.Receive().status, 200);
}

TEST(HttpApiLimits, DrainAnswersWhatIsOpenAndRefusesTheRest) {
  Cluster cluster;
  ASSERT_TRUE(cluster.WaitForReady());
  const std::string endpoint = cluster.router->http_endpoint();
  cluster.decode[0]->HoldAt(10);
  HttpClient open(endpoint);
  open.Send(HttpText(kText, R"({"prompt": "a", "max_tokens": 20, "stream": true})"));
  ASSERT_TRUE(open.ReceiveUntil("data: "));
  std::thread drain([&] { cluster.router->Drain(20s); });
  EXPECT_TRUE(WaitUntil([&] { return Ask(endpoint, "/ready").status == 503; }));
  EXPECT_EQ(Ask(endpoint, "/health").status, 200);
  const HttpReply refused = Ask(endpoint, kText, R"({"prompt": "a"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(json::parse(refused.body)["error"]["code"], "draining");
  cluster.decode[0]->Release();
  EXPECT_TRUE(open.ReceiveUntil("[DONE]"));
  drain.join();
  EXPECT_TRUE(open.Closes());
}

// A browser's page of an allowed origin reads answers and errors of every kind, over both versions
// of HTTP, and the connection lives on.
TEST(HttpApiCors, AnAllowedOriginReadsAnswersAndErrors) {
  const TempFolder folder;
  Cluster cluster({.keys_file = folder.Write("keys", R"({"tenants": [{"name": "acme"}], "keys": [
    {"id": "a", "tenant": "acme", "sha256": ")" + Hex(KeyDigest("acme-key")) +
                                                         "\"}]}"),
                   .cors_allow_origins = {"https://chat.example.com"}});
  ASSERT_TRUE(cluster.WaitForReady());
  const std::string endpoint = cluster.router->http_endpoint();
  const std::string origin = "Origin: https://chat.example.com\r\n";
  const std::string request = R"({"prompt": "a", "max_tokens": 2, "stream": true})";
  const std::string key = "Authorization: Bearer acme-key\r\n";
  HttpClient client(endpoint);
  const auto exchange = [&](const std::string& text, int status) {
    client.Send(text);
    HttpReply reply = client.Receive();
    EXPECT_EQ(reply.status, status) << text << reply.body;
    EXPECT_EQ(reply.headers.at("access-control-allow-origin"), "https://chat.example.com") << text;
    EXPECT_EQ(reply.headers.at("vary"), "Origin") << text;
    EXPECT_EQ(reply.headers.count("access-control-allow-credentials"), 0u) << text;
    return reply;
  };
  const HttpReply preflight =
      exchange("OPTIONS /v1/completions HTTP/1.1\r\nHost: x\r\n" + origin +
                   "Access-Control-Request-Method: POST\r\n"
                   "Access-Control-Request-Headers: authorization,content-type\r\n\r\n",
               200);
  EXPECT_EQ(preflight.headers.at("access-control-allow-headers"), "authorization,content-type");
  exchange(HttpText(kText, request, origin + key), 200);
  exchange(HttpText(kText, R"({"prompt": 7})", origin + key), 400);
  exchange(HttpText(kText, request, origin), 401);  // ends the connection
  HttpClient sender(endpoint);
  sender.Send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n" + origin +
              "\r\n");
  const HttpReply large = sender.Receive();
  EXPECT_EQ(large.status, 413);
  EXPECT_EQ(large.headers.at("access-control-allow-origin"), "https://chat.example.com");
  const HttpReply other = Ask(endpoint, kText, request, key + "Origin: https://evil.com\r\n");
  EXPECT_EQ(other.status, 200);
  EXPECT_EQ(other.headers.count("access-control-allow-origin"), 0u);
  EXPECT_EQ(other.headers.at("vary"), "Origin");
  const HttpReply page = Ask(endpoint, "/", "", origin);
  EXPECT_EQ(page.headers.count("access-control-allow-origin"), 0u) << "the page is no API";
  Http2Client second(endpoint);
  const int32_t refused =
      second.Send("POST", kText, request,
                  {{"content-type", "application/json"}, {"origin", "https://chat.example.com"}});
  EXPECT_EQ(second.Await(refused).status, 401);
  EXPECT_EQ(second.reply(refused).headers.at("access-control-allow-origin"),
            "https://chat.example.com");
}

TEST(HttpApiCors, IsOffByDefault) {
  Cluster cluster;
  ASSERT_TRUE(cluster.WaitForReady());
  const std::string origin = "Origin: https://chat.example.com\r\n";
  const HttpReply reply = Ask(cluster.router->http_endpoint(), "/v1/models", "", origin);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.count("access-control-allow-origin"), 0u);
  EXPECT_EQ(reply.headers.count("vary"), 0u);
  HttpClient client(cluster.router->http_endpoint());
  client.Send("OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\n" + origin +
              "Access-Control-Request-Method: GET\r\n\r\n");
  EXPECT_EQ(client.Receive().status, 405);
}

TEST(HttpApiKeys, WithoutAKeyThereIsNothingButProbes) {
  const TempFolder folder;
  // The digests of "acme-key" and "small-key".
  const std::string file =
      folder.Write("keys",
                   R"({"tenants": [{"name": "acme"}, {"name": "small", "requests": 1}], "keys": [
    {"id": "a", "tenant": "acme", "sha256": ")" +
                       Hex(KeyDigest("acme-key")) + R"("},
    {"id": "s", "tenant": "small", "sha256": ")" +
                       Hex(KeyDigest("small-key")) + "\"}]}");
  Cluster cluster({.keys_file = file});
  ASSERT_TRUE(cluster.WaitForReady());
  const std::string endpoint = cluster.router->http_endpoint();
  const std::string request = R"({"prompt": "a", "max_tokens": 5, "cache_salt": "x"})";
  EXPECT_EQ(Ask(endpoint, "/health").status, 200);
  EXPECT_EQ(Ask(endpoint, "/ready").status, 200);
  for (const std::string path : {"/version", "/v1/models", "/nothing", "/metrics"}) {
    EXPECT_EQ(Ask(endpoint, path).status, 401) << path;
  }
  for (const std::string header : {"", "Authorization: Bearer wrong\r\n",
                                   "Authorization: acme-key\r\n", "Authorization: Bearer \r\n"}) {
    const HttpReply reply = Ask(endpoint, kText, request, header);
    EXPECT_EQ(reply.status, 401) << header;
    EXPECT_EQ(json::parse(reply.body)["error"]["code"], "invalid_api_key");
    EXPECT_EQ(reply.headers.at("www-authenticate"), "Bearer");
    EXPECT_EQ(reply.headers.at("x-should-retry"), "false");
  }
  grpc::ClientContext context;
  v1::GenerateUnaryResponse response;
  EXPECT_EQ(cluster.stub->GenerateUnary(&context, Request(5), &response).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  grpc::ClientContext models_context;
  v1::ListModelsResponse models;
  EXPECT_EQ(cluster.stub->ListModels(&models_context, {}, &models).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(cluster.prefill[0]->calls() + cluster.decode[0]->calls(), 0);

  EXPECT_EQ(Ask(endpoint, kText, request, "Authorization: Bearer acme-key\r\n").status, 200);
  grpc::ClientContext with_key;
  with_key.AddMetadata("authorization", "Bearer acme-key");
  EXPECT_TRUE(cluster.stub->GenerateUnary(&with_key, Request(5), &response).ok());

  // One tenant at its limit takes nothing from the other.
  cluster.prefill[0]->HoldAt(0);
  HttpClient first(endpoint);
  first.Send(HttpText(kText, request, "Authorization: Bearer small-key\r\n"));
  ASSERT_TRUE(WaitUntil([&] { return cluster.prefill[0]->held_calls() == 1; }));
  const HttpReply full = Ask(endpoint, kText, request, "Authorization: Bearer small-key\r\n");
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(json::parse(full.body)["error"]["code"], "tenant_quota");
  EXPECT_EQ(full.headers.at("retry-after-ms"), "1000");
  const std::string small = "Authorization: Bearer small-key\r\n";
  EXPECT_EQ(Ask(endpoint, "/tokenize", R"({"prompt": "a"})", small).status, 429);
  EXPECT_EQ(Ask(endpoint, "/detokenize", R"({"tokens": [65]})", small).status, 429);
  cluster.prefill[0]->Release();
  EXPECT_EQ(Ask(endpoint, kText, request, "Authorization: Bearer acme-key\r\n").status, 200);
  EXPECT_EQ(first.Receive().status, 200);
}

TEST(HttpApiKeys, ProbesWithoutAKeyLearnWhetherItServesAndNoMore) {
  const TempFolder folder;
  const std::string file = folder.Write(
      "keys", R"({"tenants": [{"name": "t"}], "keys": [{"id": "t", "tenant": "t", "sha256": ")" +
                  Hex(KeyDigest("key")) + "\"}]}");
  Cluster cluster({.keys_file = file});
  ASSERT_TRUE(cluster.WaitForReady());
  const std::string endpoint = cluster.router->http_endpoint();
  cluster.decode[0]->SetPhase(v1::WorkerState::DRAINING);
  ASSERT_TRUE(WaitUntil([&] { return Ask(endpoint, "/ready").status == 503; }));
  EXPECT_THAT(Ask(endpoint, "/ready").body, Not(HasSubstr("workers")));
  EXPECT_THAT(Ask(endpoint, "/ready", "", "Authorization: Bearer key\r\n").body,
              HasSubstr("0 of 1 decode workers ready"));
}

TEST(HttpApiKeys, TokenizeCountsAgainstTheTokensPerMinute) {
  const TempFolder folder;
  const std::string file =
      folder.Write("keys", R"({"tenants": [{"name": "t", "tokens_per_minute": 100}], "keys": [
    {"id": "t", "tenant": "t", "sha256": ")" +
                               Hex(KeyDigest("key")) + "\"}]}");
  Cluster cluster({.keys_file = file});
  ASSERT_TRUE(cluster.WaitForReady());
  const std::string endpoint = cluster.router->http_endpoint();
  const std::string key = "Authorization: Bearer key\r\n";
  const std::string request = json({{"prompt", std::string(1000, 'a')}}).dump();
  EXPECT_EQ(Ask(endpoint, "/tokenize", request, key).status, 200);
  EXPECT_EQ(Ask(endpoint, "/tokenize", request, key).status, 429);
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer key");
  v1::DetokenizeRequest ids;
  ids.add_token_ids(65);
  v1::DetokenizeResponse back;
  EXPECT_EQ(cluster.stub->Detokenize(&context, ids, &back).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(HttpApi, OneConnectionServesManyRequests) {
  HttpClient client(endpoint());
  // All at once: the second waits for the first one's answer.
  client.Send(HttpText("/health") + HttpText(kText, TextRequest(5).dump()) +
              HttpText("/v1/models"));
  EXPECT_EQ(client.Receive().status, 200);
  EXPECT_EQ(json::parse(client.Receive().body)["choices"][0]["text"], ExpectedAnswer(0, 5));
  EXPECT_EQ(json::parse(client.Receive().body)["data"][0]["id"], "test-model");
}

TEST_F(HttpApi, ListsModelsTokenizesAndTellsItsHealth) {
  const json models = json::parse(Ask(endpoint(), "/v1/models").body);
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["max_model_len"], 2048);
  EXPECT_EQ(json::parse(Ask(endpoint(), "/v1/models/test-model").body)["object"], "model");
  EXPECT_EQ(Ask(endpoint(), "/v1/models/test%2Dmodel").status, 200);
  EXPECT_EQ(Ask(endpoint(), "/v1/models/other").status, 404);
  for (const std::string prefix : {"", "/v1"}) {
    const json tokens = json::parse(
        Post(prefix + "/tokenize", {{"prompt", "abc"}, {"return_token_strs", true}}).body);
    EXPECT_EQ(tokens["tokens"], (json{97, 98, 99}));
    EXPECT_EQ(tokens["count"], 3);
    EXPECT_EQ(tokens["token_strs"], (json{"a", "b", "c"}));
    const json text = json::parse(Post(prefix + "/detokenize", {{"tokens", {97, 98}}}).body);
    EXPECT_EQ(text["prompt"], "ab");
  }
  EXPECT_GT(json::parse(Post("/tokenize", ChatRequest(1)).body)["count"], 5);
  EXPECT_EQ(Ask(endpoint(), "/health").status, 200);
  EXPECT_EQ(Ask(endpoint(), "/ready").status, 200);
  const json version = json::parse(Ask(endpoint(), "/version").body);
  EXPECT_TRUE(version.contains("version"));
  EXPECT_EQ(version["numerics"], json{"exact"});
  cluster_.decode[0]->SetPhase(v1::WorkerState::DRAINING);
  EXPECT_TRUE(WaitUntil([&] { return Ask(endpoint(), "/ready").status == 503; }));
  EXPECT_THAT(Ask(endpoint(), "/ready").body,
              HasSubstr("not ready: 1 of 1 prefill workers, 0 of 1 decode workers ready"));
  EXPECT_EQ(Ask(endpoint(), "/health").status, 200);
}

}  // namespace
}  // namespace penstock
