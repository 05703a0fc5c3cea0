// The HTTP server spoken to in HTTP/2, by a client that keeps to the protocol; http2_attack_test.cc
// has those that do not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "http/http2/http2_flood_detector.h"
#include "http/http2/http2_ready.h"
#include "http/server/http_server.h"
#include "tests/http/edge_fixture.h"
#include "tests/http/http2_client.h"
#include "tests/http/http_client.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

class Http2Test : public ::testing::Test, protected EdgeFixture {};

TEST(Http2FloodDetectorTest, FloodsAreDistinguishedFromOrdinaryClients) {
  using Verdict = Http2FloodDetector::Verdict;
  const TimePoint begin{};
  Http2FloodDetector library(begin);
  TimePoint now = begin;
  for (int i = 0; i < 100'000; ++i) {  // 200 pings a second, and two updates a frame of answer
    now += 5ms;
    library.OnDataSent();
    EXPECT_EQ(library.OnFrame(NGHTTP2_WINDOW_UPDATE, now), Verdict::kOk);
    EXPECT_EQ(library.OnFrame(NGHTTP2_WINDOW_UPDATE, now), Verdict::kOk);
    ASSERT_EQ(library.OnFrame(NGHTTP2_PING, now), Verdict::kOk) << i;
    EXPECT_EQ(library.OnFrame(NGHTTP2_HEADERS, now), Verdict::kOk);
  }
  Http2FloodDetector flooded(begin);
  for (int i = 0; i < 4000; ++i) ASSERT_EQ(flooded.OnFrame(NGHTTP2_PING, begin), Verdict::kOk);
  EXPECT_EQ(flooded.OnResetSent(begin), Verdict::kRefuseStreams);
  EXPECT_EQ(flooded.OnFrame(NGHTTP2_HEADERS, begin), Verdict::kRefuseStreams) << "from now on";
  for (int i = 0; i < 199; ++i) flooded.OnFrame(NGHTTP2_SETTINGS, begin);
  EXPECT_EQ(flooded.OnEmptyData(begin), Verdict::kRefuseStreams);
  EXPECT_EQ(flooded.OnFrame(NGHTTP2_SETTINGS, begin), Verdict::kCloseConnection);
  EXPECT_EQ(flooded.OnFrame(NGHTTP2_PING, begin + 60s), Verdict::kOk);
}

TEST(Http2ReadyTest, WakesOnceForAllAndIsNotKeptByThoseItForgot) {
  int wakes = 0;
  auto ready = std::make_shared<Http2Ready>([&] { ++wakes; });
  auto first = std::make_shared<Http2Ready::Mark>(ready, 1);
  auto second = std::make_shared<Http2Ready::Mark>(ready, 3);
  for (int i = 0; i < 3; ++i) first->Wake();
  second->Wake();
  EXPECT_EQ(wakes, 1);
  EXPECT_EQ(ready->Take(), (std::vector<int32_t>{1, 3}));
  second->Wake();
  EXPECT_EQ(wakes, 2);
  EXPECT_EQ(ready->marks(), 2u);
  ready->Close();
  first->Wake();
  EXPECT_EQ(wakes, 2);
  const std::weak_ptr<Http2Ready> weak = ready;
  for (auto* mark : {&first, &second}) mark->reset();
  ready.reset();
  EXPECT_TRUE(weak.expired()) << "marks that were queued keep what they are queued in";
}

TEST_F(Http2Test, RequestsAreAsHttp1HasThem) {
  Start();
  Http2Client client(endpoint());
  const Http2Reply& reply =
      client.Await(client.Send("POST", "/echo?a=b", "hello", {{"x-name", "value"}}));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "POST /echo?a=b\nx-name: value\nhost: test\n\nhello");
  EXPECT_EQ(reply.headers.at("content-length"), std::to_string(reply.body.size()));
  EXPECT_EQ(client.Ask("/echo").body, "GET /echo?\nhost: test\n\n");
  EXPECT_EQ(client.Ask("/echo").body, Ask(endpoint(), "/echo").body) << "HTTP/1.1 goes on";
  EXPECT_EQ(metrics_.connections(EdgeProtocol::kHttp2).Value(), 1);
  const HttpClient silent(endpoint());
  EXPECT_TRUE(WaitUntil([&] { return metrics_.connections(EdgeProtocol::kUnknown).Value() == 1; }));
}

TEST_F(Http2Test, AnswersWithoutABodyAreOneHead) {
  Start();
  Http2Client client(endpoint());
  const Http2Reply& empty = client.Ask("/empty");
  EXPECT_EQ(empty.status, 200);
  EXPECT_EQ(empty.headers.at("grpc-status"), "12");
  EXPECT_EQ(empty.headers.count("content-length"), 0u);
  EXPECT_TRUE(empty.complete);
  const Http2Reply& head = client.Await(client.Send("HEAD", "/large"));
  EXPECT_TRUE(head.complete);
  EXPECT_EQ(head.headers.at("content-length"), std::to_string(EdgeHandler::kLarge));
  EXPECT_TRUE(head.body.empty());
}

