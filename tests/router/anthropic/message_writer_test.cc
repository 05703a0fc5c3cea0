#include "router/anthropic/message_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/anthropic/error.h"
#include "router/request/error_detail.h"
#include "router/request/json.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

// The names of the events, and their data, which must name the event as well.
std::vector<std::pair<std::string, Json>> MessageEvents(std::string_view text) {
  std::vector<std::pair<std::string, Json>> events;
  while (!text.empty()) {
    const size_t line = text.find('\n'), end = text.find("\n\n");
    const std::string name(text.substr(7, line - 7));
    events.emplace_back(name, Json::parse(text.substr(line + 7, end - line - 7)));
    EXPECT_EQ(events.back().second["type"], name);
    text.remove_prefix(end + 2);
  }
  return events;
}

v1::Usage UsageOf(uint32_t prompt, uint32_t cached, uint32_t pinned, uint32_t output) {
  v1::Usage usage;
  usage.set_prompt_tokens(prompt);
  usage.set_cached_tokens(cached);
  usage.set_pinned_tokens(pinned);
  usage.set_completion_tokens(output);
  return usage;
}

TEST(MessageUsage, InputTokensSumToThePrompt) {
  const struct {
    uint32_t prompt, cached, pinned;
    uint32_t input, written, read;
  } cases[] = {{100, 0, 0, 100, 0, 0},    {100, 64, 0, 36, 0, 64},  {100, 0, 80, 20, 80, 0},
               {100, 64, 80, 20, 16, 64}, {100, 80, 64, 20, 0, 80}, {100, 0, 100, 0, 100, 0}};
  for (const auto& one : cases) {
    const Json usage =
        Json::parse(MessageUsageJson(UsageOf(one.prompt, one.cached, one.pinned, 5), 5, 300));
    EXPECT_EQ(usage["input_tokens"], one.input);
    EXPECT_EQ(usage["cache_creation_input_tokens"], one.written);
    EXPECT_EQ(usage["cache_read_input_tokens"], one.read);
    EXPECT_EQ(usage["cache_creation"]["ephemeral_5m_input_tokens"], one.written);
    EXPECT_EQ(usage["output_tokens"], 5);
  }
  const std::string of_hour = MessageUsageJson(UsageOf(9, 0, 8, 1), 1, 3600);
  EXPECT_EQ(Json::parse(of_hour)["cache_creation"]["ephemeral_1h_input_tokens"], 8);
  const std::string of_both = MessageUsageJson(UsageOf(9, 0, 8, 1), 1, std::nullopt);
  EXPECT_TRUE(Json::parse(of_both)["cache_creation"].is_null());
}

class MessageWriterTest : public ::testing::Test {
 protected:
  static v1::Chunk ChunkOf(const std::string& text) {
    v1::Chunk chunk;
    chunk.set_text(text);
    return chunk;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& [name, data] : MessageEvents(out_)) names.push_back(name);
    return names;
  }

  MessageWriter writer_{{.id = "msg_1", .model = "tiny", .request_id = "req-1", .max_tokens = 2}};
  std::string out_;
};

TEST_F(MessageWriterTest, StreamsOneBlockOfText) {
  v1::Chunk first = ChunkOf("a \"river\"\n");
  *first.mutable_prompt_usage() = UsageOf(12, 8, 0, 0);
  writer_.AppendChunk(first, out_);
  writer_.AppendChunk(ChunkOf("é"), out_);
  v1::Final ending;
  ending.set_finish_reason(v1::LENGTH);
  writer_.AppendFinal(ending, out_);
  writer_.AppendEnd(UsageOf(12, 8, 0, 2), out_);
  EXPECT_THAT(Names(), ElementsAre("message_start", "content_block_start", "content_block_delta",
                                   "content_block_delta", "content_block_stop", "message_delta",
                                   "message_stop"));
  const auto events = MessageEvents(out_);
  EXPECT_EQ(events[0].second["message"]["usage"]["cache_read_input_tokens"], 8);
  EXPECT_EQ(events[0].second["message"]["usage"]["input_tokens"], 4);
  EXPECT_EQ(events[2].second["delta"]["text"], "a \"river\"\n");
  EXPECT_EQ(events[3].second["delta"]["text"], "é");
  EXPECT_EQ(events[5].second["delta"]["stop_reason"], "max_tokens");
  EXPECT_EQ(events[5].second["usage"]["output_tokens"], 2);
}

TEST_F(MessageWriterTest, AnEmptyAnswerHasNoBlock) {
  v1::Final ending;
  ending.set_finish_reason(v1::STOP);
  ending.set_matched_stop_string("END");
  writer_.AppendFinal(ending, out_);
  writer_.AppendEnd(UsageOf(12, 0, 0, 1), out_);
  EXPECT_THAT(Names(), ElementsAre("message_start", "message_delta", "message_stop"));
  const auto events = MessageEvents(out_);
  EXPECT_EQ(events[0].second["message"]["usage"]["input_tokens"], 12);
  EXPECT_EQ(events[1].second["delta"]["stop_reason"], "stop_sequence");
  EXPECT_EQ(events[1].second["delta"]["stop_sequence"], "END");
}

