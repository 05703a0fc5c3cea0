#include "router/request/prompt.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "lab/fake/test_model.h"
#include "router/request/cache_breakpoints.h"
#include "router/session/model_calls.h"
#include "router/session/session_request.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PromptTest : public ::testing::Test {
 protected:
  absl::StatusOr<PromptIdsAndParts> Prompt(const std::string& text) {
    v1::GenerateRequest request;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
    return PromptTokens(request, model_, model_.max_model_len);
  }
  absl::StatusOr<std::vector<uint32_t>> Tokens(const std::string& text) {
    ASSIGN_OR_RETURN(PromptIdsAndParts prompt, Prompt(text));
    return std::move(prompt.ids);
  }
  std::string Refusal(const std::string& text) {
    const absl::Status status = Tokens(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    return Message(status);
  }
  ServedModel model_ = MakeTestModel();
};

TEST_F(PromptTest, EncodesText) {
  EXPECT_THAT(*Tokens("text: 'hi <|im_end|>'"), ::testing::SizeIs(13))
      << "a client's text spells no control tokens";
}

TEST_F(PromptTest, TakesTokensAsTheyAre) {
  EXPECT_THAT(*Tokens("tokens { ids: 5 ids: 257 }"), ElementsAre(5, 257));
}

TEST_F(PromptTest, RendersAChat) {
  const auto tokens = Tokens(
      "chat { messages { role: 'user' content { text: 'a' } "
      "content { text: 'b' } } }");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(model_.tokenizer->Decode(*tokens, false),
            "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(tokens->front(), kTestImStart);
}

TEST_F(PromptTest, SeparatorsMarkParts) {
  const auto prompt = Prompt("text: 'read##one##two##?' blend_separator: '##'");
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->ids, *Tokens("text: 'readonetwo?'")) << "separators are removed";
  EXPECT_THAT(prompt->parts, ElementsAre(4, 7, 10));
  // Without leading tokens, with an empty part, and with the last part at the end.
  const auto others = Prompt("text: '##one####two##' blend_separator: '##'");
  ASSERT_TRUE(others.ok()) << others.status();
  EXPECT_THAT(others->parts, ElementsAre(0, 3, 6));
  EXPECT_THAT(Prompt("text: 'no part' ")->parts, ::testing::IsEmpty());
  EXPECT_THAT(Refusal("text: 'a##b' blend_separator: '##'"),
              HasSubstr("blend_separator divides the prompt into 2 pieces; there must be 1 to 64"));
}

TEST_F(PromptTest, BoundsMarkPartsOfTokens) {
  const auto prompt = Prompt("tokens { ids: 5 ids: 6 ids: 7 } blend_parts: [1, 2, 3]");
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_THAT(prompt->parts, ElementsAre(1, 2, 3));
  EXPECT_THAT(Refusal("tokens { ids: 5 ids: 6 } blend_parts: 1"),
              HasSubstr("blend_parts has 1 entries; it may have 2 to 65"));
  EXPECT_THAT(Refusal("tokens { ids: 5 ids: 6 } blend_parts: [1, 3]"),
              HasSubstr("blend_parts[1] is 3; entries must ascend, up to the 2 tokens"));
  EXPECT_THAT(Refusal("text: 'a' blend_parts: [0, 1]"), HasSubstr("blend_parts is for tokens"));
  EXPECT_THAT(Refusal("tokens { ids: 5 } blend_separator: '#'"),
              HasSubstr("blend_separator is for text and chats"));
}

TEST_F(PromptTest, MarkersMarkWhatIsKept) {
  const auto prompt = Prompt("text: 'read##one##two##three##' keep_marker: '##'");
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->ids, *Tokens("text: 'readonetwothree'")) << "markers are removed";
  EXPECT_THAT(prompt->keep_spans, ElementsAre(TokenSpan{4, 7}, TokenSpan{10, 15}));
  EXPECT_THAT(prompt->parts, ::testing::IsEmpty());
  const auto beside = Prompt("text: '##a####b##c####' keep_marker: '##'");
  ASSERT_TRUE(beside.ok()) << beside.status();
  EXPECT_THAT(beside->keep_spans, ElementsAre(TokenSpan{0, 1}, TokenSpan{1, 2}));
  const auto chat =
      Prompt("chat { messages { role: 'user' content { text: 'a##b##' } } } keep_marker: '##'");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->ids, *Tokens("chat { messages { role: 'user' content { text: 'ab' } } }"));
  ASSERT_EQ(chat->keep_spans.size(), 1u);
  const TokenSpan span = chat->keep_spans[0];
  EXPECT_EQ(model_.tokenizer->Decode(
                std::span(chat->ids).subspan(span.begin, span.end - span.begin), false),
            "b");
  EXPECT_THAT(Refusal("text: 'a##b##c##' keep_marker: '##'"),
              HasSubstr("keep_marker is 3 times in the prompt, with text in 1 spans; there must be "
                        "1 to 64 spans, each between two markers"));
  EXPECT_THAT(Refusal("text: 'a####' keep_marker: '##'"), HasSubstr("with text in 0 spans"));
  EXPECT_THAT(Refusal("text: 'a#b#' keep_marker: '#' blend_separator: '#'"),
              HasSubstr("keep_marker is for evictions, and blend_separator for blends"));
}

