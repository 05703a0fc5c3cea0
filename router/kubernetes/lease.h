#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"

namespace penstock {

// A Lease of coordination.k8s.io/v1. Times of day are for people; nothing is decided on them.
struct LeaseRecord {
  std::string holder;  // empty: the Lease is free
  uint32_t duration_s = 0;
  uint32_t transitions = 0;
  std::string acquired;  // RFC 3339
  std::string renewed;
  std::string version;  // metadata.resourceVersion; empty: the Lease does not exist yet
  bool operator==(const LeaseRecord&) const = default;
};

struct LeaseTimes {
  Duration duration = std::chrono::seconds(15);        // others wait this long for a renewal
  Duration renew_deadline = std::chrono::seconds(10);  // the holder stops after this long
  Duration retry = std::chrono::seconds(2);
  Duration call = std::chrono::seconds(3);  // limit of one call to the API server
};

// Decides who holds a Lease as client-go does: another holder's time runs from the moment at which
// this process saw its last renewal, on this process's own clock, so clocks need not agree. A
// holder's own time runs from before it sent its last renewal, and ends earlier, so that it has
// stopped when another one begins. No clock and no I/O; the caller synchronizes.
class LeaseElector {
 public:
  LeaseElector(std::string id, const LeaseTimes& times) : id_(std::move(id)), times_(times) {}

  // `seen`: nullopt if the Lease does not exist. Returns the record to write, with the
  // version that it replaces; nullopt: another process holds the Lease. `wall`: the time of day.
  std::optional<LeaseRecord> OnRead(const std::optional<LeaseRecord>& seen, TimePoint now,
                                    const std::string& wall);
  // The record was written, as the server answered; the request for it began at `sent`.
  void OnWritten(const LeaseRecord& written, TimePoint sent);
  // The record to write when the process ends, so that another one needs not wait; nullopt: this
  // one does not hold the Lease, as far as it knows.
  std::optional<LeaseRecord> Release(const std::string& wall) const;
  void OnReleased() { held_until_.reset(); }

  // True while no other process can hold the Lease, now and for `margin` longer.
  bool leads(TimePoint now, Duration margin = Duration::zero()) const;

 private:
  const std::string id_;
  const LeaseTimes times_;
  std::optional<LeaseRecord> seen_;
  TimePoint seen_at_{};  // first time that `seen_` was read
  std::optional<TimePoint> held_until_;
};

}  // namespace penstock
