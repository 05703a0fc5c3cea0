#include "kvstore/link_rate.h"

#include <algorithm>

#include "base/check.h"

namespace penstock {
namespace {

// A rate is believed after this much, and half forgotten after as much again, several times.
constexpr double kSeenLeast = 256 << 10;
constexpr double kSeenMost = 16 << 20;

double SecondsOf(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

void LinkRate::OnPut(TimePoint now) {
  if (under_way_++ == 0) counted_to_ = now;
}

Duration LinkRate::OnEnded(TimePoint now, size_t delivered) {
  PENSTOCK_CHECK_GT(under_way_, 0);
  --under_way_;
  const Duration taken = std::max(Duration::zero(), now - counted_to_);
  seconds_ += SecondsOf(taken);
  counted_to_ = std::max(counted_to_, now);
  bytes_ += static_cast<double>(delivered);
  if (bytes_ > kSeenMost) {
    bytes_ /= 2;
    seconds_ /= 2;
  }
  return taken;
}

std::optional<double> LinkRate::bytes_per_s() const {
  if (bytes_ < kSeenLeast || seconds_ <= 0) return std::nullopt;
  return bytes_ / seconds_;
}

}  // namespace penstock
