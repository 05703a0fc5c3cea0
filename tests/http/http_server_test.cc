// The HTTP server under clients that are slow, rude or too many.

#include "http/server/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "tests/http/edge_fixture.h"
#include "tests/http/http_client.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

// EdgeHandler's /echo of a request.
MATCHER_P2(Echoes, method, body, "") {
  return arg.starts_with(std::string(method) + " ") && arg.ends_with(std::string("\n\n") + body);
}

class HttpServerTest : public ::testing::Test, protected EdgeFixture {
 protected:
  // A counter's value, or a gauge's.
  double Metric(const std::string& name, const std::string& label, const std::string& value) {
    for (const prometheus::MetricFamily& family : registry_.Collect()) {
      for (const prometheus::ClientMetric& metric : family.metric) {
        const auto has = [&](const auto& pair) {
          return pair.name == label && pair.value == value;
        };
        if (family.name == name && std::any_of(metric.label.begin(), metric.label.end(), has)) {
          return metric.counter.value + metric.gauge.value;
        }
      }
    }
    ADD_FAILURE() << name << " has no " << label << "=" << value;
    return -1;
  }
  double Hits(const std::string& limit) {
    return Metric("penstock_edge_limit_hits_total", "limit", limit);
  }
};

TEST_F(HttpServerTest, AnswersHowTheRequestWasFramed) {
  Start();
  const std::string chunked =
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: t\r\n\r\n";
  HttpClient client(endpoint());
  client.Send(chunked + HttpText("/echo", "fgh") + chunked);
  EXPECT_THAT(client.Receive().body, Echoes("POST", "abcde"));
  EXPECT_THAT(client.Receive().body, Echoes("POST", "fgh"));
  EXPECT_THAT(client.Receive().body, Echoes("POST", "abcde"));
  HttpClient slow(endpoint());
  for (const char c : chunked) slow.Send({&c, 1});
  EXPECT_THAT(slow.Receive().body, Echoes("POST", "abcde"));
  HttpClient old(endpoint());
  old.Send("GET /echo HTTP/1.0\r\n\r\n");
  EXPECT_THAT(old.Receive().body, Echoes("GET", ""));
  EXPECT_TRUE(old.Closes());
  HttpClient asks_first(endpoint());
  asks_first.Send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(asks_first.ReceiveUntil("HTTP/1.1 100 Continue\r\n\r\n"));
  asks_first.Send("hi");
  EXPECT_THAT(asks_first.Receive().body, Echoes("POST", "hi"));
}

TEST_F(HttpServerTest, WhatWasAnsweredIsSentBeforeTheEnd) {
  Start();
  HttpClient idle(endpoint());
  idle.Send(HttpText("/echo", "a"));
  EXPECT_THAT(idle.Receive().body, Echoes("POST", "a"));
  HttpClient slow(endpoint());
  slow.Send(HttpText("/large"));
  EXPECT_TRUE(slow.ReceiveUntil("\r\n\r\n"));
  std::atomic<bool> whole{false};
  std::thread finish([&] { whole = server_->Finish(60s); });
  EXPECT_TRUE(idle.Closes());
  EXPECT_TRUE(WaitUntil([&] { return HttpClient(endpoint()).Closes(100ms); }));
  const HttpReply reply = slow.Receive(60s);
  EXPECT_EQ(reply.body.size(), EdgeHandler::kLarge);
  EXPECT_TRUE(reply.complete);
  finish.join();
  EXPECT_TRUE(whole);
}

TEST_F(HttpServerTest, ABrokenAnswerIsNotTakenForAWholeOne) {
  Start();
  HttpClient client(endpoint());
  client.Send(HttpText("/fed"));
  const std::shared_ptr<FedBody> body = handler_.Fed();
  body->Add("half");
  body->End(BodySource::State::kBroken);
  const HttpReply reply = client.Receive();
  EXPECT_EQ(reply.body, "half");
  EXPECT_FALSE(reply.complete);
  EXPECT_TRUE(client.Closes());
}

TEST_F(HttpServerTest, WhoDoesNotReadIsNotWaitedForForEver) {
  Start();
  HttpClient client(endpoint());
  client.Send(HttpText("/large"));
  EXPECT_TRUE(client.ReceiveUntil("\r\n\r\n"));
  EXPECT_FALSE(server_->Finish(200ms));
  server_.reset();
}

