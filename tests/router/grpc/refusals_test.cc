// Calls that are wrong, and what each is answered with. The table is the documentation of what the
// public port says to clients that speak gRPC badly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <thread>

#include "lab/fake/temp_folder.h"
#include "lab/fake/test_model.h"
#include "router/grpc/frame.h"
#include "router/grpc/handler.h"
#include "tests/router/grpc/read_answer.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr char kGenerate[] = "/penstock.v1.Inference/Generate";
constexpr char kListModels[] = "/penstock.v1.Inference/ListModels";
constexpr char kHealth[] = "/grpc.health.v1.Health/Check";
constexpr char kReflection[] = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

HttpRequest Request(const std::string& path, std::string body = Framed("")) {
  return {.head = {.method = "POST",
                   .path = path,
                   .headers = {{"content-type", "application/grpc"}, {"te", "trailers"}}},
          .body = std::move(body)};
}

HttpRequest With(HttpRequest request, const std::string& name, const std::string& value) {
  std::erase_if(request.head.headers, [&](const auto& header) { return header.name == name; });
  if (!value.empty()) request.head.headers.push_back({name, value});
  return request;
}

HttpRequest Without(HttpRequest request, const std::string& name) {
  return With(std::move(request), name, "");
}

HttpRequest WithMethod(HttpRequest request, const std::string& method) {
  request.head.method = method;
  return request;
}

// A core without workers.
class GrpcRefusals : public ::testing::Test {
 protected:
  GrpcRefusals() {
    FleetOptions options;
    options.discovery.workers = {"127.0.0.1:1"};
    fleet_ = *Fleet::Create(std::move(options));
    core_ = std::make_unique<InferenceCore>(InferenceCoreArgs{.model = model_,
                                                              .fleet = *fleet_,
                                                              .open = open_,
                                                              .clock = clock_,
                                                              .limits = {},
                                                              .metrics = request_metrics_});
    handler_ = std::make_unique<GrpcHandler>(GrpcHandlerArgs{.core = *core_, .reflection = true});
  }

  // Handles a whole request as the HTTP server does.
  static void Send(GrpcHandler& handler, HttpRequest request, TestExchange& exchange) {
    if (auto refusal = handler.Screen(request.head)) {
      exchange.get()->Respond(*std::move(refusal));
    } else if (auto sink = handler.Open(request.head, exchange.get())) {
      if (sink->Take(request.body)) sink->End();
    } else {
      handler.Handle(std::move(request), exchange.get());
    }
    exchange.ReadMessages();
  }

  SteadyClock clock_;
  MetricsRegistry metrics_;
  RequestMetrics request_metrics_{metrics_, SloTargets(), "tiny"};
  AuthMetrics auth_metrics_{metrics_};
  OpenRequests open_{8};
  const ServedModel model_ = MakeTestModel();
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<InferenceCore> core_;
  std::unique_ptr<GrpcHandler> handler_;
};

