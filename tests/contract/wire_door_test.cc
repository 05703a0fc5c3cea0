// Whoever reaches a port of a wire, and is no member.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "base/tls/tls_socket.h"
#include "kvstore/wire/net/address.h"
#include "kvstore/wire/net/endpoint.h"
#include "kvstore/wire/net/socket.h"
#include "kvstore/wire/stream/door.h"
#include "lab/fake/certificates.h"
#include "lab/fake/temp_folder.h"
#include "tests/contract/tcp_proxy.h"
#include "tests/contract/wire_support.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

// The ports on which this process listens.
std::vector<int> ListeningPorts() {
  std::set<std::string> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::vector<int> ports;
  std::ifstream table("/proc/self/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
        timeout >> inode;
    if (state == "0A" && sockets.contains(inode)) {
      ports.push_back(std::stoi(local.substr(local.find(':') + 1), nullptr, 16));
    }
  }
  return ports;
}

int ConnectTo(int port) {
  auto endpoint = ParseEndpoint("127.0.0.1:0");
  endpoint->set_port(port);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, endpoint->get(), endpoint->size) == 0) return fd;
  close(fd);
  return -1;
}

template <class T>
std::string Bytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// Messages that UCX's TCP transport accepts from anybody (uct_tcp_cm_conn_req_pkt, uct_tcp_am_hdr
// and uct_tcp_ep_put_req_hdr in UCX 1.13): the magic number, and a message with an id that is
// unknown, or a write to an address of the sender's choice.
constexpr uint64_t kUcxMagic = 0xCAFEBABE12345678;
std::string UcxUnknownMessage() {
  return Bytes(kUcxMagic) + std::string("\x7f", 1) + Bytes(uint32_t{0});
}
std::string UcxPut(const std::array<char, 16>& target) {
  const auto address = reinterpret_cast<uint64_t>(target.data());
  return Bytes(kUcxMagic) + std::string("\x21", 1) + Bytes(uint32_t{20}) + Bytes(address) +
         Bytes(uint64_t{16}) + Bytes(uint32_t{1}) + "stranger was in!";
}

void SayTo(int port, const std::string& bytes) {
  const int fd = ConnectTo(port);
  ASSERT_GE(fd, 0);
  send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  // The other end has dealt with it when it closes; one that keeps the connection open, as UCX
  // does for a while, is given up.
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  poll(&entry, 1, 50);
  close(fd);
}

class WireDoorTest : public testing::TestWithParam<std::string> {
 protected:
  WireDoorTest() : source_(Make(nobody_)), target_(Make(receiver_)) {}