TEST_F(MessageWriterTest, AFailureIsTheLastEvent) {
  writer_.AppendChunk(ChunkOf("a"), out_);
  writer_.AppendError(absl::InternalError("secret of the cluster"), out_);
  const auto events = MessageEvents(out_);
  EXPECT_EQ(events.back().first, "error");
  EXPECT_EQ(events.back().second["error"]["type"], "api_error");
  EXPECT_EQ(out_.find("secret"), std::string::npos);
}

TEST_F(MessageWriterTest, AWholeAnswerSaysWhyItEnded) {
  v1::GenerateUnaryResponse answer;
  v1::Choice& choice = *answer.add_choices();
  choice.set_text("one");
  choice.set_finish_reason(v1::STOP);
  *answer.mutable_usage() = UsageOf(12, 0, 0, 1);
  Json json = Json::parse(writer_.Whole(answer));
  EXPECT_EQ(json["content"], Json::parse(R"([{"type": "text", "text": "one"}])"));
  EXPECT_EQ(json["stop_reason"], "end_turn");
  EXPECT_TRUE(json["stop_sequence"].is_null());
  choice.clear_text();
  choice.set_finish_reason(v1::LENGTH);
  json = Json::parse(writer_.Whole(answer));
  EXPECT_EQ(json["content"], Json::array());
  EXPECT_EQ(json["stop_reason"], "model_context_window_exceeded") << "one of two tokens";
}

TEST_F(MessageWriterTest, HasABlockForEachPartOfAStream) {
  v1::Chunk chunk;
  chunk.set_reasoning("Hm.");
  chunk.set_text("I look.");
  std::string out;
  writer_.AppendChunk(chunk, out);
  v1::Chunk calls;
  for (const char* id : {"call_1", "call_2"}) {
    v1::ToolCallPiece& piece = *calls.add_tool_calls();
    piece.set_id(id);
    piece.set_name("f");
    piece.set_arguments(R"({"a": )");
  }
  writer_.AppendChunk(calls, out);
  v1::Chunk rest;
  rest.add_tool_calls()->set_arguments("1}");
  writer_.AppendChunk(rest, out);
  v1::Final ending;
  ending.set_finish_reason(v1::TOOL_CALLS);
  writer_.AppendFinal(ending, out);
  writer_.AppendEnd(UsageOf(9, 0, 0, 1), out);
  std::vector<std::string> shown;
  for (const auto& [name, data] : MessageEvents(out)) {
    if (name == "content_block_start") shown.push_back(data["content_block"].dump());
    if (name == "content_block_delta") shown.push_back(data["delta"].dump());
    if (name == "content_block_stop") shown.push_back("end " + data["index"].dump());
    if (name == "message_delta") shown.push_back(data["delta"]["stop_reason"]);
  }
  EXPECT_THAT(
      shown,
      ElementsAre(R"({"signature":"","thinking":"","type":"thinking"})",
                  R"({"thinking":"Hm.","type":"thinking_delta"})",
                  R"({"signature":"","type":"signature_delta"})", "end 0",
                  R"({"text":"","type":"text"})", R"({"text":"I look.","type":"text_delta"})",
                  "end 1", R"({"id":"toolu_1","input":{},"name":"f","type":"tool_use"})",
                  R"({"partial_json":"{\"a\": ","type":"input_json_delta"})", "end 2",
                  R"({"id":"toolu_2","input":{},"name":"f","type":"tool_use"})",
                  R"({"partial_json":"{\"a\": ","type":"input_json_delta"})",
                  R"({"partial_json":"1}","type":"input_json_delta"})", "end 3", "tool_use"));
}

TEST_F(MessageWriterTest, HasABlockForEachPartOfAWholeAnswer) {
  v1::GenerateUnaryResponse answer;
  v1::Choice& choice = *answer.add_choices();
  choice.set_reasoning("Hm.");
  for (const char* arguments : {R"({"a": 1})", R"({"a": )"}) {
    v1::ToolCall& call = *choice.add_tool_calls();
    call.set_id("call_1");
    call.set_name("f");
    call.set_arguments(arguments);
  }
  choice.set_finish_reason(v1::TOOL_CALLS);
  const Json json = Json::parse(writer_.Whole(answer));
  EXPECT_EQ(json["content"], Json::parse(R"([
      {"type": "thinking", "thinking": "Hm.", "signature": ""},
      {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
      {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}])"));
  EXPECT_EQ(json["stop_reason"], "tool_use");
}

TEST(MessageErrors, HaveTheStatusThatClientsActOn) {
  const struct {
    absl::Status status;
    int code;
    const char* type;
  } cases[] = {
      {absl::UnauthenticatedError("x"), 401, "authentication_error"},
      {absl::PermissionDeniedError("x"), 403, "permission_error"},
      {absl::NotFoundError("x"), 404, "not_found_error"},
      {WithDetail(absl::ResourceExhaustedError("x"), {.reason = kReasonQuota}), 429,
       "rate_limit_error"},
      {absl::ResourceExhaustedError("x"), 529, "overloaded_error"},
      {absl::UnavailableError("x"), 529, "overloaded_error"},
      {absl::DeadlineExceededError("x"), 504, "timeout_error"},
      {absl::InternalError("x"), 500, "api_error"},
  };
  for (const auto& one : cases) {
    const HttpResponse response = MessageErrorResponse(one.status, "req-1");
    EXPECT_EQ(response.status, one.code) << one.type;
    EXPECT_EQ(Json::parse(response.body)["error"]["type"], one.type);
  }
}

}  // namespace
}  // namespace penstock