TEST_F(GrpcRefusals, EveryMalformedCallHasItsCode) {
  struct Case {
    std::string what;
    HttpRequest request;
    Code code;
    std::string message;
  };
  const HttpRequest good = Request(kGenerate);
  const auto generate = [](std::string body) { return Request(kGenerate, std::move(body)); };
  const Case cases[] = {
      {"no te", Without(good, "te"), Code::kInternal, "no \"te: trailers\""},
      {"another te", With(good, "te", "gzip"), Code::kInternal, "no \"te: trailers\""},
      {"no service", Request("/"), Code::kUnimplemented, "there is no method /"},
      {"no method", Request("/penstock.v1.Inference/"), Code::kUnimplemented, "no method"},
      {"unknown method", Request("/penstock.v1.Inference/Nothing"), Code::kUnimplemented,
       "there is no method /penstock.v1.Inference/Nothing"},
      {"unknown service", Request("/a.B/Generate"), Code::kUnimplemented, "no method /a.B/Gen"},
      {"another case", Request("/penstock.v1.inference/generate"), Code::kUnimplemented,
       "no method"},
      {"a private service", Request("/penstock.v1.Admin/Info"), Code::kUnimplemented, "no method"},
      {"a long path", Request("/" + std::string(4000, 'x')), Code::kUnimplemented, "xxx"},
      {"an encoded path", Request("/penstock.v1.Inference%2FGenerate"), Code::kUnimplemented, "no"},
      {"timeout of letters", With(good, "grpc-timeout", "soon"), Code::kInternal, "grpc-timeout"},
      {"timeout without unit", With(good, "grpc-timeout", "10"), Code::kInternal, "1 to 8 digits"},
      {"timeout of 9 digits", With(good, "grpc-timeout", "123456789n"), Code::kInternal,
       "8 digits"},
      {"negative timeout", With(good, "grpc-timeout", "-1S"), Code::kInternal, "grpc-timeout"},
      {"no message", generate(""), Code::kUnimplemented, "there is none"},
      {"half a head", generate(std::string(3, '\0')), Code::kInternal, "after 3 of 5 bytes"},
      {"a head alone", generate(Framed("abc").substr(0, 5)), Code::kInternal, "0 of 3 bytes"},
      {"a message that breaks off", generate(Framed("abc").substr(0, 7)), Code::kInternal,
       "2 of 3"},
      {"two messages", generate(Framed("") + Framed("")), Code::kUnimplemented, "more follows"},
      {"a byte too many", generate(Framed("") + "x"), Code::kUnimplemented, "more follows"},
      {"compressed", generate(Framed("abc", 1)), Code::kUnimplemented, "compressed"},
      {"unknown flags", generate(Framed("abc", 2)), Code::kInternal, "the byte 2"},
      {"all flags", generate(Framed("abc", '\xff')), Code::kInternal, "the byte 255"},
      {"a length without end", generate(std::string("\0\xff\xff\xff\xff", 5)),
       Code::kResourceExhausted, "4294967295 bytes"},
      {"a byte above the limit", generate(Framed(std::string(kGrpcMessageBytesMax + 1, 'a'))),
       Code::kResourceExhausted, "larger than the 4194304 it may have"},
      {"not a message", generate(Framed("\x12\x7f")), Code::kInvalidArgument, "breaks off at byte"},
      {"a group without end", generate(Framed("\x0b")), Code::kInvalidArgument, ""},
      {"a varint without end", generate(Framed(std::string(11, '\xff'))), Code::kInvalidArgument,
       ""},
      {"not UTF-8", generate(Framed("\x12\x01\xff")), Code::kInvalidArgument, "not valid UTF-8"},
      {"an empty request", good, Code::kInvalidArgument, "no prompt"},
      {"models: not a message", Request(kListModels, Framed("\xff")), Code::kInvalidArgument, ""},
      {"models: compressed", Request(kListModels, Framed("", 1)), Code::kUnimplemented,
       "compressed"},
      {"health: unknown service", Request(kHealth, Framed("\x0a\x01x")), Code::kNotFound,
       "no service"},
      {"health: not a message", Request(kHealth, Framed("\x0a\x7f")), Code::kInvalidArgument, ""},
      {"reflection: a message that breaks off", Request(kReflection, Framed("abc").substr(0, 6)),
       Code::kInternal, "6 of 8 bytes"},
      {"reflection: a large message", Request(kReflection, Framed(std::string(5000, 'x'))),
       Code::kResourceExhausted, "larger than the 4096"},
  };
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.what);
    TestExchange exchange;
    Send(*handler_, bad.request, exchange);
    ASSERT_TRUE(exchange.ended());
    EXPECT_EQ(exchange.http_status(), 200);
    EXPECT_EQ(exchange.status().code(), bad.code) << exchange.status();
    EXPECT_THAT(Message(exchange.status()), HasSubstr(bad.message));
  }
  EXPECT_EQ(open_.count(), 0u);
}

