// A gRPC server whose process runs out of descriptors: what it refuses, what it keeps, and that it
// comes back.
#include "base/rpc/rpc_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "base/lifecycle.h"
#include "proto/worker.grpc.pb.h"
#include "tests/support/sanitizers.h"

namespace penstock {
namespace {

constexpr rlim_t kDescriptors = 256;  // half of which the server keeps

// A descriptor that is closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

Descriptor OpenAny() { return Descriptor(open("/dev/null", O_RDONLY)); }

// True if the other end closes the connection without a byte: gRPC's server begins with its
// settings.
bool IsClosed(const Descriptor& connection) {
  pollfd one{.fd = connection.get(), .events = POLLIN, .revents = 0};
  char byte = 0;
  return poll(&one, 1, 30'000) == 1 && recv(connection.get(), &byte, 1, MSG_DONTWAIT) <= 0;
}

Descriptor Connect(const std::string& endpoint) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(ParseHostPort(endpoint)->port);
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_GE(fd, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return Descriptor(fd);
}

class RpcServerTest : public testing::Test {
 protected:
  RpcServerTest() {
    getrlimit(RLIMIT_NOFILE, &before_);
    auto server = RpcServer::Start({.listen = "127.0.0.1:0", .services = {&service_}});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    first_ = NewChannel();
    server_->SetServing("", true);
    EXPECT_TRUE(Answers(*first_));  // and has all the descriptors that it needs for itself
    rlimit few = before_;
    few.rlim_cur = kDescriptors;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~RpcServerTest() override { setrlimit(RLIMIT_NOFILE, &before_); }

  std::shared_ptr<grpc::Channel> NewChannel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(server_->endpoint(), grpc::InsecureChannelCredentials(),
                                     arguments);
  }
  static bool Answers(grpc::Channel& channel) {
    return channel.WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20));
  }

  v1::WorkerStatus::Service service_;  // gRPC starts no server without one
  rlimit before_{};
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> first_;  // stays open: closing it would free descriptors
};

TEST(GrpcStatus, AConnectionThatBrokeInAnUnknownWayIsUnavailable) {
  const absl::Status broken = FromGrpcStatus({grpc::StatusCode::UNKNOWN, "Stream removed"});
  EXPECT_EQ(broken.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(broken.message(), "Stream removed");
  for (const absl::StatusCode code : {absl::StatusCode::kOk, absl::StatusCode::kInternal,
                                      absl::StatusCode::kDataLoss, absl::StatusCode::kNotFound}) {
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(absl::Status(code, "found"))).code(), code);
  }
}

TEST_F(RpcServerTest, AcceptsAgainAfterDescriptorsRanOut) {
#ifdef PENSTOCK_TEST_SANITIZED
  GTEST_SKIP() << "UndefinedBehaviorSanitizer needs a pipe to check an object's type";
#endif
  const std::string endpoint = server_->endpoint();
  std::vector<Descriptor> fillers;
  do {
    fillers.push_back(OpenAny());
  } while (fillers.back().get() >= 0);
  fillers.pop_back();
  fillers.pop_back();  // for the client's end: the server has none
  {
    const Descriptor refused = Connect(endpoint);
    EXPECT_TRUE(IsClosed(refused)) << "the server has not tried to accept it";
  }
  fillers.clear();
  EXPECT_TRUE(Answers(*NewChannel()));
}

TEST_F(RpcServerTest, LeavesDescriptorsToTheRestOfTheProcess) {
  std::vector<Descriptor> connections;
  for (rlim_t i = 0; i < kDescriptors / 4; ++i) {  // each has two ends here
    connections.push_back(Connect(server_->endpoint()));
  }
  EXPECT_TRUE(IsClosed(connections.back()));
  std::vector<Descriptor> files;
  for (rlim_t i = 0; i < kDescriptors / 4; ++i) {
    files.push_back(OpenAny());
    ASSERT_GE(files.back().get(), 0);
  }
  connections.clear();
  files.clear();
  EXPECT_TRUE(Answers(*NewChannel()));
}

TEST(RpcServerAddressTest, TwoServersDoNotShareAPort) {
  v1::WorkerStatus::Service service;
  for (const std::string host : {"127.0.0.1:", "0.0.0.0:", "localhost:"}) {
    const auto first = RpcServer::Start({.listen = host + "0", .services = {&service}});
    ASSERT_TRUE(first.ok()) << first.status();
    const std::string endpoint = (*first)->endpoint();
    EXPECT_EQ(endpoint.find(host), 0u) << endpoint;
    const auto second = RpcServer::Start({.listen = endpoint, .services = {&service}});
    EXPECT_TRUE(absl::IsResourceExhausted(second.status())) << second.status();
  }
}

}  // namespace
}  // namespace penstock
