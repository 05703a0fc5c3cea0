// Bytes and headers of gRPC calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/grpc_standard.pb.h"
#include "router/grpc/answer.h"
#include "router/grpc/call_head.h"
#include "router/grpc/frame.h"
#include "router/request/error_detail.h"
#include "tests/router/grpc/read_answer.h"

namespace penstock {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

TEST(GrpcFrame, AMessageIsReadAsItWasWritten) {
  grpc_standard::v1::HealthCheckRequest message;
  message.set_service(std::string(300, 's'));
  std::string out = "before";
  AppendFrame(message, out);
  EXPECT_EQ(out, "before" + Framed(message.SerializeAsString()));
  EXPECT_EQ(*OnlyMessage(std::string_view(out).substr(6), 1000), message.SerializeAsString());
}

TEST(GrpcFrame, AMessageOfTheLimitIsTakenAndOneByteMoreIsNot) {
  EXPECT_TRUE(OnlyMessage(Framed(std::string(10, 'x')), 10).ok());
  const absl::Status status = OnlyMessage(Framed(std::string(11, 'x')), 10).status();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(Message(status), "the message has 11 bytes, which is larger than the 10 it may have");
  // The length alone says so, whatever follows.
  EXPECT_EQ(OnlyMessage(std::string("\0\xff\xff\xff\xff", 5), 10).status().code(),
            Code::kResourceExhausted);
}

TEST(GrpcFrame, StreamsComeInAnyPieces) {
  const std::string bytes = Framed("one") + Framed("") + Framed(std::string(70, 'z')) + Framed("");
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    Deframer deframer(70);
    std::vector<std::string> messages;
    for (size_t i = 0; i < bytes.size(); i += piece) {
      ASSERT_TRUE(deframer
                      .Take(std::string_view(bytes).substr(i, piece),
                            [&](std::string_view message) {
                              messages.emplace_back(message);
                              return absl::OkStatus();
                            })
                      .ok());
    }
    EXPECT_THAT(messages, ElementsAre("one", "", std::string(70, 'z'), "")) << piece;
    EXPECT_TRUE(deframer.End().ok());
  }
}

TEST(GrpcFrame, AStreamThatBreaksOffIsAnError) {
  const auto ignore = [](std::string_view) { return absl::OkStatus(); };
  const std::string bytes = Framed("12345");
  for (size_t size = 1; size < bytes.size(); ++size) {
    Deframer deframer(70);
    ASSERT_TRUE(deframer.Take(bytes.substr(0, size), ignore).ok());
    EXPECT_EQ(deframer.End().code(), Code::kInternal) << size;
  }
  Deframer deframer(4);
  EXPECT_EQ(deframer.Take(bytes, ignore).code(), Code::kResourceExhausted);
}

TEST(GrpcFrame, WhoReadsTheMessagesMayEndTheStream) {
  Deframer deframer(70);
  int calls = 0;
  const absl::Status status = deframer.Take(Framed("a") + Framed("b"), [&](std::string_view) {
    ++calls;
    return Aborted("enough");
  });
  EXPECT_EQ(status, Aborted("enough"));
  EXPECT_EQ(calls, 1);
}

TEST(GrpcAnswer, MessagesArePercentEncoded) {
  EXPECT_EQ(PercentEncode("plain text, 1~"), "plain text, 1~");
  EXPECT_EQ(PercentEncode("100%\n\xe2\x82\xac\x7f"), "100%25%0A%E2%82%AC%7F");
}

TEST(GrpcAnswer, BinaryMetadataAreBase64WithoutPadding) {
  EXPECT_EQ(Base64(""), "");
  EXPECT_EQ(Base64("f"), "Zg");
  EXPECT_EQ(Base64("fo"), "Zm8");
  EXPECT_EQ(Base64("foo"), "Zm9v");
  EXPECT_EQ(Base64("\xfb\xff\xfe"), "+//+");
}

TEST(GrpcAnswer, AnErrorSaysItsCodeAndMessage) {
  TestExchange exchange;
  Respond(*exchange.get(), NotFound("no \"x\" of \xc3\xa9t\xc3\xa9"));
  ASSERT_TRUE(exchange.answered());
  EXPECT_TRUE(exchange.trailers_only());
  EXPECT_EQ(exchange.http_status(), 200);
  EXPECT_EQ(*HttpHead{.headers = exchange.head().headers}.Find("content-type"), "application/grpc");
  EXPECT_EQ(exchange.status(), NotFound("no \"x\" of \xc3\xa9t\xc3\xa9"));
  EXPECT_EQ(exchange.Trailer("grpc-status-details-bin"), "");
}

