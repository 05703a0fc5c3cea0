#include "router/kubernetes/lease.h"

namespace penstock {

std::optional<LeaseRecord> LeaseElector::OnRead(const std::optional<LeaseRecord>& seen,
                                                TimePoint now, const std::string& wall) {
  if (!seen_ || seen != seen_) seen_at_ = now;
  seen_ = seen;
  const auto duration_s = static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::seconds>(times_.duration).count());
  if (!seen) return LeaseRecord{id_, duration_s, 0, wall, wall, ""};
  if (seen->holder == id_) {
    LeaseRecord renewed = *seen;
    renewed.renewed = wall;
    renewed.duration_s = duration_s;
    return renewed;
  }
  held_until_.reset();  // Another process has taken it.
  const bool expired = now - seen_at_ >= std::chrono::seconds(seen->duration_s);
  if (!seen->holder.empty() && !expired) return std::nullopt;
  return LeaseRecord{id_, duration_s, seen->transitions + 1, wall, wall, seen->version};
}

void LeaseElector::OnWritten(const LeaseRecord& written, TimePoint sent) {
  seen_ = written;  // with its new version, which Release names
  seen_at_ = sent;
  held_until_ = sent + times_.renew_deadline;
}

std::optional<LeaseRecord> LeaseElector::Release(const std::string& wall) const {
  if (!held_until_ || !seen_) return std::nullopt;
  LeaseRecord released = *seen_;
  released.holder.clear();
  released.duration_s = 1;
  released.renewed = wall;
  return released;
}

bool LeaseElector::leads(TimePoint now, Duration margin) const {
  return held_until_ && now + margin < *held_until_;
}

}  // namespace penstock