TEST_F(HttpServerTest, ARefusalIsReadThoughTheBodyStillComes) {
  Start();
  HttpClient client(endpoint());
  client.Send("POST /forbidden HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n");
  client.Send(std::string(300'000, 'x'));
  EXPECT_EQ(client.Receive().status, 403);
  EXPECT_TRUE(client.Closes());
  EXPECT_EQ(handler_.handled, 0);
}

TEST_F(HttpServerTest, SlowRequestsAreCutOff) {
  Start({.times = {.first_byte = 1s, .head = 1s, .body = 1s}});
  HttpClient idle(endpoint());
  HttpClient head(endpoint());
  head.Send("GET / HTTP/1.1\r\nHo");
  HttpClient body(endpoint());
  body.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(head.Receive().status, 408);
  EXPECT_EQ(body.Receive().status, 408);
  EXPECT_TRUE(idle.Closes());
  EXPECT_TRUE(head.Closes());
  EXPECT_TRUE(WaitUntil([&] { return server_->connections() == 0; }));
  EXPECT_EQ(Hits("slow_request"), 2);  // that nothing came of the idle one is no limit's doing
  EXPECT_EQ(Metric("penstock_edge_responses_total", "code", "408"), 2);
}

TEST_F(HttpServerTest, AConnectionMayBeIdleLongerAfterARequestThanBeforeTheFirst) {
  Start({.times = {.first_byte = 1s, .idle = 60s}});
  HttpClient used(endpoint());
  used.Send(HttpText("/echo"));
  EXPECT_EQ(used.Receive().status, 200);
  HttpClient silent(endpoint());
  EXPECT_TRUE(silent.Closes());
  used.Send(HttpText("/echo"));
  EXPECT_EQ(used.Receive().status, 200);
}

TEST_F(HttpServerTest, TheLongestIdleConnectionOfTheClientWithTheMostMakesRoom) {
  Start({.max_connections = 4, .times = {.first_byte = 60s, .head = 60s}});
  HttpClient other(endpoint(), "127.0.0.2");
  ASSERT_TRUE(WaitUntil([&] { return server_->idle_connections() == 1; }));
  HttpClient silent(endpoint());
  ASSERT_TRUE(WaitUntil([&] { return server_->idle_connections() == 2; }));
  HttpClient slow(endpoint());
  slow.Send("GET /echo HTTP/1.1\r\nHost: a\r\n");
  ASSERT_TRUE(WaitUntil([&] { return server_->idle_connections() == 3; }));
  HttpClient busy(endpoint());
  busy.Send(HttpText("/never"));
  ASSERT_TRUE(WaitUntil([&] { return handler_.handled == 1; }));
  ASSERT_TRUE(WaitUntil([&] { return server_->idle_connections() == 3; }));
  EXPECT_EQ(Ask(endpoint(), "/echo").status, 200) << "strangers do not keep others out";
  EXPECT_TRUE(silent.Closes());
  EXPECT_GE(Hits("connections"), 1);
  slow.Send("\r\n");
  EXPECT_EQ(slow.Receive().status, 200);
  EXPECT_EQ(handler_.left, 0) << "requests in work are not given up";
  EXPECT_TRUE(other.Send(HttpText("/echo")));
  EXPECT_EQ(other.Receive().status, 200) << "clients with few connections keep theirs";
}

TEST_F(HttpServerTest, AClientThatReadsNothingHoldsLittleAndIsCutOff) {
  Start({.times = {.stall = 500ms}});
  HttpClient client(endpoint());
  client.Send(HttpText("/endless"));
  EXPECT_TRUE(WaitUntil([&] { return handler_.left == 1; }));
  // The system's buffers and one of ours took no more than this.
  EXPECT_LT(handler_.endless->pulled, 16u << 20);
  EXPECT_EQ(Hits("stalled"), 1);
  EXPECT_TRUE(WaitUntil([&] { return server_->connections() == 0; }));
}

TEST_F(HttpServerTest, TellsWhoAnswersThatTheClientLeft) {
  Start();
  {
    HttpClient client(endpoint());
    client.Send(HttpText("/never"));
    EXPECT_TRUE(WaitUntil([&] { return handler_.handled == 1; }));
  }
  EXPECT_TRUE(WaitUntil([&] { return handler_.left == 1; }));
  HttpClient half(endpoint());
  half.Send(HttpText("/never"));
  EXPECT_TRUE(WaitUntil([&] { return handler_.handled == 2; }));
  half.FinishSending();
  EXPECT_TRUE(WaitUntil([&] { return handler_.left == 2; }));
  HttpClient last(endpoint());
  last.Send(HttpText("/never"));
  EXPECT_TRUE(WaitUntil([&] { return handler_.handled == 3; }));
  server_.reset();
  EXPECT_EQ(handler_.left, 3) << "the server's end is theirs, too";
}

TEST_F(HttpServerTest, ManySlowClientsStarveNobody) {
  Start({.times = {.head = 60s}});
  std::vector<std::unique_ptr<HttpClient>> slow;
  for (int i = 0; i < 300; ++i) {
    slow.push_back(std::make_unique<HttpClient>(endpoint()));
    slow.back()->Send(i % 2 == 0 ? "GET / HTTP/1.1\r\nH" : HttpText("/never"));
  }
  for (int i = 0; i < 50; ++i) {
    EXPECT_THAT(Ask(endpoint(), "/echo", "hi").body, Echoes("POST", "hi"));
  }
}

TEST_F(HttpServerTest, RefusesConnectionsBeyondItsLimitAndRecovers) {
  Start({.max_connections = 3});
  {
    std::vector<std::unique_ptr<HttpClient>> open;
    for (int i = 0; i < 3; ++i) {
      open.push_back(std::make_unique<HttpClient>(endpoint()));
      open.back()->Send(HttpText("/never"));
    }
    ASSERT_TRUE(
        WaitUntil([&] { return handler_.handled == 3 && server_->idle_connections() == 0; }));
    HttpClient refused(endpoint());
    EXPECT_EQ(refused.Receive().status, 503);
    EXPECT_TRUE(refused.Closes());
    EXPECT_GE(Hits("connections"), 1);
    EXPECT_EQ(Metric("penstock_edge_connections", "protocol", "http1"), 3);
  }
  EXPECT_TRUE(WaitUntil([&] { return Ask(endpoint(), "/echo").status == 200; }));
}

TEST_F(HttpServerTest, RefusesWhenDescriptorsRunOutAndRecovers) {
  Start();
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  std::vector<std::unique_ptr<HttpClient>> open;
  HttpClient waiting(endpoint());
  waiting.Send(HttpText("/echo"));
  ASSERT_EQ(waiting.Receive().status, 200);
  // No number above the client's own is free: the connection is made, but cannot be accepted.
  HttpClient refused(endpoint());
  ASSERT_TRUE(WaitUntil([&] { return server_->connections() == 2; }));
  std::vector<int> fillers;
  rlimit none = before;
  none.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  while (true) {
    const int filler = dup(waiting.fd());
    if (filler < 0) break;
    fillers.push_back(filler);
  }
  close(fillers.back());  // for the client's end
  fillers.pop_back();
  HttpClient late(endpoint());
  EXPECT_EQ(late.Receive().status, 503);
  waiting.Send(HttpText("/echo"));
  EXPECT_EQ(waiting.Receive().status, 200) << "those that are open go on";
  for (const int filler : fillers) close(filler);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(WaitUntil([&] { return Ask(endpoint(), "/echo").status == 200; }));
}

TEST_F(HttpServerTest, BodiesOfAllConnectionsHaveOneBudget) {
  Start({.body_bytes_max = 2 << 20});
  const std::string half(700'000, 'x');
  const std::string request =
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 800000\r\n\r\n" + half;
  HttpClient first(endpoint());
  first.Send(request);
  EXPECT_TRUE(WaitUntil([&] { return server_->body_bytes() >= half.size(); }));
  HttpClient second(endpoint());
  second.Send(request);
  EXPECT_EQ(second.Receive().status, 503);
  EXPECT_EQ(Hits("bodies"), 1);
  first.Send(std::string(100'000, 'x'));
  EXPECT_EQ(first.Receive().status, 200);
  EXPECT_TRUE(WaitUntil([&] { return server_->body_bytes() == 0; }));
}

// A client or tenant that holds its share of the memory for bodies leaves room for others.
TEST_F(HttpServerTest, BodiesOfOneAccountHaveAShare) {
  Start({.body_bytes_max = 1 << 20});
  const auto begun = [](const std::string& headers) {
    return "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 400000\r\n" + headers + "\r\n" +
           std::string(300'000, 'x');
  };
  const std::string whole = HttpText("/echo", std::string(200'000, 'y'));
  HttpClient first(endpoint());
  first.Send(begun(""));
  EXPECT_TRUE(WaitUntil([&] { return server_->body_bytes() >= 300'000; }));
  for (int i = 0; i < 2; ++i) {
    HttpClient more(endpoint());
    more.Send(begun(""));
    EXPECT_EQ(more.Receive().status, 503);
  }
  HttpClient other(endpoint(), "127.0.0.2");
  other.Send(whole);
  EXPECT_EQ(other.Receive().status, 200);
  HttpClient tenant(endpoint());
  tenant.Send(begun("X-Account: tenant a\r\n"));
  EXPECT_TRUE(WaitUntil([&] { return server_->body_bytes() >= 600'000; }));
  HttpClient same_tenant(endpoint(), "127.0.0.2");
  same_tenant.Send(begun("X-Account: tenant a\r\n"));
  EXPECT_EQ(same_tenant.Receive().status, 503);
  other.Send(whole);
  EXPECT_EQ(other.Receive().status, 200);
}

TEST_F(HttpServerTest, ABodyThatStopsIsCutOffWhateverCameBefore) {
  Start({.times = {.body = 300ms, .body_bytes_per_s = 1000}});
  HttpClient client(endpoint());
  client.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" +
              std::string(100'000, 'x'));
  EXPECT_EQ(client.Receive().status, 408);
}

TEST(EdgeTimesTest, ABodyLastsAsLongAsItsRate) {
  const EdgeTimes times{.body = 10s, .body_bytes_per_s = 1000};
  const TimePoint begin{};
  TimePoint deadline = begin + times.body;
  for (int second = 1; second <= 100; ++second) {
    deadline = times.NextBodyDeadline(deadline, 1000, begin + std::chrono::seconds(second));
    EXPECT_EQ(deadline, begin + std::chrono::seconds(second) + 10s);
  }
  EXPECT_EQ(times.NextBodyDeadline(deadline, 500, begin + 105s), begin + 110s + 500ms);
  EXPECT_EQ(times.NextBodyDeadline(deadline, 4 << 20, begin + 105s), begin + 115s);
}

TEST_F(HttpServerTest, CountsWhatItRefuses) {
  Start({.limits = {.head_bytes = 200, .body_bytes = 10}});
  const auto status = [&](const std::string& request) {
    HttpClient client(endpoint());
    client.Send(request);
    return client.Receive().status;
  };
  EXPECT_EQ(status("GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(300, 'x') + "\r\n\r\n"), 431);
  EXPECT_EQ(status(HttpText("/echo", "more than ten")), 413);
  EXPECT_EQ(status("GET /\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/3.0\r\nHost: a\r\n\r\n"), 505);
  EXPECT_EQ(status(HttpText("/echo", "few")), 200);
  EXPECT_EQ(Hits("head"), 1);
  EXPECT_EQ(Hits("body"), 1);
  EXPECT_EQ(Hits("malformed"), 2);
  EXPECT_EQ(Metric("penstock_edge_responses_total", "code", "200"), 1);
  EXPECT_EQ(Metric("penstock_edge_responses_total", "code", "431"), 1);
}

TEST_F(HttpServerTest, CountsRequestsThatNoThreadTakes) {
  Start({.handlers = 0, .max_queued = 1});
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<HttpClient>(endpoint()));
    clients.back()->Send(HttpText("/echo"));
  }
  EXPECT_TRUE(WaitUntil([&] { return Hits("queue") == 2; }));
  EXPECT_TRUE(
      WaitUntil([&] { return Metric("penstock_edge_responses_total", "code", "503") == 2; }));
}

TEST_F(HttpServerTest, ATakenPortIsAnError) {
  Start();
  const auto second = HttpServer::Start({.listen = endpoint()}, handler_, metrics_, clock_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(second.status()), HasSubstr("cannot listen on " + endpoint()));
}

}  // namespace
}  // namespace penstock
