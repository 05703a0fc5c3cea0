// Requests that are wrong, and what each is answered with: status, code, param and message. The
// table is the documentation of the API's errors.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/http/http_client.h"
#include "tests/router/service/cluster.h"

namespace penstock {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct Refusal {
  int status;
  std::string code;
  std::string param;  // empty: null
  std::string message;
};

struct BadField {
  std::string field;
  json value;
  Refusal refusal;
};

Refusal Value(std::string param, std::string message) {
  return {400, "invalid_value", std::move(param), std::move(message)};
}
Refusal Type(std::string param, std::string message) {
  return {400, "invalid_type", std::move(param), std::move(message)};
}
Refusal NotHere(std::string param, std::string message) {
  return {400, "unsupported_parameter", std::move(param), std::move(message)};
}

class HttpRefusals : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    cluster_ = new Cluster();
    ASSERT_TRUE(cluster_->WaitForReady());
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(cluster_->prefill[0]->calls() + cluster_->decode[0]->calls(), 0)
        << "no worker hears of a request that is refused";
    delete cluster_;
    cluster_ = nullptr;
  }

  static void Expect(const HttpReply& reply, const Refusal& refusal, const std::string& what) {
    SCOPED_TRACE(what.substr(0, 300));
    EXPECT_EQ(reply.status, refusal.status) << reply.body;
    EXPECT_TRUE(reply.complete);
    const json body = json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(body.is_object() && body.contains("error")) << reply.body;
    const json& error = body["error"];
    EXPECT_EQ(error["code"], refusal.code);
    EXPECT_EQ(error["param"], refusal.param.empty() ? json() : json(refusal.param)) << reply.body;
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(refusal.message));
    EXPECT_TRUE(error["type"].is_string());
    EXPECT_EQ(reply.headers.at("content-type"), "application/json");
    const bool retry = refusal.status == 503 || refusal.status == 408;
    EXPECT_EQ(reply.headers.at("x-should-retry"), retry ? "true" : "false");
  }

  static void ExpectField(const std::string& path, json request, const BadField& bad) {
    request[bad.field] = bad.value;
    const HttpReply reply = Ask(cluster_->router->http_endpoint(), path, request.dump());
    Expect(reply, bad.refusal, path + " " + bad.field + "=" + bad.value.dump());
  }

  static void ExpectRaw(const std::string& bytes, const Refusal& refusal) {
    HttpClient client(cluster_->router->http_endpoint());
    client.Send(bytes);
    Expect(client.Receive(), refusal, bytes);
  }

  static Cluster* cluster_;
};
Cluster* HttpRefusals::cluster_ = nullptr;

json ManyMessages(size_t count) {
  json messages = json::array();
  for (size_t i = 0; i < count; ++i) messages.push_back({{"role", "user"}, {"content", "a"}});
  return messages;
}

json Nested(int depth) {
  json value = 1;
  for (int i = 0; i < depth; ++i) value = json::array({value});
  return value;
}

