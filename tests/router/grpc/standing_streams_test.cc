// Health and reflection: what stays open as long as clients like.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <thread>

#include "router/grpc/health_board.h"
#include "router/grpc/reflection.h"
#include "tests/router/grpc/read_answer.h"

namespace penstock {
namespace {

using grpc_standard::v1::HealthCheckResponse;
using grpc_standard::v1::ServerReflectionRequest;
using grpc_standard::v1::ServerReflectionResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

struct Health {
  explicit Health(size_t max = 8) : streams(max) {}
  StandingStreams streams;
  HealthBoard board{streams};
};

std::vector<int> Told(TestExchange& exchange) {
  std::vector<int> told;
  for (const std::string& bytes : exchange.ReadMessages()) {
    HealthCheckResponse response;
    EXPECT_TRUE(response.ParseFromString(bytes));
    told.push_back(response.status());
  }
  return told;
}

TEST(HealthBoard, ChecksWhatWasSet) {
  Health health;
  EXPECT_EQ(health.board.Check("").status().code(), Code::kNotFound);
  health.board.Set("", true);
  health.board.Set("a", false);
  EXPECT_EQ(*health.board.Check(""), HealthCheckResponse::SERVING);
  EXPECT_EQ(*health.board.Check("a"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(health.board.Check("b").status().code(), Code::kNotFound);
}

TEST(HealthBoard, WhoWatchesIsToldOfEveryChange) {
  Health health;
  health.board.Set("a", false);
  TestExchange exchange;
  health.board.Watch("a", exchange.get());
  EXPECT_THAT(Told(exchange), ElementsAre(HealthCheckResponse::NOT_SERVING));
  const int wakes = exchange.wakes();
  health.board.Set("a", true);
  EXPECT_GT(exchange.wakes(), wakes);
  EXPECT_THAT(Told(exchange), ElementsAre(HealthCheckResponse::SERVING));
  health.board.Set("a", true);
  EXPECT_THAT(Told(exchange), IsEmpty()) << "not a change";
  health.board.Set("a", false);
  health.board.Set("a", true);
  health.board.Set("a", false);
  EXPECT_THAT(Told(exchange), ElementsAre(HealthCheckResponse::NOT_SERVING)) << "the last";
  EXPECT_FALSE(exchange.ended());
}

TEST(HealthBoard, AnUnknownServiceMayBecomeKnown) {
  Health health;
  TestExchange exchange;
  health.board.Watch("later", exchange.get());
  EXPECT_THAT(Told(exchange), ElementsAre(HealthCheckResponse::SERVICE_UNKNOWN));
  health.board.Set("later", true);
  EXPECT_THAT(Told(exchange), ElementsAre(HealthCheckResponse::SERVING));
}

TEST(HealthBoard, WatchesEndWithTheServer) {
  Health health;
  health.board.Set("", true);
  TestExchange exchange;
  health.board.Watch("", exchange.get());
  health.board.Set("", false);
  health.streams.EndAll();
  EXPECT_THAT(Told(exchange), ElementsAre(HealthCheckResponse::NOT_SERVING));
  EXPECT_TRUE(exchange.ended());
  EXPECT_EQ(exchange.status().code(), Code::kUnavailable);
  TestExchange late;
  health.board.Watch("", late.get());
  ASSERT_TRUE(late.answered());
  EXPECT_EQ(late.status().code(), Code::kUnavailable);
}

TEST(HealthBoard, WatchesAreBoundedAndThoseThatEndMakeRoom) {
  Health health(/*max=*/2);
  health.board.Set("", true);
  TestExchange first;
  health.board.Watch("", first.get());
  EXPECT_THAT(Told(first), ElementsAre(HealthCheckResponse::SERVING));
  {
    TestExchange second, third;
    health.board.Watch("", second.get());
    health.board.Watch("", third.get());
    ASSERT_TRUE(third.answered());
    EXPECT_EQ(third.status().code(), Code::kResourceExhausted);
    second.get()->Close(/*client_left=*/true);
  }
  TestExchange fourth;
  health.board.Watch("", fourth.get());
  EXPECT_THAT(Told(fourth), ElementsAre(HealthCheckResponse::SERVING));
}

TEST(HealthBoard, ChangesWhileOthersWatch) {
  Health health(/*max=*/10'000);
  health.board.Set("", false);
  std::thread changes([&] {
    for (int i = 0; i < 2000; ++i) health.board.Set("", i % 2 == 0);
    health.board.Set("", true);
    health.streams.EndAll();
  });
  int last = 0;
  TestExchange exchange;
  health.board.Watch("", exchange.get());
  while (!exchange.ended()) {
    for (const int status : Told(exchange)) {
      EXPECT_NE(status, last) << "no change";
      last = status;
    }
  }
  changes.join();
  const bool came_late = exchange.trailers_only();
  EXPECT_EQ(last, came_late ? 0 : HealthCheckResponse::SERVING);
}

// ---------------------------------------------------------------- reflection

const std::vector<std::string> kServices = {"a.B", "penstock.v1.Inference"};

ServerReflectionResponse Asked(const std::function<void(ServerReflectionRequest&)>& set) {
  ServerReflectionRequest request;
  request.set_host("here");
  set(request);
  const ServerReflectionResponse response = Reflect(request, kServices);
  EXPECT_EQ(response.valid_host(), "here");
  EXPECT_EQ(response.original_request().SerializeAsString(), request.SerializeAsString());
  return response;
}

std::vector<std::string> FilesIn(const ServerReflectionResponse& response) {
  std::vector<std::string> names;
  for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    EXPECT_TRUE(file.ParseFromString(bytes));
    names.push_back(file.name());
  }
  return names;
}

TEST(Reflection, ListsServices) {
  const auto response = Asked([](auto& request) { request.set_list_services(""); });
  ASSERT_EQ(response.list_services_response().service_size(), 2);
  EXPECT_EQ(response.list_services_response().service(1).name(), "penstock.v1.Inference");
}

// Clients that read every listed service, as Postman does, find these too.
TEST(Reflection, GivesTheStandardServicesUnderTheirNames) {
  google::protobuf::DescriptorPool pool;
  for (const std::string service : {"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                                    "grpc.reflection.v1alpha.ServerReflection"}) {
    const auto response =
        Asked([&](auto& request) { request.set_file_containing_symbol(service); });
    ASSERT_EQ(response.file_descriptor_response().file_descriptor_proto_size(), 1) << service;
    google::protobuf::FileDescriptorProto file;
    ASSERT_TRUE(file.ParseFromString(response.file_descriptor_response().file_descriptor_proto(0)));
    ASSERT_NE(pool.BuildFile(file), nullptr) << file.DebugString();
    EXPECT_NE(pool.FindServiceByName(service), nullptr);
    const auto by_name = Asked([&](auto& request) { request.set_file_by_filename(file.name()); });
    EXPECT_EQ(FilesIn(by_name), std::vector<std::string>{file.name()});
  }
  const auto* check = pool.FindMethodByName("grpc.health.v1.Health.Check");
  ASSERT_NE(check, nullptr);
  EXPECT_FALSE(check->server_streaming());
  EXPECT_EQ(check->output_type()->full_name(), "grpc.health.v1.HealthCheckResponse");
  EXPECT_EQ(check->output_type()->FindFieldByName("status")->enum_type()->full_name(),
            "grpc.health.v1.HealthCheckResponse.ServingStatus");
  EXPECT_TRUE(pool.FindMethodByName("grpc.health.v1.Health.Watch")->server_streaming());
  EXPECT_TRUE(pool.FindMethodByName("grpc.reflection.v1.ServerReflection.ServerReflectionInfo")
                  ->client_streaming());
}

TEST(Reflection, GivesAFileWithWhatItImports) {
  for (const std::string symbol :
       {"penstock.v1.Inference", "penstock.v1.Inference.Generate", "penstock.v1.GenerateRequest"}) {
    const auto response = Asked([&](auto& request) { request.set_file_containing_symbol(symbol); });
    EXPECT_THAT(FilesIn(response), ElementsAre("inference.proto", "google/protobuf/duration.proto"))
        << symbol;
  }
  const auto named =
      Asked([](auto& request) { request.set_file_by_filename("google/protobuf/duration.proto"); });
  EXPECT_THAT(FilesIn(named), ElementsAre("google/protobuf/duration.proto"));
}

TEST(Reflection, SaysWhatIsNotThere) {
  const auto code = [](const ServerReflectionResponse& response) {
    return static_cast<Code>(response.error_response().error_code());
  };
  EXPECT_EQ(code(Asked([](auto& r) { r.set_file_containing_symbol("no.Such"); })), Code::kNotFound);
  EXPECT_EQ(code(Asked([](auto& r) { r.set_file_by_filename("no.proto"); })), Code::kNotFound);
  EXPECT_EQ(code(Asked([](auto& r) { r.set_all_extension_numbers_of_type("a.B"); })),
            Code::kUnimplemented);
  EXPECT_EQ(code(Asked([](auto& r) { r.mutable_file_containing_extension(); })),
            Code::kUnimplemented);
  EXPECT_EQ(code(Asked([](auto&) {})), Code::kInvalidArgument);
}

std::string Question(const std::string& symbol) {
  ServerReflectionRequest request;
  request.set_file_containing_symbol(symbol);
  return Framed(request.SerializeAsString());
}

TEST(Reflection, AnswersOneByOneUntilTheClientEnds) {
  StandingStreams streams(8);
  TestExchange exchange;
  const auto sink = OpenReflection(kServices, streams, exchange.get());
  EXPECT_THAT(exchange.ReadMessages(), IsEmpty());
  const std::string question = Question("no.Such");
  ASSERT_TRUE(sink->Take(question.substr(0, 7)));
  EXPECT_THAT(exchange.ReadMessages(), IsEmpty());
  ASSERT_TRUE(sink->Take(question.substr(7) + question));
  EXPECT_EQ(exchange.ReadMessages().size(), 2u);
  ASSERT_TRUE(sink->Take(question));
  sink->End();
  EXPECT_EQ(exchange.ReadMessages().size(), 1u);
  EXPECT_TRUE(exchange.ended());
  EXPECT_EQ(exchange.status(), absl::OkStatus());
}

TEST(Reflection, AClientThatOnlyAsksIsRefused) {
  StandingStreams streams(8);
  TestExchange exchange;
  const auto sink = OpenReflection(kServices, streams, exchange.get());
  int taken = 0;
  while (sink->Take(Question("no.Such"))) ASSERT_LT(++taken, 1000);
  EXPECT_EQ(exchange.ReadMessages().size(), static_cast<size_t>(taken));
  EXPECT_EQ(exchange.status().code(), Code::kResourceExhausted);
}

TEST(Reflection, BrokenQuestionsEndTheStream) {
  struct Case {
    std::string bytes;
    Code code;
  };
  const Case cases[] = {{Framed("\xff"), Code::kInvalidArgument},
                        {Framed("", 1), Code::kUnimplemented},
                        {Framed("", 2), Code::kInternal},
                        {Framed(std::string(5000, 'x')), Code::kResourceExhausted},
                        {Framed("abc").substr(0, 6), Code::kInternal}};
  for (const Case& bad : cases) {
    StandingStreams streams(8);
    TestExchange exchange;
    const auto sink = OpenReflection(kServices, streams, exchange.get());
    if (sink->Take(bad.bytes)) sink->End();
    EXPECT_THAT(exchange.ReadMessages(), IsEmpty());
    EXPECT_TRUE(exchange.ended());
    EXPECT_EQ(exchange.status().code(), bad.code);
  }
}

TEST(Reflection, EndsWithTheServer) {
  StandingStreams streams(8);
  TestExchange exchange;
  const auto sink = OpenReflection(kServices, streams, exchange.get());
  EXPECT_THAT(exchange.ReadMessages(), IsEmpty());
  streams.EndAll();
  EXPECT_THAT(exchange.ReadMessages(), IsEmpty());
  EXPECT_EQ(exchange.status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace penstock
