// Certificates over real sockets: who is let in, who is believed, and what a change of the files
// does.
#include "base/rpc/tls.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <future>

#include "base/check.h"
#include "base/rpc/rpc_server.h"
#include "base/tls/tls_metrics.h"
#include "lab/fake/certificates.h"
#include "lab/fake/temp_folder.h"
#include "proto/worker.grpc.pb.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using std::chrono::system_clock;
using ::testing::HasSubstr;

class Tls : public testing::Test {
 protected:
  // A folder of its own with an identity that `ca` has signed.
  std::string Identity(const std::string& name, const TestCa& ca) const {
    const std::string folder = folder_.path() + "/" + name;
    std::filesystem::create_directory(folder);
    WriteIdentity(folder, ca, ca.Issue(name));
    return folder;
  }

  static std::shared_ptr<TlsIdentity> Open(const TlsFiles& files) {
    auto identity = TlsIdentity::Open(files, TlsUse::kClient);
    PENSTOCK_CHECK(identity.ok(), "(an identity did not open)");
    return *identity;
  }

  static inline v1::WorkerStatus::Service service_;  // gRPC starts no server without one

  // Without `ask_callers`, callers show nothing.
  static std::unique_ptr<RpcServer> Serve(const std::string& folder, bool ask_callers) {
    TlsFiles files = FilesIn(folder);
    if (!ask_callers) files.ca.path.clear();
    auto server =
        RpcServer::Start({.listen = "127.0.0.1:0", .services = {&service_}, .tls = Open(files)});
    PENSTOCK_CHECK(server.ok(), "(a server did not start)");
    return *std::move(server);
  }

  // Returns the status of a health check over a new connection. Its own certificate is in `folder`.
  static grpc::Status Call(const RpcServer& server,
                           const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                           const std::string& host = "127.0.0.1", std::string* served = nullptr) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const std::string port = server.endpoint().substr(server.endpoint().rfind(':'));
    const auto channel = grpc::CreateCustomChannel(host + port, credentials, arguments);
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(system_clock::now() + seconds(20));
    const grpc::Slice empty("");
    const grpc::ByteBuffer request(&empty, 1);
    grpc::ByteBuffer response;
    std::promise<grpc::Status> ended;
    stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request,
                   &response, [&](grpc::Status status) { ended.set_value(std::move(status)); });
    grpc::Status status = ended.get_future().get();
    if (served != nullptr && context.auth_context() != nullptr) {
      const auto names = context.auth_context()->FindPropertyValues("x509_common_name");
      if (!names.empty()) *served = std::string(names[0].data(), names[0].size());
    }
    return status;
  }

  static std::shared_ptr<grpc::ChannelCredentials> Member(const std::string& folder) {
    return ChannelCredentialsOf(Open(FilesIn(folder)), TlsCheck::kMember);
  }
  // Trusts `folder`'s CA and shows nothing.
  static std::shared_ptr<grpc::ChannelCredentials> Stranger(const std::string& folder) {
    return ChannelCredentialsOf(
        Open({.cert = {"cert", ""}, .key = {"key", ""}, .ca = FilesIn(folder).ca}),
        TlsCheck::kHost);
  }

  const TempFolder folder_;
  const TestCa ca_{"test CA"};
  const TestCa other_ca_{"another CA"};
};