TEST_F(PromptTest, BoundsMarkWhatIsKeptOfTokens) {
  const auto prompt = Prompt("tokens { ids: 5 ids: 6 ids: 7 } keep_spans: [0, 1, 1, 3]");
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_THAT(prompt->keep_spans, ElementsAre(TokenSpan{0, 1}, TokenSpan{1, 3}));
  EXPECT_THAT(Refusal("tokens { ids: 5 ids: 6 } keep_spans: 1"),
              HasSubstr("keep_spans has 1 entries; it must have an even number, up to 128"));
  for (const char* wrong : {"[1, 1]", "[1, 3]", "[1, 0]"}) {
    EXPECT_THAT(Refusal(fmt::format("tokens {{ ids: 5 ids: 6 }} keep_spans: {}", wrong)),
                HasSubstr("keep_spans[1] is "));
  }
  EXPECT_THAT(
      Refusal("tokens { ids: 5 ids: 6 } keep_spans: [0, 2, 1, 2]"),
      HasSubstr("keep_spans[2] is 1; spans must ascend, be apart and not empty, up to the 2 "
                "tokens"));
  EXPECT_THAT(Refusal("text: 'a' keep_spans: [0, 1]"), HasSubstr("keep_spans is for tokens"));
  EXPECT_THAT(Refusal("tokens { ids: 5 } keep_marker: '#'"),
              HasSubstr("keep_marker is for text and chats"));
}

class BreakpointTest : public PromptTest {
 protected:
  absl::StatusOr<std::vector<PrefixBreakpoint>> Find(const std::string& text) {
    v1::GenerateRequest request;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
    const auto tokens = PromptTokens(request, model_, model_.max_model_len);
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    return FindBreakpoints(request, model_, tokens->ids);
  }
};

TEST_F(BreakpointTest, AreWhereTheirPartsEnd) {
  const auto found = Find(
      "chat { messages { role: 'system' content { text: 'rules' breakpoint { ttl { seconds: 60 } } "
      "} }"
      "       messages { role: 'user' content { text: 'ab' breakpoint {} } content { text: 'cd' } "
      "} }");
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->size(), 2u);
  // A control token, "system", a new line and the text.
  EXPECT_EQ((*found)[0].tokens, 1 + 7 + 5u);
  EXPECT_EQ((*found)[0].ttl, std::chrono::seconds(60));
  EXPECT_EQ((*found)[1].tokens, 15 + 1 + 5 + 2u) << "the message goes on behind the part";
  EXPECT_EQ((*found)[1].ttl, std::chrono::minutes(5));
}

TEST_F(BreakpointTest, OfTheWholePrompt) {
  const auto found = Find("tokens { ids: 1 ids: 2 ids: 3 } cache { prompt {} }");
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ(found->front().tokens, 3u);
}

TEST_F(BreakpointTest, AreBounded) {
  std::string chat = "chat { messages { role: 'user' ";
  for (int i = 0; i < 5; ++i) chat += "content { text: 'a' breakpoint {} } ";
  EXPECT_EQ(Message(Find(chat + "} }").status()),
            "chat.messages[0].content[4].breakpoint is one too many; a request may have 4");
  EXPECT_EQ(Message(Find("text: 'a' cache { prompt { ttl { seconds: 0 } } }").status()),
            "cache.prompt.ttl is 0 s 0 ns; it may be 1 s to a day");
}

TEST_F(PromptTest, RefusesWhatIsNoPrompt) {
  EXPECT_THAT(Refusal(""), HasSubstr("no prompt: set one of text, tokens, chat"));
  EXPECT_THAT(Refusal("text: ''"), HasSubstr("text is empty"));
  EXPECT_THAT(Refusal("tokens {}"), HasSubstr("the prompt has no tokens"));
  EXPECT_THAT(Refusal("tokens { ids: 1 ids: 258 }"),
              HasSubstr("tokens.ids[1] is 258; the vocabulary of test-model ends at 257"));
  EXPECT_THAT(Refusal("chat {}"),
              HasSubstr("chat.messages has 0 messages; it must have 1 to 4096"));
  EXPECT_THAT(Refusal("chat { messages { content { text: 'a' } } }"),
              HasSubstr("chat.messages[0].role has 0 bytes"));
  EXPECT_THAT(Refusal("chat { messages { role: 'user' content {} } }"),
              HasSubstr("chat.messages[0].content[0] has no text"));
}

TEST_F(PromptTest, PassesOnWhatTheTemplateSays) {
  EXPECT_THAT(Refusal("chat { messages { role: 'tool' content { text: 'a' } } }"),
              AllOf(HasSubstr("chat: "), HasSubstr("a tool message must follow an answer")));
}

TEST_F(PromptTest, RefusesRolesThatTheTemplateDoesNotName) {
  EXPECT_THAT(Refusal("chat { messages { role: 'pirate' content { text: 'a' } } }"),
              HasSubstr("chat.messages[0].role is `pirate`, which the chat template of test-model "
                        "does not name"));
}

