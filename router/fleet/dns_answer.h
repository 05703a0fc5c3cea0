#pragma once

#include <set>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace penstock {

// The workers' endpoints behind one DNS name. If the name stops to exist, its last endpoints are
// kept for kKeep, because one wrong answer of DNS must not unlist the fleet; workers that have
// really gone are noticed by their watches. If the name cannot be resolved, they are kept until it
// can. Pure; the caller synchronises.
class DnsAnswer {
 public:
  static constexpr Duration kKeep = std::chrono::minutes(5);

  // Takes the result of a lookup; an empty set means that the name does not exist. Returns what is
  // wrong, for the log; empty: nothing.
  std::string Take(absl::StatusOr<std::set<std::string>> found, TimePoint now) {
    if (!found.ok()) return Message(found.status());
    if (!found->empty()) {
      endpoints_ = *std::move(found);
      last_found_ = now;
      return "";
    }
    if (endpoints_.empty()) return "";  // a Service without endpoints
    if (now - last_found_ >= kKeep) {
      endpoints_.clear();
      return fmt::format("the name has had no address for {} s; its workers are unlisted",
                         std::chrono::duration_cast<std::chrono::seconds>(kKeep).count());
    }
    return fmt::format("the name has no address any more; its last {} are kept for up to {} s",
                       endpoints_.size(),
                       std::chrono::duration_cast<std::chrono::seconds>(kKeep).count());
  }

  const std::set<std::string>& endpoints() const { return endpoints_; }

 private:
  std::set<std::string> endpoints_;
  TimePoint last_found_;
};

}  // namespace penstock
