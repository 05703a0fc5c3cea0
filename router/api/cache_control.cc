#include "router/api/cache_control.h"

#include "router/request/error_detail.h"

namespace penstock {

absl::Status ReadCacheControl(const std::string& path, const Json& control,
                              v1::CacheBreakpoint& breakpoint) {
  if (!control.is_object()) return BadField(path, "must be an object, not {}", KindOf(control));
  FieldReader reader(control, path + ".");
  const std::string* type = reader.String("type");
  const std::string* ttl = reader.String("ttl");
  RETURN_IF_ERROR(reader.status());
  if (type == nullptr || *type != "ephemeral") {
    return BadField(path + ".type", "must be \"ephemeral\"");
  }
  if (ttl != nullptr && *ttl != "5m" && *ttl != "1h") {
    return BadField(path + ".ttl", "is `{}`; it may be 5m or 1h", ShownText(*ttl));
  }
  const bool is_long = ttl != nullptr && *ttl == "1h";
  breakpoint.mutable_ttl()->set_seconds(is_long ? kLongTtlSeconds : kShortTtlSeconds);
  return absl::OkStatus();
}

}  // namespace penstock
