// The HTTP server under clients that use HTTP/2 to wear it down: each attack ends in a refusal, and
// neither in growth nor in deafness for the others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <fstream>

#include "http/server/http_server.h"
#include "tests/http/edge_fixture.h"
#include "tests/http/http2_client.h"
#include "tests/http/http2_frames.h"
#include "tests/http/http_client.h"
#include "tests/support/sanitizers.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using namespace std::chrono_literals;
using http2::Frame;
using http2::kEndHeaders;
using http2::kEndStream;
using http2::Number;

// Sanitizers keep what was freed, and write down what was called.
#ifdef PENSTOCK_TEST_SANITIZED
constexpr size_t kMoreMemory = 16;
#else
constexpr size_t kMoreMemory = 1;
#endif

size_t ResidentBytes() {
  size_t total = 0;
  size_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * 4096;
}

// The error of the GOAWAY among the frames that came last; they follow each other without a gap.
std::optional<uint32_t> GoawayIn(std::string_view bytes) {
  std::optional<uint32_t> error;
  while (bytes.size() >= 9) {
    const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
    const size_t length = size_t{at(0)} << 16 | size_t{at(1)} << 8 | at(2);
    if (bytes.size() < 9 + length) break;
    if (at(3) == NGHTTP2_GOAWAY) error = at(13) << 24 | at(14) << 16 | at(15) << 8 | at(16);
    bytes.remove_prefix(9 + length);
  }
  return error;
}

struct Attack {
  std::string name;
  // One round of frames; `stream` is a number that was not used before.
  std::function<std::string(int32_t stream)> round;
  uint32_t error;  // of the GOAWAY
  std::string before = "";
};

void PrintTo(const Attack& attack, std::ostream* out) { *out << attack.name; }

constexpr uint32_t kCalm = NGHTTP2_ENHANCE_YOUR_CALM;
constexpr int kUntilReset = 0;  // flags of a request whose body is to come

