#include "router/request/key_ring.h"

#include <openssl/sha.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <fstream>
#include <sstream>

#include "base/log/log.h"
#include "kvstore/names/kv_policy.h"
#include "router/request/error_detail.h"
#include "router/request/json.h"

namespace penstock {
namespace {

constexpr Duration kLookEvery = std::chrono::seconds(1);
constexpr size_t kMaxFileBytes = 16 << 20;
constexpr size_t kMaxNameBytes = 128;
constexpr size_t kMaxKeyBytes = 512;

std::optional<std::string> FromHex(std::string_view hex) {
  if (hex.size() != 2 * SHA256_DIGEST_LENGTH) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(hex.data() + i, hex.data() + i + 2, value, 16);
    if (error != std::errc() || end != hex.data() + i + 2) return std::nullopt;
    bytes.push_back(static_cast<char>(value));
  }
  return bytes;
}

// The end of the day `date`, as 2027-12-31, in UTC; nullopt when it is no day.
std::optional<int64_t> DayEnd(const std::string& date) {
  std::tm day{};
  const char* end = strptime(date.c_str(), "%Y-%m-%d", &day);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return static_cast<int64_t>(timegm(&day)) + 24 * 60 * 60;
}

// `path` ends with "." unless it is empty: the file itself.
absl::Status CheckNames(const Json& object, const std::string& path,
                        std::initializer_list<std::string_view> known) {
  for (const auto& [name, unused] : object.items()) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return InvalidArgument("{}{} is unknown; the fields are {}", path, name,
                             fmt::join(known, ", "));
    }
  }
  return absl::OkStatus();
}

// priority_max, or for one more release its old name priority_most.
int32_t ReadPriorityMax(FieldReader& reader, KeyFile& file) {
  constexpr char kName[] = "priority_max";
  constexpr char kOldName[] = "priority_most";
  const bool is_old = reader.Any(kOldName) != nullptr;
  if (is_old && reader.Any(kName) != nullptr) {
    reader.Note(BadField(reader.PathOf(kOldName),
                         "is the old name of {}, and both are set: remove {}", kName, kOldName));
    return 0;
  }
  if (is_old) {
    file.warnings.push_back(
        fmt::format("{} was renamed to {}; the next release removes the old "
                    "name",
                    reader.PathOf(kOldName), kName));
  }
  return static_cast<int32_t>(
      reader.Integer(is_old ? kOldName : kName, -kMaxPriority, kMaxPriority).value_or(0));
}

absl::StatusOr<std::string> NeededString(FieldReader& reader, const char* name) {
  const std::string* text = reader.String(name);
  RETURN_IF_ERROR(reader.status());
  if (text == nullptr || text->empty() || text->size() > kMaxNameBytes) {
    return InvalidArgument("{} is needed: 1 to {} bytes", reader.PathOf(name), kMaxNameBytes);
  }
  return *text;
}

absl::StatusOr<std::vector<std::string>> ReadPolicies(const Json& json, const std::string& path) {
  std::vector<std::string> policies;
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", path, i);
    if (!json[i].is_string()) return InvalidArgument("{} must be a string", place);
    auto policy = ParseAskedKvPolicy(json[i].get_ref<const std::string&>());
    if (!policy.ok()) return Annotate(policy.status(), place);
    policies.push_back(*std::move(policy));
  }
  return policies;
}

absl::Status ReadTenant(const Json& json, const std::string& path, KeyFile& file) {
  if (!json.is_object()) return InvalidArgument("{} must be an object", path);
  RETURN_IF_ERROR(CheckNames(json, path + ".",
                             {"name", "requests", "tokens_per_minute", "kv_policy", "kv_policies",
                              "priority_max", "priority_most"}));
  FieldReader reader(json, path + ".");
  ASSIGN_OR_RETURN(const std::string name, NeededString(reader, "name"));
  TenantLimits limits;
  limits.requests = static_cast<uint32_t>(reader.Integer("requests", 1, 1'000'000).value_or(0));
  limits.tokens_per_minute =
      static_cast<uint64_t>(reader.Integer("tokens_per_minute", 1, int64_t{1} << 50).value_or(0));
  limits.priority_max = ReadPriorityMax(reader, file);
  const std::string* policy = reader.String("kv_policy");
  const Json* policies = reader.Array("kv_policies");
  RETURN_IF_ERROR(reader.status());
  if (policy != nullptr) {
    auto parsed = ParseAskedKvPolicy(*policy);
    if (!parsed.ok()) return Annotate(parsed.status(), path + ".kv_policy");
    limits.kv_policy = *std::move(parsed);
  }
  if (policies != nullptr) {
    ASSIGN_OR_RETURN(limits.kv_policies, ReadPolicies(*policies, path + ".kv_policies"));
  }
  if (!file.tenants.emplace(name, limits).second) {
    return InvalidArgument("{}.name: there are two tenants `{}`; names are unique", path, name);
  }
  return absl::OkStatus();
}

