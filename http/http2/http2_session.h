#pragma once

#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "http/http2/http2_answer.h"
#include "http/http_message.h"
#include "http/protocol.h"

namespace penstock {

// The server's end of an HTTP/2 connection: frames, header compression, windows and the state of
// streams, by libnghttp2. Knows nothing of what requests mean. One thread at a time.
class Http2Session {
 public:
  // What comes out of Take and Produce. May call the session's other functions.
  class Events {
   public:
    virtual ~Events() = default;
    virtual void OnFrameBegin(uint8_t type) = 0;  // of nghttp2_frame_type
    // The client has opened a stream; its header fields follow. False refuses it.
    virtual bool OnStream(int32_t stream) = 0;
    // False: that is more than enough.
    virtual bool OnHeader(int32_t stream, std::string_view name, std::string_view value) = 0;
    virtual void OnHead(int32_t stream) = 0;  // complete
    virtual void OnData(int32_t stream, std::string_view bytes) = 0;
    virtual void OnEmptyData() = 0;                     // a frame without data that ends nothing
    virtual void OnRequestEnd(int32_t stream) = 0;      // its body, and trailers, are complete
    virtual void OnPong() = 0;                          // the client has answered Ping
    virtual Http2Answer* AnswerOf(int32_t stream) = 0;  // that Respond has begun
    virtual void OnAnswerWaits(int32_t stream) = 0;     // has nothing now: until Resume
    virtual void OnAnswered(int32_t stream) = 0;        // all is produced
    virtual void OnDataSent(int32_t stream) = 0;
    virtual void OnResetSent(uint32_t error) = 0;
    virtual void OnGoawaySent(uint32_t error) = 0;  // also where libnghttp2 found the reason
    virtual void OnStreamClosed(int32_t stream) = 0;
  };

  // `events` outlives it.
  Http2Session(Events& events, const HttpLimits& limits, const Http2Limits& http2);
  ~Http2Session();
  Http2Session(const Http2Session&) = delete;
  Http2Session& operator=(const Http2Session&) = delete;

  // NGHTTP2_NO_ERROR, or why the connection cannot go on.
  uint32_t Take(std::string_view bytes);
  // Appends what can be sent now, and stops soon after `most` bytes. False when the connection
  // cannot go on, and nothing more can be said on it.
  bool Produce(std::string& out, size_t max);
  bool wants_input() const { return nghttp2_session_want_read(session_) != 0; }
  bool wants_output() const { return nghttp2_session_want_write(session_) != 0; }
  // Frames that wait to be sent, without DATA.
  size_t queued() const { return nghttp2_session_get_outbound_queue_size(session_); }
  bool established() const { return established_; }  // the client's SETTINGS have come

  void Continue(int32_t stream);  // "100 Continue"
  // The head of the answer; `body` says that AnswerOf has what follows.
  void Respond(int32_t stream, const HttpResponse& head, bool body);
  void Resume(int32_t stream);
  void Reset(int32_t stream, uint32_t error);
  // Says that `bytes` of a body are taken, and others may come.
  void Consume(int32_t stream, size_t bytes);
  // Whether the client's windows have no room for `stream`.
  bool IsHeldBack(int32_t stream) const;
  void Ping();
  // GOAWAY that still lets requests come for a moment.
  void AnnounceEnd();
  // GOAWAY that lets none come; those that have are answered.
  void RefuseStreams(uint32_t error);
  // GOAWAY, and nothing more of any stream.
  void Terminate(uint32_t error);

 private:
  struct Callbacks;
  friend struct Callbacks;

  void SubmitSettings(const HttpLimits& limits, const Http2Limits& http2);
  // Fills `fields` with views of `headers`.
  void AppendFields(const std::vector<HttpHeader>& headers);

  Events& events_;
  nghttp2_session* session_ = nullptr;
  std::vector<nghttp2_nv> fields_;  // of the head that is being submitted
  std::string* out_ = nullptr;      // during Produce
  size_t max_ = 0;
  bool established_ = false;
};

}  // namespace penstock
