#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "http/http2/http2_guard.h"
#include "http/http2/http2_ready.h"
#include "http/http2/http2_session.h"
#include "http/http2/http2_stream.h"
#include "http/protocol.h"

namespace penstock {

// HTTP/2 (RFC 9113): many requests at once on one connection, each a stream with windows of its
// own. A body is pulled when the client's windows and the socket have room for it. What one
// connection can make us hold is bounded by its streams, by the budget of bodies, and by how many
// requests anybody still works on: resetting them does not make room for more until that has ended.
class Http2 final : public Protocol, private Http2Session::Events {
 public:
  Http2(EdgeContext& context, std::function<void()> wake);
  ~Http2() override { ready_->Close(); }

  void TakeInput(std::string_view& bytes) override;
  bool wants_input() const override;
  void Produce(std::string& out, size_t max) override;
  bool finished() const override;
  TimePoint deadline() const override;
  void OnDeadline() override;
  bool OnClosing() override;
  void OnClosed() override;

 private:
  enum class Closing { kNo, kAnnounced, kConfirmed, kRefusing };

  // Http2Session::Events.
  void OnFrameBegin(uint8_t type) override;
  bool OnStream(int32_t id) override;
  bool OnHeader(int32_t id, std::string_view name, std::string_view value) override;
  void OnHead(int32_t id) override;
  void OnData(int32_t id, std::string_view bytes) override;
  void OnEmptyData() override;
  void OnRequestEnd(int32_t id) override;
  void OnPong() override;
  Http2Answer* AnswerOf(int32_t id) override;
  void OnAnswerWaits(int32_t id) override;
  void OnAnswered(int32_t id) override;
  void OnDataSent(int32_t id) override;
  void OnResetSent(uint32_t error) override;
  void OnGoawaySent(uint32_t error) override;
  void OnStreamClosed(int32_t id) override;

  // Null once it is closed, or the connection ends.
  Http2Stream* Find(int32_t id);
  void Open(Http2Stream& stream);
  bool Hold(Http2Stream& stream);  // what has come of it; false where the budget has no room
  void OnHeadEnded(int32_t id);
  void TakeBody(Http2Stream& stream, std::string_view bytes);
  void TakeAnswers();
  void Begin(Http2Stream& stream, HttpResponse head, std::shared_ptr<BodySource> source);
  void Resume(Http2Stream& stream);
  void Refuse(Http2Stream& stream, EdgeLimit limit, const HttpError& error);
  void Heed(Http2Guard::Verdict verdict);
  void Fail(uint32_t error);  // of the connection
  void FailAt(EdgeLimit limit, uint32_t error);
  void TellThatClientLeft();
  TimePoint ConnectionDeadline() const;
  void CheckConnection();
  void CheckStreams();
  TimePoint CheckStream(Http2Stream& stream);  // when to look again
  void CheckBy(TimePoint deadline) { check_streams_ = std::min(check_streams_, deadline); }

  EdgeContext& context_;
  const CountedConnection counted_{context_.metrics, EdgeProtocol::kHttp2};
  const std::shared_ptr<Http2Ready> ready_;
  Http2Session session_;
  Http2Guard guard_;
  std::unordered_map<int32_t, std::unique_ptr<Http2Stream>> streams_;
  TimePoint now_;         // of what is being looked at
  TimePoint idle_since_;  // while there is no stream
  TimePoint last_input_;
  TimePoint head_deadline_ = TimePoint::max();  // of the head that comes in
  int32_t head_stream_ = 0;                     // whose that is
  TimePoint check_streams_ = TimePoint::max();
  TimePoint announced_;  // the end
  Closing closing_ = Closing::kNo;
  bool pinged_ = false;
  bool calmed_ = false;  // the client has been told to send less
  bool ended_ = false;   // the last GOAWAY is on its way
};

}  // namespace penstock
