#include "base/net/reserved_acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

namespace penstock {
namespace {

using Kind = ReservedAcceptor::Step::Kind;

int LowestFree() {
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(fd);
  return fd;
}

// A listening socket with clients that have connected and wait to be accepted.
class ReservedAcceptorTest : public ::testing::Test {
 protected:
  ReservedAcceptorTest() {
    getrlimit(RLIMIT_NOFILE, &before_);
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address_);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address_), size), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address_), &size), 0);
  }
  ~ReservedAcceptorTest() override {
    AllowDescriptors(before_.rlim_cur);
    for (const int client : clients_) close(client);
    close(listener_);
  }

  void Connect() {
    const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address_), sizeof(address_)), 0);
    clients_.push_back(client);
  }
  void AllowDescriptors(rlim_t count) const {
    rlimit limit = before_;
    limit.rlim_cur = count;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  static bool IsClosed(int client) {
    char byte = 0;
    return read(client, &byte, 1) == 0;
  }

  rlimit before_{};
  int listener_ = -1;
  sockaddr_in address_{};
  std::vector<int> clients_;
  int refused_ = 0;
  const std::function<void(int)> refuse_ = [this](int connection) {
    ++refused_;
    close(connection);
  };
};

TEST_F(ReservedAcceptorTest, AcceptsWhileDescriptorsAreFree) {
  ReservedAcceptor acceptor(refuse_);
  EXPECT_EQ(acceptor.Accept(listener_).kind, Kind::kNothing);
  Connect();
  const ReservedAcceptor::Step step = acceptor.Accept(listener_);
  ASSERT_EQ(step.kind, Kind::kAccepted);
  EXPECT_EQ(fcntl(step.connection, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  EXPECT_EQ(fcntl(step.connection, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  const auto& peer = reinterpret_cast<const sockaddr_in&>(step.peer);
  EXPECT_EQ(peer.sin_family, AF_INET);
  EXPECT_EQ(peer.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
  close(step.connection);
  EXPECT_EQ(acceptor.Accept(listener_).kind, Kind::kNothing);
  EXPECT_EQ(refused_, 0);
}

TEST_F(ReservedAcceptorTest, RefusesOneConnectionAStepByTheReserve) {
  for (int i = 0; i < 3; ++i) Connect();
  ReservedAcceptor acceptor(refuse_);
  AllowDescriptors(static_cast<rlim_t>(LowestFree()));
  const Kind first = acceptor.Accept(listener_).kind;
  const Kind second = acceptor.Accept(listener_).kind;
  AllowDescriptors(before_.rlim_cur);
  EXPECT_EQ(first, Kind::kRefused);
  EXPECT_EQ(second, Kind::kRefused);
  EXPECT_EQ(refused_, 2);
  EXPECT_TRUE(IsClosed(clients_[0]));
  EXPECT_TRUE(IsClosed(clients_[1]));
  const ReservedAcceptor::Step third = acceptor.Accept(listener_);
  EXPECT_EQ(third.kind, Kind::kAccepted);
  close(third.connection);
}

TEST_F(ReservedAcceptorTest, IsExhaustedWithoutItsReserveUntilOneIsFree) {
  Connect();
  const auto reserve = static_cast<rlim_t>(LowestFree());
  ReservedAcceptor acceptor(refuse_);
  AllowDescriptors(reserve);
  const Kind first = acceptor.Accept(listener_).kind;
  const bool restored = acceptor.Restore();
  const Kind second = acceptor.Accept(listener_).kind;
  AllowDescriptors(before_.rlim_cur);
  EXPECT_EQ(first, Kind::kExhausted);
  EXPECT_FALSE(restored);
  EXPECT_EQ(second, Kind::kExhausted);
  EXPECT_EQ(refused_, 0);
  EXPECT_TRUE(acceptor.Restore());
  const ReservedAcceptor::Step third = acceptor.Accept(listener_);
  EXPECT_EQ(third.kind, Kind::kAccepted);
  close(third.connection);
}

}  // namespace
}  // namespace penstock
