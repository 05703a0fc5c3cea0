#include "http/metrics/metrics_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <list>

#include "tests/http/http_client.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

TEST(MetricsServer, AScrapeShowsEverySeriesFromTheStart) {
  MetricsRegistry registry;
  AddProcessMetrics(registry, "test");
  registry.Counter("penstock_things_total", "Things.", {{"kind", "big"}}).Increment(3);
  registry.Counter("penstock_things_total", "Things.", {{"kind", "small"}});
  auto server = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  const HttpReply reply = Ask((*server)->endpoint(), "/metrics");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(reply.body, HasSubstr("penstock_things_total{kind=\"big\"} 3"));
  EXPECT_THAT(reply.body, HasSubstr("penstock_things_total{kind=\"small\"} 0"));
  EXPECT_THAT(reply.body, HasSubstr("penstock_build_info{"));
  EXPECT_THAT(reply.body, HasSubstr("process_resident_memory_bytes "));
  EXPECT_THAT(reply.body, Not(HasSubstr("penstock_edge_")));
}

TEST(MetricsServer, SpeaksOpenMetricsToThoseWhoPreferIt) {
  MetricsRegistry registry;
  registry.Traced("penstock_wait_seconds", "Wait.", {1}).Observe(0.5, std::string(32, 'a'));
  auto server = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto ask = [&](const std::string& accept) {
    return Ask((*server)->endpoint(), "/metrics", "", "Accept: " + accept + "\r\n");
  };
  const HttpReply modern = ask("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
  EXPECT_EQ(modern.headers.at("content-type"),
            "application/openmetrics-text; version=1.0.0; charset=utf-8");
  EXPECT_THAT(modern.body, HasSubstr("le=\"1.0\"} 1 # {trace_id=\"aaaa"));
  const HttpReply plain = ask("text/plain");
  EXPECT_EQ(plain.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(plain.body, HasSubstr("le=\"1\"} 1\n"));
}

TEST(MetricsServer, HealthChecksAreAnsweredAsTheyStandNow) {
  MetricsRegistry registry;
  std::atomic<bool> serving = true;
  auto server = MetricsServer::Start(
      "127.0.0.1:0", registry, {{.path = "/live", .serving = [&] { return serving.load(); }}});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(Ask((*server)->endpoint(), "/live").status, 200);
  serving = false;
  const HttpReply reply = Ask((*server)->endpoint(), "/live");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.body, "not serving\n");
  EXPECT_EQ(Ask((*server)->endpoint(), "/metrics").status, 200);
  EXPECT_EQ(Ask((*server)->endpoint(), "/ready").status, 404);
}

TEST(MetricsServer, SaysWhereMetricsAre) {
  MetricsRegistry registry;
  auto server = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(Ask((*server)->endpoint(), "/").status, 404);
  HttpClient client((*server)->endpoint());
  ASSERT_TRUE(client.Send("PUT /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
  EXPECT_EQ(client.Receive().status, 405);
  EXPECT_EQ(Ask((*server)->endpoint(), "/metrics", "{}").status, 413);  // It takes no bodies.
}

// More callers than the server has connections, that say nothing or the beginning of a request.
TEST(MetricsServer, SilenceKeepsNoScrapeOut) {
  MetricsRegistry registry;
  auto server = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  std::list<HttpClient> silent;
  for (int i = 0; i < 200; ++i) {
    silent.emplace_back((*server)->endpoint(), "127.0.0.2").Send(i % 2 == 0 ? "" : "GET /met");
    if (i % 20 != 19) continue;
    EXPECT_EQ(Ask((*server)->endpoint(), "/metrics").status, 200) << i;
  }
}

TEST(MetricsServer, ATakenPortIsAnErrorThatNamesIt) {
  MetricsRegistry registry;
  auto first = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = MetricsServer::Start((*first)->endpoint(), registry);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr((*first)->endpoint()));
}

}  // namespace
}  // namespace penstock
