#include "base/net/reserved_acceptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace penstock {
namespace {

bool OutOfDescriptors(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

}  // namespace

ReservedAcceptor::ReservedAcceptor(std::function<void(int)> refuse) : refuse_(std::move(refuse)) {
  Restore();
}

ReservedAcceptor::~ReservedAcceptor() {
  if (reserve_ >= 0) close(reserve_);
}

ReservedAcceptor::Step ReservedAcceptor::Accept(int listener) {
  Step step;
  socklen_t size = sizeof(step.peer);
  step.connection = accept4(listener, reinterpret_cast<sockaddr*>(&step.peer), &size,
                            SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (step.connection >= 0) {
    step.kind = Step::Kind::kAccepted;
  } else if (OutOfDescriptors(errno)) {
    step.kind = RefuseOne(listener) ? Step::Kind::kRefused : Step::Kind::kExhausted;
  }
  return step;
}

bool ReservedAcceptor::RefuseOne(int listener) {
  if (reserve_ >= 0) close(std::exchange(reserve_, -1));
  const int connection = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (connection >= 0) refuse_(connection);
  return Restore() && connection >= 0;
}

bool ReservedAcceptor::Restore() {
  if (reserve_ < 0) reserve_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  return reserve_ >= 0;
}

}  // namespace penstock
