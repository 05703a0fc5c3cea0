#include "router/fleet/decode_link.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>

#include "base/check.h"
#include "base/rpc/callback_threads.h"
#include "decode_worker/session_streams.h"
#include "proto/worker.grpc.pb.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

// One session on the worker's side, with the commands that it received.
struct Served final : StreamedSession {
  explicit Served(SessionWriter to) : outlet(std::move(to)) {}
  void Begin(const v1::DecodeRequest& asked) override {
    MutexLock lock(mutex);
    request = asked;
    begun = true;
  }
  void OnCancelled(const absl::Status& status) override {
    outlet.End(status, Sending::kNow);
    MutexLock lock(mutex);
    why = status;
  }
  bool called_off() {
    MutexLock lock(mutex);
    return why.has_value();
  }

  const SessionWriter outlet;
  Mutex mutex;
  v1::DecodeRequest request GUARDED_BY(mutex);
  bool begun GUARDED_BY(mutex) = false;
  std::optional<absl::Status> why GUARDED_BY(mutex);
};

// A decode worker whose tokens the test samples.
class Worker final : public v1::DecodeWorker::CallbackService {
 public:
  Worker() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.SetMaxReceiveMessageSize(4 << 20);
    builder.RegisterService(this);
    server = builder.BuildAndStart();
    PENSTOCK_CHECK(server != nullptr);
    Renew();
  }
  ~Worker() override { Kill(); }

  grpc::ServerBidiReactor<v1::DecodeCommands, v1::DecodeEvents>* Sessions(
      grpc::CallbackServerContext*) override {
    ++calls;
    return streams().Serve();
  }

  // Simulates a restart of the worker.
  void Renew() {
    MutexLock lock(mutex);
    lives.emplace_back([this](SessionWriter outlet) {
      MutexLock in_call(mutex);
      sessions.push_back(std::make_shared<Served>(std::move(outlet)));
      return sessions.back();
    });
  }
  SessionStreams& streams() {
    MutexLock lock(mutex);
    return lives.back();
  }
  void Kill() {
    if (server == nullptr) return;
    server->Shutdown(std::chrono::system_clock::now());
    server->Wait();
    server.reset();
  }

  // By request_id, once it has come.
  std::shared_ptr<Served> Await(const std::string& id) {
    std::shared_ptr<Served> found;
    EXPECT_TRUE(WaitUntil([&] {
      MutexLock lock(mutex);
      for (const auto& session : sessions) {
        MutexLock its(session->mutex);
        if (session->begun && session->request.request_id() == id) found = session;
      }
      return found != nullptr;
    })) << id;
    return found;
  }

  int port = 0;
  std::atomic<int> calls{0};
  Mutex mutex;
  std::vector<std::shared_ptr<Served>> sessions GUARDED_BY(mutex);
  std::deque<SessionStreams> lives GUARDED_BY(mutex);
  std::unique_ptr<grpc::Server> server;
};

// Records the events on the router's side.
class Listener final : public WorkerCallListener {
 public:
  void OnPrefillEvent(int, const v1::PrefillEvent&) override { FAIL(); }
  void OnDecodeEvent(int attempt, const v1::DecodeEvent& event) override {
    Note(attempt, event.has_admitted()    ? "admitted"
                  : event.has_committed() ? "committed"
                                          : "first");
  }
  void OnDecodeToken(int attempt, const v1::TokenOut& token) override {
    Note(attempt, std::to_string(token.token()));
  }
  void OnCallEnded(int attempt, Side side, const absl::Status& status) override {
    EXPECT_EQ(side, Side::kDecode);
    MutexLock lock(mutex_);
    endings_[attempt] = status;
    heard_[attempt] += absl::StatusCodeToString(status.code());
  }

  std::string heard(int attempt) {
    MutexLock lock(mutex_);
    return heard_[attempt];
  }
  absl::Status Ending(int attempt) {
    EXPECT_TRUE(WaitUntil([&] {
      MutexLock lock(mutex_);
      return endings_.contains(attempt);
    })) << attempt;
    MutexLock lock(mutex_);
    return endings_[attempt];
  }

 private:
  void Note(int attempt, const std::string& what) {
    MutexLock lock(mutex_);
    heard_[attempt] += what + " ";
  }