// Fields of both kinds of completions.
std::vector<BadField> SharedFields() {
  return {
      {"model", "other", {404, "model_not_found", "model", "model \"other\" not found"}},
      {"model",
       std::string(127, 'm') + "\u00fc",  // cut before the last character, not in it
       {404, "model_not_found", "model", std::string(127, 'm') + "\" not found"}},
      {"logit_bias",
       {{std::string(63, 'k') + "\u00fc", 1}},
       Value("logit_bias", std::string(63, 'k') + "`, which is no token id")},
      {"cache_control",
       {{"type", "ephemeral"}, {"ttl", std::string(63, 't') + "\u00fc"}},
       Value("cache_control.ttl", std::string(63, 't') + "`; it may be 5m or 1h")},
      {"model", 5, Type("model", "model must be a string, not a number")},
      {"temperature", 2.5, Value("temperature", "temperature is 2.5; it must be in [0, 2]")},
      {"temperature", -1, Value("temperature", "must be in [0, 2]")},
      {"temperature", 1e300, Value("temperature", "temperature is inf")},
      {"temperature", "hot", Type("temperature", "must be a number, not a string")},
      {"top_p", 0, Value("top_p", "it must be in (0, 1]")},
      {"top_p", 1.5, Value("top_p", "top_p is 1.5")},
      {"top_p", json::array(), Type("top_p", "must be a number, not a list")},
      {"min_p", 1, Value("min_p", "it must be in [0, 1)")},
      {"top_k", -2, Value("top_k", "top_k is -2")},
      {"top_k", 1.5, Type("top_k", "must be an integer, not 1.5")},
      {"frequency_penalty", 3, Value("frequency_penalty", "it must be in [-2, 2]")},
      {"presence_penalty", -3, Value("presence_penalty", "it must be in [-2, 2]")},
      {"repetition_penalty", 0, Value("repetition_penalty", "it must be in (0, 10]")},
      {"seed", "x", Type("seed", "must be an integer, not a string")},
      {"seed", 1e30, Value("seed", "seed is 1e+30")},
      {"seed", UINT64_MAX, Value("seed", "seed is 18446744073709551615")},
      {"n", 0, Value("n", "n is 0")},
      {"n", 17, Value("n", "n is 17; it must be in [1, 16]")},
      {"n", 4e9, Value("n", "it must be in")},
      {"n", true, Type("n", "must be an integer, not a boolean")},
      {"max_tokens", 0, Value("max_tokens", "max_tokens is 0")},
      {"max_tokens", -1, Value("max_tokens", "max_tokens is -1")},
      {"max_tokens", "9", Type("max_tokens", "must be an integer, not a string")},
      {"max_completion_tokens", 0, Value("max_completion_tokens", "max_completion_tokens is 0")},
      {"min_tokens", 99,
       Value("min_tokens", "min_tokens is 99; it may be at most max_tokens, which is 5")},
      {"min_tokens", -1, Value("min_tokens", "min_tokens is -1")},
      {"stop", 5, Value("stop", "must be a string or a list")},
      {"stop", {"a", 5}, Value("stop[1]", "must be a string, not a number")},
      {"stop", "", Value("stop[0]", "stop[0] has 0 bytes; it must have 1 to 256")},
      {"stop", std::string(300, 'x'), Value("stop[0]", "has 300 bytes")},
      {"stop", std::vector<std::string>(17, "x"), Value("stop", "has 17 strings; the limit is 16")},
      {"stop_token_ids", {-1}, Value("stop_token_ids[0]", "is -1")},
      {"stop_token_ids", {99999}, Value("stop_token_ids", "the vocabulary of test-model ends at")},
      {"stop_token_ids", std::vector<int>(65, 1), Value("stop_token_ids", "the limit is 64")},
      {"stop_token_ids", "a", Type("stop_token_ids", "must be a list")},
      {"ignore_eos", 1, Type("ignore_eos", "must be true or false, not a number")},
      {"logit_bias", {{"a", 1}}, Value("logit_bias", "has the key `a`, which is no token id")},
      {"logit_bias", {{"-1", 1}}, Value("logit_bias", "which is no token id")},
      {"logit_bias", {{"65", "x"}}, Value("logit_bias.65", "must be a number, not a string")},
      {"logit_bias", {{"65", 200}}, Value("logit_bias[65]", "it must be in [-100, 100]")},
      {"logit_bias", {{"99999", 1}}, Value("logit_bias", "has token id 99999")},
      {"logit_bias", {1}, Type("logit_bias", "must be an object, not a list")},
      {"stream", "yes", Type("stream", "must be true or false")},
      {"stream_options",
       {{"include_usage", true}},
       Value("stream_options", "may only be set with \"stream\": true")},
      {"kv_policy", "lx16", Value("kv_policy", "is unknown; allowed are exact, near-lossless, i8")},
      {"kv_policy", "", Value("kv_policy", "is empty")},
      {"kv_policy", 8, Type("kv_policy", "must be a string, not a number")},
      {"kv_policy", "i8",
       Value("kv_policy", "no pair of workers supports it; supported: exact only;")},
      {"kv_policy", "blend:15",
       Value("kv_policy", "no pair of workers supports it; supported: exact only;")},
      {"blend_separator", "", Value("blend_separator", "is empty; it must have 1 to 64 bytes")},
      {"blend_separator", std::string(65, 's'), Value("blend_separator", "has 65 bytes")},
      {"blend_separator", 8, Type("blend_separator", "must be a string, not a number")},
      {"blend_separator", "#", Value("blend_separator", "divides the prompt into 1 pieces")},
      {"blend_parts", {0, 3}, Value("blend_parts", "is for tokens")},
      {"blend_parts", {"x"}, Type("blend_parts[0]", "must be an integer, not a string")},
      {"keep_marker", "", Value("keep_marker", "is empty; it must have 1 to 64 bytes")},
      {"keep_marker", std::string(65, 's'), Value("keep_marker", "has 65 bytes")},
      {"keep_marker", "#", Value("keep_marker", "is 0 times in the prompt")},
      {"keep_spans", {0, 3}, Value("keep_spans", "is for tokens")},
      {"keep_spans", "x", Type("keep_spans", "must be a list")},
      {"kv_policy", "snapkv:64@1-2", Value("kv_policy", "has spans behind its @")},
      {"cache_salt", "", Value("cache_salt", "has 0 bytes; it must have 1 to 128")},
      {"cache_salt", std::string(129, 's'), Value("cache_salt", "has 129 bytes")},
      {"cache_control",
       json("5m"),
       {400, "invalid_value", "cache_control", "must be an object, not a string"}},
      {"cache_control",
       {{"type", "durable"}},
       Value("cache_control.type", "must be \"ephemeral\"")},
      {"cache_control",
       {{"type", "ephemeral"}, {"ttl", "2d"}},
       Value("cache_control.ttl", "is `2d`; it may be 5m or 1h")},
      {"prompt_cache_key", std::string(129, 's'), Value("prompt_cache_key", "the limit is 128")},
      {"kv_transfer_params",
       {{"do_remote_prefill", true}},
       NotHere("kv_transfer_params", "is not taken from clients")},
      {"do_remote_decode", true, NotHere("do_remote_decode", "is not taken from clients")},
      {"bootstrap_host", "10.0.0.1", NotHere("bootstrap_host", "is not taken from clients")},
      {"chat_template", "{{ x }}", NotHere("chat_template", "the model's own is used")},
      {"functions", {{{"name", "f"}}}, NotHere("functions", "is not supported")},
      {"response_format",
       {{"type", "structural_tag"}},
       NotHere("response_format.type", "this server has text, json_object and json_schema")},
      {"modalities", {"audio"}, NotHere("modalities", "may only be [\"text\"]")},
      {"structural_tag", {{"a", 1}}, NotHere("structural_tag", "is not supported")},
      {"guided_regex", "(?=a)", Value("guided_regex", "look-around")},
      {"guided_json", {{"not", Json::object()}}, Value("guided_json", "has the keyword `not`")},
      {"add_special_tokens", 1, NotHere("add_special_tokens", "is set by the endpoint")},
      {"max_new_tokens", 5, NotHere("max_new_tokens", "use max_tokens")},
      {"length_penalty", 2,
       Value("length_penalty", "may only be set with \"use_beam_search\": true")},
      {"early_stopping", "never",
       Value("early_stopping", "may only be set with \"use_beam_search\": true")},
      {"num_beams", 4, NotHere("num_beams", "use use_beam_search and best_of")},
      {"user", Nested(70), {400, "invalid_json", "", "more than 64 levels deep"}},
      {"user", std::vector<int>(400'001, 1), {400, "invalid_json", "", "more than 400000 values"}},
      {"user",
       std::vector<json>(100'001, json::object()),
       {400, "invalid_json", "", "more than 100000 strings, lists, objects and fields"}},
  };
}

TEST_F(HttpRefusals, FieldsOfBothKinds) {
  const json chat = {{"messages", ManyMessages(1)}, {"max_tokens", 5}};
  const json text = {{"prompt", "a"}, {"max_tokens", 5}};
  for (const BadField& bad : SharedFields()) {
    ExpectField("/v1/chat/completions", chat, bad);
    ExpectField("/v1/completions", text, bad);
  }
}

// A number that both APIs can carry. Over gRPC its field has a message's name before its own.
struct Number {
  std::string message;
  std::string field;
  std::vector<double> values;
};

// The same text over both, but for that name.
TEST_F(HttpRefusals, NumbersOutsideTheirLimitsAsOverGrpc) {
  constexpr double kBig = 9223372036854775808.0;  // 2^63
  const std::vector<Number> numbers = {
      {"sampling", "temperature", {-0.001, 2.001, kBig, -kBig}},
      {"sampling", "top_p", {0, -0.001, 1.001, kBig, -kBig}},
      {"sampling", "min_p", {-0.001, 1, kBig, -kBig}},
      {"sampling", "frequency_penalty", {-2.001, 2.001, kBig, -kBig}},
      {"sampling", "presence_penalty", {-2.001, 2.001, kBig, -kBig}},
      {"sampling", "repetition_penalty", {0, -0.001, 10.001, kBig, -kBig}},
      {"sampling", "n", {0, 17}},
      {"stop", "min_tokens", {6, 2049}},
      {"stop", "max_tokens", {0, kMostMaxTokens + 1.0}},
  };
  for (const Number& number : numbers) {
    for (const double value : number.values) {
      SCOPED_TRACE(number.field + "=" + std::to_string(value));
      json body = {{"prompt", "a"}, {"max_tokens", 5}};
      const bool whole = number.message == "stop" || number.field == "n";
      body[number.field] = whole ? json(static_cast<uint64_t>(value)) : json(value);
      const HttpReply reply =
          Ask(cluster_->router->http_endpoint(), "/v1/completions", body.dump());
      EXPECT_EQ(reply.status, 400);
      const std::string said = json::parse(reply.body)["error"]["message"];
      EXPECT_THAT(said, ::testing::StartsWith(number.field + " is "));

      v1::GenerateRequest request = Request(5);
      google::protobuf::Message* part = request.mutable_sampling();
      if (number.message == "stop") part = request.mutable_stop();
      const auto* field = part->GetDescriptor()->FindFieldByName(number.field);
      if (whole) {
        part->GetReflection()->SetUInt32(part, field, static_cast<uint32_t>(value));
      } else {
        part->GetReflection()->SetFloat(part, field, static_cast<float>(value));
      }
      const grpc::Status status = Call(*cluster_->stub, request).ReadAll().status;
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
      EXPECT_EQ(status.error_message(), number.message + "." + said);
    }
  }
}

TEST_F(HttpRefusals, FieldsOfChats) {
  const json user = {{"role", "user"}, {"content", "a"}};
  const std::vector<BadField> cases = {
      {"messages", nullptr, Value("messages", "messages is needed")},
      {"messages", "hi", Type("messages", "must be a list, not a string")},
      {"messages", json::array(), Value("messages", "has 0 messages")},
      {"messages", ManyMessages(4097), Value("messages", "has 4097 messages")},
      {"messages", {"hi"}, Value("messages[0]", "must be an object, not a string")},
      {"messages", {{{"content", "a"}}}, Value("messages[0].role", "is needed")},
      {"messages", {{{"role", 5}, {"content", "a"}}}, Type("messages[0].role", "must be a string")},
      {"messages", {user, {{"role", "user"}}}, Value("messages[1].content", "is needed")},
      {"messages",
       {{{"role", "user"}, {"content", 5}}},
       Value("messages[0].content", "must be a string or a list of parts, not a number")},
      {"messages",
       {{{"role", "user"}, {"content", {5}}}},
       Value("messages[0].content[0]", "must be an object")},
      {"messages",
       {{{"role", "user"}, {"content", {{{"type", "image_url"}, {"image_url", "x"}}}}}},
       {400, "unsupported_content", "messages[0].content[0].type", "is `image_url`; only text"}},
      {"messages",
       {{{"role", "user"}, {"content", {{{"type", "text"}}}}}},
       Value("messages[0].content[0].text", "is needed")},
      {"messages",
       {{{"role", "assistant"},
         {"content", ""},
         {"tool_calls", {{{"id", "1"}, {"function", {{"name", "f"}}}}}}}},
       NotHere("messages[0].tool_calls", "are not supported by test-model: the chat template")},
      {"tools",
       {{{"type", "function"}, {"function", {{"name", "f"}}}}},
       NotHere("tools", "are not supported by test-model: the chat template")},
      {"tool_choice", "required", Value("tool_choice", "needs a list of tools")},
      {"messages", {{{"role", ""}, {"content", "a"}}}, Value("messages[0].role", "has 0 bytes")},
      {"messages",
       {{{"role", "pirate"}, {"content", "a"}}},
       Value("messages[0].role", "is `pirate`, which the chat template of test-model")},
      {"messages",
       {{{"role", "tool"}, {"content", "a"}, {"tool_call_id", "1"}}},
       Value("messages", "a tool message must follow an answer")},
      {"messages",
       {{{"role", "user"}, {"content", std::string(4000, 'a')}}},
       {400, "context_length_exceeded", "", "tokens; the context of test-model has 2048"}},
      {"messages",
       {{{"role", "user"}, {"content", std::string(1 << 20, 'a')}}},
       {400, "context_length_exceeded", "chat", "bytes; what fits in the 2048 tokens"}},
      {"top_logprobs", 5, Value("top_logprobs", "may only be set with \"logprobs\": true")},
      {"logprobs", 5, Type("logprobs", "must be true or false, not a number")},
      {"continue_final_message", true, NotHere("continue_final_message", "is not supported")},
      {"add_generation_prompt", "x", Type("add_generation_prompt", "must be true or false")},
      {"chat_template_kwargs", {{"odd", 1}}, Value("chat_template_kwargs.odd", "has no effect")},
  };
  const json chat = {{"messages", ManyMessages(1)}, {"max_tokens", 5}};
  for (const BadField& bad : cases) ExpectField("/v1/chat/completions", chat, bad);
  const json logprobs = {{"messages", ManyMessages(1)}, {"logprobs", true}};
  ExpectField("/v1/chat/completions", logprobs,
              {"top_logprobs", 21, Value("top_logprobs", "is 21; it must be in [0, 20]")});
}

TEST_F(HttpRefusals, FieldsOfTexts) {
  const std::vector<BadField> cases = {
      {"prompt", nullptr, Value("prompt", "prompt is needed")},
      {"prompt", 5, Value("prompt", "must be a string or a list of token ids, not a number")},
      {"prompt", "", Value("prompt", "is empty; a prompt is needed")},
      {"prompt", json::array(), Value("prompt", "is empty; a prompt is needed")},
      {"prompt", {"a", ""}, Value("prompt", "is empty")},
      {"prompt", {"a", 5}, Value("prompt[1]", "must be a string or a list of token ids")},
      {"prompt", {1, "a"}, Type("prompt[1]", "must be an integer, not a string")},
      {"prompt", {1, -1}, Value("prompt[1]", "is -1")},
      {"prompt", {1, 99999}, Value("prompt[1]", "is 99999; the vocabulary of test-model ends at")},
      {"prompt",
       std::vector<int>(2048, 65),
       {400, "context_length_exceeded", "", "the prompt has 2048 tokens; the context"}},
      {"prompt", std::vector<std::string>(17, "a"), Value("prompt", "has 17 prompts")},
      {"logprobs", 21, Value("logprobs", "is 21; it must be in [0, 20]")},
      {"logprobs", true, Type("logprobs", "must be an integer, not a boolean")},
      {"echo", "yes", Type("echo", "must be true or false")},
      {"best_of", 17, Value("best_of", "best_of is 17")},
      {"suffix", "z", NotHere("suffix", "is not supported")},
  };
  const json text = {{"prompt", "a"}, {"max_tokens", 5}};
  for (const BadField& bad : cases) ExpectField("/v1/completions", text, bad);
}

TEST_F(HttpRefusals, OtherPaths) {
  const std::string endpoint = cluster_->router->http_endpoint();
  Expect(Ask(endpoint, "/tokenize", R"({"a": 1})"), Value("prompt", "is needed, or messages"), "");
  Expect(Ask(endpoint, "/tokenize", R"({"prompt": 1})"), Type("prompt", "must be a string"), "");
  Expect(Ask(endpoint, "/detokenize", R"({"a": 1})"), Value("tokens", "is needed"), "");
  Expect(Ask(endpoint, "/detokenize", R"({"tokens": ["a"]})"), Type("tokens[0]", "integer"), "");
  Expect(Ask(endpoint, "/detokenize", R"({"tokens": [99999]})"),
         Value("tokens[0]", "is 99999; the vocabulary"), "");
  Expect(Ask(endpoint, "/v1/models/none"), {404, "model_not_found", "model", "not found"}, "");
  Expect(Ask(endpoint, "/v1/rerank", "{}"), {404, "unknown_url", "", "/v1/rerank"}, "");
  Expect(Ask(endpoint, "/v1/embeddings", "{}"), Value("input", "is needed"), "");
  Expect(Ask(endpoint, "/v1/embeddings", R"({"input": [99999]})"),
         Value("input[0]", "is 99999; the vocabulary"), "");
  Expect(Ask(endpoint, "/v1/embeddings", R"({"input": "a"})"),
         Value("model", "gives no embeddings: its checkpoint has no modules.json"), "");
  Expect(Ask(endpoint, "/metrics"), {404, "unknown_url", "", "/metrics"}, "");
  Expect(Ask(endpoint, "/v1/completions"), {405, "method_not_allowed", "", "with POST"}, "");
  Expect(Ask(endpoint, "/health", "{}"), {405, "method_not_allowed", "", "with GET"}, "");
}

TEST_F(HttpRefusals, Bodies) {
  const std::string endpoint = cluster_->router->http_endpoint();
  const auto refused = [&](const std::string& body, const std::string& message) {
    Expect(Ask(endpoint, "/v1/completions", body), {400, "invalid_json", "", message}, body);
  };
  refused("{", "invalid JSON at byte");
  refused("nonsense", "invalid JSON at byte");
  refused(R"({"prompt": "a"} x)", "invalid JSON at byte");
  refused(R"({"prompt": "a",})", "invalid JSON");
  refused(R"({"temperature": NaN})", "invalid JSON");
  refused(R"({"temperature": 1e999})", "number out of range");
  refused("{\"prompt\": \"\xff\"}", "invalid JSON");
  refused(R"({"prompt": "\ud800"})", "invalid JSON");
  refused(R"({"prompt": "a", "prompt": "b"})", "the key `prompt` is there twice");
  refused(std::string(100'000, '['), "more than 64 levels deep");
  refused(R"({"seed": )" + std::string(4'000'000, '1') + "}", "number out of range");
  Expect(Ask(endpoint, "/v1/completions", "[]"),
         {400, "invalid_type", "", "must be a JSON object, not a list"}, "[]");
}

TEST_F(HttpRefusals, Framing) {
  const auto bad = [](int status, std::string message) {
    return Refusal{status, "bad_request", "", std::move(message)};
  };
  const std::string post = "POST /v1/completions HTTP/1.1\r\nHost: a\r\n";
  const std::string type = "Content-Type: application/json\r\n";
  ExpectRaw("NONSENSE\r\n\r\n", bad(400, "METHOD TARGET"));
  ExpectRaw("GET /health HTTP/2.0\r\nHost: a\r\n\r\n", bad(505, "HTTP/1.1 or HTTP/1.0"));
  ExpectRaw("GET /health FTP/1.1\r\nHost: a\r\n\r\n", bad(400, "version"));
  ExpectRaw("GET health HTTP/1.1\r\nHost: a\r\n\r\n", bad(400, "path that starts with /"));
  ExpectRaw("GET /he\x01lth HTTP/1.1\r\nHost: a\r\n\r\n", bad(400, "plain ASCII"));
  ExpectRaw("G@T /health HTTP/1.1\r\nHost: a\r\n\r\n", bad(400, "method is not a token"));
  ExpectRaw("GET /health HTTP/1.1\r\n\r\n", bad(400, "one Host header"));
  ExpectRaw("GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", bad(400, "one Host header"));
  ExpectRaw("GET /health HTTP/1.1\r\nHost: a\r\nBad Name: b\r\n\r\n", bad(400, "Name: value"));
  ExpectRaw("GET /health HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", bad(400, "Name: value"));
  ExpectRaw("GET /health HTTP/1.1\r\nHost: a\r\nX: b\x02\r\n\r\n", bad(400, "control character"));
  ExpectRaw("GET /health HTTP/1.1\r\nHost: a\r\nX: b\nY: c\r\n\r\n", bad(400, "control character"));
  ExpectRaw("GET /" + std::string(5000, 'a') + " HTTP/1.1\r\nHost: a\r\n\r\n",
            bad(414, "has 5001 bytes; the limit is 4096"));
  ExpectRaw("GET /" + std::string(20000, 'a'), bad(414, "more than 16384 bytes"));
  ExpectRaw("GET /health HTTP/1.1\r\nHost: a\r\nX: " + std::string(20000, 'a') + "\r\n\r\n",
            bad(431, "more than 16384 bytes together"));
  std::string headers;
  for (int i = 0; i < 101; ++i) headers += "A: b\r\n";
  ExpectRaw("GET /health HTTP/1.1\r\n" + headers + "\r\n", bad(431, "more than 100 headers"));
  ExpectRaw(post + type + "Content-Length: x\r\n\r\n", bad(400, "not a number of bytes"));
  ExpectRaw(post + type + "Content-Length: -1\r\n\r\n", bad(400, "not a number of bytes"));
  ExpectRaw(post + type + "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", bad(400, "several"));
  ExpectRaw(post + type + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            bad(400, "several"));
  ExpectRaw(post + type + "Transfer-Encoding: gzip\r\n\r\n", bad(501, "chunked"));
  ExpectRaw(post + type + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", bad(400, "hexadecimal"));
  ExpectRaw(post + type + "Transfer-Encoding: chunked\r\n\r\n-5\r\n", bad(400, "hexadecimal"));
  ExpectRaw(post + type + "Transfer-Encoding: chunked\r\n\r\n1\r\nabc", bad(400, "longer than"));
  ExpectRaw(post + type + "Expect: tea\r\n\r\n", bad(417, "100-continue"));
  ExpectRaw(post + "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
            bad(415, "must be JSON"));
  ExpectRaw(post + "Content-Length: 2\r\n\r\n{}", bad(415, "must be JSON"));
  const Refusal too_large{413, "request_too_large", "", "the limit is 4194304"};
  ExpectRaw(post + type + "Content-Length: 1073741824\r\n\r\n", too_large);
  ExpectRaw(post + type + "Transfer-Encoding: chunked\r\n\r\n400001\r\n",
            {413, "request_too_large", "", "more than 4194304 bytes"});
  ExpectRaw(post + type + "X-Request-Id: " + std::string(129, 'x') +
                "\r\nContent-Length: 15\r\n\r\n{\"prompt\": \"a\"}",
            Value("x-request-id", "at most 128 printable ASCII characters"));
}

}  // namespace
}  // namespace penstock
