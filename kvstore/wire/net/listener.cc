#include "kvstore/wire/net/listener.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

namespace penstock {
namespace {

constexpr int kAcceptsAtOnce = 64;
constexpr auto kRest = std::chrono::milliseconds(100);

int OpenReserve() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

int AcceptOne(int fd) { return accept4(fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }

}  // namespace

WireListener::WireListener(WireLoop& loop, int fd, std::function<void(int)> on_accepted)
    : loop_(loop), fd_(fd), on_accepted_(std::move(on_accepted)), reserve_(OpenReserve()) {}

absl::StatusOr<std::unique_ptr<WireListener>> WireListener::Create(
    WireLoop& loop, int fd, std::function<void(int)> on_accepted) {
  std::unique_ptr<WireListener> listener(new WireListener(loop, fd, std::move(on_accepted)));
  WireListener* const self = listener.get();
  ASSIGN_OR_RETURN(listener->rest_, WireTicker::Create(loop, kRest, [self] { self->Resume(); }));
  RETURN_IF_ERROR(loop.Watch(fd, EPOLLIN, [self](uint32_t) { self->Accept(); }));
  return listener;
}

WireListener::~WireListener() {
  loop_.Unwatch(fd_);
  close(fd_);
  if (reserve_ >= 0) close(reserve_);
}

void WireListener::Accept() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    const int accepted = AcceptOne(fd_);
    if (accepted >= 0) {
      on_accepted_(accepted);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      if (!RefuseOne()) return Rest();
    } else if (errno != ECONNABORTED && errno != EINTR) {
      return;
    }
  }
}

// Closes one caller by means of the reserve; false when that is not possible either.
bool WireListener::RefuseOne() {
  if (reserve_ >= 0) close(reserve_);
  const int refused = AcceptOne(fd_);
  if (refused >= 0) close(refused);
  reserve_ = OpenReserve();
  return refused >= 0 && reserve_ >= 0;
}

void WireListener::Rest() {
  loop_.Rewatch(fd_, 0);
  rest_->Switch(true);
}

void WireListener::Resume() {
  if (reserve_ < 0) reserve_ = OpenReserve();
  if (reserve_ < 0) return;
  rest_->Switch(false);
  loop_.Rewatch(fd_, EPOLLIN);
}

}  // namespace penstock
