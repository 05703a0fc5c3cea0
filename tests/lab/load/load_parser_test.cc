// What a server sends, in pieces of any size.
#include <gtest/gtest.h>

#include "lab/load/http_response_parser.h"
#include "lab/load/sse_parser.h"

namespace penstock {
namespace {

struct Read {
  std::string body;
  size_t taken = 0;
};

Read Feed(HttpResponseParser& parser, std::string& body, std::string_view bytes, size_t piece) {
  Read read;
  for (; !bytes.empty() && !parser.done() && !parser.failed();) {
    const std::string_view part = bytes.substr(0, piece);
    bytes.remove_prefix(part.size());
    read.taken += parser.Take(part);
  }
  read.body = body;
  return read;
}

class ResponseTest : public ::testing::TestWithParam<size_t> {
 protected:
  Read Feed(std::string_view bytes) { return penstock::Feed(parser_, body_, bytes, GetParam()); }
  std::string body_;
  HttpResponseParser parser_{[this](std::string_view bytes) { body_ += bytes; }};
};

TEST_P(ResponseTest, WithALength) {
  const std::string response =
      "HTTP/1.1 404 Not Found\r\nContent-Length:  5 \r\nX-A: b\r\n\r\nhello";
  const Read read = Feed(response + "HTTP/1.1 200 OK\r\n");
  EXPECT_TRUE(parser_.done());
  EXPECT_EQ(read.body, "hello");
  EXPECT_EQ(parser_.status(), 404);
  EXPECT_EQ(*parser_.Find("x-a"), "b");
  EXPECT_TRUE(parser_.keep_alive());
  EXPECT_EQ(read.taken, response.size());
}

TEST_P(ResponseTest, InChunksAfterAContinue) {
  const Read read = Feed(
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "3\r\nabc\r\nA;name=x\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n");
  EXPECT_TRUE(parser_.done()) << parser_.error();
  EXPECT_EQ(read.body, "abc0123456789");
  EXPECT_EQ(parser_.status(), 200);
}

TEST_P(ResponseTest, ToTheEndOfTheConnection) {
  EXPECT_EQ(Feed("HTTP/1.1 200 OK\r\n\r\nall of it").body, "all of it");
  EXPECT_FALSE(parser_.done());
  parser_.TakeEnd();
  EXPECT_TRUE(parser_.done());
  EXPECT_FALSE(parser_.keep_alive());
}

TEST_P(ResponseTest, WithoutABody) {
  Feed("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(parser_.done());
  EXPECT_FALSE(parser_.keep_alive());
}

TEST_P(ResponseTest, CutShort) {
  for (const std::string bytes :
       {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nContent-"}) {
    HttpResponseParser parser([](std::string_view) {});
    std::string none;
    penstock::Feed(parser, none, bytes, GetParam());
    EXPECT_FALSE(parser.failed()) << bytes;
    parser.TakeEnd();
    EXPECT_TRUE(parser.failed()) << bytes;
    EXPECT_NE(parser.error().find("ended"), std::string::npos) << parser.error();
  }
}

TEST_P(ResponseTest, ThatIsNone) {
  const std::string endless(HttpResponseParser::kMaxHeadBytes, 'x');
  for (const std::string& bytes :
       {std::string("SSH-2.0-OpenSSH_9.2\r\n"), std::string("HTTP/2 200\r\n\r\n"),
        std::string("HTTP/1.1 20\r\n\r\n"), std::string("HTTP/1.1 200 OK\r\nno colon\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 5x\r\n\r\nhello"),
        std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n"),
        std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n"),
        "HTTP/1.1 200 OK\r\nX: " + endless}) {
    HttpResponseParser parser([](std::string_view) {});
    std::string none;
    penstock::Feed(parser, none, bytes, GetParam());
    EXPECT_TRUE(parser.failed()) << bytes.substr(0, 80);
    EXPECT_FALSE(parser.keep_alive());
  }
}

TEST_P(ResponseTest, OfAnyNumberOfChunks) {
  std::string bytes = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 40'000; ++i) bytes += "1\r\nx\r\n";  // more framing than a head may have
  Feed(bytes + "0\r\n\r\n");
  EXPECT_TRUE(parser_.done()) << parser_.error();
  EXPECT_EQ(body_.size(), 40'000u);
}

INSTANTIATE_TEST_SUITE_P(Pieces, ResponseTest, ::testing::Values(1, 2, 7, 1 << 20));

std::vector<std::string> Events(std::string_view bytes, size_t piece) {
  std::vector<std::string> events;
  SseParser parser([&](std::string_view data) { events.emplace_back(data); });
  for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
    EXPECT_TRUE(parser.Take(bytes.substr(0, piece)));
  }
  return events;
}

TEST(Sse, ReadsDataOfEvents) {
  const std::string stream =
      ": a comment\n\ndata: one\n\nevent: message\r\nid: 4\r\ndata:two\r\ndata: three\r\n\r\n"
      "database: no\ndata\n\ndata:  four\r\rdata: not ended";
  const std::vector<std::string> expected = {"one", "two\nthree", "", " four"};
  for (const size_t piece : {1, 2, 3, 1000}) EXPECT_EQ(Events(stream, piece), expected) << piece;
}

TEST(Sse, RefusesAnEventThatIsTooLong) {
  SseParser parser([](std::string_view) { FAIL() << "there was none"; });
  const std::string line = "data: " + std::string(1 << 20, 'x') + "\n";
  bool taken = true;
  int lines = 0;
  while (taken && lines < 10) {
    taken = parser.Take(line);
    ++lines;
  }
  EXPECT_EQ(lines, 4);
  EXPECT_FALSE(parser.Take("\n\n"));
}

}  // namespace
}  // namespace penstock
