#include "router/kubernetes/kube_scaler.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "lab/fake/certificates.h"
#include "lab/fake/temp_folder.h"
#include "router/kubernetes/kube_objects.h"
#include "tests/router/kubernetes/fake_api_server.h"
#include "tests/support/captured_output.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using namespace std::chrono_literals;

// ---------------------------------------------------------------- the election

constexpr TimePoint kStart{1h};
constexpr LeaseTimes kTimes{};

// The API server's copy of the Lease, and the clocks of two routers that have nothing in common.
class Election : public testing::Test {
 protected:
  // One turn of a router: it reads, and writes where it may. Returns false on a conflict.
  bool Turn(LeaseElector& router, TimePoint now) {
    const auto read = lease_;
    const auto next = router.OnRead(read, now, "wall");
    if (!next) return true;
    return Write(router, *next, now);
  }
  bool Write(LeaseElector& router, LeaseRecord next, TimePoint sent) {
    if (next.version != (lease_ ? lease_->version : "")) return false;
    next.version = std::to_string(++version_);
    next.renewed = std::to_string(version_);
    lease_ = next;
    router.OnWritten(next, sent);
    return true;
  }

  std::optional<LeaseRecord> lease_;
  int version_ = 0;
  LeaseElector a_{"a", kTimes};
  LeaseElector b_{"b", kTimes};
};

TEST_F(Election, TheFirstHoldsItAndTheSecondWaits) {
  EXPECT_FALSE(a_.leads(kStart));
  ASSERT_TRUE(Turn(a_, kStart));
  EXPECT_TRUE(a_.leads(kStart + 9s));
  EXPECT_FALSE(a_.leads(kStart + 10s));  // before another may take it
  for (Duration at = 0s; at < 60s; at += 2s) {
    ASSERT_TRUE(Turn(a_, kStart + at));
    ASSERT_TRUE(Turn(b_, kStart + at));
    EXPECT_FALSE(b_.leads(kStart + at));
  }
}

TEST_F(Election, ASilentHolderIsReplacedAfterTheDurationOfItsLease) {
  ASSERT_TRUE(Turn(a_, kStart));
  ASSERT_TRUE(Turn(b_, kStart + 1s));
  ASSERT_TRUE(Turn(b_, kStart + 15s));
  EXPECT_FALSE(b_.leads(kStart + 15s));  // seen at 1 s
  ASSERT_TRUE(Turn(b_, kStart + 16s));
  EXPECT_TRUE(b_.leads(kStart + 16s));
  EXPECT_FALSE(a_.leads(kStart + 16s));
  EXPECT_EQ(lease_->transitions, 1u);
  ASSERT_TRUE(Turn(a_, kStart + 17s));
  EXPECT_EQ(lease_->holder, "b");
}

// A router whose clock is days ahead, and renewTime that says anything, change nothing: only the
// time since a renewal was seen counts.
TEST_F(Election, ClocksNeedNotAgree) {
  ASSERT_TRUE(Turn(a_, kStart));
  lease_->renewed = "1970-01-01T00:00:00.000000Z";
  const TimePoint ahead = kStart + 1000h;
  ASSERT_TRUE(Turn(b_, ahead));
  EXPECT_FALSE(b_.leads(ahead));
  for (Duration at = 2s; at < 40s; at += 2s) {
    ASSERT_TRUE(Turn(a_, kStart + at));
    ASSERT_TRUE(Turn(b_, ahead + at));
    EXPECT_FALSE(b_.leads(ahead + at));
  }
}

TEST_F(Election, OfTwoThatWriteAtOnceOneGetsAConflict) {
  const auto by_a = a_.OnRead(std::nullopt, kStart, "wall");
  const auto by_b = b_.OnRead(std::nullopt, kStart, "wall");
  ASSERT_TRUE(by_a && by_b);
  EXPECT_TRUE(Write(b_, *by_b, kStart));
  EXPECT_FALSE(Write(a_, *by_a, kStart));
  EXPECT_TRUE(b_.leads(kStart));
  EXPECT_FALSE(a_.leads(kStart));
}

TEST_F(Election, AReleasedLeaseIsTakenAtOnce) {
  ASSERT_TRUE(Turn(a_, kStart));
  ASSERT_TRUE(Turn(a_, kStart + 1s));
  ASSERT_TRUE(Turn(b_, kStart + 1s));
  const auto released = a_.Release("wall");
  ASSERT_TRUE(released);
  EXPECT_EQ(released->version, lease_->version);
  lease_ = released;
  lease_->version = std::to_string(++version_);
  ASSERT_TRUE(Turn(b_, kStart + 3s));
  EXPECT_TRUE(b_.leads(kStart + 3s));
  EXPECT_FALSE(b_.leads(kStart + 3s, 10s));
}

