// The router's Admin port: operators watch and change a cluster of real processes while it runs.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <thread>

#include "lab/fake/certificates.h"
#include "lab/fake/temp_folder.h"
#include "proto/admin.grpc.pb.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/support/environment.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

grpc::Status AskOne(Cluster& cluster, uint32_t seed, int tokens_max = 8) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(60));
  return Ask(cluster.client(), ToProto(MakeRequest(100, 1024, seed, tokens_max)), context).status;
}

class AdminTest : public testing::Test {
 protected:
  explicit AdminTest(int decode = 1)
      : cluster_({.decode = decode, .router_flags = {"--admin_listen=127.0.0.1:0"}}) {
    channel_ = grpc::CreateChannel(cluster_.admin_endpoint(), grpc::InsecureChannelCredentials());
    stub_ = v1::Admin::NewStub(channel_);
  }

  // The context of a call that is answered at once.
  struct Quick : grpc::ClientContext {
    Quick() { set_deadline(std::chrono::system_clock::now() + seconds(30)); }
  };

  v1::Fleet Workers() {
    Quick context;
    v1::Fleet fleet;
    const grpc::Status status = stub_->Workers(&context, {}, &fleet);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return fleet;
  }

  std::string Doing(const std::string& worker) {
    const v1::Fleet fleet = Workers();
    for (const v1::WorkerRow& row : fleet.workers()) {
      if (row.state().worker_id() == worker) return row.status();
    }
    return "not listed";
  }

  // Runs `penstock admin`; returns its exit code and its output.
  std::pair<int, std::string> RunAdmin(const std::vector<std::string>& arguments,
                                       std::string endpoint = "") const {
    if (endpoint.empty()) endpoint = cluster_.admin_endpoint();
    std::vector<std::string> command = {"penstock", "admin", "--endpoint", endpoint};
    command.insert(command.end(), arguments.begin(), arguments.end());
    TempFolder folder;
    Process process(command, folder.path() + "/log");
    const std::optional<int> code = process.Wait(seconds(60));
    return {code.value_or(-1), process.Log()};
  }

  Cluster cluster_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Admin::Stub> stub_;
};

class AdminOfTwo : public AdminTest {
 protected:
  AdminOfTwo() : AdminTest(2) {}
};

TEST_F(AdminTest, InfoOfRouterAndWorker) {
  for (const auto& [worker, program] :
       std::map<std::string, std::string>{{"", "penstock-router"},
                                          {"prefill-0", "penstock-prefill"},
                                          {cluster_.decode()[0].endpoint, "penstock-decode"}}) {
    Quick context;
    v1::InfoRequest request;
    request.set_worker(worker);
    v1::ServerInfo info;
    const grpc::Status status = stub_->Info(&context, request, &info);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(info.program(), program);
    EXPECT_FALSE(info.version().empty());
    EXPECT_EQ(info.log_level(), "info");
    std::map<std::string, std::string> config;
    for (const v1::Setting& setting : info.config()) config[setting.name()] = setting.value();
    EXPECT_EQ(config["model"], ModelFolder());
    EXPECT_EQ(config["log_level"], "info");  // also what nobody has set
  }
  Quick context;
  v1::InfoRequest request;
  request.set_worker("nobody");
  v1::ServerInfo info;
  const grpc::Status status = stub_->Info(&context, request, &info);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(),
            "no worker is `nobody`; there are " +
                (cluster_.prefill()[0].endpoint < cluster_.decode()[0].endpoint
                     ? std::string("prefill-0, decode-0")
                     : std::string("decode-0, prefill-0")));
}

TEST_F(AdminTest, WorkersAndWhoSendsKvToWhom) {
  ASSERT_TRUE(AskOne(cluster_, 1).ok());
  // The prefill worker reports the transfer to the router beside the answer.
  v1::Fleet fleet;
  ASSERT_TRUE(WaitUntil(
      [&] {
        fleet = Workers();
        return fleet.links_size() > 0 && fleet.links(0).done() > 0;
      },
      seconds(30)));
  ASSERT_EQ(fleet.workers_size(), 2);
  for (const v1::WorkerRow& row : fleet.workers()) EXPECT_EQ(row.status(), "ready");
  ASSERT_EQ(fleet.links_size(), 1);
  EXPECT_EQ(fleet.links(0).from(), cluster_.prefill()[0].endpoint);
  EXPECT_EQ(fleet.links(0).to(), cluster_.decode()[0].endpoint);
  EXPECT_EQ(fleet.links(0).done(), 1u);
  EXPECT_FALSE(fleet.links(0).transport().empty());
}