  Mutex mutex_;
  std::map<int, std::string> heard_ GUARDED_BY(mutex_);
  std::map<int, absl::Status> endings_ GUARDED_BY(mutex_);
};

class DecodeLinkTest : public ::testing::Test {
 protected:
  DecodeLinkTest() {
    KeepCallbackThreads();
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
    channel_ = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(worker_.port),
                                         grpc::InsecureChannelCredentials(), arguments);
    link_ = std::make_shared<DecodeLink>(channel_);
  }
  ~DecodeLinkTest() override {
    link_->Close();
    worker_.streams().Stop();
  }

  std::shared_ptr<WorkerCall> Start(int attempt, size_t prompt_tokens = 1) {
    return Start({.deadline = TimePoint::max(), .attempt = attempt}, prompt_tokens);
  }
  std::shared_ptr<WorkerCall> Start(WorkerCallArgs args, size_t prompt_tokens = 1) {
    v1::DecodeRequest request;
    request.set_request_id(std::to_string(args.attempt));
    for (size_t i = 0; i < prompt_tokens; ++i) request.add_tokens(300'000);  // 3 bytes each
    args.listener = listener_;
    return link_->Start(args, std::move(request));
  }

  static void SayToken(const std::shared_ptr<Served>& session, uint32_t token) {
    v1::TokenOut out;
    out.set_token(token);
    session->outlet.WriteToken(out);
  }

  Worker worker_;
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<Listener> listener_ = std::make_shared<Listener>();
  std::shared_ptr<DecodeLink> link_;
};

TEST_F(DecodeLinkTest, ManySessionsShareOneStreamAndEachHearsItsOwnInOrder) {
  constexpr int kSessions = 50;
  constexpr uint32_t kTokens = 40;
  for (int attempt = 0; attempt < kSessions; ++attempt) Start(attempt);
  std::vector<std::shared_ptr<Served>> sessions;
  for (int attempt = 0; attempt < kSessions; ++attempt) {
    sessions.push_back(worker_.Await(std::to_string(attempt)));
    v1::DecodeEvent event;
    event.mutable_committed();
    sessions.back()->outlet.Write(event, Sending::kNow);
  }
  for (uint32_t token = 0; token < kTokens; ++token) {
    for (const auto& session : sessions) SayToken(session, token);
    worker_.streams().FlushStep();
  }
  std::string expected = "committed ";
  for (uint32_t token = 0; token < kTokens; ++token) expected += std::to_string(token) + " ";
  for (const auto& session : sessions) session->outlet.End(absl::OkStatus(), Sending::kWithStep);
  worker_.streams().FlushStep();
  for (int attempt = 0; attempt < kSessions; ++attempt) {
    EXPECT_TRUE(listener_->Ending(attempt).ok());
    EXPECT_EQ(listener_->heard(attempt), expected + "OK") << attempt;
  }
  EXPECT_EQ(worker_.calls, 1);
}

TEST_F(DecodeLinkTest, ASessionThatEndsSaysNothingMore) {
  Start(0);
  const auto session = worker_.Await("0");
  EXPECT_TRUE(session->outlet.End(ResourceExhausted("no room"), Sending::kNow));
  EXPECT_FALSE(session->outlet.End(absl::OkStatus(), Sending::kNow));
  SayToken(session, 5);
  worker_.streams().FlushStep();
  EXPECT_EQ(listener_->Ending(0), ResourceExhausted("no room"));
  Start(1);  // its events come after all events of session 0
  worker_.Await("1")->outlet.End(absl::OkStatus(), Sending::kNow);
  EXPECT_TRUE(listener_->Ending(1).ok());
  EXPECT_EQ(listener_->heard(0), "RESOURCE_EXHAUSTED");
}

TEST_F(DecodeLinkTest, CallingOneOffTellsTheWorkerAndLeavesTheOthers) {
  const std::shared_ptr<WorkerCall> first = Start(0);
  Start(1);
  const auto called_off = worker_.Await("0");
  const auto other = worker_.Await("1");
  SayToken(other, 1);
  worker_.streams().FlushStep();
  first->Cancel();
  first->Cancel();
  ASSERT_TRUE(WaitUntil([&] { return called_off->called_off(); }));
  SayToken(called_off, 7);
  SayToken(other, 2);
  other->outlet.End(absl::OkStatus(), Sending::kWithStep);
  worker_.streams().FlushStep();
  EXPECT_TRUE(listener_->Ending(1).ok());
  EXPECT_EQ(listener_->heard(1), "1 2 OK");
  EXPECT_EQ(listener_->heard(0), "") << "nobody is told of what nobody wants";
  EXPECT_FALSE(other->called_off());
}

