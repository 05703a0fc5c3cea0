// A worker that changes its role while the cluster answers: real processes, over the router's Admin
// port. No token differs, no request is lost, and what it has cached stays.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "lab/fake/temp_folder.h"
#include "proto/admin.grpc.pb.h"
#include "proto/worker.grpc.pb.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/decode_session.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/support/environment.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr v1::WorkerState::Role kPrefill = v1::WorkerState::PREFILL;
constexpr v1::WorkerState::Role kDecode = v1::WorkerState::DECODE;

class Roles : public testing::Test {
 protected:
  explicit Roles(Cluster::Options options = {.prefill = 2, .decode = 2})
      : cluster_(WithAdmin(std::move(options))),
        admin_(v1::Admin::NewStub(
            grpc::CreateChannel(cluster_.admin_endpoint(), grpc::InsecureChannelCredentials()))) {}

  static Cluster::Options WithAdmin(Cluster::Options options) {
    options.router_flags.push_back("--admin_listen=127.0.0.1:0");
    return options;
  }

  struct Turned {
    grpc::Status status;
    bool drained = false;  // was it heard to drain
  };
  Turned Turn(const std::string& worker, v1::WorkerState::Role role,
              milliseconds within = seconds(60), bool force = false) {
    v1::SetRoleRequest request;
    request.set_worker(worker);
    request.set_role(role);
    request.set_within_ms(static_cast<uint32_t>(within.count()));
    request.set_force(force);
    Deadline context(seconds(300));
    const auto reader = admin_->SetRole(&context, request);
    Turned turned;
    v1::WorkerState state;
    while (reader->Read(&state)) {
      turned.drained |= state.phase() == v1::WorkerState::DRAINING && state.turning_to() == role;
    }
    turned.status = reader->Finish();
    return turned;
  }

  // As the router sees them.
  v1::Fleet Workers() {
    Deadline context(seconds(30));
    v1::Fleet fleet;
    EXPECT_TRUE(admin_->Workers(&context, {}, &fleet).ok());
    return fleet;
  }
  void SetUp() override {
    ASSERT_TRUE(WaitUntil(
        [&] {
          const v1::Fleet fleet = Workers();
          return std::all_of(fleet.workers().begin(), fleet.workers().end(),
                             [](const v1::WorkerRow& row) { return row.status() == "ready"; });
        },
        seconds(60)));
  }
  bool Is(const std::string& worker, v1::WorkerState::Role role) {
    const v1::Fleet fleet = Workers();
    return std::any_of(fleet.workers().begin(), fleet.workers().end(),
                       [&](const v1::WorkerRow& row) {
                         return row.state().worker_id() == worker && row.state().role() == role &&
                                row.status() == "ready";
                       });
  }
  bool Becomes(const std::string& worker, v1::WorkerState::Role role) {
    return WaitUntil([&] { return Is(worker, role); }, seconds(30));
  }

  TestAnswer AskOne(const TestRequest& request) {
    Deadline context(seconds(300));
    return Ask(cluster_.client(), ToProto(request), context);
  }
  void ExpectExact(const TestRequest& request, const TestAnswer& answer) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << cluster_.Logs();
    EXPECT_EQ(answer.tokens[0],
              local_.Generate(request.prompt, request.sampling, request.tokens_max));
  }

  LocalGenerator local_{ModelFolder()};
  Cluster cluster_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