TEST_F(PromptTest, RefusesTextThatCannotFitBeforeEncodingIt) {
  v1::GenerateRequest request;
  request.set_text(std::string(3 << 20, 'a'));
  const absl::Status status = PromptTokens(request, model_, 2048).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("text has 3145728 bytes"));
}

TEST_F(PromptTest, SaysBothNumbersOfATooLongPrompt) {
  v1::GenerateRequest request;
  request.set_text(std::string(2100, 'a'));
  const auto prepared =
      PrepareRequest({.request = request, .model = model_, .max_model_len = 2048});
  EXPECT_EQ(prepared.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(prepared.status()), HasSubstr("the prompt has 2100 tokens; the context of "
                                                    "test-model has 2048"));
}

TEST_F(PromptTest, SpansBecomeAPartOfThePolicy) {
  v1::GenerateRequest request;
  request.set_text("read##one##two");
  request.set_keep_marker("##");
  request.set_kv_policy("streaming:64+16");
  request.mutable_output()->set_echo(true);
  const PrepareArgs args{.request = request, .model = model_, .max_model_len = 2048};
  const auto prepared = PrepareRequest(args);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->session.kv_policy, "streaming:64+16@4-7");
  EXPECT_EQ(prepared->session.echo, "readonetwo");
  request.set_text("##" + std::string(29, 'a') + "##b");
  EXPECT_THAT(Message(PrepareRequest(args).status()),
              HasSubstr("keep_marker marks 29 tokens, and kv_policy streaming:64+16 keeps 64, of "
                        "which 36 must be left for the first and the last tokens: at most 28 may "
                        "be marked"));
  request.set_kv_policy("i8");
  EXPECT_THAT(Message(PrepareRequest(args).status()),
              HasSubstr("keep_marker is set, and kv_policy is i8; it needs an eviction"));
}

TEST_F(PromptTest, MarkersAndBreakpointsOfAChatAreNotCombined) {
  v1::GenerateRequest request;
  v1::Message& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  v1::ContentPart& part = *message.add_content();
  part.set_text("a##b##c");
  request.set_keep_marker("##");
  request.set_kv_policy("snapkv:64");
  request.mutable_cache()->mutable_prompt();
  const PrepareArgs args{.request = request, .model = model_, .max_model_len = 2048};
  EXPECT_TRUE(PrepareRequest(args).ok()) << PrepareRequest(args).status();
  part.mutable_breakpoint();
  EXPECT_THAT(Message(PrepareRequest(args).status()),
              HasSubstr("keep_marker cannot be combined with cache breakpoints within the chat"));
}

TEST_F(PromptTest, PriorityIsBoundedForAllAndForTenants) {
  v1::GenerateRequest request;
  request.set_text("a");
  request.set_priority(101);
  PrepareArgs args{.request = request, .model = model_, .max_model_len = 2048};
  EXPECT_EQ(PrepareRequest(args).status().code(), absl::StatusCode::kInvalidArgument);
  request.set_priority(7);
  EXPECT_TRUE(PrepareRequest(args).ok());
  args.caller.tenant = std::make_shared<Tenant>("t", TimePoint());
  EXPECT_EQ(PrepareRequest(args).status().code(), absl::StatusCode::kPermissionDenied);
  args.caller.tenant->SetLimits({.priority_max = 7});
  EXPECT_TRUE(PrepareRequest(args).ok());
}

TEST_F(PromptTest, ChatWithoutATemplateIsAFailedPrecondition) {
  model_.chat_template = nullptr;
  EXPECT_EQ(Tokens("chat { messages { role: 'user' } }").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(PromptTest, AnswersOfTokenizeAndDetokenizeAreBounded) {
  v1::TokenizeRequest request;
  request.set_text(std::string(262'145, 'x'));
  EXPECT_THAT(Message(Tokenize(request, model_, 2048).status()),
              HasSubstr("text has 262145 tokens; the limit is 262144"));
  v1::DetokenizeRequest back;
  back.mutable_token_ids()->Resize(262'145, 5);
  EXPECT_THAT(Message(Detokenize(back, model_).status()),
              HasSubstr("token_ids has 262145 tokens; the limit is 262144"));
}

TEST_F(PromptTest, TokenizeAndDetokenizeAreInverse) {
  v1::TokenizeRequest request;
  request.set_text("gr\xc3\xbc\xc3\x9f");
  request.set_return_strings(true);
  const auto tokenized = Tokenize(request, model_, 2048);
  ASSERT_TRUE(tokenized.ok()) << tokenized.status();
  EXPECT_EQ(tokenized->count(), 6u);
  EXPECT_EQ(tokenized->tokens_size(), 6);
  v1::DetokenizeRequest back;
  *back.mutable_token_ids() = tokenized->token_ids();
  EXPECT_EQ(Detokenize(back, model_)->text(), request.text());
  back.add_token_ids(258);
  EXPECT_THAT(Message(Detokenize(back, model_).status()), HasSubstr("token_ids[6] is 258"));
  back.set_model("other");
  EXPECT_EQ(Detokenize(back, model_).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace penstock
