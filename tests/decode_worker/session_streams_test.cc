// The messages of a router's stream of sessions.
#include "decode_worker/session_streams.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>

#include "base/check.h"
#include "base/mutex.h"
#include "proto/worker.grpc.pb.h"

namespace penstock {
namespace {

class Session final : public StreamedSession {
 public:
  explicit Session(SessionWriter writer) : writer_(std::move(writer)) {}
  void Begin(const v1::DecodeRequest& request) override {
    v1::DecodeEvent admitted;
    admitted.mutable_admitted();
    if (request.request_id() == "refuse") {
      writer_.End(ResourceExhausted("no room"), Sending::kNow);
    } else {
      writer_.Write(std::move(admitted), Sending::kNow);
    }
  }
  void OnCancelled(const absl::Status& why) override {
    writer_.End(why, Sending::kNow);
    MutexLock lock(mutex_);
    cancelled_ = true;
    changed_.NotifyAll();
  }

  void WriteToken(uint32_t token) const {
    v1::TokenOut out;
    out.set_token(token);
    writer_.WriteToken(out);
  }
  const SessionWriter& writer() const { return writer_; }
  void AwaitCalledOff() {
    MutexLock lock(mutex_);
    while (!cancelled_) changed_.Wait(mutex_);
  }

 private:
  const SessionWriter writer_;
  Mutex mutex_;
  CondVar changed_;
  bool cancelled_ GUARDED_BY(mutex_) = false;
};

class Service final : public v1::DecodeWorker::CallbackService {
 public:
  explicit Service(SessionStreams& streams) : streams_(streams) {}
  grpc::ServerBidiReactor<v1::DecodeCommands, v1::DecodeEvents>* Sessions(
      grpc::CallbackServerContext*) override {
    return streams_.Serve();
  }

