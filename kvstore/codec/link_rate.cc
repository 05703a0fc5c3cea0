#include "kvstore/codec/link_rate.h"

#include <algorithm>

#include "base/check.h"

namespace penstock {
namespace {

// Smaller bursts measure latency only and are ignored.
constexpr double kBytesMin = 64 << 10;
// Shorter bursts consist mostly of latency.
constexpr double kLatencyCounts_s = 0.002;
// A long burst is cut when it has reached both limits, so that a changing link is noticed before
// the burst ends. Bytes in flight at the cut count for the next piece, so pieces must not be small.
constexpr double kPieceMin = 8 << 20;
constexpr double kPieceLeast_s = 0.05;
// The minimum share of a burst's time that is attributed to the link, however busy the receiver
// was.
constexpr double kLinkShareMin = 0.25;
// If both ends together are busy for more than this share of a burst's time, the link may have
// waited for them.
constexpr double kBusyMax = 0.5;

double SecondsOf(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

void LinkRate::OnPut(TimePoint now) {
  if (pending_++ > 0) return;
  burst_.start = now;
}

void LinkRate::OnEnded(TimePoint now, const Sent& sent) {
  PENSTOCK_CHECK_GT(pending_, 0);
  --pending_;
  burst_.failed |= sent.bytes == 0;
  burst_.puts += 1;
  burst_.bytes += static_cast<double>(sent.bytes);
  burst_.making_s += SecondsOf(sent.making);
  burst_.handling_s += SecondsOf(sent.handling);
  const bool cut = burst_.bytes >= kPieceMin && SecondsOf(now - burst_.start) >= kPieceLeast_s;
  if (pending_ > 0 && !cut) return;
  EndBurst(now);
  burst_.continues = pending_ > 0;
}

void LinkRate::EndBurst(TimePoint now) {
  const double took_s = SecondsOf(now - burst_.start);
  const double min = burst_.continues ? kPieceMin : kBytesMin;
  if (!burst_.failed && burst_.bytes >= min && took_s > 0) Count(took_s);
  burst_ = {.start = now};
}

void LinkRate::Count(double took_s) {
  const double busy_s = burst_.making_s + burst_.handling_s;
  at_least_ = took_s < kLatencyCounts_s || (burst_.puts > 1 && busy_s > kBusyMax * took_s);
  if (at_least_) {
    const double no_less = burst_.bytes / took_s;
    if (no_less > bytes_per_s().value_or(0)) Add(no_less);
    return;
  }
  // The link waits for the receiver only at the end; earlier handling overlapped with transfers.
  const double link_s = std::max(took_s - burst_.handling_s / burst_.puts, kLinkShareMin * took_s);
  Add(burst_.bytes / link_s);
}

std::optional<double> LinkRate::bytes_per_s() const {
  if (bursts_ == 0) return std::nullopt;
  return *std::max_element(rates_.begin(), rates_.end());
}

}  // namespace penstock
