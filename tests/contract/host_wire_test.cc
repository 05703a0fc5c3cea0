#include "kvstore/wire/host/host_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "kvstore/wire/net/address.h"
#include "kvstore/wire/net/endpoint.h"
#include "kvstore/wire/net/packet_socket.h"
#include "kvstore/wire/net/socket.h"
#include "tests/contract/wire_support.h"
#include "tests/support/sanitizers.h"

namespace penstock {
namespace {

std::unique_ptr<Wire> Make(WireReceiver& receiver, const std::string& lanes,
                           const std::string& listen = "127.0.0.1") {
  auto wire = MakeHostWire({.listen = listen, .lanes = lanes, .limits = {}}, receiver);
  EXPECT_TRUE(wire.ok()) << wire.status();
  return wire.ok() ? *std::move(wire) : nullptr;
}

std::string TransportBetween(Wire& from, const Wire& to) {
  auto lane = from.Connect(to.address(), 10'000);
  return lane.ok() ? (*lane)->transport() : lane.status().ToString();
}

void ExpectCarries(Wire& from, const Wire& to, TestReceiver& receiver) {
  auto lane = from.Connect(to.address(), 10'000);
  ASSERT_TRUE(lane.ok()) << lane.status();
  TestSender sent;
  ASSERT_TRUE(sent.Put(**lane, MakeMessage(1, 1 << 20)).ok());
  ASSERT_TRUE(sent.WaitDone(1));
  EXPECT_EQ(sent.count(absl::StatusCode::kOk), 1u);
  receiver.ExpectSound();
}

TEST(HostWire, ChoosesTheLaneThatBothHave) {
  TestReceiver receiver;
  const auto both = Make(receiver, "auto");
  const auto other = Make(receiver, "auto");
  const auto tcp = Make(receiver, "tcp");
  const auto shm = Make(receiver, "shm");
  EXPECT_EQ(TransportBetween(*both, *other), "shared memory");
  EXPECT_EQ(TransportBetween(*both, *shm), "shared memory");
  EXPECT_EQ(TransportBetween(*both, *tcp), "tcp");
  EXPECT_EQ(TransportBetween(*tcp, *both), "tcp");
  EXPECT_EQ(shm->Connect(tcp->address(), 1000).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(tcp->Connect(shm->address(), 1000).status().code(), absl::StatusCode::kUnavailable);
}

TEST(HostWire, FallsBackToTcpWhenThePeerIsElsewhere) {
  TestReceiver receiver;
  const auto source = Make(receiver, "auto");
  const auto target = Make(receiver, "auto");
  auto address = ParseWireAddress(target->address());
  ASSERT_TRUE(address.ok());
  address->host = "another-boot-id";
  auto lane = source->Connect(FormatWireAddress(*address), 10'000);
  ASSERT_TRUE(lane.ok()) << lane.status();
  EXPECT_EQ((*lane)->transport(), "tcp");
  lane->reset();
  // The same boot id, but another network namespace: the name is not there.
  address = ParseWireAddress(target->address());
  address->same_host = "penstock-wire-nobody";
  lane = source->Connect(FormatWireAddress(*address), 10'000);
  ASSERT_TRUE(lane.ok()) << lane.status();
  EXPECT_EQ((*lane)->transport(), "tcp");
}

TEST(HostWire, TurnsAwayWhoLooksForAnEarlierProcess) {
  TestReceiver receiver;
  const auto source = Make(receiver, "tcp");
  const auto target = Make(receiver, "tcp");
  auto address = ParseWireAddress(target->address());
  address->instance = std::string(32, '0');
  const auto lane = source->Connect(FormatWireAddress(*address), 30'000);
  EXPECT_EQ(lane.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(lane.status()), testing::HasSubstr("replaced"));
}

TEST(HostWire, NamesTheOptionThatIsWrong) {
  TestReceiver receiver;
  const auto expect = [&](const HostWireOptions& options, const std::string& text) {
    const auto wire = MakeHostWire(options, receiver);
    ASSERT_FALSE(wire.ok());
    EXPECT_THAT(Message(wire.status()), testing::HasSubstr(text));
  };
  expect({.listen = "127.0.0.1", .lanes = "rdma", .limits = {}}, "wire.lanes is \"rdma\"");
  expect({.listen = "127.0.0.1:70000", .lanes = "tcp", .limits = {}},
         "wire.listen: port \"70000\"");
  expect({.listen = "no such host", .lanes = "tcp", .limits = {}}, "wire.listen: host");
  expect({.listen = "192.0.2.1", .lanes = "tcp", .limits = {}}, "192.0.2.1");  // Not ours.
}

TEST(HostWire, ListensByInterfaceName) {
  TestReceiver receiver;
  const auto source = Make(receiver, "tcp", "lo");
  const auto target = Make(receiver, "tcp", "lo:0");
  ASSERT_NE(target, nullptr);
  EXPECT_THAT(target->address(), testing::HasSubstr("endpoint=127.0.0.1:"));
  ExpectCarries(*source, *target, receiver);
}

TEST(HostWire, GetsItsPortBackAtOnce) {
  TestReceiver receiver;
  const auto source = Make(receiver, "tcp");
  auto target = Make(receiver, "tcp");
  const std::string endpoint = ParseWireAddress(target->address())->endpoint;
  auto lane = source->Connect(target->address(), 10'000);
  ASSERT_TRUE(lane.ok());
  target.reset();
  target = Make(receiver, "tcp", endpoint);
  ASSERT_NE(target, nullptr);
  ExpectCarries(*source, *target, receiver);
}

TEST(HostWire, DoesNotTakeOverTheSignalsOfTheProcess) {
  const auto handler = [](int signal) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    return action.sa_handler;
  };
  TestReceiver receiver;
  const auto wire = Make(receiver, "tcp");
#ifndef PENSTOCK_TEST_SANITIZED
  for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) EXPECT_EQ(handler(signal), SIG_DFL);
#endif
  EXPECT_EQ(handler(SIGTERM), SIG_DFL);
}

TEST(HostWire, SurvivesStrangersAtItsUnixSocket) {
  TestReceiver receiver;
  const auto source = Make(receiver, "shm");
  const auto target = Make(receiver, "shm");
  const std::string name = ParseWireAddress(target->address())->same_host;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::mt19937 random(11);
  for (int i = 0; i < 60; ++i) {
    const auto fd = ConnectAbstract(name, deadline);
    ASSERT_TRUE(fd.ok()) << fd.status();
    std::vector<uint32_t> words(i % 3 == 0 ? 32 : random() % 60);
    for (uint32_t& word : words) word = static_cast<uint32_t>(random());
    if (i % 3 == 0) words[0] = WirePacket::kMagic;  // The right magic,
    if (i % 6 == 0) words[1] = 1 + i / 6 % 5;       // and kind: greetings and announcements from
    if (i % 6 == 0) words[9] = 40;                  // nowhere.
    send(*fd, words.data(), words.size() * 4, MSG_NOSIGNAL);
    close(*fd);
  }
  EXPECT_EQ(receiver.announced(), 0u);
  ExpectCarries(*source, *target, receiver);
}

// A greeting that proves who one is does not make the rest true.
TEST(HostWire, SurvivesAnAnnouncementOfMemoryThatIsNotThere) {
  TestReceiver receiver;
  const auto source = Make(receiver, "shm");
  const auto target = Make(receiver, "shm");
  const std::string name = ParseWireAddress(target->address())->same_host;
  const auto fd =
      ConnectAbstract(name, std::chrono::steady_clock::now() + std::chrono::seconds(10));
  ASSERT_TRUE(fd.ok());
  const uint64_t probe = 0x1234;
  WirePacket packet{
      .kind = WirePacket::Kind::kHello, .id = probe, .address = reinterpret_cast<uint64_t>(&probe)};
  ASSERT_EQ(send(*fd, &packet, sizeof(packet), 0), 128);
  const TestHeader header{.number = 1, .size = 1 << 20};
  packet = WirePacket{.kind = WirePacket::Kind::kAnnounce, .id = 0, .address = 8, .size = 1 << 20};
  packet.SetText({reinterpret_cast<const char*>(&header), sizeof(header)});
  ASSERT_EQ(send(*fd, &packet, sizeof(packet), 0), 128);
  ASSERT_TRUE(receiver.WaitAnnounced(1));
  ASSERT_TRUE(receiver.WaitSettled());
  EXPECT_EQ(receiver.lost(), 1u);
  close(*fd);
  ExpectCarries(*source, *target, receiver);
}

TEST(WireAddress, ComesBackAsItWas) {
  const WireAddress address{
      .instance = "abc", .host = "h", .endpoint = "[::1]:9", .link = "stream", .tls = true};
  EXPECT_EQ(*ParseWireAddress(FormatWireAddress(address)), address);
  EXPECT_EQ(*ParseWireAddress(FormatWireAddress({})), WireAddress{});
  const WireAddress with_nccl{.instance = "a", .endpoint = "127.0.0.1:9", .nccl = "2.28.9"};
  EXPECT_EQ(*ParseWireAddress(FormatWireAddress(with_nccl)), with_nccl);
}

TEST(WireAddress, SaysTlsOnlyOfLanesBetweenHosts) {
  const std::string lanes = FormatWireAddress({.endpoint = "[::1]:9", .link = "ucx"});
  EXPECT_TRUE(lanes.ends_with(" link=ucx tls=0")) << lanes;
  EXPECT_FALSE(ParseWireAddress(lanes + "1").ok());
  EXPECT_FALSE(ParseWireAddress(lanes.substr(0, lanes.size() - 1)).ok());
  const std::string none = FormatWireAddress({.instance = "a"});
  EXPECT_TRUE(none.ends_with(" link= tls=")) << none;
  EXPECT_FALSE(ParseWireAddress(none + "0").ok());
}

TEST(WireAddress, RefusesWhatIsNone) {
  const std::string good = FormatWireAddress({.instance = "a", .host = "b"});
  for (size_t cut = 0; cut < good.find("endpoint="); ++cut) {
    EXPECT_FALSE(ParseWireAddress(good.substr(0, cut)).ok()) << cut;
  }
  EXPECT_FALSE(ParseWireAddress(good + " more=1").ok());
  EXPECT_FALSE(ParseWireAddress(good + " nccl=").ok());
  EXPECT_FALSE(ParseWireAddress(good + " nccl=2.28.9 more=1").ok());
  EXPECT_FALSE(ParseWireAddress(good + std::string(200, 'x')).ok());
  EXPECT_FALSE(ParseWireAddress(good + "\n").ok());
}

TEST(WireEndpoint, ReadsWhatPeopleWrite) {
  EXPECT_EQ(ParseEndpoint("127.0.0.1:80")->Text(), "127.0.0.1:80");
  EXPECT_EQ(ParseEndpoint("[::1]:80")->Text(), "[::1]:80");
  EXPECT_FALSE(ParseEndpoint("localhost:80").ok());  // Nothing is looked up.
  EXPECT_FALSE(ParseEndpoint("[::1:80").ok());
  EXPECT_FALSE(ParseEndpoint("127.0.0.1:-1").ok());
  EXPECT_FALSE(ParseEndpoint("127.0.0.1:").ok());
  EXPECT_EQ(FindListenPlace("localhost:0")->bind.loopback(), true);
  EXPECT_EQ(FindListenPlace("127.0.0.1")->device, "lo");
}

}  // namespace
}  // namespace penstock
