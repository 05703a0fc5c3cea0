#include "router/responses/response_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using ::testing::ElementsAre;

v1::Usage UsageOf(uint32_t prompt, uint32_t cached, uint32_t output) {
  v1::Usage usage;
  usage.set_prompt_tokens(prompt);
  usage.set_cached_tokens(cached);
  usage.set_completion_tokens(output);
  return usage;
}

v1::Chunk TextChunk(const std::string& text) {
  v1::Chunk chunk;
  chunk.set_text(text);
  return chunk;
}

v1::Chunk CallChunk(const std::string& id, const std::string& name, const std::string& arguments) {
  v1::Chunk chunk;
  v1::ToolCallPiece& piece = *chunk.add_tool_calls();
  piece.set_id(id);
  piece.set_name(name);
  piece.set_arguments(arguments);
  return chunk;
}

class ResponseWriterTest : public ::testing::Test {
 protected:
  void End(v1::FinishReason reason) {
    v1::Final ending;
    ending.set_finish_reason(reason);
    writer_.AppendFinal(ending, out_);
    writer_.AppendEnd(UsageOf(12, 8, 3), out_);
  }

  // The data of the events so far, whose names and numbers are checked.
  std::vector<Json> Events() const {
    std::vector<Json> events;
    std::string_view text = out_;
    while (!text.empty()) {
      const size_t line = text.find('\n'), end = text.find("\n\n");
      const std::string name(text.substr(7, line - 7));
      events.push_back(Json::parse(text.substr(line + 7, end - line - 7)));
      EXPECT_EQ(events.back()["type"], name);
      EXPECT_EQ(events.back()["sequence_number"], events.size() - 1);
      text.remove_prefix(end + 2);
    }
    return events;
  }

  // The events' names without "response.", behind the first two.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const Json& event : Events()) {
      names.push_back(event["type"].get<std::string>().substr(sizeof("response.") - 1));
    }
    EXPECT_EQ(names[0], "created");
    EXPECT_EQ(names[1], "in_progress");
    names.erase(names.begin(), names.begin() + 2);
    return names;
  }

  ResponseWriter writer_{{.id = "00", .model = "tiny", .created = 5, .request = EchoMembers({})}};
  std::string out_;
};

TEST_F(ResponseWriterTest, StreamsAMessage) {
  writer_.AppendChunk(TextChunk("a \"river\"\n"), out_);
  writer_.AppendChunk(TextChunk("é"), out_);
  End(v1::STOP);
  EXPECT_THAT(Names(), ElementsAre("output_item.added", "content_part.added", "output_text.delta",
                                   "output_text.delta", "output_text.done", "content_part.done",
                                   "output_item.done", "completed"));
  const std::vector<Json> events = Events();
  const Json& created = events[0]["response"];
  EXPECT_EQ(created["id"], "resp_00");
  EXPECT_EQ(created["object"], "response");
  EXPECT_EQ(created["created_at"], 5);
  EXPECT_EQ(created["status"], "in_progress");
  EXPECT_EQ(created["output"], Json::array());
  EXPECT_TRUE(created["usage"].is_null());
  EXPECT_EQ(events[2]["item"]["content"], Json::array());
  EXPECT_EQ(events[2]["item"]["status"], "in_progress");
  EXPECT_EQ(events[3]["part"]["text"], "");
  EXPECT_EQ(events[4]["delta"], "a \"river\"\n");
  EXPECT_EQ(events[6]["text"], "a \"river\"\né");
  for (size_t i = 2; i < 9; ++i) EXPECT_EQ(events[i]["output_index"], 0) << i;
  for (size_t i = 3; i < 8; ++i) {
    EXPECT_EQ(events[i]["item_id"], events[2]["item"]["id"]) << i;
    EXPECT_EQ(events[i]["content_index"], 0) << i;
  }
  const Json& response = events.back()["response"];
  EXPECT_EQ(response["id"], "resp_00");
  EXPECT_EQ(response["status"], "completed");
  EXPECT_TRUE(response["error"].is_null());
  EXPECT_TRUE(response["incomplete_details"].is_null());
  EXPECT_EQ(response["output"], Json::array({events[8]["item"]}));
  EXPECT_EQ(response["output"][0]["content"], Json::parse(R"([{"type": "output_text",
      "text": "a \"river\"\né", "annotations": [], "logprobs": []}])"));
  EXPECT_EQ(response["usage"], Json::parse(R"({"input_tokens": 12, "output_tokens": 3,
      "total_tokens": 15, "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 0},
      "output_tokens_details": {"reasoning_tokens": 0}})"));
}