TEST_F(DecodeLinkTest, AWorkerThatDiesEndsAllItsSessions) {
  Start(0);
  Start(1);
  worker_.Await("0");
  const auto session = worker_.Await("1");
  SayToken(session, 4);
  worker_.streams().FlushStep();
  ASSERT_TRUE(WaitUntil([&] { return listener_->heard(1) == "4 "; }));
  worker_.Kill();
  for (const int attempt : {0, 1}) EXPECT_FALSE(listener_->Ending(attempt).ok());
  EXPECT_TRUE(session->called_off()) << "the server has ended";
  Start(2);
  EXPECT_TRUE(absl::IsUnavailable(listener_->Ending(2))) << listener_->Ending(2);
}

TEST_F(DecodeLinkTest, AWorkerThatStopsSaysWhatItHasAndItsSuccessorIsFound) {
  Start(0);
  const auto session = worker_.Await("0");
  SayToken(session, 3);
  worker_.streams().Stop();
  EXPECT_EQ(listener_->Ending(0), Unavailable("the decode worker is shutting down"));
  EXPECT_EQ(listener_->heard(0), "3 UNAVAILABLE");
  EXPECT_TRUE(session->called_off());
  Start(1);
  EXPECT_EQ(listener_->Ending(1), Unavailable("the decode worker is shutting down"));
  worker_.Renew();
  Start(2);
  worker_.Await("2")->outlet.End(absl::OkStatus(), Sending::kNow);
  EXPECT_TRUE(listener_->Ending(2).ok());
}

TEST_F(DecodeLinkTest, ARequestTooLargeForTheWorkerEndsAlone) {
  Start(0);
  const auto other = worker_.Await("0");
  Start(1, 3 << 20);  // 9 MiB
  EXPECT_TRUE(absl::IsResourceExhausted(listener_->Ending(1))) << listener_->Ending(1);
  Start(2, 1 << 20);  // 3 MiB: goes, on a stream of its own
  worker_.Await("2")->outlet.End(absl::OkStatus(), Sending::kNow);
  EXPECT_TRUE(listener_->Ending(2).ok());
  other->outlet.End(absl::OkStatus(), Sending::kNow);
  EXPECT_TRUE(listener_->Ending(0).ok());
  EXPECT_EQ(listener_->heard(0), "OK");
}

TEST_F(DecodeLinkTest, ARequestCarriesItsTraceAndTheTimeThatIsLeft) {
  const TraceContext trace = ContinueTrace({}, {.trace_high = 1, .trace_low = 2, .span = 3});
  Start({.deadline = SteadyClock().Now() + std::chrono::hours(1), .attempt = 0, .trace = trace});
  Start(1);
  const auto timed = worker_.Await("0");
  const auto endless = worker_.Await("1");
  MutexLock lock(timed->mutex);
  MutexLock also(endless->mutex);
  EXPECT_EQ(timed->request.traceparent(), TraceParent(trace));
  EXPECT_LE(timed->request.timeout_ms(), 3'600'000u);
  EXPECT_GT(timed->request.timeout_ms(), 3'000'000u);
  EXPECT_EQ(endless->request.timeout_ms(), 0u);
}

TEST_F(DecodeLinkTest, ARouterThatGoesCallsOffItsSessionsAndNobodyElses) {
  auto second = std::make_shared<DecodeLink>(channel_);
  Start(0);
  std::swap(link_, second);
  Start(1);
  std::swap(link_, second);
  const auto kept = worker_.Await("0");
  const auto goes = worker_.Await("1");
  second->Close();
  EXPECT_FALSE(listener_->Ending(1).ok());
  ASSERT_TRUE(WaitUntil([&] { return goes->called_off(); }));
  SayToken(kept, 9);
  kept->outlet.End(absl::OkStatus(), Sending::kNow);
  EXPECT_TRUE(listener_->Ending(0).ok());
  EXPECT_EQ(listener_->heard(0), "9 OK");
}

}  // namespace
}  // namespace penstock