TEST_F(AdminOfTwo, AWorkerThatDrainsGetsNothingUntilItIsBack) {
  v1::DrainRequest request;
  request.set_worker("decode-1");
  {
    grpc::ClientContext context;
    const auto reader = stub_->Drain(&context, request);
    v1::WorkerState state, last;
    while (reader->Read(&state)) last = state;
    const grpc::Status status = reader->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(last.phase(), v1::WorkerState::DRAINING);
    EXPECT_EQ(last.running() + last.handoffs(), 0u);
  }
  ASSERT_TRUE(WaitUntil([&] { return Doing("decode-1") == "draining"; }, seconds(30)));
  const auto steps = [&](int i) {
    return cluster_.decode()[static_cast<size_t>(i)].State()->steps();
  };
  const uint64_t before = steps(1);
  for (uint32_t seed = 1; seed <= 6; ++seed) ASSERT_TRUE(AskOne(cluster_, seed).ok());
  EXPECT_EQ(steps(1), before);
  EXPECT_TRUE(cluster_.decode()[1].process.running());

  request.set_resume(true);
  grpc::ClientContext context;
  const auto reader = stub_->Drain(&context, request);
  v1::WorkerState state;
  while (reader->Read(&state)) {
  }
  ASSERT_TRUE(reader->Finish().ok());
  ASSERT_TRUE(WaitUntil([&] { return Doing("decode-1") == "ready"; }, seconds(30)));
  const auto taken = [&] {
    static uint32_t seed = 100;
    EXPECT_TRUE(AskOne(cluster_, ++seed).ok());
    return steps(1) > before;
  };
  EXPECT_TRUE(WaitUntil(taken, seconds(30)));
}

TEST_F(AdminOfTwo, WhatRunsOnADrainingWorkerGoesOnElsewhere) {
  std::vector<std::thread> asking;
  std::atomic<int> good{0};
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    asking.emplace_back([&, seed] { good += AskOne(cluster_, seed, 300).ok() ? 1 : 0; });
  }
  const auto busy = [&] { return cluster_.decode()[0].State()->running() > 0; };
  EXPECT_TRUE(WaitUntil(busy, seconds(30)));
  v1::DrainRequest request;
  request.set_worker("decode-0");
  grpc::ClientContext context;
  const auto reader = stub_->Drain(&context, request);
  v1::WorkerState state;
  while (reader->Read(&state)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(state.running(), 0u);
  for (std::thread& thread : asking) thread.join();
  EXPECT_EQ(good, 8) << cluster_.Logs();
}

TEST_F(AdminTest, EventsThenFlush) {
  ASSERT_TRUE(AskOne(cluster_, 1).ok());
  v1::WatchWorkerBlocksRequest watched;
  watched.set_worker("prefill-0");
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(60));
  const auto reader = stub_->WatchBlocks(&context, watched);
  size_t stored = 0;
  v1::BlockEvents events;
  while (reader->Read(&events) && events.snapshot()) {
    for (const v1::BlockEvent& event : events.events()) stored += event.stored().ids().size() / 16;
  }
  EXPECT_EQ(stored, 6u);  // of 100 tokens
  v1::FlushRequest request;
  request.set_worker("prefill-0");
  v1::KvFlushed flushed;
  Quick quick;
  ASSERT_TRUE(stub_->Flush(&quick, request, &flushed).ok());
  EXPECT_GE(flushed.blocks(), 6u);
  const auto cleared = [&] {
    for (const v1::BlockEvent& event : events.events()) {
      if (event.has_cleared() || event.has_removed()) return true;
    }
    return false;
  };
  while (!cleared() && reader->Read(&events)) {
  }
  EXPECT_TRUE(cleared());
  context.TryCancel();
}

