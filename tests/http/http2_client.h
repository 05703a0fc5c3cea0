#pragma once

#include <nghttp2/nghttp2.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/http_message.h"

namespace penstock {

// One answer, as far as it has come.
struct Http2Reply {
  int status = 0;
  std::map<std::string, std::string> headers;
  std::map<std::string, std::string> trailers;
  std::string body;
  bool complete = false;          // as END_STREAM says
  std::optional<uint32_t> reset;  // by the server
};

// A well-behaved HTTP/2 client of one connection that does nothing by itself: what comes is read
// while a test waits. Libnghttp2's client side. One thread.
class Http2Client {
 public:
  // Streams get this window, and no more unless `updates`.
  struct Options {
    uint32_t window_bytes = 65535;
    bool updates = true;
  };
  explicit Http2Client(const std::string& endpoint) : Http2Client(endpoint, Options()) {}
  Http2Client(const std::string& endpoint, Options options);
  ~Http2Client();
  Http2Client(const Http2Client&) = delete;
  Http2Client& operator=(const Http2Client&) = delete;

  // Sends a request and returns its stream. Without `body` it stays open for SendBody.
  int32_t Send(const std::string& method, const std::string& path,
               std::optional<std::string> body = "", std::vector<HttpHeader> more = {});
  // Fields as they are, pseudo-headers and all.
  int32_t SendFields(const std::vector<HttpHeader>& fields);
  void SendBody(int32_t stream, std::string bytes, bool end);
  void Reset(int32_t stream, uint32_t error = NGHTTP2_CANCEL);
  // Gives back what has come of `stream`'s body, and of the connection.
  void Update(int32_t stream, size_t bytes);

  // Reads until `condition`, false when it has not come in 20 s or the server has closed.
  bool WaitUntil(const std::function<bool()>& condition);
  // Until the answer is complete or reset.
  const Http2Reply& Await(int32_t stream);
  // A POST where there is a body, and its answer.
  const Http2Reply& Ask(const std::string& path, const std::string& body = "");
  Http2Reply& reply(int32_t stream) { return replies_[stream]; }
  // The codes and last streams of the GOAWAYs that have come.
  struct Goaway {
    uint32_t error;
    int32_t last_stream;
  };
  const std::vector<Goaway>& goaways() const { return goaways_; }
  bool closed() const { return closed_; }
  // Reads and writes once, waiting for input at most `patience`.
  void Turn(std::chrono::milliseconds patience);

 private:
  struct Callbacks;
  struct Body {
    std::string bytes;
    size_t sent = 0;
    bool end = false;
  };
  void Flush();

  int fd_ = -1;
  nghttp2_session* session_ = nullptr;
  std::map<int32_t, Http2Reply> replies_;
  std::map<int32_t, Body> bodies_;
  std::vector<Goaway> goaways_;
  bool closed_ = false;
};

}  // namespace penstock