TEST_F(GrpcRefusals, OtherClientsThanGrpcsAreToldWhatThisPortIs) {
  struct Case {
    HttpRequest request;
    int status;
  };
  const HttpRequest good = Request(kGenerate);
  const Case cases[] = {{WithMethod(good, "GET"), 405},
                        {WithMethod(good, "PUT"), 405},
                        {Without(good, "content-type"), 415},
                        {With(good, "content-type", "application/json"), 415},
                        {With(good, "content-type", "application/grpc-web"), 415},
                        {With(good, "content-type", "application/grpc+json"), 415},
                        {With(good, "content-type", "application/grpcx"), 415}};
  for (const Case& bad : cases) {
    const auto refusal = handler_->Screen(bad.request.head);
    ASSERT_TRUE(refusal.has_value());
    EXPECT_EQ(refusal->status, bad.status);
    EXPECT_THAT(refusal->body, HasSubstr("this port serves gRPC"));
  }
  for (const std::string type : {"application/grpc", "application/grpc+proto", "Application/GRPC",
                                 "application/grpc; charset=utf-8"}) {
    EXPECT_FALSE(handler_->Screen(With(good, "content-type", type).head)) << type;
  }
}

TEST_F(GrpcRefusals, WhatTheEdgeRefusesHasACode) {
  const auto code = [&](int status) {
    TestExchange exchange;
    exchange.get()->Respond(handler_->Refuse(status, "the reason"));
    EXPECT_TRUE(exchange.answered());
    return exchange.status();
  };
  EXPECT_EQ(code(503), Unavailable("the reason"));
  EXPECT_EQ(code(431), ResourceExhausted("the reason"));
  EXPECT_EQ(code(413),
            ResourceExhausted("the message is larger than the 4194304 bytes it may have"));
}

TEST_F(GrpcRefusals, WithoutAKeyThereIsHealthAndNothingElse) {
  const TempFolder folder;
  const std::string path = folder.Write("keys", R"({"tenants": [{"name": "acme"}], "keys": []})");
  const auto keys = KeyRing::Open(path, auth_metrics_, clock_);
  ASSERT_TRUE(keys.ok()) << keys.status();
  GrpcHandler handler({.core = *core_, .keys = keys->get(), .reflection = false});
  handler.SetServing("", true);
  for (const char* path_asked : {kGenerate, kListModels, kReflection, "/a.B/C"}) {
    for (const HttpRequest& request :
         {Request(path_asked), With(Request(path_asked), "authorization", "Bearer wrong")}) {
      TestExchange exchange;
      Send(handler, request, exchange);
      EXPECT_TRUE(exchange.ended() && exchange.trailers_only());
      EXPECT_EQ(exchange.status().code(), Code::kUnauthenticated) << path_asked;
    }
  }
  TestExchange exchange;
  Send(handler, Request(kHealth), exchange);
  EXPECT_EQ(exchange.status(), absl::OkStatus());
}

TEST_F(GrpcRefusals, ReflectionMayBeOff) {
  GrpcHandler handler({.core = *core_});
  TestExchange exchange;
  Send(handler, Request(kReflection), exchange);
  EXPECT_EQ(exchange.status().code(), Code::kUnimplemented);
}

TEST_F(GrpcRefusals, ARequestForWorkersThatAreNotThereIsNotCommitted) {
  v1::GenerateRequest request;
  request.set_text("hello");
  TestExchange exchange;
  HttpRequest sent = Request(kGenerate, Framed(request.SerializeAsString()));
  sent.head.headers.push_back({"grpc-timeout", "20m"});
  ASSERT_FALSE(handler_->Screen(sent.head));
  handler_->Handle(std::move(sent), exchange.get());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!exchange.answered() && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  ASSERT_TRUE(exchange.ended());
  EXPECT_TRUE(exchange.trailers_only()) << "clients may try it again";
  EXPECT_TRUE(exchange.status().code() == Code::kDeadlineExceeded ||
              exchange.status().code() == Code::kUnavailable)
      << exchange.status();
}

}  // namespace
}  // namespace penstock
