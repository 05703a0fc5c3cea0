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

// The server's end of an HTTP/2 connection, on libnghttp2: frames, header compression, flow-control
// windows and stream states. It does not interpret requests. One thread at a time.
class Http2Session {
 public:
  // Callbacks during Take and Produce. They may call the session's other functions.
  class Events {
   public:
    virtual ~Events() = default;
    virtual void OnFrameBegin(uint8_t type) = 0;  // an nghttp2_frame_type
    // The client has opened a stream; its header fields follow. Returning false refuses the stream.
    virtual bool OnStream(int32_t stream) = 0;
    // Returning false means that the head is too large.
    virtual bool OnHeader(int32_t stream, std::string_view name, std::string_view value) = 0;
    virtual void OnHead(int32_t stream) = 0;  // the head is complete
    virtual void OnData(int32_t stream, std::string_view bytes) = 0;
    virtual void OnEmptyData() = 0;  // an empty DATA frame that does not end the stream
    virtual void OnRequestEnd(int32_t stream) = 0;      // body and trailers are complete
    virtual void OnPong() = 0;                          // the client has answered Ping
    virtual Http2Answer* AnswerOf(int32_t stream) = 0;  // the answer that Respond has begun
    virtual void OnAnswerWaits(int32_t stream) = 0;     // no output until Resume
    virtual void OnAnswered(int32_t stream) = 0;        // the whole answer is produced
    virtual void OnDataSent(int32_t stream) = 0;
    virtual void OnResetSent(uint32_t error) = 0;
    virtual void OnGoawaySent(uint32_t error) = 0;  // also when libnghttp2 ended the session
    virtual void OnStreamClosed(int32_t stream) = 0;
  };

  // `events` outlives the session.
  Http2Session(Events& events, const HttpLimits& limits, const Http2Limits& http2);
  ~Http2Session();
  Http2Session(const Http2Session&) = delete;
  Http2Session& operator=(const Http2Session&) = delete;

  // Processes input. Returns NGHTTP2_NO_ERROR, or the error that ends the connection.
  uint32_t Take(std::string_view bytes);
  // Appends output that is ready and stops soon after `max` bytes. Returns false if the connection
  // has failed and nothing can be sent any more.
  bool Produce(std::string& out, size_t max);
  bool wants_input() const { return nghttp2_session_want_read(session_) != 0; }
  bool wants_output() const { return nghttp2_session_want_write(session_) != 0; }
  // The number of queued frames, without DATA.
  size_t queued() const { return nghttp2_session_get_outbound_queue_size(session_); }
  bool established() const { return established_; }  // the client's SETTINGS have arrived

  void Continue(int32_t stream);  // sends "100 Continue"
  // Sends the head of the answer. If `body`, AnswerOf returns its body.
  void Respond(int32_t stream, const HttpResponse& head, bool body);
  void Resume(int32_t stream);
  void Reset(int32_t stream, uint32_t error);
  // Reports that `bytes` of a body are consumed, so that the windows open again.
  void Consume(int32_t stream, size_t bytes);
  // True if the client's windows have no room for `stream`.
  bool IsHeldBack(int32_t stream) const;
  void Ping();
  // Sends a GOAWAY that still accepts new requests for a moment (RFC 9113, section 6.8).
  void AnnounceEnd();
  // Sends a GOAWAY that refuses new requests; open requests are answered.
  void RefuseStreams(uint32_t error);
  // Sends a GOAWAY and aborts all streams.
  void Terminate(uint32_t error);

 private:
  struct Callbacks;
  friend struct Callbacks;

  void SubmitSettings(const HttpLimits& limits, const Http2Limits& http2);
  // Appends views of `headers` to fields_.
  void AppendFields(const std::vector<HttpHeader>& headers);

  Events& events_;
  nghttp2_session* session_ = nullptr;
  std::vector<nghttp2_nv> fields_;  // the head that is being submitted
  std::string* out_ = nullptr;      // set during Produce
  size_t max_ = 0;
  bool established_ = false;
};

}  // namespace penstock