// Requests that come one after the other, on a few threads, until it goes.
class Traffic {
 public:
  Traffic(v1::Inference::Stub& client, int threads) : client_(client), done_(threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this, i] { Run(i); });
  }
  ~Traffic() { Stop(); }
  void Stop() {
    stopping_ = true;
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  size_t answered() const { return answered_; }
  // After Stop.
  const std::vector<std::vector<std::pair<TestRequest, TestAnswer>>>& done() const { return done_; }

 private:
  void Run(int number) {
    for (uint32_t i = 0; !stopping_; ++i) {
      const uint32_t seed = 1000 * static_cast<uint32_t>(number + 1) + i;
      TestRequest request = MakeRequest(20 + static_cast<int>(seed % 150), 1024, seed, 60);
      Deadline context(seconds(300));
      TestAnswer answer = Ask(client_, ToProto(request), context);
      done_[static_cast<size_t>(number)].emplace_back(std::move(request), std::move(answer));
      ++answered_;
    }
  }

  v1::Inference::Stub& client_;
  std::vector<std::vector<std::pair<TestRequest, TestAnswer>>> done_;  // of each thread
  std::atomic<size_t> answered_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

// Steps that a worker computes in the role that it has now.
uint64_t StepsOf(const WorkerProcess& worker) {
  const auto state = worker.State();
  EXPECT_TRUE(state.has_value());
  return state ? state->steps() : 0;
}

TEST_F(Roles, ThereAndBackUnderLoad) {
  Traffic traffic(cluster_.client(), 4);
  const auto goes_on = [&] {
    const size_t before = traffic.answered();
    return WaitUntil([&] { return traffic.answered() >= before + 8; }, seconds(60));
  };
  ASSERT_TRUE(goes_on());
  struct {
    const char* worker;
    WorkerProcess& process;
    v1::WorkerState::Role there;
    v1::WorkerState::Role back;
  } const turns[] = {{"prefill-1", cluster_.prefill()[1], kDecode, kPrefill},
                     {"decode-0", cluster_.decode()[0], kPrefill, kDecode}};
  for (const auto& turn : turns) {
    uint32_t epoch = 1;
    for (const v1::WorkerState::Role role : {turn.there, turn.back}) {
      const Turned turned = Turn(turn.worker, role);
      ASSERT_TRUE(turned.status.ok()) << turned.status.error_message() << cluster_.Logs();
      ASSERT_TRUE(Becomes(turn.worker, role));
      EXPECT_EQ(turn.process.State()->role_epoch(), ++epoch);
      EXPECT_TRUE(goes_on()) << cluster_.Logs();
      // It works in its new role.
      const uint64_t steps = StepsOf(turn.process);
      EXPECT_TRUE(WaitUntil([&] { return StepsOf(turn.process) > steps; }, seconds(60)));
    }
  }
  traffic.Stop();
  for (const auto& done : traffic.done()) {
    for (const auto& [request, answer] : done) ExpectExact(request, answer);
  }
  EXPECT_TRUE(cluster_.AllBlocksFree(seconds(30)));
}

TEST_F(Roles, WhatRunsOnADecodeWorkerMovesBeforeItTurns) {
  const TestRequest request = MakeRequest(150, 1024, 5, 1500);
  std::string turned;
  std::future<Turned> turning;
  Deadline context(seconds(300));
  const TestAnswer answer =
      Ask(cluster_.client(), ToProto(request), context, [&](const TestAnswer& so_far) {
        if (!turned.empty() || so_far.tokens[0].size() < 20) return;
        turned = cluster_.decode()[0].State()->running() > 0 ? "decode-0" : "decode-1";
        turning = std::async(std::launch::async, [&] { return Turn(turned, kPrefill); });
      });
  ASSERT_FALSE(turned.empty());
  const grpc::Status status = turning.get().status;
  EXPECT_TRUE(status.ok()) << status.error_message() << cluster_.Logs();
  ExpectExact(request, answer);
  EXPECT_TRUE(Becomes(turned, kPrefill));
  EXPECT_EQ(answer.timing.migrations(), 1u) << cluster_.Logs();
  EXPECT_EQ(answer.usage.recomputed_tokens(), 0u);  // its KV went over
}

// One worker of each role, of which nobody takes over from the other.
class LonelyRoles : public Roles {
 protected:
  LonelyRoles() : Roles({.prefill = 1, .decode = 1}) {}
};

TEST_F(LonelyRoles, AWorkerThatCannotDrainInTimeKeepsItsRole) {
  const TestRequest request = MakeRequest(100, 1024, 5, 1800);
  std::optional<Turned> turned, meanwhile;
  Deadline context(seconds(300));
  const TestAnswer answer =
      Ask(cluster_.client(), ToProto(request), context, [&](const TestAnswer& so_far) {
        if (turned || so_far.tokens[0].size() < 5) return;
        auto turning = std::async(std::launch::async, [&] {
          return Turn("decode-0", kPrefill, milliseconds(200), true);
        });
        const auto drains = [&] {
          return cluster_.decode()[0].State()->turning_to() == kPrefill ||
                 turning.wait_for(milliseconds(0)) == std::future_status::ready;
        };
        ASSERT_TRUE(WaitUntil(drains, seconds(30)));
        meanwhile = Turn("decode-0", kPrefill, milliseconds(1), true);
        turned = turning.get();
      });
  ASSERT_TRUE(turned.has_value());
  EXPECT_EQ(turned->status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED)
      << turned->status.error_message();
  EXPECT_TRUE(turned->drained);
  // It was turning already, or, on a slow machine, had just given up and did again.
  EXPECT_THAT(meanwhile->status.error_code(), testing::AnyOf(grpc::StatusCode::FAILED_PRECONDITION,
                                                             grpc::StatusCode::DEADLINE_EXCEEDED));
  ExpectExact(request, answer);
  const auto state = cluster_.decode()[0].State();
  EXPECT_EQ(state->role(), kDecode);
  EXPECT_EQ(state->role_epoch(), 1u);
  EXPECT_TRUE(Becomes("decode-0", kDecode));
  const TestRequest next = MakeRequest(30, 1024, 6, 10);
  ExpectExact(next, AskOne(next));
}

TEST_F(LonelyRoles, WhatMayNotTurnIsToldSo) {
  const Turned last = Turn("decode-0", kPrefill);
  EXPECT_EQ(last.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(last.status.error_message().find("the only ready decode worker"), std::string::npos)
      << last.status.error_message();
  EXPECT_TRUE(Turn("decode-0", kDecode).status.ok());  // it is one
  EXPECT_EQ(Turn("nobody", kDecode).status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(
      Turn("decode-0", v1::WorkerState::ROLE_UNSPECIFIED, seconds(1), true).status.error_code(),
      grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(cluster_.decode()[0].State()->role_epoch(), 1u);
}

template <class Stub, class Request, class Event>
grpc::Status StatusOf(std::unique_ptr<grpc::ClientReader<Event>> (Stub::*method)(
                          grpc::ClientContext*, const Request&),
                      Stub& stub, const Request& request) {
  Deadline context(seconds(30));
  const auto reader = (stub.*method)(&context, request);
  Event event;
  while (reader->Read(&event)) {
  }
  return reader->Finish();
}

TEST_F(LonelyRoles, CallsOfAnotherRoleOrEpochAreRefused) {
  const auto channel =
      grpc::CreateChannel(cluster_.prefill()[0].endpoint, grpc::InsecureChannelCredentials());
  const auto decode = v1::DecodeWorker::NewStub(channel);
  const auto prefill = v1::PrefillWorker::NewStub(channel);
  v1::DecodeRequest to_decode;
  to_decode.add_tokens(1);
  to_decode.set_prompt_tokens(1);
  Deadline context(seconds(30));
  const grpc::Status wrong_role = RunDecodeSession(*decode, &context, to_decode).status;
  EXPECT_EQ(wrong_role.error_code(), grpc::StatusCode::FAILED_PRECONDITION)
      << wrong_role.error_message();
  EXPECT_EQ(StatusOf(&v1::DecodeWorker::Stub::Move, *decode, v1::MoveRequest()).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  ASSERT_TRUE(Turn("prefill-0", kDecode, seconds(30), true).status.ok());
  ASSERT_TRUE(Turn("prefill-0", kPrefill, seconds(30), true).status.ok());
  v1::PrefillRequest to_prefill;
  to_prefill.add_tokens(1);
  to_prefill.set_prompt_tokens(1);
  to_prefill.set_role_epoch(1);
  const grpc::Status old_epoch = StatusOf(&v1::PrefillWorker::Stub::Prefill, *prefill, to_prefill);
  EXPECT_EQ(old_epoch.error_code(), grpc::StatusCode::FAILED_PRECONDITION)
      << old_epoch.error_message();
  EXPECT_NE(old_epoch.error_message().find("role epoch 3"), std::string::npos)
      << old_epoch.error_message();
}

// Nobody but the prefill worker can have the prompt: decode workers compute nothing of it, and
// nobody reads from others.
class CachingRoles : public Roles {
 protected:
  CachingRoles()
      : Roles({.prefill = 1,
               .decode = 1,
               .decode_flags = {"--local_prefill_max_tokens=0"},
               .router_flags = {"--peer_reads=off"}}) {}
};

TEST_F(CachingRoles, WhatIsCachedOutlivesTheRole) {
  const TestRequest request = MakeRequest(200, 1024, 9, 4);
  ExpectExact(request, AskOne(request));
  ASSERT_TRUE(Turn("prefill-0", kDecode, seconds(60), true).status.ok());
  ASSERT_TRUE(Turn("prefill-0", kPrefill, seconds(60), true).status.ok());
  ASSERT_TRUE(Becomes("prefill-0", kPrefill));
  const TestAnswer again = AskOne(request);
  ExpectExact(request, again);
  EXPECT_EQ(again.usage.cached_tokens(), 192u);
}

size_t DescriptorsOf(pid_t pid) {
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(pid) + "/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// In pages.
size_t ResidentOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  size_t whole = 0, resident = 0;
  file >> whole >> resident;
  return resident;
}

class PatientRoles : public Roles {
 protected:
  // A turn is no stall, however soon one is feared.
  PatientRoles() : Roles({.prefill = 2, .decode = 1, .prefill_flags = {"--stall_ms=1000"}}) {}
};

TEST_F(PatientRoles, ManyTurnsLeaveNothingBehind) {
  WorkerProcess& worker = cluster_.prefill()[1];
  const auto turn_twice = [&](uint32_t seed) {
    for (const v1::WorkerState::Role role : {kDecode, kPrefill}) {
      const grpc::Status status = Turn("prefill-1", role).status;
      ASSERT_TRUE(status.ok()) << status.error_message();
      ASSERT_TRUE(Becomes("prefill-1", role));
      const TestRequest request = MakeRequest(60, 1024, seed++, 12);
      ExpectExact(request, AskOne(request));
    }
  };
  for (uint32_t i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(turn_twice(100 + 2 * i));
  const size_t descriptors = DescriptorsOf(worker.process.pid());
  const size_t resident = ResidentOf(worker.process.pid());
  for (uint32_t i = 0; i < 20; ++i) ASSERT_NO_FATAL_FAILURE(turn_twice(200 + 2 * i));
  // Connections of calls that have just ended come and go.
  EXPECT_TRUE(WaitUntil([&] { return DescriptorsOf(worker.process.pid()) <= descriptors + 4; }))
      << DescriptorsOf(worker.process.pid()) << " after " << descriptors;
  EXPECT_LE(ResidentOf(worker.process.pid()), resident + (16u << 20) / 4096);
  EXPECT_EQ(worker.State()->role_epoch(), 47u);
  EXPECT_EQ(worker.process.Log().find("has not moved"), std::string::npos);
}

TEST_F(LonelyRoles, AProcessThatStopsGivesUpItsTurn) {
  const TestRequest request = MakeRequest(100, 1024, 5, 1800);
  std::future<Turned> turning;
  Deadline context(seconds(300));
  const TestAnswer answer =
      Ask(cluster_.client(), ToProto(request), context, [&](const TestAnswer& so_far) {
        if (turning.valid() || so_far.tokens[0].size() < 5) return;
        turning = std::async(std::launch::async,
                             [&] { return Turn("decode-0", kPrefill, seconds(60), true); });
        ASSERT_TRUE(WaitUntil(
            [&] {
              const auto state = cluster_.decode()[0].State();
              return !state || state->turning_to() == kPrefill;
            },
            seconds(30)));
        cluster_.decode()[0].process.Signal(SIGTERM);
      });
  ASSERT_TRUE(turning.valid());
  EXPECT_FALSE(turning.get().status.ok());
  EXPECT_EQ(cluster_.decode()[0].process.Wait(seconds(30)), 0);
}

TEST_F(LonelyRoles, CtrlCEndsTheWaitingAndNotTheTurn) {
  const TestRequest request = MakeRequest(100, 1024, 5, 1500);
  TempFolder folder;
  std::optional<Process> command;
  Deadline context(seconds(300));
  const TestAnswer answer =
      Ask(cluster_.client(), ToProto(request), context, [&](const TestAnswer& so_far) {
        if (command || so_far.tokens[0].size() < 5) return;
        command.emplace(
            std::vector<std::string>{"penstock", "admin", "--endpoint", cluster_.admin_endpoint(),
                                     "role", "decode-0", "prefill", "--force", "--within", "300"},
            folder.path() + "/log");
        ASSERT_TRUE(WaitUntil(
            [&] {
              return command->Log().find("draining decode-0") != std::string::npos ||
                     !command->running();
            },
            seconds(30)));
        command->Signal(SIGINT);
      });
  ASSERT_TRUE(command.has_value());
  EXPECT_EQ(command->Wait(seconds(30)), 130) << command->Log();
  EXPECT_NE(command->Log().find("decode-0 continues to turn"), std::string::npos) << command->Log();
  ExpectExact(request, answer);  // nobody else could take it over
  EXPECT_TRUE(Becomes("decode-0", kPrefill));
}

TEST_F(Roles, ThePenstockCommandTurns) {
  const auto run = [&](std::vector<std::string> arguments) {
    std::vector<std::string> command = {"penstock", "admin", "--endpoint",
                                        cluster_.admin_endpoint(), "role"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    TempFolder folder;
    Process process(command, folder.path() + "/log");
    const int code = process.Wait(seconds(60)).value_or(-1);
    return std::make_pair(code, process.Log());
  };
  const auto [code, said] = run({"decode-1", "prefill", "--within", "20"});
  EXPECT_EQ(code, 0) << said;
  EXPECT_NE(said.find("decode-1 is a prefill worker now"), std::string::npos) << said;
  ASSERT_TRUE(Becomes("decode-1", kPrefill));
  const auto [refused, why] = run({"decode-0", "prefill"});
  EXPECT_NE(refused, 0);
  EXPECT_NE(why.find("the only ready decode worker"), std::string::npos) << why;
  EXPECT_EQ(run({"decode-1", "router"}).first, 64);
  EXPECT_EQ(run({"decode-1"}).first, 64);
  const TestRequest request = MakeRequest(30, 1024, 6, 10);
  ExpectExact(request, AskOne(request));
}

}  // namespace
}  // namespace penstock
