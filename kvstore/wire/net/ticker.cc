#include "kvstore/wire/net/ticker.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<WireTicker>> WireTicker::Create(WireLoop& loop,
                                                               std::chrono::milliseconds interval,
                                                               std::function<void()> on_tick) {
  const int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (fd < 0) return ResourceExhausted("wire: no timer: {}", std::strerror(errno));
  std::unique_ptr<WireTicker> ticker(new WireTicker(loop, interval, fd));
  RETURN_IF_ERROR(loop.Watch(fd, EPOLLIN, [fd, on_tick = std::move(on_tick)](uint32_t) {
    uint64_t ticks = 0;
    if (read(fd, &ticks, sizeof(ticks)) == sizeof(ticks)) on_tick();
  }));
  return ticker;
}

WireTicker::~WireTicker() {
  loop_.Unwatch(fd_);
  close(fd_);
}

void WireTicker::Switch(bool on) {
  if (std::exchange(on_, on) == on) return;
  const auto nanoseconds = std::chrono::nanoseconds(on ? interval_ : interval_.zero()).count();
  const timespec time{.tv_sec = nanoseconds / 1'000'000'000,
                      .tv_nsec = nanoseconds % 1'000'000'000};
  const itimerspec setting{.it_interval = time, .it_value = time};
  PENSTOCK_CHECK_EQ(timerfd_settime(fd_, 0, &setting, nullptr), 0);
}

}  // namespace penstock
