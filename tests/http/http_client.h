#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

struct HttpReply {
  int status = 0;                              // 0: nothing that is HTTP came back
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without the chunks' framing
  bool complete = false;                       // as long as the headers said
};

// A blocking socket of the address `from`; -1 when nobody listens.
int ConnectTo(const std::string& endpoint, const std::string& from = "127.0.0.1");

// A blocking client of one connection, as rude as a test wants it.
class HttpClient {
 public:
  explicit HttpClient(const std::string& endpoint, const std::string& from = "127.0.0.1");
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // False when the server has cut the connection.
  bool Send(std::string_view bytes) const;
  void FinishSending() const;
  // The next reply, or what there is of it after `patience`.
  HttpReply Receive(std::chrono::milliseconds patience = std::chrono::seconds(20));
  // Bytes of the stream until `text` is among them (true), or its end.
  bool ReceiveUntil(const std::string& text,
                    std::chrono::milliseconds patience = std::chrono::seconds(20));
  const std::string& received() const { return buffer_; }
  // True when the server closes the connection within `patience`. Bytes that come before are
  // dropped.
  bool Closes(std::chrono::milliseconds patience = std::chrono::seconds(20));
  int fd() const { return fd_; }

 private:
  bool More(std::chrono::steady_clock::time_point deadline);  // false: closed, or late

  int fd_ = -1;
  std::string buffer_;
  bool closed_ = false;
};

// "POST PATH" with `body` as JSON, or "GET PATH" where there is none.
std::string HttpText(const std::string& path, const std::string& body = "",
                     const std::string& more_headers = "");
// One request on a connection of its own.
HttpReply Ask(const std::string& endpoint, const std::string& path, const std::string& body = "",
              const std::string& more_headers = "");

// The data of every event of a stream, without "data: ".
std::vector<std::string> EventsOf(const std::string& body);

}  // namespace penstock
