#include "router/kubernetes/kube_api.h"

#include <curl/curl.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"

namespace penstock {
namespace {

constexpr size_t kTokenBytesMax = 1 << 16;
// A refusal names the object, the account, the verb, the resource and the namespace, in this order,
// and three of them may have 253 characters.
constexpr size_t kMessageBytesMax = 1000;
constexpr long kRetryAfterMax_s = 60;

// Plain HTTP would tell everyone on the way the token.
bool IsPermitted(std::string_view url) {
  if (url.starts_with("https://")) return true;
  for (const std::string_view loopback : {"http://127.0.0.1:", "http://[::1]:"}) {
    if (url.starts_with(loopback)) return true;
  }
  return false;
}

// Manifests write brackets around an address of either family, and URLs have them for IPv6 alone.
std::string WithoutNeedlessBrackets(std::string url) {
  const auto open = std::ranges::find(url, '[');
  const auto close = std::find(open, url.end(), ']');
  if (close == url.end() || std::find(open, close, ':') != close) return url;
  url.erase(close);
  url.erase(open);
  return url;
}

// The kubelet renews the token, so it is read for every call.
absl::StatusOr<std::string> ReadToken(const std::string& path) {
  std::ifstream file(path);
  std::string token(kTokenBytesMax, '\0');
  file.read(token.data(), static_cast<std::streamsize>(token.size()));
  token.resize(static_cast<size_t>(file.gcount()));
  while (!token.empty() && (token.back() == '\n' || token.back() == ' ')) token.pop_back();
  if (!token.empty() && token.find_first_of("\r\n") == std::string::npos) return token;
  return FailedPrecondition(
      "{} has no token of a service account: set automountServiceAccountToken in the pod", path);
}

size_t TakeBody(char* bytes, size_t size, size_t count, void* user) {
  std::string& body = *static_cast<std::string*>(user);
  if (body.size() + size * count > KubeApi::kBodyBytesMax) return 0;  // ends the transfer
  body.append(bytes, size * count);
  return size * count;
}

int OnProgress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<std::atomic<bool>*>(user)->load() ? 1 : 0;
}

// The message of the API's Status object, else the start of the body.
std::string MessageOf(const std::string& body) {
  const nlohmann::json json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  const bool status = json.is_object() && json.contains("message") && json["message"].is_string();
  return (status ? json["message"].get<std::string>() : body).substr(0, kMessageBytesMax);
}

}  // namespace

struct KubeApi::Handle {
  CURL* const easy = curl_easy_init();
  ~Handle() { curl_easy_cleanup(easy); }
};

absl::StatusOr<std::unique_ptr<KubeApi>> KubeApi::Create(std::string url, std::string account) {
  while (url.ends_with("/")) url.pop_back();
  url = WithoutNeedlessBrackets(std::move(url));
  if (!IsPermitted(url)) {
    return InvalidArgument(
        "kubernetes_api={} would send the service account's token in plain: use https://", url);
  }
  PENSTOCK_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK);
  return std::unique_ptr<KubeApi>(new KubeApi(std::move(url), std::move(account)));
}

KubeApi::KubeApi(std::string url, std::string account)
    : url_(std::move(url)), account_(std::move(account)), handle_(std::make_unique<Handle>()) {
  PENSTOCK_CHECK(handle_->easy != nullptr);
}

KubeApi::~KubeApi() = default;

absl::StatusOr<KubeReply> KubeApi::Call(const KubeCall& call) {
  ASSIGN_OR_RETURN(const std::string token, ReadToken(account_ + "/token"));
  const std::string ca = account_ + "/ca.crt", url = url_ + call.path;
  CURL* const easy = handle_->easy;
  curl_easy_reset(easy);  // keeps the connection
  KubeReply reply;
  const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(
      curl_slist_append(
          curl_slist_append(curl_slist_append(nullptr, ("Authorization: Bearer " + token).c_str()),
                            fmt::format("Content-Type: {}", call.content_type).c_str()),
          "Accept: application/json"),
      curl_slist_free_all);
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_PROXY, "");
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, call.method);
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(easy, CURLOPT_CAINFO, ca.c_str());
  curl_easy_setopt(easy, CURLOPT_CAPATH, nullptr);  // no CA but the cluster's
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(Milliseconds(call.timeout)));
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, TakeBody);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &reply.body);
  curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, OnProgress);
  curl_easy_setopt(easy, CURLOPT_XFERINFODATA, &cancelled_);
  if (!call.body.empty()) {
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, call.body.data());
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, static_cast<long>(call.body.size()));
  }
  const CURLcode code = curl_easy_perform(easy);
  if (code == CURLE_WRITE_ERROR) {
    return ResourceExhausted("{} {}: the answer is longer than {} bytes", call.method, call.path,
                             kBodyBytesMax);
  }
  if (code == CURLE_SSL_CACERT_BADFILE) {
    return FailedPrecondition("{} is not a CA's certificate", ca);
  }
  if (code != CURLE_OK) {
    return Unavailable("{} {}{}: {}", call.method, url_, call.path, curl_easy_strerror(code));
  }
  long status = 0;
  curl_off_t retry_after_s = 0;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &retry_after_s);
  reply.status = static_cast<int>(status);
  reply.retry_after = std::chrono::seconds(std::clamp<long>(retry_after_s, 0, kRetryAfterMax_s));
  return reply;
}

absl::Status StatusOf(const KubeCall& call, const KubeReply& reply) {
  if (reply.status >= 200 && reply.status < 300) return absl::OkStatus();
  const std::string text = fmt::format("{} {}: status {}: {}", call.method, call.path, reply.status,
                                       MessageOf(reply.body));
  switch (reply.status) {
    case 401:
      return absl::UnauthenticatedError(text);
    case 403:
      return absl::PermissionDeniedError(text);
    case 404:
      return absl::NotFoundError(text);
    case 409:
      return absl::AbortedError(text);
    case 429:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::UnavailableError(text);
  }
}

}  // namespace penstock