// Every interleaving of delays: at no moment do both believe that they lead.
TEST_F(Election, NeverTwoAtOnce) {
  std::mt19937 random(7);
  TimePoint now = kStart;
  for (int i = 0; i < 20'000; ++i) {
    now += std::chrono::milliseconds(random() % 4000);
    LeaseElector& router = random() % 2 == 0 ? a_ : b_;
    const TimePoint sent = now;
    const auto read = lease_;
    const auto next = router.OnRead(read, sent, "wall");
    if (random() % 4 == 0) now += std::chrono::milliseconds(random() % 20'000);  // a slow answer
    if (next && random() % 8 != 0) Write(router, *next, sent);
    EXPECT_FALSE(a_.leads(now) && b_.leads(now)) << i;
  }
}

// ---------------------------------------------------------------- objects

TEST(KubeObjects, ALeaseComesBackAsItWent) {
  const LeaseRecord lease{
      "router-1", 15, 3, "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:02.000000Z", "42"};
  const auto parsed = ParseLease(LeaseJson("autoscale", lease));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, lease);
}

TEST(KubeObjects, RefusesWhatIsNone) {
  for (const char* text :
       {"", "[]", "{}", "null", R"({"metadata":{"resourceVersion":3},"spec":{}})",
        R"({"metadata":{"resourceVersion":"3"},"spec":{"leaseTransitions":-1}})",
        R"({"metadata":{"resourceVersion":"3"},"spec":{"leaseDurationSeconds":1e9}})"}) {
    EXPECT_EQ(ParseLease(text).status().code(), absl::StatusCode::kDataLoss) << text;
  }
  for (const char* text : {"", "{}", R"({"spec":{"replicas":"3"}})", R"({"spec":{"replicas":-1}})",
                           R"({"spec":{"replicas":99999999}})"}) {
    EXPECT_EQ(ParseReplicas(text).status().code(), absl::StatusCode::kDataLoss) << text;
  }
  EXPECT_EQ(*ParseReplicas(R"({"spec":{}})"), 0u);  // the API leaves out a zero
  EXPECT_EQ(*ParseReplicas(R"({"spec":{"replicas":7}})"), 7u);
}

// With the longest names, the verb and the resource come behind 500 characters.
TEST(KubeApi, AnErrorHasTheWholeRefusal) {
  const std::string name(253, 'n'), account(253, 'a'), space(63, 's');
  const std::string message = "leases.coordination.k8s.io \"" + name +
                              "\" is forbidden: User \"system:serviceaccount:" + space + ":" +
                              account + "\" cannot get resource \"leases\" in API group " +
                              "\"coordination.k8s.io\" in the namespace \"" + space + "\"";
  const nlohmann::json body = {{"kind", "Status"}, {"message", message}};
  const absl::Status status = StatusOf({.path = "/leases"}, {.status = 403, .body = body.dump()});
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(status.message(), "GET /leases: status 403: " + message);
}

TEST(KubeObjects, TimesAreRfc3339) {
  const std::chrono::system_clock::time_point time(1'700'000'000s + 42us);
  EXPECT_EQ(MicroTime(time), "2023-11-14T22:13:20.000042Z");
}

// ---------------------------------------------------------------- against a server

class KubeScalerTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_.path() + "/server");
    WriteIdentity(folder_.path() + "/server", ca_, ca_.Issue("kubernetes"));
    ReplaceFile(account() + "/ca.crt", ca_.pem());
    ReplaceFile(account() + "/token", "token-1\n");
    ReplaceFile(account() + "/namespace", "serving");
    TlsFiles files = FilesIn(folder_.path() + "/server");
    files.ca.path.clear();  // it asks callers for tokens, not for certificates
    auto tls = TlsIdentity::Open(files, TlsUse::kServer);
    ASSERT_TRUE(tls.ok()) << tls.status();
    server_ = std::make_unique<FakeApiServer>(*tls);
    server_->SetReplicas("p", 2);
    server_->SetReplicas("d", 3);
  }

  std::string account() const { return folder_.path(); }
  std::unique_ptr<KubeScaler> Start(const std::string& id) {
    auto scaler = KubeScaler::Start({.api = server_->url(),
                                     .account = account(),
                                     .lease = "l",
                                     .prefill_deployment = "p",
                                     .decode_deployment = "d",
                                     .id = id,
                                     .times = times_},
                                    clock_, metrics_);
    EXPECT_TRUE(scaler.ok()) << scaler.status();
    return *std::move(scaler);
  }
  bool Leads(KubeScaler& scaler) {
    return WaitUntil([&] { return scaler.leads() && scaler.Wanted().has_value(); });
  }
  bool Has(const std::string& deployment, uint32_t replicas) {
    return WaitUntil([&] { return server_->replicas(deployment) == replicas; });
  }
  double Errors(prometheus::Counter& counter) { return counter.Value(); }

  // Fast, so that a test waits for little.
  LeaseTimes times_{.duration = 5s, .renew_deadline = 4s, .retry = 50ms, .call = 1s};
  TempFolder folder_;
  TestCa ca_{"cluster"};
  SteadyClock clock_;
  MetricsRegistry registry_;
  KubeMetrics metrics_{registry_};
  std::unique_ptr<FakeApiServer> server_;
};