TEST_F(Tls, TrustsItsCaAndNoOther) {
  const std::string own = Identity("server", ca_);
  const auto server = Serve(own, /*ask_callers=*/false);
  EXPECT_TRUE(Call(*server, Stranger(own)).ok());
  const std::string other = Identity("other", other_ca_);
  EXPECT_EQ(Call(*server, Stranger(other)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(*server, grpc::InsecureChannelCredentials()).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(Tls, ChecksTheHostUnlessItIsAMember) {
  const std::string own = Identity("server", ca_);
  const auto server = Serve(own, /*ask_callers=*/false);
  // The certificate is for 127.0.0.1 and localhost.
  EXPECT_TRUE(Call(*server, Stranger(own), "127.0.0.1").ok());
  EXPECT_EQ(Call(*server, Stranger(own), "127.0.0.2").error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Call(*server, Member(own), "127.0.0.1").ok());
}

TEST_F(Tls, MembersAreFoundByAnyAddress) {
  const std::string own = Identity("server", ca_);
  TlsFiles files = FilesIn(own);
  auto server =
      RpcServer::Start({.listen = "0.0.0.0:0", .services = {&service_}, .tls = Open(files)});
  ASSERT_TRUE(server.ok());
  EXPECT_TRUE(Call(**server, Member(own), "127.0.0.2").ok());
}

TEST_F(Tls, CallersMustShowACertificateOfTheCa) {
  const std::string own = Identity("server", ca_);
  const auto server = Serve(own, /*ask_callers=*/true);
  EXPECT_TRUE(Call(*server, Member(Identity("peer", ca_))).ok());
  EXPECT_EQ(Call(*server, Stranger(own)).error_code(), grpc::StatusCode::UNAVAILABLE);
  // Its certificate is of another CA, though it trusts the right one.
  const std::string liar = Identity("liar", other_ca_);
  ReplaceFile(liar + "/ca.crt", ca_.pem());
  EXPECT_EQ(Call(*server, Member(liar)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(*server, grpc::InsecureChannelCredentials()).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(Tls, ServesWhatTheFilesSayNow) {
  const std::string own = Identity("old", ca_);
  const auto server = Serve(own, /*ask_callers=*/true);
  const std::string peer = Identity("peer", ca_);
  std::string served;
  ASSERT_TRUE(Call(*server, Member(peer), "127.0.0.1", &served).ok());
  EXPECT_EQ(served, "old");
  WritePair(own, ca_.Issue("new"));
  ASSERT_TRUE(Call(*server, Member(peer), "127.0.0.1", &served).ok());
  EXPECT_EQ(served, "new");
}

TEST_F(Tls, WhatDoesNotFitTogetherChangesNothing) {
  const std::string own = Identity("old", ca_);
  const auto server = Serve(own, /*ask_callers=*/true);
  const auto member = Member(Identity("peer", ca_));
  const TestPair pair = ca_.Issue("new");
  std::string served;
  ReplaceFile(own + "/tls.crt", pair.cert);  // whose key has yet to come
  ASSERT_TRUE(Call(*server, member, "127.0.0.1", &served).ok());
  EXPECT_EQ(served, "old");
  ReplaceFile(own + "/tls.key", pair.key);
  ASSERT_TRUE(Call(*server, member, "127.0.0.1", &served).ok());
  EXPECT_EQ(served, "new");
  ReplaceFile(own + "/tls.crt", "no certificate");
  std::filesystem::remove(own + "/tls.key");
  ASSERT_TRUE(Call(*server, member, "127.0.0.1", &served).ok());
  EXPECT_EQ(served, "new");
}

TEST_F(Tls, ACaMayBeReplacedToo) {
  const std::string own = Identity("server", ca_);
  const auto server = Serve(own, /*ask_callers=*/true);
  const std::string peer = Identity("peer", ca_);
  ASSERT_TRUE(Call(*server, Member(peer)).ok());
  ReplaceFile(own + "/ca.crt", other_ca_.pem());
  EXPECT_FALSE(Call(*server, Member(peer)).ok());
  const std::string newer = Identity("newer", other_ca_);
  ReplaceFile(newer + "/ca.crt", ca_.pem());  // of the server's certificate
  EXPECT_TRUE(Call(*server, Member(newer)).ok());
}

TEST_F(Tls, ChannelsShowWhatTheFilesSay) {
  const std::string own = Identity("server", ca_);
  const auto server = Serve(own, /*ask_callers=*/true);
  const std::string peer = Identity("peer", ca_);
  const auto credentials = Member(peer);
  ASSERT_TRUE(Call(*server, credentials).ok());
  WritePair(peer, other_ca_.Issue("stranger"));
  EXPECT_TRUE(WaitUntil([&] { return !Call(*server, credentials).ok(); }));
  WritePair(peer, ca_.Issue("peer"));
  EXPECT_TRUE(WaitUntil([&] { return Call(*server, credentials).ok(); }));
}

TEST_F(Tls, ErrorsNameFieldAndFile) {
  const std::string own = Identity("server", ca_);
  TlsFiles files = FilesIn(own);
  const auto error = [&](TlsUse use = TlsUse::kClient) {
    return Message(TlsIdentity::Open(files, use).status());
  };
  EXPECT_EQ(error(), "");
  files.key.path.clear();
  EXPECT_EQ(error(), "key is missing; set cert and key together");
  files.cert.path.clear();
  EXPECT_EQ(error(), "");
  EXPECT_EQ(error(TlsUse::kServer), "cert is missing; set cert and key together");
  files = FilesIn(own);
  files.ca.path.clear();
  EXPECT_EQ(error(TlsUse::kMember), "ca is missing; set cert, key and ca together");
  files.ca.path = own + "/nowhere";
  EXPECT_THAT(error(), HasSubstr("ca=" + own + "/nowhere: cannot read it: No such file"));
  EXPECT_EQ(TlsIdentity::Open(files, TlsUse::kClient).status().code(), absl::StatusCode::kNotFound);
  files = FilesIn(own);
  files.key.path = Identity("other", ca_) + "/tls.key";
  EXPECT_THAT(error(), HasSubstr("does not match the certificate of cert=" + own + "/tls.crt"));
  files = FilesIn(own);
  files.key.path = files.cert.path;
  EXPECT_THAT(error(), HasSubstr("contains no PEM private key without a passphrase"));
  files = FilesIn(own);
  files.ca.path = files.key.path;
  EXPECT_THAT(error(), HasSubstr("contains no PEM certificate"));
  files = FilesIn(own);
  WritePair(own, ca_.Issue("server", -hours(1)));
  EXPECT_THAT(error(), HasSubstr("cert=" + own + "/tls.crt: the certificate has expired"));
}

// By certificate: what a scrape says of its end, from now.
std::map<std::string, int64_t> HoursLeft(const MetricsRegistry& registry) {
  std::map<std::string, int64_t> left;
  for (const prometheus::MetricFamily& family : registry.Collect()) {
    if (family.name != "penstock_tls_certificate_expiry_timestamp_seconds") continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      const auto end = static_cast<int64_t>(metric.gauge.value);
      left[metric.label.at(0).value] = end == 0 ? 0 : (end - time(nullptr) + 1800) / 3600;
    }
  }
  return left;
}

TEST_F(Tls, ScrapesSayWhenCertificatesEnd) {
  const std::string own = Identity("server", ca_);
  auto identity = TlsIdentity::Open(FilesIn(own), TlsUse::kMember);
  ASSERT_TRUE(identity.ok());
  MetricsRegistry registry;
  AddCertificateMetric(registry, "cluster", *identity);
  AddCertificateMetric(registry, "public", nullptr);
  using Hours = std::map<std::string, int64_t>;
  EXPECT_EQ(HoursLeft(registry), (Hours{{"cluster", 24}, {"public", 0}}));
  // No handshake is needed for it to change; what cannot be used changes nothing.
  WritePair(own, ca_.Issue("server", hours(96)));
  EXPECT_EQ(HoursLeft(registry), (Hours{{"cluster", 96}, {"public", 0}}));
  WritePair(own, ca_.Issue("server", -hours(1)));
  EXPECT_EQ(HoursLeft(registry), (Hours{{"cluster", 96}, {"public", 0}}));
}

TEST_F(Tls, NothingGivenIsPlain) {
  const auto identity = TlsIdentity::Open({}, TlsUse::kMember);
  ASSERT_TRUE(identity.ok());
  EXPECT_EQ(*identity, nullptr);
}

TEST_F(Tls, DamagedCertificatesAreFound) {
  const std::string own = Identity("server", ca_);
  std::string damaged = ca_.pem() + other_ca_.pem();
  damaged[ca_.pem().size() + 60] = '!';
  ReplaceFile(own + "/ca.crt", damaged);
  const absl::Status status = TlsIdentity::Open(FilesIn(own), TlsUse::kMember).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(status), HasSubstr("certificate 2 is damaged"));
}

}  // namespace
}  // namespace penstock
