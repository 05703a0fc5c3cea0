#include "base/net/socket.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace penstock {
namespace {

class PlainSocket final : public Socket {
 public:
  explicit PlainSocket(int fd) : fd_(fd) {}
  ~PlainSocket() override { close(fd_); }
  PlainSocket(const PlainSocket&) = delete;
  PlainSocket& operator=(const PlainSocket&) = delete;

  Result Read(std::span<char> into) override {
    const ssize_t count = recv(fd_, into.data(), into.size(), 0);
    if (count == 0) return {.kind = Result::Kind::kEnd};
    return ResultOf(count);
  }
  Result Write(std::string_view bytes) override {
    return ResultOf(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  void FinishWriting() override { shutdown(fd_, SHUT_WR); }
  int fd() const override { return fd_; }

 private:
  static Result ResultOf(ssize_t count) {
    if (count >= 0) return {.kind = Result::Kind::kBytes, .bytes = static_cast<size_t>(count)};
    const bool later = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    return {.kind = later ? Result::Kind::kWouldBlock : Result::Kind::kBroken};
  }

  const int fd_;
};

}  // namespace

std::unique_ptr<Socket> MakePlainSocket(int fd) { return std::make_unique<PlainSocket>(fd); }

}  // namespace penstock
