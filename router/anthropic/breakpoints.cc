#include "router/anthropic/breakpoints.h"

#include "router/api/cache_control.h"
#include "router/request/error_detail.h"

namespace penstock {

absl::Status Breakpoints::Read(const std::string& path, const Json& control,
                               v1::CacheBreakpoint& breakpoint) {
  RETURN_IF_ERROR(ReadCacheControl(path, control, breakpoint));
  const int64_t ttl_s = breakpoint.ttl().seconds();
  if (ttl_s > kShortTtlSeconds && ttls_.contains(kShortTtlSeconds)) {
    return BadField(path + ".ttl", "is 1h after a breakpoint of 5m; longer ones come first");
  }
  ttls_.insert(ttl_s);
  return absl::OkStatus();
}

}  // namespace penstock