TEST_F(KubeScalerTest, TakesAnAddressInBrackets) {
  const std::string port = server_->url().substr(server_->url().rfind(':'));
  const auto api = KubeApi::Create("https://[127.0.0.1]" + port + "/", account());
  ASSERT_TRUE(api.ok()) << api.status();
  const auto reply = (*api)->Call({.path = "/nothing"});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->status, 404);
}

TEST_F(KubeScalerTest, ReadsAndChangesTheDeployments) {
  const auto scaler = Start("a");
  ASSERT_TRUE(Leads(*scaler));
  EXPECT_EQ(server_->holder(), "a");
  EXPECT_EQ(scaler->Wanted(), (ReplicaCounts{2, 3}));
  scaler->Want({4, 3});
  EXPECT_TRUE(Has("p", 4));
  ASSERT_EQ(server_->changes().size(), 1u);  // the other one needs no change
  EXPECT_EQ(scaler->Wanted(), (ReplicaCounts{4, 3}));
}

TEST_F(KubeScalerTest, OneOfTwoActsAndTheOtherTakesOver) {
  auto a = Start("a");
  ASSERT_TRUE(Leads(*a));
  const auto b = Start("b");
  // Two controllers that want different numbers all the time.
  for (uint32_t i = 1; i <= 20; ++i) {
    a->Want({10 + i, 3});
    b->Want({50 + i, 3});
    ASSERT_TRUE(Has("p", 10 + i));
    EXPECT_FALSE(b->leads());
    EXPECT_EQ(b->Wanted(), std::nullopt);
  }
  a.reset();  // releases the Lease
  ASSERT_TRUE(Leads(*b));
  EXPECT_EQ(b->Wanted(), (ReplicaCounts{30, 3}));
  b->Want({31, 3});
  EXPECT_TRUE(Has("p", 31));
  for (const FakeApiServer::Change& change : server_->changes()) {
    EXPECT_EQ(change.holder, change.replicas == 31 ? "b" : "a");
  }
}

TEST_F(KubeScalerTest, ASilentLeaderStopsBeforeAnotherBegins) {
  const auto a = Start("a");
  ASSERT_TRUE(Leads(*a));
  server_->hold = true;  // no call gets an answer
  EXPECT_TRUE(WaitUntil([&] { return !a->leads(); }));
  a->Want({9, 9});  // it may not any more
  server_->hold = false;
  ASSERT_TRUE(Leads(*a));
  EXPECT_EQ(server_->replicas("p"), 2u);
}

TEST_F(KubeScalerTest, AConflictIsNoErrorAndNoLease) {
  server_->conflict = true;
  const auto scaler = Start("a");
  const int before = server_->calls();
  ASSERT_TRUE(WaitUntil([&] { return server_->calls() > before + 6; }));
  EXPECT_FALSE(scaler->leads());
  EXPECT_EQ(Errors(metrics_.lease_errors), 0);
  server_->conflict = false;
  EXPECT_TRUE(Leads(*scaler));
}

TEST_F(KubeScalerTest, AFailedWriteIsTriedAgainAndLoggedOnce) {
  const auto scaler = Start("a");
  ASSERT_TRUE(Leads(*scaler));
  const CapturedOutput output(STDOUT_FILENO);
  server_->refuse_writes_with = 500;
  scaler->Want({6, 3});
  ASSERT_TRUE(WaitUntil([&] { return Errors(metrics_.write_errors) >= 3; }));
  server_->refuse_writes_with = 0;
  EXPECT_TRUE(Has("p", 6));
  ASSERT_TRUE(output.WaitFor("scale_api_recovered step=write"));
  EXPECT_EQ(output.Count("scale_api_failed step=write error=\"PATCH "), 1);
}

