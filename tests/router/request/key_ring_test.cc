#include "router/request/key_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "lab/fake/temp_folder.h"
#include "router/request/error_detail.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

std::string Hex(const std::string& bytes) {
  std::string hex;
  for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

std::string FileWith(const std::string& tenants, const std::string& keys) {
  return fmt::format(R"({{"tenants": [{}], "keys": [{}]}})", tenants, keys);
}

std::string KeyEntry(const std::string& key, const std::string& more = "") {
  return fmt::format(R"({{"id": "k", "tenant": "acme", "sha256": "{}"{}}})", Hex(KeyDigest(key)),
                     more);
}

constexpr char kAcme[] = R"({"name": "acme"})";

TEST(KeyFileTest, NamesWhatIsWrong) {
  const std::pair<std::string, std::string> cases[] = {
      {"nonsense", "invalid JSON at byte 2: unexpected end or character"},
      {"[]", "the file must be a JSON object, not a list"},
      {R"({"tenants": []})", "must have the lists"},
      {R"({"tenants": [], "keys": [], "extra": 1})",
       "extra is unknown; the fields are tenants, keys"},
      {FileWith(R"({"name": ""})", ""), "tenants[0].name is needed"},
      {FileWith(R"({"name": "a", "quota": 1})", ""), "tenants[0].quota is unknown"},
      {FileWith(R"({"name": "a", "requests": 0})", ""), "tenants[0].requests is 0"},
      {FileWith(R"({"name": "a"}, {"name": "a"})", ""), "there are two tenants `a`"},
      {FileWith(R"({"name": "a", "priority_max": 1, "priority_most": 1})", ""),
       "tenants[0].priority_most is the old name of priority_max, and both are set"},
      {FileWith(R"({"name": "a", "priority_most": 101})", ""), "tenants[0].priority_most"},
      {FileWith(R"({"name": "a", "kv_policy": "lx16"})", ""),
       "tenants[0].kv_policy: KV policy \"lx16\" is unknown; allowed are exact"},
      {FileWith(R"({"name": "a", "kv_policies": "i8"})", ""), "tenants[0].kv_policies must be"},
      {FileWith(R"({"name": "a", "kv_policies": ["i8", 8]})", ""),
       "tenants[0].kv_policies[1] must be a string"},
      {FileWith(R"({"name": "a", "kv_policies": ["i9"]})", ""),
       "tenants[0].kv_policies[0]: KV policy \"i9\" is unknown"},
      {FileWith(R"({"name": "a", "priority_max": 101})", ""), "tenants[0].priority_max"},
      {FileWith("", KeyEntry("x")), "there is no tenant `acme`"},
      {FileWith(kAcme, R"({"id": "k", "tenant": "acme", "sha256": "abc"})"), "64 hexadecimal"},
      {FileWith(kAcme, KeyEntry("x", R"(, "expires": "soon")")), "must be a day, as 2027-12-31"},
      {FileWith(kAcme, KeyEntry("x") + "," + KeyEntry("x")), "the same key is there twice"},
  };
  for (const auto& [text, message] : cases) {
    const auto file = ParseKeyFile(text);
    EXPECT_EQ(file.status().code(), absl::StatusCode::kFailedPrecondition) << text;
    EXPECT_THAT(Message(file.status()), HasSubstr(message));
  }
}

TEST(KeyFileTest, TheOldNameOfPriorityMaxIsAcceptedWithAWarning) {
  const auto file = ParseKeyFile(FileWith(R"({"name": "a", "priority_most": 10})", ""));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tenants.at("a").priority_max, 10);
  ASSERT_EQ(file->warnings.size(), 1u);
  EXPECT_EQ(file->warnings[0],
            "tenants[0].priority_most was renamed to priority_max; the next release removes the "
            "old name");
}

class KeyRingTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) const { folder_.Write("keys", text); }
  std::unique_ptr<KeyRing> Open() {
    auto ring = KeyRing::Open(path_, metrics_, clock_);
    EXPECT_TRUE(ring.ok()) << ring.status();
    return ring.ok() ? *std::move(ring) : nullptr;
  }
  static absl::StatusOr<Caller> Ask(KeyRing& ring, const std::string& key) {
    const std::string header = "Bearer " + key;
    return ring.Authenticate(&header);
  }

  const TempFolder folder_;
  const std::string path_ = folder_.path() + "/keys";
  SteadyClock clock_;
  MetricsRegistry registry_;
  AuthMetrics metrics_{registry_};
};

TEST_F(KeyRingTest, KnowsItsKeysAndSaysNothingOfThem) {
  Write(FileWith(kAcme, KeyEntry("good") + "," + KeyEntry("old", R"(, "expires": "2020-01-01")")));
  const auto ring = Open();
  EXPECT_EQ(Ask(*ring, "good")->tenant->name(), "acme");
  for (const std::string key : {"wrong", "", "old", "good ", "Bearer good"}) {
    const auto refused = Ask(*ring, key);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnauthenticated) << key;
    EXPECT_THAT(Message(refused.status()), ::testing::Not(HasSubstr("acme")));
  }
  EXPECT_FALSE(ring->Authenticate(nullptr).ok());
  const std::string other = "Basic Z29vZA==";
  EXPECT_FALSE(ring->Authenticate(&other).ok());
  EXPECT_EQ(metrics_.missing.Value(), 1);
  EXPECT_EQ(metrics_.malformed.Value(), 1);
  EXPECT_EQ(metrics_.unknown.Value(), 4);
  EXPECT_EQ(metrics_.expired.Value(), 1);
  EXPECT_EQ(KeyRing::Open(path_ + ".none", metrics_, clock_).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(KeyRingTest, ReadsAChangedFileAgainAndKeepsTheOldForABrokenOne) {
  Write(FileWith(kAcme, KeyEntry("one")));
  const auto ring = Open();
  const auto tenant = Ask(*ring, "one")->tenant;
  Write(FileWith(kAcme, KeyEntry("two")));
  ASSERT_TRUE(WaitUntil([&] { return Ask(*ring, "two").ok(); })) << "by itself";
  EXPECT_FALSE(Ask(*ring, "one").ok());
  EXPECT_EQ(Ask(*ring, "two")->tenant, tenant) << "limits count across reloads";
  EXPECT_EQ(metrics_.last_reload_successful.Value(), 1);
  Write("broken");
  ASSERT_TRUE(WaitUntil([&] { return metrics_.last_reload_successful.Value() == 0; }));
  EXPECT_FALSE(ring->Reload().ok());
  EXPECT_TRUE(Ask(*ring, "two").ok());
  Write(FileWith(kAcme, KeyEntry("two")));
  EXPECT_TRUE(WaitUntil([&] { return metrics_.last_reload_successful.Value() == 1; }));
}

TEST(TenantTest, BoundsOpenRequests) {
  Tenant tenant("a", TimePoint());
  tenant.SetLimits({.requests = 2});
  EXPECT_TRUE(tenant.Enter(TimePoint()).ok());
  EXPECT_TRUE(tenant.Enter(TimePoint()).ok());
  const absl::Status full = tenant.Enter(TimePoint());
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DetailOf(full).reason, kReasonQuota);
  EXPECT_EQ(DetailOf(full).retry_after, 1s);
  tenant.Leave();
  EXPECT_TRUE(tenant.Enter(TimePoint()).ok());
}

