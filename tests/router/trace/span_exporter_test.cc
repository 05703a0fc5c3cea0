#include "router/trace/span_exporter.h"

#include <absl/strings/escaping.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/router/service/cluster.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

// A collector of spans, over a real socket.
class Collector final : public otlp::TraceService::Service {
 public:
  Collector() { Serve("127.0.0.1:0"); }
  ~Collector() override { Stop(); }

  void Serve(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void Stop() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }

  grpc::Status Export(grpc::ServerContext*, const otlp::ExportTraceServiceRequest* request,
                      otlp::ExportTraceServiceResponse* answer) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    answer->mutable_partial_success()->set_rejected_spans(rejects_);
    for (const otlp::ResourceSpans& resource : request->resource_spans()) {
      for (const otlp::KeyValue& attribute : resource.resource().attributes()) {
        if (attribute.key() == "service.name") services_.insert(attribute.value().string_value());
      }
      for (const otlp::ScopeSpans& scope : resource.scope_spans()) {
        spans_.insert(spans_.end(), scope.spans().begin(), scope.spans().end());
      }
    }
    return grpc::Status::OK;
  }

  void Reject(int64_t spans) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    rejects_ = spans;
  }
  std::vector<otlp::Span> spans() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return spans_;
  }
  std::set<std::string> services() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return services_;
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  mutable Mutex mutex_;
  int64_t rejects_ GUARDED_BY(mutex_) = 0;
  std::vector<otlp::Span> spans_ GUARDED_BY(mutex_);
  std::set<std::string> services_ GUARDED_BY(mutex_);
};

class SpanExporterTest : public testing::Test {
 protected:
  std::unique_ptr<SpanExporter> Start(uint32_t sampled_percent = 100) {
    auto exporter = SpanExporter::Start({.endpoint = collector_.endpoint(),
                                         .sampled_percent = sampled_percent,
                                         .model = "tiny",
                                         .version = "1"},
                                        clock_, metrics_);
    EXPECT_TRUE(exporter.ok()) << exporter.status();
    return *std::move(exporter);
  }

  void Export(SpanExporter& exporter, int requests = 1) {
    const TraceContext trace = ContinueTrace({}, {.trace_high = 1, .trace_low = 2, .span = 3});
    const SessionTiming timing(clock_.Now(), 1);
    const absl::Status ok;
    for (int i = 0; i < requests; ++i) {
      exporter.Export({.endpoint = Endpoint::kChat,
                       .request_id = "r",
                       .trace = trace,
                       .status = ok,
                       .timing = timing,
                       .end = clock_.Now()});
    }
  }

  SteadyClock clock_;
  MetricsRegistry registry_;
  SpanMetrics metrics_{registry_};
  Collector collector_;
};

TEST_F(SpanExporterTest, TheCollectorGetsAllThatWasQueuedBeforeTheEnd) {
  Export(*Start(), 1000);
  EXPECT_EQ(collector_.spans().size(), 1000u);
  EXPECT_EQ(collector_.services(), std::set<std::string>{"penstock-router"});
  EXPECT_EQ(metrics_.exported.Value(), 1000);
  EXPECT_EQ(metrics_.not_taken.Value(), 0);
}

TEST_F(SpanExporterTest, ACollectorThatIsGoneLosesSpansAndGetsLaterOnes) {
  const auto exporter = Start();
  const std::string address = collector_.endpoint();
  collector_.Stop();
  Export(*exporter);
  EXPECT_TRUE(WaitUntil([&] { return metrics_.not_taken.Value() == 1; }));
  collector_.Serve(address);
  EXPECT_TRUE(WaitUntil([&] {
    Export(*exporter);
    return !collector_.spans().empty();
  }));
}

TEST_F(SpanExporterTest, SpansThatTheCollectorRejectsAreCounted) {
  collector_.Reject(3);
  Export(*Start(), 10);
  EXPECT_EQ(metrics_.not_taken.Value(), 3);
  EXPECT_EQ(metrics_.exported.Value(), 7);
}

TEST_F(SpanExporterTest, AClientSaysWhetherItsTraceIsSampledAndOthersAreByShare) {
  const auto sampled = [&](uint32_t percent) {
    const auto exporter = Start(percent);
    int count = 0;
    for (uint64_t i = 0; i < 1000; ++i) {
      count += exporter->IsSampled(ContinueTrace({}, {.trace_high = 1, .trace_low = i, .span = 1}));
    }
    return count;
  };
  EXPECT_EQ(sampled(0), 0);
  EXPECT_EQ(sampled(25), 250);
  EXPECT_EQ(sampled(100), 1000);
  TraceContext asked = {.trace_id = std::string(32, 'a'),
                        .span_id = std::string(16, 'b'),
                        .flags = kTraceSampled,
                        .state = {}};
  EXPECT_TRUE(Start(0)->IsSampled(ContinueTrace(asked, {.span = 1})));
  asked.flags = 0;
  EXPECT_FALSE(Start(100)->IsSampled(ContinueTrace(asked, {.span = 1})));
}

TEST_F(SpanExporterTest, AnAddressThatIsNoneIsRefusedByName) {
  for (const char* endpoint : {"", "collector", "https://collector", "collector:99999"}) {
    const auto exporter = SpanExporter::Start({.endpoint = endpoint}, clock_, metrics_);
    EXPECT_EQ(exporter.status().code(), absl::StatusCode::kInvalidArgument) << endpoint;
    EXPECT_NE(exporter.status().message().find("otlp_endpoint"), std::string_view::npos);
  }
}

// From a client's call to the collector, through a whole router.
TEST_F(SpanExporterTest, ARequestsSpansContinueTheTraceOfItsClient) {
  Cluster cluster({.otlp_endpoint = "http://" + collector_.endpoint()});
  ASSERT_TRUE(cluster.WaitForReady());
  grpc::ClientContext context;
  context.AddMetadata("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  v1::GenerateUnaryResponse answer;
  ASSERT_TRUE(cluster.stub->GenerateUnary(&context, Request(5), &answer).ok());
  const auto has = [&](const std::string& name) {
    for (const otlp::Span& span : collector_.spans()) {
      if (span.name().starts_with(name)) return true;
    }
    return false;
  };
  ASSERT_TRUE(WaitUntil([&] { return has("text_completion"); }));
  EXPECT_TRUE(has("route"));
  EXPECT_TRUE(has("decode"));
  for (const otlp::Span& span : collector_.spans()) {
    EXPECT_EQ(absl::BytesToHexString(span.trace_id()), "0af7651916cd43dd8448eb211c80319c");
    if (!span.name().starts_with("text_completion")) continue;
    EXPECT_EQ(absl::BytesToHexString(span.parent_span_id()), "b7ad6b7169203331");
  }
}

}  // namespace
}  // namespace penstock
