#include "base/log/log_output.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "base/lifecycle.h"
#include "base/log/log.h"

namespace penstock {
namespace {

using namespace std::chrono_literals;

// A pipe that nobody reads until ReadLine.
class Pipe {
 public:
  Pipe() { EXPECT_EQ(pipe(ends_), 0); }
  ~Pipe() {
    for (const int end : ends_) close(end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int writer() const { return ends_[1]; }
  std::string ReadLine() const {
    std::string line;
    for (char c = 0; c != '\n' && read(ends_[0], &c, 1) == 1;) line += c;
    return line;
  }

 private:
  int ends_[2] = {-1, -1};
};

LogOutputOptions OptionsFor(const Pipe& to) {
  return {.fd = to.writer(), .bytes_max = 100'000, .dropped_line = [](uint64_t lines) {
            return fmt::format("dropped {}\n", lines);
          }};
}

TEST(LogOutputTest, WritesLinesInOrder) {
  const Pipe pipe;
  LogOutput output(OptionsFor(pipe));
  for (const char* line : {"a\n", "b\n", "c\n"}) output.Write(line);
  for (const char* line : {"a\n", "b\n", "c\n"}) EXPECT_EQ(pipe.ReadLine(), line);
  EXPECT_TRUE(output.Flush(60s));
  EXPECT_EQ(output.dropped(), 0u);
}

TEST(LogOutputTest, AStalledReaderBlocksNobodyAndLearnsWhatIsMissing) {
  const Pipe pipe;
  LogOutput output(OptionsFor(pipe));
  const std::string line = std::string(99, 'x') + "\n";
  constexpr size_t kLines = 10'000;  // more than the pipe and the queue hold
  for (size_t i = 0; i < kLines; ++i) output.Write(line);
  EXPECT_FALSE(output.Flush(1ms)) << "nobody has read anything";
  const uint64_t dropped = output.dropped();
  EXPECT_GT(dropped, 0u);
  uint64_t written = 0, reported = 0;
  while (written + reported < kLines) {
    const std::string read = pipe.ReadLine();
    ASSERT_FALSE(read.empty());
    if (read == line) {
      ++written;
    } else {
      ASSERT_TRUE(read.starts_with("dropped ")) << read;
      reported += std::stoul(read.substr(8));
    }
  }
  EXPECT_EQ(reported, dropped);
  output.Write("after\n");
  EXPECT_EQ(pipe.ReadLine(), "after\n");
  EXPECT_EQ(output.dropped(), dropped);
}

TEST(LogOutputTest, LinesThatCannotBeWrittenAreCounted) {
  LogOutput output({.fd = -1, .dropped_line = [](uint64_t) { return std::string(); }});
  output.Write("a\n");
  EXPECT_TRUE(output.Flush(60s));
  EXPECT_EQ(output.dropped(), 1u);
}

// Logs much to a standard error that nobody reads, then exits; an alarm ends a process that hangs.
void LogToNobodyAndExit(const Pipe& pipe) {
  BlockShutdownSignals();
  alarm(30);
  dup2(pipe.writer(), STDERR_FILENO);
  StartLogging({.component = "test"});
  for (int i = 0; i < 100'000; ++i) LogWarning("log_dropped", "{}", std::string(100, 'x'));
  std::exit(7);
}

TEST(LogOutputDeathTest, AProcessWithAStalledStandardErrorEnds) {
  const Pipe pipe;
  EXPECT_EXIT(LogToNobodyAndExit(pipe), ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace penstock
