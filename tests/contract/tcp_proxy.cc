#include "tests/contract/tcp_proxy.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <utility>

#include "kvstore/wire/net/endpoint.h"
#include "kvstore/wire/net/socket.h"

namespace penstock {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);

// Blocking, from here on.
int Connect(const std::string& endpoint) {
  const auto parsed = ParseEndpoint(endpoint);
  const int fd = socket(parsed->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, parsed->get(), parsed->size) == 0) return fd;
  close(fd);
  return -1;
}

bool SendAll(int fd, std::span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  return true;
}

}  // namespace

TcpProxy::TcpProxy(const std::string& target, Inspect inspect)
    : target_(target), inspect_(std::move(inspect)) {
  auto place = ParseEndpoint("127.0.0.1:0");
  const auto fd = ListenTcp(*place);
  EXPECT_TRUE(fd.ok()) << fd.status();
  listen_fd_ = *fd;
  endpoint_ = place->Text();
  accepting_ = std::thread([this] { Accept(); });
}

void TcpProxy::Accept() {
  while (true) {
    pollfd entry{.fd = listen_fd_, .events = POLLIN, .revents = 0};
    poll(&entry, 1, -1);
    const int from = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (from < 0) return;
    const int to = Connect(target_);
    {
      MutexLock lock(mutex_);
      fds_.push_back(from);
      if (to >= 0) fds_.push_back(to);
    }
    if (to < 0 || cut_) {
      CutAll();
      continue;
    }
    const size_t connection = connections_++;
    threads_.emplace_back([=, this] { Forward(connection, true, from, to); });
    threads_.emplace_back([=, this] { Forward(connection, false, to, from); });
  }
}

void TcpProxy::Forward(size_t connection, bool to_target, int from, int to) {
  std::array<char, 16384> buffer;
  size_t offset = 0;
  while (true) {
    const ssize_t got = recv(from, buffer.data(), buffer.size(), 0);
    if (got <= 0) break;
    const std::span<char> bytes(buffer.data(), static_cast<size_t>(got));
    inspect_({connection, to_target, offset, bytes});
    offset += bytes.size();
    if (cut_ || !SendAll(to, bytes)) break;
  }
  shutdown(to, SHUT_WR);
}

void TcpProxy::CutAll() {
  cut_ = true;
  MutexLock lock(mutex_);
  for (const int fd : fds_) shutdown(fd, SHUT_RDWR);
}

void TcpProxy::Stop() {
  if (!accepting_.joinable()) return;
  shutdown(listen_fd_, SHUT_RDWR);
  accepting_.join();
  CutAll();
  for (std::thread& thread : threads_) thread.join();
  close(listen_fd_);
  MutexLock lock(mutex_);
  for (const int fd : fds_) close(fd);
  fds_.clear();
}

void ExpectClosesAfter(const std::string& endpoint, const std::string& bytes) {
  const int fd = Connect(endpoint);
  ASSERT_GE(fd, 0);
  SendAll(fd, bytes);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::array<char, 4096> answer;
  bool closed = false;
  while (!closed && std::chrono::steady_clock::now() < deadline) {
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&entry, 1, 1000) > 0) closed = recv(fd, answer.data(), answer.size(), 0) <= 0;
  }
  EXPECT_TRUE(closed);
  close(fd);
}

}  // namespace penstock