TEST_F(KubeScalerTest, ADeploymentThatIsRefusedDoesNotKeepTheOtherFromItsChange) {
  const auto scaler = Start("a");
  ASSERT_TRUE(Leads(*scaler));
  server_->lock_p = true;
  scaler->Want({6, 5});
  EXPECT_TRUE(Has("d", 5));
  ASSERT_TRUE(WaitUntil([&] { return Errors(metrics_.write_errors) >= 3; }));
  EXPECT_EQ(server_->changes().size(), 1u);  // it is not written again beside each attempt
  EXPECT_EQ(server_->replicas("p"), 2u);
  server_->lock_p = false;
  EXPECT_TRUE(Has("p", 6));
}

TEST_F(KubeScalerTest, AThrottledClientWaitsAsLongAsItIsAskedTo) {
  const auto scaler = Start("a");
  ASSERT_TRUE(Leads(*scaler));
  const TimePoint start = clock_.Now();
  server_->retry_after_s = 1;
  server_->refuse_with = 429;
  ASSERT_TRUE(WaitUntil([&] { return Errors(metrics_.lease_errors) >= 1; }));
  const int before = server_->calls();
  ASSERT_TRUE(WaitUntil([&] { return Errors(metrics_.lease_errors) >= 2; }));
  EXPECT_GE(clock_.Now() - start, 500ms);  // not after 50 ms, as otherwise
  EXPECT_LE(server_->calls() - before, 8);
  server_->refuse_with = 0;
  ASSERT_TRUE(Leads(*scaler));
  scaler->Want({5, 3});
  EXPECT_TRUE(Has("p", 5));
}

TEST_F(KubeScalerTest, ARenewedTokenIsReadAgain) {
  const auto scaler = Start("a");
  ASSERT_TRUE(Leads(*scaler));
  server_->SetToken("token-2");
  ASSERT_TRUE(WaitUntil([&] { return Errors(metrics_.lease_errors) >= 1; }));
  ReplaceFile(account() + "/token", "token-2\n");
  ASSERT_TRUE(Leads(*scaler));
  scaler->Want({2, 5});
  EXPECT_TRUE(Has("d", 5));
}

TEST_F(KubeScalerTest, AServerOfAnotherCaGetsNoToken) {
  const TestCa other("other");
  ReplaceFile(account() + "/ca.crt", other.pem());
  const auto scaler = Start("a");
  ASSERT_TRUE(WaitUntil([&] { return Errors(metrics_.lease_errors) >= 2; }));
  EXPECT_FALSE(scaler->leads());
  EXPECT_EQ(server_->calls(), 0);
}

TEST_F(KubeScalerTest, WithoutATokenNothingIsSent) {
  std::filesystem::remove(account() + "/token");
  const auto scaler = Start("a");
  ASSERT_TRUE(WaitUntil([&] { return Errors(metrics_.lease_errors) >= 2; }));
  EXPECT_EQ(server_->calls(), 0);
}

TEST_F(KubeScalerTest, ANumberThatAnOperatorSetsIsTheNewStart) {
  times_.retry = 20ms;
  const auto scaler = Start("a");
  ASSERT_TRUE(Leads(*scaler));
  server_->SetReplicas("p", 7);
  EXPECT_TRUE(WaitUntil([&] { return scaler->Wanted() == ReplicaCounts{7, 3}; }));
}

TEST_F(KubeScalerTest, EndsAtOnceWhileTheServerIsSilent) {
  auto scaler = Start("a");
  server_->hold = true;
  const int before = server_->calls();
  ASSERT_TRUE(WaitUntil([&] { return server_->calls() > before; }));
  const TimePoint start = clock_.Now();
  scaler.reset();
  EXPECT_LT(clock_.Now() - start, 10s);
}

TEST_F(KubeScalerTest, ErrorsNameWhatIsMissing) {
  const auto started = [&](KubeScalerOptions options) {
    return KubeScaler::Start(std::move(options), clock_, metrics_).status();
  };
  KubeScalerOptions options{.api = "http://example.com",
                            .account = account(),
                            .lease = "l",
                            .prefill_deployment = "p",
                            .decode_deployment = "d",
                            .id = "a"};
  EXPECT_NE(started(options).message().find("in plain"), std::string::npos);
  options.decode_deployment = "";
  EXPECT_NE(started(options).message().find("decode_deployment"), std::string::npos);
  options.decode_deployment = "d";
  options.account = folder_.path() + "/nothing";
  EXPECT_NE(started(options).message().find("namespace"), std::string::npos);
}

}  // namespace
}  // namespace penstock
