#include "base/metrics/metrics.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/lifecycle.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

std::string Scrape(const std::string& endpoint) {
  const HostPort address = ParseHostPort(endpoint).value();
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address.port);
  inet_pton(AF_INET, address.host.c_str(), &to.sin_addr);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t got; (got = read(fd, buffer, sizeof(buffer))) > 0;) answer.append(buffer, got);
  close(fd);
  return answer;
}

TEST(Metrics, AScrapeShowsEverySeriesFromTheStart) {
  MetricsRegistry registry;
  AddProcessMetrics(registry, "test");
  registry.Counter("penstock_things_total", "Things.", {{"kind", "big"}}).Increment(3);
  registry.Counter("penstock_things_total", "Things.", {{"kind", "small"}});
  auto server = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string text = Scrape((*server)->endpoint());
  EXPECT_THAT(text, HasSubstr("penstock_things_total{kind=\"big\"} 3"));
  EXPECT_THAT(text, HasSubstr("penstock_things_total{kind=\"small\"} 0"));
  EXPECT_THAT(text, HasSubstr("penstock_build_info{"));
  EXPECT_THAT(text, HasSubstr("process_resident_memory_bytes "));
}

TEST(Metrics, RefreshesBeforeEachScrape) {
  MetricsRegistry registry;
  prometheus::Gauge& gauge = registry.Gauge("penstock_scrapes", "Scrapes so far.");
  registry.BeforeScrape([&gauge] { gauge.Increment(); });
  registry.Collect();
  EXPECT_EQ(gauge.Value(), 1);
  registry.Collect();
  EXPECT_EQ(gauge.Value(), 2);
}

TEST(Metrics, ATakenPortIsAnErrorThatNamesIt) {
  MetricsRegistry registry;
  auto first = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = MetricsServer::Start((*first)->endpoint(), registry);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr((*first)->endpoint()));
}

}  // namespace
}  // namespace penstock
