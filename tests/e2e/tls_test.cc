// A whole cluster whose processes ask each other for certificates: it serves, lets nobody else in,
// and takes new certificates without a restart.

#include "base/rpc/tls.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "lab/fake/certificates.h"
#include "lab/fake/temp_folder.h"
#include "proto/worker.grpc.pb.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/http/http_client.h"
#include "tests/http/tls_client.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::seconds;

class TlsCluster : public testing::Test {
 protected:
  TlsCluster() { WriteIdentity(folder_.path(), ca_, ca_.Issue("member")); }

  // Expects answers to prompts of several blocks, through both workers.
  static void ExpectAnswers(Cluster& cluster, uint32_t seed,
                            const std::string& transport = "shared memory") {
    const TestRequest request = MakeRequest(100, 1024, seed, 16);
    grpc::ClientContext context;
    const TestAnswer answer = Ask(cluster.client(), ToProto(request), context);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << cluster.Logs();
    EXPECT_FALSE(answer.tokens.at(0).empty());
    EXPECT_THAT(answer.timing.transport(), testing::StartsWith(transport));
  }

  // Runs `penstock`; returns its exit code and its output.
  std::pair<int, std::string> RunPenstock(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "penstock");
    TempFolder folder;
    Process process(arguments, folder.path() + "/log");
    const std::optional<int> code = process.Wait(seconds(60));
    return {code.value_or(-1), process.Log()};
  }

  std::string Flag(const std::string& name, const std::string& file) const {
    return "--" + name + "=" + folder_.path() + "/" + file;
  }

  // The name in the certificate that a new connection to `endpoint` is shown.
  std::string ServedName(const std::string& endpoint) const {
    const auto identity = TlsIdentity::Open(FilesIn(folder_.path()), TlsUse::kMember);
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel(
        endpoint, ChannelCredentialsOf(*identity, TlsCheck::kMember), arguments);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(20));
    v1::ListModelsResponse models;
    if (!v1::Inference::NewStub(channel)->ListModels(&context, {}, &models).ok()) return "";
    const auto names = context.auth_context()->FindPropertyValues("x509_common_name");
    return names.empty() ? "" : std::string(names[0].data(), names[0].size());
  }

  static grpc::StatusCode Watch(const std::string& endpoint,
                                const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    const auto stub = v1::WorkerStatus::NewStub(grpc::CreateChannel(endpoint, credentials));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(20));
    const auto stream = stub->Watch(&context, {});
    v1::WorkerState state;
    if (stream->Read(&state)) return grpc::StatusCode::OK;
    return stream->Finish().error_code();
  }

  TempFolder folder_;
  const TestCa ca_{"cluster CA"};
  const TestCa other_ca_{"another CA"};
};

TEST_F(TlsCluster, ServesAndLetsNobodyElseIn) {
  Cluster cluster({.prefill = 1, .decode = 1, .identity = folder_.path()});
  ExpectAnswers(cluster, 1);

  const std::string worker = cluster.decode()[0].endpoint;
  EXPECT_EQ(Watch(worker, cluster.decode()[0].credentials), grpc::StatusCode::OK);
  const auto plain = grpc::InsecureChannelCredentials();
  EXPECT_EQ(Watch(worker, plain), grpc::StatusCode::UNAVAILABLE);
  const auto stranger =
      TlsIdentity::Open({.cert = {}, .key = {}, .ca = FilesIn(folder_.path()).ca}, TlsUse::kClient);
  EXPECT_EQ(Watch(worker, ChannelCredentialsOf(*stranger, TlsCheck::kMember)),
            grpc::StatusCode::UNAVAILABLE);
  TempFolder liar;
  WriteIdentity(liar.path(), ca_, other_ca_.Issue("member"));
  const auto lying = TlsIdentity::Open(FilesIn(liar.path()), TlsUse::kMember);
  EXPECT_EQ(Watch(worker, ChannelCredentialsOf(*lying, TlsCheck::kMember)),
            grpc::StatusCode::UNAVAILABLE);

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(20));
  v1::ListModelsResponse models;
  EXPECT_EQ(v1::Inference::NewStub(grpc::CreateChannel(cluster.endpoint(), plain))
                ->ListModels(&context, {}, &models)
                .error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsCluster, KvIsSealedBetweenHosts) {
  const std::vector<std::string> flags = {"--wire=tcp"};
  Cluster cluster({.prefill = 1,
                   .decode = 1,
                   .prefill_flags = flags,
                   .decode_flags = flags,
                   .identity = folder_.path()});
  ExpectAnswers(cluster, 1, "tcp, sealed");
}

