#include "kvstore/wire/net/listener.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <chrono>
#include <utility>

namespace penstock {
namespace {

constexpr int kAcceptsAtOnce = 64;
constexpr auto kPause = std::chrono::milliseconds(100);

}  // namespace

WireListener::WireListener(WireLoop& loop, int fd, std::function<void(int)> on_accepted)
    : loop_(loop),
      fd_(fd),
      on_accepted_(std::move(on_accepted)),
      acceptor_([](int refused) { close(refused); }) {}

absl::StatusOr<std::unique_ptr<WireListener>> WireListener::Create(
    WireLoop& loop, int fd, std::function<void(int)> on_accepted) {
  std::unique_ptr<WireListener> listener(new WireListener(loop, fd, std::move(on_accepted)));
  WireListener* const self = listener.get();
  ASSIGN_OR_RETURN(listener->pause_, WireTicker::Create(loop, kPause, [self] { self->Resume(); }));
  RETURN_IF_ERROR(loop.Watch(fd, EPOLLIN, [self](uint32_t) { self->Accept(); }));
  return listener;
}

WireListener::~WireListener() {
  loop_.Unwatch(fd_);
  close(fd_);
}

void WireListener::Accept() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    const ReservedAcceptor::Step step = acceptor_.Accept(fd_);
    switch (step.kind) {
      case ReservedAcceptor::Step::Kind::kAccepted:
        on_accepted_(step.connection);
        break;
      case ReservedAcceptor::Step::Kind::kRefused:
        break;
      case ReservedAcceptor::Step::Kind::kNothing:
        return;
      case ReservedAcceptor::Step::Kind::kExhausted:
        return Pause();
    }
  }
}

void WireListener::Pause() {
  loop_.Rewatch(fd_, 0);
  pause_->Switch(true);
}

void WireListener::Resume() {
  if (!acceptor_.Restore()) return;
  pause_->Switch(false);
  loop_.Rewatch(fd_, EPOLLIN);
}

}  // namespace penstock
