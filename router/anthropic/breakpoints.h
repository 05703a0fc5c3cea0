#pragma once

#include <optional>
#include <set>
#include <string>

#include "proto/inference.pb.h"
#include "router/request/json.h"

namespace penstock {

// Collects the lifetimes of breakpoints in the order of the prompt: tools, system, messages.
class Breakpoints {
 public:
  // BadField for a wrong `control`, and for one of an hour behind one of five minutes.
  absl::Status Read(const std::string& path, const Json& control, v1::CacheBreakpoint& breakpoint);
  bool any() const { return !ttls_.empty(); }
  std::optional<int64_t> ttl_s() const {
    if (ttls_.size() != 1) return std::nullopt;
    return *ttls_.begin();
  }

 private:
  std::set<int64_t> ttls_;
};

}  // namespace penstock
