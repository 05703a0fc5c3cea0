#include "base/lifecycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "lab/fake/temp_folder.h"
#include "tests/support/files.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

// Runs `body` in a child process and returns its wait status.
int InChild(const std::function<void()>& body, const std::function<void(pid_t)>& parent) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(99);
  }
  parent(child);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  ~Pipe() {
    close(ends[0]);
    close(ends[1]);
  }
  void Signal() const { EXPECT_EQ(write(ends[1], "x", 1), 1); }
  void Await() const {
    char c = 0;
    EXPECT_EQ(read(ends[0], &c, 1), 1);
  }
  int ends[2] = {};
};

TEST(ServeUntilSignal, ReturnsTheSignalAfterStop) {
  for (const int number : {SIGINT, SIGTERM}) {
    const Pipe ready;
    const int status = InChild(
        [&] {
          BlockShutdownSignals();
          ready.Signal();
          bool stopped = false;
          const int caught = ServeUntilSignal([&] { stopped = true; });
          _exit(stopped && caught == number ? 0 : 1);
        },
        [&](pid_t child) {
          ready.Await();
          kill(child, number);
        });
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
}

TEST(ServeUntilSignal, TakesASignalThatTheShellHadIgnored) {
  const Pipe ready;
  const int status = InChild(
      [&] {
        signal(SIGINT, SIG_IGN);
        BlockShutdownSignals();
        ready.Signal();
        _exit(ServeUntilSignal([] {}) == SIGINT ? 0 : 1);
      },
      [&](pid_t child) {
        ready.Await();
        kill(child, SIGINT);
      });
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ServeUntilSignal, ASecondSignalEndsAtOnce) {
  const Pipe ready;
  const Pipe stopping;
  const int status = InChild(
      [&] {
        BlockShutdownSignals();
        ready.Signal();
        ServeUntilSignal([&] {
          stopping.Signal();
          for (;;) pause();  // A drain that never ends.
        });
      },
      [&](pid_t child) {
        ready.Await();
        kill(child, SIGTERM);
        stopping.Await();
        kill(child, SIGINT);
      });
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT);
}

TEST(RaiseDescriptorLimit, ToTheHardLimit) {
  rlimit before{}, raised{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit few = before;
  few.rlim_cur = 100;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  RaiseDescriptorLimit();
  getrlimit(RLIMIT_NOFILE, &raised);
  EXPECT_EQ(raised.rlim_cur, before.rlim_max);
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(ServeUntilSignal, AThreadMayRequestShutdown) {
  const int status = InChild(
      [] {
        BlockShutdownSignals();
        std::thread thread([] { RequestShutdown(); });
        const int caught = ServeUntilSignal([] {});
        thread.join();
        _exit(caught == SIGTERM ? 0 : 1);
      },
      [](pid_t) {});
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(DieWithParent, TheChildEndsWithItsParent) {
  const Pipe ready;
  const Pipe alive;  // Its writing end is held by the grandchild alone once the child is gone.
  const int status = InChild(
      [&] {
        const int parent = getpid();
        if (fork() == 0) {
          close(ready.ends[0]);
          if (!DieWithParent(parent)) _exit(1);
          ready.Signal();
          for (;;) pause();
        }
        ready.Await();
        _exit(0);
      },
      [&](pid_t) {});
  EXPECT_EQ(status, 0);
  close(alive.ends[1]);
  char c = 0;
  // The end of file comes when the last holder of the writing end, the grandchild, is gone.
  EXPECT_EQ(read(alive.ends[0], &c, 1), 0);
}

TEST(WriteReadyFile, WritesAllOrNothing) {
  const TempFolder folder;
  const std::string path = folder.path() + "/ready";
  ASSERT_TRUE(WriteReadyFile(path, "127.0.0.1:1234").ok());
  EXPECT_EQ(ReadFile(path), "127.0.0.1:1234\n");
  ASSERT_TRUE(WriteReadyFile(path, "127.0.0.1:5").ok());
  EXPECT_EQ(ReadFile(path), "127.0.0.1:5\n");
  const auto entries = std::filesystem::directory_iterator(folder.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
}

TEST(WriteReadyFile, NamesThePathItCannotWrite) {
  EXPECT_TRUE(WriteReadyFile("", "127.0.0.1:1").ok());
  const absl::Status status = WriteReadyFile("/nowhere/at/all", "127.0.0.1:1");
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("/nowhere/at/all"));
}

TEST(HostPort, ParsesAndFormats) {
  EXPECT_EQ(ParseHostPort("127.0.0.1:8090")->port, 8090);
  EXPECT_EQ(ParseHostPort("[::1]:0")->host, "::1");
  EXPECT_EQ(FormatHostPort(ParseHostPort("[::1]:7").value()), "[::1]:7");
  EXPECT_EQ(FormatHostPort(ParseHostPort("host.local:65535").value()), "host.local:65535");
  for (const char* text :
       {"", "host", ":80", "host:", "host:65536", "host:-1", "host:8x", "::1:80"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseHostPort(text).status())) << text;
  }
}

TEST(CheckListenAddress, OnlyLoopbackWithoutInsecure) {
  for (const char* listen : {"127.0.0.1:0", "127.9.9.9:80", "[::1]:80", "localhost:80"}) {
    EXPECT_TRUE(CheckListenAddress(listen, false).ok()) << listen;
  }
  for (const char* listen : {"0.0.0.0:80", "[::]:80", "10.0.0.1:80", "example.org:80"}) {
    const absl::Status status = CheckListenAddress(listen, false);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << listen;
    EXPECT_THAT(Message(status), HasSubstr("--insecure"));
    EXPECT_THAT(Message(CheckListenAddress(listen, false, "http_listen")),
                HasSubstr("http_listen="));
    EXPECT_TRUE(CheckListenAddress(listen, true).ok()) << listen;
  }
  const absl::Status nonsense = CheckListenAddress("nonsense", true, "http_listen");
  EXPECT_TRUE(absl::IsInvalidArgument(nonsense));
  EXPECT_THAT(Message(nonsense), HasSubstr("http_listen: `nonsense` has no port"));
}

TEST(ExitCodeFor, FollowsSysexits) {
  EXPECT_EQ(ExitCodeFor(absl::OkStatus()), ExitCode::kOk);
  EXPECT_EQ(ExitCodeFor(NotFound("x")), ExitCode::kNoInput);
  EXPECT_EQ(ExitCodeFor(Unavailable("x")), ExitCode::kUnavailable);
  EXPECT_EQ(ExitCodeFor(InvalidArgument("x")), ExitCode::kBadData);
  EXPECT_EQ(ExitCodeFor(FailedPrecondition("x")), ExitCode::kBadConfig);
  EXPECT_EQ(ExitCodeFor(Internal("x")), ExitCode::kInternal);
}

}  // namespace
}  // namespace penstock
