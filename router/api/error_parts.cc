#include "router/api/error_parts.h"

#include <algorithm>
#include <array>

#include "router/request/error_detail.h"

namespace penstock {
namespace {

// True if `field` is the field `name`, or a part of it.
bool Covers(std::string_view name, std::string_view field) {
  if (!field.starts_with(name)) return false;
  return field.size() == name.size() || field[name.size()] == '.' || field[name.size()] == '[';
}

}  // namespace

std::string HttpNameOf(const std::string& field) {
  if (field == "text") return "prompt";
  if (field == "client_request_id") return "x-request-id";
  if (field.starts_with("tokens.ids[")) return "prompt" + field.substr(10);
  if (field == "token_ids") return "tokens";
  if (field.starts_with("token_ids[")) return "tokens" + field.substr(9);
  constexpr std::array<std::string_view, 5> kGroups = {"sampling.", "stop.", "output.", "chat.",
                                                       "cache."};
  const auto group = std::find_if(kGroups.begin(), kGroups.end(),
                                  [&](std::string_view name) { return field.starts_with(name); });
  std::string name = group == kGroups.end() ? field : field.substr(group->size());
  if (name == "affinity_key") return "prompt_cache_key";
  if (name == "salt") return "cache_salt";
  constexpr std::string_view kOptions = "template_options";
  if (name.starts_with(kOptions)) return "chat_template_kwargs" + name.substr(kOptions.size());
  constexpr std::string_view kBreakpoint = ".breakpoint";
  if (name.ends_with(kBreakpoint)) {
    return name.substr(0, name.size() - kBreakpoint.size()) + ".cache_control";
  }
  return name;
}

absl::Status UnsupportedField(std::string_view field, std::string_view why) {
  return WithDetail(BadField(field, "{}", why), {.reason = "unsupported_parameter"});
}

std::string ErrorMessage(const absl::Status& status, bool internal) {
  if (internal) return "the server failed to answer; its log says why";
  const std::string field = DetailOf(status).field;
  std::string message(Message(status));
  if (!field.empty() && message.starts_with(field)) {
    message.replace(0, field.size(), HttpNameOf(field));
  }
  return message;
}

absl::Status RenameFields(absl::Status status, const std::vector<FieldName>& names) {
  ErrorDetail detail = DetailOf(status);
  const FieldName* found = nullptr;
  for (const FieldName& one : names) {
    const bool longer = found == nullptr || one.name.size() > found->name.size();
    if (longer && Covers(one.name, detail.field)) found = &one;
  }
  if (found == nullptr || found->shown.empty()) return status;
  std::string message = Message(status);
  if (message.starts_with(detail.field)) message.replace(0, found->name.size(), found->shown);
  detail.field.replace(0, found->name.size(), found->shown);
  return WithDetail(absl::Status(status.code(), message), detail);
}

void AddRetryHeaders(bool retry, Duration after, HttpResponse& response) {
  response.headers.push_back({"x-should-retry", retry ? "true" : "false"});
  if (!retry) return;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(after).count();
  response.headers.push_back({"retry-after-ms", std::to_string(ms)});
  response.headers.push_back({"retry-after", std::to_string((ms + 999) / 1000)});
}

}  // namespace penstock