TEST_F(ResponseWriterTest, StreamsReasoningAMessageAndCalls) {
  v1::Chunk first = TextChunk("I look.");
  first.set_reasoning("Hm.");
  writer_.AppendChunk(first, out_);
  writer_.AppendChunk(CallChunk("call_1", "f", R"({"a": )"), out_);
  writer_.AppendChunk(CallChunk("", "", "1}"), out_);
  writer_.AppendChunk(CallChunk("call_2", "g", "{}"), out_);
  End(v1::TOOL_CALLS);
  EXPECT_THAT(Names(),
              ElementsAre("output_item.added", "content_part.added", "reasoning_text.delta",
                          "reasoning_text.done", "content_part.done", "output_item.done",  //
                          "output_item.added", "content_part.added", "output_text.delta",
                          "output_text.done", "content_part.done", "output_item.done",  //
                          "output_item.added", "function_call_arguments.delta",
                          "function_call_arguments.delta", "function_call_arguments.done",
                          "output_item.done",  //
                          "output_item.added", "function_call_arguments.delta",
                          "function_call_arguments.done", "output_item.done", "completed"));
  const std::vector<Json> events = Events();
  EXPECT_EQ(events[3]["part"], Json::parse(R"({"type": "reasoning_text", "text": ""})"));
  EXPECT_EQ(events[14]["item"], Json::parse(R"({"type": "function_call", "id": "fc_0002",
      "status": "in_progress", "call_id": "call_1", "name": "f", "arguments": ""})"));
  EXPECT_EQ(events[17]["arguments"], R"({"a": 1})");
  EXPECT_EQ(events[17]["name"], "f");
  EXPECT_FALSE(events[17].contains("content_index"));
  EXPECT_EQ(events[20]["output_index"], 3);
  EXPECT_EQ(events.back()["response"]["output"], Json::parse(R"([
      {"type": "reasoning", "id": "rs_0000", "status": "completed", "summary": [],
       "content": [{"type": "reasoning_text", "text": "Hm."}]},
      {"type": "message", "id": "msg_0001", "status": "completed", "role": "assistant",
       "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
      {"type": "function_call", "id": "fc_0002", "status": "completed", "call_id": "call_1",
       "name": "f", "arguments": "{\"a\": 1}"},
      {"type": "function_call", "id": "fc_0003", "status": "completed", "call_id": "call_2",
       "name": "g", "arguments": "{}"}])"));
}

TEST_F(ResponseWriterTest, AnAnswerThatIsCutIsIncomplete) {
  writer_.AppendChunk(TextChunk("a"), out_);
  writer_.AppendChunk(CallChunk("call_1", "f", R"({"a")"), out_);
  End(v1::LENGTH);
  EXPECT_EQ(Names().back(), "incomplete");
  const Json response = Events().back()["response"];
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["output"][0]["status"], "completed");
  EXPECT_EQ(response["output"][1]["status"], "incomplete");
  EXPECT_EQ(response["output"][1]["arguments"], R"({"a")");
}

TEST_F(ResponseWriterTest, AnEmptyAnswerIsAMessageWithoutText) {
  End(v1::STOP);
  EXPECT_THAT(Names(), ElementsAre("output_item.added", "content_part.added", "output_text.done",
                                   "content_part.done", "output_item.done", "completed"));
  EXPECT_EQ(Events().back()["response"]["output"][0]["content"][0]["text"], "");
}

TEST_F(ResponseWriterTest, AFailureIsTheLastEventAndHasWhatWasThere) {
  writer_.AppendChunk(TextChunk("a"), out_);
  writer_.AppendError(absl::InternalError("secret of the cluster"), out_);
  const Json event = Events().back();
  EXPECT_EQ(event["type"], "response.failed");
  EXPECT_EQ(event["response"]["status"], "failed");
  EXPECT_EQ(event["response"]["error"]["code"], "server_error");
  EXPECT_EQ(event["response"]["output"][0]["status"], "incomplete");
  EXPECT_EQ(event["response"]["output"][0]["content"][0]["text"], "a");
  EXPECT_EQ(out_.find("secret"), std::string::npos);
}

// An answer as a stream and as one object has the same output.
TEST_F(ResponseWriterTest, AWholeAnswerIsTheStreamsLastObject) {
  for (const v1::FinishReason reason : {v1::STOP, v1::LENGTH, v1::TOOL_CALLS}) {
    for (int parts = 0; parts < 8; ++parts) {
      SCOPED_TRACE(fmt::format("reason {}, parts {}", static_cast<int>(reason), parts));
      v1::GenerateUnaryResponse answer;
      *answer.mutable_usage() = UsageOf(12, 8, 3);
      v1::Choice& choice = *answer.add_choices();
      choice.set_finish_reason(reason);
      v1::Chunk chunk;
      if ((parts & 1) != 0) chunk.set_reasoning("Hm.");
      if ((parts & 2) != 0) chunk.set_text("text");
      if ((parts & 4) != 0) {
        chunk.MergeFrom(CallChunk("call_1", "f", "{}"));
        v1::ToolCall& call = *choice.add_tool_calls();
        call.set_id("call_1");
        call.set_name("f");
        call.set_arguments("{}");
      }
      choice.set_reasoning(chunk.reasoning());
      choice.set_text(chunk.text());
      const ResponseStyle style{
          .id = "00", .model = "tiny", .created = 5, .request = EchoMembers({})};
      ResponseWriter streams(style);
      std::string events;
      streams.AppendChunk(chunk, events);
      v1::Final ending;
      ending.set_finish_reason(reason);
      streams.AppendFinal(ending, events);
      events.clear();
      streams.AppendEnd(answer.usage(), events);
      const size_t data = events.find("\ndata: ") + 7;
      EXPECT_EQ(Json::parse(ResponseWriter(style).Whole(answer)),
                Json::parse(events.substr(data))["response"]);
    }
  }
}

}  // namespace
}  // namespace penstock