absl::Status ReadKey(const Json& json, const std::string& path, KeyFile& file) {
  if (!json.is_object()) return InvalidArgument("{} must be an object", path);
  RETURN_IF_ERROR(CheckNames(json, path + ".", {"id", "tenant", "sha256", "expires"}));
  FieldReader reader(json, path + ".");
  KeyFile::Key key;
  ASSIGN_OR_RETURN(key.id, NeededString(reader, "id"));
  ASSIGN_OR_RETURN(key.tenant, NeededString(reader, "tenant"));
  ASSIGN_OR_RETURN(const std::string hex, NeededString(reader, "sha256"));
  const std::string* expires = reader.String("expires");
  RETURN_IF_ERROR(reader.status());
  if (!file.tenants.contains(key.tenant)) {
    return InvalidArgument("{}.tenant: there is no tenant `{}`", path, key.tenant);
  }
  if (expires != nullptr) {
    key.expires = DayEnd(*expires);
    if (!key.expires) return InvalidArgument("{}.expires must be a day, as 2027-12-31", path);
  }
  const std::optional<std::string> digest = FromHex(hex);
  if (!digest) {
    return InvalidArgument("{}.sha256 must be 64 hexadecimal digits: printf %s KEY | sha256sum",
                           path);
  }
  if (!file.keys.emplace(*digest, std::move(key)).second) {
    return InvalidArgument("{}.sha256: the same key is there twice", path);
  }
  return absl::OkStatus();
}

absl::StatusOr<KeyFile> Parse(std::string_view text) {
  constexpr size_t kValuesMax = 400'000;
  ASSIGN_OR_RETURN(const Json json,
                   ParseJson(text, {.values = kValuesMax, .elements = kValuesMax}));
  if (!json.is_object()) {
    return InvalidArgument("the file must be a JSON object, not {}", KindOf(json));
  }
  RETURN_IF_ERROR(CheckNames(json, "", {"tenants", "keys"}));
  FieldReader reader(json, "");
  const Json* tenants = reader.Array("tenants");
  const Json* keys = reader.Array("keys");
  RETURN_IF_ERROR(reader.status());
  if (tenants == nullptr || keys == nullptr) {
    return InvalidArgument("the file must have the lists `tenants` and `keys`");
  }
  KeyFile file;
  for (size_t i = 0; i < tenants->size(); ++i) {
    RETURN_IF_ERROR(ReadTenant((*tenants)[i], fmt::format("tenants[{}]", i), file));
  }
  for (size_t i = 0; i < keys->size(); ++i) {
    RETURN_IF_ERROR(ReadKey((*keys)[i], fmt::format("keys[{}]", i), file));
  }
  return file;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return NotFound("keys_file={}: the file cannot be opened", path);
  std::ostringstream text;
  text << stream.rdbuf();
  if (text.str().size() > kMaxFileBytes) {
    return FailedPrecondition("keys_file={}: the file has more than {} bytes, the limit", path,
                              kMaxFileBytes);
  }
  return text.str();
}

// A text that differs for every version of the file, also where the path is a symbolic link that
// is replaced, as Kubernetes does with mounted Secrets. Empty: there is no file.
std::string VersionOf(const std::string& path) {
  struct stat file {};
  if (stat(path.c_str(), &file) != 0) return "";
  return fmt::format("{} {} {}.{}", file.st_ino, file.st_size, file.st_mtim.tv_sec,
                     file.st_mtim.tv_nsec);
}