TEST_F(Http2Test, StreamsComeAsTheyAreMadeAndEndWithTrailers) {
  Start();
  Http2Client client(endpoint());
  const int32_t first = client.Send("POST", "/fed", "x");
  const int32_t second = client.Send("POST", "/fed", "x");
  ASSERT_TRUE(client.WaitUntil([&] { return handler_.handled == 2; }));
  handler_.Fed(0)->Add("one ");
  handler_.Fed(1)->Add("uno ");
  EXPECT_TRUE(client.WaitUntil([&] {
    return client.reply(first).body.size() == 4 && client.reply(second).body.size() == 4;
  }));
  handler_.Fed(1)->End(BodySource::State::kEnd, {{"grpc-status", "0"}});
  handler_.Fed(0)->Add("two");
  handler_.Fed(0)->End(BodySource::State::kEnd);
  const std::string bodies[] = {client.Await(first).body, client.Await(second).body};
  EXPECT_EQ((bodies[0] < bodies[1] ? bodies[0] : bodies[1]), "one two");
  EXPECT_EQ((bodies[0] < bodies[1] ? bodies[1] : bodies[0]), "uno ");
  EXPECT_EQ(client.reply(first).trailers.size() + client.reply(second).trailers.size(), 1u);
  EXPECT_TRUE(WaitUntil([&] { return handler_.left == 0; }));
}

TEST_F(Http2Test, WhatBreaksIsReset) {
  Start();
  Http2Client client(endpoint());
  const int32_t stream = client.Send("POST", "/fed", "x");
  ASSERT_TRUE(client.WaitUntil([&] { return handler_.handled == 1; }));
  handler_.Fed()->Add("some");
  handler_.Fed()->End(BodySource::State::kBroken);
  const Http2Reply& reply = client.Await(stream);
  EXPECT_EQ(reply.body, "some");
  EXPECT_FALSE(reply.complete);
  EXPECT_EQ(reply.reset, static_cast<uint32_t>(NGHTTP2_INTERNAL_ERROR));
  EXPECT_EQ(client.Ask("/echo").status, 200) << "the others go on";
}

TEST_F(Http2Test, BodiesAreTakenAsTheyComeWhereTheHandlerWants) {
  Start();
  Http2Client client(endpoint());
  const int32_t stream = client.Send("POST", "/sink", std::nullopt);
  client.SendBody(stream, "first", /*end=*/false);
  EXPECT_TRUE(client.WaitUntil([&] { return client.reply(stream).body == "first"; }));
  client.SendBody(stream, " second", /*end=*/true);
  const Http2Reply& reply = client.Await(stream);
  EXPECT_EQ(reply.body, "first second");
  EXPECT_EQ(reply.trailers.at("taken"), "12");
  EXPECT_EQ(handler_.handled, 0);
  const std::string large(3 << 20, 'y');
  EXPECT_EQ(client.Await(client.Send("POST", "/sink", large)).body, large) << "beyond any window";
}

TEST_F(Http2Test, AnswersBeforeTheirRequestEndsStopIt) {
  Start();
  Http2Client client(endpoint());
  for (const std::string path : {"/forbidden", "/full"}) {
    const int32_t stream = client.Send("POST", path, std::nullopt);
    client.SendBody(stream, "some", /*end=*/false);
    const Http2Reply& reply = client.Await(stream);
    EXPECT_TRUE(client.WaitUntil([&] { return reply.reset.has_value(); }));
    EXPECT_EQ(reply.status, path == "/full" ? 413 : 403);
    EXPECT_TRUE(reply.complete);
    EXPECT_EQ(reply.reset, static_cast<uint32_t>(NGHTTP2_NO_ERROR));
  }
}

TEST_F(Http2Test, TellsWhoAnswersThatTheClientLeft) {
  Start();
  {
    Http2Client client(endpoint());
    const int32_t waiting = client.Send("POST", "/never", "x");
    const int32_t streaming = client.Send("POST", "/endless", "x");
    ASSERT_TRUE(client.WaitUntil([&] { return !client.reply(streaming).body.empty(); }));
    client.Reset(waiting);
    client.Reset(streaming);
    EXPECT_TRUE(WaitUntil([&] { return handler_.left == 2; }));
    client.Send("POST", "/never", "x");
    ASSERT_TRUE(client.WaitUntil([&] { return handler_.handled == 3; }));
  }
  EXPECT_TRUE(WaitUntil([&] { return handler_.left == 3; })) << "closed";
}

