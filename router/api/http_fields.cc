#include "router/api/http_fields.h"

#include <algorithm>
#include <cctype>

#include "router/request/error_detail.h"
#include "router/session/entropy.h"

namespace penstock {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;

}  // namespace

bool IsJsonBody(const HttpHead& head) {
  const std::string* type = head.Find("content-type");
  if (type == nullptr) return false;
  std::string media = type->substr(0, type->find(';'));
  while (!media.empty() && media.back() == ' ') media.pop_back();
  std::transform(media.begin(), media.end(), media.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return media == "application/json";
}

absl::StatusOr<std::string> RequestIdOf(const HttpHead& head) {
  const std::string* id = head.Find("x-request-id");
  if (id == nullptr || id->empty()) return fmt::format("req-{:016x}", RandomU64());
  const bool printable =
      std::all_of(id->begin(), id->end(), [](unsigned char c) { return c >= 0x20 && c < 0x7f; });
  if (printable && id->size() <= kMaxRequestIdBytes) return *id;
  return BadField("x-request-id", "must be at most {} printable ASCII characters",
                  kMaxRequestIdBytes);
}

absl::Status NeedObject(const Json& body) {
  if (body.is_object()) return absl::OkStatus();
  return WithDetail(InvalidArgument("the body must be a JSON object, not {}", KindOf(body)),
                    {.reason = "invalid_type"});
}

}  // namespace penstock