TEST_F(AdminTest, LogLevelOfAWorkerThatRuns) {
  WorkerProcess& worker = cluster_.prefill()[0];
  const auto [code, said] = RunAdmin({"log-level", "debug", "prefill-0"});
  EXPECT_EQ(code, 0) << said;
  EXPECT_EQ(said, "it was info\n");
  // A thread of its own writes the lines.
  const std::string line = "the log level is debug, it was info";
  EXPECT_TRUE(WaitUntil([&] { return worker.process.Log().find(line) != std::string::npos; }))
      << worker.process.Log();
  const auto [again, now] = RunAdmin({"log-level", "info", "prefill-0"});
  EXPECT_EQ(now, "it was debug\n");
  EXPECT_THAT(RunAdmin({"log-level", "loud"}).second, HasSubstr("debug, info, warning and error"));
}

TEST_F(AdminTest, ThePenstockCommand) {
  EXPECT_THAT(RunAdmin({"workers"}).second, HasSubstr("decode-0"));
  EXPECT_THAT(RunAdmin({"workers", "--json"}).second, HasSubstr("\"status\":\"ready\""));
  EXPECT_THAT(RunAdmin({"info", "decode-0"}).second, HasSubstr("penstock-decode"));
  EXPECT_THAT(RunAdmin({"drain", "decode-0"}).second, HasSubstr("decode-0 is draining"));
  EXPECT_THAT(RunAdmin({"resume", "decode-0"}).second, HasSubstr("decode-0 is ready"));
  EXPECT_THAT(RunAdmin({"flush", "decode-0"}).second, HasSubstr("cached blocks"));
  EXPECT_EQ(RunAdmin({"drain"}).first, 64);
  EXPECT_EQ(RunAdmin({"workers", "x"}).first, 64);
  EXPECT_EQ(RunAdmin({"drain", "nobody"}).first, 66);
  EXPECT_EQ(RunAdmin({"workers"}, cluster_.endpoint()).first, 78);
}

TEST_F(AdminTest, IsNotToBeHadAtThePublicPort) {
  const auto channel = grpc::CreateChannel(cluster_.endpoint(), grpc::InsecureChannelCredentials());
  Quick info, workers, drain, draining;
  v1::ServerInfo said;
  v1::Fleet fleet;
  const auto admin = v1::Admin::NewStub(channel);
  EXPECT_EQ(admin->Info(&info, {}, &said).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(admin->Workers(&workers, {}, &fleet).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  v1::DrainRequest request;
  request.set_worker("decode-0");
  const auto reader = admin->Drain(&drain, request);
  v1::WorkerState state;
  EXPECT_FALSE(reader->Read(&state));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
  v1::DrainingSet set;
  EXPECT_EQ(v1::WorkerAdmin::NewStub(channel)->SetDraining(&draining, {}, &set).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(Doing("decode-0"), "ready");
}

// The operators' port of a router that others can reach, and who gets in.
TEST(AdminPort, AsksForCertificatesOrStaysAtHome) {
  TempFolder folder;
  {
    Process process({"penstock-router", "--model=" + ModelFolder(), "--insecure",
                     "--listen=127.0.0.1:0", "--http_listen=", "--admin_listen=0.0.0.0:0"},
                    folder.path() + "/log");
    EXPECT_EQ(process.Wait(seconds(60)), 78) << process.Log();
    EXPECT_THAT(process.Log(), HasSubstr("admin_listen=0.0.0.0:0 can be reached"));
  }
  const TestCa ca("cluster CA");
  WriteIdentity(folder.path(), ca, ca.Issue("member"));
  Cluster cluster({.router_flags = {"--admin_listen=0.0.0.0:0"}, .identity = folder.path()});
  const std::string endpoint =
      "127.0.0.1" + cluster.admin_endpoint().substr(cluster.admin_endpoint().rfind(':'));
  const auto workers = [&](const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(30));
    v1::Fleet fleet;
    return v1::Admin::NewStub(grpc::CreateChannel(endpoint, credentials))
        ->Workers(&context, {}, &fleet)
        .error_code();
  };
  EXPECT_EQ(workers(grpc::InsecureChannelCredentials()), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(workers(cluster.decode()[0].credentials), grpc::StatusCode::OK);
}

}  // namespace
}  // namespace penstock
