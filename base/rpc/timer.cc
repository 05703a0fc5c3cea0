#include "base/rpc/timer.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <optional>

namespace penstock {

struct Timer::Impl {
  std::optional<grpc::Alarm> alarm;
};

Timer::Timer() : impl_(std::make_unique<Impl>()) {}
Timer::~Timer() = default;

void Timer::Set(Duration from_now, std::function<void()> fire) {
  const auto deadline =
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                   gpr_time_from_nanos(std::max<int64_t>(from_now.count(), 0), GPR_TIMESPAN));
  impl_->alarm.emplace();  // cancels the previous alarm
  impl_->alarm->Set(deadline, [fire = std::move(fire)](bool on_time) {
    if (on_time) fire();
  });
}

void Timer::Clear() { impl_->alarm.reset(); }

}  // namespace penstock
