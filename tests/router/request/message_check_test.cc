#include "router/request/message_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/inference.pb.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

// Protobuf serializes what it would not parse.
std::string Encoded(const v1::GenerateRequest& request) { return request.SerializeAsString(); }

std::string Refusal(const std::string& bytes) {
  v1::GenerateRequest parsed;
  const absl::Status status = ParseChecked(bytes, parsed);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return Message(status);
}

TEST(MessageCheck, TakesAGoodRequest) {
  v1::GenerateRequest request;
  request.set_text("gr\xc3\xbc\xc3\x9f dich");
  request.mutable_sampling()->set_temperature(0.5);
  (*request.mutable_sampling()->mutable_logit_bias())[4] = 2;
  request.mutable_stop()->add_stop_token_ids(300);
  v1::GenerateRequest parsed;
  ASSERT_TRUE(ParseChecked(Encoded(request), parsed).ok());
  EXPECT_EQ(parsed.SerializeAsString(), Encoded(request));
}

TEST(MessageCheck, NamesTheFieldAndTheByteThatIsNotUtf8) {
  v1::GenerateRequest request;
  request.set_text("hello\xff!");
  EXPECT_THAT(Refusal(Encoded(request)), HasSubstr("text: byte 5 of 7 is not valid UTF-8"));
}

TEST(MessageCheck, NamesThePathOfANestedField) {
  v1::GenerateRequest request;
  v1::ChatPrompt& chat = *request.mutable_chat();
  chat.add_messages()->set_role("user");
  v1::Message& second = *chat.add_messages();
  second.set_role("user");
  second.add_content()->set_text("fine");
  second.add_content()->set_text("\xc3\x28");
  EXPECT_THAT(Refusal(Encoded(request)),
              HasSubstr("chat.messages[1].content[1].text: byte 0 of 2"));
}

TEST(MessageCheck, ChecksEveryElementOfARepeatedString) {
  v1::GenerateRequest request;
  request.mutable_stop()->add_stop("ok");
  request.mutable_stop()->add_stop("\xed\xa0\x80");  // a surrogate
  EXPECT_THAT(Refusal(Encoded(request)), HasSubstr("stop.stop[1]: byte 0"));
}

TEST(MessageCheck, SaysWhereABrokenEncodingEnds) {
  v1::GenerateRequest request;
  request.set_text("some text that is cut");
  const std::string bytes = Encoded(request);
  for (size_t size = 1; size < bytes.size(); ++size) {
    EXPECT_THAT(Refusal(bytes.substr(0, size)), HasSubstr("breaks off at byte"));
  }
}

TEST(MessageCheck, RefusesALengthBeyondTheEndOfTheParent) {
  // sampling { field 9 of length 100 } in 3 bytes.
  EXPECT_THAT(Refusal(std::string("\x2a\x02\x4a\x64", 4)), HasSubstr("breaks off"));
}

TEST(MessageCheck, SkipsUnknownFields) {
  v1::GenerateRequest parsed;
  const std::string unknown("\xfa\x7f\x02\xff\xff", 5);  // number 2047, two bytes
  EXPECT_TRUE(ParseChecked(unknown, parsed).ok());
}

}  // namespace
}  // namespace penstock