TEST(TenantTest, BoundsTokensAMinute) {
  TimePoint now;
  Tenant tenant("a", now);
  tenant.SetLimits({.tokens_per_minute = 600});
  EXPECT_TRUE(tenant.Enter(now).ok());
  tenant.Charge(900, now);
  const absl::Status empty = tenant.Enter(now);
  ASSERT_FALSE(empty.ok());
  const Duration wait = *DetailOf(empty).retry_after;
  EXPECT_NEAR(Milliseconds(wait), 30'100, 1) << "300 below zero at 10 a second, and one to go";
  EXPECT_FALSE(tenant.Enter(now + wait - 200ms).ok());
  EXPECT_TRUE(tenant.Enter(now + wait).ok());
}

TEST(CacheSaltTest, SetsTenantsAndTheirSaltsApart) {
  const auto caller = [](const std::string& name) {
    return Caller{.tenant = std::make_shared<Tenant>(name, TimePoint())};
  };
  EXPECT_EQ(CacheSalt({}, ""), "");
  const std::set<std::string> salts = {CacheSalt({}, "x"),          CacheSalt(caller("a"), ""),
                                       CacheSalt(caller("a"), "x"), CacheSalt(caller("b"), ""),
                                       CacheSalt(caller("ax"), ""), CacheSalt(caller("b"), "x"),
                                       CacheSalt(caller("1 a"), "")};
  EXPECT_EQ(salts.size(), 7u);
  EXPECT_EQ(CacheSalt(caller("a"), "x"), CacheSalt(caller("a"), "x")) << "on every router";
  for (const std::string& salt : salts) EXPECT_EQ(salt.size(), 32u);
}

TEST(TenantIdTest, IsTheTenantsAlone) {
  const auto caller = [](const std::string& name) {
    return Caller{.tenant = std::make_shared<Tenant>(name, TimePoint())};
  };
  EXPECT_EQ(TenantId({}), "");
  EXPECT_EQ(TenantId(caller("a")), TenantId(caller("a")));
  EXPECT_NE(TenantId(caller("a")), TenantId(caller("b")));
}

TEST(TenantTest, KvPolicies) {
  ManualClock clock;
  Tenant tenant("t", clock.Now());
  EXPECT_EQ(*tenant.KvPolicyFor(std::nullopt), "") << "exact is the default";
  EXPECT_EQ(*tenant.KvPolicyFor("cgx2"), "cgx2") << "nothing is forbidden";
  tenant.SetLimits({.kv_policy = "i8", .kv_policies = std::vector<std::string>{"near-lossless"}});
  EXPECT_EQ(*tenant.KvPolicyFor(std::nullopt), "i8");
  EXPECT_EQ(*tenant.KvPolicyFor(""), "") << "exact may always be asked for";
  EXPECT_EQ(*tenant.KvPolicyFor("i8"), "i8") << "what it gets unasked, too";
  EXPECT_EQ(*tenant.KvPolicyFor("near-lossless"), "near-lossless");
  const auto refused = tenant.KvPolicyFor("cgx2");
  EXPECT_TRUE(absl::IsPermissionDenied(refused.status()));
  EXPECT_EQ(DetailOf(refused.status()).field, "kv_policy");
  tenant.SetLimits({.kv_policies = std::vector<std::string>{}});
  EXPECT_FALSE(tenant.KvPolicyFor("i8").ok());
  tenant.SetLimits({.kv_policies = std::vector<std::string>{"snapkv:256"}});
  EXPECT_EQ(*tenant.KvPolicyFor("snapkv:1000"), "snapkv:1000") << "it keeps more than it must";
  EXPECT_FALSE(tenant.KvPolicyFor("snapkv:255").ok());
}

TEST(TenantTest, PriorityUpToItsOwn) {
  ManualClock clock;
  Tenant tenant("t", clock.Now());
  EXPECT_TRUE(tenant.CheckPriority(-100).ok());
  EXPECT_TRUE(tenant.CheckPriority(0).ok());
  const absl::Status refused = tenant.CheckPriority(1);
  EXPECT_TRUE(absl::IsPermissionDenied(refused));
  EXPECT_EQ(DetailOf(refused).field, "priority");
  auto file = ParseKeyFile(FileWith(R"({"name": "a", "priority_max": 10})", ""));
  ASSERT_TRUE(file.ok()) << file.status();
  tenant.SetLimits(file->tenants["a"]);
  EXPECT_TRUE(tenant.CheckPriority(10).ok());
  EXPECT_FALSE(tenant.CheckPriority(11).ok());
}

}  // namespace
}  // namespace penstock
