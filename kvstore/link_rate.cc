#include "kvstore/link_rate.h"

#include <algorithm>

#include "base/check.h"

namespace penstock {
namespace {

// Less than this tells of latency only, and is left out.
constexpr double kBytesLeast = 64 << 10;
// Bursts smaller than this count together with those behind them.
constexpr double kBurstLeast = 256 << 10;
// A long burst is cut, so that a link that changes is known before it ends.
constexpr double kBurstMost = 8 << 20;
// Of a burst's time that is the link's, however busy the receiver was.
constexpr double kLinkShareLeast = 0.25;

double SecondsOf(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

void LinkRate::OnPut(TimePoint now) {
  if (under_way_++ > 0) return;
  counted_to_ = now;
  burst_.start = now;
}

Duration LinkRate::OnEnded(TimePoint now, size_t delivered, Duration handling) {
  PENSTOCK_CHECK_GT(under_way_, 0);
  --under_way_;
  const Duration taken = std::max(Duration::zero(), now - counted_to_);
  counted_to_ = std::max(counted_to_, now);
  burst_.failed |= delivered == 0;
  burst_.bytes += static_cast<double>(delivered);
  burst_.handling_s += SecondsOf(handling);
  if (under_way_ == 0 || burst_.bytes >= kBurstMost) EndBurst(now);
  return taken;
}

void LinkRate::EndBurst(TimePoint now) {
  const double took_s = burst_.before_s + SecondsOf(now - burst_.start);
  if (!burst_.failed && burst_.bytes >= kBytesLeast && burst_.bytes < kBurstLeast) {
    burst_.before_s = took_s;
    return;
  }
  if (!burst_.failed && burst_.bytes >= kBurstLeast && took_s > 0) {
    const double link_s = std::max(took_s - burst_.handling_s, kLinkShareLeast * took_s);
    rates_[bursts_++ % rates_.size()] = burst_.bytes / link_s;
  }
  burst_ = {.start = now};
}

std::optional<double> LinkRate::bytes_per_s() const {
  if (bursts_ == 0) return std::nullopt;
  return *std::max_element(rates_.begin(), rates_.end());
}

}  // namespace penstock