TEST(GrpcAnswer, AnErrorSaysWhatProgramsActOn) {
  TestExchange exchange;
  Respond(*exchange.get(), WithDetail(BadField("sampling.n", "is 99"),
                                      {.reason = "too_many", .retry_after = 1500ms}));
  ASSERT_TRUE(exchange.answered());
  grpc_standard::v1::Status told;
  ASSERT_TRUE(told.ParseFromString(exchange.Trailer("grpc-status-details-bin")));
  EXPECT_EQ(told.code(), static_cast<int>(Code::kInvalidArgument));
  EXPECT_EQ(told.message(), "sampling.n is 99");
  ASSERT_EQ(told.details_size(), 3);
  EXPECT_EQ(told.details(0).type_url(), "type.googleapis.com/google.rpc.ErrorInfo");
  grpc_standard::v1::ErrorInfo info;
  ASSERT_TRUE(info.ParseFromString(told.details(0).value()));
  EXPECT_EQ(info.reason(), "too_many");
  EXPECT_EQ(info.domain(), "penstock");
  EXPECT_EQ(told.details(1).type_url(), "type.googleapis.com/google.rpc.RetryInfo");
  grpc_standard::v1::RetryInfo retry;
  ASSERT_TRUE(retry.ParseFromString(told.details(1).value()));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(retry.retry_delay().nanos(), 500'000'000);
  EXPECT_EQ(told.details(2).type_url(), "type.googleapis.com/google.rpc.BadRequest");
  grpc_standard::v1::BadRequest bad;
  ASSERT_TRUE(bad.ParseFromString(told.details(2).value()));
  ASSERT_EQ(bad.field_violations_size(), 1);
  EXPECT_EQ(bad.field_violations(0).field(), "sampling.n");
  EXPECT_EQ(bad.field_violations(0).description(), "sampling.n is 99");
}

TEST(GrpcAnswer, TrailersStayBelowWhatClientsTake) {
  std::string message;
  while (message.size() < 100'000) message += "\xe2\x82\xac";
  TestExchange exchange;
  Respond(*exchange.get(), WithDetail(InvalidArgument("{}", message), {.field = message}));
  ASSERT_TRUE(exchange.answered());
  size_t bytes = 0;
  for (const HttpHeader& header : exchange.head().headers) {
    bytes += header.name.size() + header.value.size() + 32;
  }
  EXPECT_LT(bytes, 8192u);
  const std::string told = Message(exchange.status());
  EXPECT_EQ(told.size(), 999u) << "whole characters";
  EXPECT_EQ(told, message.substr(0, 999));
}

TEST(GrpcAnswer, AWholeAnswerComesInPieces) {
  grpc_standard::v1::HealthCheckRequest message;
  message.set_service(std::string(100'000, 's'));
  TestExchange exchange;
  Respond(*exchange.get(), message);
  EXPECT_THAT(exchange.ReadMessages(/*max=*/1000), ElementsAre(message.SerializeAsString()));
  EXPECT_TRUE(exchange.ended());
  EXPECT_EQ(exchange.status(), absl::OkStatus());
}

TEST(GrpcAnswer, HttpErrorsHaveCodes) {
  EXPECT_EQ(CodeOfHttpStatus(503), Code::kUnavailable);
  EXPECT_EQ(CodeOfHttpStatus(413), Code::kResourceExhausted);
  EXPECT_EQ(CodeOfHttpStatus(431), Code::kResourceExhausted);
  EXPECT_EQ(CodeOfHttpStatus(408), Code::kDeadlineExceeded);
  EXPECT_EQ(CodeOfHttpStatus(400), Code::kInternal);
  EXPECT_EQ(CodeOfHttpStatus(418), Code::kUnknown);
}

HttpHead WithTimeout(const std::string& timeout) {
  return {.headers = {{"grpc-timeout", timeout}}};
}

TEST(GrpcTimeout, HasSixUnits) {
  const std::pair<std::string, std::chrono::nanoseconds> cases[] = {
      {"2H", 2h}, {"3M", 3min}, {"45S", 45s}, {"99999999m", 99999999ms}, {"0u", 0us}, {"7n", 7ns}};
  for (const auto& [text, expected] : cases) {
    const TimePoint before = SteadyClock().Now();
    const auto deadline = DeadlineOf(WithTimeout(text));
    ASSERT_TRUE(deadline.ok()) << text;
    EXPECT_GE(*deadline, before + expected) << text;
    EXPECT_LE(*deadline, SteadyClock().Now() + expected) << text;
  }
}

TEST(GrpcTimeout, NoneIsNoDeadlineAndALongOneDoesNotOverflow) {
  EXPECT_EQ(*DeadlineOf({}), TimePoint::max());
  const auto deadline = DeadlineOf(WithTimeout("99999999H"));
  ASSERT_TRUE(deadline.ok());
  EXPECT_GT(*deadline, SteadyClock().Now() + 24h * 364);
}

TEST(GrpcTimeout, AnythingElseIsRefused) {
  for (const std::string text : {"", "5", "S", "5s", "-5S", "+5S", " 5S", "5 S", "123456789m",
                                 "5SS", "0x5S", "5.5S", "\xff\xffS"}) {
    EXPECT_EQ(DeadlineOf(WithTimeout(text)).status().code(), Code::kInternal) << text;
  }
}

}  // namespace
}  // namespace penstock