TEST_F(TlsCluster, ThePenstockCommandSpeaksIt) {
  Cluster cluster({.prefill = 1, .decode = 1, .identity = folder_.path()});
  const std::string endpoint = "--endpoint=https://" + cluster.endpoint();
  const std::string ca = Flag("ca", "ca.crt");
  const auto [code, said] = RunPenstock({"generate", endpoint, ca, "--max-tokens=4", "One day"});
  EXPECT_EQ(code, 0) << said;
  const std::string load = "--endpoint=grpcs://" + cluster.endpoint();
  const auto [measured, report] = RunPenstock(
      {"bench", "serve", load, ca, "--requests=3", "--prompt-tokens=20", "--output-tokens=4"});
  EXPECT_EQ(measured, 0) << report;
  const auto [stranger, nobody] = RunPenstock({"bench", "serve", load, "--requests=3"});
  EXPECT_EQ(stranger, 69) << nobody;
  const auto [untrusted, why] = RunPenstock({"generate", endpoint, "One day"});
  EXPECT_EQ(untrusted, 69) << why;
  const std::string worker = cluster.prefill()[0].endpoint;
  const auto [plain, refused] = RunPenstock({"health", "--endpoint", worker});
  EXPECT_EQ(plain, 69) << refused;
  const std::vector<std::string> member = {ca, Flag("cert", "tls.crt"), Flag("key", "tls.key")};
  std::vector<std::string> health = {"health", "--endpoint", worker};
  health.insert(health.end(), member.begin(), member.end());
  EXPECT_EQ(RunPenstock(health).second, "SERVING\n");
  std::vector<std::string> stats = {"kv", "stats", worker};
  stats.insert(stats.end(), member.begin(), member.end());
  EXPECT_NE(RunPenstock(stats).second.find("device"), std::string::npos);
}

TEST_F(TlsCluster, HttpSpeaksItWhereAsked) {
  Cluster cluster(
      {.prefill = 1, .decode = 1, .router_flags = {"--http_tls=true"}, .identity = folder_.path()});
  const TlsFiles member = FilesIn(folder_.path());
  TlsClient client(cluster.http_endpoint(),
                   {.files = {.cert = {}, .key = {}, .ca = member.ca}, .alpn = {"http/1.1"}});
  ASSERT_TRUE(client.connected());
  EXPECT_EQ(client.server_name(), "member");
  ASSERT_TRUE(client.Send(
      HttpText("/v1/completions", R"({"prompt": "One day", "max_tokens": 4, "stream": true})")));
  EXPECT_TRUE(client.ReceiveUntil("data: [DONE]")) << client.received();
  HttpClient plain(cluster.http_endpoint());
  plain.Send(HttpText("/health"));
  EXPECT_TRUE(plain.Closes());
}

TEST_F(TlsCluster, TakesNewCertificatesWithoutARestart) {
  Cluster cluster({.prefill = 1, .decode = 2, .identity = folder_.path()});
  ExpectAnswers(cluster, 2);
  EXPECT_EQ(ServedName(cluster.endpoint()), "member");
  WritePair(folder_.path(), ca_.Issue("rotated"));
  EXPECT_EQ(ServedName(cluster.endpoint()), "rotated");
  // New connections, from the router and from the prefill worker, show and see the new one.
  WorkerProcess& worker = cluster.decode()[0];
  worker.process.Signal(SIGKILL);
  worker.process.Wait(seconds(30));
  cluster.Restart(worker);
  WorkerProcess& other = cluster.decode()[1];
  other.process.Signal(SIGKILL);
  other.process.Wait(seconds(30));
  const bool answered = WaitUntil(
      [&] {
        const TestRequest request = MakeRequest(100, 1024, 3, 16);
        grpc::ClientContext context;
        return Ask(cluster.client(), ToProto(request), context).status.ok();
      },
      seconds(30));
  EXPECT_TRUE(answered) << cluster.Logs();
}

}  // namespace
}  // namespace penstock
