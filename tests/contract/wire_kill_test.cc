#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "tests/contract/wire_support.h"

namespace penstock {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// wire_peer in a process of its own.
class Peer {
 public:
  explicit Peer(std::vector<std::string> arguments) {
    int to_peer[2];
    int from_peer[2];
    EXPECT_EQ(pipe2(to_peer, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from_peer, O_CLOEXEC), 0);
    const auto self = std::filesystem::read_symlink("/proc/self/exe");
    const std::string binary = (self.parent_path() / "wire_peer").string();
    std::vector<char*> argv = {const_cast<char*>(binary.c_str())};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(to_peer[0], STDIN_FILENO);
      dup2(from_peer[1], STDOUT_FILENO);
      execv(binary.c_str(), argv.data());
      _exit(127);
    }
    close(to_peer[0]);
    close(from_peer[1]);
    input_ = to_peer[1];
    output_ = from_peer[0];
    for (char c = 0; read(output_, &c, 1) == 1 && c != '\n';) address_ += c;
    EXPECT_FALSE(address_.empty()) << "wire_peer did not start";
  }
  ~Peer() {
    Kill();
    close(input_);
    close(output_);
  }

  const std::string& address() const { return address_; }
  void Tell(const std::string& line) const {
    const std::string text = line + "\n";
    EXPECT_EQ(write(input_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void Signal(int signal) const { kill(pid_, signal); }
  void Kill() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    Join();
  }
  void Join() {
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  std::string address_;
};

// The lanes that join processes.
class WireKill : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Wire> Make(WireReceiver& receiver) {
    auto wire = MakeTestWire(GetParam(), receiver);
    EXPECT_TRUE(wire.ok()) << wire.status();
    return *std::move(wire);
  }
  // The survivor is well when it can still speak to somebody new.
  void ExpectWell(Wire& wire) {
    Peer fresh({GetParam()});
    auto lane = wire.Connect(fresh.address(), 10'000);
    ASSERT_TRUE(lane.ok()) << lane.status();
    TestSender sent;
    for (uint64_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(sent.Put(**lane, MakeMessage(5000 + i, 2 * kMiB)).ok());
    }
    ASSERT_TRUE(sent.WaitDone(4));
    EXPECT_EQ(sent.count(absl::StatusCode::kOk), 4u);
    lane->reset();
  }
};

TEST_P(WireKill, TheSenderSurvivesItsReceiver) {
  for (const int death : {1, 3, 6}) {
    TestReceiver nobody;
    TestSender sent;
    const auto wire = Make(nobody);
    Peer peer({GetParam(), "--die-on-announce", std::to_string(death)});
    auto lane = wire->Connect(peer.address(), 10'000);
    ASSERT_TRUE(lane.ok()) << lane.status();
    for (uint64_t i = 0; i < 12; ++i) {
      const absl::Status put = sent.Put(**lane, MakeMessage(i, 8 * kMiB));
      if (put.code() == absl::StatusCode::kUnavailable) break;  // It died while we were putting.
      ASSERT_TRUE(put.ok()) << put;
    }
    peer.Join();
    const size_t put = sent.messages().size();
    ASSERT_TRUE(sent.WaitDone(put - 1));  // The last may have been refused at once.
    EXPECT_LT(sent.count(absl::StatusCode::kOk), static_cast<size_t>(death));
    EXPECT_EQ(sent.count(absl::StatusCode::kCancelled), 0u);
    EXPECT_EQ(sent.Put(**lane, MakeMessage(99, 10)).code(), absl::StatusCode::kUnavailable);
    lane->reset();
    ExpectWell(*wire);
  }
}

TEST_P(WireKill, TheReceiverSurvivesItsSender) {
  for (const size_t death : {1, 2, 5, 9}) {
    TestReceiver receiver;
    const auto wire = Make(receiver);
    Peer peer({GetParam(), "--send"});
    peer.Tell(wire->address());
    ASSERT_TRUE(receiver.WaitAnnounced(death));
    peer.Kill();
    ASSERT_TRUE(receiver.WaitSettled());
    ExpectWell(*wire);
    receiver.ExpectSound();
  }
}

TEST_P(WireKill, TheReceiverIsToldOfAMessageItsSenderLeftHalfway) {
  TestReceiver receiver;
  const auto wire = Make(receiver);
  Peer peer({GetParam(), "--send"});
  // The first message has been announced and nothing of it has been taken when its sender dies.
  receiver.on_announced = [&](const TestHeader&) {
    peer.Signal(SIGKILL);
    siginfo_t info;  // Dead, not only dying; left as a zombie for the test to collect.
    waitid(P_ALL, 0, &info, WEXITED | WNOWAIT);
    return absl::OkStatus();
  };
  peer.Tell(wire->address());
  ASSERT_TRUE(receiver.WaitAnnounced(1));
  ASSERT_TRUE(receiver.WaitSettled());
  EXPECT_EQ(receiver.landed(), 0u);
  EXPECT_GE(receiver.lost(), 1u);
  receiver.ExpectSound();
  peer.Kill();
  receiver.on_announced = nullptr;
  ExpectWell(*wire);
}

TEST_P(WireKill, ClosingDoesNotWaitForAStoppedPeer) {
  TestReceiver nobody;
  TestSender sent;
  const auto wire = Make(nobody);
  Peer peer({GetParam()});
  auto lane = wire->Connect(peer.address(), 10'000);
  ASSERT_TRUE(lane.ok()) << lane.status();
  ASSERT_TRUE(sent.Put(**lane, MakeMessage(0, 8 * kMiB)).ok());
  ASSERT_TRUE(sent.WaitDone(1));
  peer.Signal(SIGSTOP);
  for (uint64_t i = 1; i < 12; ++i) {
    ASSERT_TRUE(sent.Put(**lane, MakeMessage(i, 8 * kMiB)).ok());
  }
  lane->reset();
  EXPECT_EQ(sent.done(), 12u);
  EXPECT_GE(sent.count(absl::StatusCode::kCancelled), 10u);
  // Nor does a connect, beyond its time.
  EXPECT_EQ(wire->Connect(peer.address(), 300).status().code(), absl::StatusCode::kUnavailable);
  peer.Signal(SIGCONT);
  ExpectWell(*wire);
}

TEST_P(WireKill, AReceivingWireGoesThoughItsSenderIsStopped) {
  TestReceiver receiver;
  auto wire = Make(receiver);
  Peer peer({GetParam(), "--send"});
  peer.Tell(wire->address());
  ASSERT_TRUE(receiver.WaitLanded(2));
  peer.Signal(SIGSTOP);
  wire.reset();
  receiver.ExpectSound();
}

TEST_P(WireKill, NothingIsLeftInTheFileSystem) {
  const auto count = [] {
    size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      files += entry.path().filename().string().starts_with("ucx") ? 1 : 0;
    }
    return files;
  };
  const size_t before = count();
  {
    TestReceiver receiver;
    const auto wire = Make(receiver);
    Peer peer({GetParam(), "--send"});
    peer.Tell(wire->address());
    ASSERT_TRUE(receiver.WaitLanded(1));
    peer.Kill();
    ASSERT_TRUE(receiver.WaitSettled());
  }
  EXPECT_EQ(count(), before);
}

INSTANTIATE_TEST_SUITE_P(Lanes, WireKill,
                         testing::Values("shm", "shm-gpu", "tcp", "sealed", "ucx", "nccl",
                                         "nccl-gpu"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace penstock