prometheus::Counter& Failures(MetricsRegistry& registry, const std::string& reason) {
  return registry.Counter("penstock_auth_failures_total",
                          "Requests refused for their API key, by reason.", {{"reason", reason}});
}

absl::Status Refused(prometheus::Counter& counted, std::string_view why) {
  counted.Increment();
  return absl::UnauthenticatedError(
      fmt::format("{}; send `Authorization: Bearer KEY` with a key of this server", why));
}

}  // namespace

absl::StatusOr<KeyFile> ParseKeyFile(std::string_view text) {
  absl::StatusOr<KeyFile> file = Parse(text);
  if (file.ok()) return file;
  return FailedPrecondition("{}", Message(file.status()));
}

std::string KeyDigest(std::string_view key) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

AuthMetrics::AuthMetrics(MetricsRegistry& registry)
    : missing(Failures(registry, "missing")),
      malformed(Failures(registry, "malformed")),
      unknown(Failures(registry, "unknown")),
      expired(Failures(registry, "expired")),
      last_reload_successful(registry.Gauge(
          "penstock_keys_last_reload_successful",
          "0 while --keys_file cannot be used and its previous content is in force.")) {
  last_reload_successful.Set(1);
}

absl::StatusOr<std::unique_ptr<KeyRing>> KeyRing::Open(const std::string& path,
                                                       AuthMetrics& metrics, const Clock& clock) {
  std::unique_ptr<KeyRing> ring(new KeyRing(path, metrics, clock));
  // Taken before the file is read, so that the watcher sees a change in between.
  std::string version = VersionOf(path);
  RETURN_IF_ERROR(ring->Reload());
  ring->watcher_ =
      std::thread([&ring = *ring, version = std::move(version)] { ring.Watch(version); });
  return ring;
}

KeyRing::~KeyRing() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    stop_changed_.NotifyAll();
  }
  if (watcher_.joinable()) watcher_.join();
}

absl::Status KeyRing::Reload() {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path_));
  auto parsed = ParseKeyFile(text);
  if (!parsed.ok()) return Annotate(parsed.status(), "keys_file=" + path_);
  for (const std::string& warning : parsed->warnings) {
    LogWarning("deprecated_name_used", "keys_file={}: {}", path_, warning);
  }
  MutexLock lock(mutex_);
  file_ = *std::move(parsed);
  for (const auto& [name, limits] : file_.tenants) {
    std::shared_ptr<Tenant>& tenant = tenants_[name];
    if (tenant == nullptr) tenant = std::make_shared<Tenant>(name, clock_.Now());
    tenant->SetLimits(limits);
  }
  return absl::OkStatus();
}

void KeyRing::Watch(std::string seen) {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (!stop_) stop_changed_.WaitFor(mutex_, kLookEvery);
      if (stop_) return;
    }
    const std::string version = VersionOf(path_);
    if (version == seen) continue;
    seen = version;
    const absl::Status read = Reload();
    metrics_.last_reload_successful.Set(read.ok() ? 1 : 0);
    if (read.ok()) {
      LogInfo("keys_reloaded", "{}", path_);
    } else {
      LogError("keys_reload_failed", "{}; the previous keys stay in force", Message(read));
    }
  }
}

absl::StatusOr<Caller> KeyRing::Authenticate(const std::string* authorization) {
  constexpr std::string_view kScheme = "Bearer ";
  if (authorization == nullptr) {
    return Refused(metrics_.missing, "there is no API key in the request");
  }
  if (!authorization->starts_with(kScheme) || authorization->size() > kMaxKeyBytes) {
    return Refused(metrics_.malformed, "the Authorization header is not `Bearer KEY`");
  }
  const std::string digest = KeyDigest(std::string_view(*authorization).substr(kScheme.size()));
  const auto now = static_cast<int64_t>(std::time(nullptr));
  MutexLock lock(mutex_);
  const auto found = file_.keys.find(digest);
  if (found == file_.keys.end()) return Refused(metrics_.unknown, "the API key is unknown");
  if (found->second.expires && now >= *found->second.expires) {
    return Refused(metrics_.expired, "the API key has expired");
  }
  return Caller{.tenant = tenants_.at(found->second.tenant)};
}

}  // namespace penstock
