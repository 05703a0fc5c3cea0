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

std::string Repeated(std::string_view part, size_t times) {
  std::string whole;
  for (size_t i = 0; i < times; ++i) whole += part;
  return whole;
}

// A field with a length.
std::string Field(char tag, const std::string& value) {
  std::string bytes(1, tag);
  for (size_t rest = value.size(); rest > 0 || bytes.size() == 1; rest >>= 7) {
    bytes += static_cast<char>((rest & 0x7f) | (rest > 0x7f ? 0x80 : 0));
  }
  return bytes + value;
}

TEST(MessageCheck, BoundsWhatASmallEncodingBecomes) {
  constexpr size_t kMany = 100'001;
  v1::GenerateRequest chat;
  chat.mutable_chat()->add_messages();
  const std::string tag = chat.SerializeAsString().substr(0, 1);
  const std::string message = chat.chat().SerializeAsString();  // an empty message: tag and length
  ASSERT_EQ(message.size(), 2u);
  const auto too_many = HasSubstr("more than 100000 elements");
  EXPECT_THAT(Refusal(Field(tag[0], Repeated(message, kMany))), too_many);
  EXPECT_THAT(Refusal(Repeated(std::string("\xf8\x7f\x01", 3), kMany)), too_many) << "unknown";
  // A known field in another type becomes an unknown one.
  EXPECT_THAT(Refusal(Repeated(std::string(1, tag[0] & ~7) + "\x01", kMany)), too_many);
  EXPECT_THAT(Refusal(std::string("\xfb\x7f\xfc\x7f", 4)), HasSubstr("begins a group"));
}

TEST(MessageCheck, NumbersOfAListAreNotCounted) {
  v1::DetokenizeRequest request;
  const auto* ids = request.GetDescriptor()->FindFieldByName("token_ids");
  const std::string one{static_cast<char>(ids->number() << 3), '\x05'};
  EXPECT_TRUE(ParseChecked(Repeated(one, 200'000), request).ok());
  EXPECT_EQ(request.token_ids_size(), 200'000);
}

TEST(MessageCheck, SkipsUnknownFields) {
  v1::GenerateRequest parsed;
  const std::string unknown("\xfa\x7f\x02\xff\xff", 5);  // number 2047, two bytes
  EXPECT_TRUE(ParseChecked(unknown, parsed).ok());
}

}  // namespace
}  // namespace penstock