TEST_F(Http2Test, PullsNoMoreThanTheClientTakes) {
  Start();
  Http2Client client(endpoint(), {.window_bytes = 10'000, .updates = false});
  const int32_t stream = client.Send("POST", "/endless", "x");
  EXPECT_TRUE(client.WaitUntil([&] { return client.reply(stream).body.size() == 10'000; }));
  EXPECT_EQ(handler_.endless->pulled, 10'000u);
  client.Update(stream, 6'000);
  EXPECT_TRUE(client.WaitUntil([&] { return client.reply(stream).body.size() == 16'000; }));
  EXPECT_EQ(handler_.endless->pulled, 16'000u);
}

TEST_F(Http2Test, OneStreamWithoutEndStarvesNoOther) {
  Start();
  Http2Client client(endpoint());
  client.Send("POST", "/endless", "x");
  EXPECT_EQ(client.Ask("/large").body.size(), EdgeHandler::kLarge);
}

TEST_F(Http2Test, ManyStreamsOfOneConnection) {
  Start();
  Http2Client client(endpoint());
  std::vector<int32_t> streams;
  for (int i = 0; i < 1000; ++i) streams.push_back(client.Send("POST", "/fed", "x"));
  ASSERT_TRUE(client.WaitUntil([&] { return handler_.handled == 1000; }));
  for (size_t i = 0; i < streams.size(); ++i) {
    handler_.Fed(i)->Add("text");
    handler_.Fed(i)->End(BodySource::State::kEnd, {{"grpc-status", "0"}});
  }
  for (const int32_t stream : streams) {
    EXPECT_EQ(client.Await(stream).body, "text");
    EXPECT_EQ(client.reply(stream).trailers.at("grpc-status"), "0");
  }
}

TEST_F(Http2Test, WhatWasAnsweredIsSentBeforeTheEnd) {
  Start({.times = {.linger = 200ms}});
  Http2Client idle(endpoint());
  EXPECT_EQ(idle.Ask("/echo").status, 200);
  Http2Client busy(endpoint());
  const int32_t stream = busy.Send("POST", "/fed", "x");
  ASSERT_TRUE(busy.WaitUntil([&] { return handler_.handled == 2; }));
  std::atomic<bool> whole{false};
  std::thread finish([&] { whole = server_->Finish(60s); });
  EXPECT_TRUE(busy.WaitUntil([&] { return busy.goaways().size() == 2; }));
  EXPECT_EQ(busy.goaways()[0].last_stream, INT32_MAX) << "those under way are still taken";
  EXPECT_EQ(busy.goaways()[1].last_stream, stream);
  handler_.Fed()->Add("late");
  handler_.Fed()->End(BodySource::State::kEnd, {{"grpc-status", "0"}});
  EXPECT_EQ(busy.Await(stream).body, "late");
  EXPECT_FALSE(busy.WaitUntil([] { return false; })) << "and then it is closed";
  EXPECT_TRUE(busy.closed());
  EXPECT_FALSE(idle.WaitUntil([] { return false; }));
  EXPECT_TRUE(idle.closed());
  finish.join();
  EXPECT_TRUE(whole);
}

TEST_F(Http2Test, APortForHttp2SaysSoToOthers) {
  Start({.protocols = Protocols::kHttp2});
  EXPECT_EQ(Http2Client(endpoint()).Ask("/echo").status, 200);
  HttpClient other(endpoint());
  other.Send(HttpText("/echo"));
  const HttpReply reply = other.Receive();
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(reply.body, HasSubstr("HTTP/2 only"));
  EXPECT_TRUE(other.Closes());
  EXPECT_EQ(metrics_.hits(EdgeLimit::kMalformed), 1);
}

TEST_F(Http2Test, CountsWhatItRefuses) {
  Start({.limits = {.head_bytes = 200, .body_bytes = 10}});
  Http2Client client(endpoint());
  const std::string large(300, 'x');
  EXPECT_EQ(client.Await(client.Send("GET", "/echo", "", {{"x-large", large}})).status, 431);
  EXPECT_EQ(client.Await(client.Send("POST", "/echo", large)).status, 413);
  EXPECT_EQ(metrics_.hits(EdgeLimit::kHead), 1);
  EXPECT_EQ(metrics_.hits(EdgeLimit::kBody), 1);
}

TEST_F(Http2Test, ConnectionsBeyondTheLimitAreToldInHttp2) {
  Start({.max_connections = 1, .protocols = Protocols::kHttp2});
  Http2Client first(endpoint());
  first.Send("GET", "/never");
  ASSERT_TRUE(WaitUntil([&] { return handler_.handled == 1 && server_->idle_connections() == 0; }));
  HttpClient second(endpoint());
  EXPECT_TRUE(second.ReceiveUntil(std::string("\0\0\0\4\0\0\0\0\0", 9))) << "SETTINGS";
  EXPECT_TRUE(second.ReceiveUntil(std::string("\7\0\0\0\0\0\0\0\0\0\0\0\0\x0bthe server has", 28)));
  EXPECT_TRUE(second.Closes());
}

TEST_F(Http2Test, ThePrefaceMayComeInPieces) {
  Start();
  HttpClient client(endpoint());
  const std::string preface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  for (const char c : preface) client.Send({&c, 1});
  EXPECT_TRUE(client.ReceiveUntil(std::string("\0\0\0\4\1\0\0\0\0", 9))) << "SETTINGS' ACK";
}

}  // namespace
}  // namespace penstock
