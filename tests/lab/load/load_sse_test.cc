// Server-sent events that arrive in pieces of any size.
#include <gtest/gtest.h>

#include "lab/load/sse_parser.h"

namespace penstock {
namespace {

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