std::vector<Attack> Attacks() {
  const std::string open = http2::Request(1, "/echo", kUntilReset);
  const std::string large(4000, 'v');
  // A field of 4,000 bytes enters the table (0x40), and is named by one byte (0xbe) from then on.
  const std::string bomb = http2::RequestFields("/echo") + "\x40" + http2::Text("x") +
                           http2::Text(large) + std::string(12'000, '\xbe');
  return {
      {"RapidReset",
       [](int32_t stream) { return http2::Request(stream, "/never") + http2::Reset(stream); },
       kCalm},
      {"RapidResetBeforeTheBody",
       [](int32_t stream) {
         return http2::Request(stream, "/sink", kUntilReset) + http2::Reset(stream);
       },
       kCalm},
      {"ResetsOfOurs",  // by a window that overflows, which is its stream's error only
       [](int32_t stream) {
         return http2::Request(stream, "/never") +
                Frame(NGHTTP2_WINDOW_UPDATE, 0, stream, Number(INT32_MAX, 4));
       },
       kCalm},
      {"Pings", [](int32_t) { return Frame(NGHTTP2_PING, 0, 0, "12345678"); }, kCalm},
      {"Settings", [](int32_t) { return Frame(NGHTTP2_SETTINGS, 0, 0); }, kCalm},
      {"SettingsOfWindows",
       [](int32_t stream) {
         return Frame(NGHTTP2_SETTINGS, 0, 0,
                      http2::Setting(NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE,
                                     1000 + static_cast<uint32_t>(stream % 1000)));
       },
       kCalm},
      {"EmptyData", [](int32_t) { return Frame(NGHTTP2_DATA, 0, 1); }, kCalm, open},
      {"Padding",
       [](int32_t) {
         return Frame(NGHTTP2_DATA, NGHTTP2_FLAG_PADDED, 1, "\xff" + std::string(255, '\0'));
       },
       kCalm, open},
      {"Priorities",
       [](int32_t stream) {
         return Frame(NGHTTP2_PRIORITY, 0, stream + 2000, Number(stream, 4) + "\x10");
       },
       kCalm},
      {"WindowUpdates", [](int32_t) { return Frame(NGHTTP2_WINDOW_UPDATE, 0, 0, Number(1, 4)); },
       kCalm},
      {"WindowUpdatesOfNothing",
       [](int32_t) { return Frame(NGHTTP2_WINDOW_UPDATE, 0, 0, Number(0, 4)); },
       NGHTTP2_PROTOCOL_ERROR},
      {"Continuations",
       [](int32_t) { return Frame(NGHTTP2_CONTINUATION, 0, 1, http2::Field("a", "b")); }, kCalm,
       Frame(NGHTTP2_HEADERS, kEndStream, 1, http2::RequestFields("/echo"))},
      {"CompressionBomb",
       [bomb](int32_t stream) {
         return Frame(NGHTTP2_HEADERS, kEndStream | kEndHeaders, stream, bomb);
       },
       kCalm},
      {"FieldsWithoutNames",
       [](int32_t stream) {
         return Frame(NGHTTP2_HEADERS, kEndStream | kEndHeaders, stream,
                      http2::RequestFields("/echo") + http2::Field("", ""));
       },
       kCalm},
      {"BadCompression",
       [](int32_t stream) {
         return Frame(NGHTTP2_HEADERS, kEndStream | kEndHeaders, stream, "\x80");
       },
       NGHTTP2_COMPRESSION_ERROR},
      {"StreamsBeyondTheLimit", [](int32_t stream) { return http2::Request(stream, "/never"); },
       kCalm},
      {"FramesTooLong", [](int32_t) { return Frame(NGHTTP2_DATA, 0, 1, std::string(16'385, 'x')); },
       NGHTTP2_FRAME_SIZE_ERROR, open},
      {"NotHttp2", [](int32_t) { return "GET / HTTP/1.1\r\nhost: a\r\n\r\n"; },
       NGHTTP2_FRAME_SIZE_ERROR},
  };
}

class Http2AttackTest : public ::testing::TestWithParam<Attack>, protected EdgeFixture {};

INSTANTIATE_TEST_SUITE_P(, Http2AttackTest, ::testing::ValuesIn(Attacks()),
                         [](const auto& attack) { return attack.param.name; });

// Sends rounds until the server closes; returns what it said.
std::string Wage(const Attack& attack, const HttpClient& client, size_t& sent_bytes) {
  std::string said;
  int32_t stream = 3;
  const auto receive = [&](int flags) {
    char buffer[65536];
    const ssize_t size = recv(client.fd(), buffer, sizeof(buffer), flags);
    if (size > 0) said.append(buffer, static_cast<size_t>(size));
    return size;
  };
  constexpr size_t kMaxBytes = 64 << 20;
  while (sent_bytes < kMaxBytes) {
    std::string rounds;
    for (; rounds.size() < 8192; stream += 2) rounds += attack.round(stream);
    if (!client.Send(rounds)) break;
    sent_bytes += rounds.size();
    while (receive(MSG_DONTWAIT) > 0) {
    }
  }
  while (sent_bytes < kMaxBytes && receive(0) > 0) {
  }
  return said;
}

TEST_P(Http2AttackTest, EndsInARefusal) {
  Start();
  EXPECT_EQ(Http2Client(endpoint()).Ask("/echo").status, 200);
  const size_t before = ResidentBytes();
  HttpClient client(endpoint());
  ASSERT_TRUE(client.Send(http2::Preface() + GetParam().before));
  size_t sent = 0;
  const std::string said = Wage(GetParam(), client, sent);
  const size_t grown = std::max(ResidentBytes(), before) - before;
  EXPECT_EQ(GoawayIn(said), GetParam().error);
  const double counted = metrics_.hits(EdgeLimit::kMalformed);
  if (GetParam().error == kCalm) {
    EXPECT_GE(metrics_.hits(EdgeLimit::kFlood) + metrics_.hits(EdgeLimit::kHead), 1);
  } else {
    EXPECT_EQ(counted, 1);
  }
  EXPECT_LT(sent, 8u << 20);
  EXPECT_LT(grown, (16u << 20) * kMoreMemory);
  EXPECT_LE(handler_.handled, 5000);
  // As soon as the attack's requests, which may still wait to be read, have ended.
  EXPECT_TRUE(WaitUntil([&] { return Http2Client(endpoint()).Ask("/echo").status == 200; }))
      << "others are heard";
  RecordProperty("sent_bytes", std::to_string(sent));
  RecordProperty("grown_bytes", std::to_string(grown));
  std::cout << sent << " bytes sent, " << grown << " bytes grown, " << handler_.handled
            << " requests handled\n";
}

using Http2LimitTest = Http2AttackTest;

TEST_F(Http2LimitTest, ResettingMakesNoRoomForMoreWork) {
  Start({.http2 = {.streams = 10}});
  Http2Client client(endpoint());
  for (int i = 0; i < 20; ++i) {
    const int32_t stream = client.Send("POST", "/never", "x");
    ASSERT_TRUE(client.WaitUntil([&] { return handler_.handled == i + 1; }));
    client.Reset(stream);
  }
  const Http2Reply& refused = client.Ask("/never", "x");
  EXPECT_EQ(refused.reset, static_cast<uint32_t>(NGHTTP2_REFUSED_STREAM)) << "may be tried again";
  EXPECT_EQ(handler_.handled, 20);
  handler_.DropKept();
  EXPECT_EQ(client.Ask("/echo").status, 200) << "once the work has ended";
}

TEST_F(Http2LimitTest, WhatAProxyHasOpenForOthersEndsInPeace) {
  Start();
  Http2Client proxy(endpoint());
  const int32_t stream = proxy.Send("POST", "/fed", "x");
  ASSERT_TRUE(proxy.WaitUntil([&] { return handler_.handled == 1; }));
  // In step with the server, so that it is not far beyond enough when the client hears of it.
  while (proxy.goaways().empty()) {
    for (int i = 0; i < 100; ++i) proxy.Reset(proxy.Send("POST", "/echo", "x"));
    const int32_t step = proxy.Send("GET", "/echo");
    ASSERT_TRUE(
        proxy.WaitUntil([&] { return !proxy.goaways().empty() || proxy.reply(step).complete; }));
  }
  EXPECT_EQ(proxy.goaways()[0].error, kCalm);
  handler_.Fed()->Add("in peace");
  handler_.Fed()->End(BodySource::State::kEnd);
  EXPECT_EQ(proxy.Await(stream).body, "in peace");
  EXPECT_TRUE(proxy.reply(stream).complete);
  EXPECT_FALSE(proxy.WaitUntil([] { return false; }));
  EXPECT_TRUE(proxy.closed());
}

TEST_F(Http2LimitTest, HeadsHaveHttp1sLimits) {
  Start();
  Http2Client client(endpoint());
  const auto status = [&](std::vector<HttpHeader> more, const std::string& path = "/echo") {
    return client.Await(client.Send("GET", path, "", std::move(more))).status;
  };
  EXPECT_EQ(status({{"large", std::string(20'000, 'x')}}), 431);
  EXPECT_EQ(status(std::vector<HttpHeader>(101, {"a", "b"})), 431);
  EXPECT_EQ(status({}, "/" + std::string(5000, 'x')), 414);
  EXPECT_EQ(status({{"expect", "more"}}), 417);
  EXPECT_EQ(status({{"host", "other"}}), 400);
  EXPECT_EQ(status({{"host", "TEST"}}), 200);
  EXPECT_EQ(status({}, "/\x80"), 400);
  EXPECT_EQ(client.Await(client.Send("POST", "/echo", std::string(5 << 20, 'x'))).status, 413);
  EXPECT_EQ(client.Ask("/echo").status, 200) << "the connection goes on";
}

TEST_F(Http2LimitTest, MalformedRequestsAreResetAndNeverSeen) {
  Start();
  HttpClient client(endpoint());
  const std::vector<std::string> malformed = {
      http2::Fields({{":method", "GET"}, {":scheme", "http"}, {":authority", "a"}}),
      http2::Fields({{":method", "GET"}, {":path", "/"}, {":authority", "a"}}),
      http2::Fields({{":method", "GET"}, {":scheme", "http"}, {":path", "/"}}),
      http2::Fields({{":scheme", "http"}, {":path", "/"}, {":authority", "a"}}),
      http2::RequestFields("relative"),
      http2::RequestFields(""),
      http2::RequestFields("/") + http2::Field(":path", "/again"),
      http2::RequestFields("/") + http2::Field(":status", "200"),
      http2::RequestFields("/") + http2::Field(":protocol", "websocket"),
      http2::Field("a", "b") + http2::RequestFields("/"),
      http2::RequestFields("/") + http2::Field("Upper", "x"),
      http2::RequestFields("/") + http2::Field("sp ace", "x"),
      http2::RequestFields("/") + http2::Field("a", "line\nbreak"),
      http2::RequestFields("/") + http2::Field("a", std::string_view("\0", 1)),
      http2::RequestFields("/") + http2::Field("connection", "close"),
      http2::RequestFields("/") + http2::Field("keep-alive", "5"),
      http2::RequestFields("/") + http2::Field("transfer-encoding", "chunked"),
      http2::RequestFields("/") + http2::Field("upgrade", "h2c"),
      http2::RequestFields("/") + http2::Field("te", "gzip"),
      http2::RequestFields("/") + http2::Field("content-length", "1"),
      http2::RequestFields("/") + http2::Field("content-length", "-1"),
      http2::RequestFields("/") + http2::Field("content-length", "0") +
          http2::Field("content-length", "0"),
      http2::RequestFields("/") + http2::Field("host", "a") + http2::Field("host", "a"),
  };
  ASSERT_TRUE(client.Send(http2::Preface()));
  for (size_t i = 0; i < malformed.size(); ++i) {
    const auto stream = static_cast<int32_t>(2 * i + 1);
    ASSERT_TRUE(
        client.Send(Frame(NGHTTP2_HEADERS, kEndStream | kEndHeaders, stream, malformed[i])));
    EXPECT_TRUE(client.ReceiveUntil(
        Frame(NGHTTP2_RST_STREAM, 0, stream, Number(NGHTTP2_PROTOCOL_ERROR, 4))))
        << i;
  }
  EXPECT_EQ(handler_.handled, 0);
}

TEST_F(Http2LimitTest, AMalformedHeadIsNotTakenForASlowOne) {
  Start({.times = {.head = 1s, .body = 3s}});
  Http2Client client(endpoint());
  const int32_t slow = client.Send("POST", "/echo", std::nullopt);
  const int32_t malformed = client.Send("GET", "/echo", "", {{"connection", "close"}});
  EXPECT_EQ(client.Await(malformed).reset, static_cast<uint32_t>(NGHTTP2_PROTOCOL_ERROR));
  EXPECT_EQ(client.Await(slow).status, 408) << "later than a slow head would have ended all";
  EXPECT_TRUE(client.goaways().empty());
}

TEST_F(Http2LimitTest, SlowRequestsAreCutOff) {
  Start({.times = {.first_byte = 1s, .idle = 1s, .head = 1s, .body = 1s}});
  HttpClient silent(endpoint());
  HttpClient preface(endpoint());
  preface.Send("PRI * HT");
  HttpClient settings(endpoint());
  settings.Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  HttpClient head(endpoint());
  head.Send(http2::Preface() + Frame(NGHTTP2_HEADERS, kEndStream, 1, http2::Field("a", "b")));
  HttpClient pings(endpoint());
  pings.Send(http2::Preface());
  for (HttpClient* client : {&silent, &preface, &settings, &head}) EXPECT_TRUE(client->Closes());
  while (pings.Send(Frame(NGHTTP2_PING, 0, 0, "12345678")) && !pings.Closes(10ms)) {
  }
  Http2Client body(endpoint());
  const int32_t stream = body.Send("POST", "/echo", std::nullopt);
  const int32_t sink = body.Send("POST", "/full", std::nullopt);
  EXPECT_EQ(body.Await(stream).status, 408);
  EXPECT_EQ(body.Await(sink).status, 408);
}

TEST_F(Http2LimitTest, WindowsThatDoNotOpenAreNotWaitedForForEver) {
  Start({.times = {.stall = 300ms}});
  Http2Client client(endpoint(), {.window_bytes = 100, .updates = false});
  const int32_t stalled = client.Send("POST", "/large", "x");
  const int32_t endless = client.Send("POST", "/endless", "x");
  const int32_t waiting = client.Send("POST", "/fed", "x");
  EXPECT_EQ(client.Await(stalled).reset, static_cast<uint32_t>(NGHTTP2_CANCEL));
  EXPECT_EQ(client.Await(endless).reset, static_cast<uint32_t>(NGHTTP2_CANCEL));
  EXPECT_TRUE(WaitUntil([&] { return handler_.left == 2; }));
  handler_.Fed()->Add("late");
  EXPECT_TRUE(client.WaitUntil([&] { return client.reply(waiting).body == "late"; }))
      << "an answer that is being made is not stalled";
}

TEST_F(Http2LimitTest, ClientsThatAreGoneAreNoticed) {
  Start({.times = {.stall = 2s, .ping = 500ms}});
  Http2Client alive(endpoint());
  const int32_t stream = alive.Send("POST", "/fed", "x");
  HttpClient deaf(endpoint());  // Not closed, but it answers no PING.
  deaf.Send(http2::Preface() + http2::Request(1, "/never"));
  EXPECT_TRUE(alive.WaitUntil([&] { return handler_.left == 1; }));
  EXPECT_TRUE(deaf.Closes());
  handler_.Fed()->End(BodySource::State::kEnd);
  EXPECT_TRUE(alive.Await(stream).complete) << "it answered PINGs for longer than that";
}

TEST_F(Http2LimitTest, ADeafClientIsNotAnsweredWithoutEnd) {
  Start({.times = {.stall = 500ms}});
  const size_t before = ResidentBytes();
  HttpClient client(endpoint());
  client.Send(http2::Preface(http2::Setting(NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, INT32_MAX)) +
              Frame(NGHTTP2_WINDOW_UPDATE, 0, 0, Number(INT32_MAX - 65535, 4)) +
              http2::Request(1, "/endless"));
  EXPECT_TRUE(WaitUntil([&] { return handler_.left == 1; }));
  EXPECT_LT(handler_.endless->pulled, 16u << 20)
      << "what the system's buffers took, and one of ours";
  EXPECT_LT(ResidentBytes(), before + (8u << 20) * kMoreMemory);
}

TEST_F(Http2LimitTest, BodiesOfAllStreamsHaveOneBudget) {
  Start({.body_bytes_max = 2 << 20});
  Http2Client client(endpoint());
  const std::string half(700'000, 'x');
  const int32_t first = client.Send("POST", "/echo", std::nullopt);
  client.SendBody(first, half, /*end=*/false);
  EXPECT_TRUE(client.WaitUntil([&] { return server_->body_bytes() >= half.size(); }));
  const int32_t second = client.Send("POST", "/echo", std::nullopt);
  client.SendBody(second, half, /*end=*/false);
  EXPECT_EQ(client.Await(second).status, 503);
  client.SendBody(first, "end", /*end=*/true);
  EXPECT_EQ(client.Await(first).status, 200);
  EXPECT_TRUE(client.WaitUntil([&] { return server_->body_bytes() == 0; }));
}

TEST_F(Http2LimitTest, IdleConnectionsCostLittle) {
  Start();
  Http2Client(endpoint()).Ask("/echo");
  constexpr size_t kConnections = 500;
  std::vector<std::unique_ptr<HttpClient>> idle;
  const size_t before = ResidentBytes();
  for (size_t i = 0; i < kConnections; ++i) {
    idle.push_back(std::make_unique<HttpClient>(endpoint()));
    idle.back()->Send(http2::Preface() + http2::Request(1, "/empty"));
    EXPECT_TRUE(idle.back()->ReceiveUntil(Frame(NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0)));
  }
  const size_t each = (std::max(ResidentBytes(), before) - before) / kConnections;
  EXPECT_LT(each, (64u << 10) * kMoreMemory);
  std::cout << each << " bytes for each connection\n";
}

}  // namespace
}  // namespace penstock