  static std::unique_ptr<Wire> Make(WireReceiver& receiver) {
    auto wire = MakeTestWire(GetParam(), receiver);
    EXPECT_TRUE(wire.ok()) << wire.status();
    return *std::move(wire);
  }
  void ExpectCarries() {
    const auto lane = source_->Connect(target_->address(), 10'000);
    ASSERT_TRUE(lane.ok()) << lane.status();
    ExpectCarries(**lane);
  }
  void ExpectCarries(WireLane& lane) {
    TestSender sent;
    ASSERT_TRUE(sent.Put(lane, MakeMessage(1, 1 << 20)).ok());
    ASSERT_TRUE(sent.WaitDone(1));
    EXPECT_EQ(sent.count(absl::StatusCode::kOk), 1u);
    receiver_.ExpectSound();
  }
  std::string endpoint() const { return ParseWireAddress(target_->address())->endpoint; }

  TestReceiver receiver_, nobody_;
  std::unique_ptr<Wire> source_, target_;
};

TEST_P(WireDoorTest, IsTheOnlyPort) {
  const auto lane = source_->Connect(target_->address(), 10'000);
  ASSERT_TRUE(lane.ok()) << lane.status();
  EXPECT_EQ(ListeningPorts().size(), 2u);  // one of each wire
}

TEST_P(WireDoorTest, StrangersCannotWrite) {
  const auto lane = source_->Connect(target_->address(), 10'000);
  ASSERT_TRUE(lane.ok()) << lane.status();
  const std::array<char, 16> before = {"nobody was here"};
  const std::array<char, 16> buffer = before;
  for (const int port : ListeningPorts()) {
    SayTo(port, UcxUnknownMessage());
    SayTo(port, UcxPut(buffer));
  }
  EXPECT_EQ(std::memcmp(buffer.data(), before.data(), before.size()), 0);
  ExpectCarries(**lane);  // the lane that was open
  ExpectCarries();        // and a new one
}

TEST_P(WireDoorTest, SurvivesGarbage) {
  const auto lane = source_->Connect(target_->address(), 10'000);
  ASSERT_TRUE(lane.ok()) << lane.status();
  std::mt19937 random(11);
  constexpr std::array<uint32_t, 4> kMagics = {WirePacket::kMagic, StreamHello::kMagic, 0x01010316,
                                               StreamFrame::kMagic};
  for (const int port : ListeningPorts()) {
    for (int i = 0; i < 60; ++i) {
      std::string garbage(random() % 3000, '\0');
      for (char& c : garbage) c = static_cast<char>(i % 3 == 0 ? 0xff : random());
      if (i % 2 == 0) garbage.insert(0, Bytes(kMagics[random() % kMagics.size()]));
      const int fd = ConnectTo(port);
      ASSERT_GE(fd, 0);
      send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
      if (i % 5 == 0) shutdown(fd, SHUT_RDWR);
      close(fd);
    }
  }
  ExpectCarries(**lane);
  ExpectCarries();
}

// Whoever says nothing is closed for whoever comes next, and for good after the greeting's time.
TEST_P(WireDoorTest, SilenceLocksNobodyOut) {
  const int port = ParseEndpoint(endpoint())->port();
  std::vector<int> silent;
  for (int i = 0; i < 600; ++i) {
    silent.push_back(ConnectTo(port));
    if (i % 2 == 0) send(silent.back(), "P", 1, MSG_NOSIGNAL);
  }
  ExpectCarries();
  const auto closed = [](int fd) {
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    char byte = 0;
    return poll(&entry, 1, 0) > 0 && recv(fd, &byte, 1, MSG_DONTWAIT) <= 0;
  };
  EXPECT_TRUE(WaitUntil([&] { return std::all_of(silent.begin(), silent.end(), closed); },
                        std::chrono::seconds(60)));
  for (const int fd : silent) close(fd);
  ExpectCarries();
}

// Without descriptors the door neither spins nor stays closed.
TEST_P(WireDoorTest, RecoversFromExhaustedDescriptors) {
  const int port = ParseEndpoint(endpoint())->port();
  std::array<int, 2> quit{};
  ASSERT_EQ(pipe(quit.data()), 0);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit low = before;
  low.rlim_cur = OpenDescriptors() + 3;
  // The strangers are another process, which has descriptors of its own.
  const pid_t strangers = fork();
  if (strangers == 0) {
    close(quit[1]);
    for (int i = 0; i < 100; ++i) ConnectTo(port);
    char byte = 0;
    while (read(quit[0], &byte, 1) > 0) {
    }
    _exit(0);
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const auto processor_time = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double used = processor_time();
  poll(nullptr, 0, 1000);
  EXPECT_LT(processor_time() - used, 0.3);
  setrlimit(RLIMIT_NOFILE, &before);
  ExpectCarries();
  close(quit[0]);
  close(quit[1]);
  ASSERT_EQ(waitpid(strangers, nullptr, 0), strangers);
}

INSTANTIATE_TEST_SUITE_P(Lanes, WireDoorTest, testing::Values("tcp", "sealed"),
                         [](const auto& lane) { return lane.param; });

// The same words end a process with UCX's ports, without any certificate: so the tests above say
// something, and wire=ucx is for networks that only the cluster reaches.
TEST(WireDoor, StrangersEndAProcessWithUcxPorts) {
  const pid_t victim = fork();
  if (victim == 0) {
    const rlimit no_core{};
    setrlimit(RLIMIT_CORE, &no_core);
    TestReceiver receiver;
    const auto source = MakeUcxWire({}, receiver);
    const auto target = MakeUcxWire({}, receiver);
    const auto lane = (*source)->Connect((*target)->address(), 10'000);
    if (!lane.ok()) _exit(1);
    for (const int port : ListeningPorts()) SayTo(port, UcxUnknownMessage());
    poll(nullptr, 0, 10'000);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(victim, &status, 0), victim);
  EXPECT_TRUE(WIFSIGNALED(status)) << "it ended with " << status;
}

// A member's door, and callers of all kinds.
class MembersDoor : public testing::Test {
 protected:
  MembersDoor() {
    HostWireOptions options{.lanes = "tcp", .identity = TestIdentity()};
    options.on_refused = [this](WireRefusal why) { ++refused_[static_cast<size_t>(why)]; };
    target_ = *MakeHostWire(options, receiver_);
  }
  size_t refused(WireRefusal why) const { return refused_[static_cast<size_t>(why)]; }

  std::shared_ptr<TlsIdentity> IdentityOf(const TestCa& ca, std::chrono::hours valid) {
    const std::string folder = folder_.path() + "/" + std::to_string(++identities_);
    std::filesystem::create_directory(folder);
    WriteIdentity(folder, ca, ca.Issue("worker", valid));
    auto identity = TlsIdentity::Open(FilesIn(folder), TlsUse::kMember);
    return identity.ok() ? *identity : nullptr;
  }
  // The status of a lane from a wire with this identity, to the address as it wants to see it.
  absl::Status LaneFrom(std::shared_ptr<TlsIdentity> identity) {
    TestReceiver receiver;
    const auto source = *MakeHostWire({.lanes = "tcp", .identity = identity}, receiver);
    auto address = *ParseWireAddress(target_->address());
    address.tls = identity != nullptr;
    return source->Connect(FormatWireAddress(address), 10'000).status();
  }

  TempFolder folder_;
  int identities_ = 0;
  TestReceiver receiver_;
  std::array<std::atomic<size_t>, kWireRefusals> refused_{};
  std::unique_ptr<Wire> target_;
};

TEST_F(MembersDoor, OpensForMembersOnly) {
  EXPECT_TRUE(LaneFrom(TestIdentity()).ok());
  const TestCa stranger("stranger");
  const absl::Status of_another = LaneFrom(IdentityOf(stranger, std::chrono::hours(24)));
  EXPECT_EQ(of_another.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(of_another), testing::HasSubstr("certificate"));
  EXPECT_EQ(LaneFrom(nullptr).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(WaitUntil([&] { return refused(WireRefusal::kCertificate) == 1; }));
  EXPECT_TRUE(WaitUntil([&] { return refused(WireRefusal::kProtocol) == 1; }));
  EXPECT_EQ(receiver_.announced(), 0u);
}

TEST_F(MembersDoor, IsNotFoundByWhoWantsLess) {
  TestReceiver receiver;
  const auto plain = *MakeHostWire({.lanes = "tcp"}, receiver);
  const absl::Status upward = plain->Connect(target_->address(), 5000).status();
  EXPECT_THAT(Message(upward), testing::HasSubstr("the peer has the cluster's certificates"));
  const auto member = *MakeHostWire({.lanes = "tcp", .identity = TestIdentity()}, receiver);
  const absl::Status downward = member->Connect(plain->address(), 5000).status();
  EXPECT_THAT(Message(downward), testing::HasSubstr("this process has the cluster's certificates"));
  EXPECT_EQ(refused(WireRefusal::kProtocol), 0u);  // Nothing was sent.
}

// A member's connection for something else, such as gRPC's, is no lane.
TEST_F(MembersDoor, WantsItsOwnProtocol) {
  const auto sockets =
      *TlsSockets::Create(TestIdentity(), {.protocols = {"h2"}, .between_members = true});
  const auto place = ParseEndpoint(ParseWireAddress(target_->address())->endpoint);
  const auto fd = ConnectTcp(*place, std::chrono::steady_clock::now() + std::chrono::seconds(10));
  const auto socket = sockets->Connect(*fd);
  std::array<char, 16> bytes;
  EXPECT_TRUE(WaitUntil([&] {
    return socket->Write("hello").kind == Socket::Result::Kind::kBroken ||
           socket->Read(bytes).kind == Socket::Result::Kind::kBroken;
  }));
  EXPECT_TRUE(WaitUntil([&] { return refused(WireRefusal::kCertificate) == 1; }));
}

// The hello of a link's connection says which lane it belongs to, and proves that it does.
TEST_F(MembersDoor, TakesNoConnectionForALaneThatIsNotItsOwn) {
  const StreamHello hello;
  ExpectClosesAfter(ParseWireAddress(target_->address())->endpoint, Bytes(hello));
  EXPECT_TRUE(WaitUntil([&] { return refused(WireRefusal::kProtocol) == 1; }));
}

TEST_F(MembersDoor, AsksForTheCertificatesOfToday) {
  // The files of an identity are replaced by those of another cluster: new lanes are refused.
  TempFolder folder;
  const TestCa first("first");
  const TestCa second("second");
  WriteIdentity(folder.path(), first, first.Issue("worker"));
  auto identity = *TlsIdentity::Open(FilesIn(folder.path()), TlsUse::kMember);
  TestReceiver receiver;
  const auto target = *MakeHostWire({.lanes = "tcp", .identity = identity}, receiver);
  const auto member = IdentityOf(first, std::chrono::hours(24));
  const auto source = *MakeHostWire({.lanes = "tcp", .identity = member}, receiver_);
  EXPECT_TRUE(source->Connect(target->address(), 10'000).ok());
  WriteIdentity(folder.path(), second, second.Issue("worker"));
  EXPECT_FALSE(source->Connect(target->address(), 10'000).ok());
}

}  // namespace
}  // namespace penstock