 private:
  SessionStreams& streams_;
};

class SessionStreamsTest : public ::testing::Test {
 protected:
  SessionStreamsTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    PENSTOCK_CHECK(server_ != nullptr);
    stub_ = v1::DecodeWorker::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                          grpc::InsecureChannelCredentials()));
    stream_ = stub_->Sessions(&context_);
  }
  ~SessionStreamsTest() override {
    context_.TryCancel();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  void Open(const std::vector<uint64_t>& numbers, const std::string& id = "") {
    v1::DecodeCommands commands;
    for (const uint64_t number : numbers) {
      v1::DecodeCommand& command = *commands.add_commands();
      command.set_number(number);
      command.mutable_open()->set_request_id(id);
    }
    ASSERT_TRUE(stream_->Write(commands));
  }

  // Reads until all of them are admitted; returns them in order.
  std::vector<std::shared_ptr<Session>> OpenAdmitted(const std::vector<uint64_t>& numbers) {
    Open(numbers);
    size_t admitted = 0;
    while (admitted < numbers.size()) {
      const v1::DecodeEvents events = Read();
      if (events.events().empty()) break;
      admitted += static_cast<size_t>(events.events_size());
    }
    EXPECT_EQ(admitted, numbers.size());
    MutexLock lock(mutex_);
    return {made_.end() - static_cast<ptrdiff_t>(numbers.size()), made_.end()};
  }

  // The next message; nothing in it when the stream has ended.
  v1::DecodeEvents Read() {
    v1::DecodeEvents events;
    if (!stream_->Read(&events)) events.Clear();
    return events;
  }

  Mutex mutex_;
  std::vector<std::shared_ptr<Session>> made_ GUARDED_BY(mutex_);
  SessionStreams streams_{[this](SessionWriter writer) {
    MutexLock lock(mutex_);
    made_.push_back(std::make_shared<Session>(std::move(writer)));
    return made_.back();
  }};
  Service service_{streams_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::DecodeWorker::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::DecodeCommands, v1::DecodeEvents>> stream_;
};

TEST_F(SessionStreamsTest, AStepIsOneMessage) {
  const auto sessions = OpenAdmitted({1, 2, 5});
  for (uint32_t step = 0; step < 20; ++step) {
    for (const auto& session : sessions) session->WriteToken(step);
    if (step == 19) sessions[1]->writer().End(absl::OkStatus(), Sending::kWithStep);
    streams_.FlushStep();
    const v1::DecodeEvents events = Read();
    ASSERT_EQ(events.tokens_size(), 3) << step;
    EXPECT_EQ(events.tokens(2).number(), 5u);
    for (const v1::SessionToken& said : events.tokens()) EXPECT_EQ(said.token().token(), step);
    ASSERT_EQ(events.ends_size(), step == 19 ? 1 : 0);
    if (step == 19) {
      EXPECT_EQ(events.ends(0).number(), 2u);
    }
  }
}

TEST_F(SessionStreamsTest, NothingOfAnotherTokenIsLeftInTheNext) {
  const auto session = OpenAdmitted({1})[0];
  v1::TokenOut rich;
  rich.set_choice(1);
  rich.set_position(9);
  rich.set_finish(v1::TokenOut::LENGTH);
  rich.add_top()->set_token(4);
  session->writer().WriteToken(rich);
  streams_.FlushStep();
  EXPECT_EQ(Read().tokens(0).token().top_size(), 1);
  for (int i = 0; i < 4; ++i) {  // until messages are used again
    session->WriteToken(7);
    streams_.FlushStep();
    const v1::DecodeEvents events = Read();
    v1::TokenOut plain;
    plain.set_token(7);
    ASSERT_EQ(events.tokens_size(), 1);
    EXPECT_EQ(events.tokens(0).token().SerializeAsString(), plain.SerializeAsString());
  }
}

TEST_F(SessionStreamsTest, WhatIsRefusedEndsAtOnce) {
  Open({3}, "refuse");
  const v1::DecodeEvents events = Read();
  ASSERT_EQ(events.ends_size(), 1);
  EXPECT_EQ(events.ends(0).number(), 3u);
  EXPECT_EQ(events.ends(0).code(), static_cast<uint32_t>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(events.ends(0).message(), "no room");
}

TEST_F(SessionStreamsTest, ANumberThatCameBeforeEndsTheStreamAndItsSessions) {
  const auto sessions = OpenAdmitted({4, 5});
  Open({5});
  EXPECT_EQ(Read().ByteSizeLong(), 0u);
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  for (const auto& session : sessions) session->AwaitCalledOff();
}

TEST_F(SessionStreamsTest, ACommandThatIsNotKnownEndsTheStream) {
  v1::DecodeCommands commands;
  commands.add_commands()->set_number(1);
  ASSERT_TRUE(stream_->Write(commands));
  EXPECT_EQ(Read().ByteSizeLong(), 0u);
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(SessionStreamsTest, ARouterThatHasNoMoreToSayCallsAllOff) {
  const auto sessions = OpenAdmitted({1, 2});
  stream_->WritesDone();
  for (const auto& session : sessions) session->AwaitCalledOff();
  EXPECT_EQ(Read().ByteSizeLong(), 0u);
  EXPECT_TRUE(stream_->Finish().ok());
}

// A router that does not read for long: what waits for it comes in messages that it may take.
TEST_F(SessionStreamsTest, WhatWaitsForASlowRouterComesWholeAndInSmallMessages) {
  constexpr uint32_t kTokens = 60'000;
  const auto session = OpenAdmitted({1})[0];
  v1::TokenOut token;
  for (uint32_t i = 0; i < 8; ++i) token.add_top()->set_token(1'000'000 + i);
  for (uint32_t position = 0; position < kTokens; ++position) {
    token.set_position(position);
    session->writer().WriteToken(token);
    if (position % 1000 == 0) streams_.FlushStep();
  }
  session->writer().End(absl::OkStatus(), Sending::kNow);
  uint32_t next = 0;
  for (v1::DecodeEvents events = Read(); events.ByteSizeLong() > 0; events = Read()) {
    EXPECT_LT(events.ByteSizeLong(), 1u << 20);
    for (const v1::SessionToken& said : events.tokens()) {
      ASSERT_EQ(said.token().position(), next++);
    }
    if (events.ends_size() == 1) break;
  }
  EXPECT_EQ(next, kTokens);
}

}  // namespace
}  // namespace penstock
